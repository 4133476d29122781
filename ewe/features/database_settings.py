"""The settings of the browser, except its path (`browser`)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, FILE_NAMES, SAVED_QUERIES, TABLES

# fmt: off
HIDDEN = Setting((), FILE_NAMES, "a database that nobody may browse, such as one for pages; may be repeated",
                 group="databases", key="browser-hidden", after="browser")
SQL = Setting(True, BOOL, "whether visitors may write SQL there, which only reads",
              group="databases", key="browser-sql", after="browser-hidden")
QUERY = Setting((), SAVED_QUERIES, "a saved query of the browser: log/slowest=SELECT ...; a :name in it becomes a"
                " field; may be repeated", group="databases", key="browser-query", after="browser-sql")
EDIT = Setting((), TABLES, "a table whose rows visitors may insert, edit and delete: shop.goods; only with a daemon"
               " (dbd) whose database has write = true; may be repeated",
               group="databases", key="browser-edit", after="browser-query")
# fmt: on
SETTINGS = (HIDDEN, SQL, QUERY, EDIT)
