"""CGI: RFC 3875, with real programs. Most are shell scripts; `say` answers with the body of its request.

So a test that wants a program to write this or that sends it: the program is always the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cgi_heads import BAD_HEADS
from support.memory import talk
from support.proc import (
    Process,
    children,
    command_line,
    look,
    open_files,
    peak_memory,
    session_members,
    state,
)
from support.server import MODELS, WAYS_TO_WAIT, Server, Start, wait_until, write_program
from support.wire import chunked, read_all, read_response, request_of, reset

from ewe import __version__
from ewe.config.settings import Config
from ewe.gateway import cgi, spool
from ewe.gateway.scripts import Script
from ewe.gateway.spool import temporary_file
from ewe.gateway.wsgi import add_request
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request, Response
from ewe.http.parser import parse_request
from ewe.site import Site
from ewe.streams.base import Stream
from ewe.streams.listener import server_name

Answer = tuple[int, dict[str, str], bytes]
# A test with this mark asks the server that it shares with the tests of this file, once for each way to wait.
in_each_way = pytest.mark.parametrize("shared_server", WAYS_TO_WAIT, indirect=True)


@pytest.fixture
def server(start: Start, way_to_wait: str) -> Server:
    """A server for each way to wait: nothing else of a model has to do with what a program reads and writes.

    `test_programs_under_every_model` has a short conversation with programs under each variant.
    """
    return start(way_to_wait)


HEAD = "printf 'Content-Type: text/plain\\n\\n'"  # of a program
SAY = "#!/bin/sh\nexec cat\n"
ECHO = "#!/bin/sh\nprintf 'Content-Type: a/b\\nContent-Length: %d\\n\\n' $CONTENT_LENGTH\ncat\n"
VARIABLES = f"#!/bin/sh\n{HEAD}\ncat /proc/$$/environ\n"
HELLO = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello\\n'\n"


def request(
    method: str, target: str, *fields: str, body: bytes | None = None, version: str = "1.1", host: str = "ewe"
) -> bytes:
    """Return the bytes of a request; with a body its Content-Length is there too."""
    lines = [f"{method} {target} HTTP/{version}"]
    if host:
        lines.append(f"Host: {host}")
    lines += fields
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def ask(sock: socket.socket, method: str, target: str, *fields: str, body: bytes | None = None) -> Answer:
    """Ask over a kept connection."""
    sock.sendall(request(method, target, *fields, body=body))
    return read_response(sock, method)


def ask_anew(server: Server, target: str, *fields: str, **more: bytes | str) -> bytes:
    """Ask over a new connection; return all received bytes."""
    with server.connect(20) as sock:
        sock.sendall(request("GET", target, *fields, **more))  # type: ignore[arg-type]
        return read_all(sock)


def say(sock: socket.socket, text: bytes, method: str = "POST") -> Answer:
    """Have a program write text, over a kept connection."""
    return ask(sock, method, "/cgi-bin/say", body=text)


def is_closed(sock: socket.socket) -> bool:
    """Has the server closed its side, with nothing more to read? Waits for it."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def pid_in(path: Path) -> int:
    """Return the process number that a program wrote into a file; wait for it."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), 30, f"{path.name} did not come")
    return int(path.read_text())


def wait_until_gone(server: Server, *pids: int) -> None:
    """Return once none of the processes is there; an orphan that has ended may wait for init to reap it."""

    def left() -> dict[int, Process]:
        own = server_pids(server)
        found = [each for each in map(look, pids) if each]
        return {each.pid: each for each in found if not (each.state == "Z" and each.parent not in own)}

    wait_until(lambda: not left(), 30, lambda: f"still there: {left()}")


def server_pids(server: Server) -> list[int]:
    """Return the processes that run ewe itself."""
    own = command_line(server.pid)
    return [pid for pid in (server.pid, *session_members(server.pid)) if command_line(pid) == own]


# --- Every model ---------------------------------------------------------------------------------------


def test_programs_under_every_model(start: Start, variant: str) -> None:
    """Programs read, write and fail in the same way under every model."""
    server = start(variant)
    write_program(server.cgi / "variables", VARIABLES)
    write_program(server.cgi / "echo", ECHO)
    write_program(server.cgi / "say", SAY)
    write_program(server.cgi / "nph-say", SAY)
    write_program(server.cgi / "fails", "#!/bin/sh\necho why >&2\nexit 3\n")
    write_program(
        server.cgi / "stream", f'#!/bin/sh\n{HEAD}\nprintf begun\nuntil [ -e "$0.go" ]; do sleep 0.02; done\n'
    )
    data = os.urandom(300_000)
    with server.connect() as sock:
        found = variables(ask(sock, "GET", "/cgi-bin/variables/info?query"))
        assert (found["PATH_INFO"], found["QUERY_STRING"]) == ("/info", "query")
        assert (found["SERVER_PORT"], found["REMOTE_PORT"]) == (str(server.port), str(sock.getsockname()[1]))
        assert ask(sock, "POST", "/cgi-bin/echo", body=data)[2] == data
        sock.sendall(
            request("POST", "/cgi-bin/echo", "Transfer-Encoding: chunked") + chunked(data[:1000], data)
        )
        assert read_response(sock)[2] == data[:1000] + data
        sock.sendall(request("POST", "/cgi-bin/echo", "Expect: 100-continue", "Content-Length: 5"))
        assert read_response(sock)[0] == 100
        sock.sendall(b"hello" + request("HEAD", "/cgi-bin/say", body=b"Content-Type: a/b\n\nx"))
        assert read_response(sock)[2] == b"hello" and read_response(sock, "HEAD")[0] == 200
        assert b"welcome" in say(sock, b"Location: /\n\n")[2]
        status, fields, _ = say(sock, b"Location: http://a/\n\n")
        assert (status, fields["location"]) == (302, "http://a/")
        assert say(sock, b"Status: 404 No\nContent-Type: a/b\n\nno")[::2] == (404, b"no")
        assert say(sock, b"no head")[0] == ask(sock, "GET", "/cgi-bin/fails")[0] == 502
        sock.sendall(request("GET", "/cgi-bin/stream"))
        assert receive_until(sock, b"begun").startswith(b"HTTP/1.1 200")  # and the program still runs
        (server.cgi / "stream.go").touch()
        assert receive_until(sock, b"0\r\n\r\n").endswith(b"0\r\n\r\n")
        assert ask(sock, "GET", "/")[0] == 200
    whole = b"HTTP/1.1 299 Mine\r\n\r\nmine"
    assert ask_anew(server, "/cgi-bin/nph-say", body=whole) == whole
    log = server.wait_for_log("it wrote nothing (exit status 3)")
    assert "/cgi-bin/fails: why\n" in log and log.count(": 502, ") == 2 and "Traceback" not in log


# --- The request: section 4 -----------------------------------------------------------------------------


def variables(answer: Answer) -> dict[str, str]:
    """Return the environment that VARIABLES saw."""
    status, _, body = answer
    assert status == 200, body
    lines = [line.partition(b"=") for line in body.split(b"\0") if line]
    return {name.decode(): value.decode("latin-1") for name, _, value in lines}


@pytest.fixture(scope="module")
def environment(shared_server: Server) -> Server:
    """The shared server with a program that answers with its environment."""
    write_program(shared_server.cgi / "sub" / "variables", VARIABLES)
    return shared_server


def variables_of(server: Server, *requests: bytes) -> dict[str, str]:
    """Send one request, perhaps in pieces, on a new connection; return the environment of its program."""
    with server.connect() as sock:
        for piece in requests:
            sock.sendall(piece)
        return variables(read_response(sock))


@in_each_way
def test_the_whole_environment(environment: Server) -> None:
    """Every meta-variable of section 4.1 with its exact value; nothing else but PATH."""
    target = "/cgi-bin/sub/./variables/a%20b/%C3%A9%E9?x=%41&y=+z/?"
    fields = (
        "X-Twice: 1", "x-twice:\t2 ", "Cookie: a=1", "Cookie: b=2", 'User-Agent: "ewe" \xe9', "X-Empty:",
        # Fields that never arrive (section 4.1.18), and names that look like another field
        "Proxy: http://evil/", "Authorization: Basic eA==", "Proxy-Authorization: Basic eA==",
        "Content_Length: 5", "X_Y: 1", "X.Y: 1", "Content_Type: text/evil",
    )  # fmt: skip
    with environment.connect() as sock:
        sock.sendall(request("GET", target, *fields, host="Example.org:8080"))
        found = variables(read_response(sock))
        port = str(sock.getsockname()[1])
    info = "/a b/\xc3\xa9\xe9"
    assert found == {
        "GATEWAY_INTERFACE": "CGI/1.1",
        "SERVER_SOFTWARE": f"ewe/{__version__}",
        "SERVER_NAME": "Example.org",
        "SERVER_PORT": str(environment.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REQUEST_METHOD": "GET",
        "REQUEST_SCHEME": "http",
        "REQUEST_URI": target,
        "QUERY_STRING": "x=%41&y=+z/?",
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_HOST": "127.0.0.1",
        "REMOTE_PORT": port,
        "SERVER_ADDR": "127.0.0.1",
        "SCRIPT_NAME": "/cgi-bin/sub/variables",
        "SCRIPT_FILENAME": str(environment.cgi / "sub" / "variables"),
        "DOCUMENT_ROOT": str(environment.root),
        "PATH_INFO": info,
        "PATH_TRANSLATED": str(environment.root) + info,
        "HTTP_HOST": "Example.org:8080",
        "HTTP_X_TWICE": "1, 2",
        "HTTP_COOKIE": "a=1; b=2",
        "HTTP_USER_AGENT": '"ewe" \xe9',
        "HTTP_X_EMPTY": "",
        "PATH": os.environ["PATH"],
    }


@in_each_way
def test_what_a_request_lacks_is_no_variable(environment: Server) -> None:
    """A request without query, path or body, after one with all of them on the same connection."""
    with environment.connect() as sock:
        fields = "Content-Type: a/b; c=d"
        found = variables(ask(sock, "POST", "/cgi-bin/sub/variables/a?q", fields, body=b"four"))
        assert (found["PATH_INFO"], found["CONTENT_LENGTH"]) == ("/a", "4")
        found = variables(ask(sock, "GET", "/cgi-bin/sub/variables", "Content-Length: 0"))
        assert (found["QUERY_STRING"], found["SCRIPT_NAME"]) == ("", "/cgi-bin/sub/variables")
        absent = {"PATH_INFO", "PATH_TRANSLATED", "CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}
        assert absent & set(found) == set()
        assert variables(ask(sock, "GET", "/cgi-bin/sub/variables/"))["PATH_INFO"] == "/"


@in_each_way
def test_the_variables_of_a_body(environment: Server) -> None:
    sent = request("POST", "/cgi-bin/sub/variables?q", "Content-Type: a/b; c=d", body=b"four")
    found = variables_of(environment, sent)
    assert (found["CONTENT_LENGTH"], found["CONTENT_TYPE"]) == ("4", "a/b; c=d")
    assert (found["REQUEST_METHOD"], found["QUERY_STRING"]) == ("POST", "q")
    assert {name for name in found if name.startswith("HTTP_CONTENT")} == set()


@in_each_way
@pytest.mark.parametrize(
    ("pieces", "length"),
    [((b"abc", b"defg"), "7"), ((), "0"), ((b"x" * 3_000_000,), "3000000")],
    ids=["two", "none", "large"],
)
def test_a_chunked_body_has_a_true_length(
    environment: Server, pieces: tuple[bytes, ...], length: str
) -> None:
    head = request("POST", "/cgi-bin/sub/variables", "Transfer-Encoding: chunked")
    found = variables_of(environment, head, chunked(*pieces))
    assert found["CONTENT_LENGTH"] == length
    assert "HTTP_TRANSFER_ENCODING" not in found


@in_each_way
@pytest.mark.parametrize(
    "method",
    ["PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "REPORT", "MKCALENDAR", "get", "X" * 32],
)
def test_a_program_gets_every_method(environment: Server, method: str) -> None:
    assert variables_of(environment, request(method, "/cgi-bin/sub/variables"))["REQUEST_METHOD"] == method


@in_each_way
def test_no_program_gets_trace(environment: Server) -> None:
    with environment.connect() as sock:
        status, fields, _ = ask(sock, "TRACE", "/cgi-bin/sub/variables")
    assert status == 405 and "TRACE" not in fields["allow"]


@in_each_way
@pytest.mark.parametrize(
    ("target", "more", "expected"),
    [
        ("", {"host": "[::1]:99"}, ("[::1]", "[::1]:99", "HTTP/1.1")),
        ("", {"host": "[::1]"}, ("[::1]", "[::1]", "HTTP/1.1")),
        ("", {"host": "a.b"}, ("a.b", "a.b", "HTTP/1.1")),
        ("", {"host": "1.2.3.4:"}, ("1.2.3.4", "1.2.3.4:", "HTTP/1.1")),
        ("http://other.org", {}, ("other.org", "other.org", "HTTP/1.1")),
        ("", {"version": "1.0", "host": ""}, ("127.0.0.1", None, "HTTP/1.0")),
    ],
    ids=["IPv6-with-a-port", "IPv6", "name", "IPv4-with-a-colon", "absolute-target", "HTTP-1.0-without-Host"],
)
def test_the_name_of_the_server(
    environment: Server, target: str, more: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    found = variables_of(environment, request("GET", target + "/cgi-bin/sub/variables", **more))  # type: ignore[arg-type]
    assert (found["SERVER_NAME"], found.get("HTTP_HOST"), found["SERVER_PROTOCOL"]) == expected
    assert found["SERVER_PORT"] == str(environment.port)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Content-Type: text/plain\n",
        b"Status: 404 Nothing here\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n",
        b"HTTP/1.1 201\r\nX: \xe9\r\nConnection: close\r\nContent-Length: 7\r\n",
        b"Status: 204\n",
        b"Location: http://ewe/x y\n",
    ],
)
def test_a_remembered_head_is_sent_as_its_fields_are(head: bytes) -> None:
    """The encoded head of parse_head() equals the head that Response makes from the fields, byte for byte."""
    found = cgi.parse_head(head, "/x", RequestLimits())
    for body in (b"", b"a body"):
        fresh = Response(found.status, found.fields, body, reason=found.reason)
        known = Response(found.status, found.fields, body, reason=found.reason, head=found.encoded)
        assert found.encoded and known.encoded() == fresh.encoded()
        assert known.encoded().startswith(found.encoded)
        other = Response(found.status, found.fields, body, reason=found.reason, head=found.encoded)
        other.fields += (("Added", "later"),)
        assert b"\r\nAdded: later\r\n" in other.encoded()


def test_long_names_of_fields_are_not_remembered() -> None:
    """A stranger may send others without end."""
    head = b"GET /x HTTP/1.1\r\nHost: ewe\r\nShort-Name: 1\r\n%s: 2\r\n\r\n" % (b"long" * 20)
    request = parse_request(head, RequestLimits())
    client = Stream(("unix:", 0), ("unix:", 0), Config())
    before = cgi.cached_variable_of.cache_info().currsize
    found = cgi.variables(request, client, Script("/x", "/x", ""), 0, "/")
    assert found[b"HTTP_SHORT_NAME"] == b"1" and found[b"HTTP_" + b"LONG" * 20] == b"2"
    assert cgi.cached_variable_of.cache_info().currsize <= before + 2


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [("http", b"ewe", "80"), ("https", b"ewe", "443"), ("https", b"ewe:8443", "8443"), ("https", b"", "443")],
)
def test_over_a_unix_socket_the_port_is_that_of_the_url(scheme: str, host: bytes, port: str) -> None:
    """A Unix socket has no port. The program's URLs must lead back to the client's: section 4.1.15, PEP 3333."""
    fields = b" HTTP/1.1\r\nHost: %b\r\n\r\n" % host if host else b" HTTP/1.0\r\n\r\n"
    request = parse_request(b"GET /x" + fields, RequestLimits())
    with socket.socket(socket.AF_UNIX) as listening:
        client = Stream(("unix:", 0), server_name(listening), Config())
    client.scheme = scheme
    found = cgi.variables(request, client, Script("/x", "/x", ""), 0, "/")
    environ: dict[str, str] = {}
    add_request(environ, request, client, "/x", 0)
    assert found[b"SERVER_PORT"].decode() == environ["SERVER_PORT"] == port
    assert found[b"SERVER_NAME"].decode() == environ["SERVER_NAME"] == ("ewe" if host else "localhost")


def test_the_name_of_a_server_at_an_ipv6_address() -> None:
    """The client names no host: the address stands in a URL, with brackets (section 4.1.14; RFC 3986)."""
    request = parse_request(b"GET /x HTTP/1.0\r\n\r\n", RequestLimits())
    client = Stream(("::1", 1), ("::1", 8080), Config())
    environ: dict[str, str] = {}
    add_request(environ, request, client, "/x", 0)
    found = cgi.variables(request, client, Script("/x", "/x", ""), 0, "/")
    assert (found[b"SERVER_NAME"], found[b"SERVER_ADDR"]) == (b"[::1]", b"::1")
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("[::1]", "8080")


def test_the_name_of_a_server_at_a_unix_socket(start: Start, model: str, tmp_path: Path) -> None:
    """Section 4.1.14 asks for a host name; HTTP/1.0 may name none."""
    path = tmp_path / "ewe.sock"
    server = start(model, "--bind", "127.0.0.1:0", "--bind", f"unix:{path}")
    write_program(server.cgi / "variables", VARIABLES)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        sock.sendall(b"GET /cgi-bin/variables HTTP/1.0\r\n\r\n")
        found = read_all(sock).partition(b"\r\n\r\n")[2].split(b"\0")
    assert {b"SERVER_NAME=localhost", b"SERVER_PORT=80", b"SERVER_ADDR=unix:"} <= {*found}


def test_the_address_of_the_server(start: Start, model: str) -> None:
    """SERVER_ADDR is that of the connection, also where ewe listens at every address of the machine."""
    as_root = ("--user", "root") if os.geteuid() == 0 else ()
    server = start(model, "--bind", "127.0.0.1:0", "--bind", "0.0.0.0:0", *as_root)
    write_program(server.cgi / "variables", VARIABLES)
    found = re.search(r"http://0\.0\.0\.0:(\d+)/", server.log())
    assert found, server.log()
    for port, address in (
        (server.port, "127.0.0.1"),
        (int(found[1]), "127.0.0.1"),
        (int(found[1]), "127.0.0.2"),
    ):
        with socket.create_connection((address, port), 20) as sock:
            assert variables(ask(sock, "GET", "/cgi-bin/variables"))["SERVER_ADDR"] == address


def test_arguments_and_directory(server: Server) -> None:
    """Section 4.4 (the command line of an indexed query) and 7.2 (the current directory)."""
    write_program(
        server.cgi / "deep" / "args",
        f"#!/bin/sh\n{HEAD}\npwd\nfor a; do printf '[%s]' \"$a\"; done\n",
    )
    (server.cgi / "linked").symlink_to("deep/args")
    with server.connect() as sock:
        for query, expected in (
            ("", ""), ("?", ""), ("?one", "[one]"), ("?a+b%2Bc+d%20e", "[a][b+c][d e]"), ("?a=b+c", ""),
            ("?a%3Db", "[a=b]"), ("?-x;y|z`", "[-x;y|z`]"), ("?a++b", "[a][][b]"), ("?a+%00", ""),
            ("?%C3%A9%E9", "[\xc3\xa9\xe9]"), ("?100%+%4+%zz", "[100%][%4][%zz]"),
        ):  # fmt: skip
            status, _, body = ask(sock, "GET", "/cgi-bin/deep/args/info" + query)
            assert status == 200
            assert body.decode("latin-1") == f"{server.cgi}/deep\n{expected}", query
        assert ask(sock, "POST", "/cgi-bin/deep/args?one", body=b"x")[2].endswith(b"/deep\n")
        assert ask(sock, "GET", "/cgi-bin/linked")[2] == f"{server.cgi}\n".encode()


def bodies_come_back(sock: socket.socket) -> None:
    """Bodies of each size up to the limit of memory and above it, with a length and in chunks."""
    for count in (0, 1, 65_535, 65_536, 65_537, 1_000_000):
        data = os.urandom(count)
        assert ask(sock, "POST", "/cgi-bin/echo", body=data)[2] == data, count
        pieces = [data[place : place + 30_000] for place in range(0, count, 30_000)]
        sock.sendall(request("POST", "/cgi-bin/echo", "Transfer-Encoding: chunked") + chunked(*pieces))
        assert read_response(sock)[2] == data, f"{count}, chunked"


def a_large_body_has_no_name(server: Server, sock: socket.socket, spool: Path) -> None:
    """A body above the limit of memory is in a deleted file, also while the body comes."""
    assert ask(sock, "GET", "/cgi-bin/size")[2].strip() == b"0"
    assert b"memfd:" in ask(sock, "POST", "/cgi-bin/kind", body=b"x" * 65_536)[2]
    where = ask(sock, "POST", "/cgi-bin/kind", body=b"x" * 65_537)[2].decode()
    assert where.startswith(str(spool)) and where.endswith("(deleted)\n")
    sock.sendall(request("POST", "/cgi-bin/size", "Content-Length: 300000") + b"x" * 200_000)
    wait_until(lambda: any(str(spool) in link for link in open_links(server)), 30, "it is not spooled")
    assert os.listdir(spool) == []
    sock.sendall(b"x" * 100_000)
    assert read_response(sock)[2].strip() == b"300000"


def the_server_asks_for_a_body_once(sock: socket.socket) -> None:
    """ "100 Continue", since a program reads; none if the body is already there."""
    for framing, body in (
        ("Content-Length: 10", b"abcdeabcde"),
        ("Transfer-Encoding: chunked", chunked(b"abcdeabcde")),
    ):
        sock.sendall(request("POST", "/cgi-bin/echo", "Expect: 100-continue", framing))
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n", framing
        for piece in (body[:5], body[5:]):
            sock.sendall(piece)
        assert read_response(sock)[::2] == (200, b"abcde" * 2), framing
    sock.sendall(request("POST", "/cgi-bin/echo", "Expect: 100-continue", body=b"abcde"))
    assert read_response(sock)[0] == 200


def test_the_body_of_the_request(
    start: Start, way_to_wait: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input is the body, however it came and wherever it is kept; nothing is left of it."""
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setenv("TMPDIR", str(spool))
    server = start(way_to_wait, "--spool", "64k")
    write_program(server.cgi / "size", f"#!/bin/sh\n{HEAD}\nwc -c\n")
    write_program(server.cgi / "echo", ECHO)
    # The same bytes can be read again: a real file
    write_program(server.cgi / "kind", f"#!/bin/sh\n{HEAD}\nreadlink /proc/$$/fd/0\n")
    with server.connect(20) as sock:
        bodies_come_back(sock)
        a_large_body_has_no_name(server, sock, spool)
        the_server_asks_for_a_body_once(sock)
    # A client that leaves within its body leaves nothing behind
    with server.connect() as sock:
        sock.sendall(request("POST", "/cgi-bin/size", "Content-Length: 300000") + b"x" * 200_000)
    assert os.listdir(spool) == []
    assert [link for link in wait_for_no_deleted(server) if " (deleted)" in link] == []


@pytest.mark.parametrize("tmpfile", [True, False])
def test_temporary_files_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmpfile: bool) -> None:
    """Where the system can make such a file, and where it cannot."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if not tmpfile:
        monkeypatch.delattr(os, "O_TMPFILE")
    descriptor = temporary_file()
    try:
        assert os.listdir(tmp_path) == []
        assert os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path))
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def wait_for_no_deleted(server: Server) -> list[str]:
    """Return what the server has open, once it has had time to close."""
    found: list[str] = []

    def look() -> bool:
        found[:] = open_links(server)
        return not any("deleted" in link for link in found)

    wait_until(look, 30, lambda: f"open: {found}")
    return found


def open_links(server: Server) -> list[str]:
    """Return what the processes of the server have open."""
    return [link for pid in server_pids(server) for link in open_files(pid).values()]


def test_a_body_that_cannot_be_kept(
    start: Start, way_to_wait: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for it: 507, a line in the log, and the connection ends properly."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    server = start(way_to_wait, "--spool", "1k")
    write_program(server.cgi / "size", f"#!/bin/sh\n{HEAD}\nwc -c\n")
    with server.connect() as sock:
        assert ask(sock, "POST", "/cgi-bin/size", body=b"x" * 1000)[0] == 200
        for framing, body in (
            ("Content-Length: 2000", b"x" * 2000),
            ("Transfer-Encoding: chunked", chunked(b"x" * 2000)),
        ):
            sock.sendall(request("POST", "/cgi-bin/size", framing) + body)
            assert read_response(sock)[0] == 507, server.log()
            assert ask(sock, "GET", "/cgi-bin/size")[0] == 200  # it was cheap to read off
    for framing, body in (
        ("Content-Length: 1000000", b"x" * 1_000_000),
        ("Transfer-Encoding: chunked", chunked(*[b"x" * 50_000] * 20)),
    ):
        with server.connect() as sock:
            sock.sendall(request("POST", "/cgi-bin/size", framing) + body)
            assert read_response(sock)[0] == 507
            assert is_closed(sock)
    log = server.wait_for_log("507")
    assert log.count("507, a request body cannot be spooled: No such file or directory") == 4
    assert "Traceback" not in log


def test_a_body_for_which_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is overloaded (503), and its disk is not full (507)."""

    def none_left(name: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(spool, "memory_file", none_left)

    class Spooling:
        async def respond(self, request: Request, io: Stream) -> Response:
            await spool.spooled(request.body, 1000)
            raise AssertionError("the body is spooled")

    site = Site(Config(), RequestLimits(), Spooling())
    site.respond = Spooling().respond  # type: ignore[method-assign]
    output = talk(site, request_of("POST /", "Content-Length: 3") + b"abc").output()
    assert output.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1\r\n" in output


def test_a_body_that_does_not_come(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait, "--body-timeout", "400ms")
    write_program(server.cgi / "size", f"#!/bin/sh\n{HEAD}\nwc -c\n")
    with server.connect() as slow:
        began = time.monotonic()
        slow.sendall(request("POST", "/cgi-bin/size", "Content-Length: 10") + b"x")
        assert read_response(slow)[0] == 408
        assert is_closed(slow)
        assert time.monotonic() - began > 0.3
    server.wait_for_log("408, the body")


def test_a_client_that_ends_within_its_body(server: Server) -> None:
    write_program(server.cgi / "size", f"#!/bin/sh\n{HEAD}\nwc -c\n")
    with server.connect() as leaves:
        leaves.sendall(request("POST", "/cgi-bin/size", "Content-Length: 10") + b"x")
        leaves.shutdown(socket.SHUT_WR)
        assert read_response(leaves)[0] == 400
    server.wait_for_log("400, the client ended within a body")


# --- The response: section 6 ----------------------------------------------------------------------------


@pytest.fixture
def kept(shared_server: Server) -> Iterator[socket.socket]:
    """A connection to the shared server for one response of a program.

    The response must leave the connection in step: the next response is that of the next request. The log must
    have no complaint.
    """
    write_program(shared_server.cgi / "say", SAY)
    before = shared_server.log()
    with shared_server.connect() as sock:
        yield sock
        assert b"welcome" in ask(sock, "GET", "/")[2], "the connection is out of step"
    assert shared_server.log() == before


SPLITTING = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHUNKED = {"transfer-encoding": "chunked"}
UNSAID: dict[str, str | None] = {"transfer-encoding": None, "content-length": None}


@in_each_way
@pytest.mark.parametrize(
    ("text", "status", "fields", "body"),
    [
        pytest.param(
            b"content-type: text/x\nX-A: 1\nSet-Cookie: a=1\nSet-Cookie: b=2\nX-Latin:\t\xe9 \n\nline\n\nline",
            200, CHUNKED | {"content-type": "text/x", "x-a": "1", "x-latin": "\xe9", "connection": None},
            b"line\n\nline", id="fields",
        ),
        # CRLF is as good as LF, mixed too
        pytest.param(b"Content-Type: a/b\r\nX-A: 1\n\r\nx\n\n", 200, {"x-a": "1"}, b"x\n\n", id="CRLF-LF"),
        pytest.param(b"Content-Type: a/b\n\r\nx", 200, {}, b"x", id="LF-CRLF"),
        # Status: 6.3.3
        pytest.param(b"Status: 418 I'm a teapot\nContent-Type: a/b\n\nx", 418, {}, b"x", id="418"),
        pytest.param(b"Status: 200\nContent-Type: a/b\n\nx", 200, {}, b"x", id="200"),
        pytest.param(b"Status: 404 Not Found\nContent-Type: a/b\n\nx", 404, {}, b"x", id="404"),
        pytest.param(b"Status: 599 \nContent-Type: a/b\n\nx", 599, {}, b"x", id="599"),
        pytest.param(b"Status: 403 No\n\n", 403, {}, b"", id="status-alone"),
        # The length it gives
        pytest.param(
            b"Content-Type: a/b\nContent-Length: 3\n\nabc", 200,
            {"content-length": "3", "transfer-encoding": None}, b"abc", id="length",
        ),
        pytest.param(
            b"Content-Type: a/b\nContent-Length: 0\n\n", 200, {"content-length": "0"}, b"", id="length-0"
        ),
        pytest.param(b"Content-Type: a/b\n\n", 200, {}, b"", id="empty"),
        # Fields that are the server's do not pass: 6.3
        pytest.param(
            b"Content-Type: a/b\nConnection: close\nTransfer-Encoding: gzip\nDate: never\nServer: other\n"
            b"Keep-Alive: 1\nUpgrade: x\nTrailer: x\n\nx", 200,
            dict.fromkeys(("connection", "keep-alive", "upgrade", "trailer")), b"x", id="fields-of-the-server",
        ),
        # Bodiless
        pytest.param(b"Status: 204 X\nX-A: 1\n\nnot sent", 204, UNSAID | {"x-a": "1"}, b"", id="204"),
        pytest.param(b"Status: 304 X\nX-A: 1\n\nnot sent", 304, UNSAID | {"x-a": "1"}, b"", id="304"),
        pytest.param(b"Content-Type: a/b\n\n" + SPLITTING, 200, CHUNKED, SPLITTING, id="response-as-a-body"),
    ],
)  # fmt: skip
def test_documents(
    kept: socket.socket, text: bytes, status: int, fields: dict[str, str | None], body: bytes
) -> None:
    found = say(kept, text)
    shown = {name: found[1].get(name) for name in fields}
    assert (found[0], shown, found[2]) == (status, fields, body)
    assert found[1]["date"].endswith("GMT") and found[1]["server"] == "ewe" and "status" not in found[1]


@in_each_way
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (b"Content-Type: a/b\nX-A: 1\n\nnot to be sent", {"content-type": "a/b", "x-a": "1"}),
        (b"Content-Type: a/b\nContent-Length: 14\n\nnot to be sent", {"content-length": "14"}),
    ],
    ids=["fields", "length"],
)
def test_documents_of_head_requests(kept: socket.socket, text: bytes, fields: dict[str, str]) -> None:
    status, found, body = say(kept, text, "HEAD")
    assert (status, {name: found.get(name) for name in fields}, body) == (200, fields, b"")


@in_each_way
@pytest.mark.parametrize("length", [b"", b"Content-Length: 3000000\n"], ids=["chunked", "length"])
def test_a_large_document(kept: socket.socket, length: bytes) -> None:
    large = os.urandom(3_000_000)
    assert say(kept, b"Content-Type: a/b\n" + length + b"\n" + large)[2] == large


@in_each_way
def test_several_requests_at_once(kept: socket.socket) -> None:
    one = request("POST", "/cgi-bin/say", body=b"Content-Type: a/b\n\n1")
    two = request("POST", "/cgi-bin/say", body=b"Content-Type: a/b\n\n2")
    kept.sendall(one + two + one)
    assert [read_response(kept)[2] for _ in range(3)] == [b"1", b"2", b"1"]


def test_heads_of_old_programs(server: Server) -> None:
    """Heads that RFC 3875 does not allow, but other servers accept."""
    write_program(server.cgi / "say", SAY)
    with server.connect() as sock:
        for text, expected, kind in (
            (b"X-A: 1\n\nx", 200, None),
            (b"\nx", 200, None),
            (b"\r\nx", 200, None),
            (b"Content-Type: a/b\nContent-Type: a/b\n\nx", 200, "a/b"),
            (b"Content-Type: a/b\nX-A: 1\ncontent-type: c/d\n\nx", 200, "c/d"),
            (b"HTTP/1.1 200 OK\nContent-Type: a/b\n\nx", 200, "a/b"),
            (b"HTTP/1.0 404 Not Found\r\nContent-Type: a/b\r\n\r\nx", 404, "a/b"),
            (b"HTTP/1.1 404\nContent-Type: a/b\n\nx", 404, "a/b"),
            (b"HTTP/1.1 404 No\nStatus: 410 Gone\nContent-Type: a/b\n\nx", 410, "a/b"),
            (b"Status: 404 No\nStatus: 404 No\nContent-Type: a/b\n\nx", 404, "a/b"),
        ):
            sock.sendall(request("POST", "/cgi-bin/say", body=text))
            status, fields, body = read_response(sock)
            assert (status, fields.get("content-type"), body) == (expected, kind, b"x"), text
        status, fields, _ = say(sock, b"Location: http://a/\nLocation: http://a/\n\n")
        assert (status, fields["location"]) == (302, "http://a/")
        assert server.log().count("\n") == 1, server.log()


def test_old_clients(server: Server) -> None:
    """HTTP/1.0: the close ends what has no length; with one the connection may be kept."""
    write_program(server.cgi / "say", SAY)
    body = b"Content-Type: a/b\n\nabc"
    for fields in ((), ("Connection: keep-alive",)):
        answer = ask_anew(server, "/cgi-bin/say", *fields, body=body, version="1.0")
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"\r\n\r\nabc")
        assert b"Connection: close" in answer and b"Transfer-Encoding" not in answer
    with server.connect() as sock:
        for _ in range(2):
            text = b"Content-Type: a/b\nContent-Length: 3\n\nabc"
            sock.sendall(request("GET", "/cgi-bin/say", "Connection: keep-alive", body=text, version="1.0"))
            status, answered, body = read_response(sock)
            assert (status, answered["connection"], body) == (200, "keep-alive", b"abc")
    answer = ask_anew(server, "/cgi-bin/say", "Connection: close", body=b"Content-Type: a/b\n\nabc")
    assert b"Connection: close" in answer and answer.endswith(b"3\r\nabc\r\n0\r\n\r\n")


@in_each_way
def test_a_local_redirect(kept: socket.socket, environment: Server) -> None:
    """Section 6.2.2: as if the client had asked for the target."""
    status, fields, body = say(kept, b"Location: /\n\n")
    assert (status, fields["content-type"]) == (200, "text/html; charset=utf-8") and b"welcome" in body
    found = variables(say(kept, b"Location: /cgi-bin/sub/variables/in%20fo?a=%20b&c\n\n"))
    expected = {
        "PATH_INFO": "/in fo",
        "QUERY_STRING": "a=%20b&c",
        "SCRIPT_NAME": "/cgi-bin/sub/variables",
        "REQUEST_METHOD": "GET",
        "REQUEST_URI": "/cgi-bin/sub/variables/in%20fo?a=%20b&c",
        "SERVER_NAME": "ewe",
        "HTTP_HOST": "ewe",
    }
    assert {name: found[name] for name in expected} == expected
    assert {name for name in found if "CONTENT" in name} == set()  # the body was the first program's
    status, fields, _ = say(kept, b"Location: /\n\n", "HEAD")
    assert (status, fields["content-length"]) == (200, str(len(body_of_index(environment))))
    (environment.root / "with space").write_text("found")
    assert say(kept, b"Location: /with space\n\n")[2] == b"found"
    assert say(kept, b"Location: /missing\n\n")[0] == 404


@in_each_way
def test_a_loop_of_local_redirects_ends(shared_server: Server) -> None:
    loop = "#!/bin/sh\nprintf 'Location: /cgi-bin/loop?x%s\\n\\n' \"$QUERY_STRING\"\n"
    write_program(shared_server.cgi / "loop", loop)
    with shared_server.connect() as sock:
        assert ask(sock, "GET", "/cgi-bin/loop")[0] == 500
    shared_server.wait_for_log("more than 10 local redirects")


@in_each_way
def test_a_program_runs_on_after_its_local_redirect(shared_server: Server) -> None:
    write_program(
        shared_server.cgi / "later",
        "#!/bin/sh\nprintf 'Location: /\\n\\n'\nexec >&-\nsleep 0.3\necho > \"$DOCUMENT_ROOT/later-done\"\n",
    )
    with shared_server.connect() as sock:
        assert b"welcome" in ask(sock, "GET", "/cgi-bin/later")[2]
        assert (shared_server.root / "later-done").exists()


@in_each_way
@pytest.mark.parametrize("head", ["Location: /a\\b<", "Location: /%zz", "Location: /../../x", "Location: ",
                                  "Status: 303 See\nLocation: "])  # fmt: skip
def test_a_location_that_is_none(shared_server: Server, head: str) -> None:
    write_program(shared_server.cgi / "say", SAY)
    with shared_server.connect() as sock:
        assert say(sock, head.encode() + b"\n\n")[0] == 502
        assert ask(sock, "GET", "/")[0] == 200


@in_each_way
@pytest.mark.parametrize(
    ("head", "status", "location", "body"),
    [
        # Section 6.2.3: to another place
        ("Location: http://other.org/x?y", 302, "http://other.org/x?y", b""),
        ("Location: mailto:ewe@example.org", 302, "mailto:ewe@example.org", b""),
        ("Location: https://[::1]:1/", 302, "https://[::1]:1/", b""),
        # Section 6.2.4: with a document
        ("Status: 301 Moved\nLocation: http://x/\nContent-Type: a/b", 301, "http://x/", b"over there"),
        ("Location: http://x/\nContent-Type: a/b", 302, "http://x/", b"over there"),
        # A path with a status goes to the client: RFC 9110 section 10.2.2 lets it
        ("Status: 303 See Other\nLocation: /x", 303, "/x", b""),
        ("Status: 201 Created\nLocation: /x\nContent-Type: a/b", 201, "/x", b"x"),
        # A Location outside this server is left to the client: RFC 9110 section 10.2.2
        ("Location: view.cgi?id=1", 302, "view.cgi?id=1", b""),
        ("Location: ?x=1", 302, "?x=1", b""),
        ("Location: ../up/", 302, "../up/", b""),
        ("Location: #part", 302, "#part", b""),
        ("Location: /small.txt#part", 302, "/small.txt#part", b""),
        ("Location: view.cgi?q=A L\u00e9", 302, "view.cgi?q=A%20L%C3%A9", b""),
    ],
)
def test_a_redirect_of_the_client(
    kept: socket.socket, head: str, status: int, location: str, body: bytes
) -> None:
    found, fields, received = say(kept, head.encode() + b"\n\n" + body)
    assert (found, fields["location"], received) == (status, location, body)


def body_of_index(server: Server) -> bytes:
    """Return the welcome page."""
    return (server.root / "index.html").read_bytes()


def test_non_parsed(server: Server) -> None:
    """Section 5: the client gets what the program writes, then the connection ends."""
    write_program(server.cgi / "nph-say", SAY)
    for whole in (
        b"HTTP/1.1 299 Mine\r\nX: y\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.0 200 OK\n\nabc\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + os.urandom(300_000),
        b"HTTP/1.0 200\n\n",
    ):
        assert ask_anew(server, "/cgi-bin/nph-say", body=whole) == whole
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"  # the server's, and of no program
    for bad in (b"", b"Content-Type: a/b\n\nx", b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/1.1 200 OK"[:9], interim):
        answer = ask_anew(server, "/cgi-bin/nph-say", "Connection: close", body=bad)
        assert answer.startswith(b"HTTP/1.1 502"), bad


def test_lengths_that_lie(server: Server) -> None:
    write_program(server.cgi / "say", SAY)
    write_program(
        server.cgi / "endless",
        '#!/bin/sh\necho $$ > "$DOCUMENT_ROOT/pid"\n'
        "printf 'Content-Type: a/b\\nContent-Length: 5\\n\\n'\nexec yes\n",
    )
    # Less than it said: the connection is cut, so that the client notices
    answer = ask_anew(server, "/cgi-bin/say", body=b"Content-Type: a/b\nContent-Length: 10\n\nabc")
    assert b"Content-Length: 10\r\n" in answer and answer.endswith(b"\r\n\r\nabc")
    # Surplus bytes are not sent, so no client can take them for the next response
    answer = ask_anew(server, "/cgi-bin/say", body=b"Content-Type: a/b\nContent-Length: 3\n\nabcdef")
    assert b"Content-Length: 3\r\n" in answer and answer.endswith(b"\r\n\r\nabc")
    answer = ask_anew(server, "/cgi-bin/endless")
    assert b"Content-Length: 5\r\n" in answer and answer.endswith(b"\r\n\r\ny\ny\ny")
    wait_until_gone(server, pid_in(server.root / "pid"))
    log = server.wait_for_log("more than the 5 bytes of its Content-Length")
    assert "aborted: 3 bytes came, Content-Length is 10" in log
    assert "more than the 3 bytes of its Content-Length" in log


def test_bad_heads(server: Server) -> None:
    """Each bad head is answered by 502, the log has the reason, and the connection stays open."""
    write_program(server.cgi / "say", SAY)
    with server.connect() as sock:
        for text, cause in BAD_HEADS.items():
            before = len(server.log())
            status, fields, body = say(sock, text)
            assert status == 502, text[:60]
            assert b"did not answer properly" in body and "x-a" not in fields
            line = next_line_of_log(server, before)
            assert line.count("\n") == 1 and "502, " in line and "/cgi-bin/say" in line
            assert cause in line, (text[:60], line)
            assert re.fullmatch(r"[\x20-\x7e]*\n", line)
        assert say(sock, b"Content-Type: a/b\n\nx")[0] == 200


def next_line_of_log(server: Server, place: int) -> str:
    """Return what the log has from a place on, once that is a line."""
    wait_until(lambda: server.log()[place:].endswith("\n"), 30)
    return server.log()[place:]


# --- Programs that fail ---------------------------------------------------------------------------------


FAILING = [  # the name of a program, its text, and what the log says of it
    ("exits", "#!/bin/sh\nexit 3\n", "it wrote nothing (exit status 3)"),
    ("killed", "#!/bin/sh\nprintf 'Content-Type: a'\nkill -9 $$\n", "signal 9"),
    ("nobody", "#!/no/such/interpreter\n", "nobody names /no/such/interpreter, which is not there"),
    (
        "plain",
        "echo I have no first line\n",
        "plain must name its interpreter, as #!/usr/bin/env python3 does",
    ),
    ("empty", "", "empty must name its interpreter"),
    ("windows", "#!/bin/sh\r\necho\r\n", "has the line ends of Windows: sed -i 's/\\r$//' "),
    ("windows-env", "#!/usr/bin/env sh\r\necho\r\n", "(exit status 127; "),
    ("misspelt", "#!/usr/bin/env pyhton3\n", "misspelt names pyhton3, which is not there"),
    ("marked", "\ufeff#!/bin/sh\n", "marked begins with a byte order mark"),
    (
        "no-end",
        "#!/bin/sh\necho Content-Type: text/plain\n",
        "an empty line between its fields and its document",
    ),
    ("yes", "#!/bin/sh\nexec yes 'X: y'\n", "more than 65536 bytes"),
    ("closes", "#!/bin/sh\nexec >&-\nsleep 0.1\nexit 4\n", "it wrote nothing (exit status 4)"),
    ("none", "#!/bin/sh\nkill -TERM $$\nsleep 9\n", "signal 15"),
]


@in_each_way
@pytest.mark.parametrize(("name", "text", "cause"), FAILING, ids=[name for name, _, _ in FAILING])
def test_a_program_that_fails_is_502_and_the_log_says_why(
    shared_server: Server, name: str, text: str, cause: str
) -> None:
    write_program(shared_server.cgi / name, text)
    with shared_server.connect() as sock:
        assert ask(sock, "GET", "/cgi-bin/" + name)[0] == 502
        assert ask(sock, "GET", "/")[0] == 200
    log = shared_server.wait_for_log(f"/cgi-bin/{name} ")
    assert any(f"/cgi-bin/{name}" in line and cause in line for line in log.splitlines()), log


@in_each_way
def test_an_exit_status_after_the_head_is_no_failure(shared_server: Server) -> None:
    write_program(shared_server.cgi / "late", f"#!/bin/sh\n{HEAD}\necho all\nexit 3\n")
    with shared_server.connect(20) as sock:
        assert ask(sock, "GET", "/cgi-bin/late")[::2] == (200, b"all\n")
        assert ask(sock, "GET", "/")[0] == 200


@in_each_way
def test_a_program_may_close_its_output_before_it_ends(shared_server: Server) -> None:
    write_program(
        shared_server.cgi / "early",
        f'#!/bin/sh\n{HEAD}\necho all\nexec >&-\nsleep 0.3\necho > "$DOCUMENT_ROOT/early-done"\n',
    )
    with shared_server.connect(20) as sock:
        assert ask(sock, "GET", "/cgi-bin/early")[::2] == (200, b"all\n")
        wait_until((shared_server.root / "early-done").exists, 30)
        assert ask(sock, "GET", "/")[0] == 200


def test_a_process_left_behind_may_write_after_its_program_has_exited(start: Start, way_to_wait: str) -> None:
    """It has EXIT_TIMEOUT_S from the exit on, also if the program was silent for longer before it exited.

    The end of the pipe tells the process that the program has exited. On a busy machine the order is the same, and
    the process may be late by more than a second.
    """
    server = start(way_to_wait, constants={"ewe.gateway.programs.EXIT_TIMEOUT_S": 1.6})
    pipe = server.cgi / "pipe"
    os.mkfifo(pipe)
    program = f"echo begins\n(cat {pipe}; sleep 0.3; echo ends) &\nexec 3> {pipe}\nsleep 1.8\n"
    write_program(server.cgi / "leaves", f"#!/bin/sh\n{HEAD}\n{program}")
    with server.connect(20) as sock:
        assert ask(sock, "GET", "/cgi-bin/leaves")[::2] == (200, b"begins\nends\n")


@in_each_way
@pytest.mark.parametrize("name", ["SEGV", "TERM", "HUP", "ALRM", "PIPE", "INT", "USR1", "KILL"])
def test_a_crash_after_the_head_cuts_the_response(shared_server: Server, name: str) -> None:
    """An incomplete response must not look complete, whatever signal ends the program."""
    write_program(
        shared_server.cgi / "ends", f"#!/bin/sh\n{HEAD}\necho some\nkill -$QUERY_STRING $$\nsleep 9\n"
    )
    with shared_server.connect(20) as sock, pytest.raises(ConnectionError, match="bytes of chunks"):
        ask(sock, "GET", f"/cgi-bin/ends?{name}")
    shared_server.wait_for_log(f"signal {signal.Signals[f'SIG{name}']}")


def test_standard_error(server: Server) -> None:
    """To the error log, line by line, with the script's name; escaped; bounded."""
    write_program(
        server.cgi / "talks",
        "#!/bin/sh\nprintf 'one\\ntwo \\033[31m \"quoted\" \\303\\251 \\377\\r\\n' >&2\n"
        f"{HEAD}\necho done\nprintf 'three, without an end' >&2\n",
    )
    write_program(server.cgi / "last", f"#!/bin/sh\n{HEAD}\nexec >&-\nprintf 'last words' >&2\n")
    write_program(server.cgi / "fails", "#!/bin/sh\nprintf 'why it failed' >&2\nexit 1\n")
    write_program(
        server.cgi / "long", f"#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\n{HEAD}\necho done\n"
    )
    write_program(server.cgi / "million", f"#!/bin/sh\n{HEAD}\nseq 1000000 >&2\necho done\n")
    with server.connect(40) as sock:
        assert ask(sock, "GET", "/cgi-bin/talks")[2] == b"done\n"
        log = server.wait_for_log("without an end")
        for line in ("one", 'two \\x1b[31m "quoted" é \\xff\\x0d', "three, without an end"):
            assert re.search(rf"(?m)^[-0-9: ]+ \[\d+\] warning: /cgi-bin/talks: {re.escape(line)}$", log), log
        for _ in range(3):
            ask(sock, "GET", "/cgi-bin/last")
            ask(sock, "GET", "/cgi-bin/fails")
        log = server.log()
        assert (
            log.count("/cgi-bin/last: last words\n") == 3
            and log.count("/cgi-bin/fails: why it failed\n") == 3
        )

        assert ask(sock, "GET", "/cgi-bin/long")[2] == b"done\n"
        pieces = re.findall(r"warning: /cgi-bin/long: (x+)$", server.log(), re.MULTILINE)
        assert 1 <= len(pieces) <= 60 and all(len(piece) <= 2000 for piece in pieces)

        before = memory(server)
        assert ask(sock, "GET", "/cgi-bin/million")[2] == b"done\n"
        assert memory(server) - before < 20
        log = server.wait_for_log("more lines of standard error")
        assert "/cgi-bin/million: 999000 more lines of standard error" in log
        assert "/cgi-bin/million: 1000\n" in log and "/cgi-bin/million: 1001\n" not in log


def memory(server: Server) -> float:
    """Return the most megabytes that any process of ewe itself ever held."""
    return peak_memory(server_pids(server)) / 1e6


# --- Limits, and clients that leave ---------------------------------------------------------------------

# The times that a program gets once its output has ended, or its client seems to have left: two seconds each.
SOON = {
    "ewe.gateway.programs.EXIT_TIMEOUT_S": 0.5,
    "ewe.streams.poller.HALF_CLOSED_S": 0.5,
    "ewe.streams.event_poller.HALF_CLOSED_S": 0.5,
}
FAMILY = """#!/bin/sh
echo $$ > "$DOCUMENT_ROOT/$QUERY_STRING.pid"
sleep 60 &
echo $! > "$DOCUMENT_ROOT/$QUERY_STRING.child"
(
  trap '' TERM
  echo $(exec sh -c 'echo $PPID') > "$DOCUMENT_ROOT/$QUERY_STRING.stubborn"
  while :; do sleep 1; done
) &
"""


def family(server: Server, name: str) -> tuple[int, int, int]:
    """Return the processes of a program that begins as FAMILY: itself, a child, a child that ignores SIGTERM."""
    return (
        pid_in(server.root / f"{name}.pid"),
        pid_in(server.root / f"{name}.child"),
        pid_in(server.root / f"{name}.stubborn"),
    )


def test_silent_programs(start: Start, model: str) -> None:
    """No answer in time: 504. Silence within an answer: it is cut. The program and its children end."""
    server = start(model, "--program-timeout", "2s", constants=SOON)
    write_program(server.cgi / "silent", FAMILY + "wait\n")
    write_program(server.cgi / "stops", FAMILY + f"{HEAD}\necho begins\nwait\n")
    write_program(server.cgi / "stubborn", FAMILY + "trap '' TERM\nwhile :; do sleep 1; done\n")
    write_program(server.cgi / "grumbles", FAMILY + "while :; do echo still working >&2; sleep 0.2; done\n")
    # Its output has ended, so its time has come; its standard error is heard until then
    write_program(
        server.cgi / "stays",
        f'#!/bin/sh\necho $$ > "$DOCUMENT_ROOT/stays.pid"\n{HEAD}\n'
        "echo all\nexec >&-\necho still here >&2\nexec sleep 60\n",
    )
    names = ("silent", "stops", "stubborn", "grumbles")
    with connections(server, len(names) + 1) as socks:
        for name, sock in zip((*names, "stays"), socks, strict=True):
            sock.sendall(request("GET", f"/cgi-bin/{name}?{name}", "Connection: close"))
        assert read_response(socks[0])[0] == 504
        answer = read_all(socks[1])
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"begins\n\r\n")  # no last chunk
        assert read_response(socks[2])[0] == 504
        assert read_response(socks[3])[0] == 504
        assert read_response(socks[4])[::2] == (200, b"all\n")
    for name in names:
        wait_until_gone(server, *family(server, name))
    wait_until_gone(server, pid_in(server.root / "stays.pid"))
    server.wait_for_log("/cgi-bin/stops: silent for 2 s (program-timeout)")
    wait_until(lambda: server.log().count("504, ") == 3, 20, server.log)
    log = server.wait_for_log("aborted after 7 bytes")
    assert "stays: still here" in log and "stays: ended 0.5 s after it closed its output" in log
    assert "Traceback" not in log


@contextmanager
def connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Open so many connections, and close them at the end."""
    socks = [server.connect(40) for _ in range(count)]
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()


def test_clients_that_leave(start: Start, model: str) -> None:
    """Where the client resets, the program and its children end at once; where it only closes, soon."""
    server = start(model, constants=SOON)
    names = ("silent", "writes", "floods", "grumbles")
    write_program(server.cgi / "silent", FAMILY + "wait\n")
    write_program(server.cgi / "writes", FAMILY + f"{HEAD}\nwhile :; do echo line; sleep 0.1; done\n")
    write_program(server.cgi / "floods", FAMILY + f"{HEAD}\nexec cat /dev/zero\n")
    write_program(server.cgi / "grumbles", FAMILY + "while :; do echo still working >&2; sleep 0.2; done\n")
    for way in ("resets", "closes"):
        for name in names:
            leave(server, name, way)
            if model == "serial":
                wait_until_gone(server, *family(server, f"{name}-{way}"))
        for name in names:
            wait_until_gone(server, *family(server, f"{name}-{way}"))
    with server.connect() as sock:
        assert ask(sock, "GET", "/")[0] == 200
    assert "Traceback" not in server.log()


def test_clients_that_wait(server: Server) -> None:
    """A client that has closed just its sending side (at first sight it has left) still gets its answer.

    The program writes something now and then: it is never silent for HALF_CLOSED_S, and takes longer.
    """
    write_program(
        server.cgi / "steady",
        f"#!/bin/sh\n{HEAD}\nfor i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.25; done\n",
    )
    write_program(server.cgi / "slow", f"#!/bin/sh\nsleep 0.25\n{HEAD}\necho slept\n")
    with server.connect() as sock:
        sock.sendall(request("GET", "/cgi-bin/steady") + request("GET", "/cgi-bin/slow"))
        sock.shutdown(socket.SHUT_WR)
        assert read_response(sock)[2] == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"
        assert read_response(sock)[2] == b"slept\n"


def leave(server: Server, name: str, way: str) -> None:
    """Ask for a program that begins as FAMILY, and leave once it runs; way: "resets" or "closes"."""
    tag = f"{name}-{way}"
    with server.connect() as sock:
        sock.sendall(request("GET", f"/cgi-bin/{name}?{tag}"))
        family(server, tag)
        if way == "resets":
            reset(sock)


# --- Streaming, and large answers and bodies ------------------------------------------------------------


def test_streaming(server: Server) -> None:
    """What a program flushes reaches the client at once, head and pieces; HEAD does not wait for the rest."""
    write_program(
        server.cgi / "stream",
        f'#!/bin/sh\n{HEAD}\ncd "$DOCUMENT_ROOT"\n'
        "until [ -e one ]; do sleep 0.02; done; rm one\nprintf first\n"
        "until [ -e two ]; do sleep 0.02; done; rm two\nprintf second\n",
    )
    write_program(
        server.cgi / "nph-stream",
        "#!/bin/sh\nprintf 'HTTP/1.0 200 OK\\r\\n\\r\\nfirst'\n"
        'cd "$DOCUMENT_ROOT"\nuntil [ -e two ]; do sleep 0.02; done; rm two\nprintf second\n',
    )
    for version in ("1.1", "1.0"):
        with server.connect() as sock:
            sock.sendall(request("GET", "/cgi-bin/stream", "Connection: close", version=version))
            head = receive_until(sock, b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            (server.root / "one").touch()
            receive_until(sock, b"first")
            (server.root / "two").touch()
            rest = read_all(sock)
            assert b"second" in rest and rest.endswith(b"0\r\n\r\n") is (version == "1.1")
    with server.connect() as sock:
        sock.sendall(request("GET", "/cgi-bin/nph-stream"))
        assert receive_until(sock, b"first").endswith(b"\r\n\r\nfirst")
        (server.root / "two").touch()
        assert read_all(sock) == b"second"
    with server.connect() as sock:
        assert ask(sock, "HEAD", "/cgi-bin/stream")[0] == 200
        (server.root / "one").touch()
        (server.root / "two").touch()
        assert ask(sock, "GET", "/")[0] == 200
        assert not (server.root / "two").exists()  # the program was let go on to its end


def test_an_answer_cut_short_never_looks_whole(server: Server) -> None:
    """Where nothing but the close tells where a body ends, a program that dies makes it a reset."""
    for name, head in (("dies", "Content-Type: a/b\\n\\n"), ("nph-dies", "HTTP/1.0 200 OK\\r\\n\\r\\n")):
        write_program(server.cgi / name, f"#!/bin/sh\nprintf '{head}beginning'\nkill -9 $$\n")
        with server.connect() as sock:
            sock.sendall(request("GET", f"/cgi-bin/{name}", version="1.0"))
            with pytest.raises(ConnectionResetError):
                while sock.recv(4096):
                    pass
    with (
        server.connect() as sock
    ):  # chunked: the last chunk is missing, and the client can read the chunks before
        sock.sendall(request("GET", "/cgi-bin/dies"))
        answer = read_all(sock)
        assert answer.endswith(b"beginning\r\n") and b"chunked" in answer


def receive_until(sock: socket.socket, end: bytes) -> bytes:
    """Return the received bytes up to `end`, and any bytes that came with it."""
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


LARGE = 100  # MB


def test_large(server: Server) -> None:
    """100 MB down, and up and down: byte-exact, and the server's memory does not grow."""
    write_program(server.cgi / "echo", ECHO)
    write_program(
        server.cgi / "zeros",
        "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n'\nhead -c ${QUERY_STRING}M /dev/zero\n",
    )
    block = os.urandom(1024 * 1024)
    expected = 0
    for _ in range(LARGE):
        expected = zlib.crc32(block, expected)
    with server.connect(60) as sock:
        assert ask(sock, "POST", "/cgi-bin/echo", body=b"x" * 100_000)[0] == 200
        before = memory(server)

        sock.sendall(request("GET", f"/cgi-bin/zeros?{LARGE}"))
        count, check = 0, 0
        for piece in chunks_of(sock):
            count += len(piece)
            check |= piece.count(0) != len(piece)
        assert (count, check) == (LARGE * 1024 * 1024, 0)

        sock.sendall(request("POST", "/cgi-bin/echo", f"Content-Length: {LARGE * 1024 * 1024}"))
        for _ in range(LARGE):
            sock.sendall(block)
        head = receive_until(sock, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        found = head.partition(b"\r\n\r\n")[2]
        count, check = len(found), zlib.crc32(found)
        buffer = memoryview(bytearray(1024 * 1024))
        while count < LARGE * 1024 * 1024:
            got = sock.recv_into(buffer)
            assert got, count
            count += got
            check = zlib.crc32(buffer[:got], check)
        assert (count, check) == (LARGE * 1024 * 1024, expected)
        assert memory(server) - before < 40
        assert ask(sock, "GET", "/")[0] == 200


def chunks_of(sock: socket.socket) -> Iterator[bytes]:
    """Yield the pieces of a chunked response as they come."""
    file = sock.makefile("rb", buffering=1024 * 1024)
    with file:
        while file.readline() != b"\r\n":
            pass
        while size := int(file.readline(), 16):
            yield file.read(size)
            file.readline()
        file.readline()


@pytest.mark.parametrize("model", [name for name in MODELS if name != "serial"])
def test_a_large_answer_does_not_hold_up_others(start: Start, model: str) -> None:
    """A client that reads as fast as it can does not starve the next one."""
    server = start(model)
    write_program(server.cgi / "zeros", f"#!/bin/sh\n{HEAD}\nexec cat /dev/zero\n")
    stop = threading.Event()  # the answer has no end: without a turn of its own the other waits for ever
    took = 0

    def take() -> None:
        nonlocal took
        buffer = bytearray(1024 * 1024)
        with server.connect() as sock:
            sock.sendall(request("GET", "/cgi-bin/zeros"))
            while not stop.is_set():
                took += sock.recv_into(buffer)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        wait_until(lambda: took > 10_000_000, 30)
        with server.connect(20) as sock:
            for _ in range(20):
                assert ask(sock, "GET", "/")[0] == 200
        before = took
        wait_until(lambda: took > before, 30)  # and the first is not held up for good either
    finally:
        stop.set()
        taker.join(20)


# --- Where a URL leads ----------------------------------------------------------------------------------


def test_a_document_root_among_programs_is_warned_of(start: Start) -> None:
    """Files there must be sent, and only their mode tells programs from them."""
    warning = "a program there that is not executable is sent as a file"
    server = start()
    inside = server.root / "programs"
    inside.mkdir()
    assert warning not in start("pool", "--cgi-path", str(inside)).log() + server.log()
    start("pool", "--cgi-path", str(server.root)).wait_for_log(warning)


@pytest.fixture(scope="module")
def programs(shared_server: Server) -> Server:
    """The shared server with programs, links and files that URLs may or may not lead to."""
    cgi = shared_server.cgi
    outside = write_program(cgi.parent / "outside" / "program", HELLO)
    for name in ("hello", "sub/hello world", "d\udce9j\u00e0", ".hidden", ".dir/hello"):
        write_program(cgi / name, HELLO)
    (cgi / "data").write_text("not a program\n")
    (cgi / "link").symlink_to("hello")
    (cgi / "escape").symlink_to(outside)
    (cgi / "escape-dir").symlink_to(outside.parent)
    (cgi / "dangling").symlink_to("nowhere")
    os.mkfifo(cgi / "fifo", 0o755)
    return shared_server


@in_each_way
@pytest.mark.parametrize(
    "target",
    ["/cgi-bin/hello", "/cgi-bin/hello/", "/cgi-bin/hello/a/../b/.hidden", "/cgi-bin/link",
     "/cgi-bin/sub/hello%20world", "/cgi-bin/./hello", "/cgi-bin/sub/../hello", "/cgi-bin/d%E9j%C3%A0",
     "/cgi-bin/%68ello", "//cgi-bin//hello", "/x/../cgi-bin/hello"],
)  # fmt: skip
def test_a_url_leads_to_a_program(programs: Server, target: str) -> None:
    with programs.connect() as sock:
        assert ask(sock, "GET", target)[::2] == (200, b"hello\n")


@in_each_way
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        *(("/cgi-bin/" + path, 404) for path in (
            "", "nothing", "nothing/hello", "sub", "sub/", ".hidden", ".dir/hello", "dangling", "fifo", "Hello",
            "../outside/program", "escape", "escape/info", "escape-dir/program", "hello%2fx",
        )),
        ("/cgi-bin", 404),
        ("/cgi-binary/hello", 404),
        ("/cgi-bin/data", 403),
        ("/cgi-bin/data/x", 403),
        ("/cgi-bin/hello%00", 400),
        ("/cgi-bin/../../outside/program", 400),
    ],
)  # fmt: skip
def test_a_url_leads_to_no_program(programs: Server, target: str, expected: int) -> None:
    """ewe runs only an executable file below cgi-path."""
    answer = ask_anew(programs, target, "Connection: close")
    assert answer.startswith(b"HTTP/1.1 %d " % expected) and b"hello\n" not in answer
    if expected == 403:
        programs.wait_for_log(f"{programs.cgi}/data is not executable: chmod +x {programs.cgi}/data")


@in_each_way
def test_a_form_sent_to_no_program(programs: Server) -> None:
    with programs.connect() as sock:
        assert ask(sock, "POST", "/cgi-bin/nothing", body=b"x")[0] in (404, 405)


@in_each_way
def test_a_change_of_a_program_is_seen_at_once(shared_server: Server) -> None:
    with shared_server.connect() as sock:
        write_program(shared_server.cgi / "changing", HELLO)
        assert ask(sock, "GET", "/cgi-bin/changing")[2] == b"hello\n"
        write_program(shared_server.cgi / "changing", HELLO.replace("hello", "changed"))
        assert ask(sock, "GET", "/cgi-bin/changing")[2] == b"changed\n"
        (shared_server.cgi / "changing").chmod(0o644)
        assert ask(sock, "GET", "/cgi-bin/changing")[0] == 403


@in_each_way
def test_a_path_of_no_program_may_be_a_file_of_the_document_root(shared_server: Server) -> None:
    directory = shared_server.root / "cgi-bin"
    directory.mkdir()
    (directory / "document").write_text("normal parsing")
    with shared_server.connect() as sock:
        assert ask(sock, "GET", "/cgi-bin/document")[2] == b"normal parsing"
    shutil.rmtree(directory)


def test_programs_inside_the_document_root(start: Start, way_to_wait: str, tmp_path: Path) -> None:
    """Links are followed, if a setting says so. Nothing of the directory is sent as a file."""
    inside = tmp_path / "htdocs" / "cgi-bin"
    write_program(inside / "hello", HELLO)
    (inside / "data").write_text("not a program\n")
    (inside / "escape").symlink_to(write_program(tmp_path / "outside" / "program", HELLO))
    server = start(way_to_wait, "--cgi-path", str(inside), "--symlinks", "follow")
    with server.connect() as sock:
        for name in ("hello", "escape"):
            assert ask(sock, "GET", f"/cgi-bin/{name}")[::2] == (200, b"hello\n"), name
        for name, expected in (("data", 403), ("", 403), ("nothing", 404)):
            assert ask(sock, "GET", f"/cgi-bin/{name}")[0] == expected, name
    assert server.stop() == 0


def test_nothing_is_left(start: Start, model: str) -> None:
    """After 50 programs: no zombie, no descriptor, no file."""
    server = start(model)
    write_program(server.cgi / "hello", HELLO)
    write_program(server.cgi / "say", SAY)

    def descriptors() -> int:
        count = 0
        for pid in server_pids(server):
            with contextlib.suppress(FileNotFoundError):  # a child that has just ended
                count += len(open_files(pid))
        return count

    with server.connect() as sock:
        ask(sock, "GET", "/cgi-bin/hello")
        before = descriptors()
        for number in range(25):
            assert ask(sock, "GET", "/cgi-bin/hello")[0] == 200
            assert say(sock, b"no head" if number % 2 else b"Location: /\n\n")[0] in (200, 502)
        own = server_pids(server)
        left = {child: state for pid in own for child, state in children(pid).items() if child not in own}
        assert not left
        assert descriptors() < before + 10  # workers of prefork may still have been starting


def test_a_reason_of_its_own(server: Server) -> None:
    write_program(
        server.cgi / "pot", '#!/bin/sh\nprintf "Status: 418 I\'m a teapot\\nContent-Type: a/b\\n\\n"\n'
    )
    answer = ask_anew(server, "/cgi-bin/pot", "Connection: close")
    assert answer.startswith(b"HTTP/1.1 418 I'm a teapot\r\n")


def test_what_a_program_leaves_behind(start: Start, model: str) -> None:
    """The program exits, but a process that it started keeps its output open: the answer ends all the same."""
    server = start(model, constants=SOON)
    left = "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\nhello'\nsleep 100 &\necho $! > ../htdocs/left\n"
    write_program(server.cgi / "left", left)
    with server.connect() as sock:  # its 20 s are a fifth of that
        assert ask(sock, "GET", "/cgi-bin/left")[2] == b"hello"
    pid = pid_in(server.root / "left")
    wait_until(lambda: state(pid) in ("", "Z"), 30)
