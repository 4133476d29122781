"""Web applications of Java for tests: the engine, built once, and classes compiled against its servlet API."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

from ewe.xswitch.engine_kinds import JAVA
from ewe.xswitch.tools.java import SOURCE, BuildError, build
from support import needs

HERE = Path(__file__).parents[1] / "java"
UNREACHABLE = re.compile(r"could not be resolved|transfer (?:artifact|metadata)|Unknown host|offline")
DESCRIPTOR = """<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="6.0">
<servlet><servlet-name>plain</servlet-name><servlet-class>Plain</servlet-class></servlet>
<servlet-mapping><servlet-name>plain</servlet-name><url-pattern>{pattern}</url-pattern></servlet-mapping>
</web-app>
"""


def build_once() -> None:
    """Build the engine, if its sources have changed since; other test processes wait.

    Where Maven cannot reach its repository, the tests lack Jetty.
    """
    with open(HERE / "All.java") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive = Path(JAVA) / "engine.jsa"
        sources = [SOURCE / "pom.xml", *(SOURCE / "src").rglob("*"), *(SOURCE / "sample").rglob("*")]
        if not archive.exists() or archive.stat().st_mtime < max(path.stat().st_mtime for path in sources):
            try:
                build()
            except BuildError as reason:
                if not UNREACHABLE.search(str(reason)):
                    raise
                needs.lacks("Jetty", str(reason))


def compiled(directory: Path) -> tuple[Path, Path]:
    """Return two directories of classes: of tests/java, and of another version of Plain alone."""
    library = next(Path(JAVA, "lib").glob("jakarta.servlet-api-*.jar"))
    first, second, other = directory / "first", directory / "second", directory / "Plain.java"
    other.write_text((HERE / "Plain.java").read_text().replace("version 1", "version 2"))
    for target, sources in ((first, list(HERE.glob("*.java"))), (second, [other])):
        subprocess.run(["javac", "-cp", library, "-d", target, *sources], check=True)
    return first, second


def write_application(directory: Path, classes: Path) -> Path:
    """Make an application with all that the tests ask for."""
    inf = directory / "WEB-INF"
    shutil.copytree(classes, inf / "classes")
    (inf / "web.xml").write_text(DESCRIPTOR.format(pattern="/plain"))
    (directory / "META-INF").mkdir()
    (directory / "META-INF" / "secret.txt").write_text("secret")
    (directory / "sub").mkdir()
    (directory / "index.html").write_text("welcome to it")
    (directory / "file.txt").write_text("a file")
    (directory / "a b%.txt").write_text("oddly named")
    (directory / "out").symlink_to("/etc/passwd")
    (directory / "page.jsp").write_text("<%= 6 * 7 %> ${param.name}")
    give_all(directory)
    return directory


def give_all(directory: Path) -> None:
    """Let everybody read a tree, and nobody else write."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
