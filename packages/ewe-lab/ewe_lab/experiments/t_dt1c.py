"""Thesis, DT-1 over Unix and TCP sockets: Cherokee's loss of performance, tested with nginx and php-fpm."""

from ewe_lab.bench.results import ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.thesis_static import KEEP_ALIVE, NO_KEEP_ALIVE

FEW_CLIENTS = 100  # clients; with more of them Cherokee lost its performance
COLLAPSE_SHARE = 0.5  # of the best rate


def lowest_ratio(table: ExperimentTable, kind: str) -> float | None:
    """Return the lowest ratio of the worst rate above FEW_CLIENTS to the best rate below, for a kind of socket.

    kind: the first word of the servers' names. None if nothing was measured.
    """
    found: list[float] = []
    for column in (NO_KEEP_ALIVE, KEEP_ALIVE):
        for server in {cell.server for cell in table.cells if cell.server.startswith(kind)}:
            points = [
                (cell.x, cell.median)
                for cell in table.cells
                if (cell.server, cell.column) == (server, column) and cell.x and cell.median is not None
            ]
            few = [rate for clients, rate in points if clients <= FEW_CLIENTS]
            many = [rate for clients, rate in points if clients > FEW_CLIENTS]
            if many and max(few, default=0.0) > 0:
                found.append(min(many) / max(few))
    return min(found, default=None)


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: the rate collapses over Unix sockets, and does not collapse over TCP.
    """
    unix, tcp = lowest_ratio(table, "Unix"), lowest_ratio(table, "TCP")
    if unix is None or tcp is None:
        return Finding(NOT_TESTABLE, "Not both kinds of socket were measured with few and with many clients.")
    parts = (unix < COLLAPSE_SHARE, tcp >= COLLAPSE_SHARE)
    verdict = verdict_of_parts(parts)
    return Finding(
        verdict,
        f"Above {FEW_CLIENTS} clients the rate fell to {unix:.0%} of the best over Unix sockets, "
        f"to {tcp:.0%} over TCP.",
    )
