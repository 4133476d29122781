"""Tomcat with one web application: the files of a directory, or servlets and JSP pages.

    command = command_for_files(Setup(directory, port, root))
    command = command_for_programs(directory, port, servlets={"hello": "hello\\n"}, pages={"page.jsp": "..."})

Tomcat runs from a directory of the lab and does not read the installed configuration. Servlets are compiled from
source, so the JDK is required. Raises LabError.
"""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ewe_lab.bench.processes import LabError, find_tool, last_line, path_of_tool
from ewe_lab.stacks.webservers import Setup

TOMCAT = Path("/usr/share/tomcat10")
TOMCAT_THREADS = 200  # Tomcat's default
TOMCAT_SERVER = """\
<Server port="-1">
  <Service name="Catalina">
    <Connector address="127.0.0.1" port="{port}" protocol="HTTP/1.1" maxKeepAliveRequests="-1" bindOnInit="false"
               acceptCount="4096" maxConnections="10000" maxThreads="{threads}"/>
    <Engine name="Catalina" defaultHost="localhost">
      <Host name="localhost" appBase="webapps" autoDeploy="false" deployOnStartup="false">
        {context}
      </Host>
    </Engine>
  </Service>
</Server>
"""
TOMCAT_FILES = """\
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0" metadata-complete="true">
  <servlet>
    <servlet-name>default</servlet-name>
    <servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class>
  </servlet>
  <servlet-mapping><servlet-name>default</servlet-name><url-pattern>/</url-pattern></servlet-mapping>
  <mime-mapping><extension>html</extension><mime-type>text/html</mime-type></mime-mapping>
</web-app>
"""


def server_xml(port: int, root: Path, *, pages: bool = False) -> str:
    """Return conf/server.xml for one web application. pages: whether it has JSP pages.

    Tomcat does not search the libraries for tags, and without JSP pages not for classes to call at its start. The
    application has none of them, and the search takes seconds.
    """
    attribute = "" if pages else 'containerSciFilter=".*"'
    context = f'<Context path="" docBase="{root}" {attribute}><JarScanner scanClassPath="false"/></Context>'
    return TOMCAT_SERVER.format(port=port, threads=TOMCAT_THREADS, context=context)


def command(directory: Path) -> list[str]:
    """Return the command that runs Tomcat from a directory with conf/server.xml. Raises LabError."""
    for name in ("temp", "logs"):
        (directory / name).mkdir(exist_ok=True)
    jars = ":".join(str(TOMCAT / "bin" / name) for name in ("bootstrap.jar", "tomcat-juli.jar"))
    return [
        path_of_tool("java"), f"-Dcatalina.home={TOMCAT}", f"-Dcatalina.base={directory}",
        f"-Djava.io.tmpdir={directory}/temp",
        "-Xmx256m", "-cp", jars, "org.apache.catalina.startup.Bootstrap", "start",
    ]  # fmt: skip


def command_for_files(setup: Setup) -> list[str]:
    """Write the configuration of a Tomcat that serves the files of a directory; return the command.

    Tomcat has a servlet for files, DefaultServlet. TOMCAT_FILES gives it every URL. Raises LabError.
    """
    (setup.directory / "conf").mkdir(exist_ok=True)
    setup.write("conf/server.xml", server_xml(setup.port, setup.root))
    setup.write("conf/web.xml", TOMCAT_FILES)
    return command(setup.directory)


def version() -> str:
    """Return Tomcat's version, from a file in its library. Raises OSError, KeyError, BadZipFile without it."""
    with zipfile.ZipFile(TOMCAT / "lib" / "catalina.jar") as library:
        about = library.read("org/apache/catalina/util/ServerInfo.properties").decode()
    found = re.search(r"^server.number=([\d.]+)", about, re.M)
    return found[1] if found else ""


# Servlets and JSP pages

COMPILE_TIMEOUT_S = 60  # seconds
WEB_XML_WITH_JSP = """\
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0">
  <servlet>
    <servlet-name>jsp</servlet-name>
    <servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class>
    <init-param><param-name>development</param-name><param-value>false</param-value></init-param>
  </servlet>
  <servlet-mapping><servlet-name>jsp</servlet-name><url-pattern>*.jsp</url-pattern></servlet-mapping>
</web-app>
"""
WEB_XML = """\
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0" metadata-complete="true">
{servlets}
</web-app>
"""
WEB_XML_SERVLET = """\
  <servlet><servlet-name>{name}</servlet-name><servlet-class>{name}</servlet-class></servlet>
  <servlet-mapping><servlet-name>{name}</servlet-name><url-pattern>/{path}</url-pattern></servlet-mapping>
"""
SERVLET_CODE = """\
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


def missing_packages() -> str:
    """Return the packages that are missing, "" if none is."""
    lacking = [] if (TOMCAT / "bin" / "bootstrap.jar").exists() else ["tomcat10"]
    lacking += [] if find_tool("java") and find_tool("javac") else ["default-jdk-headless"]
    return " ".join(lacking)


def command_for_programs(
    where: Path, port: int, servlets: Mapping[str, str], pages: Mapping[str, str]
) -> list[str]:
    """Write a Tomcat with servlets and JSP pages into `where`; return the command that starts it. Raises LabError.

    servlets: the answer of each path. pages: the JSP text of each file name.
    """
    root = where / "webapps" / "ROOT"
    for directory in (root, where / "conf"):
        directory.mkdir(parents=True, exist_ok=True)
    (where / "conf" / "server.xml").write_text(server_xml(port, root, pages=bool(pages)))
    (where / "conf" / "web.xml").write_text(WEB_XML_WITH_JSP)
    write_application(root, servlets, TOMCAT / "lib" / "servlet-api.jar")
    for name, page in pages.items():
        (root / name).write_text(page)
    return command(where)


def write_application(root: Path, servlets: Mapping[str, str], library: Path) -> None:
    """Write a web application. servlets: the answer of each path; library: the servlet API. Raises LabError."""
    classes = root / "WEB-INF" / "classes"
    classes.mkdir(parents=True)
    names = {path: f"Servlet{number}" for number, path in enumerate(servlets)}
    entries = (WEB_XML_SERVLET.format(name=name, path=path) for path, name in names.items())
    (root / "WEB-INF" / "web.xml").write_text(WEB_XML.format(servlets="".join(entries)))
    sources = {
        name: SERVLET_CODE.format(name=name, text=java_bytes(servlets[path])) for path, name in names.items()
    }
    compile_classes(sources, classes, library)


def java_bytes(text: str) -> str:
    """Return a Java expression for the bytes of a text: a string in double quotes, with escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}".getBytes()'


def compile_classes(sources: Mapping[str, str], classes: Path, library: Path) -> None:
    """Compile servlets into the directory `classes`. sources: text by name of the class. Raises LabError."""
    if not sources:
        return
    from ewe.xswitch.tools.java import JAVAC  # late: it imports much of X-Switch

    files = []
    for name, text in sources.items():
        (classes / f"{name}.java").write_text(text)
        files.append(str(classes / f"{name}.java"))
    compiler = [path_of_tool(JAVAC[0]), *JAVAC[1:], "-cp", str(library), "-d", str(classes), *files]
    done = subprocess.run(compiler, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    if done.returncode:
        raise LabError(f"javac: {last_line(done.stdout + done.stderr)}")
