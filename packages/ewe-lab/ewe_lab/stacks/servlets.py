"""The database report as a servlet of X-Switch's JVM: scenarios 4 and 8 of the RDBMS paper.

    python -m ewe_lab.stacks.servlets        builds it with Maven, once; `make java` does so, too

    with served(lab, TYPE_2, "/tmp/access.db") as (server, path): ...

    4    a driver of type 2, which calls the database's C library: sqlite-jdbc on SQLite
    8    a driver of type 4, which speaks the database's protocol in Java: PostgreSQL's own

Each request has a new connection. The answer is the report in the layout TABLE of the demon, so its bytes are
those of all other scenarios. Its headers Server-Timing tell what reports.py says of them. Raises LabError.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ewe.database.access_log import REPORT
from ewe.xswitch.engine_kinds import JAVA
from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, find_tool, one_line
from ewe_lab.stacks import backends

SOURCE = Path(__file__).with_name("servlets")
BUILT = SOURCE / "target" / "report"
TAKES = 300.0  # seconds that Maven may take
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
class Driver:
    """A JDBC driver: its class, and the URL of a database. {place}: a file, or HOST:PORT/NAME?user=USER."""

    name: str
    url: str


TYPE_2 = Driver("org.sqlite.JDBC", "jdbc:sqlite:{place}?open_mode=1")  # SQLITE_OPEN_READONLY
TYPE_4 = Driver("org.postgresql.Driver", "jdbc:postgresql://{place}")


def missing() -> str:
    """Return why servlets cannot run here, "" if they can."""
    return "" if find_tool("java") and Path(JAVA).exists() and BUILT.exists() else NOT_BUILT


def build() -> None:
    """Compile the servlet and fetch its drivers. Raises LabError."""
    for program, package in (("mvn", "maven"), ("javac", "default-jdk-headless")):
        if not find_tool(program):
            raise LabError(f"{program} is missing: apt install {package}")
    with open(SOURCE / "pom.xml") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time
        shutil.rmtree(SOURCE / "target", ignore_errors=True)
        command = ["mvn", "--quiet", "--batch-mode", "package"]
        try:
            done = subprocess.run(
                command, cwd=SOURCE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TAKES
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"Maven has not ended within {TAKES:g} s") from None
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise LabError(f"Maven failed: {one_line(lines[0] if lines else '')}")


def write_application(where: Path, driver: Driver, place: str) -> None:
    """Write a web application with the servlet, which all accounts may read. place: see Driver."""
    shutil.copytree(BUILT, where)
    values = {"driver": driver.name, "url": driver.url.format(place=place), "statement": REPORT}
    text = DESCRIPTOR.format_map({name: escape(value) for name, value in values.items()})
    (where / "WEB-INF" / "web.xml").write_text(text)
    for path in (where, *where.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def served(
    lab: Bench, driver: Driver, place: str, also: tuple[int, ...] = ()
) -> Iterator[tuple[Running, str]]:
    """Run ewe with X-Switch and the servlet; yield the server and the path of the report.

    also: the processes of the database, which count as the server's.
    """
    if lacking := missing():
        raise LabError(lacking)
    programs = Path(tempfile.mkdtemp(prefix="servlets-", dir=lab.directory))
    programs.chmod(0o755)
    write_application(programs / "report", driver, place)
    options = ("--cgi-path", str(programs), "--xswitch-status")
    with lab.start(Contender("servlet", model="xswitch", options=options, also=also), lab.site([])) as server:
        backends.wait_for_xswitch(server)
        yield server, "/cgi-bin/report/report"


def main() -> int:
    """Build; return the exit status."""
    try:
        build()
    except LabError as reason:
        print(f"servlets: {reason}", file=sys.stderr)
        return 1
    print(BUILT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
