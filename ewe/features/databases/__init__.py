"""The site's databases, for the features that ask them: the browser, and pages from SQL.

asking.py has statements run by the database demon (ewe-dbd).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ewe.config.linux import needs_linux
from ewe.config.setting_types import parse_database
from ewe.features.base import Claim
from ewe.features.declaration import Feature

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import Plan


def provide(plan: Plan) -> Any:
    """Return what asks the database demon."""
    from ewe.features.databases.asking import Databases

    return Databases(plan.config)


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the files of SQLite's databases, with those that SQLite keeps beside them."""
    for _, driver, place in map(parse_database, plan.config.database):
        if driver == "sqlite" and place:
            for end in ("", "-journal", "-wal", "-shm"):
                yield Claim(directory=os.path.abspath(place) + end)


def needs(config: Config) -> Iterator[str]:
    """Yield a line for each database that cannot be there: no Linux, no such file, or no driver."""
    if not starts_demon(config):
        return
    if reason := needs_linux("the database demon (database)", "ewe --host 0.0.0.0 4000"):
        yield reason
        return
    for name, driver, place in map(parse_database, config.database):
        if driver != "sqlite":
            if find_spec("psycopg") is None:
                yield f"database {name}: PostgreSQL needs psycopg: pip install 'ewe-server[database]'"
        elif place and not os.path.isfile(place):
            yield f"database {name}: there is no file {place!r} (database)"
        elif place and not os.access(place, os.R_OK):
            yield f"database {name}: {place!r} may not be read; change its mode or its owner (database)"


def starts_demon(config: Config) -> bool:
    """Return whether ewe starts a demon: it has databases, and no demon is named."""
    return bool(config.database) and config.dbd is None


def notes(config: Config) -> Iterator[str]:
    """Yield a line for each database that cannot be opened now. The server would start, since it may be later."""
    if not starts_demon(config) or any(needs(config)):
        return
    from ewe.database.drivers import Database, connect
    from ewe.database.protocol import DatabaseError

    for name, driver, place in map(parse_database, config.database):
        try:
            connect(Database(name, driver, place, write=False)).close()
        except DatabaseError as error:
            yield f"database {name} cannot be opened: {error} (database)"


FEATURE = Feature(
    "databases",
    settings=("database", "dbd", "dbd_key"),
    provide=provide,
    claims=claims,
    needs=needs,
    notes=notes,
    late=("ewe.features.databases.asking",),
)
