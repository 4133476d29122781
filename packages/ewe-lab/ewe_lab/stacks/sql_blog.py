"""The blog of SQL pages, ewe's sample, filled with the lab's posts, on SQLite or on a private PostgreSQL.

    with BLOGS[0].serve(lab) as (server, database, paths): ...

The database daemon is a process beside ewe, so that its CPU time is measured separately. Raises LabError.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import ewe
from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, last_line
from ewe_lab.stacks import databases
from ewe_lab.stacks.blog import posts
from ewe_lab.stacks.databases import POSTGRESQL, SQLITE, LabDatabase

DATABASE_NAME = "blog"  # of the database, in the pages
PACKAGE = Path(ewe.__file__).resolve().parent
INSERT_POST = "INSERT INTO posts (id, title, author, written, body) VALUES (?, ?, ?, ?, ?)"
INSERT_COMMENT = "INSERT INTO comments (post, author, written, body) VALUES (?, ?, ?, ?)"


class ServedBlog(NamedTuple):
    """A running blog. database_pids: of its database server, () for SQLite. paths: that a visitor requests."""

    server: RunningServer
    database_pids: tuple[int, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True)
class BlogSetup:
    """A way to serve the blog: a model of ewe with its options, and a database. full: in a full run only."""

    model: str
    database: str = SQLITE
    options: tuple[str, ...] = ()
    full: bool = False

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.model} {self.database}"

    @property
    def why_missing(self) -> str:
        """The reason if the blog cannot be served here, with the package to install; else ""."""
        lacking = databases.why_missing(self.database)
        if find_spec("jinja2") is None:
            lacking = "pip install 'ewe-server[pages]'"
        return f"{self.name} is left out: {lacking}" if lacking else ""

    @contextmanager
    def serve(self, lab: Bench) -> Iterator[ServedBlog]:
        """Serve the blog; yield it. The database daemon is in `other_pids` of ewe's server. Raises LabError."""
        if self.why_missing:
            raise LabError(self.why_missing)
        root = Path(tempfile.mkdtemp(prefix="blog-", dir=lab.directory)) / "htdocs"
        # mkdtemp() makes a directory that only its owner may enter, and ewe's workers may run as another account
        root.parent.chmod(0o755)
        shutil.copytree(sample() / "htdocs", root)
        with (
            fill_database(lab, self.database, root.parent) as database,
            databases.daemon(lab, database, name=DATABASE_NAME) as running_daemon,
        ):
            options = ("--dbd", running_daemon.address, *self.options)
            tested = ServerUnderTest(
                self.name, model=self.model, options=options, other_pids=(running_daemon.pid,)
            )
            with lab.start(tested, root) as server:
                yield ServedBlog(server, database.pids, ("/", f"/post?id={posts()[-1].number}"))


PREFORK = BlogSetup("prefork", options=("--workers", "64"))  # a visitor keeps a worker while reading
BLOGS = (PREFORK, BlogSetup("pool", full=True), BlogSetup("asyncio"), BlogSetup("asyncio", POSTGRESQL))


def sample() -> Path:
    """Return the directory of the sample: in an installed package, or beside the package in a clone."""
    for directory in (PACKAGE / "sample", PACKAGE.parent):
        if (found := directory / "samples" / "blog").is_dir():
            return found
    raise LabError("ewe's sample blog is missing: install ewe again")


@contextmanager
def fill_database(lab: Bench, database: str, directory: Path) -> Iterator[LabDatabase]:
    """Make a database with the blog; yield it. directory: for the file of SQLite. Raises LabError."""
    if database == SQLITE:
        path = directory / "blog.db"
        try:
            with closing(sqlite3.connect(path)) as connection, connection:  # the latter commits at the end
                connection.executescript((sample() / "schema.sql").read_text())
                for statement, rows in insert_statements():
                    connection.executemany(statement, rows)
        except sqlite3.Error as reason:  # such as a full disk
            raise LabError(f"{SQLITE}: {reason}") from None
        path.chmod(0o644)  # a process of another account may open it
        yield LabDatabase(SQLITE, str(path))
        return
    import psycopg

    with databases.postgresql(lab) as server:
        try:
            with psycopg.connect(server.source, autocommit=True) as filling, filling.cursor() as cursor:
                cursor.execute((sample() / "schema-postgresql.sql").read_bytes())
                for statement, rows in insert_statements():
                    # psycopg writes a parameter as %s, sqlite3 as ?
                    cursor.executemany(statement.replace("?", "%s").encode(), rows)
                cursor.execute("ANALYZE")
        except psycopg.Error as reason:
            raise LabError(f"{POSTGRESQL}: {last_line(str(reason))}") from None
        yield server


def insert_statements() -> Iterator[tuple[str, Sequence[Sequence[object]]]]:
    """Yield the statements that write the posts and their comments, with the values of each row."""
    yield (
        INSERT_POST,
        [(each.number, each.title, each.author, each.date, "\n\n".join(each.paragraphs)) for each in posts()],
    )
    yield (
        INSERT_COMMENT,
        [(post.number, each.author, each.date, each.text) for post in posts() for each in post.comments],
    )
