"""The Java engine: servlets and JSPs of each user, in a JVM of his own, deployed as they are found."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs, web
from support.java_site import JAKARTA, JAVAX, Api, Classes, build_once, compiled, give_all, write_application
from support.proc import alive
from support.server import Start, wait_until
from support.xswitch_client import Reply, XSwitch, xswitch
from test_accounts import User
from test_web_servers import fetch, web_server

from ewe.xswitch.tools.java import MAVEN_TIMEOUT_S

# The threads of a JVM count as processes of its user, and other tests run engines as nobody.
AS = "user = 'games'\n" if os.geteuid() == 0 else ""
# Maven may have to fetch Jetty, and gives up by itself (MAVEN_TIMEOUT_S)
pytestmark = [
    pytest.mark.needs("Maven", "Java"), pytest.mark.timeout(MAVEN_TIMEOUT_S + 300), pytest.mark.starts_processes
]  # fmt: skip


@pytest.fixture(scope="session", params=[JAKARTA, JAVAX], ids=lambda api: api.name)
def classes(request: pytest.FixtureRequest) -> Iterator[Classes]:
    """The same servlets for both generations of the Servlet API: all tests must have equal answers."""
    build_once()
    api: Api = request.param
    with tempfile.TemporaryDirectory(prefix="test-classes-") as directory:
        yield compiled(Path(directory), api)


@pytest.fixture(scope="module")
def running(classes: Classes) -> Iterator[XSwitch]:
    """An X-Switch with one application, shop."""
    with xswitch(f"{AS}time-limit = '15s'") as started:
        write_application(started.site / "shop", classes)
        yield started


def ask(running: XSwitch, path: str, body: bytes = b"", **params: str) -> Reply:
    """Ask as nginx would: the whole path is the script's name."""
    file, _, query = path.partition("?")
    defaults = {"SCRIPT_NAME": f"/{file}", "QUERY_STRING": query, "HTTP_HOST": "www.example.org:8080"}
    return running.ask(f"{running.site}/{file}", body, **(defaults | params))


def work_of(pid: int) -> Path:
    """Return the directory of a JVM's own."""
    found = re.search(rb"-Djava\.io\.tmpdir=([^\0]+)", Path(f"/proc/{pid}/cmdline").read_bytes())
    assert found
    return Path(os.fsdecode(found[1]))


# What an application is


def test_servlets_pages_and_files(running: XSwitch) -> None:
    assert ask(running, "shop/plain").text == "version 1", running.log()
    assert ask(running, "shop/do/form?name=x%26y&town=K%C3%B6ln").text == "x&y|Köln"
    assert ask(running, "shop/page.jsp?name=Ann").text == "42 Ann"
    file = ask(running, "shop/file.txt")
    assert (file.text, file.fields["content-type"]) == ("a file", "text/plain")
    assert ask(running, "shop/a b%.txt").text == "oddly named"
    assert ask(running, "shop/").text == "welcome to it"
    moved = ask(running, "shop")
    assert (moved.status, moved.fields["location"]) == (301, "/shop/")
    assert ask(running, "shop/file.txt", REQUEST_METHOD="HEAD").body == b""
    assert ask(running, "shop/none").status == 404
    assert len(running.engines()) == 1


def test_what_a_servlet_is_told(running: XSwitch) -> None:
    params = {"HTTP_X_OWN": "a value", "HTTP_X__ODD": "drops out", "HTTPS": "on", "REMOTE_PORT": "no port"}
    lines = ask(running, "shop/do/request?a=%20b", **params).text.split("\n")
    assert lines == [
        "/shop", "/do", "/shop/do/request", "a=%20b", "192.0.2.1", "a value", "www.example.org", "true",
        "HTTP/1.1",
    ]  # fmt: skip
    for odd in ({"HTTP_HOST": "a b"}, {"HTTP_HOST": ""}, {"REMOTE_ADDR": "?"}, {"SERVER_PROTOCOL": "x"}):
        assert ask(running, "shop/do/request", **odd).status == 200
    # ewe sends the application and the rest of the path
    ewes = {"SCRIPT_NAME": "/~alice/shop", "PATH_INFO": "/do/request"}
    lines = running.ask(running.site / "shop", **ewes).text.split("\n")
    assert lines[:3] == ["/~alice/shop", "/do", "/~alice/shop/do/request"]


def test_a_field_stays_one_line(running: XSwitch) -> None:
    """What a servlet takes from a visitor adds no field of the visitor's own to the answer."""
    reply = ask(running, "shop/do/field?value=a%0D%0AX-Evil:+1%0D%0A%0D%0Aevil")
    assert reply.status == 302 and reply.body == b"", reply
    assert "x-evil" not in reply.fields and reply.fields["x-set"] == "a  X-Evil: 1    evil"
    assert reply.fields["x-add"] == reply.fields["x-set"]


def test_errors_are_logged_after_a_request_that_said_too_much(running: XSwitch) -> None:
    ask(running, "shop/do/log?line=many")
    ask(running, "shop/do/boom")
    running.wait_for_log("the secret of boom")
    running.wait_for_log("more lines of standard error")


def test_forms_and_uploads(running: XSwitch) -> None:
    form = {"CONTENT_TYPE": "application/x-www-form-urlencoded"}
    assert ask(running, "shop/do/form", b"name=Ann&town=Bonn", **form).text == "Ann|Bonn"
    body = os.urandom(1_000_000)
    assert ask(running, "shop/do/echo", body).body == body
    multipart = {"CONTENT_TYPE": "multipart/form-data; boundary=xxx"}
    head = b'--xxx\r\nContent-Disposition: form-data; name="file"; filename="f.bin"\r\n\r\n'
    assert ask(running, "shop/do/part", head + body + b"\r\n--xxx--\r\n", **multipart).text == "f.bin|1000000"
    for _ in range(5):  # the server ignores an unread rest of a body
        refused = ask(running, "shop/do/unread", body)
        assert refused.status == 413 and "too much of it" in refused.text
        assert ask(running, "shop/do/form", b"name=Ann", **form).text == "Ann|null"


def test_a_session(running: XSwitch) -> None:
    first = ask(running, "shop/do/count")
    cookie = first.fields["set-cookie"]
    assert "HttpOnly" in cookie and "Path=/shop;" in cookie
    own = cookie.partition(";")[0]
    assert [ask(running, "shop/do/count", HTTP_COOKIE=own).text for _ in range(3)] == ["2", "3", "4"]
    assert ask(running, "shop/do/count").text == "1"


def test_requests_at_once(running: XSwitch) -> None:
    """Three wait for each other in one process."""
    asks = [running.asking(running.site / "shop/do/meet", SCRIPT_NAME="/shop/do/meet") for _ in range(3)]
    assert [wait().text for wait in asks] == ["met"] * 3, running.log()
    assert len(running.engines()) == 1


def test_an_endless_answer_ends_with_its_client(running: XSwitch) -> None:
    """Server-sent events: if the client leaves, its place of eight becomes free, and the JVM keeps running."""
    assert ask(running, "shop/plain").status == 200
    before = running.engines()[0]["pid"]
    left = [running.connect() for _ in range(8)]
    for connection in left:
        connection.send(running.site / "shop/do/endless", SCRIPT_NAME="/shop/do/endless")
        assert connection.sock.recv(100)
    for connection in left:
        connection.sock.close()
    assert ask(running, "shop/plain").status == 200, running.log()
    assert running.engines()[0]["pid"] == before
    wait_until(lambda: running.engines()[0]["state"] == "idle", 20)


def test_what_is_not_for_clients(running: XSwitch) -> None:
    for path in (
        "shop/WEB-INF/web.xml", "shop/WEB-INF", "shop/web-inf/web.xml", "shop/META-INF/secret.txt", "shop/out",
        "shop/WEB-INF;x=y/web.xml", "shop/sub/..;/WEB-INF/web.xml", "shop/%57EB-INF/web.xml",
        "shop//WEB-INF/web.xml",
    ):  # fmt: skip
        reply = ask(running, path)
        assert reply.status in (400, 404) and b"secret" not in reply.body and b"servlet" not in reply.body, (
            path
        )
    assert ask(running, "shop/sub/").status == 403  # no listing
    failed = ask(running, "shop/do/boom")
    assert failed.status == 500
    assert not re.search("secret|Illegal|All|jetty", failed.text, re.IGNORECASE)
    assert "server" not in failed.fields and "x-powered-by" not in failed.fields
    running.wait_for_log("the secret of boom")
    running.wait_for_log("at All.act(All.java:")


# Changes of an application


def test_changes_are_noticed(running: XSwitch, classes: Classes) -> None:
    shop = running.site / "shop"
    assert ask(running, "shop/plain").text == "version 1", running.log()
    pid = running.engines()[0]["pid"]
    own = ask(running, "shop/do/count").fields["set-cookie"].partition(";")[0]
    (shop / "page.jsp").write_text("changed")
    assert ask(running, "shop/page.jsp").text == "changed"  # a page at once
    assert ask(running, "shop/do/count", HTTP_COOKIE=own).text == "2"  # and the application stays

    shutil.copy(classes.second / "Plain.class", shop / "WEB-INF" / "classes")
    wait_until(lambda: ask(running, "shop/plain").text == "version 2", 20, running.log)

    (shop / "WEB-INF" / "web.xml").write_text(classes.descriptor("/elsewhere"))
    wait_until(lambda: ask(running, "shop/elsewhere").status == 200, 20, running.log)
    assert ask(running, "shop/plain").status == 404

    (shop / "WEB-INF" / "web.xml").write_text("<web-app")
    wait_until(lambda: ask(running, "shop/elsewhere").status == 500, 20)
    running.wait_for_log("cannot be deployed")
    (shop / "WEB-INF" / "web.xml").write_text(classes.descriptor("/plain"))
    wait_until(lambda: ask(running, "shop/plain").status == 200, 20, running.log)
    assert [engine["pid"] for engine in running.engines()] == [pid]


def test_a_new_application(running: XSwitch, classes: Classes) -> None:
    assert ask(running, "new/plain").status == 404
    give_all(write_application(running.site / "new", classes).parent)
    wait_until(lambda: ask(running, "new/plain").text == "version 1", 20, running.log)
    shutil.rmtree(running.site / "new")
    wait_until(lambda: ask(running, "new/plain").status == 404, 20, running.log)


# Ends


def test_what_ends_is_back(classes: Classes) -> None:
    with xswitch(f"{AS}time-limit = '15s'") as running:
        write_application(running.site / "shop", classes)
        assert ask(running, "shop/plain").status == 200, running.log()
        pid = running.engines()[0]["pid"]
        work = work_of(pid)
        os.kill(pid, signal.SIGKILL)
        assert ask(running, "shop/plain").status == 200, running.log()
        again = running.engines()[0]["pid"]
        assert again != pid
        wait_until(lambda: not work.exists(), 30, "what it had compiled is left")
        assert ask(running, "shop/do/spin").status == 504  # no thread can be ended: the JVM is
        wait_until(lambda: not alive({again}), 20)
        assert ask(running, "shop/plain").status == 200, running.log()
        last = running.engines()[0]["pid"]
        left = work_of(last)
        os.kill(running.members()["suexecme"], signal.SIGKILL)
        wait_until(lambda: not alive({last}), 20, "a JVM has outlived its suexecme")
        wait_until(lambda: ask(running, "shop/plain").status == 200, 20, running.log)
        wait_until(lambda: not left.exists(), 20, "the next suexecme has not tidied up")
        work = work_of(running.engines()[0]["pid"])
    assert not work.exists()


def test_without_the_engine() -> None:
    """Other languages work without the engine. A request for Java gets 503; the log says how to build it."""
    with xswitch(copy_mode=0o755) as running:
        (running.site / "shop" / "WEB-INF").mkdir(parents=True)
        running.script("hello.py", 'print("Content-Type: text/plain\\n\\nhello")')
        reply = ask(running, "shop/plain")
        assert (reply.status, reply.text) == (503, "503 Service Unavailable\n"), running.log()
        running.wait_for_log("the engine java is not built: run `ewe-xswitch java`")
        assert running.ask(running.site / "hello.py").text == "hello\n"


# Users, and web servers


def test_through_ewe(start: Start, tmp_path: Path, classes: Classes) -> None:
    for directory in (tmp_path, *tmp_path.parents):
        if any(part.startswith("pytest-of-") for part in directory.parts):
            directory.chmod(0o755)
    server = start("xswitch")
    write_application(server.cgi / "shop", classes)
    with web.Client(base_url=f"{server.url}cgi-bin/", timeout=30) as client:
        assert client.get("shop/plain").text == "version 1", server.log()
        assert client.get("shop").headers["location"] == "/cgi-bin/shop/"
        assert client.get("shop/").text == "welcome to it"
        assert client.get("shop/page.jsp?name=Ann").text == "42 Ann"
        assert [client.get("shop/do/count").text for _ in range(3)] == ["1", "2", "3"]
        assert client.post("shop/do/form", data={"name": "Ann", "town": "Bonn"}).text == "Ann|Bonn"
        body = os.urandom(1_000_000)
        assert client.post("shop/do/echo", content=body).content == body
        assert client.post("shop/do/echo", content=iter((b"in ", b"chunks"))).content == b"in chunks"
        assert client.get("shop/WEB-INF/web.xml").status_code == 404
        assert client.get("shop/do/boom").status_code == 500


def test_ewe_never_sends_what_is_private(start: Start) -> None:
    server = start("pool")
    for name in ("WEB-INF", "META-INF"):
        (server.root / "app" / name).mkdir(parents=True)
        (server.root / "app" / name / "web.xml").write_text("secret")
        assert web.get(f"{server.url}app/{name}/web.xml").status_code == 404
        assert web.get(f"{server.url}app/{name.lower()}/").status_code == 404
    assert "INF" not in web.get(f"{server.url}app/").text


@pytest.fixture(scope="module")
def users(classes: Classes) -> Iterator[tuple[User, User]]:
    """Two users, each with an application."""
    needs.require("root")
    base = Path(tempfile.mkdtemp(prefix="test-java-"))
    base.chmod(0o755)
    names = [f"ewe-j{name}-{os.getpid()}" for name in ("alice", "bob")]
    try:
        made = [User(name, base / name) for name in names]
        for user in made:
            own(write_application(user.public / "cgi-bin" / "shop", classes).parent, user.uid)
        yield made[0], made[1]
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)
        shutil.rmtree(base)


def own(directory: Path, uid: int) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, uid, -1, follow_symlinks=False)


@pytest.mark.needs("nginx", "apache2")
def test_users_and_web_servers(users: tuple[User, User]) -> None:
    """Each application runs separately as its user; behind nginx and Apache with the documented lines, too."""
    alice, bob = users
    secret = bob.write("secret.txt", "of bob", 0o600)
    socket = Path(tempfile.mkdtemp(prefix="test-socket-"))
    socket.chmod(0o755)
    settings = "socket-mode = '0660'\nsocket-group = 'www-data'\n[engines.java]\nprocesses = 40\n"
    with xswitch(settings, listen=f"unix:{socket}/x.sock") as running:
        replacements = {"/run/xswitch.sock": f"{socket}/x.sock", "/srv/www": str(running.site)}
        replacements["/home"] = str(alice.home.parent)
        for name in ("nginx", "apache"):
            with web_server(name, replacements) as url:
                for user in users:
                    shop = f"{url}/~{user.name}/cgi-bin/shop"
                    status, text = fetch(f"{shop}/do/who")
                    assert (status, f"Uid:\t{user.uid}\t{user.uid}" in text.decode()) == (200, True), (
                        running.log()
                    )
                    assert "NoNewPrivs:\t1" in text.decode()
                    assert fetch(f"{shop}/page.jsp?name=Ann") == (200, b"42 Ann")
                    assert fetch(f"{shop}/") == (200, b"welcome to it")
                    assert fetch(f"{shop}/do/form", b"name=Ann&town=Bonn") == (200, b"Ann|Bonn")
                    assert fetch(f"{shop}/WEB-INF/web.xml")[0] == 404
                assert fetch(f"{url}/~{bob.name}/cgi-bin/shop/do/read?file={secret}") == (200, b"of bob")
                assert fetch(f"{url}/~{alice.name}/cgi-bin/shop/do/read?file={secret}")[0] == 500
        engines = {engine["user"]: engine["pid"] for engine in running.engines()}
        assert set(engines) == {alice.name, bob.name} and len(set(engines.values())) == 2
        for user in users:
            status = work_of(engines[user.name]).stat()
            assert (status.st_uid, status.st_mode & 0o777) == (user.uid, 0o700)
        refusals(running, alice, bob)
    shutil.rmtree(socket)


def refusals(running: XSwitch, alice: User, bob: User) -> None:
    """A file that another account could have written, or that does not belong here, does not run."""
    shop = alice.public / "cgi-bin" / "shop"
    inf = shop / "WEB-INF"

    def refused() -> bool:
        return running.ask(shop / "plain", SCRIPT_NAME="/shop/plain").status == 403

    for path in (inf, shop):
        path.chmod(0o775)
        wait_until(refused, 20, running.log)
        path.chmod(0o755)
        wait_until(lambda: not refused(), 20, running.log)
    os.chown(inf, bob.uid, -1)
    wait_until(refused, 20)
    os.chown(inf, alice.uid, -1)
    # A link of root: the application runs as bob, in its own directory
    (alice.public / "his").symlink_to(bob.public / "cgi-bin" / "shop")
    reply = running.ask(alice.public / "his" / "do/who", SCRIPT_NAME="/his/do/who")
    assert f"Uid:\t{bob.uid}\t" in reply.text
    os.chown(alice.public / "his", alice.uid, -1, follow_symlinks=False)  # not by a link of hers
    his = alice.public / "his" / "do/who"
    wait_until(lambda: running.ask(his, SCRIPT_NAME="/his/do/who").status == 403, 20)


def test_an_application_of_a_user_through_ewe(start: Start, users: tuple[User, User], tmp_path: Path) -> None:
    """In cgi-bin and beside it; its files are not sent as files, and a page beside it is."""
    alice, _ = users
    for directory in (tmp_path, *tmp_path.parents):
        if any(part.startswith("pytest-of-") for part in directory.parts):
            directory.chmod(0o755)
    shutil.copytree(alice.public / "cgi-bin" / "shop", alice.public / "store", symlinks=True)
    alice.write("page.html", "plain", 0o644)
    own(alice.public, alice.uid)
    server = start("xswitch")
    with web.Client(base_url=f"{server.url}~{alice.name}/", timeout=30) as client:
        for place in ("cgi-bin/shop", "store"):
            assert client.get(f"{place}/plain").text == "version 1", server.log()
            assert client.get(f"{place}/page.jsp?name=Ann").text == "42 Ann"
            assert client.get(f"{place}/WEB-INF/web.xml").status_code == 404
            assert client.get(place).headers["location"] == f"/~{alice.name}/{place}/"
        assert client.get("page.html").text == "plain"
        assert pwd.getpwnam(alice.name).pw_uid == alice.uid
