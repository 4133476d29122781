"""The site's databases, for the features that ask them: the browser, and pages from SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import parse_database
from ewe.features.base import Claim
from ewe.features.declaration import Feature

if TYPE_CHECKING:
    from ewe.features.plan import Plan


def provide(plan: Plan) -> Any:
    """Return what asks the database demon."""
    from ewe.gateway.database import Databases

    return Databases(plan.config)


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the files of SQLite's databases, with those that SQLite keeps beside them."""
    for _, driver, place in map(parse_database, plan.config.database):
        if driver == "sqlite" and place:
            for end in ("", "-journal", "-wal", "-shm"):
                yield Claim(directory=os.path.abspath(place) + end)


FEATURE = Feature(
    "databases",
    settings=("database", "dbd", "dbd_key"),
    provide=provide,
    claims=claims,
    late=("ewe.gateway.database",),
)
