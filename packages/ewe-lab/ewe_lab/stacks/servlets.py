"""The database report as a servlet of X-Switch's JVM: scenarios 4 and 8 of the RDBMS paper.

    python -m ewe_lab.stacks.servlets        builds the servlet with Maven, once; `make java` does so, too

    with serve_report(lab, TYPE_2, "/tmp/access.db") as (server, path): ...

    4    a driver of type 2, which calls the database's C library: sqlite-jdbc on SQLite
    8    a driver of type 4, which speaks the database's protocol in Java: PostgreSQL's own

Each request has a new connection. The answer is the report in the layout TABLE of the daemon, so its bytes are
those of all other scenarios. reports.py explains its headers Server-Timing. Raises LabError.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ewe.database.access_log import REPORT
from ewe.xswitch.engine_kinds import JAVA_DIRECTORY
from ewe.xswitch.tools.java import BuildError, run
from ewe_lab.bench.experiment import Bench, ServedPath, ServerUnderTest
from ewe_lab.bench.processes import LabError, find_tool, last_line
from ewe_lab.stacks import backends

SOURCE_DIRECTORY = Path(__file__).with_name("servlets")
BUILT_APPLICATION = SOURCE_DIRECTORY / "target" / "report"
MAVEN_TIMEOUT_S = 300.0  # seconds that Maven may take
NOT_BUILT = "make java builds the engine and the servlets; it needs Maven and a JDK"
DESCRIPTOR = """\
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="6.0" metadata-complete="true">
  <servlet>
    <servlet-name>report</servlet-name>
    <servlet-class>Report</servlet-class>
    <init-param><param-name>driver</param-name><param-value>{driver}</param-value></init-param>
    <init-param><param-name>url</param-name><param-value>{url}</param-value></init-param>
    <init-param><param-name>statement</param-name><param-value>{statement}</param-value></init-param>
  </servlet>
  <servlet-mapping><servlet-name>report</servlet-name><url-pattern>/report</url-pattern></servlet-mapping>
</web-app>
"""


@dataclass(frozen=True)
class JDBCDriver:
    """A JDBC driver: its class, and the URL of a database. {location}: a file, or HOST:PORT/NAME?user=USER."""

    name: str
    url: str


TYPE_2 = JDBCDriver("org.sqlite.JDBC", "jdbc:sqlite:{location}?open_mode=1")  # SQLITE_OPEN_READONLY
TYPE_4 = JDBCDriver("org.postgresql.Driver", "jdbc:postgresql://{location}")


def why_missing() -> str:
    """Return the reason if servlets cannot run here, else ""."""
    is_built = Path(JAVA_DIRECTORY).exists() and BUILT_APPLICATION.exists()
    return "" if find_tool("java") and is_built else NOT_BUILT


def build() -> None:
    """Compile the servlet and fetch its drivers. Raises LabError."""
    for program, package in (("mvn", "maven"), ("javac", "default-jdk-headless")):
        if not find_tool(program):
            raise LabError(f"{program} is missing: apt install {package}")
    with open(SOURCE_DIRECTORY / "pom.xml") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time
        shutil.rmtree(SOURCE_DIRECTORY / "target", ignore_errors=True)
        try:
            run(["mvn", "--quiet", "--batch-mode", "package"], SOURCE_DIRECTORY, MAVEN_TIMEOUT_S)
        except BuildError as error:
            raise LabError(last_line(str(error))) from None


def write_application(directory: Path, driver: JDBCDriver, location: str) -> None:
    """Write a web application with the servlet, which all accounts may read. location: see JDBCDriver."""
    shutil.copytree(BUILT_APPLICATION, directory)
    values = {"driver": driver.name, "url": driver.url.format(location=location), "statement": REPORT}
    text = DESCRIPTOR.format_map({name: escape(value) for name, value in values.items()})
    (directory / "WEB-INF" / "web.xml").write_text(text)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def serve_report(
    lab: Bench, driver: JDBCDriver, location: str, other_pids: tuple[int, ...] = ()
) -> Iterator[ServedPath]:
    """Run ewe with X-Switch and the servlet; yield the server and the path of the report.

    other_pids: the processes of the database, which count as the server's.
    """
    if lacking := why_missing():
        raise LabError(lacking)
    programs = Path(tempfile.mkdtemp(prefix="servlets-", dir=lab.directory))
    programs.chmod(0o755)
    write_application(programs / "report", driver, location)
    options = ("--cgi-path", str(programs), "--xswitch-status")
    with lab.start(
        ServerUnderTest("servlet", model="xswitch", options=options, other_pids=other_pids), lab.site([])
    ) as server:
        backends.wait_for_xswitch(server)
        yield ServedPath(server, "/cgi-bin/report/report")


def main() -> int:
    """Build; return the exit status."""
    try:
        build()
    except LabError as reason:
        print(f"servlets: {reason}", file=sys.stderr)
        return 1
    print(BUILT_APPLICATION)
    return 0


if __name__ == "__main__":
    sys.exit(main())
