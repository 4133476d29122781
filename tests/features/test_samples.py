"""The samples: what a fresh checkout serves, through the real server."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from support import web
from support.server import MODELS, ROOT, Server, Start
from support.wire import read_response

from ewe.config.settings import Config
from ewe.processors import base

CGI = ROOT / "cgi-bin"
TEXT = "text/plain; charset=utf-8"


@pytest.fixture(scope="module")
def sample(start_shared: Start) -> Server:
    """A server of the samples as `make serve` starts one. What it says it says under each model: test_cgi.py."""
    return start_shared("pool", "--documentroot", str(ROOT / "htdocs"), "--cgi-path", str(CGI))


@pytest.fixture(scope="module")
def client(sample: Server) -> Iterator[httpx.Client]:
    """A client with one kept connection."""
    with web.Client(base_url=sample.url, timeout=30) as client:
        yield client


def test_every_sample_is_tested() -> None:
    """Each sample has a test, and each sample but a source is executable."""
    names = {path.name for path in CGI.iterdir() if path.name != "hello-c"}
    assert names == {
        "echo", "environment", "form.py", "headers", "hello.c", "hello.pl", "hello.py", "hello.sh",
        "nph-hello", "redirect", "sleep", "stream",
    }  # fmt: skip
    for name in names - {"hello.c"}:
        assert (CGI / name).stat().st_mode & stat.S_IXOTH, name
        assert (CGI / name).read_text().startswith("#!"), name


def test_the_welcome_page_fits_every_start() -> None:
    """The page's commands work after `make serve` and after an installation: they use the default port only."""
    page = (ROOT / "htdocs" / "index.html").read_text()
    default = Config.port.default
    assert {int(port) for port in re.findall(r"localhost:(\d+)", page)} == {default}
    assert f"The port is {default}" in page and ".venv/bin/ewe" in page
    for flag, model in base.FLAGS.items():
        assert f"<dt><code>ewe {flag}</code></dt>" in page, model


@pytest.mark.parametrize("file", ["htdocs/index.html", "share/pictures/models.svg"])
def test_the_picture_shows_every_model(file: str) -> None:
    text = (ROOT / file).read_text()
    names = re.findall(r'<text class="name"[^>]*>([^<]*)</text>', text)
    assert [name.replace("X-Switch", "xswitch") for name in names] == [*MODELS, "xswitch"]
    assert "One conversation, seven models" in text and len(names) == 7


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("hello.sh", "the shell"),
        ("hello.py", "Python"),
        pytest.param("hello.pl", "Perl", marks=pytest.mark.needs("Perl")),
    ],
)
def test_hello(client: httpx.Client, name: str, language: str) -> None:
    answer = client.get(f"/cgi-bin/{name}")
    assert (answer.status_code, answer.text) == (200, f"Hello from {language}!\n")
    assert answer.headers["content-type"] == TEXT
    answer = client.head(f"/cgi-bin/{name}")
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, TEXT, b"")


def test_a_source_is_not_served(client: httpx.Client) -> None:
    assert client.get("/cgi-bin/hello.c").status_code == 403


def test_nph_hello(client: httpx.Client) -> None:
    answer = client.get("/cgi-bin/nph-hello")
    assert answer.text == "Hello from a program that speaks HTTP itself!\n"
    assert "server" not in answer.headers and "date" in answer.headers


def test_environment(sample: Server, client: httpx.Client) -> None:
    lines = client.get("/cgi-bin/environment/a%0Ab?x=%20").text.splitlines()
    found = dict(line.partition("=")[::2] for line in lines)
    expected = {
        "PATH_INFO": r"/a\nb",
        "QUERY_STRING": "x=%20",
        "SERVER_PORT": str(sample.port),
        "SERVER_NAME": "127.0.0.1",
    }
    assert {name: found[name] for name in expected} == expected
    assert lines == sorted(lines)


def test_headers(client: httpx.Client) -> None:
    fields = {"X-My-Own": "yes", "Authorization": "no"}
    text = client.post("/cgi-bin/headers", content=b"12345", headers=fields).text
    assert "X-My-Own: yes\n" in text and "Content-Length: 5\n" in text and "Host: 127.0.0.1:" in text
    assert "Authorization" not in text and "Content-Type" not in text


def test_redirect(sample: Server, client: httpx.Client) -> None:
    hello = (ROOT / "htdocs" / "hello.txt").read_text()
    answer = client.get("/cgi-bin/redirect?local")
    assert (answer.status_code, answer.text) == (200, hello)
    for way, text in (("client", ""), ("document", "Found elsewhere")):
        answer = client.get(f"/cgi-bin/redirect?{way}")
        assert (answer.status_code, answer.headers["location"]) == (302, f"{sample.url}hello.txt"), way
        assert text in answer.text
        assert client.get(f"/cgi-bin/redirect?{way}", follow_redirects=True).text == hello, way
    assert "redirect?local" in client.get("/cgi-bin/redirect").text
    assert client.get("/cgi-bin/redirect?other").status_code == 400
    assert client.head("/cgi-bin/redirect").content == b""


def test_sleep(client: httpx.Client) -> None:
    began = time.monotonic()
    assert client.get("/cgi-bin/sleep?0.3").text == "Slept for 0.3 s.\n"
    assert time.monotonic() - began >= 0.3
    for query in ("nan", "-1"):
        assert client.get(f"/cgi-bin/sleep?{query}").status_code == 400, query


def test_stream(client: httpx.Client) -> None:
    assert client.get("/cgi-bin/stream?n=x").status_code == 400
    with client.stream("GET", "/cgi-bin/stream?n=3") as streaming:
        lines = [line.partition(",")[0] for line in streaming.iter_lines()]
    assert lines == [f"line {n} of 3" for n in range(1, 4)]
    with client.stream("GET", "/cgi-bin/stream?n=1000") as streaming:
        line = next(streaming.iter_lines())  # three minutes before the last one is written
    assert line.startswith("line 1 of 1000,")


def test_form(sample: Server) -> None:
    """The answer to htdocs/form.html, for three kinds of forms. All values are escaped."""
    page = web.get(sample.url + "form.html").text
    assert page.count('action="/cgi-bin/form.py"') == 3
    url = sample.url + "cgi-bin/form.py"
    fields = {"name": "Dolly & Co.", "interest": "<b>sheep</b>", "message": "Grüße,\r\nΕλλάδα"}
    with web.Client(timeout=30) as client:
        for answer in (client.get(url, params=fields), client.post(url, data=fields)):
            assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
            assert "Dolly &amp; Co." in answer.text and "&lt;b&gt;sheep&lt;/b&gt;" in answer.text
            assert "<b>sheep" not in answer.text and "Ελλάδα" in answer.text
        assert "application/x-www-form-urlencoded" in answer.text
        data = os.urandom(300_000)  # more than a pipe holds
        answer = client.post(url, data={"note": "n"}, files={"file": ("ewe <1>.png", data, "image/png")})
        assert "ewe &lt;1&gt;.png" in answer.text and "300,000 bytes" in answer.text
        assert hashlib.sha256(data).hexdigest() in answer.text
        body = urlencode(fields).encode()

        def pieces() -> list[bytes]:
            return [body[place : place + 7] for place in range(0, len(body), 7)]

        answer = client.post(  # chunked
            url, content=iter(pieces()), headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert "Dolly &amp; Co." in answer.text and f"<td>{len(body)}</td>" in answer.text
        assert client.put(url).status_code == 405
        assert client.post(url, content=b"x", headers={"Content-Type": "a/b"}).status_code == 415


def test_echo(start: Start, model: str) -> None:
    """Byte-exact: 5 MB of anything, by length and chunked."""
    data = os.urandom(5_000_000)
    sample = start(model, "--cgi-path", str(CGI))
    with sample.connect() as sock:
        for framing, body in (
            (b"Content-Length: 5000000", data),
            (b"Transfer-Encoding: chunked", in_chunks(data)),
            (b"Content-Length: 0", b""),
        ):
            echoed, kind = echo(sock, framing, body)
            assert echoed == (data if body else b"") and kind == "x/y"


def in_chunks(data: bytes) -> bytes:
    """Return data as a chunked body, in chunks of odd sizes."""
    pieces = []
    place, size = 0, 1
    while place < len(data):
        piece = data[place : place + size]
        pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        place += size
        size = size * 3 % 70_001 + 1
    return b"".join(pieces) + b"0\r\n\r\n"


def echo(sock: socket.socket, framing: bytes, body: bytes) -> tuple[bytes, str]:
    """Send a body to echo; return the echoed body and its type."""
    sock.sendall(
        b"POST /cgi-bin/echo HTTP/1.1\r\nHost: ewe\r\nContent-Type: x/y\r\n" + framing + b"\r\n\r\n" + body
    )
    status, fields, echoed = read_response(sock)
    assert status == 200
    return echoed, fields["content-type"]


@pytest.mark.needs("gcc")
def test_hello_in_c(start: Start, tmp_path: Path) -> None:
    server = start("thread")
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-O2", "-o", server.cgi / "hello-c", CGI / "hello.c"],
        check=True,
    )
    answer = web.get(server.url + "cgi-bin/hello-c")
    assert (answer.text, answer.headers["content-type"]) == ("Hello from C!\n", TEXT)
    assert web.head(server.url + "cgi-bin/hello-c").headers["content-type"] == TEXT
