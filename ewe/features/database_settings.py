"""The settings of databases, of their daemon (databases/), and of the browser (browser/)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, DATABASES, FILE_NAMES, SAVED_QUERIES, TABLES, TEXT, URL_PATH, unset

# fmt: off
DATABASE = Setting((), DATABASES, "a database that pages may read: log=access.db, or"
                   " shop=postgresql:dbname=shop; ewe starts a database daemon for it, unless `dbd` names one;"
                   " may be repeated", group="databases", scope="server", key="database", after="spool")
DBD = Setting(None, unset(TEXT), "the address of a database daemon (ewe-dbd) that runs already: unix:PATH or"
              " HOST:PORT; empty: ewe starts one if there are databases", group="databases", scope="server",
              key="dbd", after="database")
BROWSER = Setting("/-/databases", unset(URL_PATH), "the path below which visitors may browse the databases:"
                  " tables, filters, SQL that only reads; empty: nowhere", group="databases",
                  key="browser", after="dbd")
BROWSER_HIDDEN = Setting((), FILE_NAMES, "a database that nobody may browse, such as one for pages; may be"
                         " repeated", group="databases", key="browser-hidden", after="browser")
BROWSER_SQL = Setting(True, BOOL, "whether visitors may write SQL there, which only reads",
                      group="databases", key="browser-sql", after="browser-hidden")
BROWSER_QUERY = Setting((), SAVED_QUERIES, "a saved query of the browser: log/slowest=SELECT ...; a :name in it"
                        " becomes a field; may be repeated",
                        group="databases", key="browser-query", after="browser-sql")
BROWSER_EDIT = Setting((), TABLES, "a table whose rows visitors may insert, edit and delete: shop.goods; only with"
                       " a daemon (dbd) whose database has write = true; may be repeated",
                       group="databases", key="browser-edit", after="browser-query")
DBD_KEY = Setting(None, unset(TEXT), "the key of the databases, for a daemon on TCP; empty: none",
                  group="databases", scope="server", key="dbd-key", after="browser-edit")
# fmt: on
OF_DATABASES = DATABASE, DBD, DBD_KEY
OF_BROWSER = BROWSER, BROWSER_HIDDEN, BROWSER_SQL, BROWSER_QUERY, BROWSER_EDIT
SETTINGS = (DATABASE, DBD, *OF_BROWSER, DBD_KEY)
