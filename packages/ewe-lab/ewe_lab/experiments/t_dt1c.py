"""Thesis, DT-1 over Unix and TCP sockets: what Cherokee did, with nginx and php-fpm in its place."""

from dataclasses import replace

from ewe_lab.bench.results import Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.thesis_dynamic import KEEP, NO_KEEP, DynamicTest, experiment
from ewe_lab.stacks.ways import Way

CHILDREN = (1, 4, 16)
BACKLOG = 128  # of php-cgi by default
FULL = (
    "lighttpd's php-cgi lets 128 connections wait, as by default. Over a Unix socket the kernel turns the next "
    "away at once (EAGAIN), and lighttpd answers with an error; over TCP it waits. Cherokee may have met the same."
)
FEW = 100  # clients, above which Cherokee lost its performance
COLLAPSE = 0.5  # of the best rate


def pair(front: str, by: str, label: str, children: int, backlog: int = 0) -> tuple[Way, Way]:
    """Return a way over a Unix socket and the same way over TCP."""
    unix = Way(front, by, "php", children=children, backlog=backlog, label=f"Unix, {label}")
    return unix, replace(unix, tcp=True, label=f"TCP, {label}")


WAYS = (
    *(way for count in CHILDREN for way in pair("nginx", "php-fpm", f"{count} php-fpm", count)),
    *pair("lighttpd", "php-cgi", "4 php-cgi", 4, BACKLOG),
)


def lowest(table: Table, kind: str) -> float | None:
    """Return the lowest ratio of the worst rate above 100 clients to the best below, for one kind of socket."""
    found: list[float] = []
    for column in (NO_KEEP, KEEP):
        for server in {cell.server for cell in table.cells if cell.server.startswith(kind)}:
            cells = [cell for cell in table.cells if (cell.server, cell.column) == (server, column)]
            few = [cell.median or 0.0 for cell in cells if cell.x and cell.x <= FEW]
            many = [cell.median or 0.0 for cell in cells if cell.x and cell.x > FEW]
            if many and max(few, default=0.0) > 0:
                found.append(min(many) / max(few))
    return min(found, default=None)


def check(table: Table) -> Finding:
    """The claim has two parts: over Unix sockets it collapses, over TCP it does not."""
    unix, tcp = lowest(table, "Unix"), lowest(table, "TCP")
    if unix is None or tcp is None:
        return Finding(NOT_TESTABLE, "Not both kinds of socket were measured with few and with many clients.")
    parts = (unix < COLLAPSE, tcp >= COLLAPSE)
    word = HOLDS if all(parts) else IN_PART if any(parts) else FAILS
    return Finding(
        word,
        f"Above {FEW} clients the rate fell to {unix:.0%} of the best over Unix sockets, to {tcp:.0%} over TCP.",
    )


TEST = DynamicTest(
    WAYS,
    {NO_KEEP: {}, KEEP: {}},
    {NO_KEEP: ("Cherokee, TCP", 4_000.0)},
    clients=(10, 50, 100, 250, 500, 1000),
    quick=(32, 250),
    notes=(FULL,),
)
EXPERIMENT = experiment(
    "T-DT1c",
    "figures A.12 and A.13",
    "PHP over Unix and TCP sockets",
    "Over Unix sockets Cherokee collapses above 100 clients, over TCP it does not.",
    TEST,
    reference="",
    paper_reference="",
    minutes=5.0,
    varies="kind of socket, php-fpm's processes, clients at once",
    errata=(
        "What is measured is nginx with php-fpm: of Cherokee's own threads there is nothing left to test.",
    ),
)
