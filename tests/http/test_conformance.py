"""Rules of RFC 9110, 9112 and 3875 that the other tests do not show: tests/conformance.md has them all.

Most of it in memory, over a site with a few files; what a program writes, over one server.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
from support.memory import Answer, Echo, MemoryStream, answers, every_cut, talk
from support.server import Start, write_program
from support.wire import read_response, request_of

from ewe.config.settings import Config
from ewe.conversation import converse
from ewe.http.dates import parse_date
from ewe.http.limits import RequestLimits
from ewe.http.lines import check_partial_head
from ewe.http.status import HTTPError
from ewe.site import Site
from ewe.sites import make_site
from ewe.streams.blocking import run
from ewe.streams.tls import SecureStream

NOW = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a file, a directory with an index, one without, and no program."""
    (tmp_path / "file.txt").write_text("0123456789")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "with").mkdir()
    (tmp_path / "with" / "index.html").write_text("index")
    (tmp_path / "with" / "[fi|le]").write_text("a name with brackets")
    (tmp_path / "listed").mkdir()
    for path in tmp_path.glob("*.txt"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return make_site(Config(documentroot=str(tmp_path), cgi_path=str(tmp_path / "none")))


def one(site: object, data: bytes) -> tuple[Answer, MemoryStream]:
    """Return the only answer to these bytes, and the stream."""
    stream = talk(site, data)
    method = "HEAD" if data.startswith(b"HEAD ") else "GET"
    (answer,) = [answer for answer in answers(stream.output(), method) if answer.status >= 200]
    return answer, stream


# --- RFC 9112 section 2.2: parsing ---------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [0, 1, 2, 3])
def test_one_empty_line_before_a_request_however_it_is_cut(lines: int) -> None:
    data = b"\r\n" * lines + request_of("GET /")
    for pieces in ([data], *every_cut(data)):
        found = answers(talk(Echo(), *pieces).output())
        assert [answer.status for answer in found] == [200 if lines < 2 else 400]


def test_a_client_that_sends_only_an_empty_line() -> None:
    assert talk(Echo(), b"\r\n").output() == b""
    assert talk(Echo(), b"\r", b"\n").output() == b""


@pytest.mark.parametrize(
    "begun",
    [b"\xff\xfe", b"(", b" ", b"GET  ", b"GET\t", b"GET \xe9", b"GET / X", b"GET / HTTPS", b"GET / HTTP/1.1 ",
     b"GET / http", b"{json: 1}", b'"', b"\x80" * 100],
)  # fmt: skip
def test_what_no_request_begins_with_is_refused_before_its_line_ends(begun: bytes) -> None:
    with pytest.raises(HTTPError) as info:
        check_partial_head(begun, RequestLimits())
    assert info.value.status == 400


@pytest.mark.parametrize(
    "line", ["GET / HTTP/1.1", "OPTIONS * HTTP/1.0", "A!#$%&'*+-.^_`|~z9 http://a/?b HTTP/1.1"]
)
def test_a_request_line_that_comes_bit_by_bit_is_waited_for(line: str) -> None:
    data = line.encode() + b"\r"
    for size in range(len(data) + 1):
        check_partial_head(data[:size], RequestLimits())


# --- RFC 9110 section 7: routing -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["https://ewe/file.txt", "HTTPS://ewe/file.txt", "https://ewe"])
def test_an_https_url_needs_a_secured_connection(site: Site, target: str) -> None:
    """Section 7.4; 421 is section 15.5.20."""
    answer, stream = one(site, request_of(f"GET {target}"))
    assert (answer.status, answer.fields["connection"]) == (421, "close")
    assert stream.lingered
    assert SecureStream.scheme == "https"  # the scheme that lets the request pass there


def test_an_https_url_is_refused_also_after_it_was_served_over_tls(site: Site) -> None:
    """ewe remembers what a head means, for all connections of the process."""
    data = request_of("GET https://other/file.txt")
    secured = MemoryStream([data])
    secured.scheme = "https"
    run(converse(secured, site))
    plain = MemoryStream([data])
    run(converse(plain, site))
    assert [each.status for stream in (secured, plain) for each in answers(stream.output())] == [200, 421]


def test_an_http_url_is_served(site: Site) -> None:
    assert one(site, request_of("GET http://other/file.txt"))[0].body == b"0123456789"


@pytest.mark.parametrize("fields", [("Connection: upgrade", "Upgrade: h2c"), ("Upgrade: websocket",)])
def test_an_upgrade_is_ignored(site: Site, fields: tuple[str, ...]) -> None:
    """Section 7.8."""
    answer, _ = one(site, request_of("GET /file.txt", *fields))
    assert answer.status == 200 and "upgrade" not in answer.fields


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding", "Date", "Expect", "Cookie"])
def test_connection_cannot_remove_a_field(site: Site, name: str) -> None:
    """Section 7.6.1 is about those who forward; nothing that frames is dropped here because it is named there."""
    data = request_of("POST /file.txt", f"Connection: {name}", "Content-Length: 3", body=b"abc") + request_of(
        "GET /x"
    )
    found = answers(talk(site, data).output())
    assert [answer.status for answer in found] == [405, 404]


# --- RFC 9112 sections 6 and 7: framing ----------------------------------------------------------------------


@pytest.mark.parametrize("coding", [",chunked", "chunked,", ", chunked", "gzip,,chunked", ",", "chunked,,"])
def test_an_empty_element_among_transfer_codings(coding: str) -> None:
    data = request_of(
        "POST /", f"Transfer-Encoding: {coding}", body=b"0\r\n\r\n" + request_of("GET /smuggled")
    )
    answer, stream = one(Echo(), data)
    assert (answer.status, answer.fields["connection"]) == (400, "close")
    assert stream.lingered


BAD_CHUNKS = (
    b"xyz\r\n", b"5\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n", b"-1\r\n", b"0x5\r\nhello\r\n", b" 5\r\nhello\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n", b"5;\r\nhello\r\n", b"5;a=\"\r\nhello\r\n", b"5\r\nhello\r\n0\r\nA : b\r\n\r\n",
    b"5\r\nhello\r\n0\r\n b\r\n\r\n", b"0\r\n\n", b"ffffffffffffffff5\r\n", b"5\r\nhel\r\n0\r\n\r\n", b"5_0\r\n",
    b"\r\n0\r\n\r\n", b"5\rhello\r\n", b"5\r\r\nhello\r\n", b"5;a\x00\r\nhello\r\n", b"0\r\nA: b\n\r\n",
)  # fmt: skip


@pytest.mark.parametrize(
    "line", ["GET /file.txt", "POST /file.txt", "GET /none", "OPTIONS *", "GET /listed/"]
)
@pytest.mark.parametrize("body", BAD_CHUNKS)
def test_a_badly_chunked_request_is_refused_whatever_it_asks_for(site: Site, line: str, body: bytes) -> None:
    """Even if no feature reads the body: an answer would tell the client that ewe has understood the request."""
    data = request_of(line, "Transfer-Encoding: chunked", body=body + request_of("GET /smuggled"))
    for pieces in (
        [data],
        [data[:20], data[20:-50], data[-50:]],
        [data[i : i + 1] for i in range(len(data))],
    ):
        stream = talk(site, *pieces)
        (answer,) = answers(stream.output())
        assert (answer.status, answer.fields["connection"]) == (400, "close")
        assert stream.lingered


def test_a_well_chunked_request_is_read_before_it_is_answered(site: Site) -> None:
    body = b"3;a=b\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n"
    data = request_of("GET /file.txt", "Transfer-Encoding: chunked", body=body) + request_of("GET /listed")
    for pieces in ([data], *every_cut(data)):
        assert [answer.status for answer in answers(talk(site, *pieces).output())] == [200, 301]


def test_a_client_that_waits_for_100_is_not_read_ahead(site: Site) -> None:
    """RFC 9110 section 10.1.1: the final status at once, where the body is not wanted."""
    answer, stream = one(
        site, request_of("PUT /file.txt", "Transfer-Encoding: chunked", "Expect: 100-continue")
    )
    assert (answer.status, answer.fields["connection"]) == (405, "close")
    assert b" 100 " not in stream.output() and "receive" not in stream.did


def test_a_long_chunked_body_is_answered_with_a_close(site: Site) -> None:
    chunk = b"2000\r\n" + bytes(0x2000) + b"\r\n"
    stream = talk(site, request_of("PUT /file.txt", "Transfer-Encoding: chunked"), *[chunk] * 40)
    (answer,) = answers(stream.output())
    assert (answer.status, answer.fields["connection"]) == (405, "close")
    assert len(stream.pieces) > 20 and stream.lingered


# --- RFC 9110 sections 6, 9 and 15: every response -----------------------------------------------------------

REQUESTS = [
    ("GET /file.txt", (), 200), ("GET /with/", (), 200), ("GET /listed/", (), 200), ("GET /listed", (), 301),
    ("GET /none", (), 404), ("GET /.git", (), 404), ("GET /a%2fb", (), 404), ("POST /file.txt", (), 405),
    ("DELETE /none", (), 405), ("TRACE /file.txt", (), 405), ("OPTIONS /file.txt", (), 204),
    ("OPTIONS *", (), 204), ("CONNECT ewe:80", (), 501), ("FROB /", (), 501), ("get /", (), 501),
    ("GET /../a", (), 400), ("GET *", (), 400), ("GET /file.txt", ("Range: bytes=2-4",), 206),
    ("GET /file.txt", ("Range: bytes=99-",), 416), ("GET /file.txt", ('If-Match: "x"',), 412),
    ("GET /file.txt", ("If-None-Match: *",), 304), ("GET /file.txt", ("Expect: tea",), 417),
    ("GET /file.txt", ("Content-Length: 99999999999999",), 413), ("GET /" + "a" * 9000, (), 414),
    ("GET /file.txt", ("A: " + "a" * 20000,), 431), ("GET /file.txt", ("Host: other",), 400),
]  # fmt: skip


@pytest.mark.parametrize(("line", "fields", "status"), REQUESTS)
def test_what_every_response_has(site: Site, line: str, fields: tuple[str, ...], status: int) -> None:
    answer, stream = one(site, request_of(line, *fields))
    assert answer.status == status
    assert NOW.fullmatch(answer.fields["date"]) and parse_date(answer.fields["date"])  # section 6.6.1
    assert "transfer-encoding" not in answer.fields
    assert ("content-length" in answer.fields) is (status not in (204, 304))  # section 8.6
    assert ("allow" in answer.fields) is (status == 405 or line.startswith("OPTIONS"))  # section 15.5.6
    assert not answer.body or "content-type" in answer.fields  # section 8.3
    if status in (206, 416):  # sections 15.3.7 and 15.5.17
        assert answer.fields["content-range"] == ("bytes 2-4/10" if status == 206 else "bytes */10")
    if status == 301:
        assert answer.fields["location"] == "/listed/"
    if status == 304:  # section 15.4.5
        assert "etag" in answer.fields and "content-type" not in answer.fields
    assert (answer.fields.get("connection") == "close") is stream.lingered


@pytest.mark.parametrize(("line", "fields", "status"), [row for row in REQUESTS if row[0].startswith("GET")])
def test_head_is_get_without_content(site: Site, line: str, fields: tuple[str, ...], status: int) -> None:
    """Section 9.3.2; Range is for GET alone: section 14.2."""
    whole, _ = one(site, request_of(line, *fields))
    answer, _ = one(site, request_of(line.replace("GET", "HEAD", 1), *fields))
    if "range" in "".join(fields).lower():
        assert answer.status == 200 and "content-range" not in answer.fields
        return
    for found in (whole, answer):
        found.fields.pop("date")
    assert (answer.status, answer.fields) == (status, whole.fields)
    assert answer.body == b""


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.9"])
def test_the_version_of_a_response_is_ours(site: Site, version: str) -> None:
    """Section 6.2: the highest this server speaks of the client's major version."""
    data = request_of("GET /file.txt").replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    assert talk(site, data).output().startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "TRACE"])
@pytest.mark.parametrize("field", ['If-Match: "x"', "If-None-Match: *", "Range: bytes=0-1"])
def test_conditions_do_not_matter_where_the_method_is_refused(site: Site, method: str, field: str) -> None:
    """Section 13.2.1: only where the answer would be a 2xx or a 412."""
    answer, _ = one(site, request_of(f"{method} /file.txt", field))
    assert answer.status == 405
    assert one(site, request_of("GET /none", field))[0].status == 404


@pytest.mark.parametrize(
    "field",
    ["Range: bytes=5-2", "Range: bytes=a-b", "Range: lines=0-1", "Range: bytes=0-1,x", "Range: bytes",
     "Range: =0-1",
     "If-Modified-Since: yesterday", "If-Unmodified-Since: 0", 'If-None-Match: "x"', "If-None-Match: x",
     "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT, Sun, 09 Sep 2001 01:46:40 GMT"],
)  # fmt: skip
def test_what_is_not_understood_of_conditions_and_ranges_is_ignored(site: Site, field: str) -> None:
    """Sections 13.1.2 to 13.1.4, 14.1.1 and 14.2."""
    answer, _ = one(site, request_of("GET /file.txt", field))
    assert (answer.status, answer.body) == (200, b"0123456789")


# --- RFC 3875 section 6: what a program writes ---------------------------------------------------------------


def test_a_program_cannot_break_the_framing(start: Start) -> None:
    server = start("thread")
    write_program(server.cgi / "say", "#!/bin/sh\nexec cat\n")
    good = b"Content-Type: text/plain\n"
    with server.connect() as sock:

        def say(text: bytes, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
            sock.sendall(request_of(f"{method} /cgi-bin/say", f"Content-Length: {len(text)}", body=text))
            return read_response(sock, method)

        # 205 has no content (RFC 9110 section 15.3.6), nor have 204 and 304; the connection stays in step
        for status in (204, 205, 304):
            for body in (b"", b"body", b"HTTP/1.1 200 OK\r\n\r\n"):
                for length in (b"", b"Content-Length: %d\n" % len(body)):
                    found, fields, content = say(good + b"Status: %d\n" % status + length + b"\n" + body)
                    assert (found, content) == (status, b"")
                    assert fields.get("content-length") == ("0" if status == 205 else None)
                    assert "transfer-encoding" not in fields
        assert say(good + b"Status: 205 Start Over\n\nbody", "HEAD")[:1] == (205,)
        for field in (b"A: b\rSet-Cookie: c\n", b"A: b\0c\n", b"A b: c\n", b": b\n", b"A: b\n folded\n", b"A\n",
                      b"Content-Length: 1\nContent-Length: 1\n", b"Content-Length: +1\n", b"Status: 100\n",
                      b"Status: 101 Switching\n", b"Status: 600\n", b"A : b\n", b"A: \x0b\n"):  # fmt: skip
            assert say(good + field + b"\nx")[0] == 502, field
        for field in (b"Transfer-Encoding: chunked", b"Connection: close", b"Keep-Alive: 1", b"Upgrade: h2c",
                      b"Trailer: a", b"Date: yesterday"):  # fmt: skip
            status, fields, content = say(good + field + b"\n\nbody")
            assert (status, content) == (200, b"body")
            assert fields["transfer-encoding"] == "chunked"
            assert not {"connection", "keep-alive", "upgrade", "trailer"} & set(fields)
            assert NOW.fullmatch(fields["date"])


def test_framing_that_is_bad_starts_no_program(start: Start) -> None:
    server = start("thread")
    mark = server.root.parent / "started"
    write_program(server.cgi / "mark", f"#!/bin/sh\ntouch {mark}\nprintf 'Content-Type: a/b\\n\\n'\n")
    for body in BAD_CHUNKS:
        data = server.ask(request_of("POST /cgi-bin/mark", "Transfer-Encoding: chunked", body=body))
        assert [answer.status for answer in answers(data)] == [400], body
    assert not mark.exists()


# --- Deliberate choices ---------------------------------------------------------------------------------------

GET, POST = "GET /file.txt", "POST /file.txt"
# The rows of the last table of conformance.md, by the beginning of their first cell: requests, and their statuses
CHOICES: dict[str, list[tuple[tuple[str, ...] | bytes, int]]] = {
    "Content-Length with zeros": [((POST, "Content-Length: 05"), 400)],
    "Content-Length twice": [
        ((POST, "Content-Length: 5", "Content-Length: 5"), 400),
        ((POST, "Content-Length: 5, 5"), 400),
    ],
    "Content-Length of more than 19": [((POST, "Content-Length: " + "9" * 20), 400)],
    "Empty elements": [((POST, "Transfer-Encoding: , chunked"), 400)],
    "Transfer-Encoding together": [((POST, "Transfer-Encoding: chunked", "Content-Length: 5"), 400)],
    "`identity`": [
        ((POST, "Transfer-Encoding: identity"), 400),
        ((POST, "Transfer-Encoding: identity, chunked"), 501),
    ],
    "A bare LF": [
        (b"GET /file.txt HTTP/1.1\nHost: ewe\r\n\r\n", 400),
        (b"GET /file.txt HTTP/1.1\r\nHost: ewe\n\r\n", 400),
    ],
    "More than one empty line": [(b"\r\n\r\n" + request_of(GET), 400), (b"\r\n" + request_of(GET), 200)],
    "Chunked bodies": [
        (request_of(target, "Transfer-Encoding: chunked", body=b"x\r\n"), 400)
        for target in (GET, "GET /listed/", "GET /none", POST)
    ],
    "Host and URLs": [
        (("GET http://a,b/file.txt",), 400),
        (("GET http://[v1.x]/file.txt",), 400),
        (b"GET /file.txt HTTP/1.1\r\nHost: a,b\r\n\r\n", 400),
    ],
    "Empty Host": [(b"GET /file.txt HTTP/1.1\r\nHost:\r\n\r\n", 400)],
    "A path above": [(("GET /../a",), 400)],
    "An escaped slash": [(("GET /a%2fb",), 404), (("GET /%00",), 400)],
    "Raw bytes": [
        *(((f"GET /{char}",), 400) for char in '\xe9 <>"{}^\\`'),
        (("GET /file.txt?{}|^`[]",), 200),
    ],
    "`\\|`": [(("GET /with/[fi|le]",), 200)],
    "A percent sign": [(("GET /100%",), 400), (("GET /file.txt?q=100%",), 200)],
    "HTTP/1.0 with two Hosts": [
        ((GET + " HTTP/1.0", "Host: again"), 400),
        ((POST + " HTTP/1.0", "Transfer-Encoding: chunked"), 400),
    ],
    "Method names": [(("get /file.txt",), 501)],
    "TRACE": [(("TRACE /file.txt",), 405)],
    "An https URL": [(("GET https://ewe/file.txt",), 421)],
    "A suffix range": [(("GET /empty.txt", "Range: bytes=-5"), 200)],
}
# Requests that are close to a row
NEAR = [
    ((POST, "Content-Length: " + "9" * 19), 413),
    (("GET /listed/", "If-None-Match: *"), 304),
    (("GET /empty.txt", "Range: bytes=-0"), 416),
]


@pytest.mark.parametrize(("sent", "status"), [*itertools.chain(*CHOICES.values()), *NEAR])
def test_deliberate_choices(site: Site, sent: tuple[str, ...] | bytes, status: int) -> None:
    data = sent if isinstance(sent, bytes) else request_of(*sent)
    assert one(site, data)[0].status == status


@pytest.mark.parametrize(
    ("sent", "status"),
    [((GET, "Expect: more"), 417), (("GET /a%2fb",), 404), (("A" * 33 + " /file.txt",), 501)],
)
def test_an_error_of_the_head_closes(site: Site, sent: tuple[str, ...], status: int) -> None:
    """Only the first request is answered."""
    assert one(site, request_of(*sent) + request_of(GET))[0].status == status


def test_each_deliberate_choice_with_a_status_is_tested() -> None:
    """The second cell of a row names the statuses of its requests, except perhaps 200."""
    page = (TESTS / "conformance.md").read_text()
    _, _, section = page.partition("\n## Deliberate choices\n")
    rows = [re.split(r"(?<!\\)\|", line)[1:3] for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 25
    untested = set(CHOICES)
    for what, ewe in rows:
        statuses = {int(number) for number in re.findall(r"\b[1-5][0-9][0-9]\b", ewe)}
        names = [name for name in CHOICES if what.strip().startswith(name)]
        untested.difference_update(names)
        assert len(names) == 1 or not (names or statuses), what
        for name in names:
            tested = {status for _, status in CHOICES[name]}
            assert statuses <= tested <= statuses | {200}, what
    assert not untested


# --- tests/conformance.md -------------------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]


def test_the_page_names_real_tests() -> None:
    page = (TESTS / "conformance.md").read_text()
    names = re.findall(r"`(test_\w+\.py)(?:::(\w+)(?:\[([\w-]+)\])?)?`", page)
    assert len(names) > 150
    paths = {path.name: path for path in TESTS.glob("*/test_*.py")}
    for file, test, case in names:
        path = paths[file]
        assert not test or f"def {test}(" in path.read_text(), f"{file}::{test}"
        if case:
            assert (TESTS / "corpus" / test.removeprefix("test_") / f"{case}.http").exists(), case
