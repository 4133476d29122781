"""Feed the grammar random input: python tests/support/fuzz.py SECONDS [SEED].

Requests of the corpus are cut, joined, changed byte by byte and read. Whatever the bytes, reading them ends
soon, in a Request (and a body that was decoded) or in Refused: anything else is printed, and the exit status
is 1. The last line tells how many inputs there were and how long the slowest took.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ewe.http.chunked import ChunkedDecoder
from ewe.http.dates import parse_date
from ewe.http.limits import RequestLimits
from ewe.http.lines import check_partial_head
from ewe.http.messages import Request
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError

CORPUS = Path(__file__).parents[1] / "corpus"
LIMITS = RequestLimits(max_body=100_000)
SLOW = 1.0  # seconds that no input of this size may take
# Bytes at which parsers often fail: delimiters, control characters, bytes above ASCII, and whole phrases.
BITS = [
    bytes((byte,)) for byte in b'\r\n\t :;,="\\%/?#*@[]().-+0159afxAF\x00\x0b\x0c\x7f\x80\x85\xa0\xe9\xff'
]
BITS += [b"\r\n", b"\r\n\r\n", b"\r\n ", b"HTTP/1.0", b"http://a", b"%2e", b"%00", b"0\r\n\r\n", b"ffffffff"]
BITS += [
    b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"A: " + b"b" * 300 + b"\r\n", b"A: b\r\n" * 20,
    b"Content-Length: 9876543210\r\n",
]  # fmt: skip


class Read:
    """One message as it was read: the request, its body, and the bytes behind it."""

    def __init__(self, request: Request, body: bytes, rest: bytes) -> None:
        self.request = request
        self.body = body
        self.rest = rest


def read(data: bytes, limits: RequestLimits = LIMITS, cut: int = 0) -> Read | None:
    """Read one message off data, as the conversation does; None: it is good so far, but not complete.

    cut: where the first piece ended in which the bytes came, if they came in two. Raises HTTPError.
    """
    if data.startswith(b"\r\n"):
        data = data[2:]
        cut -= 2
    end = data.find(b"\r\n\r\n")
    if 0 < cut < end + 4:
        check_partial_head(data[:cut], limits)
    if end < 0:
        check_partial_head(data, limits)
        return None
    request = parse_request(data[: end + 4], limits)
    rest = data[end + 4 :]
    if request.length is not None:
        body, rest = rest[: request.length], rest[request.length :]
        return Read(request, body, rest) if len(body) == request.length else None
    decoder = ChunkedDecoder(limits)
    first = max(0, cut - end - 4)
    body = decoder.feed(rest[:first])
    if decoder.finished:
        return Read(request, body, decoder.rest + rest[first:])
    body += decoder.feed(rest[first:])
    body += decoder.feed(b"")  # raises what was found behind the bytes above
    return Read(request, body, decoder.rest) if decoder.finished else None


def mutated(chance: random.Random, good: list[bytes], all_seeds: list[bytes]) -> bytes:
    """Return a seed, mostly a good one, or parts of two, with a few changes."""
    data = chance.choice(good if chance.random() < 0.8 else all_seeds)
    if chance.random() < 0.2:
        other = chance.choice(all_seeds)
        data = data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        start = chance.randrange(len(data) + 1)
        kind = chance.random()
        if kind < 0.4:
            data = data[:start] + chance.choice(BITS) + data[start:]
        elif kind < 0.8:
            data = data[:start] + chance.choice(BITS) + data[start + 1 :]
        elif kind < 0.9:
            data = data[:start] + data[start + chance.randrange(1, 9) :]
        else:
            data = data[:start] + chance.randbytes(chance.randrange(1, 5)) + data[start:]
    return data


def fuzz(seconds: float, seed: int, inputs: int = sys.maxsize) -> tuple[int, float, Counter[str]]:
    """Read mutated requests until the time is over; return their count, the slowest, and the results.

    Raises AssertionError with the bytes if the result is neither a Request nor HTTPError, or was different
    when it came in two pieces.
    """
    chance = random.Random(seed)
    good = [path.read_bytes() for path in sorted(CORPUS.glob("valid/*.http"))]
    all_seeds = good + [path.read_bytes() for path in sorted(CORPUS.glob("invalid/*.http"))]
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    began = now = time.perf_counter()
    count = 0
    while now - began < seconds and count < inputs:
        data = mutated(chance, good, all_seeds)
        count += 1
        try:
            message = read(data)
            outcomes["incomplete" if message is None else "request"] += 1
            if message is not None:
                check(message)
                check_cut(message, data, chance.randrange(len(data)))
        except HTTPError as refused:
            outcomes[str(refused.status)] += 1
        except Exception as reason:
            raise AssertionError(f"{reason!r} for {data!r}") from reason
        last, now = now, time.perf_counter()
        slowest = max(slowest, now - last)
        if now - last > SLOW:
            raise AssertionError(f"{now - last:.1f} s for {data!r}")
    return count, slowest, outcomes


def check(message: Read) -> None:
    """Check the invariants of every request."""
    request = message.request
    assert request.path == "*" or request.path.startswith("/")
    assert "\0" not in request.path and not {".", ".."} & set(request.path.split("/"))
    assert all(name == name.lower() and value == value.strip(" \t") for name, value in request.fields)
    assert not any(character in value for _, value in request.fields for character in "\r\n\0")
    assert request.version in ((1, 0), (1, 1))
    assert request.length is None or request.length == len(message.body)
    for value in request.values.values():
        parse_date(value)


def check_cut(message: Read, data: bytes, cut: int) -> None:
    """In two pieces it is the same."""
    try:
        again = read(data, cut=cut)
    except HTTPError as refused:
        raise AssertionError(f"cut at {cut} it is refused: {refused.cause}") from None
    assert again is not None, f"cut at {cut} it has no end"
    assert (again.request.line, again.body, again.rest) == (message.request.line, message.body, message.rest)


def main() -> int:
    """Fuzz for as long as the command line says."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    faulthandler.dump_traceback_later(seconds + 30, exit=True)  # if a parser never ends
    print(f"seed {seed}", flush=True)
    try:
        count, slowest, outcomes = fuzz(seconds, seed)
    except AssertionError as reason:
        print(reason)
        return 1
    print(", ".join(f"{name}: {number}" for name, number in outcomes.most_common()))
    print(f"{count} inputs in {seconds:g} s, the slowest {slowest * 1000:.1f} ms: nothing else, nothing hung")
    return 0


if __name__ == "__main__":
    sys.exit(main())
