"""The protocol between gateways and the database daemon: both directions, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewe.database.layouts import fragments
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    ProtocolError,
    ServerResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    frame,
    split_frame,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
VALUES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT | st.binary(max_size=60)
)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=10)
REQUESTS = st.builds(
    ClientRequest,
    database=TEXT,
    statement=TEXT,
    layout=st.sampled_from(["TABLE", "PRE", "OPTION", "JSON", "CSV", "XML"]),
    parameters=st.lists(VALUES, max_size=5) | st.dictionaries(NAMES, VALUES, min_size=1, max_size=5),
    client=st.none() | st.integers(0, 2**31),
    rows=st.none() | st.integers(0, 2**31),
    time_limit=st.none() | st.floats(0.001, 1e6),
    key=TEXT,
    read_only=st.booleans(),
)


def decoded(data: bytes, cuts: list[int]) -> list[tuple[bytes, bytes]]:
    """Return the fields of one frame that arrives in pieces."""
    decoder = FrameDecoder()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        decoder.feed(data[start:end])
    fields = decoder.next_frame()
    assert fields is not None and decoder.next_frame() is None
    return fields


@given(REQUESTS, st.lists(st.integers(0, 10_000), max_size=4))
def test_a_request_arrives_as_it_was_sent(request: ClientRequest, cuts: list[int]) -> None:
    assert decode_request(decoded(encode_request(request), cuts)) == request


@given(st.binary(max_size=200), st.booleans(), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_response_arrives_as_it_was_sent(fragment: bytes, more: bool, cuts: list[int]) -> None:
    response = ServerResponse(fragment, more)
    assert decode_response(decoded(encode_response(response), cuts)) == response


def test_an_error_keeps_its_kind_and_its_status() -> None:
    sent = ServerResponse(b"", False, DatabaseError("TIMEOUT", "too\nslow"))
    error = decode_response(decoded(encode_response(sent), [])).error
    assert error is not None
    assert (error.kind, error.status, str(error)) == ("TIMEOUT", 504, "too slow")


@given(st.binary(max_size=300))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    for decode in (decode_request, decode_response):
        try:
            decode(split_frame(data))
        except ProtocolError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([(b"D", b"log")], "no field b'S'"),
        ([(b"D", b"log"), (b"S", b"SELECT 1"), (b"L", b"HTML")], "unknown layout 'HTML'"),
        ([(b"D", b"a"), (b"D", b"b"), (b"S", b"")], "comes twice"),
        ([(b"D", b"a"), (b"S", b""), (b"X", b"")], "unknown field b'X'"),
        ([(b"D", b"\xff"), (b"S", b"")], "not UTF-8"),
        ([(b"D", b"a"), (b"S", b""), (b"P", b"t1")], "without NUL"),
        ([(b"D", b"a"), (b"S", b""), (b"P", b"\0x")], "not a value of a known type"),
        ([(b"D", b"a"), (b"S", b""), (b"P", b"\0i" + b"9" * 40)], "not a whole number, of"),
        ([(b"D", b"a"), (b"S", b""), (b"P", b"\0i1"), (b"P", b"n\0i1")], "by position and by name"),
        ([(b"D", b"a"), (b"S", b""), (b"T", b"-1")], "not a number of seconds"),
        ([(b"D", b"a"), (b"S", b""), (b"N", b"-1")], "not a whole number from 0"),
        ([(b"D", b"a"), (b"S", b""), (b"O", b"WRITE")], "not READ"),
    ],
)
def test_what_breaks_the_grammar_is_refused(fields: list[tuple[bytes, bytes]], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode_request(fields)


def test_a_frame_that_is_too_long_is_refused_before_it_arrives() -> None:
    decoder = FrameDecoder(limit=100)
    decoder.feed(frame([(b"S", bytes(95))])[:50])
    assert decoder.next_frame() is None
    with pytest.raises(ProtocolError, match="101 bytes: at most 100"):
        FrameDecoder(limit=100).feed(b"\0\0\0\x65")
    with pytest.raises(ProtocolError, match="ends within a field"):
        split_frame(b"S\0\0")
    with pytest.raises(ProtocolError, match="longer than its frame"):
        split_frame(b"S\0\0\0\5abc")


def test_what_no_database_takes_is_refused_before_it_is_sent() -> None:
    for parameters in ([object()], {"a\0b": 1}, ["\ud800"]):
        with pytest.raises(ProtocolError):
            encode_request(ClientRequest("log", "SELECT 1", parameters=parameters))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="at most"):
        encode_request(ClientRequest("log", "x" * (1 << 20)))


def test_a_row_without_columns_is_an_empty_option() -> None:
    """PostgreSQL allows SELECT without columns."""
    assert b"".join(fragments("OPTION", (), [()])) == b'<option value=""></option>\n'
