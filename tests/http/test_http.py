"""The HTTP conversation over real sockets, the same under every model: RFC 9110 and RFC 9112."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from support import web
from support.server import Server, Start, wait_until, write_program, write_waiting_program
from support.wire import chunked, read_all, read_response, request_of

from ewe.body import MAX_SKIPPED_BYTES
from ewe.streams.base import LINGER_BYTES


def ask(sock: socket.socket, line: str, *fields: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send one request on a connection and return the response."""
    sock.sendall(request_of(line, *fields, body=body))
    return read_response(sock, line.partition(" ")[0])


def is_over(sock: socket.socket) -> bool:
    """Has the server closed the connection, without another byte and without a reset?"""
    return sock.recv(100) == b""


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A server of each variant that serves the files below, for all tests of this file that leave it as it is."""
    make_files(shared_server)
    return shared_server


def make_files(server: Server) -> None:
    """Put into the root what these tests ask for."""
    if (server.root / "directory").exists():
        return
    (server.root / "small.txt").write_bytes(b"small\n")
    (server.root / "empty.txt").write_bytes(b"")
    (server.root / "large.bin").write_bytes(bytes(range(256)) * 1000)
    (server.root / "directory").mkdir()
    for number in range(10):
        (server.root / f"{number}.txt").write_text(f"this is {number}\n")


# Persistence: RFC 9112 section 9.3


def test_persistence(server: Server) -> None:
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
    answer = server.ask(request_of("GET /0.txt") + request_of("GET /large.bin") + request_of("GET /1.txt"))
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
        sock.sendall(b"".join(request_of(f"GET /{number}.txt") for number in range(10)))
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
    get = request_of("GET /small.txt", "X: " + "x" * 200)
    post = request_of("POST /cgi-bin/echo", "Content-Length: 6") + b"small\n"
    for last in (get, get, post):
        with server.connect() as sock:
            sock.sendall(get * 2 + last + get * 1500)
            for _ in range(3):
                assert read_response(sock)[2] == b"small\n"
            assert is_over(sock)


def test_a_request_during_the_last_answer_does_not_destroy_it(start: Start, variant: str) -> None:
    """As above, but the server closes before it has received the request."""
    server = start(variant, "--requests", "1")
    begun, go = write_waiting_program(server.cgi / "slow", 1_000_000)
    with server.connect() as sock:
        sock.sendall(request_of("GET /cgi-bin/slow"))
        wait_until(begun.exists, 30)
        sock.sendall(request_of("GET /small.txt"))
        go.touch()
        time.sleep(0.5)  # time for a server that would close at once
        assert len(read_response(sock)[2]) == 1_000_000
        assert is_over(sock)


# Pipelining: RFC 9112 section 9.3.2


def test_pipelining(server: Server) -> None:
    ten = b"".join(request_of(f"GET /{number}.txt") for number in range(10))
    expected = [f"this is {number}\n".encode() for number in range(10)]
    with server.connect() as sock:
        for _ in range(2):
            sock.sendall(ten)
            assert [read_response(sock)[2] for _ in range(10)] == expected
        # Large and small, errors, bodies by length and chunked in between, and one packet
        sock.sendall(
            request_of("GET /0.txt")
            + request_of("POST /1.txt", "Content-Length: 5")
            + b"GET /"
            + request_of("GET /large.bin")
            + request_of("POST /1.txt", "Transfer-Encoding: chunked")
            + b"5;x=y\r\nGET /\r\n003\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
            + request_of("HEAD /large.bin")
            + request_of("GET /missing")
            + request_of("GET /2.txt", "Content-Length: 3")
            + b"xyz"
            + request_of("GET /large.bin", "Range: bytes=0-4,9-9")
            + request_of("POST /1.txt", "Content-Length: 0")
            + request_of("OPTIONS *")
            + request_of("GET /3.txt", "Connection: close")
            + request_of("GET /4.txt")
        )
        methods = ("GET", "POST", "GET", "POST", "HEAD", "GET", "GET", "GET", "POST", "OPTIONS", "GET")
        answers = [read_response(sock, method) for method in methods]
        assert [status for status, _, _ in answers] == [200, 405, 200, 405, 200, 404, 200, 206, 405, 204, 200]
        bodies = [body for _, _, body in answers]
        assert bodies[0] == expected[0] and bodies[6] == expected[2] and bodies[10] == expected[3]
        assert bodies[2] == bytes(range(256)) * 1000
        assert is_over(sock)  # after close, nothing is answered


def test_requests_in_small_pieces(server: Server) -> None:
    requests = (
        b"\r\n"  # an empty line before a request: RFC 9112 section 2.2
        + request_of("GET /0.txt")
        + request_of("POST /1.txt", "Transfer-Encoding: chunked")
        + b"3\r\nabc\r\n0\r\n\r\n"
        + b"\r\n"
        + request_of("GET /1.txt")
        + request_of("POST /1.txt", "Content-Length: 3")
        + b"abc\r\n"
        + request_of("GET /2.txt", "Connection: close")
    )
    for size in (1, 7):
        with server.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(requests[:1])
            time.sleep(0.02)  # so that the line end is mostly cut; test_cuts.py cuts it in memory, each time
            for at in range(1, len(requests), size):
                sock.sendall(requests[at : at + size])
            statuses = [read_response(sock)[0] for _ in range(5)]
            assert statuses == [200, 405, 200, 405, 200]
            assert is_over(sock)


# Bodies that nobody reads: EWE section 3.3


def test_a_small_body_to_a_file_leaves_the_connection_usable(server: Server) -> None:
    with server.connect() as sock:
        for size in (1, 1000, MAX_SKIPPED_BYTES):
            fields = (f"Content-Length: {size}",)
            assert ask(sock, "POST /small.txt", *fields, body=b"x" * size)[0] == 405
            assert ask(sock, "GET /small.txt", *fields, body=b"x" * size)[2] == b"small\n"
            assert ask(sock, "POST /missing", *fields, body=b"x" * size)[0] == 405
        for size in (1, 1000, MAX_SKIPPED_BYTES - 100):
            status, fields_, _ = ask(sock, "PUT /a", "Transfer-Encoding: chunked", body=chunked(b"x" * size))
            assert status == 405 and "connection" not in fields_
        sock.sendall(request_of("POST /small.txt", "Content-Length: 4"))  # the answer comes before the body
        assert read_response(sock)[0] == 405
        sock.sendall(b"late" + request_of("GET /small.txt"))
        assert read_response(sock)[2] == b"small\n"


@pytest.mark.timeout(120)
def test_a_large_body_to_a_file_ends_the_connection_cleanly(server: Server) -> None:
    size = LINGER_BYTES // 2
    for fields, body in (
        (f"Content-Length: {size}", b"x" * size),
        ("Transfer-Encoding: chunked", chunked(b"x" * size)),
    ):
        with server.connect() as sock:
            sock.sendall(request_of("POST /index.html", fields) + body)  # all of it, before it reads
            status, answered, page = read_response(sock)
            assert status == 405 and page
            if fields.startswith("Content"):
                assert answered["connection"] == "close"
            assert is_over(sock)
    with server.connect() as sock:  # far too much: the client is stopped, but hears why
        sock.sendall(request_of("POST /index.html", "Content-Length: 1000000000"))
        with contextlib.suppress(ConnectionError):
            for _ in range(300):
                sock.sendall(b"x" * 65536)
        assert read_response(sock)[0] == 405


def test_a_body_with_bad_framing_is_not_taken_for_a_request(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(
            request_of("POST /index.html", "Transfer-Encoding: chunked") + b"xyz\r\n" + request_of("GET /")
        )
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
        sock.sendall(request_of("POST /cgi-bin/echo", *expect))
        assert read_response(sock)[0] == 100
        sock.sendall(b"hello" + request_of("GET /"))
        assert read_response(sock)[::2] == (200, b"hello")
        assert b"welcome" in read_response(sock)[2]
        # A body that is there already was not waited with
        assert ask(sock, "POST /cgi-bin/echo", *expect, body=b"hello")[::2] == (200, b"hello")
        assert ask(sock, "GET /", "Expect: 100-continue")[0] == 200  # no body, nothing to wait for
    with server.connect() as sock:  # nothing reads it: closed, whether the body is there already or not
        status, fields, _ = ask(sock, "POST /index.html", *expect, body=b"hello")
        assert (status, fields["connection"]) == (405, "close")
    with server.connect() as sock:  # a 1.0 client does not know 100
        sock.sendall(request_of("POST /cgi-bin/echo HTTP/1.0", *expect))
        time.sleep(0.1)
        sock.sendall(b"hello")
        assert read_response(sock)[::2] == (200, b"hello")
    assert server.ask(request_of("GET /", "Expect: a-miracle")).startswith(b"HTTP/1.1 417 ")


# Timeouts


PAGE = request_of("GET /")
POST = request_of("POST /index.html", "Content-Length: 100")


def closes(sock: socket.socket, began: float) -> None:
    """The server closes the connection, but not at once, and without another byte."""
    assert read_all(sock) == b""
    assert time.monotonic() - began > 0.4


def answers_and_closes(*statuses: int, at_once: bool = False) -> Callable[[socket.socket, float], None]:
    """The server sends these responses, the one to a head that has no end among them, then closes."""

    def check(sock: socket.socket, began: float) -> None:
        for expected in statuses:
            status, fields, _ = read_response(sock)
            assert status == expected
            assert status != 408 or fields["connection"] == "close"
        closes(sock, time.monotonic() - 1 if at_once else began)

    return check


def drips(sock: socket.socket, began: float) -> None:
    """A body that no feature reads may not take forever, with a byte now and then."""
    assert read_response(sock)[0] == 405
    with contextlib.suppress(ConnectionError):
        while not select.select([sock], [], [], 0.2)[0]:
            sock.sendall(b"x")
            assert time.monotonic() < began + 40
        assert is_over(sock)


SLOW_CLIENTS = {  # what each sends, and what it then sees
    "idle": (PAGE * 2, answers_and_closes(200, 200)),
    "silent": (b"", closes),
    "half a head": (PAGE[:-2], answers_and_closes(408)),
    "half a second head": (PAGE + PAGE[:10], answers_and_closes(200, 408)),
    "half a body": (POST + b"12345", answers_and_closes(405)),
    "a body that drips": (POST, drips),
}


def test_timeouts(start: Start, variant: str) -> None:
    """A head must come in time, a connection may be idle for so long, and both ends are quiet.

    The server is held up while the clients send, so that none of them can be late.
    """
    limit = "0.5s"
    clients_of = dict(SLOW_CLIENTS)
    if variant.split()[0] in ("serial", "prefork"):  # the others wait for the worker of the idle connection
        clients_of["idle"] = (PAGE * 2, answers_and_closes(200, 200, at_once=True))
    server = start(variant, "--idle", limit, "--head-timeout", limit, "--body-timeout", limit)
    with ExitStack() as ends:
        with server.held_up():
            socks = {name: ends.enter_context(server.connect(40)) for name in SLOW_CLIENTS}
            for name, (sent, _) in clients_of.items():
                socks[name].sendall(sent)
            began = time.monotonic()
        with ThreadPoolExecutor(len(socks)) as pool:  # the serial model serves one after the other
            clients = {
                name: pool.submit(check, socks[name], began) for name, (_, check) in clients_of.items()
            }
            failures = {name: client.exception(50) for name, client in clients.items()}
    assert failures == dict.fromkeys(SLOW_CLIENTS)
    server.wait_for_log("408, the head did not come in 0.5 s (head-timeout)")


# Many clients


def test_clients_do_not_get_each_others_answers(server: Server) -> None:
    """Several at once, each with heads that others send too, on kept connections."""
    wrong: list[object] = []
    serial = "serial" in server.log().partition("\n")[0]

    def client(number: int) -> None:
        with web.Client(base_url=server.url, timeout=30) as own:
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
