"""All ways from a gateway to a database that the experiments compare: the paper's, and two used today.

    for way in WAYS.values():
        if why := way.why_missing(database): lab.add_note(why); continue
        with way.serve(lab, database, daemon) as (server, path): ...

ewe_lab.stacks.reports has the scenarios in C and Python, servlets.py those in Java, report_servers.py the others.
Raises LabError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from ewe_lab.bench.experiment import Bench, ServedPath, ServerUnderTest
from ewe_lab.stacks import report_servers, reports, servlets
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, LabDatabase, RunningDaemon
from ewe_lab.stacks.gateways import LIBCGI
from ewe_lab.stacks.reports import DYNAMIC, SCENARIOS, STATIC, Scenario

Serving = Callable[[Bench, LabDatabase, RunningDaemon], AbstractContextManager[ServedPath]]
EMBEDDED = "1 CGI, embedded SQL"
ODBC = "2 CGI, ODBC"
TYPE_2 = "4 servlet, JDBC type 2"
CGI_DAEMON = "7 CGI, daemon"
TYPE_4 = "8 servlet, JDBC type 4"
IN_PROCESS = "in process, daemon"
KEPT = "X-Switch, kept connection"
FPM = "php-fpm, persistent PDO"
DATASETTE = "Datasette, saved query"
OTHER_SERVERS = (FPM, DATASETTE)  # rows for comparison that the paper does not have
SCENARIO_MODEL = "thread"  # the model of ewe for the scenarios; the paper prescribes none


@dataclass(frozen=True)
class DatabaseWay:
    """A way from a gateway to a database.

    lacks: returns the reason if the way cannot run on a database, else "". sql: the kinds of SQL that a request may
    use.
    """

    name: str
    lacks: Callable[[LabDatabase], str]
    serve: Serving
    sql: tuple[str, ...] = (DYNAMIC,)

    def why_missing(self, database: LabDatabase) -> str:
        """Return the reason if the way cannot run on a database, with the package to install; else ""."""
        lacking = self.lacks(database)
        return f"{self.name} on {database.name} is left out: {lacking}" if lacking else ""


@contextmanager
def serve_scenario(
    scenario: Scenario, lab: Bench, database: LabDatabase, daemon: RunningDaemon
) -> Iterator[ServedPath]:
    """Serve a scenario of ewe_lab.stacks.reports with ewe; yield the server and the path of the report."""
    tested = ServerUnderTest(scenario.name, model=SCENARIO_MODEL)
    with (
        reports.start_scenario(lab, scenario, database, daemon, tested) as (adapted, path),
        lab.start(adapted, lab.site([])) as server,
    ):
        yield ServedPath(server, path)


@contextmanager
def serve_servlet(
    driver: servlets.JDBCDriver, lab: Bench, database: LabDatabase, daemon: RunningDaemon
) -> Iterator[ServedPath]:
    """Serve a servlet; yield the server and the path of the report. `daemon` is not used."""
    with servlets.serve_report(lab, driver, database.jdbc, database.pids) as found:
        yield found


def way_of_scenario(scenario: Scenario) -> DatabaseWay:
    """Return the way of a scenario."""
    return DatabaseWay(
        scenario.name,
        # The reason alone: DatabaseWay.why_missing() puts the same words before it
        lacks=lambda database: scenario.why_missing(database).partition(" is left out: ")[2],
        serve=partial(serve_scenario, scenario),
        sql=scenario.sql,
    )


def way_of_servlet(name: str, driver: servlets.JDBCDriver, database: str) -> DatabaseWay:
    """Return the way of a servlet. Its driver is for the database `database` only."""

    def lacks(asked: LabDatabase) -> str:
        return servlets.why_missing() if asked.name == database else f"its driver is that of {database}"

    return DatabaseWay(name, lacks=lacks, serve=partial(serve_servlet, driver), sql=(STATIC,))


def way_of_server(
    name: str,
    why_missing: Callable[[LabDatabase], str],
    serve: Callable[[Bench, LabDatabase], AbstractContextManager[ServedPath]],
) -> DatabaseWay:
    """Return the way of a server other than ewe, with static SQL only. It uses no database daemon.

    why_missing: returns the reason if it cannot run on a database, else "". serve: starts it.
    """
    return DatabaseWay(
        name, lacks=why_missing, serve=lambda lab, database, daemon: serve(lab, database), sql=(STATIC,)
    )


def all_ways() -> dict[str, DatabaseWay]:
    """Return all ways by name: those that the paper numbers in its order, then the others of ewe, then the rest."""
    found = [way_of_scenario(each) for each in SCENARIOS]
    found.append(way_of_servlet(TYPE_2, servlets.TYPE_2, SQLITE))
    found.append(way_of_servlet(TYPE_4, servlets.TYPE_4, POSTGRESQL))
    # The paper's ways have its number in their names: `4 servlet, JDBC type 2`
    numbered = sorted((way for way in found if way.name[:1].isdigit()), key=lambda way: way.name)
    others = [way for way in found if not way.name[:1].isdigit()]
    other_servers = [
        way_of_server(FPM, report_servers.why_fpm_is_missing, report_servers.php_fpm),
        way_of_server(DATASETTE, report_servers.why_datasette_is_missing, report_servers.datasette),
    ]
    return {way.name: way for way in (*numbered, *others, *other_servers)}


WAYS = all_ways()
SERVER_API = tuple(each.name for each in SCENARIOS if each.gateway == LIBCGI and each.name != IN_PROCESS)
