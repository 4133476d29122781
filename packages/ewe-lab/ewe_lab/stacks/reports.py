"""The scenarios of the RDBMS paper: the same report on an access log, by every way from a gateway to a database.

    with databases.open_database(lab, SQLITE) as database, databases.daemon(lab, database) as daemon:
        for scenario in reports.SCENARIOS:
            if why := scenario.why_missing(database):        "... is left out: apt install ..."
                lab.add_note(why)
                continue
            tested = ServerUnderTest(scenario.name, model="thread")
            with (
                reports.start_scenario(lab, scenario, database, daemon, tested) as (found, path),
                lab.start(found, lab.site([])) as server,
            ):
                server.url.rstrip("/") + reports.report_url(path, DYNAMIC)

    number      gateway                          database                        connection      SQL
    1           CGI in C                         embedded SQL, or SQLite's C     each request    static, dynamic
    2           CGI in C                         ODBC                            each request    static, dynamic
    3           in process (LibCGI)              C interface                     each request    static, dynamic
    5           in process (LibCGI)              C interface                     from a pool     static, dynamic
    6           in process (LibCGI)              C interface                     one, by turns   static, dynamic
    7           CGI in C                         the daemon                      the daemon's    dynamic
    in process  LibCGI                           the daemon                      the daemon's    dynamic
    FastCGI     four processes in C              C interface                     one each        static, dynamic
    X-Switch    a page in PHP, four engines      PDO, persistent                 one each        dynamic

4 and 8 are servlets (ewe_lab.stacks.servlets). The paper's figure 6, which explained 3, 5 and 6, is lost. The text
says that they are among NSAPI, ISAPI and WAI, that "connections are established by the executing thread", and that
a connection "could be pre-established and shared among the various threads" with a mutex. 3, 5 and 6 are our
interpretation. Figure 3's three scenarios are 1, 7, and a library in process that uses the daemon and keeps its
connection to the daemon.

X-Switch runs no script in Python or Perl here: its engines close the descriptors that such a script leaves open,
and so its connections. The driver manager of ODBC pools connections within a process. Each CGI program is a new
process with an empty pool, so scenario 2 opens a connection for each request.

Static SQL is in the program, and is prepared if the interface can prepare statements. Dynamic SQL is a text of the
request, in the query (`report_url()`). The page is the result in the daemon's layout TABLE (`LabDatabase.digest`),
with the same bytes from every scenario. Two headers give the ms that connecting and retrieving took, in CPU time
of the program and by the clock:

    Server-Timing: con;dur=1.234, ret;dur=5.678
    Server-Timing: con-wall;dur=1.345, ret-wall;dur=20.123

The CPU time is the program's: it includes the work of SQLite, but not that of PostgreSQL or of the daemon. If the
connection was kept, `con` is 0. Without a database the answer is 503 and one line.
ewe_lab/stacks/sources/report.h explains the structure of the programs. Raises LabError.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import ewe
from ewe.database.access_log import REPORT
from ewe_lab.bench.experiment import Bench, ServerUnderTest
from ewe_lab.bench.processes import LabError, find_tool, last_line
from ewe_lab.stacks import backends, compiled, gateways
from ewe_lab.stacks.databases import DATABASE_NAME, POSTGRESQL, SQLITE, LabDatabase, RunningDaemon
from ewe_lab.stacks.gateways import CGI, FASTCGI, LIBCGI, XSWITCH, ServerWithProgram

STATIC, DYNAMIC = "static", "dynamic"
DIRECT, ODBC, DAEMON = "direct", "odbc", "daemon"  # how a program reaches the database
NONE, POOL, SHARED = "NONE", "POOL", "SHARED"  # the connections that a program keeps, as in report_lib.c
ENGINE_COUNT = 4  # of X-Switch
# PostgreSQL's option for a connection that changes nothing
READ_ONLY_OPTION = "-c default_transaction_read_only=on"
# SQLite's ODBC driver has no option for it: each new connection begins with this statement
READ_ONLY_STATEMENT = "PRAGMA query_only = 1"
CONNECT_TIMEOUT_S = 5  # seconds that a program waits for a connection


class ReportProgram(NamedTuple):
    """The file in C of a gateway, and the name of the program that is built of it."""

    source: str
    name: str


class DebianFile(NamedTuple):
    """A file that Debian has, and the package to install. name: of an include file its path, else without it."""

    name: str
    package: str


PROGRAMS = {  # by gateway
    CGI: ReportProgram("report_cgi.c", "report.cgi"),
    LIBCGI: ReportProgram("report_lib.c", "report.so"),
    FASTCGI: ReportProgram("report_fcgi.c", "report.fcgi"),
}
PHP_MODULES = {
    SQLITE: DebianFile("pdo_sqlite", "php-sqlite3"), POSTGRESQL: DebianFile("pdo_pgsql", "php-pgsql"),
}  # fmt: skip
HEADERS = Path(ewe.__file__).with_name("database")  # the directory of ewe_db.h
NEEDED_PACKAGES = {  # an include file of C by PART of report_PART.c
    "sqlite": DebianFile("/usr/include/sqlite3.h", "libsqlite3-dev"),
    "libpq": DebianFile("/usr/include/postgresql/libpq-fe.h", "libpq-dev"),
    "ecpg": DebianFile("/usr/include/postgresql/ecpglib.h", "libecpg-dev"),
    "odbc": DebianFile("/usr/include/sql.h", "unixodbc-dev"),
}
LIBRARIES = {"sqlite": "-lsqlite3", "libpq": "-lpq", "ecpg": "-lecpg", "odbc": "-lodbc"}
POSTGRES_HEADERS = "/usr/include/postgresql"
ODBC_DRIVERS = {
    SQLITE: DebianFile("libsqlite3odbc.so", "libsqliteodbc"),
    POSTGRESQL: DebianFile("psqlodbcw.so", "odbc-postgresql"),
}
ODBC_INI = """\
[ODBC]
Pooling = Yes
[report]
Driver = {driver}
CPTimeout = 60
"""
XSWITCH_SETTINGS = f"""\
max-engines-per-user = {ENGINE_COUNT}
max-queue-per-user = 2000
max-queue = 2000
"""


@dataclass(frozen=True)
class Scenario:
    """A way from a gateway to a database. number: the paper's, "" for a way that the paper does not have.

    through: how the program reaches the database (DIRECT, ODBC or DAEMON). keeps: the connections that it keeps
    (NONE, POOL or SHARED). sql: the kinds of SQL that a request may use.
    """

    number: str
    name: str
    gateway: str
    through: str = DIRECT
    keeps: str = NONE
    sql: tuple[str, ...] = (STATIC, DYNAMIC)
    is_interpretation: bool = False  # our interpretation of the paper, since its figure is lost

    def part(self, database: LabDatabase) -> str:
        """Return PART of the file report_PART.c, which connects to the database."""
        if self.through != DIRECT:
            return self.through
        if database.name == SQLITE:
            return "sqlite"
        return "ecpg" if self.gateway == CGI else "libpq"  # embedded SQL is the paper's scenario 1 alone

    def why_missing(self, database: LabDatabase) -> str:
        """Return the reason if the scenario cannot run here, with the package to install; else ""."""
        lacking = ""
        if self.gateway == LIBCGI:
            lacking = gateways.why_no_libcgi()
        if self.gateway == XSWITCH:
            lacking = missing_php_module(database)
        elif not lacking:
            lacking = compiled.why_missing() or packages_to_install(self.part(database), database)
        return f"{self.name} on {database.name} is left out: {lacking}" if lacking else ""


SCENARIOS = (
    Scenario("1", "1 CGI, embedded SQL", CGI),
    Scenario("2", "2 CGI, ODBC", CGI, through=ODBC),
    Scenario("3", "3 in process, a connection each", LIBCGI, is_interpretation=True),
    Scenario("5", "5 in process, pool", LIBCGI, keeps=POOL, is_interpretation=True),
    Scenario("6", "6 in process, one connection", LIBCGI, keeps=SHARED, is_interpretation=True),
    Scenario("7", "7 CGI, daemon", CGI, through=DAEMON, sql=(DYNAMIC,)),
    Scenario("", "in process, daemon", LIBCGI, through=DAEMON, keeps=POOL, sql=(DYNAMIC,)),
    Scenario("", "FastCGI, kept connection", FASTCGI, keeps=SHARED),
    Scenario("", "X-Switch, kept connection", XSWITCH, keeps=SHARED, sql=(DYNAMIC,)),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def packages_to_install(part: str, database: LabDatabase) -> str:
    """Return the command that installs the missing libraries of a program, "" if none is missing."""
    lacking = []
    if part in NEEDED_PACKAGES:
        header, package = NEEDED_PACKAGES[part]
        if not Path(header).exists() or (part == "ecpg" and not find_tool("ecpg")):
            lacking.append(package)
    if part == "odbc" and not odbc_driver_of(database.name):
        lacking.append(ODBC_DRIVERS[database.name].package)
    return f"apt install {' '.join(lacking)}" if lacking else ""


def missing_php_module(database: LabDatabase) -> str:
    """Return the command that installs php-cgi, or else its module for a database; "" if none is missing."""
    if not (php := find_tool("php-cgi")):
        return "apt install php-cgi"
    module, package = PHP_MODULES[database.name]
    installed = subprocess.run([php, "-m"], capture_output=True, text=True, timeout=30).stdout.split()
    return "" if module in installed else f"apt install {package}"


def odbc_driver_of(name: str) -> str:
    """Return the path of a database's ODBC driver, "" if it is not installed. name: SQLITE or POSTGRESQL."""
    found = Path("/usr/lib").glob(f"*/odbc/{ODBC_DRIVERS[name].name}")  # *: the architecture
    return str(next(iter(found), ""))


def report_url(path: str, sql: str) -> str:
    """Return the path of a URL that asks for the report by static or dynamic SQL."""
    return path if sql == STATIC else f"{path}?sql={quote(REPORT)}"


def c_string(text: str) -> str:
    """Return a text as a string of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def build_program(lab: Bench, scenario: Scenario, database: LabDatabase, daemon: RunningDaemon) -> Path:
    """Build the program of a scenario; return it, in a directory that all accounts may read. Raises LabError.

    A program is the file of its gateway (PROGRAMS), report.c, and report_PART.c, which connects to the database.
    Names and addresses are constants of C, which the compiler is given as options.
    """
    directory = Path(tempfile.mkdtemp(prefix="report-", dir=lab.directory))
    directory.chmod(0o755)
    # ecpg, libpq, sqlite, odbc or daemon. The first comment of report_PART.c explains its constants.
    part = scenario.part(database)
    connecting_source = compiled.SOURCES / f"report_{part}.c"
    defined = {"STATEMENT": REPORT, "DATABASE": database.source}
    if part == "libpq":
        defined["DATABASE"] = (
            f"{database.source} connect_timeout={CONNECT_TIMEOUT_S} options='{READ_ONLY_OPTION}'"
        )
    elif part == "ecpg":
        connecting_source = translate_embedded_sql(directory)
        parameters = parameters_of(database)
        # No STATEMENT: embedded SQL has it in its source
        defined = {"DATABASE": parameters["dbname"], "PLACE": parameters["host"], "PORT": parameters["port"]}
        defined["ACCOUNT"] = parameters["user"]
    elif part == ODBC:
        defined |= {"DATABASE": odbc_string(database), "DRIVERS": str(directory)}
        if database.name == SQLITE:
            defined["PREPARES"] = READ_ONLY_STATEMENT
        (directory / "odbcinst.ini").write_text(ODBC_INI.format(driver=odbc_driver_of(database.name)))
    elif part == DAEMON:
        defined |= {"DATABASE": DATABASE_NAME, "DAEMON": daemon.address}
    options = [f"-D{name}={c_string(text)}" for name, text in defined.items()]
    options += ["-Wl,--no-as-needed", "-I", str(HEADERS), "-I", str(compiled.SOURCES), "-I", POSTGRES_HEADERS]
    options += [str(compiled.SOURCES / "report.c"), str(connecting_source)]
    if part in LIBRARIES:
        options.append(LIBRARIES[part])
    if scenario.gateway == LIBCGI:
        options += ["-shared", "-fPIC", "-I", str(compiled.LIBCGI_HEADER), f"-DKEEPS={scenario.keeps}"]
    source, name = PROGRAMS[scenario.gateway]
    program = directory / name
    compiled.build(compiled.SOURCES / source, program, *options)
    return program


def parameters_of(database: LabDatabase) -> dict[str, str]:
    """Return the parameters of PostgreSQL's connection string, by name."""
    return dict(word.partition("=")[::2] for word in database.source.split())


def odbc_string(database: LabDatabase) -> str:
    """Return the connection string of ODBC for a database: options of its driver, with semicolons between.

    Driver=report names the section of ODBC_INI. The connection must not change the database. PostgreSQL's driver
    has an option for that (ReadOnly). SQLite's has none, so report_odbc.c executes a statement (PREPARES). NoCreat:
    do not create a missing file. Timeout: wait up to 5000 ms for a lock of another connection.
    """
    if database.name == SQLITE:
        return f"Driver=report;Database={database.source};NoCreat=Yes;Timeout=5000"
    parameters = parameters_of(database)
    return (
        f"Driver=report;Servername={parameters['host']};Port={parameters['port']};Database={parameters['dbname']};"
        f"Username={parameters['user']};ReadOnly=1"
    )


def translate_embedded_sql(directory: Path) -> Path:
    """Translate embedded SQL into C; return the file. Raises LabError."""
    c_file = directory / "report_ecpg.c"
    command = ["ecpg", "-o", str(c_file), str(compiled.SOURCES / "report_ecpg.pgc")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=compiled.COMPILE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise LabError(f"ecpg: {reason}") from None
    if done.returncode:
        raise LabError(f"ecpg failed: {last_line(done.stderr)}")
    return c_file


@contextmanager
def start_scenario(
    lab: Bench, scenario: Scenario, database: LabDatabase, daemon: RunningDaemon, tested: ServerUnderTest
) -> Iterator[ServerWithProgram]:
    """Build a scenario's program and start its processes; yield the server under test and the path of the report.

    The processes of the database count as the server's, and so does the daemon if the scenario uses it.
    """
    if why := scenario.why_missing(database):
        raise LabError(why)
    daemon_pids = (daemon.pid,) if scenario.through == DAEMON else ()
    tested = replace(tested, other_pids=(*tested.other_pids, *database.pids, *daemon_pids))
    if scenario.gateway == XSWITCH:
        with php_page(lab, database, tested) as found:
            yield ServerWithProgram(found, "/cgi-bin/report.php")
        return
    program = build_program(lab, scenario, database, daemon)
    if scenario.gateway == LIBCGI:
        yield ServerWithProgram(gateways.in_process(program, tested), f"/libcgi-bin/{program.name}")
    elif scenario.gateway == FASTCGI:
        with gateways.fastcgi(lab, program, tested, keeps=False) as found:
            yield ServerWithProgram(found, "/fastcgi")
    else:
        adapted = gateways.with_options(tested, "--cgi-path", str(program.parent))
        yield ServerWithProgram(adapted, f"/cgi-bin/{program.name}")


@contextmanager
def php_page(lab: Bench, database: LabDatabase, tested: ServerUnderTest) -> Iterator[ServerUnderTest]:
    """Write the page in PHP, and start an X-Switch for it; yield the server under test that uses both."""
    directory = Path(tempfile.mkdtemp(prefix="report-", dir=lab.directory))
    programs, settings = directory / "cgi-bin", directory / "xswitch.toml"
    programs.mkdir()
    write_page(programs / "report.php", database)
    settings.write_text(XSWITCH_SETTINGS)
    # The script's owner must be able to read them, and the server to connect
    for each in (directory, *directory.rglob("*")):
        each.chmod(0o755)
    with backends.run_xswitch(lab, "--config", str(settings), root=programs) as (pid, socket):
        socket.chmod(0o666)
        found = gateways.with_options(tested, "--cgi-path", str(programs), "--xswitch", f"unix:{socket}")
        yield replace(found, other_pids=(*found.other_pids, pid))


def write_page(path: Path, database: LabDatabase) -> None:
    """Write the page in PHP for a database: report.php with the values of @SOURCE@, @ACCOUNT@ and @STATEMENT@."""
    variables = {"SOURCE": f"sqlite:{database.source}", "ACCOUNT": "", "STATEMENT": REPORT}
    if database.name == POSTGRESQL:
        parameters = parameters_of(database)
        variables["ACCOUNT"] = parameters.pop("user")
        # Quotes, because the option has a space (libpq's connection strings)
        parameters["options"] = f"'{READ_ONLY_OPTION}'"
        variables["SOURCE"] = "pgsql:" + ";".join(f"{name}={value}" for name, value in parameters.items())
    text = (compiled.SOURCES / "report.php").read_text()
    for name, value in variables.items():
        # The page has the name in a string of PHP with single quotes
        text = text.replace(f"@{name}@", value.replace("\\", "\\\\").replace("'", "\\'"))
    path.write_text(text)
