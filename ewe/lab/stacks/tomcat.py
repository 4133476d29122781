"""Tomcat with one web application of ours: servlets and JSP pages, started from a directory of the run's own.

    with tomcat(where, servlets={"hello": "hello\\n"}, pages={"page.jsp": "..."}) as server: ...

Nothing of the installed Tomcat's configuration is read. The servlets are source, for which the JDK is needed.
Raises LabError.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ewe.lab.processes import LabError, find_tool, one_line, running, tool, two_cores
from ewe.lab.servers import Server, free_port, wait_for_port

HOME = Path("/usr/share/tomcat10")
COMPILES_IN = 60  # seconds
THREADS = 200  # as by default
SERVER = """\
<Server port="-1">
  <Service name="Catalina">
    <Connector address="127.0.0.1" port="{port}" protocol="HTTP/1.1" maxKeepAliveRequests="-1"
               acceptCount="4096" maxConnections="10000" maxThreads="{threads}"/>
    <Engine name="Catalina" defaultHost="localhost">
      <Host name="localhost" appBase="webapps" autoDeploy="false"/>
    </Engine>
  </Service>
</Server>
"""
JSP = """\
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0">
  <servlet>
    <servlet-name>jsp</servlet-name>
    <servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class>
    <init-param><param-name>development</param-name><param-value>false</param-value></init-param>
  </servlet>
  <servlet-mapping><servlet-name>jsp</servlet-name><url-pattern>*.jsp</url-pattern></servlet-mapping>
</web-app>
"""
APPLICATION = """\
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0" metadata-complete="true">
{servlets}
</web-app>
"""
SERVLET = """\
  <servlet><servlet-name>{name}</servlet-name><servlet-class>{name}</servlet-class></servlet>
  <servlet-mapping><servlet-name>{name}</servlet-name><url-pattern>/{path}</url-pattern></servlet-mapping>
"""
CODE = """\
import jakarta.servlet.http.*;
import java.io.IOException;

public class {name} extends HttpServlet {{
    private static final byte[] TEXT = {text};

    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {{
        response.setContentType("text/plain");
        response.setContentLength(TEXT.length);
        response.getOutputStream().write(TEXT);
    }}
}}
"""


def missing() -> str:
    """Return the packages that are missing, "" if none is."""
    lacking = [] if (HOME / "bin" / "bootstrap.jar").exists() else ["tomcat10"]
    lacking += [] if find_tool("java") and find_tool("javac") else ["default-jdk-headless"]
    return " ".join(lacking)


@contextmanager
def tomcat(where: Path, *, servlets: Mapping[str, str], pages: Mapping[str, str]) -> Iterator[Server]:
    """Run it on the server's core. servlets: what each path answers; pages: JSP, by their file's name."""
    port = free_port()
    command = prepared(where, port, servlets, pages)
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, two_cores()[0], cwd=where) as started,
    ):
        wait_for_port(started, port, output, "tomcat")
        yield Server(started.pid, f"http://127.0.0.1:{port}/", "tomcat")


def prepared(where: Path, port: int, servlets: Mapping[str, str], pages: Mapping[str, str]) -> list[str]:
    """Write all it needs; return the command."""
    root = where / "webapps" / "ROOT"
    for directory in (root, where / "conf", where / "temp", where / "logs"):
        directory.mkdir(parents=True, exist_ok=True)
    (where / "conf" / "server.xml").write_text(SERVER.format(port=port, threads=THREADS))
    (where / "conf" / "web.xml").write_text(JSP)
    write_application(root, servlets, HOME / "lib" / "servlet-api.jar")
    for name, text in pages.items():
        (root / name).write_text(text)
    jars = ":".join(str(HOME / "bin" / name) for name in ("bootstrap.jar", "tomcat-juli.jar"))
    return [
        tool("java"), f"-Dcatalina.home={HOME}", f"-Dcatalina.base={where}", f"-Djava.io.tmpdir={where}/temp",
        "-Xmx256m", "-cp", jars, "org.apache.catalina.startup.Bootstrap", "start",
    ]  # fmt: skip


def write_application(root: Path, servlets: Mapping[str, str], library: Path) -> None:
    """Write a web application. servlets: what each path answers; library: their interface. Raises LabError."""
    classes = root / "WEB-INF" / "classes"
    classes.mkdir(parents=True)
    names = {path: f"Servlet{number}" for number, path in enumerate(servlets)}
    entries = (SERVLET.format(name=name, path=path) for path, name in names.items())
    (root / "WEB-INF" / "web.xml").write_text(APPLICATION.format(servlets="".join(entries)))
    sources = {name: CODE.format(name=name, text=java_bytes(servlets[path])) for path, name in names.items()}
    compile_classes(sources, classes, library)


def java_bytes(text: str) -> str:
    """Return a text as Java's bytes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}".getBytes()'


def compile_classes(sources: Mapping[str, str], classes: Path, library: Path) -> None:
    """Compile servlets. Raises LabError."""
    if not sources:
        return
    files = []
    for name, text in sources.items():
        (classes / f"{name}.java").write_text(text)
        files.append(str(classes / f"{name}.java"))
    command = [tool("javac"), "-cp", str(library), "-d", str(classes), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILES_IN)
    if done.returncode:
        raise LabError(f"javac: {one_line(done.stdout + done.stderr)}")
