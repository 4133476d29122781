"""All ways from a gateway to a database that the experiments compare: the paper's, and those used today.

    for way in WAYS.values():
        if why := way.missing(database): lab.note(why); continue
        with way.served(lab, database, demon) as (server, path): ...

ewe_lab.stacks.reports has the scenarios in C and Python, servlets.py those in Java, report_peers.py the others.
Raises LabError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.stacks import report_peers, reports, servlets
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, Asked, Database
from ewe_lab.stacks.gateways import LIBCGI
from ewe_lab.stacks.reports import DYNAMIC, SCENARIOS, STATIC, Scenario

Serving = Callable[[Bench, Database, Asked], AbstractContextManager[tuple[Running, str]]]
EMBEDDED = "1 CGI, embedded SQL"
ODBC = "2 CGI, ODBC"
TYPE_2 = "4 servlet, JDBC type 2"
CGI_DEMON = "7 CGI, demon"
TYPE_4 = "8 servlet, JDBC type 4"
IN_PROCESS = "in process, demon"
KEPT = "X-Switch, kept connection"
FPM = "php-fpm, persistent PDO"
DATASETTE = "Datasette, saved query"
PEERS = (FPM, DATASETTE)  # anchors, which the paper does not have
ANSWERS_IN = "thread"  # the model of ewe where the scenario leaves the choice


@dataclass(frozen=True)
class DatabaseWay:
    """A way. why: "" if it can run, else what it lacks, by the database's name. sql: what a request may ask for."""

    name: str
    lacks: Callable[[Database], str]
    served: Serving
    sql: tuple[str, ...] = (DYNAMIC,)

    def missing(self, database: Database) -> str:
        """Return why it cannot run on a database, and what would help; "" if it can."""
        lacking = self.lacks(database)
        return f"{self.name} on {database.name} is left out: {lacking}" if lacking else ""


@contextmanager
def by_scenario(
    scenario: Scenario, lab: Bench, database: Database, demon: Asked
) -> Iterator[tuple[Running, str]]:
    """Serve a scenario of ewe_lab.stacks.reports by ewe."""
    contender = Contender(scenario.name, model=ANSWERS_IN)
    with (
        reports.ready(lab, scenario, database, demon, contender) as (found, path),
        lab.start(found, lab.site([])) as server,
    ):
        yield server, path


@contextmanager
def by_servlet(
    driver: servlets.Driver, lab: Bench, database: Database, demon: Asked
) -> Iterator[tuple[Running, str]]:
    """Serve a servlet, which asks no demon."""
    with servlets.served(lab, driver, database.jdbc, database.pids) as found:
        yield found


def of_scenario(scenario: Scenario) -> DatabaseWay:
    """Return the way of a scenario."""
    return DatabaseWay(
        scenario.name,
        lambda database: scenario.missing(database).partition(" is left out: ")[2],
        partial(by_scenario, scenario),
        scenario.sql,
    )


def of_servlet(name: str, driver: servlets.Driver, database: str) -> DatabaseWay:
    """Return the way of a servlet, whose driver is of one database."""

    def lacks(asked: Database) -> str:
        return servlets.missing() if asked.name == database else f"its driver is that of {database}"

    return DatabaseWay(name, lacks, partial(by_servlet, driver), (STATIC,))


def of_peer(
    name: str,
    missing: Callable[[Database], str],
    served: Callable[[Bench, Database], AbstractContextManager[tuple[Running, str]]],
) -> DatabaseWay:
    """Return the way of an anchor, which asks no demon."""
    return DatabaseWay(name, missing, lambda lab, database, demon: served(lab, database), (STATIC,))


def gathered() -> dict[str, DatabaseWay]:
    """Return all ways by name, in the paper's order."""
    found = [of_scenario(each) for each in SCENARIOS]
    found.append(of_servlet(TYPE_2, servlets.TYPE_2, SQLITE))
    found.append(of_servlet(TYPE_4, servlets.TYPE_4, POSTGRESQL))
    numbered = sorted((way for way in found if way.name[:1].isdigit()), key=lambda way: way.name)
    others = [way for way in found if not way.name[:1].isdigit()]
    peers = [
        of_peer(FPM, report_peers.fpm_missing, report_peers.php_fpm),
        of_peer(DATASETTE, report_peers.datasette_missing, report_peers.datasette),
    ]
    return {way.name: way for way in (*numbered, *others, *peers)}


WAYS = gathered()
SERVER_API = tuple(each.name for each in SCENARIOS if each.gateway == LIBCGI and each.name != IN_PROCESS)
