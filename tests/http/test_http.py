"""The HTTP conversation over real sockets, the same under every model: RFC 9110 and RFC 9112."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.server import Server, Start, write_program
from support.wire import read_all, read_response

from ewe.body import SKIP
from ewe.http.dates import parse_date
from ewe.streams.base import LINGER_BYTES


def head(line: str, *fields: str) -> bytes:
    """Return a request's head: "GET /" is one of HTTP/1.1."""
    line = line if "HTTP/" in line else line + " HTTP/1.1"
    return "\r\n".join((line, "Host: ewe", *fields, "", "")).encode("latin-1")


def ask(sock: socket.socket, line: str, *fields: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send one request on a connection and return the response."""
    sock.sendall(head(line, *fields) + body)
    return read_response(sock, line.partition(" ")[0])


def is_over(sock: socket.socket) -> bool:
    """Has the server closed the connection, without another byte and without a reset?"""
    return sock.recv(100) == b""


def make_files(server: Server) -> None:
    """Put into the root what these tests ask for."""
    (server.root / "small.txt").write_bytes(b"small\n")
    (server.root / "empty.txt").write_bytes(b"")
    (server.root / "large.bin").write_bytes(bytes(range(256)) * 1000)
    (server.root / "directory").mkdir()
    for number in range(10):
        (server.root / f"{number}.txt").write_text(f"this is {number}\n")


# Methods


def test_head_is_get_without_the_body(server: Server) -> None:
    make_files(server)
    with server.connect() as sock:
        for target, status in (
            ("/", 200),
            ("/small.txt", 200),
            ("/empty.txt", 200),
            ("/large.bin", 200),
            ("/missing", 404),
            ("/directory", 301),
            ("/small.txt", 200),
        ):
            answers = [ask(sock, f"{method} {target}") for method in ("HEAD", "GET", "HEAD")]
            for _, fields, _ in answers:
                del fields["date"]
            (_, _, nothing), (got, fields, body), _ = answers
            assert got == status and answers[0] == answers[2] == (status, fields, b"")
            assert nothing == b"" and int(fields["content-length"]) == len(body)
        assert ask(sock, "GET /small.txt")[2] == b"small\n"
    for line in (  # refused by the grammar: no body even then
        "HEAD /%00",
        "HEAD /" + "x" * 10_000,
        "HEAD / HTTP/3.0",
    ):
        assert server.ask(head(line)).partition(b"\r\n\r\n")[2] == b""


def test_methods(server: Server) -> None:
    make_files(server)
    with server.connect() as sock:
        status, fields, body = ask(sock, "OPTIONS /small.txt")
        assert (status, fields["allow"], body) == (204, "GET, HEAD, OPTIONS", b"")
        status, fields, _ = ask(sock, "OPTIONS *")
        assert status == 204 and set(fields["allow"].split(", ")) >= {"GET", "HEAD", "POST", "OPTIONS"}
        for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE"):
            for target in ("/small.txt", "/large.bin", "/"):
                status, fields, body = ask(sock, f"{method} {target}", "X-Secret: needle")
                assert (status, fields["allow"]) == (405, "GET, HEAD, OPTIONS")
                assert b"needle" not in body  # TRACE echoes nothing
        assert ask(sock, "GET /small.txt")[2] == b"small\n"  # all of that on one connection
        for method in ("BREW", "get", "LINK", "PROPFIND"):
            for target in ("/small.txt", "/", "/missing"):
                assert ask(sock, f"{method} {target}")[0] == 501
    assert server.ask(head("X" * 100 + " /small.txt")).startswith(b"HTTP/1.1 501 ")
    assert server.ask(head("CONNECT ewe:80")).startswith(b"HTTP/1.1 501 ")


# Persistence: RFC 9112 section 9.3


def test_persistence(server: Server) -> None:
    make_files(server)
    for line, fields, kept in (
        ("GET /small.txt HTTP/1.1", (), ""),
        ("GET /small.txt HTTP/1.1", ("Connection: keep-alive",), ""),
        ("GET /small.txt HTTP/1.1", ("Connection: x, Y",), ""),
        ("GET /small.txt HTTP/1.1", ("Connection: close",), "close"),
        ("GET /small.txt HTTP/1.1", ("Connection: Close",), "close"),
        ("GET /small.txt HTTP/1.1", ("Connection: keep-alive, close",), "close"),
        ("GET /small.txt HTTP/1.1", ("Connection: x", "Connection: close"), "close"),
        ("GET /missing HTTP/1.1", ("Connection: close",), "close"),
        ("GET /large.bin HTTP/1.1", ("Connection: close",), "close"),
        ("GET /small.txt HTTP/1.0", (), "close"),
        ("GET /missing HTTP/1.0", (), "close"),
        ("GET /small.txt HTTP/1.0", ("Connection: x",), "close"),
        ("GET /small.txt HTTP/1.0", ("Connection: Keep-Alive",), "keep-alive"),
        ("GET /large.bin HTTP/1.0", ("Connection: keep-alive",), "keep-alive"),
        ("GET /missing HTTP/1.0", ("Connection: keep-alive",), "keep-alive"),
        ("HEAD /small.txt HTTP/1.0", ("Connection: keep-alive",), "keep-alive"),
    ):
        with server.connect() as sock:
            for _ in range(1 if kept == "close" else 3):
                _, answered, body = ask(sock, line, *fields)
                assert answered.get("connection", "") == kept, (line, fields)
                assert "content-length" in answered
                assert body or line.startswith("HEAD")
            if kept == "close":
                assert is_over(sock), (line, fields)
    # A 1.0 client may leave out Host
    assert server.ask(b"GET /small.txt HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nsmall\n")


def test_a_client_that_has_sent_its_last_byte_is_answered(server: Server) -> None:
    """server.ask() ends its side at once."""
    make_files(server)
    answer = server.ask(head("GET /0.txt") + head("GET /large.bin") + head("GET /1.txt"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nthis is 1\n")
    assert bytes(range(256)) * 1000 in answer
    assert server.ask(b"") == b""
    assert server.ask(b"\r\n") == b""
    assert server.ask(b"GET / HTTP/1.1\r\nHo").startswith(b"HTTP/1.1 400 ")


def test_options_of_persistence(start: Start, variant: str) -> None:
    server = start(variant, "--requests", "3")
    make_files(server)
    with server.connect() as sock:
        kept = [ask(sock, "GET /small.txt")[1].get("connection") for _ in range(3)]
        assert kept == [None, None, "close"]
        assert is_over(sock)
    with server.connect() as sock:  # ten at once: three are answered, and the client can read them
        sock.sendall(b"".join(head(f"GET /{number}.txt") for number in range(10)))
        bodies = [read_response(sock)[2] for _ in range(3)]
        assert bodies == [f"this is {number}\n".encode() for number in range(3)]
        assert is_over(sock)
    server = start(variant, "--no-persistent")
    for version, field in (
        ("1.1", "X: y"),
        ("1.1", "Connection: keep-alive"),
        ("1.0", "Connection: keep-alive"),
    ):
        with server.connect() as sock:
            assert ask(sock, f"GET / HTTP/{version}", field)[1]["connection"] == "close"
            assert is_over(sock)


def test_a_client_that_pipelines_past_the_limit_reads_all_answers(start: Start, variant: str) -> None:
    """What the kernel holds unread when the server closes must not turn into a reset: RFC 9112 section 9.6."""
    server = start(variant, "--requests", "3")
    make_files(server)
    write_program(server.cgi / "echo", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\ncat\n")
    get = head("GET /small.txt", "X: " + "x" * 200)
    post = head("POST /cgi-bin/echo", "Content-Length: 6") + b"small\n"
    for last in (get, get, post):
        with server.connect() as sock:
            sock.sendall(get * 2 + last + get * 1500)
            for _ in range(3):
                assert read_response(sock)[2] == b"small\n"
            assert is_over(sock)


# Pipelining: RFC 9112 section 9.3.2


def test_pipelining(server: Server) -> None:
    make_files(server)
    ten = b"".join(head(f"GET /{number}.txt") for number in range(10))
    expected = [f"this is {number}\n".encode() for number in range(10)]
    with server.connect() as sock:
        for _ in range(2):
            sock.sendall(ten)
            assert [read_response(sock)[2] for _ in range(10)] == expected
        # Large and small, errors, bodies by length and chunked in between, and one packet
        sock.sendall(
            head("GET /0.txt")
            + head("POST /1.txt", "Content-Length: 5")
            + b"GET /"
            + head("GET /large.bin")
            + head("POST /1.txt", "Transfer-Encoding: chunked")
            + b"5;x=y\r\nGET /\r\n003\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
            + head("HEAD /large.bin")
            + head("GET /missing")
            + head("GET /2.txt", "Content-Length: 3")
            + b"xyz"
            + head("GET /large.bin", "Range: bytes=0-4,9-9")
            + head("POST /1.txt", "Content-Length: 0")
            + head("OPTIONS *")
            + head("GET /3.txt", "Connection: close")
            + head("GET /4.txt")
        )
        methods = ("GET", "POST", "GET", "POST", "HEAD", "GET", "GET", "GET", "POST", "OPTIONS", "GET")
        answers = [read_response(sock, method) for method in methods]
        assert [status for status, _, _ in answers] == [200, 405, 200, 405, 200, 404, 200, 206, 405, 204, 200]
        bodies = [body for _, _, body in answers]
        assert bodies[0] == expected[0] and bodies[6] == expected[2] and bodies[10] == expected[3]
        assert bodies[2] == bytes(range(256)) * 1000
        assert is_over(sock)  # after close, nothing is answered


def test_requests_in_small_pieces(server: Server) -> None:
    make_files(server)
    requests = (
        b"\r\n"  # an empty line before a request: RFC 9112 section 2.2
        + head("GET /0.txt")
        + head("POST /1.txt", "Transfer-Encoding: chunked")
        + b"3\r\nabc\r\n0\r\n\r\n"
        + b"\r\n"
        + head("GET /1.txt")
        + head("POST /1.txt", "Content-Length: 3")
        + b"abc\r\n"
        + head("GET /2.txt", "Connection: close")
    )
    for size in (1, 7):
        with server.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(requests[:1])
            time.sleep(0.02)  # so that the line end is surely cut
            for at in range(1, len(requests), size):
                sock.sendall(requests[at : at + size])
            statuses = [read_response(sock)[0] for _ in range(5)]
            assert statuses == [200, 405, 200, 405, 200]
            assert is_over(sock)


# Bodies that nobody reads: EWE section 3.3


def chunks(size: int) -> bytes:
    """Return a chunked body of so many bytes."""
    return b"%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n"


def test_a_small_body_to_a_file_leaves_the_connection_usable(server: Server) -> None:
    make_files(server)
    with server.connect() as sock:
        for size in (1, 1000, SKIP):
            fields = (f"Content-Length: {size}",)
            assert ask(sock, "POST /small.txt", *fields, body=b"x" * size)[0] == 405
            assert ask(sock, "GET /small.txt", *fields, body=b"x" * size)[2] == b"small\n"
            assert ask(sock, "POST /missing", *fields, body=b"x" * size)[0] == 405
        for size in (1, 1000, SKIP - 100):
            status, fields_, _ = ask(sock, "PUT /a", "Transfer-Encoding: chunked", body=chunks(size))
            assert status == 405 and "connection" not in fields_
        sock.sendall(head("POST /small.txt", "Content-Length: 4"))  # the answer comes before the body
        assert read_response(sock)[0] == 405
        sock.sendall(b"late" + head("GET /small.txt"))
        assert read_response(sock)[2] == b"small\n"


@pytest.mark.timeout(120)
def test_a_large_body_to_a_file_ends_the_connection_cleanly(server: Server) -> None:
    size = LINGER_BYTES // 2
    for fields, body in (
        (f"Content-Length: {size}", b"x" * size),
        ("Transfer-Encoding: chunked", chunks(size)),
    ):
        with server.connect() as sock:
            sock.sendall(head("POST /index.html", fields) + body)  # all of it, before it reads
            status, answered, page = read_response(sock)
            assert status == 405 and page
            if fields.startswith("Content"):
                assert answered["connection"] == "close"
            assert is_over(sock)
    with server.connect() as sock:  # far too much: the client is stopped, but hears why
        sock.sendall(head("POST /index.html", "Content-Length: 1000000000"))
        with contextlib.suppress(ConnectionError):
            for _ in range(300):
                sock.sendall(b"x" * 65536)
        assert read_response(sock)[0] == 405


def test_a_body_with_bad_framing_is_not_taken_for_a_request(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(head("POST /index.html", "Transfer-Encoding: chunked") + b"xyz\r\n" + head("GET /"))
        assert read_response(sock)[0] == 400
        assert is_over(sock)


def test_expect_100_continue(server: Server) -> None:
    write_program(server.cgi / "echo", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\ncat\n")
    expect = ("Expect: 100-continue", "Content-Length: 5")
    with server.connect() as sock:  # nothing reads it, so nobody asks for it
        status, fields, _ = ask(sock, "POST /index.html", *expect)
        assert (status, fields["connection"]) == (405, "close")
        sock.shutdown(socket.SHUT_WR)
        assert is_over(sock)
    with server.connect() as sock:
        sock.sendall(head("POST /cgi-bin/echo", *expect))
        assert read_response(sock)[0] == 100
        sock.sendall(b"hello" + head("GET /"))
        assert read_response(sock)[::2] == (200, b"hello")
        assert b"welcome" in read_response(sock)[2]
        # A body that is there already was not waited with
        assert ask(sock, "POST /cgi-bin/echo", *expect, body=b"hello")[::2] == (200, b"hello")
        assert ask(sock, "GET /", "Expect: 100-continue")[0] == 200  # no body, nothing to wait for
    with server.connect() as sock:  # nothing reads it: closed, whether the body is there already or not
        status, fields, _ = ask(sock, "POST /index.html", *expect, body=b"hello")
        assert (status, fields["connection"]) == (405, "close")
    with server.connect() as sock:  # a 1.0 client does not know 100
        sock.sendall(head("POST /cgi-bin/echo HTTP/1.0", *expect))
        time.sleep(0.1)
        sock.sendall(b"hello")
        assert read_response(sock)[::2] == (200, b"hello")
    assert server.ask(head("GET /", "Expect: a-miracle")).startswith(b"HTTP/1.1 417 ")


# Every response


ONCE = (
    "date",
    "server",
    "content-length",
    "content-type",
    "etag",
    "last-modified",
    "connection",
    "allow",
    "vary",
)


def test_every_response(start: Start, variant: str) -> None:
    """Its fields, and that an error page says nothing but the error; the reason is in the log."""
    server = start(variant, "--log-level", "debug", "--max-body", "1k", "--no-indexes")
    make_files(server)
    small = server.root / "small.txt"
    mark = "needle<b>'\""
    path = "/needle%3Cb%3E"
    for line, fields, status, cause in (
        ("GET /small.txt", (), 200, ""),
        ("GET /large.bin", (), 200, ""),
        ("HEAD /large.bin", (), 200, ""),
        ("OPTIONS *", (), 204, ""),
        ("OPTIONS /small.txt", (), 204, ""),
        ("GET /small.txt", ("Range: bytes=0-1",), 206, ""),
        ("GET /small.txt", ("Range: bytes=0-1,3-3",), 206, ""),
        ("GET /directory?needle", (), 301, ""),
        ("GET /small.txt", ("If-None-Match: *",), 304, ""),
        ("GET /large.bin", ("If-None-Match: *",), 304, ""),
        (f"GET {path}", ("Content-Length: needle",), 400, "Content-Length is malformed"),
        ("GET /needle%00", (), 400, "encoded NUL"),
        ("GET /../../needle", (), 400, "above the root"),
        (f"GET {path}", ("Host: needle",), 400, "more than one Host"),
        ("GET needle", (), 400, "the target is malformed"),
        ("GET /directory/", (), 403, "indexes is off"),
        (f"GET {path}?{path}", (f"Referer: {mark}", f"User-Agent: {mark}"), 404, "no such file"),
        ("GET /needle%2f", (), 404, "encoded slash"),
        (f"POST {path}", (), 405, "POST to a file"),
        ("GET /small.txt", ('If-Match: "needle"',), 412, "condition"),
        (f"POST {path}", ("Content-Length: 2000",), 413, "max-body"),
        (f"GET /{'needle' * 3000}", (), 414, "max-target"),
        ("GET /small.txt", ("Range: bytes=99-",), 416, "bytes=99-"),
        (f"GET {path}", ("Expect: needle",), 417, "expectation"),
        (f"GET {path}", ("X: " + "needle" * 4000,), 431, "the limit is"),
        (f"NEEDLE {path}", (), 501, "method 'NEEDLE' to a file"),
        (f"POST {path}", ("Transfer-Encoding: needle, chunked",), 501, "transfer coding"),
        (f"GET {path} HTTP/2.0", (), 505, "not spoken"),
    ):  # fmt: skip
        before = int(time.time())
        answer = server.ask(head(line, *fields))
        top, _, body = answer.partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        assert first.startswith(f"HTTP/1.1 {status} "), (line, first)
        values = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
        names = Counter(each.partition(":")[0].lower() for each in lines)
        assert all(names[name] <= 1 for name in ONCE), names
        date = parse_date(values["date"])
        assert date is not None and before - 1 <= date <= time.time()
        assert values["server"] == "ewe"
        assert "transfer-encoding" not in names
        if status in (204, 304):
            assert "content-length" not in names and body == b""
        else:
            assert int(values["content-length"]) == len(body) or line.startswith("HEAD")
        if status >= 400:
            text = body.decode()
            assert values["content-type"] == "text/html; charset=utf-8"
            assert text.startswith("<!DOCTYPE html>") and len(text) < 2000 and str(status) in text
            whole = (top.decode("latin-1") + text).lower()
            for secret in (
                "needle",
                str(server.root).lower(),
                str(small).lower(),
                "traceback",
                "(max-",
                "python",
            ):
                assert secret not in whole, (line, secret)
            server.wait_for_log(f": {status}, ")
            assert cause in server.log(), (line, cause)
    assert "Traceback" not in server.log()


# Limits


def test_limits(start: Start, variant: str) -> None:
    options = (
        "--max-body",
        "1k",
        "--max-target",
        "100",
        "--max-field",
        "200",
        "--max-fields",
        "5",
        "--max-head",
        "500",
    )
    server = start(variant, *options)
    make_files(server)

    def status(request: bytes) -> int:
        """Send a request without an end of our side, and see the connection closed behind the answer."""
        with server.connect() as sock:
            sock.sendall(request)
            got, fields, _ = read_response(sock, request.partition(b" ")[0].decode())
            if got >= 400:
                assert fields["connection"] == "close"
                sock.shutdown(socket.SHUT_WR)
                assert is_over(sock)
            return got

    # 413 by length, before any of the body came; a length that no integer holds is 400; what fits is read off
    assert status(head("POST /small.txt", "Content-Length: 1025")) == 413
    assert status(head("POST /small.txt", "Content-Length: 1025", "Expect: 100-continue")) == 413
    assert status(head("POST /small.txt", "Content-Length: " + "9" * 30)) == 400
    assert status(head("GET /small.txt", "Content-Length: 1024") + b"x" * 1024) == 200
    # 414, also while the line goes on for ever
    assert status(head("GET /small.txt?" + "x" * 89)) == 200
    assert status(head("GET /small.txt?" + "x" * 90)) == 414
    assert status(b"GET /" + b"x" * 300) == 414
    # 431: a field, their number, all of them
    assert status(head("GET /small.txt", "X: " + "x" * 197)) == 200
    assert status(head("GET /small.txt", "X: " + "x" * 198)) == 431
    assert status(head("GET /small.txt", *["X: y"] * 4)) == 200
    assert status(head("GET /small.txt", *["X: y"] * 5)) == 431
    assert status(head("GET /small.txt", *["X: " + "x" * 150] * 3)) == 431
    assert status(b"GET / HTTP/1.1\r\nHost: ewe\r\n" + b"X: y\r\n" * 100) == 431  # and while it goes on


def test_timeouts(start: Start, variant: str) -> None:
    """A head must come in time, a connection may be idle for so long, and both ends are quiet."""
    limit = "0.5s"
    server = start(variant, "--idle", limit, "--head-timeout", limit, "--body-timeout", limit)
    page = head("GET /")

    def wait(sock: socket.socket) -> bytes:
        """Return what comes until the server closes; it must not have been at once."""
        began = time.monotonic()
        data = read_all(sock)
        assert time.monotonic() - began > 0.3
        return data

    def idle() -> None:
        with server.connect(30) as sock:
            for _ in range(2):
                sock.sendall(page)
                assert read_response(sock)[0] == 200
            assert wait(sock) == b""

    def silent() -> None:
        with server.connect(30) as sock:
            assert wait(sock) == b""

    def half(request: bytes, before: int) -> None:
        with server.connect(30) as sock:
            sock.sendall(request)
            for _ in range(before):
                assert read_response(sock)[0] == 200
            data = wait(sock)
            assert data.startswith(b"HTTP/1.1 408 ") and b"\r\nConnection: close\r\n" in data

    def body() -> None:
        with server.connect(30) as sock:
            sock.sendall(head("POST /index.html", "Content-Length: 10") + b"12345")
            assert read_response(sock)[0] == 405
            assert wait(sock) == b""

    def drip() -> None:
        """A body that nobody wants may not take for ever, a byte now and then."""
        with server.connect(30) as sock:
            sock.sendall(head("POST /index.html", "Content-Length: 100"))
            assert read_response(sock)[0] == 405
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while not select.select([sock], [], [], 0.2)[0]:
                    sock.sendall(b"x")
                    assert time.monotonic() < began + 10
                assert is_over(sock)

    # Each client at its own time, but for serial, where one waits for the other
    with ThreadPoolExecutor(6) as pool:
        clients = [
            pool.submit(idle),
            pool.submit(silent),
            pool.submit(half, page[:-2], 0),
            pool.submit(half, page + page[:10], 1),
            pool.submit(body),
            pool.submit(drip),
        ]
        for client in clients:
            client.result(30)
    server.wait_for_log("408, the head did not come in 0.5 s (head-timeout)")


# Many clients


def test_clients_do_not_get_each_others_answers(server: Server) -> None:
    """Several at once, each with heads that others send too, on kept connections."""
    make_files(server)
    wrong: list[object] = []
    serial = "serial" in server.log().partition("\n")[0]

    def client(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=30) as own:
            for turn in range(15):
                name = f"/{(number + turn) % 10}.txt"
                value = f"bytes={turn % 5}-{turn % 5 + 3}"
                content = f"this is {name[1]}\n".encode()
                whole = own.get(name)
                part = own.get(name, headers={"Range": value})
                same = own.get(name, headers={"If-None-Match": whole.headers["etag"]})
                if (whole.content, part.content, same.status_code) != (
                    content,
                    content[turn % 5 : turn % 5 + 4],
                    304,
                ):
                    wrong.append((number, turn, whole, part, same))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(1 if serial else 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
