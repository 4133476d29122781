"""The conversation over a stream in memory: the sent bytes, their order, and the end of the connection.

No socket, no model: test_http.py shows the same over the real ones.
"""

from __future__ import annotations

import copy
import os
import re
import time
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.memory import Answer, Echo, MemoryStream, answers, every_cut, talk

import ewe.response_writer
from ewe import logger
from ewe.body import CONTINUE, MAX_SKIPPED_BYTES, Body
from ewe.config.settings import Config
from ewe.conversation import BUSY, MAX_CACHED_HEAD_CHARS, MAX_HEADS, converse, converse_behind_proxy
from ewe.http.limits import RequestLimits
from ewe.http.messages import Region, Request, Response, Source
from ewe.http.status import HTTPError
from ewe.response_writer import SLICE_BYTES, date_line, send_response
from ewe.streams.base import RECEIVE_BYTES, Disconnected, ForeignAwait, Stream, Timeout
from ewe.streams.blocking import run

quick = settings(max_examples=examples(150), deadline=None)


def get(
    target: str = "/", *fields: str, version: str = "1.1", method: str = "GET", body: bytes = b""
) -> bytes:
    """Return a request."""
    return "\r\n".join((f"{method} {target} HTTP/{version}", "Host: ewe", *fields, "", "")).encode() + body


def post(body: bytes, *fields: str, version: str = "1.1") -> bytes:
    """Return a POST with this body and its length."""
    return get("/", f"Content-Length: {len(body)}", *fields, version=version, method="POST", body=body)


class Fixed(Echo):
    """A site that reads nothing, and gives what it was made with: a response, or an exception to raise."""

    def __init__(self, *given: Response | Exception, **settings: object) -> None:
        super().__init__(None, **settings)
        self.given = list(given)

    async def respond(self, request: Request, io: Stream) -> Response:
        self.seen.append(request)
        response = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(response, Exception):
            raise response
        return response


class Pieces(Source):
    """A body that comes in pieces; one that is an exception is raised. closed: how often."""

    def __init__(self, *pieces: bytes | Exception, length: int | None = None, raw: bool = False) -> None:
        self.pieces = list(pieces)
        self.length = length
        self.raw = raw
        self.closed = 0

    async def receive(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def close(self) -> None:
        self.closed += 1


OK = Response(200, (), b"ok")


def test_a_response_that_cannot_be_encoded_becomes_a_500() -> None:
    source = Pieces(b"never sent")
    for body in (b"ok", source):
        stream = talk(Fixed(Response(200, (("X", "a\r\nY: b"),), body), OK), get() + get())
        assert [answer.status for answer in answers(stream.output())] == [500, 200]
    assert source.closed == 1


def only(stream: MemoryStream, method: str = "GET") -> Answer:
    """Return the only response."""
    (answer,) = answers(stream.output(), method)
    return answer


# --- Pipelining: RFC 9112 section 9.3.2 ---------------------------------------------------------------------


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return some requests in a row, and the method and body of each."""
    message = b""
    expected = []
    for number in range(draw(st.integers(1, 5))):
        body = draw(st.binary(max_size=30))
        method = draw(st.sampled_from(["GET", "POST", "HEAD", "PUT"]))
        empty_line = b"\r\n" if draw(st.booleans()) else b""
        kind = draw(st.sampled_from(["none", "length", "chunked"]))
        if kind == "none":
            body = b""
            framed = get(f"/{number}", method=method)
        elif kind == "length":
            framed = get(f"/{number}", f"Content-Length: {len(body)}", method=method, body=body)
        else:
            size = draw(st.integers(1, 10))
            chunks = [body[i : i + size] for i in range(0, len(body), size)]
            coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
            framed = get(f"/{number}", "Transfer-Encoding: chunked", method=method, body=coded)
        message += empty_line + framed
        expected.append((method, body))
    return message, expected


@settings(max_examples=examples(300), deadline=None)
@given(pipelines(), st.data())
def test_pipelines_are_answered_in_order(
    drawn: tuple[bytes, list[tuple[str, bytes]]], data: st.DataObject
) -> None:
    message, expected = drawn
    cuts = sorted(data.draw(st.sets(st.integers(1, len(message) - 1), max_size=5)))
    pieces = [message[i:j] for i, j in zip([0, *cuts], [*cuts, len(message)], strict=True)]
    site = Echo()
    stream = talk(site, *pieces)
    assert [(request.method, request.path) for request in site.seen] == [
        (method, f"/{number}") for number, (method, _) in enumerate(expected)
    ]
    assert site.bodies == [body for _, body in expected]
    found = answers(stream.output(), *(method for method, _ in expected))
    assert [answer.body for answer in found] == [
        b"" if method == "HEAD" else body for method, body in expected
    ]
    assert stream.requests == len(expected)


def test_a_pipeline_ends_at_a_bad_request() -> None:
    for pieces in every_cut(get("/1") + b"BAD\r\n\r\n" + get("/2")):
        site = Echo()
        stream = talk(site, *pieces)
        assert [answer.status for answer in answers(stream.output())] == [200, 400]
        assert len(site.seen) == 1 and stream.lingered


def test_a_pipeline_ends_at_close() -> None:
    """RFC 9112 section 9.6: later bytes are read but not answered, so that the answer arrives."""
    site = Echo()
    stream = talk(site, get("/1", "Connection: close") + get("/2"))
    assert len(site.seen) == 1 and stream.lingered
    assert only(stream).fields["connection"] == "close"


def test_empty_lines_between_requests() -> None:
    """RFC 9112 section 2.2: old clients send a CRLF behind a body."""
    for pieces in every_cut(post(b"a") + b"\r\n" + get("/2")):
        assert [answer.body for answer in answers(talk(Echo(), *pieces).output())] == [b"a", b""]
    stream = talk(Echo(), get(), b"\r\n")
    assert only(stream).status == 200  # and the end behind it is no broken request


# --- 100 Continue: RFC 9110 section 10.1.1 ------------------------------------------------------------------

EXPECT = "Expect: 100-continue"


def test_100_when_something_reads() -> None:
    head, body = post(b"hello", EXPECT)[:-5], b"hello"
    stream = talk(Echo(), head, body)
    assert stream.output().startswith(CONTINUE)
    assert [(answer.status, answer.body) for answer in answers(stream.output())] == [
        (100, b""),
        (200, b"hello"),
    ]
    assert stream.sent[0] == (CONTINUE,)
    assert stream.did.index("send") < stream.did.index("receive")  # asked for before it is waited for


def test_100_once() -> None:
    stream = talk(Echo(), post(b"hello", EXPECT)[:-5], b"he", b"l", b"lo")
    assert stream.output().count(CONTINUE) == 1
    assert answers(stream.output())[-1].body == b"hello"


def test_100_for_a_chunked_body() -> None:
    head = get("/", "Transfer-Encoding: chunked", EXPECT, method="POST")
    stream = talk(Echo(), head, b"1\r\na\r\n0\r\n\r\n", get())
    assert [answer.status for answer in answers(stream.output())] == [100, 200, 200]


def test_no_100_when_nothing_reads() -> None:
    """The final answer tells the client not to send; as nobody knows whether it does, the connection ends."""
    stream = talk(Fixed(OK), post(b"hello", EXPECT)[:-5], get("/2"))
    answer = only(stream)
    assert (answer.status, answer.fields["connection"]) == (200, "close")
    assert stream.lingered


@pytest.mark.parametrize(
    "message",
    [
        post(b"hello", EXPECT),  # the body is there: the server may omit it
        post(b"", EXPECT),
        get("/", EXPECT),
        post(b"hello", EXPECT, version="1.0"),  # a 1.0 client does not know it
        post(b"hello"),
    ],
)
def test_no_100(message: bytes) -> None:
    assert only(talk(Echo(), message)).status == 200


def test_no_100_for_a_refused_request() -> None:
    for fields in (
        ("Content-Length: 9",),
        ("Content-Length: 5", "Content-Length: 5"),
        ("Content-Length: 9999",),
    ):
        stream = talk(Echo(RequestLimits(max_body=5)), get("/", EXPECT, *fields, method="POST"))
        assert only(stream).status in (400, 413)


# --- Bodies that nothing read -------------------------------------------------------------------------------


def chunked(body: bytes, size: int = 1000) -> bytes:
    """Return a body in chunks."""
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 1000, MAX_SKIPPED_BYTES])
def test_a_small_body_is_read_off(size: int) -> None:
    body = bytes(size)
    for message in (post(body), get("/", "Transfer-Encoding: chunked", method="POST", body=chunked(body))):
        for cut in (len(message), 50, len(message) - 1):
            site = Fixed(OK)
            stream = talk(site, message[:cut], message[cut:] + get("/2"))
            assert [answer.status for answer in answers(stream.output())] == [200, 200]
            assert [request.path for request in site.seen] == ["/", "/2"]


def test_a_large_body_is_not_read_off() -> None:
    body = bytes(MAX_SKIPPED_BYTES + 1)
    head = post(body)[: -len(body)]
    stream = talk(Fixed(OK), head, body, get("/2"))
    assert only(stream).fields["connection"] == "close"  # said at once
    assert stream.lingered and len(stream.pieces) == 2  # and nothing of it was read
    message = get(
        "/", "Transfer-Encoding: chunked", method="POST", body=chunked(bytes(2 * MAX_SKIPPED_BYTES))
    )
    stream = talk(Fixed(OK), *(message[i : i + 1000] for i in range(0, len(message), 1000)), get("/2"))
    assert only(stream).status == 200
    assert stream.lingered and len(stream.pieces) > 50  # a part of it was read, then no more


@pytest.mark.parametrize("arrived", [0, 1000, MAX_SKIPPED_BYTES + 1000])
def test_what_has_arrived_of_a_large_body_does_not_count(arrived: int) -> None:
    message = post(bytes(MAX_SKIPPED_BYTES + 1000))
    head = len(message) - MAX_SKIPPED_BYTES - 1000
    answer = only(talk(Fixed(OK), message[: head + arrived], message[head + arrived :] + get("/2")))
    assert (answer.status, answer.fields["connection"]) == (200, "close")


@pytest.mark.parametrize(("rest", "status"), [(b"zz\r\n", 400), (b"", 400), (Timeout(), 408)])
def test_a_bad_rest_of_a_body_ends_the_connection(rest: bytes | Exception, status: int) -> None:
    head = get("/", "Transfer-Encoding: chunked", method="POST")
    stream = talk(Fixed(OK), head, rest, get("/2"))
    assert only(stream).status == status  # refused before it is answered, though nothing wants the body
    assert stream.lingered


@pytest.mark.parametrize("rest", [b"", Timeout()])
def test_a_body_that_does_not_come_ends_the_connection(rest: bytes | Exception) -> None:
    stream = talk(Fixed(OK), post(b"hello")[:-3], rest, get("/2"))
    assert only(stream).status == 200
    assert stream.lingered


@pytest.mark.parametrize(
    "size", [MAX_SKIPPED_BYTES - 1, MAX_SKIPPED_BYTES, MAX_SKIPPED_BYTES + 1, 3 * MAX_SKIPPED_BYTES]
)
def test_a_large_chunked_body_that_is_read(size: int) -> None:
    body = os.urandom(size)
    message = get("/", "Transfer-Encoding: chunked", method="POST", body=chunked(body)) + get("/2")
    pieces = [message[i : i + 9999] for i in range(0, len(message), 9999)]
    site = Echo()
    found = answers(talk(site, *pieces).output())
    assert site.bodies == [body, b""] and [answer.status for answer in found] == [200, 200]


def test_a_body_that_is_read_in_part() -> None:
    class Reader(Echo):
        async def respond(self, request: Request, io: Stream) -> Response:
            self.seen.append(request)
            return Response(200, (), await request.body.receive())

    stream = talk(Reader(), post(b"hello world")[:-6], b" world" + get("/2"))
    assert [answer.body for answer in answers(stream.output())] == [b"hello", b""]


@pytest.mark.parametrize(
    ("pieces", "status", "reason"),
    [
        ((post(b"hello")[:-3], b""), 400, "ended within a body"),
        ((post(b"hello")[:-3], Timeout()), 408, "body-timeout"),
        ((get("/", "Transfer-Encoding: chunked", body=b"5\r\nhelloX"), b"\n"), 400, "CRLF"),
        ((get("/", "Transfer-Encoding: chunked", body=b"ffffff\r\n"),), 413, "max-body"),
    ],
)
def test_a_bad_body_that_is_read(
    pieces: tuple[bytes | Exception, ...], status: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(logger.errors, "info", reasons.append)
    stream = talk(Echo(RequestLimits(max_body=1000)), *pieces, get("/2"))
    answer = only(stream)
    assert (answer.status, answer.fields["connection"]) == (status, "close")
    assert reason in reasons[0] and reason.encode() not in answer.body
    assert stream.lingered


# --- Heads that are remembered ------------------------------------------------------------------------------


def remember(site: Echo, *pieces: bytes) -> MemoryStream:
    """Talk without forgetting first."""
    stream = MemoryStream(pieces)
    run(converse(stream, site))  # type: ignore[arg-type]
    return stream


def test_the_memo_is_bounded() -> None:
    site = Echo()
    for number in range(3 * MAX_HEADS):
        remember(site, get(f"/{number}"))
        assert len(site.heads) <= MAX_HEADS
    assert len(site.heads) > 0
    site.heads.clear()
    long = get("/", "A: " + "b" * MAX_CACHED_HEAD_CHARS)
    for message in (
        post(b"a"),
        get("/", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        long,
        b"BAD\r\n\r\n",
    ):
        remember(site, message)
        assert not site.heads


def test_the_memo_remembers() -> None:
    site = Echo()
    for pieces in ([get()], [get()], [get()[:9], get()[9:]], [get() + get()]):
        remember(site, *pieces)
    assert len(set(map(id, site.seen))) == 1 and len(site.seen) == 5


REQUESTS = st.builds(
    get,
    st.sampled_from(["/", "/a", "/b?c", "/%61"]),
    st.sampled_from(
        ["A: b", "A: c", "Connection: close", "Range: bytes=0-", "Content-Length: 0", "Cookie: a"]
    ),
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    version=st.sampled_from(["1.0", "1.1"]),
) | st.builds(post, st.binary(max_size=3), st.sampled_from(["A: b", "Expect: 100-continue"]))
BAD = st.sampled_from([b"GET / HTTP/1.1\r\n\r\n", b"BREW / HTTP/1.1\r\nHost: ewe\r\n\r\n", b"GET /\n"])


class Teller(Echo):
    """A site that answers with all it knows of a request."""

    async def respond(self, request: Request, io: Stream) -> Response:
        body = b""
        while piece := await request.body.receive():
            body += piece
        known = {name: getattr(request, name) for name in Request.__slots__ if name not in ("body", "noted")}
        return Response(200, (), repr((sorted(known.items()), body)).encode())


@quick
@given(st.lists(st.lists(REQUESTS | BAD, min_size=1, max_size=4), min_size=2, max_size=6))
def test_the_memo_never_changes_an_answer(connections: list[list[bytes]]) -> None:
    """The same conversations with the memo, and with it cleared each time: the same bytes."""
    site = Teller()
    with_memo = [remember(site, *pieces).output() for pieces in connections]
    without = [talk(site, *pieces).output() for pieces in connections]
    dates = re.compile(rb"Date: [^\r]*\r\n")
    assert [dates.sub(b"", output) for output in with_memo] == [dates.sub(b"", output) for output in without]


# --- How the connection goes on: RFC 9112 sections 9.3 and 9.6 ----------------------------------------------


@pytest.mark.parametrize(
    ("message", "settings", "connection"),
    [
        (get(), {}, None),
        (get("/", "Connection: keep-alive"), {}, None),
        (get("/", "Connection: close"), {}, "close"),
        (get(version="1.0"), {}, "close"),
        (get("/", "Connection: keep-alive", version="1.0"), {}, "keep-alive"),
        (get("/", "Connection: close", version="1.0"), {}, "close"),
        (get(version="1.7"), {}, None),
        (get(), {"requests": 1}, "close"),
        (get(), {"requests": 2}, None),
        (get(), {"requests": 0}, None),
        (get("/", "Connection: keep-alive", version="1.0"), {"requests": 1}, "close"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("kind", ["bytes", "source", "region", "nothing"])
def test_how_a_head_ends(
    message: bytes, settings: dict[str, object], connection: str | None, method: str, kind: str
) -> None:
    body: object = {
        "bytes": b"ok",
        "source": Pieces(b"ok", length=2),
        "region": (b"o", b"k"),
        "nothing": b"",
    }[kind]
    site = Fixed(Response(200, (), body), **settings)  # type: ignore[arg-type]
    stream = talk(site, message.replace(b"GET", method.encode()))
    answer = only(stream, method)
    assert answer.fields.get("connection") == connection
    assert answer.fields["content-length"] == ("0" if kind == "nothing" else "2")
    assert answer.body == (b"ok" if method == "GET" and kind != "nothing" else b"")
    assert stream.did[-1].startswith("next_request") is (connection != "close")
    assert {"date", "server"} <= answer.fields.keys()


def test_persistence_turned_off() -> None:
    site = Fixed(OK)
    site.persistent = False
    assert only(talk(site, get())).fields["connection"] == "close"


def test_the_last_exchange_of_a_server_that_stops() -> None:
    class Stopping(Echo):
        async def respond(self, request: Request, io: Stream) -> Response:
            io.stopping = True
            return OK

    stream = talk(Stopping(), get(), get())
    assert only(stream).fields["connection"] == "close"


def test_the_requests_of_a_connection_are_counted() -> None:
    stream = talk(Fixed(OK, requests=3), get() * 5)
    found = answers(stream.output())
    assert [answer.fields.get("connection") for answer in found] == [None, None, "close"]
    assert stream.requests == 3


def test_waits() -> None:
    """The first wait is for a head, later ones may be idle; a head that is begun has its own deadline."""
    stream = talk(
        Echo(head_timeout=3, body_timeout=7), get(), get()[:5], get()[5:], post(b"ab")[:-2], b"a", b"b"
    )
    assert [what for what in stream.did if what.startswith(("next", "set_deadline"))] == [
        "next_request 3", "next_request 75", "set_deadline 3", "next_request 75", "set_deadline 7",
        "set_deadline 7", "next_request 75",
    ]  # fmt: skip


@pytest.mark.parametrize("pieces", [(), (b"",), (Timeout(),), (Disconnected(),), (b"\r\n", b"")])
def test_a_client_that_says_nothing_hears_nothing(pieces: tuple[bytes | Exception, ...]) -> None:
    assert talk(Echo(), *pieces).sent == []
    assert len(answers(talk(Echo(), get(), *pieces).output())) == 1


def test_a_head_that_does_not_end_in_time() -> None:
    stream = talk(Echo(), get()[:9], get()[9:12], Timeout())
    answer = only(stream)
    assert (answer.status, answer.fields["connection"]) == (408, "close") and stream.lingered


def test_a_client_that_leaves_within_a_head() -> None:
    assert only(talk(Echo(), get()[:9], b"")).status == 400
    assert talk(Echo(), get()[:9], Disconnected()).sent == []


# --- Responses ----------------------------------------------------------------------------------------------


def test_a_small_response_is_one_call() -> None:
    stream = talk(Fixed(OK), get(), get(method="HEAD"))
    assert [len(parts) for parts in stream.sent] == [4, 3]


@quick
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.booleans(), st.sampled_from(["1.0", "1.1"])
)
def test_a_body_of_unknown_length(pieces: list[bytes], head: bool, version: str) -> None:
    """RFC 9112 section 6.3: chunked for a 1.1 client, ended by the close for a 1.0 client."""
    source = Pieces(*pieces)
    method = "HEAD" if head else "GET"
    stream = talk(
        Fixed(Response(200, (), source)), get("/", "Connection: keep-alive", version=version, method=method)
    )
    answer = only(stream, method)
    assert answer.body == (b"" if head else b"".join(pieces))
    assert "content-length" not in answer.fields
    assert ("transfer-encoding" in answer.fields) is (version == "1.1" and not head)
    assert answer.fields.get("connection") == (
        None if version == "1.1" else "keep-alive" if head else "close"
    )
    assert stream.did[-1].startswith("next_request") is (version == "1.1" or head)
    assert source.closed == 1


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("body", [b"abc", (b"abc",), Pieces(b"abc"), Pieces(b"abc", length=3)])
def test_a_status_without_content(status: int, body: object) -> None:
    """RFC 9110 sections 15.3.5 and 15.4.5; the next response begins right behind the head."""
    stream = talk(Fixed(Response(status, (), body), OK), get(), get())  # type: ignore[arg-type]
    first, second = answers(stream.output())
    assert (first.status, first.fields.keys()) == (status, {"date", "server"})
    assert (second.status, second.body) == (200, b"ok")


def test_a_body_shorter_than_its_length_is_cut() -> None:
    """ewe adds no bytes: the client sees that bytes are missing."""
    source = Pieces(b"abc", length=5)
    stream = talk(Fixed(Response(200, (), source)), get(), get())
    with pytest.raises(ValueError, match="3 of 5 bytes"):
        answers(stream.output())
    assert source.closed == 1 and len(stream.pieces) == 1


def test_a_body_longer_than_its_length_ends_there() -> None:
    for pieces in ((b"abcdefg",), (b"abcde", b"fg"), (b"abc", b"defg")):
        source = Pieces(*pieces, length=5)
        stream = talk(Fixed(Response(200, (), source)), get(), get())
        assert only(stream).body == b"abcde"
        assert source.closed == 1 and len(stream.pieces) == 1  # closed behind it


@pytest.mark.parametrize("length", [None, 10])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_error_in_the_middle_cuts(
    length: int | None, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(logger.errors, "info", reasons.append)
    source = Pieces(b"abc", HTTPError(504, "it fell silent"), b"def", length=length)
    stream = talk(Fixed(Response(200, (), source)), get(version=version), get())
    output = stream.output()
    assert b"abc" in output and b"def" not in output and not output.endswith(b"0\r\n\r\n")
    assert output.count(b"HTTP/1.1 ") == 1 and source.closed == 1 and len(stream.pieces) == 1
    assert "aborted after 3 bytes: it fell silent" in reasons[0]
    # Where only the close tells the end, an ordinary one would make a part look like the whole.
    assert ("reset_at_close" in stream.did) is (length is None and version == "1.0")


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("error", [RuntimeError("a bug"), Timeout("a bug"), OSError("a bug")])
def test_a_fault_in_the_middle_is_told(
    length: int | None, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no matter of the client: the log has the traceback, and the connection ends within the response."""
    lines: list[str] = []
    monkeypatch.setattr(logger.ErrorLog, "write", lambda self, level, message: lines.append(message))
    source = Pieces(b"abc", error, length=length)
    stream = talk(Fixed(Response(200, (), source), OK), get(), get())
    output = stream.output()
    assert source.closed == 1 and output.count(b"HTTP/1.1 ") == 1 and len(stream.pieces) == 1
    assert b"abc" in output and not output.endswith(b"0\r\n\r\n")
    assert lines[0] == "'GET / HTTP/1.1' from 192.0.2.1 failed" and "a bug" in lines[-2]
    assert lines[-1].endswith("aborted after 3 bytes: a fault")


@pytest.mark.parametrize("error", [Timeout, Disconnected])
@pytest.mark.parametrize(
    ("version", "source", "resets"),
    [
        ("1.1", Pieces(b"a", b"b", b"c"), False),
        ("1.0", Pieces(b"a", b"b", b"c", length=3), False),
        ("1.0", Pieces(b"a", b"b", b"c"), True),
        ("1.1", Pieces(b"HTTP/1.1 200 OK\r\n\r\n", b"b", b"c", raw=True), True),
    ],
)
def test_a_client_that_stops_reading_in_the_middle(
    error: type[Exception], version: str, source: Pieces, resets: bool
) -> None:
    """Where only the close tells the end, the close is a reset: a part must not look like the whole."""

    class Stopping(MemoryStream):
        async def send(self, *parts: bytes) -> None:
            if len(self.sent) == 2:
                raise error
            await super().send(*parts)

    source = copy.deepcopy(source)
    stream = Stopping([get(version=version), get()])
    run(converse(stream, Fixed(Response(200, (), source))))  # type: ignore[arg-type]
    assert source.closed == 1 and len(stream.sent) == 2
    assert ("reset_at_close" in stream.did) is resets


class Late(MemoryStream):
    """A stream whose sends take 20 ms of a clock that the test moves, after the first `swift` ones.

    reason: why the others are late: "client", "queue", or "processor".
    """

    now = 0.0

    def __init__(self, reason: str, swift: int = 0) -> None:
        super().__init__([])
        self.timeouts = Config(min_rate=10**9, write_timeout=0.01)
        self.reason = reason
        self.swift = swift

    async def send(self, *parts: bytes) -> None:
        began = time.monotonic()
        if len(self.sent) >= self.swift:
            Late.now += 0.02
        await super().send(*parts)
        if self.reason == "queue":
            self.queued_s += time.monotonic() - began

    def has_unsent_bytes(self) -> bool:
        return self.reason != "processor"

    def respond(self, body: bytes | Pieces) -> None:
        """Send a response with this body. Raises Timeout."""
        response = Response(200, (), copy.deepcopy(body))
        run(send_response(self, Request("GET", "/", (1, 1)), response, False, time.perf_counter()))


@pytest.fixture
def moved_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still between the sends of Late: a busy machine makes nobody late."""
    monkeypatch.setattr(time, "monotonic", lambda: Late.now)


@pytest.mark.usefixtures("moved_clock")
@pytest.mark.parametrize("reason", ["client", "queue", "processor"])
@pytest.mark.parametrize(
    "body",
    [
        bytes(4 * SLICE_BYTES),
        Pieces(*[b"a"] * 4),
        Pieces(*[b"a"] * 4, length=4),
        Pieces(b"HTTP/1.1 200 OK\r\n\r\n", *[b"a"] * 4, raw=True),
    ],
)
def test_only_the_time_of_the_client_counts_for_min_rate(body: bytes | Pieces, reason: str) -> None:
    with pytest.raises(Timeout) if reason == "client" else nullcontext():
        Late(reason).respond(body)


@pytest.mark.usefixtures("moved_clock")
@pytest.mark.parametrize(
    ("body", "swift"),
    [
        (bytes(2 * SLICE_BYTES), 1),
        (Pieces(b"a", b"a"), 2),
        (Pieces(b"a", b"a", length=2), 2),
        (Pieces(b"HTTP/1.1 200 OK\r\n\r\n", b"a", raw=True), 1),
    ],
)
def test_a_complete_response_is_not_late(body: bytes | Pieces, swift: int) -> None:
    """The client is slow only for the last bytes: nothing is left to be aborted."""
    stream = Late("client", swift)
    stream.respond(body)
    assert "reset_at_close" not in stream.did


def test_the_time_in_a_queue_does_not_count_for_an_upload() -> None:
    class Queued(MemoryStream):
        async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
            began = time.monotonic()
            time.sleep(0.3)
            self.queued_s += time.monotonic() - began
            return await super().receive(limit)

    stream = Queued([b"a"] * 3)
    request = Request("POST", "/", (1, 1))
    request.length = 3
    body = Body(stream, request, b"", RequestLimits(), 0.5)
    assert [run(body.receive()) for _ in range(3)] == [b"a"] * 3


def test_a_response_of_its_own_making() -> None:
    """RFC 3875 section 5: what an nph- program writes goes out as it is, and the close ends it."""
    source = Pieces(b"HTTP/1.1 200 Fine\r\n", b"\r\nabc", raw=True)
    stream = talk(Fixed(Response(200, (), source)), get(), get())
    assert stream.output() == b"HTTP/1.1 200 Fine\r\n\r\nabc"
    assert len(stream.pieces) == 1


def test_parts_of_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    closed: list[int] = []

    def release() -> None:
        os.close(descriptor)
        closed.append(1)

    body = (Region(descriptor, 0, 3), b"--", Region(descriptor, 7, 3), b"!")
    stream = talk(Fixed(Response(206, (), body, release=release), OK), get(), get())
    first, second = answers(stream.output())
    assert (first.body, second.body) == (b"012--789!", b"ok") and closed == [1]
    assert stream.did.count("send_file") == 2
    assert stream.sent[0][0].startswith(b"HTTP/1.1 206 ") and stream.sent[0][1] == b"012"  # with the head


def test_head_of_a_file(tmp_path: Path) -> None:
    closed: list[int] = []
    response = Response(200, (), (Region(-1, 0, 10**12),), release=lambda: closed.append(1))
    stream = talk(Fixed(response), get(method="HEAD"))
    assert only(stream, "HEAD").fields["content-length"] == str(10**12)
    assert "send_file" not in stream.did and closed == [1]


@pytest.mark.parametrize(
    ("error", "status", "keeps"),
    [
        (HTTPError(403, "secret"), 403, True),
        (HTTPError(405, "secret", (("Allow", "GET"),)), 405, True),
        (RuntimeError("secret"), 500, True),
        (ValueError("secret\r\nA: b"), 500, True),
    ],
)
def test_what_a_feature_raises(
    error: Exception, status: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception becomes a status here, and the reason stays in the log."""
    lines: list[str] = []
    monkeypatch.setattr(logger.ErrorLog, "write", lambda self, level, message: lines.append(message))
    stream = talk(Fixed(error, OK), get(), get())
    first, second = answers(stream.output())
    assert (first.status, second.status) == (status, 200)
    assert b"secret" not in stream.output() and any("secret" in line for line in lines)
    assert first.fields.get("allow") == ("GET" if status == 405 else None)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, CancelledError, GeneratorExit, Timeout])
def test_an_exception_of_any_kind_is_a_fault(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that serves one client after the other goes on."""

    class Raises(Echo):
        async def respond(self, request: Request, io: Stream) -> Response:
            raise kind("secret")

    lines: list[str] = []
    monkeypatch.setattr(logger.ErrorLog, "write", lambda self, level, message: lines.append(message))
    answer = only(talk(Raises(), get()))
    assert answer.status == 500 and b"secret" not in answer.body and any("secret" in line for line in lines)


def test_a_client_that_left_is_told_nothing() -> None:
    assert talk(Fixed(Disconnected()), get(), get()).sent == []


def test_disconnected_of_another_connection_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is still there, and gets a response."""
    monkeypatch.setattr(MemoryStream, "has_client", lambda self: True)
    stream = talk(Fixed(Disconnected(), OK), get(), get())
    assert [answer.status for answer in answers(stream.output())] == [500, 200]


class Pause:
    """Pauses a conversation."""

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("sends", [False, True])
def test_a_conversation_that_is_closed_sends_nothing(sends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may close a paused conversation. That GeneratorExit is no fault of the feature, unlike its own."""
    lines: list[str] = []
    monkeypatch.setattr(logger.ErrorLog, "write", lambda self, level, message: lines.append(message))

    class Pauses(Pieces):
        async def receive(self) -> bytes:
            await Pause()
            return b"never sent"

    class Site(Echo):
        async def respond(self, request: Request, io: Stream) -> Response:
            if not sends:
                await Pause()
            return Response(200, (), Pauses())

    stream = MemoryStream([get()])
    conversation = converse(stream, Site())  # type: ignore[arg-type]
    conversation.send(None)
    conversation.close()
    assert len(stream.sent) == sends and not any("failed" in line for line in lines)


def test_a_response_that_was_sent_is_not_sent_again() -> None:
    """The body is gone, and its Content-Length would be that of the next response."""
    once = Response(200, (), (b"o", b"k"))
    stream = talk(Fixed(once, once, OK), get(), get(), get())
    assert [(a.status, a.body[:2]) for a in answers(stream.output())] == [
        (200, b"ok"),
        (500, b"<!"),
        (200, b"ok"),
    ]


def test_a_fault_of_close_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is complete by then, and the connection goes on."""
    lines: list[str] = []
    monkeypatch.setattr(logger.ErrorLog, "write", lambda self, level, message: lines.append(message))

    class Closes(Pieces):
        async def close(self) -> None:
            raise CancelledError("a bug")

    stream = talk(Fixed(Response(200, (), Closes(b"ok")), OK), get(), get())
    assert [answer.body for answer in answers(stream.output())] == [b"ok", b"ok"]
    assert any("a bug" in line for line in lines)


@pytest.mark.parametrize("status", [99, 199, 600, 1000, "200", None, True, 200.0])
def test_a_status_that_is_none(status: Any) -> None:
    with pytest.raises(ValueError, match="the status of a response is "):
        Response(status)
    with pytest.raises(ValueError, match="the status of an HTTPError is "):
        HTTPError(status, "no error")


def test_a_client_that_does_not_read_100_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(MemoryStream):
        async def send(self, *parts: bytes) -> None:
            if parts[0].startswith(b"HTTP/1.1 100 "):
                raise Timeout
            await super().send(*parts)

    stream = Full([post(b"hello", "Expect: 100-continue")[:-5], get()])
    run(converse(stream, Echo()))  # type: ignore[arg-type]
    answer = only(stream)
    assert (answer.status, answer.fields["connection"]) == (408, "close")


@pytest.mark.parametrize(
    ("head", "referer"),
    [
        ("GET /a%2Fb HTTP/1.1\r\nHost: ewe\r\nReferer: here\r\n\r\n", "here"),
        ("GET /a%2Fb HTTP/1.1\r\n\r\n", "-"),
        ("GET / HTTP/1.1\r\nReferer: here\r\nExpect: wonders\r\nHost: ewe\r\n\r\n", "here"),
        ("GET / HTTP/1.1\r\nReferer: here\r\nHost : ewe\r\n\r\n", "-"),
        ("GET / HTTP/1.1\r\nReferer: here\r\n", "-"),
    ],
)
def test_the_log_has_the_fields_of_a_head_that_is_refused(
    head: str, referer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the head is complete, and all its fields are."""
    log = logger.AccessLog(str(tmp_path / "log"), "%>s %{Referer}i")
    monkeypatch.setattr(logger, "access", log)
    status = answers(talk(Echo(), head.encode()).output())[0].status
    os.close(log.file.descriptor)
    assert (tmp_path / "log").read_text() == f"{status} {referer}\n"


def test_a_head_that_is_refused_has_no_body() -> None:
    """RFC 9110 section 9.3.2."""
    stream = talk(Echo(), b"HEAD / HTTP/1.1\r\n\r\n")
    assert only(stream, "HEAD").status == 400


def test_pages_of_errors_tell_nothing() -> None:
    stream = talk(Echo(), b"GET /<script> HTTP/1.1\r\nHost: ewe\r\n\r\n")
    answer = only(stream)
    assert answer.status == 400 and b"script" not in answer.body
    assert answer.fields["content-type"] == "text/html; charset=utf-8"


def test_a_proxy_header_does_not_change_where_ewe_speaks_tls() -> None:
    """The header names the address of the proxy, and not that of the socket whose sites have no certificate."""
    site = Echo()
    site.tls = object()  # type: ignore[attr-defined]
    site.plain_at = {("192.0.2.2", 80)}  # type: ignore[attr-defined]
    site.proxies = SimpleNamespace(networks={"192.0.2.1"})  # type: ignore[attr-defined]
    stream = MemoryStream([b"PROXY TCP4 203.0.113.9 198.51.100.7 5000 443\r\n" + get()])
    run(converse_behind_proxy(stream, site))  # type: ignore[arg-type]
    assert only(stream).status == 200 and stream.server == ("198.51.100.7", 443)


def test_the_answer_to_one_too_many() -> None:
    (answer,) = answers(BUSY)
    assert (answer.status, answer.fields["connection"], answer.fields["retry-after"]) == (503, "close", "1")


def test_the_date_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []

    def http_date(seconds: float) -> str:
        made.append(seconds)
        return str(seconds)

    now = 784111777.0
    monkeypatch.setattr(ewe.response_writer, "http_date", http_date)
    monkeypatch.setattr(ewe.response_writer.time, "time", lambda: now)
    monkeypatch.setattr(ewe.response_writer.Date, "second", -1)
    monkeypatch.setattr(ewe.response_writer.Date, "line", b"")
    for moment in (0.0, 0.3, 0.999):
        now = 784111777.0 + moment
        assert date_line() == b"Date: 784111777\r\nServer: ewe\r\n"
    assert made == [784111777]
    now = 784111778.0
    assert date_line() == b"Date: 784111778\r\nServer: ewe\r\n"
    now = 784111700.5  # a clock that jumps back
    assert date_line() == b"Date: 784111700\r\nServer: ewe\r\n"


def test_each_exchange_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logger.AccessLog(str(tmp_path / "log"), "%r %s %B")
    monkeypatch.setattr(logger, "access", log)
    source = Pieces(b"abc", HTTPError(502, "it died"))
    talk(Fixed(OK), get("/1"), get("/2", method="HEAD") + get("/3") + b"BAD\r\n\r\n")
    talk(Fixed(Response(200, (), source)), get("/4"))
    os.close(log.file.descriptor)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[:3] == ["GET /1 HTTP/1.1 200 2", "HEAD /2 HTTP/1.1 200 0", "GET /3 HTTP/1.1 200 2"]
    assert re.fullmatch(r"BAD 400 [1-9][0-9]*", lines[3])
    assert lines[4:] == ["GET /4 HTTP/1.1 200 3"]


def test_a_stream_that_blocks_never_pauses() -> None:
    async def pauses() -> None:
        await Pause()

    with pytest.raises(ForeignAwait):
        run(pauses())
