"""The experiments that wait for a part of ewe that does not exist yet, and the figures their documents printed.

Each names in `needs` the part it waits for. `ewe-lab list` shows them, and a report prints their figures with
empty columns beside them. An experiment whose part exists moves to a file with its id and gets a `run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ewe.lab.bench.experiment import Experiment
from ewe.lab.bench.results import Cell
from ewe.lab.experiments.thesis_static import MACHINE as THESIS_MACHINE

Cells = tuple[Cell, ...]
MACHINES: Mapping[str, Mapping[str, str]] = {
    "RDBMS": {
        "data": "50,000 rows of 196 bytes, an access log",
        "answer": "5.605 KB of HTML",
        "network": "10 Mbit/s",
    },
    "thesis": THESIS_MACHINE,
}


def printed(
    figures: Mapping[str, float], column: str = "", unit: str = "req/s", x: float | None = None
) -> Cells:
    """Return cells that hold printed figures only. figures: by the document's name of a server."""
    return tuple(
        Cell(name, column, x, value="", unit=unit, paper=figure, paper_server=name)
        for name, figure in figures.items()
    )


def joined(parts: Iterable[Cells]) -> Cells:
    """Return the cells of several columns as one table."""
    return tuple(cell for part in parts for cell in part)


def waiting(
    document: str, id: str, source: str, title: str, claim: str, *, varies: str, measures: str, needs: str,
    cells: Cells = (), quick: bool = False, errata: tuple[str, ...] = (),
) -> tuple[Experiment, Cells]:  # fmt: skip
    """Return an experiment without a `run`, and its document's figures."""
    experiment = Experiment(
        id=id, document=document, source=source, title=title, claim=claim, varies=varies, measures=measures,
        quick=quick, needs=needs, errata=errata, machine=MACHINES[document],
    )  # fmt: skip
    return experiment, cells


# ---------------------------------------------------------------------------------------------------------
# RDBMS: gateways to a database. The results are in figures, and the text does not give their numbers.

DATABASE = "the database demon and the gateways to it"
LOST = "The results are in a figure whose numbers are not in the text: only order and shape can be compared."
RDBMS_EXPERIMENTS = (
    waiting(
        "RDBMS", "R-F5", "figure 5", "Three ways to a database, 1 to 16 clients",
        "A server API with a demon is faster than CGI with a demon, and that than CGI alone, at every number of "
        "clients, and the gap grows.",
        varies="clients, way to the database", measures="connect time, response time, rate, duration", quick=True,
        needs=DATABASE, errata=(LOST,),
    ),
    waiting(
        "RDBMS", "R-F7", "figure 7", "Eight ways to a database, one client",
        "CGI with a demon is about as fast as NSAPI and ISAPI.",
        varies="way to the database", measures="average response time", quick=True, needs=DATABASE,
        errata=(LOST,),
    ),
    waiting(
        "RDBMS", "R-F8", "figure 8", "Connecting and retrieving",
        "ODBC and JDBC of type 2 spend much of their time on connecting; a demon has no connecting to do for each "
        "request.",
        varies="way to the database", measures="CPU time of connecting and of retrieving", quick=True,
        needs=DATABASE, errata=(LOST,),
    ),
    waiting(
        "RDBMS", "R-F9", "figure 9", "Where a session's state is kept", "Each tier that keeps state adds time.",
        varies="who keeps the state", measures="time added", needs="sessions, and a demon that keeps them",
    ),
    waiting(
        "RDBMS", "R-T1", "table 1", "Kinds of gateways, judged",
        "CGI is portable and slow, server APIs are fast and tied to one server.",
        varies="kind of gateway", measures="performance, from L-T2 and X-T2; the rest is prose",
        needs="the experiments L-T2 and X-T2",
    ),
    waiting(
        "RDBMS", "R-C2", "section 4", "More than one demon",
        "Several demons may serve more clients (future work there).",
        varies="demons, 1 to 4", measures="requests a second", needs=f"{DATABASE}, and a router among demons",
    ),
)  # fmt: skip

WAITING: Sequence[tuple[Experiment, Cells]] = RDBMS_EXPERIMENTS
