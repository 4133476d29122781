"""A feature may fail in any way: the client gets a 500, or sees that the response was cut, under every model.

tests/support/faulty_features.py has the faults. Each of them is asked for over a connection of its own, and the
next request of the connection must be answered, too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.faulty_features import EXCEPTIONS, FAULTS
from support.memory import Answer, answers
from support.server import Server, Start
from support.wire import request_of

NEXT = request_of("GET /index.html", "Connection: close")
SENT = [name for name in FAULTS if name.startswith("sent_")]
RIGHT = [name for name in FAULTS if name.startswith("right_")]
OTHERS = ("sent_", "right_", "once_", "bodiless_", "cached_", "head_")
BEFORE = [name for name in FAULTS if not name.startswith(OTHERS)]


def start_faulty(start: Start, directory: Path, model: str, *options: str) -> Server:
    """Start a server with the faulty feature at /faulty."""
    shutil.copy(Path(__file__).parents[1] / "support" / "faulty_features.py", directory)
    return start(model, "--mount", "/faulty=faulty_features:Faulty", *options)


@pytest.fixture
def faulty(start: Start, tmp_path: Path, variant: str) -> Server:
    """A server of each variant in turn."""
    return start_faulty(start, tmp_path, variant)


@pytest.fixture
def answering(start: Start, tmp_path: Path, way_to_wait: str) -> Server:
    """A server for each way to wait, for answers that do not depend on more."""
    return start_faulty(start, tmp_path, way_to_wait)


def received(server: Server, *requests: bytes) -> bytes:
    """Send requests on a new connection, without ending our side; return all bytes up to the end of the other."""
    data = b""
    with server.connect() as sock:
        sock.sendall(b"".join(requests))
        try:
            while piece := sock.recv(65536):
                data += piece
        except ConnectionResetError:
            pass  # a cut may be a reset
    return data


def asked(server: Server, name: str, *, method: str = "GET", count: int = 1) -> list[Answer]:
    """Ask for a fault, and for a page on the same connection; return the responses."""
    requests = [request_of(f"{method} /faulty/{name}")] * count
    return answers(received(server, *requests, NEXT), *[method] * count)


def test_a_fault_before_the_first_byte_is_a_500(faulty: Server) -> None:
    """Nothing that a feature raises or returns may look like a client that has left."""
    processes = faulty.processes()
    found = {name: [answer.status for answer in asked(faulty, name)] for name in BEFORE}
    assert found == {name: [500, 200] for name in BEFORE}
    assert set(processes) <= set(faulty.processes())
    log = faulty.log()
    unnoticed = [name for name in BEFORE if f"'GET /faulty/{name} HTTP/1.1' from 127.0.0.1 failed" not in log]
    assert not unnoticed
    assert log.count("| Traceback") >= len(BEFORE)
    assert 'HTTP/1.1" 499 ' not in faulty.access_file.read_text()


def is_cut(data: bytes) -> bool:
    """Return whether the bytes of a connection are a part of one response."""
    try:
        answers(data)
    except ValueError:
        return data.count(b"HTTP/1.1 ") == 1
    return False


def test_a_fault_after_the_first_byte_cuts_the_response(faulty: Server) -> None:
    processes = faulty.processes()
    found = {name: is_cut(received(faulty, request_of(f"GET /faulty/{name}"), NEXT)) for name in SENT}
    assert found == dict.fromkeys(SENT, True)
    log = faulty.log()
    told = [name for name in EXCEPTIONS if f"'GET /faulty/sent_{name} HTTP/1.1' from 127.0.0.1 failed" in log]
    assert told == [*EXCEPTIONS]
    assert "aborted after 3 bytes: a fault" in log and "reads too slowly" not in log
    assert set(processes) <= set(faulty.processes())


def test_what_looks_like_a_fault_has_a_right_answer(faulty: Server) -> None:
    complete = [name for name in RIGHT if name != "right_too_much"]
    found = {name: [(a.status, a.body[:7]) for a in asked(faulty, name)] for name in complete}
    assert found == {name: [(200, b"ok"), (200, b"<!DOCTY")] for name in complete}
    [cut] = asked(faulty, "right_too_much")  # the connection closes, since the end of the surplus is unknown
    assert (cut.status, cut.body, cut.fields["content-length"]) == (200, b"ok", "2")
    data = received(faulty, request_of("GET /faulty/right_fields_of_server"), NEXT)
    assert (data.count(b"Server: "), data.count(b"Date: "), data.count(b"Connection: ")) == (2, 2, 1)
    assert b"mine" not in data and b"chunked" not in data and b"timeout=5" not in data


@pytest.mark.parametrize("name", ["once_parts", "once_source"])
def test_a_response_that_was_sent_is_not_sent_again(answering: Server, name: str) -> None:
    """Its Content-Length would promise bytes that do not come: the client would take those of the next response."""
    first, second, third = asked(answering, name, count=2)
    assert (first.status, first.body, second.status, third.status) == (200, b"ok", 500, 200)
    assert "was sent before" in answering.log()


def test_a_response_without_content_has_none(answering: Server) -> None:
    found = {name: asked(answering, name) for name in FAULTS if name.startswith("bodiless_")}
    assert {name: [a.status for a in each] for name, each in found.items()} == {
        "bodiless_204": [204, 200],
        "bodiless_204_source": [204, 200],
        "bodiless_304": [304, 200],
    }
    assert "content-length" not in found["bodiless_204"][0].fields


def test_the_answer_to_head_may_have_the_length_of_get(answering: Server) -> None:
    """RFC 9110 section 8.6. The same response to GET would promise bytes that do not come."""
    head, _ = asked(answering, "head_of_get", method="HEAD")
    assert (head.status, head.fields["content-length"]) == (200, "1234")
    assert [answer.status for answer in asked(answering, "head_of_get")] == [500, 200]


@pytest.mark.parametrize(("name", "body"), [("right_body_twice", b"abcok"), ("right_kept", b"ok")])
def test_a_body_that_is_read_twice_or_not_at_all(answering: Server, name: str, body: bytes) -> None:
    posted = request_of(f"POST /faulty/{name}", "Content-Length: 3", body=b"abc")
    first, second = answers(received(answering, posted, NEXT))
    assert (first.status, first.body, second.status) == (200, body, 200)


@pytest.mark.parametrize("name", ["cached_none", "cached_less"])
def test_a_response_that_was_cut_is_not_kept(start: Start, tmp_path: Path, name: str) -> None:
    server = start_faulty(start, tmp_path, "thread", "--content-cache", "1m")
    for _ in range(2):
        assert is_cut(received(server, request_of(f"GET /faulty/{name}"), NEXT))
