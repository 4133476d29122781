"""Tables as the lab makes them, with figures that are made up: for the tests of report and charts."""

from __future__ import annotations

from ewe_lab.bench.results import Cell, ExperimentTable, Results, Sample, Second, Times, Usage
from ewe_lab.experiments.ewe_tables import PrintedTable, line_cells
from ewe_lab.experiments.papers import given

PRINTED = PrintedTable(**given("E-T2"))

MODELS = (
    "serial",
    "fork",
    "prefork",
    "thread",
    "pool-2006",
    "pool",
    "asyncio",
    "nginx",
    "lighttpd",
    "apache-prefork",
)


def times(value: float) -> Times:
    return Times(
        2_000, value, value, value * 1.5, value * 2, value * 5, value * 9, [(value, 1_200), (value * 2, 800)]
    )


def sample(
    rate: float, seconds: int = 5, errors: dict[str, int] | None = None, client: float = 0.3
) -> Sample:
    """Return a sample of a run at this rate."""
    timeline = [
        Second(at, int(rate), dict(errors or {}), p50=0.001, p99=0.004, due=int(rate), cpu=0.5 + at / 20,
               memory=2e7 + at * 1e6, threads=5, processes=1)
        for at in range(seconds)
    ]  # fmt: skip
    lost, replies = sum((errors or {}).values()), int(rate * seconds)
    return Sample(
        "locust", seconds, replies + lost, replies, 100 + lost, 1e6, errors or {}, times(0.001), times(0.002),
        client=client, usage=Usage(0.4 * seconds, 2e7, 5, 1, core=0.4), timeline=timeline,
    )  # fmt: skip


def compared(names: tuple[str, ...] = MODELS) -> ExperimentTable:
    """Return a table as `ewe-lab compare` makes it."""
    cells = [
        Cell(
            name,
            samples=[sample(100 * (index + 1), errors={"ct": 3} if index == 0 else None)],
            command=f"ewe {name}",
            load="50 users",
        )
        for index, name in enumerate(names)
    ]
    return ExperimentTable(
        "compare", "Everyday use", cells, quick=True, seconds=60, command="ewe-lab compare -f -t"
    )


def ewe_table(id: str = "E-T2") -> ExperimentTable:
    """Return a table with printed figures."""
    cells = []
    for column, factor in (("as printed", 1.0), ("think 100 ms", 0.1), ("same regime", 0.2)):
        for server, name, paper, note, ours in (
            ("apache-prefork", "Apache", 1012.8, "0", 1000.0),
            ("serial", "EWE basic", 4.5, "881 st, 5 res", 1000 * factor**2),
            ("fork", "EWE -f", 215.4, "0", 1000 * factor),
            ("thread", "EWE -t", 163.5, "24 res", 900.0),
            ("pool-2006", "EWE -p", 11.9, "773 ct", 700 * factor),
        ):
            errors = {"ct": 40, "st": 4} if server == "serial" and factor < 1 else {}
            cells.append(
                Cell(
                    server,
                    column,
                    paper=paper,
                    paper_server=name,
                    paper_note=f"{note} of 1000",
                    samples=[sample(ours * part, errors=errors) for part in (0.9, 1.0, 1.2)],
                )
            )
    lines = [line for cell in cells for line in line_cells(PRINTED, cell)]
    return ExperimentTable(id, cells=cells + lines, command="ewe-lab run E-T2", notes=["a note"])


def sweep() -> ExperimentTable:
    cells = [
        Cell(name, "users", users, samples=[sample(users * (index + 1))])
        for index, name in enumerate(MODELS)
        for users in (1, 10, 100, 1000)
    ]
    return ExperimentTable("GROW", cells=cells)


def everything() -> Results:
    waiting = ExperimentTable("T-LD", skipped="the blog is not there yet")
    return Results(
        "2026-11-21T12:00:00+00:00",
        "ewe-lab run --all",
        {"kernel": "Linux 6", "CPU": "two cores"},
        [compared(), ewe_table(), sweep(), waiting, ExperimentTable("E-C2", interrupted=True)],
    )
