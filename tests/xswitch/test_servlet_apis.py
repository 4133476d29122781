"""Applications of the Java engine that use the packages javax.servlet, beside those that use jakarta.servlet."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import needs
from support.accounts import two_users
from support.java_site import (
    JAKARTA,
    JAVAX,
    UNREACHABLE,
    Api,
    build_once,
    compile_java,
    give_all,
)
from support.server import wait_until
from support.xswitch_client import Reply, XSwitch, xswitch
from test_drop_ins import drop
from test_java import AS

from ewe.xswitch.packages import pack
from ewe.xswitch.tools.java import MAVEN_TIMEOUT_S, BuildError, run

pytestmark = [
    pytest.mark.needs("Maven", "Java"),
    pytest.mark.timeout(MAVEN_TIMEOUT_S + 300),
    pytest.mark.starts_processes,
]

# From appendix A.2.2.3 of the thesis, unchanged
REQUEST_HEADER_EXAMPLE = """\
import java.io.*;
import java.util.*;
import javax.servlet.*;
import javax.servlet.http.*;

public class RequestHeaderExample extends HttpServlet {
    public void doGet(HttpServletRequest request, HttpServletResponse response)
        throws IOException, ServletException
    {
        response.setContentType("text/html");
        PrintWriter out = response.getWriter();
        Enumeration e = request.getHeaderNames();
        while (e.hasMoreElements()) {
            String name = (String)e.nextElement();
            String value = request.getHeader(name);
            out.println(name + " = " + value);
        }
    }
}
"""
WEB_XML = """<web-app{attributes}>
<servlet><servlet-name>it</servlet-name><servlet-class>{servlet}</servlet-class></servlet>
<servlet-mapping><servlet-name>it</servlet-name><url-pattern>{pattern}</url-pattern></servlet-mapping>
</web-app>
"""
# The descriptor of the thesis's time has no namespace
OLD_HEAD = (
    '<!DOCTYPE web-app PUBLIC "-//Sun Microsystems, Inc.//DTD Web Application 2.3//EN"'
    ' "http://java.sun.com/dtd/web-app_2_3.dtd">\n'
)
# H2 of November 2010: a console for a database, which is a servlet. Maven has it.
CONSOLE = "com.h2database:h2:1.2.147"


@pytest.fixture(scope="module")
def running() -> Iterator[XSwitch]:
    build_once()
    with xswitch(f"{AS}time-limit = '15s'") as started:
        yield started


def ask(running: XSwitch, path: str, body: bytes = b"", **params: str) -> Reply:
    """Ask for a path of the site, from this machine."""
    file, _, query = path.partition("?")
    about = {"SCRIPT_NAME": f"/{file}", "QUERY_STRING": query, "REMOTE_ADDR": "127.0.0.1"}
    return running.ask(f"{running.site}/{file}", body, **(about | params))


def deploy(running: XSwitch, name: str, servlet: str, pattern: str, head: str = "") -> Path:
    """Make an application with one servlet; return its WEB-INF."""
    inf = running.site / name / "WEB-INF"
    inf.mkdir(parents=True)
    inf.joinpath("web.xml").write_text(head + WEB_XML.format(attributes="", servlet=servlet, pattern=pattern))
    return inf


def test_the_servlet_of_the_thesis(running: XSwitch) -> None:
    """It gives the same answer in both generations, side by side in one JVM."""
    answers = []
    for api in (JAVAX, JAKARTA):
        inf = deploy(running, api.name, "RequestHeaderExample", "/servlet/RequestHeaderExample", OLD_HEAD)
        source = REQUEST_HEADER_EXAMPLE.replace("javax.", f"{api.name}.")
        compile_java(inf / "classes", api, {"RequestHeaderExample": source})
        give_all(inf.parent)
        reply = ask(
            running, f"{api.name}/servlet/RequestHeaderExample", HTTP_X_OWN="a value", HTTP_HOST="www"
        )
        assert reply.status == 200, running.log()
        answers.append((reply.text, reply.fields["content-type"]))
    lines = sorted(answers[0][0].splitlines())
    assert lines == ["Content-Length = 0", "Host = www", "X-Own = a value"], lines
    assert answers[0] == answers[1]
    assert len(running.engines()) == 1


@pytest.mark.parametrize(
    ("own", "library", "head", "expected"),
    [
        pytest.param(JAVAX, JAKARTA, "", "javax", id="its classes before its libraries"),
        pytest.param(JAKARTA, JAVAX, OLD_HEAD, "jakarta", id="and before web.xml"),
        pytest.param(None, JAVAX, "", "javax", id="its libraries"),
        pytest.param(None, JAKARTA, OLD_HEAD, "jakarta", id="before web.xml"),
        pytest.param(None, None, OLD_HEAD, "javax", id="web.xml alone"),
        pytest.param(None, None, "", "jakarta", id="nothing"),
    ],
)
def test_which_generation(
    running: XSwitch, tmp_path: Path, own: Api | None, library: Api | None, head: str, expected: str
) -> None:
    """A page tells the package of its request's class."""
    name = re.sub(r"\W", "-", tmp_path.name)
    inf = running.site / name / "WEB-INF"
    inf.mkdir(parents=True)
    inf.joinpath("web.xml").write_text(f"{head}<web-app></web-app>")
    inf.parent.joinpath("page.jsp").write_text(
        '<%@ page import="java.util.*" %><%= javaxOrJakarta(request.getClass()) %>'
        "<%! String javaxOrJakarta(Class<?> one) { for (Class<?> each = one; each != null;"
        " each = each.getSuperclass()) for (Class<?> i : each.getInterfaces())"
        ' if (i.getName().contains(".servlet.")) return i.getName(); return "?"; } %>'
    )
    source = "public abstract class Part implements javax.servlet.Servlet {}"
    for api, place in ((own, inf / "classes"), (library, tmp_path / "classes")):
        if api is not None:
            compile_java(place, api, {"Part": source.replace("javax", api.name)})
    if library is not None:
        shutil.make_archive(str(tmp_path / "part"), "zip", tmp_path / "classes")
        (inf / "lib").mkdir()
        shutil.copy(tmp_path / "part.zip", inf / "lib" / "part.jar")
    give_all(inf.parent)
    assert ask(running, f"{name}/page.jsp").text.strip() == f"{expected}.servlet.http.HttpServletRequest", (
        running.log()
    )


def fetch_console(directory: Path) -> None:
    """Copy the jar of the console into a directory; Maven fetches it if no run before this one has done so."""
    group, name, version = CONSOLE.split(":")
    jar = Path.home() / ".m2/repository" / group.replace(".", "/") / name / version / f"{name}-{version}.jar"
    if jar.exists():
        shutil.copy(jar, directory)
        return
    command = ["dependency:copy", f"-Dartifact={CONSOLE}", f"-DoutputDirectory={directory}"]
    try:
        run(["mvn", "--quiet", "--batch-mode", *command], directory)
    except BuildError as reason:
        if not UNREACHABLE.search(str(reason)):
            raise
        needs.lacks("Jetty", str(reason))


def test_an_application_of_its_time(running: XSwitch, tmp_path: Path) -> None:
    """The console of H2: a log-in, a session, and a query."""
    fetch_console(tmp_path)
    inf = deploy(running, "console", "org.h2.server.web.WebServlet", "/*", OLD_HEAD)
    (inf / "lib").mkdir()
    [jar] = tmp_path.glob("h2-*.jar")
    shutil.copy(jar, inf / "lib")
    give_all(inf.parent)
    form = {"CONTENT_TYPE": "application/x-www-form-urlencoded"}
    first = ask(running, "console/").text
    found = re.search(r"jsessionid=([0-9a-f]+)", first)
    assert found, running.log()
    session = f"?jsessionid={found[1]}"
    assert "Login" in ask(running, f"console/login.jsp{session}").text
    account = b"driver=org.h2.Driver&url=jdbc:h2:mem:test&user=sa&password="
    assert "<frameset" in ask(running, f"console/login.do{session}", account, **form).text
    result = ask(running, f"console/query.do{session}", b"sql=select+6*7+as+answer", **form)
    assert result.status == 200 and "<td>42</td>" in result.text


@pytest.mark.needs("root")
def test_a_war_that_is_replaced_while_it_serves(tmp_path: Path) -> None:
    """A web archive is a package, too: eight clients lose no request when another version replaces it."""
    build_once()
    source = """public class V extends javax.servlet.http.HttpServlet {
        public void doGet(javax.servlet.http.HttpServletRequest q, javax.servlet.http.HttpServletResponse r)
            throws java.io.IOException { try { Thread.sleep(50); } catch (InterruptedException e) { }
            r.getWriter().print("N " + getServletContext().getRealPath("/").contains(".packages") + part()); }
        String part() { return new Part().text(); } }"""
    part = 'class Part { String text() { return "N"; } }'
    wars = []
    for number in "12":
        inf = tmp_path / number / "WEB-INF"
        texts = {"V": source.replace("N ", number), "Part": part.replace('"N"', f'"{number}"')}
        compile_java(inf / "classes", JAVAX, texts)
        (inf / "web.xml").write_text(WEB_XML.format(attributes="", servlet="V", pattern="/v"))
        assert pack(str(inf.parent), f"{inf.parent}.war") == 3
        wars.append(Path(f"{inf.parent}.war").read_bytes())
    with two_users() as (alice, _), xswitch("time-limit = '20s'") as running:

        def visit() -> str:
            path = alice.public / "cgi-bin/shop/v"
            reply = running.ask(path, SCRIPT_NAME=f"/~{alice.name}/cgi-bin/shop/v")
            return f"{reply.status} {reply.text}" if reply.status == 200 else str(reply.status)

        drop(alice, "shop.war", wars[0])
        wait_until(lambda: visit() == "200 1true1", 40, running.log)
        with ThreadPoolExecutor(8) as pool:
            before = [pool.submit(visit) for _ in range(200)]
            drop(alice, "shop.war", wars[1])
            wait_until(lambda: visit() == "200 2true2", 40, running.log)
            after = [pool.submit(visit) for _ in range(50)]
            found = {each.result() for each in before}
            assert found <= {"200 1true1", "200 2true2"}, running.log()
            assert {each.result() for each in after} == {"200 2true2"}
