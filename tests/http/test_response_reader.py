"""The reader of responses: heads, the end of each body, and bytes that are no response."""

from __future__ import annotations

import pytest

from ewe.http.response_head import MAX_HEAD_BYTES, ResponseHead, parse_response_head
from ewe.http.response_reader import CutResponse, ResponseReader
from ewe.http.status import HTTPError

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 5\r\n\r\nabcde"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n3\r\ncde\r\n0\r\nA: b\r\n\r\n"
UNTIL_CLOSE = OK + b"\r\nabcde"


def reader_of(method: str = "GET") -> ResponseReader[ResponseHead]:
    return ResponseReader(parse_response_head, method)


def read(data: bytes, size: int, method: str = "GET") -> tuple[ResponseReader[ResponseHead], bytes]:
    """Feed a response in parts of a size; return the reader and the body."""
    reader = reader_of(method)
    return reader, b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("method", "data", "body"),
    [
        ("GET", LENGTH, b"abcde"),
        ("GET", CHUNKS, b"abcde"),
        ("GET", UNTIL_CLOSE, b"abcde"),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nabcde", b"abcde"),
        (
            "GET",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + LENGTH,
            b"abcde",
        ),
        ("GET", OK + b"Content-Length: 0\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 204\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
        ("HEAD", LENGTH[:-5], b""),
        ("HEAD", OK + b"Transfer-Encoding: chunked\r\n\r\n", b""),
        ("HEAD", OK + b"\r\n", b""),
    ],
)
def test_a_response_is_read_to_its_end(method: str, data: bytes, body: bytes, size: int) -> None:
    reader, found = read(data, size, method)
    assert found == body and reader.head is not None and not reader.buffer
    assert (
        reader.finished
        is reader.ends_before_close
        is (b"\r\n\r\nabcde" not in data or b"Content-Length" in data)
    )
    reader.end()
    assert reader.finished


@pytest.mark.parametrize("first", [LENGTH, CHUNKS, b"HTTP/1.1 304\r\nTransfer-Encoding: chunked\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 1000])
def test_bytes_behind_the_end_begin_the_next_response(first: bytes, size: int) -> None:
    reader, body = read(first + CHUNKS, size)
    assert body == (b"" if b"304" in first else b"abcde") and reader.finished and reader.buffer == CHUNKS
    reader.begin()
    assert reader.feed(b"") == b"abcde" and reader.finished and not reader.buffer


@pytest.mark.parametrize("data", [LENGTH, CHUNKS])
def test_the_end_of_the_connection_cuts_a_response(data: bytes) -> None:
    for size in range(len(data)):
        reader, body = read(data[:size], 1000)
        assert b"abcde".startswith(body) and not reader.finished
        with pytest.raises(
            CutResponse, match="within a head" if reader.head is None else "within its response"
        ):
            reader.end()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x", "no HTTP response, but b'x'"),
        (b"HTTP/2 200 OK\r\n", "no HTTP response"),
        (b"HTTP/1.1 abc\r\n\r\n", "status line is malformed"),
        (OK + b"Content-Length: +5\r\n\r\n", "Content-Length is malformed"),
        (b"HTTP/1.1 200 OK\n", "ends with a bare LF"),
        (OK + b"X: " + b"x" * MAX_HEAD_BYTES, f"more than {MAX_HEAD_BYTES} bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "size line is malformed"),
    ],
)
def test_bytes_that_are_no_response(data: bytes, says: str) -> None:
    with pytest.raises(HTTPError, match=says):
        read(data, len(data))


def test_a_thousand_chunks_in_one_part_are_all_decoded() -> None:
    data = OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2500 + b"0\r\n\r\n"
    reader, body = read(data, len(data))
    assert body == b"x" * 2500 and reader.finished


def test_the_proxy_knows_whether_all_has_arrived() -> None:
    for data, expected in (
        (LENGTH, True),
        (CHUNKS, False),
        (CHUNKS.replace(b"A: b\r\n", b""), True),
        (UNTIL_CLOSE, False),
    ):
        reader = reader_of()
        reader.buffer = data
        assert reader.read_head() is not None and reader.seems_complete() is expected
        reader.buffer = reader.buffer[:-1]
        assert not reader.seems_complete()
