"""Thesis, DT-1 over Unix and TCP sockets: what Cherokee did, with nginx and php-fpm in its place."""

from ewe_lab.bench.results import Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.thesis_static import KEEP, NO_KEEP

FEW = 100  # clients, above which Cherokee lost its performance
COLLAPSE = 0.5  # of the best rate


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
