"""Range requests: the grammar of RFC 9110 section 14 as a table, and the parts as clients get them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support import web
from support.server import WAYS_TO_WAIT, Server

from ewe.http.ranges import MAX_RANGES, satisfiable_ranges

WHOLE = None  # the field is ignored


@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [
        ("bytes=0-9", 1000, [(0, 10)]),
        ("bytes=0-0", 1000, [(0, 1)]),
        ("bytes=999-999", 1000, [(999, 1)]),
        ("bytes=0-999", 1000, [(0, 1000)]),
        ("bytes=990-", 1000, [(990, 10)]),
        ("bytes=0-", 1000, [(0, 1000)]),
        ("bytes=-5", 1000, [(995, 5)]),
        ("bytes=-5000", 1000, [(0, 1000)]),
        ("bytes=990-5000", 1000, [(990, 10)]),
        ("bytes=00000-00009", 1000, [(0, 10)]),
        ("Bytes=0-9", 1000, [(0, 10)]),  # units are case-insensitive: section 14.1
        # Not satisfiable: 416
        ("bytes=1000-", 1000, []),
        ("bytes=2000-3000", 1000, []),
        ("bytes=-0", 1000, []),
        ("bytes=0-", 0, []),
        ("bytes=1000-,-0", 1000, []),
        # Several
        ("bytes=0-9,20-29", 1000, [(0, 10), (20, 10)]),
        ("bytes=20-29,0-9", 1000, [(20, 10), (0, 10)]),  # in the order asked for
        ("bytes=0-9 ,\t20-29 , -10", 1000, [(0, 10), (20, 10), (990, 10)]),
        ("bytes=,0-9,, 20-29, ,", 1000, [(0, 10), (20, 10)]),  # empty elements: section 5.6.1.2
        ("bytes=0-9,2000-", 1000, [(0, 10)]),  # a range outside of the file is omitted
        ("bytes=0-9,5-14", 1000, [(0, 10), (5, 10)]),  # two may overlap: section 14.2
        ("bytes=0-9,5-14,8-20", 1000, WHOLE),  # more than two may not
        ("bytes=0-599,400-999", 1000, WHOLE),  # more than the whole
        ("bytes=0-,0-", 1000, WHOLE),
        # Invalid, so ignored: section 14.2
        ("bytes=4-3", 1000, WHOLE),
        ("bytes=0-9,4-3", 1000, WHOLE),
        ("bytes=", 1000, WHOLE),
        ("bytes=,", 1000, WHOLE),
        ("bytes=-", 1000, WHOLE),
        ("bytes=0-9,-", 1000, WHOLE),
        ("bytes", 1000, WHOLE),
        ("", 1000, WHOLE),
        ("0-9", 1000, WHOLE),
        ("lines=0-9", 1000, WHOLE),
        ("bytes 0-9", 1000, WHOLE),
        ("bytes=a-b", 1000, WHOLE),
        ("bytes=0x0-9", 1000, WHOLE),
        ("bytes=+0-9", 1000, WHOLE),
        ("bytes=0--9", 1000, WHOLE),
        ("bytes=0 - 9", 1000, WHOLE),
        ("bytes=1_0-20", 1000, WHOLE),
        ("bytes=\xb2-9", 1000, WHOLE),  # str.isdigit() would take it
        ("bytes=0-9;20-29", 1000, WHOLE),
        ("bytes=0-9 20-29", 1000, WHOLE),
        ("bytes=0-9, bytes=20-29", 1000, WHOLE),
        ("bytes=0-" + "9" * 30, 1000, WHOLE),
        ("bytes=-5", 0, WHOLE),  # satisfiable, but no Content-Range could say so
    ],
)
def test_wanted(value: str, size: int, expected: list[tuple[int, int]] | None) -> None:
    assert satisfiable_ranges(value, size) == expected


def test_many_ranges_are_the_whole() -> None:
    far = [f"{100 * number}-{100 * number}" for number in range(MAX_RANGES + 1)]
    assert satisfiable_ranges("bytes=" + ",".join(far), 1_000_000) is None
    assert len(satisfiable_ranges("bytes=" + ",".join(far[1:]), 1_000_000) or ()) == MAX_RANGES


@pytest.mark.parametrize("unit", [" ,", ", ", ",\t ,", "0-0 ,", "-", "0", "1-2, ", "0-"])
@pytest.mark.parametrize("end", ["", " x", "0-0"])
def test_a_hostile_field_costs_little(unit: str, end: str) -> None:
    value = "bytes=0-0" + unit * (16000 // len(unit)) + end
    began = time.process_time()
    satisfiable_ranges(value, 1000)
    assert time.process_time() - began < 1


SPECS = some.one_of(
    some.tuples(some.integers(0, 50), some.integers(0, 50)).map(lambda pair: (min(pair), max(pair))),
    some.tuples(some.integers(0, 50), some.none()),
    some.tuples(some.none(), some.integers(0, 50)),
)


@settings(deadline=None)
@given(some.lists(SPECS, min_size=1, max_size=4), some.integers(0, 40))
def test_parts_are_those_bytes(specs: list[tuple[int | None, int | None]], size: int) -> None:
    """Against slices of a real string; a field may be ignored only when it asks for many bytes twice."""
    content = bytes(range(size))
    slices = []
    for first, last in specs:
        if first is None:
            slices.append(content[-last:] if last else b"")
        else:
            slices.append(content[first:] if last is None else content[first : last + 1])
    shown = ["-".join("" if end is None else str(end) for end in spec) for spec in specs]
    found = satisfiable_ranges("bytes=" + ",".join(shown), size)
    expected = [each for each in slices if each]
    if found is None and not size:
        assert any(first is None and last for first, last in specs)  # a suffix of nothing: the whole, 200
    elif found is None:
        assert len(expected) > 1
        assert sum(map(len, expected)) > len(set(b"".join(expected))) or sum(map(len, expected)) >= size
    else:
        assert [content[offset : offset + count] for offset, count in found] == expected


@settings(deadline=None)
@given(some.text(some.sampled_from("bytes=-,0123456789 \t")), some.integers(0, 10**6))
def test_no_part_leaves_the_file(text: str, size: int) -> None:
    for value in (text, "bytes=" + text):
        for offset, count in satisfiable_ranges(value, size) or ():
            assert offset >= 0 and count > 0 and offset + count <= size


# Over a socket


def parts_of(response: httpx.Response) -> list[tuple[dict[str, str], bytes]]:
    """Return the fields and the bytes of each part, read as RFC 2046 section 5.1.1 says."""
    kind, _, boundary = response.headers["content-type"].partition("; boundary=")
    assert kind == "multipart/byteranges"
    preamble, *parts, end = response.content.split(b"\r\n--" + boundary.encode())
    assert preamble == b"" and end == b"--\r\n"
    found = []
    for part in parts:
        assert part.startswith(b"\r\n")
        head, _, content = part[2:].partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        found.append(({name.lower(): value for name, _, value in lines}, content))
    return found


CONTENT = random.Random(1).randbytes(300_000)
FILES = {"/small.txt": CONTENT[:1000], "/large.bin": CONTENT, "/empty.txt": b""}
# A test with this mark asks the server that it shares with the tests of this file, once for each way to wait.
in_each_way = pytest.mark.parametrize("shared_server", WAYS_TO_WAIT, indirect=True)
# A file that the cache of the server holds, and one that is too large for it
of_small_and_large = pytest.mark.parametrize("path", ["/small.txt", "/large.bin"])


@pytest.fixture(scope="module")
def client(shared_server: Server) -> Iterator[httpx.Client]:
    """A client of the shared server, which serves FILES."""
    for path, content in FILES.items():
        (shared_server.root / path[1:]).write_bytes(content)
    with web.Client(base_url=shared_server.url) as client:
        yield client


def get(client: httpx.Client, path: str, value: str, **more: str) -> httpx.Response:
    """Ask for a range of a file."""
    return client.get(path, headers={"Range": value, **more})


@in_each_way
@of_small_and_large
def test_a_part_of_a_file(client: httpx.Client, path: str) -> None:
    size = len(FILES[path])
    whole = client.get(path).headers
    assert whole["accept-ranges"] == "bytes"
    same = {name: whole[name] for name in ("content-type", "etag", "last-modified", "accept-ranges")}
    for value, first, last in (
        ("bytes=0-9", 0, 9),
        ("bytes=-5", size - 5, size - 1),
        (f"bytes={size - 10}-", size - 10, size - 1),
        (f"bytes=1-{size * 9}", 1, size - 1),
        ("bytes=0-", 0, size - 1),
    ):
        response = get(client, path, value)
        assert (response.status_code, response.content) == (206, FILES[path][first : last + 1]), value
        expected = same | {
            "content-range": f"bytes {first}-{last}/{size}",
            "content-length": str(last - first + 1),
        }
        assert {name: response.headers[name] for name in expected} == expected, value


@in_each_way
@of_small_and_large
def test_several_parts_of_a_file(client: httpx.Client, path: str) -> None:
    size = len(FILES[path])
    whole = client.get(path).headers
    third = size // 3
    response = get(client, path, f"bytes=-7, 0-{third - 1},{2 * third}-{2 * third + 49}")
    assert (response.status_code, response.headers["etag"]) == (206, whole["etag"])
    assert "content-range" not in response.headers
    spans = ((size - 7, size - 1), (0, third - 1), (2 * third, 2 * third + 49))
    assert parts_of(response) == [
        (
            {"content-type": whole["content-type"], "content-range": f"bytes {first}-{last}/{size}"},
            FILES[path][first : last + 1],
        )
        for first, last in spans
    ]


@in_each_way
@of_small_and_large
def test_a_range_outside_of_the_file_is_416(client: httpx.Client, path: str) -> None:
    size = len(FILES[path])
    response = get(client, path, f"bytes={size}-")
    assert (response.status_code, response.headers["content-range"]) == (416, f"bytes */{size}")
    assert get(client, path, "bytes=-0").status_code == 416
    assert get(client, "/empty.txt", "bytes=0-").status_code == 416


@in_each_way
@of_small_and_large
def test_a_range_that_is_ignored(client: httpx.Client, path: str) -> None:
    for value in ("bytes=4-3", "lines=0-9", "bytes=x", "bytes=0-9,-", ""):
        response = get(client, path, value)
        assert (response.status_code, response.content) == (200, FILES[path]), value
        assert "content-range" not in response.headers, value
    head = client.head(path, headers={"Range": "bytes=0-9"})  # defined for GET alone: section 14.2
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(FILES[path])))


@in_each_way
@of_small_and_large
def test_if_range(client: httpx.Client, path: str) -> None:
    content = FILES[path]
    etag = client.get(path).headers["etag"]
    beyond = f"bytes={len(content)}-"
    assert get(client, path, "bytes=0-9", **{"If-Range": etag}).content == content[:10]
    assert get(client, path, "bytes=0-9", **{"If-Range": "W/" + etag}).content == content
    assert get(client, path, beyond, **{"If-Range": etag}).status_code == 416
    assert get(client, path, beyond, **{"If-Range": '"x"'}).status_code == 200


@in_each_way
def test_a_download_in_parts(client: httpx.Client) -> None:
    """As a client with a broken line does it."""
    starts = range(0, 300_000, 50_000)
    pieces = [get(client, "/large.bin", f"bytes={at}-{at + 49_999}").content for at in starts]
    assert b"".join(pieces) == CONTENT
