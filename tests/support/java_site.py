"""Web applications of Java for tests: the engine, built once, and classes compiled against its servlet API."""

from __future__ import annotations

import fcntl
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ewe.xswitch.engine_kinds import JAVA_DIRECTORY
from ewe.xswitch.tools.java import JAVAC, SOURCE, BuildError, build
from support import needs

HERE = Path(__file__).parents[1] / "java"
UNREACHABLE = re.compile(r"could not be resolved|transfer (?:artifact|metadata)|Unknown host|offline")
DESCRIPTOR = """<web-app xmlns="{namespace}">
<servlet><servlet-name>plain</servlet-name><servlet-class>Plain</servlet-class></servlet>
<servlet-mapping><servlet-name>plain</servlet-name><url-pattern>{pattern}</url-pattern></servlet-mapping>
</web-app>
"""


class Api(NamedTuple):
    """A generation of the Servlet API. library: its jar, in the engine's directory."""

    name: str
    library: str
    namespace: str


JAKARTA = Api("jakarta", "lib/jakarta.servlet-api-*.jar", 'https://jakarta.ee/xml/ns/jakartaee" version="6.0')
JAVAX = Api("javax", "javax/jetty-servlet-api-*.jar", 'http://java.sun.com/xml/ns/javaee" version="3.0')


class Classes(NamedTuple):
    """Directories of classes for one API: of tests/java, and of another version of Plain alone."""

    first: Path
    second: Path
    api: Api

    def descriptor(self, pattern: str) -> str:
        """Return a web.xml that maps Plain to a pattern."""
        return DESCRIPTOR.format(namespace=self.api.namespace, pattern=pattern)


def build_once() -> None:
    """Build the engine, if its sources have changed since; other test processes wait.

    Where Maven cannot reach its repository, the tests lack Jetty.
    """
    with open(HERE / "All.java") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive = Path(JAVA_DIRECTORY) / "engine.jsa"
        sources = [SOURCE / "pom.xml", *(SOURCE / "src").rglob("*"), *(SOURCE / "sample").rglob("*")]
        if not archive.exists() or archive.stat().st_mtime < max(path.stat().st_mtime for path in sources):
            try:
                build()
            except BuildError as reason:
                if not UNREACHABLE.search(str(reason)):
                    raise
                needs.lacks("Jetty", str(reason))


def compiled(directory: Path, api: Api) -> Classes:
    """Compile the same servlets for an API: their sources name jakarta, which is replaced by the API's name."""
    sources = {
        file.stem: file.read_text().replace("jakarta.", f"{api.name}.") for file in HERE.glob("*.java")
    }
    first, second = directory / "first", directory / "second"
    compile_java(first, api, sources)
    compile_java(second, api, {"Plain": sources["Plain"].replace("version 1", "version 2")})
    return Classes(first, second, api)


def compile_java(directory: Path, api: Api, sources: Mapping[str, str]) -> None:
    """Compile sources against an API. sources: name of a class -> its text."""
    directory.mkdir(parents=True, exist_ok=True)
    for file, code in class_files(api, tuple(sources.items())).items():
        (directory / file).write_bytes(code)


@functools.cache
def class_files(api: Api, sources: tuple[tuple[str, str], ...]) -> dict[str, bytes]:
    """Return the compiled classes, which have no package: name of a file -> its content. A compiler runs once."""
    library = next(Path(JAVA_DIRECTORY).glob(api.library))
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, f"{each}.java") for each, _ in sources]
        for file, (_, text) in zip(files, sources, strict=True):
            file.write_text(text)
        subprocess.run([*JAVAC, "-nowarn", "-cp", library, "-d", name, *files], check=True)
        return {file.name: file.read_bytes() for file in Path(name).glob("*.class")}


def write_application(directory: Path, classes: Classes) -> Path:
    """Make an application with all that the tests ask for."""
    inf = directory / "WEB-INF"
    shutil.copytree(classes.first, inf / "classes")
    (inf / "web.xml").write_text(classes.descriptor("/plain"))
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
    """Let every account read a tree, and only the owner write it."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
