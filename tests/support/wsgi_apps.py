"""WSGI applications that tests copy beside the server, and mount. They note in closed.log when one is closed."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import wsgiref.validate
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

TEXT = [("Content-Type", "text/plain")]
Environ = dict[str, Any]
MEGABYTE = bytes(range(256)) * 4096


def note(text: str) -> None:
    """Add a line to closed.log in the working directory."""
    with open("closed.log", "a") as log:
        log.write(text + "\n")


class Noted:
    """An iterable that notes its close()."""

    def __init__(self, blocks: Iterable[bytes], name: str) -> None:
        self.blocks = iter(blocks)
        self.name = name

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks

    def close(self) -> None:
        note(f"closed {self.name}")


def hello(environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
    """The smallest one."""
    start_response("200 OK", TEXT)
    return [b"Hello, ", b"world\n"]


def variables(environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
    """Show environ."""
    start_response("200 OK", TEXT)
    return ["".join(f"{name}={value!r}\n" for name, value in sorted(environ.items())).encode()]


def echo(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Return the body, read by lines."""
    start_response("200 OK", [*TEXT, ("X-Length", environ.get("CONTENT_LENGTH", "none"))])
    return list(environ["wsgi.input"])


def sums(environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
    """Return the size and a checksum of the body, and the memory of the process in KB."""
    import zlib

    size = check = 0
    while block := environ["wsgi.input"].read(65536):
        size += len(block)
        check = zlib.crc32(block, check)
    start_response("200 OK", TEXT)
    return [f"{size} {check} {memory()}".encode()]


def memory() -> int:
    """Return the most memory that this process has ever had, in KB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def much(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Return 50 MB, in blocks."""
    start_response("200 OK", TEXT)
    return (MEGABYTE for _ in range(50))


def big_file(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Return a file from its byte 7 on, with the wrapper."""
    file = open(environ["QUERY_STRING"], "rb")  # the server closes it
    file.read(7)
    start_response("200 OK", TEXT)
    wrapped = environ["wsgi.file_wrapper"](file, 4096)
    wrapped.close = lambda: (file.close(), note(f"closed {type(wrapped).__name__}"))
    return wrapped  # type: ignore[no-any-return]


def gzip_file(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Return an uncompressed file whose descriptor leads to compressed bytes."""
    import gzip

    path = Path(tempfile.mkdtemp(dir=".")) / "file.gz"  # in the directory of the test
    path.write_bytes(gzip.compress(b"plain text\n"))
    start_response("200 OK", TEXT)
    return environ["wsgi.file_wrapper"](gzip.open(path))  # type: ignore[no-any-return]


def generator(environ: Environ, start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Yield three blocks, with empty ones between them; note the close."""
    try:
        start_response("200 OK", TEXT)
        yield from (b"", b"one\n", b"", b"two\n", b"three\n")
    finally:
        note("closed generator")


def stepwise(environ: Environ, start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Yield a block, and the next one only when the file in the query is there."""
    start_response("200 OK", TEXT)
    yield b"first\n"
    while not os.path.exists(environ["QUERY_STRING"]):
        time.sleep(0.01)
    yield b"second\n"


def endless(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Yield until the client leaves."""

    def blocks() -> Iterator[bytes]:
        while True:
            time.sleep(0.005)
            yield b"x" * 1000

    start_response("200 OK", TEXT)
    return Noted(blocks(), "endless")


def held(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Yield a block, and the next one only when the file in the query is there; note what happens."""

    def blocks() -> Iterator[bytes]:
        yield b"first\n"
        note("begun")
        while not os.path.exists(environ["QUERY_STRING"]):
            time.sleep(0.01)
        note("ended")
        yield b"second\n"

    start_response("200 OK", TEXT)
    return Noted(blocks(), "held")


def closing(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Return one block, and note the close."""
    start_response("200 OK", TEXT)
    return Noted([b"short\n"], "short")


def writing(environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
    """Use write(); the query is how many times ten bytes are written."""
    write = start_response("200 OK", TEXT)
    for _ in range(int(environ["QUERY_STRING"])):
        write(b"written: \n")
    return [b"returned\n"]


def writing_then_yielding(environ: Environ, start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Use write(), and return an iterator."""
    write = start_response("200 OK", TEXT)
    for _ in range(int(environ["QUERY_STRING"])):
        write(b"written: \n")
    return iter([b"yielded\n", b"", b"again\n"])


def no_body(environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
    """Answer as frameworks do: a length but no body to HEAD; the query is the status otherwise."""
    if environ["REQUEST_METHOD"] == "HEAD":
        start_response("200 OK", [*TEXT, ("Content-Length", "1234")])
        return []
    start_response(unquote(environ["QUERY_STRING"]), [("ETag", '"1"')])
    return [b"not to be sent"]


def waiting(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Wait until the file in the query is there."""
    note("begun")
    while not os.path.exists(environ["QUERY_STRING"]):
        time.sleep(0.01)
    start_response("200 OK", TEXT)
    return Noted([b"late\n"], "waiting")


def logging(environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
    """Write to wsgi.errors."""
    print("a line,", "whole", file=environ["wsgi.errors"])
    environ["wsgi.errors"].writelines(["two\nmore\n", "not complete"])
    environ["wsgi.errors"].flush()
    start_response("200 OK", TEXT)
    return []


def recovering(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Replace the head by that of an error, with exc_info."""
    start_response("200 OK", TEXT)
    try:
        raise LookupError("on purpose")
    except LookupError:
        start_response("500 Oops", [("X-Error", "yes"), *TEXT], sys.exc_info())
    return [b"recovered\n"]


def too_late(environ: Environ, start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Try to replace a head that is out."""
    start_response("200 OK", TEXT)
    yield b"begun\n"
    try:
        raise LookupError("too late")
    except LookupError:
        start_response("500 Oops", TEXT, sys.exc_info())


def make() -> Callable[..., Any]:
    """Return an application."""
    return hello


def fault(environ: Environ, start_response: Callable[..., Any]) -> Any:
    """Fail in the way that the path says."""
    kind = environ["PATH_INFO"].strip("/")
    head = {
        "hop": ("200 OK", [("Connection", "close")]),
        "chunked": ("200 OK", [("Transfer-Encoding", "chunked")]),
        "split": ("200 OK", [("X-A", "a\r\nX-B: b")]),
        "name": ("200 OK", [("X A", "a")]),
        "euro": ("200 OK", [("X-A", "€")]),
        "status": ("OK", TEXT),
        "status-split": ("200 OK\r\nX-A: b", TEXT),
        "status-100": ("100 Continue", TEXT),
        "bytes": (b"200 OK", TEXT),
        "no-list": ("200 OK", tuple(TEXT)),
        "no-tuple": ("200 OK", [["X-A", "a"]]),
        "two-lengths": ("200 OK", [("Content-Length", "1"), ("Content-Length", "2")]),
        "bad-length": ("200 OK", [("Content-Length", "-1")]),
        "short": ("200 OK", [("Content-Length", "10")]),
    }.get(kind, ("200 OK", TEXT))
    if kind == "raise":
        raise ZeroDivisionError("<on purpose>")
    if kind == "exit":
        sys.exit(3)
    if kind == "no-start":
        return [b"body"]
    start_response(*head)
    if kind == "twice":
        start_response(*head)
    if kind == "raise-after":
        raise ZeroDivisionError("on purpose")
    return {"none": None, "str": ["text"], "number": 5, "str-block": iter(["text"]), "empty": iter([])}.get(
        kind, [b"1"]
    )


FAULTS = (
    "raise", "exit", "no-start", "twice", "raise-after", "none", "str", "number", "str-block", "hop", "chunked",
    "split", "name", "euro", "status", "status-split", "status-100", "bytes", "no-list", "no-tuple", "two-lengths",
    "bad-length", "short",
)  # fmt: skip


def failing_later(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Fail after the first block."""

    def blocks() -> Iterator[bytes]:
        yield b"begun\n"
        raise ZeroDivisionError("on purpose")

    start_response("200 OK", TEXT)
    return Noted(blocks(), "failing")


@wsgiref.validate.validator
def validated(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Read the body in every way that there is; the validator watches both sides."""
    file = environ["wsgi.input"]
    read = [file.read(3), file.readline(), *file.readlines(5), *iter(file.readline, b""), file.read(10)]
    environ["wsgi.errors"].write("a word\n")
    environ["wsgi.errors"].flush()
    body = b"|".join(piece for piece in read if piece)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body] if environ["REQUEST_METHOD"] != "HEAD" else [b""]


@wsgiref.validate.validator
def validated_blocks(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The same for an iterator of blocks and for write()."""
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    write(b"written\n")
    return iter([b"one\n", b"two\n"])
