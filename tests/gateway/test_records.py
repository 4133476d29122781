"""FastCGI records: what one end writes the other reads, however it is cut; bad bytes are one typed error."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewe.gateway import records as fastcgi
from ewe.gateway.records import (
    Aborted,
    Began,
    Ended,
    Errors,
    FastCGIError,
    Input,
    Output,
    RecordDecoder,
    Requester,
    Responder,
    decode_pairs,
    encode_pairs,
    record,
    stream_records,
)

NAMES = st.binary(max_size=300)
PAIRS = st.lists(st.tuples(NAMES, NAMES), max_size=20)
PIECES = st.lists(st.binary(min_size=1, max_size=3000), max_size=6)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return data cut at these places (taken modulo its length)."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(min_value=0, max_value=100_000), max_size=8)


# Bytes on the wire


def test_a_record_as_the_specification_has_it() -> None:
    assert record(fastcgi.BEGIN_REQUEST, 1, b"\0\1\0\0\0\0\0\0").hex(" ") == (
        "01 01 00 01 00 08 00 00 00 01 00 00 00 00 00 00"
    )
    assert record(fastcgi.STDOUT, 258, b"abc").hex(" ") == "01 06 01 02 00 03 05 00 61 62 63 00 00 00 00 00"


def test_pairs_as_the_specification_has_them() -> None:
    long = b"v" * 128
    assert encode_pairs([(b"A", b"bc"), (b"", b"")]) == b"\x01\x02Abc\x00\x00"
    assert encode_pairs([(b"A", long)]) == b"\x01\x80\x00\x00\x80A" + long


@given(PAIRS)
def test_pairs_come_back(pairs: list[tuple[bytes, bytes]]) -> None:
    assert decode_pairs(encode_pairs(pairs)) == dict(pairs)


@pytest.mark.parametrize(
    "data", [b"\x01", b"\x01\x01a", b"\x80", b"\x80\0\0", b"\x01\x80\0\0", b"\xff\xff\xff\xff\x01a"]
)
def test_pairs_beyond_the_end_are_refused(data: bytes) -> None:
    with pytest.raises(FastCGIError, match="beyond the end"):
        decode_pairs(data)


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 65535), st.binary(max_size=300)), max_size=8), CUTS
)
def test_records_come_back_cut_anywhere(records: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    data = b"".join(record(*each) for each in records)
    decoder = RecordDecoder()
    found = [each for piece in in_pieces(data, cuts) for each in decoder.feed(piece)]
    assert found == [tuple(each) for each in records]
    assert decoder.buffer == b""


@pytest.mark.parametrize("size", [0, 1, 65528, 65529, 65535, 65536, 200_000])
def test_a_stream_is_as_many_records_as_it_takes(size: int) -> None:
    data = random.Random(size).randbytes(size)
    records = RecordDecoder().feed(stream_records(fastcgi.STDIN, 7, data))
    assert b"".join(content for _, _, content in records) == data
    assert all(each[2] and each[:2] == (fastcgi.STDIN, 7) for each in records)


def test_another_version_is_refused_at_its_first_byte() -> None:
    with pytest.raises(FastCGIError, match="version 71"):
        RecordDecoder().feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(FastCGIError, match="version 2"):
        RecordDecoder().feed(b"\x02")


# Both ends together


@given(PAIRS, PIECES, PIECES, PIECES, st.integers(0, 255), st.booleans(), CUTS)
def test_a_request_and_its_answer(
    pairs: list[tuple[bytes, bytes]],
    body: list[bytes],
    answer: list[bytes],
    errors: list[bytes],
    status: int,
    keep: bool,
    cuts: list[int],
) -> None:
    server, application = Requester(), Responder()
    for _ in range(2 if keep else 1):
        asked = server.begin(pairs, keep) + b"".join(map(server.input, body)) + server.input(b"")
        events = [event for piece in in_pieces(asked, cuts) for event in application.feed(piece)]
        assert events == [Began(dict(pairs), keep), *map(Input, body), Input(b"")]
        said = b"".join(map(application.errors, errors)) + b"".join(map(application.output, answer))
        said += application.end(status)
        heard = [event for piece in in_pieces(said, cuts) for event in server.feed(piece)]
        assert heard == [*map(Errors, errors), *map(Output, answer), Ended(status, 0)]
        assert not server.running and application.id == 0
    assert application.take_reply() == b""


def test_what_follows_the_end_of_a_request_is_ignored() -> None:
    server, application = Requester(), Responder()
    application.feed(server.begin([], keep=True) + server.input(b"body"))
    application.end()
    assert application.feed(server.input(b"more") + server.input(b"") + server.abort()) == []
    assert application.feed(server.begin([(b"A", b"b")])) == [Began({b"A": b"b"}, False)]


def test_an_abort_is_told() -> None:
    server, application = Requester(), Responder()
    application.feed(server.begin([]))
    assert application.feed(server.abort()) == [Aborted()]
    assert server.feed(application.end()) == [Ended(0, 0)]


def test_a_second_request_on_a_busy_connection_is_refused() -> None:
    application = Responder()
    application.feed(Requester().begin([]))
    assert application.feed(record(fastcgi.BEGIN_REQUEST, 2, b"\0\1\0\0\0\0\0\0")) == []
    (refusal,) = RecordDecoder().feed(application.take_reply())
    assert refusal == (fastcgi.END_REQUEST, 2, b"\0\0\0\0\1\0\0\0")
    assert application.id == 1


def test_another_role_is_refused() -> None:
    application = Responder()
    application.feed(record(fastcgi.BEGIN_REQUEST, 1, b"\0\3\0\0\0\0\0\0") + record(fastcgi.PARAMS, 1))
    assert RecordDecoder().feed(application.take_reply())[0][2][4] == fastcgi.UNKNOWN_ROLE


def test_management_records_are_answered() -> None:
    application = Responder()
    asked = encode_pairs([(b"FCGI_MPXS_CONNS", b""), (b"FCGI_NO_SUCH", b"")])
    application.feed(record(fastcgi.GET_VALUES, 0, asked) + record(77, 0))
    values, unknown = RecordDecoder().feed(application.take_reply())
    assert values[0] == fastcgi.GET_VALUES_RESULT
    assert decode_pairs(values[2]) == {b"FCGI_MPXS_CONNS": b"0"}
    assert unknown == (fastcgi.UNKNOWN_TYPE, 0, bytes([77]) + bytes(7))


BEGIN = record(fastcgi.BEGIN_REQUEST, 1, b"\0\1\1\0\0\0\0\0")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (record(fastcgi.BEGIN_REQUEST, 1, b"\0\1"), "2 bytes, not 8"),
        (BEGIN + BEGIN, "began twice"),
        (BEGIN + record(fastcgi.STDIN, 1, b"x"), "before the parameters"),
        (BEGIN + record(fastcgi.PARAMS, 1) + record(fastcgi.PARAMS, 1, b"x"), "after their end"),
        (BEGIN + record(fastcgi.PARAMS, 1) + record(fastcgi.STDIN, 1) * 2, "after its end"),
        (BEGIN + record(fastcgi.PARAMS, 1, b"\xff") + record(fastcgi.PARAMS, 1), "beyond the end"),
        (BEGIN + record(fastcgi.STDOUT, 1, b"x"), "type 6 from a web server"),
        (BEGIN + stream_records(fastcgi.PARAMS, 1, bytes(300_000)), "exceed 262144 bytes"),
    ],
)
def test_what_a_web_server_must_not_send(data: bytes, told: str) -> None:
    with pytest.raises(FastCGIError, match=told):
        Responder().feed(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (record(fastcgi.STDOUT, 2, b"x"), "request 2, which does not run"),
        (record(fastcgi.STDIN, 1, b"x"), "type 5 from an application"),
        (record(fastcgi.END_REQUEST, 1, b"x"), "1 bytes, not 8"),
        (record(fastcgi.END_REQUEST, 1, bytes(8)) * 2, "does not run"),
        (record(fastcgi.STDOUT, 0, b"x"), "request 0"),
    ],
)
def test_what_an_application_must_not_send(data: bytes, told: str) -> None:
    server = Requester()
    server.begin([])
    with pytest.raises(FastCGIError, match=told):
        server.feed(data)


# Whatever the bytes


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Return a seed with a few changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        kind = chance.random()
        if kind < 0.6 and at < len(data):
            data[at] = chance.choice((0, 1, 2, 7, 8, 11, 127, 128, 255, chance.randrange(256)))
        elif kind < 0.8:
            del data[at : at + chance.randrange(1, 20)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 12))
    return bytes(data)


def read_all(reader: Responder | Requester, pieces: list[bytes]) -> tuple[list[object], str]:
    """Return the events, and the error that ended it, "" if none did."""
    events: list[object] = []
    try:
        for piece in pieces:
            events += reader.feed(piece)
    except FastCGIError as error:
        return events, str(error)
    return events, ""


def joined(events: list[object]) -> list[object]:
    return [event for event in events if not isinstance(event, Input | Output | Errors) or event.data]


def test_bad_bytes_are_never_anything_but_the_typed_error() -> None:
    """Mutations of good exchanges, whole and cut in two: the same events, or FastCGIError both times."""
    server, application = Requester(), Responder()
    asked = server.begin([(b"SCRIPT_NAME", b"/x"), (b"LONG", b"v" * 200)], keep=True)
    asked += server.input(b"some body") + server.input(b"")
    application.feed(asked)
    said = (
        application.errors(b"oh")
        + application.output(b"Content-Type: text/plain\n\nhello")
        + application.end(3)
    )
    values = record(fastcgi.GET_VALUES, 0, encode_pairs([(b"FCGI_MAX_CONNS", b"")]))
    chance = random.Random(5)
    failed = 0
    for _ in range(20_000):
        data = mutated(chance, [asked, said, values + asked, asked + asked])
        cut = chance.randrange(len(data) + 1)
        began = time.process_time()
        for make in (Responder, running_requester):
            whole, error = read_all(make(), [data])
            halves, same_error = read_all(make(), [data[:cut], data[cut:]])
            assert bool(same_error) == bool(error), data
            assert joined(halves)[: len(joined(whole))] == joined(whole), data
            failed += bool(error)
        assert time.process_time() - began < 1
    assert failed > 1000


def test_a_whole_answer_taken_at_once_means_what_its_records_mean() -> None:
    """take_whole_output() finds the same as feed(), or leaves them to feed(), for good answers and mutations."""
    application = Responder()
    application.feed(Requester().begin([]))
    output = application.output(b"Content-Type: text/plain\n\nhello")
    ends = (application.end(), record(fastcgi.END_REQUEST, 1, bytes(8)))  # of X-Switch, of php-fpm
    for end in ends:
        assert running_requester().take_whole_output(output + end) == b"Content-Type: text/plain\n\nhello"
    chance = random.Random(6)
    found = 0
    for _ in range(20_000):
        data = mutated(chance, [output + ends[0], output + ends[1], output])
        expected = read_all(running_requester(), [data])
        server = running_requester()
        whole = server.take_whole_output(data)
        if whole is None:
            assert read_all(server, [data]) == expected, data
        else:
            assert expected == ([Output(whole), Ended(0, fastcgi.REQUEST_COMPLETE)], ""), data
            assert not server.running
            found += 1
    assert 1000 < found < 10_000


def running_requester() -> Requester:
    server = Requester()
    server.begin([])
    return server
