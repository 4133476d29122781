"""The scenarios of the RDBMS paper: the same report on an access log, by every way from a gateway to a database.

    with databases.opened(lab, SQLITE) as database, databases.demon(lab, database) as demon:
        for scenario in reports.SCENARIOS:
            if why := scenario.missing(database):            "... is left out: apt install ..."
                lab.note(why)
                continue
            contender = Contender(scenario.name, model="thread")
            with (
                reports.ready(lab, scenario, database, demon, contender) as (found, path),
                lab.start(found, lab.site([])) as server,
            ):
                server.url.rstrip("/") + reports.asked(path, DYNAMIC)

    number      gateway                          database                        connection      SQL
    1           CGI in C                         embedded SQL, or SQLite's C     each request    static, dynamic
    2           CGI in C                         ODBC                            each request    static, dynamic
    3           in process (LibCGI)              C interface                     each request    static, dynamic
    5           in process (LibCGI)              C interface                     from a pool     static, dynamic
    6           in process (LibCGI)              C interface                     one, by turns   static, dynamic
    7           CGI in C                         the demon                       the demon's     dynamic
    in process  LibCGI                           the demon                       the demon's     dynamic
    FastCGI     four processes in C              C interface                     one each        static, dynamic
    X-Switch    a page in PHP, four engines      PDO, persistent                 one each        dynamic

4 and 8 are servlets (ewe_lab.stacks.servlets). The paper's figure 6, which told what 3, 5 and 6 are, is lost: the
text says that they are among NSAPI, ISAPI and WAI, that "connections are established by the executing thread",
and that a connection "could be pre-established and shared among the various threads" with a mutex. 3, 5 and 6 are
our reading. Figure 3's three scenarios are 1, 7, and in process through the demon, which keeps its connection to
the demon.

X-Switch runs no script in Python or Perl here: its engines close the descriptors that such a script leaves, and
so its connections. The driver manager of ODBC pools within a process, so a CGI program finds its pool empty:
scenario 2 pays for a connection each time.

Static SQL is in the program, prepared where the interface prepares; dynamic SQL is a text of the request, in the
query (`asked()`). The page is what the demon's layout TABLE makes of the result (`Database.digest`), with the
same bytes from every scenario. Two headers tell the ms that connecting and retrieving took, of the program's CPU
and by the clock:

    Server-Timing: con;dur=1.234, ret;dur=5.678
    Server-Timing: con-wall;dur=1.345, ret-wall;dur=20.123

The CPU time is the program's: SQLite's work is part of it, that of PostgreSQL or of the demon is not. A
connection that was kept has a `con` of 0. Without a database the answer is 503 and one line.
ewe_lab/stacks/sources/report.h shows how the programs are made. Raises LabError.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import ewe
from ewe.database.access_log import REPORT
from ewe_lab.bench.experiment import Bench, Contender
from ewe_lab.bench.processes import LabError, find_tool, one_line
from ewe_lab.stacks import backends, compiled, gateways
from ewe_lab.stacks.databases import NAME, POSTGRESQL, SQLITE, Asked, Database
from ewe_lab.stacks.gateways import CGI, FASTCGI, LIBCGI, XSWITCH

STATIC, DYNAMIC = "static", "dynamic"
DIRECT, ODBC, DEMON = "direct", "odbc", "demon"  # how a program reaches the database
NONE, POOL, SHARED = "NONE", "POOL", "SHARED"  # what a program keeps of its connections, as in report_lib.c
ENGINES = 4  # of X-Switch
READS = "-c default_transaction_read_only=on"  # PostgreSQL's option for a connection that changes nothing
CONNECT = 5  # seconds that a program waits for a connection
PROGRAMS = {
    CGI: ("report_cgi.c", "report.cgi"),
    LIBCGI: ("report_lib.c", "report.so"),
    FASTCGI: ("report_fcgi.c", "report.fcgi"),
}
PHP_MODULES = {SQLITE: ("pdo_sqlite", "php-sqlite3"), POSTGRESQL: ("pdo_pgsql", "php-pgsql")}
HEADERS = Path(ewe.__file__).with_name("database")  # the directory of ewe_db.h
NEEDED = {  # a file of C's includes, and the Debian package that has it
    "sqlite": ("/usr/include/sqlite3.h", "libsqlite3-dev"),
    "libpq": ("/usr/include/postgresql/libpq-fe.h", "libpq-dev"),
    "ecpg": ("/usr/include/postgresql/ecpglib.h", "libecpg-dev"),
    "odbc": ("/usr/include/sql.h", "unixodbc-dev"),
}
LIBRARIES = {"sqlite": "-lsqlite3", "libpq": "-lpq", "ecpg": "-lecpg", "odbc": "-lodbc"}
POSTGRES_HEADERS = "/usr/include/postgresql"
DRIVERS = {  # of ODBC: the file, the Debian package
    SQLITE: ("libsqlite3odbc.so", "libsqliteodbc"),
    POSTGRESQL: ("psqlodbcw.so", "odbc-postgresql"),
}
ODBC_INI = """\
[ODBC]
Pooling = Yes
[report]
Driver = {driver}
CPTimeout = 60
"""
XSWITCH_SETTINGS = f"""\
max-engines-per-user = {ENGINES}
max-queue-per-user = 2000
max-queue = 2000
"""


@dataclass(frozen=True)
class Scenario:
    """A way from a gateway to a database. number: the paper's, "" where it has none."""

    number: str
    name: str
    gateway: str
    through: str = DIRECT
    keeps: str = NONE
    sql: tuple[str, ...] = (STATIC, DYNAMIC)
    reading: bool = False  # ours of what the paper says, since its figure is lost

    def part(self, database: Database) -> str:
        """Return the file that speaks to the database: report_PART.c."""
        if self.through != DIRECT:
            return self.through
        if database.name == SQLITE:
            return "sqlite"
        return "ecpg" if self.gateway == CGI else "libpq"

    def missing(self, database: Database) -> str:
        """Return why this cannot run here, and what would help; "" if it can."""
        lacking = ""
        if self.gateway == LIBCGI:
            lacking = gateways.libcgi_lacks()
        if self.gateway == XSWITCH:
            lacking = php_lacks(database)
        elif not lacking:
            lacking = compiled.missing() or packages(self.part(database), database)
        return f"{self.name} on {database.name} is left out: {lacking}" if lacking else ""


SCENARIOS = (
    Scenario("1", "1 CGI, embedded SQL", CGI),
    Scenario("2", "2 CGI, ODBC", CGI, ODBC),
    Scenario("3", "3 in process, a connection each", LIBCGI, reading=True),
    Scenario("5", "5 in process, pool", LIBCGI, keeps=POOL, reading=True),
    Scenario("6", "6 in process, one connection", LIBCGI, keeps=SHARED, reading=True),
    Scenario("7", "7 CGI, demon", CGI, DEMON, sql=(DYNAMIC,)),
    Scenario("", "in process, demon", LIBCGI, DEMON, POOL, sql=(DYNAMIC,)),
    Scenario("", "FastCGI, kept connection", FASTCGI, keeps=SHARED),
    Scenario("", "X-Switch, kept connection", XSWITCH, keeps=SHARED, sql=(DYNAMIC,)),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def packages(part: str, database: Database) -> str:
    """Return what would install what a program is built with, "" if it is here."""
    lacking = []
    if part in NEEDED:
        header, package = NEEDED[part]
        if not Path(header).exists() or (part == "ecpg" and not find_tool("ecpg")):
            lacking.append(package)
    if part == "odbc" and not driver_of(database.name):
        lacking.append(DRIVERS[database.name][1])
    return f"apt install {' '.join(lacking)}" if lacking else ""


def php_lacks(database: Database) -> str:
    """Return what PHP needs for a database, "" if it has it."""
    if not (php := find_tool("php-cgi")):
        return "apt install php-cgi"
    module, package = PHP_MODULES[database.name]
    known = subprocess.run([php, "-m"], capture_output=True, text=True, timeout=30).stdout.split()
    return "" if module in known else f"apt install {package}"


def driver_of(name: str) -> str:
    """Return the path of a database's ODBC driver, "" if it is not installed."""
    file, _ = DRIVERS[name]
    return str(next(iter(Path("/usr/lib").glob(f"*/odbc/{file}")), ""))


def asked(path: str, sql: str) -> str:
    """Return the path of a URL that asks for the report by static or dynamic SQL."""
    return path if sql == STATIC else f"{path}?sql={quote(REPORT)}"


def quoted(text: str) -> str:
    """Return a text as a string of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def built(lab: Bench, scenario: Scenario, database: Database, demon: Asked) -> Path:
    """Return the program of a scenario, in a directory that all accounts may read. Raises LabError."""
    where = Path(tempfile.mkdtemp(prefix="report-", dir=lab.directory))
    where.chmod(0o755)
    part = scenario.part(database)
    second = compiled.SOURCES / f"report_{part}.c"
    defined = {"STATEMENT": REPORT, "DATABASE": database.place}
    if part == "libpq":
        defined["DATABASE"] = f"{database.place} connect_timeout={CONNECT} options='{READS}'"
    elif part == "ecpg":
        second = embedded(where)
        words = words_of(database)
        defined = {"DATABASE": words["dbname"], "PLACE": words["host"], "PORT": words["port"]}
        defined["ACCOUNT"] = words["user"]
    elif part == ODBC:
        defined |= {"DATABASE": odbc_string(database), "DRIVERS": str(where)}
        if database.name == SQLITE:
            defined["PREPARES"] = "PRAGMA query_only = 1"  # its driver has no word for it
        (where / "odbcinst.ini").write_text(ODBC_INI.format(driver=driver_of(database.name)))
    elif part == DEMON:
        defined |= {"DATABASE": NAME, "DEMON": demon.address}
    options = [f"-D{name}={quoted(text)}" for name, text in defined.items()]
    options += ["-Wl,--no-as-needed", "-I", str(HEADERS), "-I", str(compiled.SOURCES), "-I", POSTGRES_HEADERS]
    options += [str(compiled.SOURCES / "report.c"), str(second)]
    if part in LIBRARIES:
        options.append(LIBRARIES[part])
    if scenario.gateway == LIBCGI:
        options += ["-shared", "-fPIC", "-I", str(compiled.LIBCGI_HEADER), f"-DKEEPS={scenario.keeps}"]
    source, name = PROGRAMS[scenario.gateway]
    program = where / name
    compiled.build(compiled.SOURCES / source, program, *options)
    return program


def words_of(database: Database) -> dict[str, str]:
    """Return the words of PostgreSQL's connection string."""
    return dict(word.partition("=")[::2] for word in database.place.split())


def odbc_string(database: Database) -> str:
    """Return the connection string of ODBC."""
    if database.name == SQLITE:
        return f"Driver=report;Database={database.place};NoCreat=Yes;Timeout=5000"
    words = words_of(database)
    return (
        f"Driver=report;Servername={words['host']};Port={words['port']};Database={words['dbname']};"
        f"Username={words['user']};ReadOnly=1"
    )


def embedded(where: Path) -> Path:
    """Translate embedded SQL into C; return the file. Raises LabError."""
    made = where / "report_ecpg.c"
    command = ["ecpg", "-o", str(made), str(compiled.SOURCES / "report_ecpg.pgc")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=compiled.BUILT_IN)
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise LabError(f"ecpg: {reason}") from None
    if done.returncode:
        raise LabError(f"ecpg failed: {one_line(done.stderr)}")
    return made


@contextmanager
def ready(
    lab: Bench, scenario: Scenario, database: Database, demon: Asked, contender: Contender
) -> Iterator[tuple[Contender, str]]:
    """Build a scenario's program and start what it needs; yield the contender and the path of the report.

    The processes of the database and, where it is asked, of the demon count as the contender's.
    """
    if why := scenario.missing(database):
        raise LabError(why)
    asked = (demon.pid,) if scenario.through == DEMON else ()
    contender = replace(contender, also=(*contender.also, *database.pids, *asked))
    if scenario.gateway == XSWITCH:
        with page(lab, database, contender) as found:
            yield found, "/cgi-bin/report.php"
        return
    program = built(lab, scenario, database, demon)
    if scenario.gateway == LIBCGI:
        yield gateways.in_place(program, contender), f"/libcgi-bin/{program.name}"
    elif scenario.gateway == FASTCGI:
        with gateways.fastcgi(lab, program, contender, keeps=False) as found:
            yield found, "/fastcgi"
    else:
        yield gateways.with_options(contender, "--cgi-path", str(program.parent)), f"/cgi-bin/{program.name}"


@contextmanager
def page(lab: Bench, database: Database, contender: Contender) -> Iterator[Contender]:
    """Run an X-Switch for the page in PHP."""
    where = Path(tempfile.mkdtemp(prefix="report-", dir=lab.directory))
    programs, settings = where / "cgi-bin", where / "xswitch.toml"
    programs.mkdir()
    write_page(programs / "report.php", database)
    settings.write_text(XSWITCH_SETTINGS)
    for each in (where, *where.rglob("*")):
        each.chmod(0o755)
    with backends.switch(lab, "--config", str(settings), root=programs) as (pid, path):
        path.chmod(0o666)
        found = gateways.with_options(contender, "--cgi-path", str(programs), "--xswitch", f"unix:{path}")
        yield replace(found, also=(*found.also, pid))


def write_page(path: Path, database: Database) -> None:
    """Write the page in PHP for a database."""
    told = {"SOURCE": f"sqlite:{database.place}", "ACCOUNT": "", "STATEMENT": REPORT}
    if database.name == POSTGRESQL:
        words = words_of(database)
        told["ACCOUNT"] = words.pop("user")
        words["options"] = f"'{READS}'"
        told["SOURCE"] = "pgsql:" + ";".join(f"{name}={value}" for name, value in words.items())
    text = (compiled.SOURCES / "report.php").read_text()
    for name, value in told.items():
        text = text.replace(f"@{name}@", value.replace("\\", "\\\\").replace("'", "\\'"))
    path.write_text(text)
