"""The site's databases, for the features that use them: the browser, and pages from SQL.

asking.py sends statements to the database daemon (ewe-dbd). daemon_program.py starts the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ewe.config.linux import needs_linux
from ewe.config.setting_types import parse_database
from ewe.features.base import ProtectedSource
from ewe.features.database_settings import DATABASE, DBD, OF_DATABASES
from ewe.features.declaration import Feature, MeasuredProcess

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.declaration import ProgramMaker
    from ewe.features.plan import Plan


def provide(plan: Plan) -> Any:
    """Return the Databases object, which sends statements to the database daemon."""
    from ewe.features.databases.asking import Databases

    return Databases(plan.config)


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the files of SQLite databases, and the files that SQLite keeps beside them."""
    for _, driver, source in map(parse_database, plan.config[DATABASE]):
        if driver == "sqlite" and source:
            for end in ("", "-journal", "-wal", "-shm"):
                yield ProtectedSource(directory=os.path.abspath(source) + end)  # the path of one file


def needs(config: Config) -> Iterator[str]:
    """Yield the reasons why the server cannot start: Linux, a database's file or its driver is missing."""
    if not starts_daemon(config):
        return
    if reason := needs_linux("the database daemon (database)", in_container="ewe --host 0.0.0.0 4000"):
        yield reason
        return
    for name, driver, source in map(parse_database, config[DATABASE]):
        if driver != "sqlite":
            if find_spec("psycopg") is None:
                yield f"database {name}: PostgreSQL needs psycopg: pip install 'ewe-server[database]'"
        elif source and not os.path.isfile(source):  # `source` is "" if only the daemon knows the file
            yield f"database {name}: there is no file {source!r} (database)"
        elif source and not os.access(source, os.R_OK):
            yield f"database {name}: cannot read {source!r}; change its mode or its owner (database)"


def starts_daemon(config: Config) -> bool:
    """Return whether ewe starts a daemon: the settings have databases, and do not name a daemon (`dbd`)."""
    return bool(config[DATABASE]) and config[DBD] is None


def programs(config: Config) -> Iterator[ProgramMaker]:
    """Yield the maker of the database daemon, if ewe starts one."""
    if starts_daemon(config):
        from ewe.features.databases.daemon_program import DaemonProgram

        yield partial(DaemonProgram, config)


def fixed(config: Config) -> Iterator[str]:
    """Yield the settings of databases if no daemon was started for the new ones (Feature.fixed).

    A daemon that runs has completed `dbd`, and reads other databases without a restart (DaemonProgram.rereads).
    """
    if starts_daemon(config):
        yield from ("database", "dbd")


def notes(config: Config) -> Iterator[str]:
    """Yield lines for `ewe --check-config`: the databases that do not open now, as a database server that is down.

    The server starts nevertheless. Yield nothing if needs() has a reason: its line says why nothing opens.
    """
    if not starts_daemon(config) or any(needs(config)):
        return
    from ewe.database.drivers import Database, connect
    from ewe.database.protocol import DatabaseError

    for name, driver, source in map(parse_database, config[DATABASE]):
        try:
            connect(Database(name, driver, source, write=False)).close()
        except DatabaseError as error:
            yield f"database {name} cannot be opened: {error} (database)"


def measures(config: Config) -> MeasuredProcess | None:
    """Return the object that asks the database daemon for its numbers, for the status; None without a daemon.

    The setting `dbd` also names a daemon that ewe has started. Raises ValueError for an invalid address.
    """
    address = config[DBD]
    if address is None:
        return None
    from ewe.features.databases.asking import DatabaseNumbers

    return DatabaseNumbers(address)


FEATURE = Feature(
    "databases",
    settings=OF_DATABASES,
    provide=provide,
    protected=protected,
    programs=programs,
    fixed=fixed,
    needs=needs,
    notes=notes,
    measures=measures,
    late=("ewe.features.databases.asking",),
)
