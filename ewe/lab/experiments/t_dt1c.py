"""Thesis, DT-1 over Unix and TCP sockets: what Cherokee did, with nginx and php-fpm in its place."""

from ewe.lab.experiments.thesis_dynamic import KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.results import Table
from ewe.lab.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe.lab.ways import Way

CHILDREN = (1, 4, 16)
FEW = 100  # clients, above which Cherokee lost its performance
COLLAPSE = 0.5  # of the best rate
WAYS = tuple(
    Way(
        "nginx",
        "php-fpm",
        "php",
        children=count,
        tcp=tcp,
        label=f"{'TCP' if tcp else 'Unix'}, {count} children",
    )
    for count in CHILDREN
    for tcp in (False, True)
)


def lowest(table: Table, kind: str) -> float | None:
    """Return the worst rate above 100 clients over the best up to there, of all settings of a kind of socket."""
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


TEST = Dynamic(
    WAYS,
    {NO_KEEP: {}, KEEP: {}},
    {NO_KEEP: ("Cherokee, TCP", 4_000.0)},
    clients=(10, 50, 100, 250, 500, 1000),
    quick=(32, 250),
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
