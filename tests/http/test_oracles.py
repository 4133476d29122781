"""ewe's grammar beside two others: h11 and httptools read the same bytes, and each difference is explained.

Both are good servers' parsers, and neither is as strict as RFC 9112 would let them be. Where ewe refuses what
one of them takes, takes what one refuses, or understands it differently, the difference stands in a table here
with the section that settles it, and a condition on the bytes. Any other difference is a failure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import needs
from support.examples import examples
from support.fuzz import BITS, CORPUS, fuzz, read

from ewe.http.limits import RequestLimits
from ewe.http.status import HTTPError

httptools = needs.module("httptools")
LIMITS = RequestLimits(max_target=10**6, max_head=10**6, max_field=10**6, max_fields=10**4, max_body=10**9)


@dataclass
class Taken:
    """A message that was understood."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    rest: bytes


@dataclass
class Left:
    """A message that was refused, and why."""

    why: str


UNFINISHED = "unfinished"  # no verdict yet
Verdict = Taken | Left | str


def by_ewe(data: bytes) -> Verdict:
    """Read one message with ewe/http/parser.py."""
    try:
        message = read(data, LIMITS)
    except HTTPError as refused:
        return Left(refused.cause)
    if message is None:
        return UNFINISHED
    request = message.request
    return Taken(request.method, request.target, request.fields, message.body, message.rest)


def by_h11(data: bytes) -> Verdict:
    """Read one message with h11."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=10**6)
    request = None
    body = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                fields = tuple((text(name), text(value)) for name, value in request.headers)
                rest = bytes(connection.trailing_data[0])
                return Taken(text(request.method), text(request.target), fields, body, rest)
            else:
                return UNFINISHED
    except h11.RemoteProtocolError as reason:
        return Left(str(reason))


def text(raw: bytes) -> str:
    """Decode bytes as they are."""
    return bytes(raw).decode("latin-1")


class Collector:
    """The callbacks of httptools."""

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[str, str]] = []
        self.in_body = False
        self.body = b""
        self.complete = False

    def on_url(self, data: bytes) -> None:
        self.target += data

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_body:  # else a trailer
            self.fields.append((text(name).lower(), text(value)))

    def on_headers_complete(self) -> None:
        self.in_body = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def by_httptools(data: bytes) -> Verdict:
    """Read one message with httptools, byte by byte, so that it is known where it ended."""
    collector = Collector()
    parser = httptools.HttpRequestParser(collector)
    place = 0
    try:
        while not collector.complete and place < len(data):
            place += 1
            parser.feed_data(data[place - 1 : place])
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as reason:
        if not collector.complete:
            return Left(str(reason))
    if not collector.complete:
        return UNFINISHED
    fields = tuple(collector.fields)
    return Taken(text(parser.get_method()), text(collector.target), fields, collector.body, data[place:])


ORACLES: dict[str, Callable[[bytes], Verdict]] = {"h11": by_h11, "httptools": by_httptools}


# --- The differences that are meant --------------------------------------------------------------------------


class Message:
    """Raw bytes, as roughly taken apart as the most tolerant of the three would."""

    def __init__(self, data: bytes) -> None:
        self.data = data.removeprefix(b"\r\n")
        self.head, _, self.rest = self.data.partition(b"\r\n\r\n")
        lines = re.split(rb"\r?\n", self.head)
        self.line = lines[0]
        words = self.line.split(b" ")
        self.method = words[0]
        self.target = words[1] if len(words) > 1 else b""
        self.version = words[-1]
        self.lines = lines[1:]

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all lines of a lower-case name."""
        parts = [line.partition(b":") for line in self.lines]
        return [value.strip(b" \t") for own, _, value in parts if own.strip(b" \t").lower() == name]


Condition = Callable[[Message], object]
Row = tuple[str, str, str, Condition]

BARE_LF = re.compile(rb"(?<!\r)\n")
TOKEN = re.compile(rb"[!#-'*+\-.^-z|~0-9A-Z]+")
LONG = re.compile(rb"(?:(?!\r\n)[\x00-\xff]){1025}")
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
# RFC 3986, from its appendix A: the characters of a target; and a host without the choice named below.
PCHAR = rb"[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2}"
ORIGIN = re.compile(rb"(?:/(?:%s)*)+(?:\?(?:%s|[/?])*)?" % (PCHAR, PCHAR))
HTTP_URL = re.compile(rb"(?i:https?)://([^/?#]+)((?:/(?:%s)*)*(?:\?(?:%s|[/?])*)?)" % (PCHAR, PCHAR))
AUTHORITY = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|(?:[A-Za-z0-9\-._~]|%[0-9A-Fa-f]{2})+)(?::([0-9]*))?")


def bad_target(message: Message) -> bool:
    """Is this neither an absolute path nor an http URL, each by RFC 3986?"""
    return not ORIGIN.fullmatch(message.target) and not HTTP_URL.fullmatch(message.target)


def bad_host(message: Message) -> bool:
    """Is a host not one of RFC 3986 section 3.2.2 without sub-delimiters, or its port too large?"""
    url = re.match(rb"(?i:https?)://([^/?#]*)", message.target)
    hosts = message.values(b"host") + ([url[1]] if url else [])
    return not all(map(good_host, hosts))


def good_host(host: bytes) -> bool:
    """Is this a host, or a literal address, with or without a port?"""
    match = AUTHORITY.fullmatch(host)
    if match is None or int(match[2] or b"0") > 65535:
        return False
    try:
        return match[1] is None or bool(ipaddress.IPv6Address(text(match[1])))
    except ValueError:
        return False


def bad_length(message: Message) -> bool:
    """Is Content-Length there twice, no number, written with zeros in front, or too large for 64 bits?"""
    values = message.values(b"content-length")
    return len(values) > 1 or not re.fullmatch(rb"0|[1-9][0-9]{0,18}", values[0])


def upgrades(message: Message) -> bool:
    """Does the client offer to go on in another protocol? RFC 9110 section 7.8."""
    return bool(message.values(b"upgrade")) and b"upgrade" in b",".join(message.values(b"connection")).lower()


def always(_: Message) -> bool:
    """Our reason is reason enough."""
    return True


# Messages that ewe refuses and an oracle accepts: our reason, the lenient oracle, the section that lets or
# makes us refuse, and a condition that the message must meet.
# fmt: off
STRICTER: list[Row] = [
    # The request line
    ("request line is malformed", "h11", "RFC 9112 2.2, a bare LF", lambda m: BARE_LF.search(m.head)),
    ("request line is malformed", "httptools", "RFC 9112 3, HTTP/0.9", lambda m: m.line.count(b" ") == 1),
    ("request line is malformed", "httptools", "RFC 9112 3, one SP", lambda m: b"" in m.line.split(b" ")),
    ("request line is malformed", "httptools", "RFC 9112 2.2, a bare CR", lambda m: m.data.startswith(b"\r")),
    ("is not spoken here", "both", "RFC 9110 15.6.6", lambda m: not m.version.startswith(b"HTTP/1.")),
    ("method .* goes on", "h11", "RFC 9112 3, 501", lambda m: len(m.method) > 32),
    ("method CONNECT", "both", "RFC 9110 9.3.6, 501", lambda m: m.method == b"CONNECT"),
    # The target
    ("target is malformed", "both", "RFC 3986 3", bad_target),
    ("target \\* with", "both", "RFC 9112 3.2.4", lambda m: m.method != b"OPTIONS" and m.target == b"*"),
    ("above the root", "both", "RFC 3986 7.3 and 5.2.4, 400", lambda m: re.search(rb"\.|%2e", m.target, re.I)),
    ("encoded NUL", "both", "RFC 3986 7.3", lambda m: b"%00" in m.target),
    ("encoded slash", "both", "RFC 3986 2.2, 404", lambda m: b"%2f" in m.target.lower()),
    # Host
    ("no Host field", "both", "RFC 9112 3.2", lambda m: not m.values(b"host")),
    ("more than one Host", "httptools", "RFC 9112 3.2", lambda m: len(m.values(b"host")) > 1),
    ("host is malformed", "both", "RFC 9112 3.2, RFC 3986 3.2.2", bad_host),
    # Fields
    ("field line is malformed", "h11", "RFC 9112 2.2, a bare LF", lambda m: BARE_LF.search(m.data)),
    ("field line is malformed", "h11", "RFC 9110 5.5, controls", lambda m: CONTROL.search(m.data)),
    ("field line is malformed", "h11", "RFC 9112 5.2, obs-fold", lambda m: re.search(rb"\n[ \t]", m.data)),
    # Framing
    ("both Content-Length", "h11", "RFC 9112 6.1", lambda m: m.values(b"content-length")),
    ("in an HTTP/1.0 request", "both", "RFC 9112 6.1", lambda m: m.version == b"HTTP/1.0"),
    ("coding .* is not implemented", "httptools", "RFC 9112 6.1, 501", lambda m: m.values(b"transfer-encoding")),
    ("Content-Length is malformed", "both", "RFC 9112 6.3, RFC 9110 8.6", bad_length),
    ("expectation .* is unknown", "both", "RFC 9110 10.1.1", lambda m: m.values(b"expect") != [b"100-continue"]),
    # Chunks
    ("size line is|trailer's field line is", "h11", "RFC 9112 2.2, a bare LF", lambda m: BARE_LF.search(m.rest)),
    ("size line is malformed", "both", "RFC 9112 7.1.1, extensions", lambda m: re.search(rb"[; \t]", m.rest)),
    ("size line is malformed", "both", "RFC 9112 7.1, overflow", lambda m: re.search(rb"[0-9A-Fa-f]{16}", m.rest)),
    ("has more than 1024 bytes", "both", "RFC 9112 7.1.1, a limit", lambda m: LONG.search(m.rest)),
]
# fmt: on

# Messages that ewe accepts and an oracle refuses: its reason, its name, and the section that makes us accept.
LOOSER: list[Row] = [
    ("no request line received", "h11", "RFC 9112 2.2, an empty line first", always),
    (
        "Invalid method|after method|HTTP/2 Connection",
        "httptools",
        "RFC 9110 9.1, a token",
        lambda m: TOKEN.fullmatch(m.method),
    ),
    (
        "illegal chunk header",
        "h11",
        "RFC 9112 7.1.1, BWS, quoted strings",
        lambda m: re.search(rb"[ \t]", m.rest),
    ),
    ("Content-Length|Host|Transfer-Encoding", "h11", "RFC 9112 7.1.2, a trailer", lambda m: m.rest),
    (
        "Invalid HTTP version",
        "httptools",
        "RFC 9110 2.5",
        lambda m: re.fullmatch(rb"HTTP/1\.[2-9]", m.version),
    ),
    (
        "Invalid character in chunk",
        "httptools",
        "RFC 9112 7.1.1, BWS",
        lambda m: re.search(rb"[ \t]", m.rest),
    ),
    ("Content-Length|Transfer-Encoding", "httptools", "RFC 9112 7.1.2, a trailer", lambda m: m.rest),
]


# Messages that both accept, but with the end of the body at different places.
ENDS: list[tuple[str, str, Condition]] = [
    ("httptools", "RFC 9110 7.8, Upgrade may be ignored, and is", upgrades),
]


def fields_alike(ours: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]) -> bool:
    """Are these the same fields? The differences in how they are told, none of them one of meaning:

    httptools leaves white space behind a value (RFC 9112 section 5.1 takes it off); h11 writes "chunked" in
    lower case (RFC 9112 section 7: codings are case-insensitive).
    """

    def told(field: tuple[str, str]) -> tuple[str, str]:
        name, value = field
        return name, value.strip(" \t").lower() if name == "transfer-encoding" else value.strip(" \t")

    return tuple(map(told, ours)) == tuple(map(told, theirs))


def unexplained(data: bytes, oracle: str) -> str:
    """Return a difference that no table explains, "" if there is none."""
    ours, theirs = by_ewe(data), ORACLES[oracle](data)
    if ours == UNFINISHED and theirs == UNFINISHED:
        return ""
    message = Message(data)
    if isinstance(ours, Taken) and isinstance(theirs, Taken):
        same = (ours.method, ours.target) == (theirs.method, theirs.target)
        ends = (ours.body, ours.rest) == (theirs.body, theirs.rest) or ends_elsewhere(oracle, message)
        if same and ends and fields_alike(ours.fields, theirs.fields):
            return ""
        return f"{oracle} understands {data!r} as {theirs}, ewe as {ours}"
    if isinstance(ours, Left) and isinstance(theirs, Taken):
        if any(explains(row, ours.why, oracle, message) for row in STRICTER) or ends_elsewhere(
            oracle, message
        ):
            return ""
        return f"{oracle} takes {data!r} as {theirs}, ewe refuses it: {ours.why}"
    if isinstance(ours, Taken) and isinstance(theirs, Left):
        if any(explains(row, theirs.why, oracle, message) for row in LOOSER):
            return ""
        return f"{oracle} refuses {data!r}: {theirs.why}; ewe takes it as {ours}"
    if isinstance(ours, Taken) or (isinstance(theirs, Taken) and not ends_elsewhere(oracle, message)):
        return f"only one sees the end of {data!r}: ewe {ours}, {oracle} {theirs}"
    return ""  # both refuse the message; the place of the refusal may differ


def ends_elsewhere(oracle: str, message: Message) -> bool:
    """May the oracle see the end of the message in another place?"""
    return any(whose == oracle and condition(message) for whose, _, condition in ENDS)


def explains(row: Row, why: str, oracle: str, message: Message) -> bool:
    """Does this row of a table explain the difference?"""
    reason, whose, _, condition = row
    return bool(re.search(reason, why) and whose in (oracle, "both") and condition(message))


# --- Messages ------------------------------------------------------------------------------------------------

TARGETS = st.sampled_from([
    "/", "/a/b", "/a?b=c", "/%41", "/a/../b", "/..", "*", "http://a/b", "http://a", "a:80", "/a#b", "/%", "/\\",
    "/{}", "//a", "https://[::1]:8/", "http://u@a/", "/a%2fb", "/%00", "/;a=b", "/\xe9", "", "/a b",
])  # fmt: skip
METHODS = st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get",
                           "BREW", "M-SEARCH", "PRI", "G T", ""])  # fmt: skip
VERSIONS = st.sampled_from(
    ["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "http/1.1", "HTTP/1", ""]
)
HOSTS = st.sampled_from(["Host: a"] * 8 + [
    "Host: a:80", "host:\ta \t", "Host: a,b", "Host:", "Host: [::1]", "Host: [::", "Host: a b", "Host: u@a",
    "Host: a/b", "Host: a:99999", "Host: a;b", "X-Host: a",
])  # fmt: skip
FIELDS = st.sampled_from([
    "A: b", "A:b", "A:", "A : b", " A: b", "A: b c ", "A: \xe9", "A: \x00", "A: \x7f", "A: b\n", "A: b\rc", "A",
    ": b",
    "A: b\r\n c", "A(: b", "Host: b", "Connection: close", "Connection: keep-alive", "Expect: 100-continue",
    "Expect: 200", "Content-Length: 5", "Content-Length: 0", "Content-Length: 05", "Content-Length: +5",
    "Content-Length: 5, 5", "Content-Length: 5,6", "Content-Length:", "Content-Length: 0x5",
    "Content-Length: 9" * 5,
    "Transfer-Encoding: chunked", "Transfer-Encoding: CHUNKED", "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity",
    "Transfer-Encoding:", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked;a=b", "Upgrade: h2c",
    "Connection: upgrade", "TE: trailers", "Trailer: A", "Cookie: a=b", "Cookie: c",
])  # fmt: skip
FRAMINGS = st.sampled_from(["", "", "Content-Length: 5", "Content-Length: 5", "Transfer-Encoding: chunked",
                            "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"])  # fmt: skip
BODIES = st.sampled_from([
    "", "hello", "hello, world", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n",
    "A\r\n0123456789\r\n00\r\n\r\n", "5 ; a\r\nhello\r\n0\r\n\r\n", '5;a="b;c"\r\nhello\r\n0\r\n\r\n',
    "5\nhello\n0\n\n",
    "5 \r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n", "-5\r\nhello\r\n0\r\n\r\n", "6\r\nhello\r\n0\r\n\r\n",
    "4\r\nhello\r\n0\r\n\r\n", "5\r\nhello0\r\n\r\n",
    "5\r\nhelloab0\r\n\r\n", "0\r\nA : b\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n",
    "0\r\nHost: b\r\n\r\n", "00000000000000005\r\nhello\r\n0\r\n\r\n", "10000000000000005\r\nhello\r\n0\r\n\r\n",
    "0\r\n A: b\r\n\r\n", "5;\r\nhello\r\n0\r\n\r\n", "5;a\nb\r\nhello\r\n0\r\n\r\n",
])  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Return a message of likely parts, sometimes changed in a place or two."""
    lines = [" ".join((draw(METHODS), draw(TARGETS), draw(VERSIONS))), draw(HOSTS)]
    lines += draw(st.lists(FIELDS, max_size=3))
    framing = draw(FRAMINGS)
    lines += [framing] if framing else []
    data = (
        "".join(line + "\r\n" for line in lines).encode("latin-1") + b"\r\n" + draw(BODIES).encode("latin-1")
    )
    data = draw(st.sampled_from([b"", b"", b"", b"\r\n", b"\n"])) + data
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(st.sampled_from(BITS)) + data[place + draw(st.integers(0, 1)) :]
    return data + draw(st.sampled_from([b"", b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"]))


# The same examples each time. A search for new ones is run by hand, with more examples.
same = settings(max_examples=examples(1000), deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("oracle", ORACLES)
@same
@given(requests())
@example(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
def test_differences_are_explained(oracle: str, data: bytes) -> None:
    assert unexplained(data, oracle) == ""


@pytest.mark.parametrize("oracle", ORACLES)
def test_differences_in_the_corpus_are_explained(oracle: str) -> None:
    for path in sorted(CORPUS.glob("*/*.http")):
        assert unexplained(path.read_bytes(), oracle) == "", path.stem


@pytest.mark.parametrize("oracle", ORACLES)
def test_good_requests_are_understood_by_all(oracle: str) -> None:
    """This test prevents that the tables above explain every difference."""
    good = [
        b"GET /a?b HTTP/1.1\r\nHost: a\r\nA: b\r\nA: c\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\nGET",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
    ]
    for data in good:
        ours, theirs = by_ewe(data), ORACLES[oracle](data)
        assert isinstance(ours, Taken) and isinstance(theirs, Taken)
        assert (ours.fields, ours.body, ours.rest) == (theirs.fields, theirs.body, theirs.rest)


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nA: \x00\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
])  # fmt: skip
def test_bad_requests_are_refused_by_all(data: bytes) -> None:
    assert (
        isinstance(by_ewe(data), Left)
        and isinstance(by_h11(data), Left)
        and isinstance(by_httptools(data), Left)
    )


def test_every_row_of_the_tables_is_needed() -> None:
    """The corpus has a message for each; a row that explains nothing would hide what it was never meant for."""
    used: set[int] = set()
    for path in sorted(CORPUS.glob("*/*.http")):
        data = path.read_bytes()
        ours = by_ewe(data)
        for oracle, by_oracle in ORACLES.items():
            theirs = by_oracle(data)
            if isinstance(ours, Left) and isinstance(theirs, Taken):
                used |= {id(row) for row in STRICTER if explains(row, ours.why, oracle, Message(data))}
            elif isinstance(ours, Taken) and isinstance(theirs, Left):
                used |= {id(row) for row in LOOSER if explains(row, theirs.why, oracle, Message(data))}
    assert [row[:3] for row in STRICTER + LOOSER if id(row) not in used] == []


def test_a_short_fuzz() -> None:
    """The loop of tests/support/fuzz.py, which runs for longer by hand."""
    count, slowest, outcomes = fuzz(30, seed=1, inputs=20_000)
    assert count == 20_000 and slowest < 1
    assert {"request", "incomplete", "400", "413", "417", "501", "505"} <= outcomes.keys()
