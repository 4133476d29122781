"""RDBMS gateways: what waits for the database demon and its clients. Only figures carry results there, and
their numbers are not in the text."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.waiting import Waiting

NEEDS = "the database demon and the gateways to it"
LOST = "The results are in a figure whose numbers are not in the text: only order and shape can be compared."
MACHINE = {
    "data": "50,000 rows of 196 bytes, an access log",
    "answer": "5.605 KB of HTML",
    "network": "10 Mbit/s",
}

WAITING: tuple[Waiting, ...] = (
    (
        Experiment(
            id="R-F5",
            document="RDBMS",
            source="figure 5",
            title="Three ways to a database, 1 to 16 clients",
            claim="A server API with a demon is faster than CGI with a demon, and that than CGI alone, at "
            "every number of clients, and the gap grows.",
            varies="clients, way to the database",
            measures="connect time, response time, rate, duration",
            quick=True,
            needs=NEEDS,
            errata=(LOST,),
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="R-F7",
            document="RDBMS",
            source="figure 7",
            title="Eight ways to a database, one client",
            claim="CGI with a demon is about as fast as NSAPI and ISAPI.",
            varies="way to the database",
            measures="average response time",
            quick=True,
            needs=NEEDS,
            errata=(LOST,),
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="R-F8",
            document="RDBMS",
            source="figure 8",
            title="Connecting and retrieving",
            claim="ODBC and JDBC of type 2 spend much of their time on connecting; a demon has no connecting "
            "to do for each request.",
            varies="way to the database",
            measures="CPU time of connecting and of retrieving",
            quick=True,
            needs=NEEDS,
            errata=(LOST,),
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="R-F9",
            document="RDBMS",
            source="figure 9",
            title="Where a session's state is kept",
            claim="Each tier that keeps state adds time.",
            varies="who keeps the state",
            measures="time added",
            needs="sessions, and a demon that keeps them",
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="R-T1",
            document="RDBMS",
            source="table 1",
            title="Kinds of gateways, judged",
            claim="CGI is portable and slow, server APIs are fast and tied to one server.",
            varies="kind of gateway",
            measures="performance, from L-T2 and X-T2; the rest is prose",
            needs="the experiments L-T2 and X-T2",
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="R-C2",
            document="RDBMS",
            source="section 4",
            title="More than one demon",
            claim="Several demons may serve more clients (future work there).",
            varies="demons, 1 to 4",
            measures="requests a second",
            needs=f"{NEEDS}, and a router among demons",
            machine=MACHINE,
        ),
        (),
    ),
)
