"""The database browser: a read-only site over the tables of a database, for people and for programs.

    URL ──urls──▶ View ──statements──▶ SQL + parameters ─the daemon──▶ rows ──pages──▶ HTML
                    ▲                     ▲
                    └── schema: only names of tables and columns that exist

A visitor's text enters SQL in only two ways. Names of tables and columns are looked up in the schema, and the
schema's own spelling is quoted. Values are bound as parameters. The SQL editor is the only exception: there a
visitor writes a whole statement, which the daemon runs on a read-only connection with limits for time and rows.

Each step is in the file of its name. asking.py sends statements to the daemon, and feature.py is the handler.

Read next: urls.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe.features.base import Mount
from ewe.features.database_settings import BROWSER, OF_BROWSER
from ewe.features.declaration import Feature

if TYPE_CHECKING:
    from ewe.features.plan import Plan


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the browser, if the setting `browser` gives it a path."""
    path = plan.config[BROWSER]
    if path is not None:
        from ewe.features.browser.feature import Browser

        # Without a slash at its end, the path itself reaches the browser, too, which redirects it.
        yield Mount(path.rstrip("/"), Browser(plan.config, plan.provided("databases")))


FEATURE = Feature(
    "browser",
    settings=OF_BROWSER,
    mounts=mounts,
    late=("ewe.features.browser.feature",),
)
