"""Range requests: the grammar of RFC 9110 section 14 as a table, and the parts as clients get them."""

from __future__ import annotations

import random
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support import web
from support.server import Start

from ewe.http.ranges import MAX_RANGES, wanted

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
        ("bytes=0-9,2000-", 1000, [(0, 10)]),  # what cannot be satisfied is left out
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
    ],
)
def test_wanted(value: str, size: int, expected: list[tuple[int, int]] | None) -> None:
    assert wanted(value, size) == expected


def test_many_ranges_are_the_whole() -> None:
    far = [f"{100 * number}-{100 * number}" for number in range(MAX_RANGES + 1)]
    assert wanted("bytes=" + ",".join(far), 1_000_000) is None
    assert len(wanted("bytes=" + ",".join(far[1:]), 1_000_000) or ()) == MAX_RANGES


@pytest.mark.parametrize("unit", [" ,", ", ", ",\t ,", "0-0 ,", "-", "0", "1-2, ", "0-"])
@pytest.mark.parametrize("end", ["", " x", "0-0"])
def test_a_hostile_field_costs_little(unit: str, end: str) -> None:
    value = "bytes=0-0" + unit * (16000 // len(unit)) + end
    began = time.process_time()
    wanted(value, 1000)
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
    found = wanted("bytes=" + ",".join(shown), size)
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
        for offset, count in wanted(value, size) or ():
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


def test_parts_of_a_file(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait)
    content = random.Random(1).randbytes(300_000)
    (server.root / "small.txt").write_bytes(content[:1000])
    (server.root / "large.bin").write_bytes(content)
    (server.root / "empty.txt").write_bytes(b"")
    with web.Client(base_url=server.url) as client:

        def get(path: str, value: str, **more: str) -> httpx.Response:
            return client.get(path, headers={"Range": value, **more})

        for path, size in (("/small.txt", 1000), ("/large.bin", 300_000)):
            whole = client.get(path)
            assert whole.headers["accept-ranges"] == "bytes"
            kind = whole.headers["content-type"]
            for value, first, last in (
                ("bytes=0-9", 0, 9),
                ("bytes=-5", size - 5, size - 1),
                (f"bytes={size - 10}-", size - 10, size - 1),
                (f"bytes=1-{size * 9}", 1, size - 1),
                ("bytes=0-", 0, size - 1),
            ):
                response = get(path, value)
                assert response.status_code == 206
                assert response.content == content[first : last + 1]
                assert response.headers["content-range"] == f"bytes {first}-{last}/{size}"
                assert response.headers["content-length"] == str(last - first + 1)
                assert response.headers["content-type"] == kind
                for name in ("etag", "last-modified", "accept-ranges"):
                    assert response.headers[name] == whole.headers[name]
            # Several
            third = size // 3
            response = get(path, f"bytes=-7, 0-{third - 1},{2 * third}-{2 * third + 49}")
            assert response.status_code == 206
            assert response.headers["etag"] == whole.headers["etag"]
            assert "content-range" not in response.headers
            spans = ((size - 7, size - 1), (0, third - 1), (2 * third, 2 * third + 49))
            assert parts_of(response) == [
                (
                    {"content-type": kind, "content-range": f"bytes {first}-{last}/{size}"},
                    content[first : last + 1],
                )
                for first, last in spans
            ]
            # Not satisfiable
            response = get(path, f"bytes={size}-")
            assert response.status_code == 416
            assert response.headers["content-range"] == f"bytes */{size}"
            assert get(path, "bytes=-0").status_code == 416
            # Ignored
            for value in ("bytes=4-3", "lines=0-9", "bytes=x", "bytes=0-9,-", ""):
                response = get(path, value)
                assert (response.status_code, response.content) == (200, content[:size]), value
                assert "content-range" not in response.headers
            head = client.head(path, headers={"Range": "bytes=0-9"})  # defined for GET alone: section 14.2
            assert (head.status_code, head.headers["content-length"]) == (200, str(size))
            # If-Range
            etag = whole.headers["etag"]
            assert get(path, "bytes=0-9", **{"If-Range": etag}).content == content[:10]
            assert get(path, "bytes=0-9", **{"If-Range": "W/" + etag}).content == content[:size]
            assert get(path, f"bytes={size}-", **{"If-Range": etag}).status_code == 416
            assert get(path, f"bytes={size}-", **{"If-Range": '"x"'}).status_code == 200
        assert get("/empty.txt", "bytes=0-").status_code == 416
        # A download in parts, as a client with a broken line does it
        pieces = [get("/large.bin", f"bytes={at}-{at + 49_999}").content for at in range(0, 300_000, 50_000)]
        assert b"".join(pieces) == content
