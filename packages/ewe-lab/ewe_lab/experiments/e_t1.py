"""EWE, table 1: the defaults of its settings, and ours."""

from __future__ import annotations

from collections.abc import Iterator

from ewe.config.settings import Config
from ewe_lab.bench.experiment import Bench, Experiment
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, Finding

PRINTED: dict[str, tuple[str, object]] = {  # option of 2006: our setting, the printed default
    "concurrency": ("concurrency", "none"),
    "port": ("port", 4000),
    "poolthreads": ("poolthreads", 5),
    "indexes": ("indexes", True),
    "persistent": ("persistent", True),
    "loglevel": ("loglevel", 0),
    "logfile": ("logfile", "ewe.log"),
    "defaultindex": ("defaultindex", "index.html"),
    "documentroot": ("documentroot", "htdocs"),
    "cgi-path": ("cgi_path", "cgi-bin"),
}
CLAIMED = ("port", "poolthreads", "indexes", "persistent")


def run(lab: Bench) -> Iterator[Cell]:
    """Compare each printed default with ours."""
    for option, (name, printed) in PRINTED.items():
        ours = getattr(Config, name).default
        same = ours == printed
        if not same:
            lab.notes.append(f"{option}: {printed!r} in 2006, {ours!r} here.")
        sample = Sample("settings", 0.0, extra={"same": float(same)})
        yield Cell(option, value="extra.same", unit="(1: as in 2006)", samples=[sample])


def check(table: Table) -> Finding:
    """The claim holds if the defaults that it names are unchanged."""
    other = [cell.server for cell in table.cells if cell.median == 0]
    told = f"{len(table.cells) - len(other)} of {len(table.cells)} defaults are as printed"
    return Finding(
        FAILS if set(CLAIMED) & set(other) else HOLDS,
        told + (f"; others: {', '.join(other)}." if other else "."),
    )


EXPERIMENT = Experiment(
    id="E-T1",
    document="EWE",
    source="table 1",
    title="The defaults of the settings",
    claim="Port 4000, five threads in the pool, indexes and persistent connections on: as in 2006.",
    varies="nothing",
    measures="which defaults are as printed",
    minutes=0.1,
    errata=(
        "Table 1 prints “cgi-path”, section 3.3 “cgipath”.",
        "A log level of 0, with “log all messages below this level”, logs nothing.",
    ),
    run=run,
)
