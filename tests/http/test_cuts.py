"""The same bytes, cut in any way, meet the same answers, the same end and the same lines in both logs.

In memory each message is cut at many places; over the server, under each model, the messages arrive whole, in
segments and with a cut behind their head.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.examples import examples, some
from support.memory import Echo, every_cut, in_pieces, talk
from support.server import Server, Start, wait_until, write_program
from test_corpus import ECHO, INVALID, LIMITS, OPTIONS, VALID

from ewe import logger
from ewe.body import MAX_SKIPPED_BYTES
from ewe.config.settings import Config
from ewe.http.limits import RequestLimits
from ewe.http.messages import Request, Response
from ewe.sites import make_site
from ewe.streams.base import Stream

END = b" HTTP/1.1\r\nHost: ewe\r\n\r\n"
FIELDS = b"GET / HTTP/1.1\r\nHost: ewe\r\n"
CHUNKED = b"POST %s HTTP/1.1\r\nHost: ewe\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next" + END
# Around the limits of the corpus (200, 300, 1000), those of ewe (8k, 16k, 32k), and what one recv() brings (64k).
SIZES = (31, 33, 190, 201, 302, 990, 1100, 8200, 16400, 33000, 70000)


BEHIND = (
    b"\r\n0\r\n\r\n", b"\r\nzz\r\n", b"X\r\n0\r\n\r\n", b"\r\n5\r\nhello\r\n0\r\n\r\n", b"\r\n0\r\nT: \n"
)  # fmt: skip


def oversized(sizes: tuple[int, ...] = SIZES) -> Iterator[bytes]:
    """Yield messages that break one limit, and those that break a rule before or behind a limit."""
    for size in sizes:
        long = b"a" * size
        yield long + b" /" + END
        yield b"GET /" + long + END
        yield b"GET /" + long + b"\nb" + END
        yield b"GET /" + long + b" b" + END
        yield b"GET  /" + long + END
        yield b"GET / HTTP/2.0\r\nX: " + long + b"\r\n\r\n"
        yield b"GET / HTTP/3.0\r\nX: " + long + b"\x01\r\n\r\n"
        yield b"GET / HTTP/1.1 \r\nX: " + long + b"\r\n\r\n"
        yield FIELDS + b"X: " + long + b"\r\n\r\n"
        yield FIELDS + b"X: " + long + b"\nY: z\r\n\r\n"
        yield FIELDS + b"X: y\r\n" * (size // 6) + b"\r\n"
        yield FIELDS + b"Bad line\r\nX: " + long + b"\r\n\r\n"
        yield FIELDS + long + b": y\r\n\r\n"
        yield FIELDS + long + b" : y\r\n\r\n"
        yield FIELDS + long + b"\r\n\r\n"
        yield FIELDS + b"Content-Length: " + b"1" * size + b"\r\n\r\n"


def bodies(path: bytes) -> Iterator[bytes]:
    """Yield requests with bodies, good and bad, each with another request behind it."""
    chunked = CHUNKED % path
    for size in (
        100,
        1100,
        8200,
        16400,
        33000,
        MAX_SKIPPED_BYTES - 1,
        MAX_SKIPPED_BYTES,
        MAX_SKIPPED_BYTES + 1,
        70000,
    ):
        long = b"a" * size
        yield chunked + b"5;" + long + b"\r\nhello\r\n0\r\n\r\n" + NEXT
        yield chunked + b"5;" + long + b"\nhello\r\n0\r\n\r\n" + NEXT
        yield chunked + b"0" * size + b"5\r\nhello\r\n0\r\n\r\n" + NEXT
        yield chunked + b"0\r\nT: " + long + b"\r\n\r\n" + NEXT
        yield chunked + b"0\r\nT: " + long + b"\n\r\n\r\n" + NEXT
        yield chunked + b"0\r\n" + long + b" bad\r\n\r\n" + NEXT
        for behind in BEHIND:
            yield chunked + b"%x\r\n" % size + long + behind + NEXT
        for expects in (b"", b"Expect: 100-continue\r\n"):
            head = b"POST %s HTTP/1.1\r\nHost: ewe\r\n%sContent-Length: %d\r\n\r\n" % (path, expects, size)
            yield head + long + NEXT
            yield head + long[:-1]
    yield chunked.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") + b"5\r\nhello\r\nzz\r\n" + NEXT


GENERATED = [*oversized(), *bodies(b"/next"), *bodies(b"/cgi-bin/echo")]
CORPUS = [case.values[0].message for case in VALID + INVALID]


class Refusing(Echo):
    """A site that reads no body."""

    async def respond(self, request: Request, io: Stream) -> Response:
        """Answer every request."""
        self.seen.append(request)
        return Response(405)


def ways(message: bytes, chance: random.Random) -> Iterator[list[bytes]]:
    """Yield the message whole first, then in pieces."""
    yield [message]
    if len(message) < 300:
        yield from [*every_cut(message)][:: 1 + len(message) // examples(20, 8)]
        yield in_pieces(message, list(range(len(message))))
    for size in (1460, 5000, 16384, 65536):
        yield in_pieces(message, list(range(size, len(message), size)))
    head = message.find(b"\r\n\r\n") + 4
    yield in_pieces(message, [head])
    yield in_pieces(message, [chance.randrange(len(message)) for _ in range(5)])
    near = [head + chance.randrange(-90, 90), len(message) - chance.randrange(90)]
    yield in_pieces(message, near)


class Lines:
    """The lines of both logs, without times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        for level in ("info", "warning", "debug", "error"):
            monkeypatch.setattr(logger.errors, level, self.lines.append)
        monkeypatch.setattr(logger, "access", self)
        self.enabled = self.writes = True

    def write(self, exchange: logger.AccessLogEntry) -> None:
        """Write the line of one exchange."""
        self.lines.append(f"{exchange.request.line} {exchange.response.status} {exchange.sent}")


def outcome(site: object, lines: Lines, pieces: list[bytes]) -> tuple[object, ...]:
    """Return the result of a message in these pieces: the answers without dates, the end, the log."""
    lines.lines.clear()
    stream = talk(site, *pieces)
    said = re.sub(rb"Date: [^\r]*|HTTP/1\.1 100 Continue\r\n\r\n", b"", stream.output())
    return said, b"Connection: close" in said or stream.did[-1].startswith("next_request"), [*lines.lines]


@pytest.mark.parametrize("limits", [RequestLimits(), RequestLimits(**LIMITS)], ids=["default", "small"])
@pytest.mark.parametrize("kind", [Echo, Refusing])
def test_in_memory(kind: type[Echo], limits: RequestLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(monkeypatch)
    chance = random.Random(1)
    wrong: list[str] = []
    for message in some(CORPUS + GENERATED):
        first: tuple[object, ...] | None = None
        for pieces in ways(message, chance):
            found = outcome(kind(limits), lines, pieces)
            first = first or found
            if found != first:
                sizes = [len(piece) for piece in pieces]
                wrong.append(f"{message[:60]!r}... in {sizes[:9]}: {found}, whole: {first}")
                break
    assert not wrong, f"{len(wrong)} of {len(CORPUS + GENERATED)}:\n" + "\n".join(wrong[:10])


def test_mutated_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus with a few bytes changed, answered by a real site."""
    lines = Lines(monkeypatch)
    (tmp_path / "next").write_text("next")
    site = make_site(Config(documentroot=str(tmp_path), cgi_path=str(tmp_path / "none"), **LIMITS))
    chance = random.Random(2)
    bits = [
        b"\r",
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b":",
        b"\x00",
        b"\x80",
        b";",
        b"0\r\n\r\n",
        b"A" * 70,
        b"a" * 400,
    ]
    for _ in range(1500):
        message = chance.choice(CORPUS)
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(message) + 1)
            message = message[:place] + chance.choice(bits) + message[place + chance.randrange(3) :]
        whole = outcome(site, lines, [message])
        cuts = [chance.randrange(len(message)) for _ in range(chance.randrange(1, 6))]
        assert outcome(site, lines, in_pieces(message, cuts)) == whole, (message, cuts)
        assert outcome(site, lines, in_pieces(message, list(range(len(message))))) == whole, message


STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) [^\r]*\r\n")


def heard(server: Server, pieces: list[bytes]) -> tuple[list[bytes], int]:
    """Send a message in segments; return the final statuses, and how many of them say that the connection ends."""
    data = server.ask_in_pieces(pieces)
    return STATUS.findall(data), data.count(b"Connection: close")


@pytest.mark.timeout(180)
def test_over_the_server(start: Start, model: str) -> None:
    """Each model answers and logs the same for the same bytes, whole and in segments.

    A valid message of the corpus is cut in memory only: over a server each message would start a program.
    """
    server = start(model, *OPTIONS, "--loglevel", "debug", "--log-format", "%r|%s|%b")
    write_program(server.cgi / "echo", ECHO)
    (server.root / "next").write_text("next")
    chance = random.Random(3)
    refused = [case.values[0].message for case in INVALID]
    messages = [*some(refused), *oversized((33, 302, 33000)), *some([*bodies(b"/next")][::4])]
    seen: list[tuple[list[object], Counter[str]]] = []
    lines_before = notes_before = 0
    for way in ("whole", "pieces"):
        answers: list[object] = []
        for message in messages:
            head = message.find(b"\r\n\r\n") + 4
            cuts = [
                *range(5000, len(message), 5000),
                head - 2,
                head,
                head + 9,
                chance.randrange(len(message)),
            ]
            if way == "whole":
                cuts = []
            answers.append(heard(server, in_pieces(message, cuts)))
        count = sum(len(answer[0]) for answer in answers)  # type: ignore[index]

        def written(count: int = lines_before + count) -> bool:
            return server.access_file.read_text(errors="replace").count("\n") >= count

        wait_until(written, 10, "lines of the access log are missing")
        lines = server.access_file.read_text(errors="replace").splitlines()
        notes = [note.partition("] ")[2] for note in server.log().splitlines() if " 127.0.0.1 " in note]
        seen.append((answers, Counter(lines[lines_before:] + notes[notes_before:])))
        lines_before, notes_before = len(lines), len(notes)
        for message, answer, first in zip(messages, answers, seen[0][0], strict=True):
            assert answer == first, f"{message[:80]!r}... ({len(message)} bytes), {way}"
        assert seen[-1][1] == seen[0][1], (way, seen[-1][1] - seen[0][1], seen[0][1] - seen[-1][1])
