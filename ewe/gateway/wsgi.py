"""WSGI (PEP 3333): the environ that an application gets, and how its answer becomes a response.

CGI is a contract between two programs. WSGI is the same contract between two parts of one Python program: the
variables come in a dictionary, the body as a file object, and the answer as an iterable of blocks. No process is
started for the request: a call costs microseconds, the start of a program costs milliseconds:

    server                                       application
    ------                                       -----------
    application(environ, start_response) ──▶     reads environ["wsgi.input"]
                        head ◀────────────────   start_response("200 OK", [("Content-Type", "text/plain")])
                    iterable ◀────────────────   return [b"hello"]
    next(iterator), again and again ──▶          blocks of the body
    iterable.close()                ──▶          always, however the response ended

Each arrow to the right runs the application's code, which may block. Invocation has a method for each: begin(),
more(), finish(). features/wsgi.py awaits them through the stream's call(). This module therefore knows no models.

**The body of a response** is sent in the cheapest way that the application allows: a list of small blocks in one
piece with its length, a file (FileWrapper) by sendfile(2), anything else block by block. PEP 3333 forbids a server
to delay a block until the next one is there, so each next() of a generator is a separate call.

**write()**, which start_response() returns, is there for old programs. Its bytes are collected, and sent in front
of the blocks once the application has returned.

Possible failures:

- The application raises an exception. Before the first block the client gets a 500; later the response is aborted.
  The error log has the traceback in both cases.
- The application sets fields that only the server may set. Fields that concern the connection are refused, and so
  is any text that could split the head (checked_head). Content-Length becomes the length of the response.
- The application keeps files open. finish() closes the iterable when the response was sent, when it was aborted,
  and when the client has left.

Read next: features/wsgi.py; cgi.py, which parses heads by the same grammar.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat
import traceback
from collections.abc import Callable, Iterable, Iterator
from io import BufferedRandom, BufferedReader, FileIO
from typing import IO, TYPE_CHECKING, Any

from ewe import __version__, logger
from ewe.gateway.cgi import (
    MAX_CACHED_HEAD_BYTES,
    MAX_CACHED_NAME_CHARS,
    NOT_PASSED_ON,
    ProgramHead,
    content_length,
    name_and_port,
    response_status,
    variable_of,
)
from ewe.gateway.spool import temporary_file, write
from ewe.http.fields import FIELD_LINE
from ewe.http.messages import Region, Request, body_size, hides_authorization
from ewe.http.status import BODILESS_STATUSES, HTTPError

if TYPE_CHECKING:
    from types import TracebackType

    from ewe.streams.base import Stream

    ErrorTriple = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MAX_JOINED_BYTES = 64 * 1024  # a list of blocks up to this size is sent in one piece
BLOCK_BYTES = 64 * 1024  # bytes that are read from a file at once
# Fields about one connection, which only the server may set: PEP 3333, "Other HTTP Features".
HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "trailers",
    "transfer-encoding", "upgrade",
})  # fmt: skip


# ---------------------------------------------------------------------------------------------------------
# The request


def constant_environ(path: str, threads: bool, processes: bool) -> dict[str, Any]:
    """Return the part of environ that is the same for all requests of one application.

    PEP 3333 defines most of the keys. path: the path of URLs at which the application is mounted. threads: two
    threads of this process may call the application at the same time. processes: another process may call its copy
    of the application at the same time.
    """
    return {
        "SCRIPT_NAME": as_native(path),
        "SERVER_SOFTWARE": f"ewe/{__version__}",
        "wsgi.version": (1, 0),
        "wsgi.multithread": threads,
        "wsgi.multiprocess": processes,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,  # wsgi.input ends where the body ends, also without CONTENT_LENGTH
        "wsgi.file_wrapper": FileWrapper,
    }


def add_request(environ: dict[str, Any], request: Request, io: Stream, path_info: str, length: int) -> None:
    """Add the variables of a request to environ. length: of the request's body, in bytes.

    Those of guards and of the setting `env` (io.variables) come last: they replace fields of the same name.
    """
    environ["REQUEST_METHOD"] = request.method
    environ["PATH_INFO"] = as_native(path_info)
    environ["QUERY_STRING"] = request.query or ""
    environ["REQUEST_URI"] = request.target
    environ["SERVER_NAME"], environ["SERVER_PORT"] = name_and_port(request, io)
    environ["SERVER_PROTOCOL"] = request.protocol
    environ["REMOTE_ADDR"] = io.client[0]
    environ["REMOTE_PORT"] = str(io.client[1])
    environ["wsgi.url_scheme"] = io.scheme
    if io.scheme == "https":
        environ["HTTPS"] = "on"
    for field, value in request.values.items():
        if (
            variable := cached_variable_name(field)
            if len(field) <= MAX_CACHED_NAME_CHARS
            else variable_name(field)
        ):
            environ[variable] = value
    if request.host:  # the host of the target, if it has one: RFC 9112 section 3.2.2
        environ["HTTP_HOST"] = request.host
    if request.body.length != 0 or "content-length" in request.values:
        environ["CONTENT_LENGTH"] = str(length)
    # A guard of ewe has checked the password: the application must not see it (pass-authorization).
    if io.variables and hides_authorization(io.variables):
        environ.pop("HTTP_AUTHORIZATION", None)
    for name, text in io.variables.items():
        environ[name.decode()] = text.decode("latin-1")


def as_native(path: str) -> str:
    """Return a path in the text form of PEP 3333: each character stands for one byte."""
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


def variable_name(field: str) -> str:
    """Return the name that a field has in environ; "" for a field that no application sees.

    Unlike a CGI program, an application sees Authorization: it runs in this process, and no other user can read its
    variables.
    """
    if field in ("content-type", "authorization"):
        return "CONTENT_TYPE" if field == "content-type" else "HTTP_AUTHORIZATION"
    return variable_of(field).decode()


cached_variable_name = functools.lru_cache(maxsize=1024)(variable_name)


class ErrorStream:
    """wsgi.errors: a text file that writes to the error log. name: the application's, before each line."""

    __slots__ = ("name", "pending")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pending = ""

    def write(self, text: str) -> int:
        """Write text; a line is logged when it is complete."""
        *lines, self.pending = (self.pending + text).split("\n")
        for line in lines:
            logger.errors.error(f"{self.name}: {line}")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Log a line that is not complete."""
        if self.pending:
            self.write("\n")


# ---------------------------------------------------------------------------------------------------------
# The answer


def checked_head(status: object, fields: object) -> ProgramHead:
    """Parse the arguments of start_response(); return the head. Raises TypeError or ValueError, with the remedy."""
    if type(status) is not str:
        raise TypeError(f"the status must be a str such as '200 OK', not {status!r}")
    if type(fields) is not list:
        raise TypeError(f"the headers must be a list of (name, value), not {type(fields).__name__}")
    size = len(status)
    for field in fields:
        if (
            type(field) is not tuple
            or len(field) != 2
            or type(field[0]) is not str
            or type(field[1]) is not str
        ):
            raise TypeError(f"a header must be a tuple of two str, not {field!r}")
        size += len(field[0]) + len(field[1])
    # A long head goes past the cache of lru_cache (__wrapped__), so that the cache stays small.
    parse = parsed_head if size <= MAX_CACHED_HEAD_BYTES else parsed_head.__wrapped__
    return parse(status, tuple(fields))


@functools.lru_cache(maxsize=512)  # most applications send few different heads
def parsed_head(status: str, fields: tuple[tuple[str, str], ...]) -> ProgramHead:
    """Parse a head whose parts have the right types. Raises ValueError."""
    length = None
    passed: list[tuple[str, str]] = []
    try:
        number, reason = response_status(status, None)
        for name, value in fields:
            lower_name = name.lower()
            if FIELD_LINE.fullmatch(f"{name}: {value}") is None:
                raise ValueError(
                    f"header {name[:40]!r}: {value[:80]!r} has characters that no header may have"
                )
            if lower_name in HOP_BY_HOP:
                raise ValueError(
                    f"header {name!r} is the server's: an application must not set it (PEP 3333)"
                )
            if lower_name == "content-length":
                if length is not None:
                    raise ValueError("Content-Length stands there more than once")
                length = content_length(value)
            elif lower_name not in NOT_PASSED_ON:
                passed.append((name, value))
    except HTTPError as refused:
        raise ValueError(refused.cause) from None
    return ProgramHead(number, reason, None, length, tuple(passed))


class FileWrapper:
    """wsgi.file_wrapper: an iterable over a file. An ordinary file is sent by sendfile(2), not by iterating."""

    def __init__(self, filelike: IO[bytes], block_size: int = BLOCK_BYTES) -> None:
        """filelike: any object with read(). block_size: bytes of one block, if the file is sent by iterating."""
        self.filelike = filelike
        self.block_size = block_size
        # PEP 3333: a wrapper has close() only if the object behind it has one.
        if hasattr(filelike, "close"):
            self.close = filelike.close

    def __iter__(self) -> Iterator[bytes]:
        """Return this object, which is its own iterator."""
        return self

    def __next__(self) -> bytes:
        """Return the next block_size bytes of the file, or fewer at its end."""
        block = self.filelike.read(self.block_size)
        if not block:
            raise StopIteration
        return block

    def region(self) -> Region | None:
        """Return the rest of the file from its position; None unless the kernel can send the bytes as they are.

        A GzipFile has a descriptor, too, but the bytes behind it are compressed. Only the types of open() are
        certain.
        """
        file = self.filelike
        raw = file.raw if isinstance(file, BufferedReader | BufferedRandom) else file
        if type(raw) is not FileIO:
            return None
        if isinstance(file, BufferedRandom):
            file.flush()
        descriptor = raw.fileno()
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return None
        begin = file.tell()
        return Region(descriptor, begin, max(about.st_size - begin, 0))


class Invocation:
    """One call of an application. The methods begin(), more() and finish() may block; no two run at once.

    After begin() one of two attributes is set: `fault`, or `head`. With `head`, `body` is the whole body, or None:
    more() then returns its blocks. length: for the response's Content-Length, None if it has none.

    fault: the traceback of the application's exception; the error log has it already. finished: finish() was
    called. abandoned: nothing waits for the last more() any more, and the stream calls finish() after it.
    """

    __slots__ = (
        "abandoned", "application", "begun", "blocks", "body", "environ", "errors", "fault", "file", "file_size",
        "finished", "head", "input", "iterable", "length", "max_memory_bytes", "name", "without_body",
        "writes_ended", "written",
    )  # fmt: skip

    def __init__(
        self, application: Application, environ: dict[str, Any], name: str, max_memory_bytes: int
    ) -> None:
        """name: of the request, for the log. max_memory_bytes: of write(); more goes to a file."""
        self.application = application
        self.environ = environ
        # Keep references: the application may change environ.
        self.input: IO[bytes] = environ["wsgi.input"]
        self.errors: ErrorStream = environ["wsgi.errors"]
        self.without_body = environ["REQUEST_METHOD"] == "HEAD"
        self.name = name
        self.max_memory_bytes = max_memory_bytes
        self.head: ProgramHead | None = None
        self.begun = False  # the body has begun, so the head can no longer be replaced
        self.iterable: Any = None
        self.blocks: Iterator[bytes] = iter(())  # of the iterable
        # The whole body, if the application has given it at once; otherwise `blocks` yields it
        self.body: bytes | tuple[bytes | Region, ...] | None = None
        self.length: int | None = None  # bytes of the body, if known
        self.written = bytearray()  # by write(); above max_memory_bytes the file has them
        self.file = -1
        self.file_size = 0
        self.fault = ""
        self.finished = self.abandoned = False
        self.writes_ended = False  # the bytes of write() are on their way, and a block follows them

    # Called by the application

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ErrorTriple | None = None
    ) -> Callable[[bytes], None]:
        """Take the head of the response; return write().

        exc_info: the exception for which the application replaces the head (PEP 3333); None: this is the first
        call. Raises this exception if the body has begun.
        """
        if exc_info is not None:
            try:
                if self.begun and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # break the reference cycle: the traceback refers to this frame
        elif self.head is not None:
            raise AssertionError(
                "start_response() was called twice; the second call needs exc_info (PEP 3333)"
            )
        self.head = checked_head(status, headers)
        return self.write

    def write(self, data: bytes) -> None:
        """Collect bytes that precede the blocks: in memory, or in a file once they exceed `max_memory_bytes`.

        Raises ValueError after the first block: the bytes could no longer precede it. TypeError: not bytes.
        """
        if self.finished:  # the number of the closed file may belong to another file by now
            raise ValueError("write() was called after the response (PEP 3333)")
        if self.writes_ended:  # these bytes could no longer precede the blocks
            raise ValueError("write() was called after the first block (PEP 3333)")
        self.check(data)
        self.begun = self.begun or bool(data)
        if self.file < 0:
            self.written += data
            if len(self.written) <= self.max_memory_bytes:
                return
            self.file = temporary_file()
            data, self.written = bytes(self.written), bytearray()
        self.file_size += len(data)
        write(self.file, data)

    # Called by the server

    def begin(self) -> None:
        """Call the application, and iterate to the first block that is not empty (in whole_body)."""
        try:
            self.iterable = self.application(self.environ, self.start_response)
            pieces = self.whole_body()
            if self.head is None:
                raise AssertionError("the application has not called start_response() (PEP 3333)")
            self.length = self.head.length
            # A 205 has no content, and Content-Length: 0 says so: RFC 9110 section 15.3.6
            if self.head.status == 205:
                self.body, self.length = b"", 0
            elif pieces is not None:
                self.body = self.set_length(pieces, self.head)
        except BaseException:  # SystemExit, too: an application must not end the server
            self.fail()
        else:
            # No block is left to iterate, and the response needs no file: the server need not call finish() later.
            if type(self.body) is bytes and not hasattr(self.iterable, "close"):
                self.finish()

    def whole_body(self) -> list[bytes | Region] | None:
        """Return the parts of the body if all are available; else None, and `blocks` yields the body."""
        iterable = self.iterable
        if type(iterable) is list or type(iterable) is tuple:
            for block in iterable:
                self.check(block)
            # `begun`: write() was called. Few applications do, and a call of a method would cost the others.
            return [*self.written_pieces(), *iterable] if self.begun else [*iterable]
        if type(iterable) is FileWrapper and (region := iterable.region()) is not None:
            return [*self.written_pieces(), region]
        self.blocks = iter(iterable)
        # A generator runs only now. Some generators call write() before their first block, although PEP 3333
        # forbids that.
        block = self.next_block()
        if not block or length_of(iterable) == 1:  # no other block follows
            return [*self.written_pieces(), block]
        before = file_blocks(self.file, self.file_size) if self.file >= 0 else (bytes(self.written),)
        self.writes_ended = True
        self.blocks = itertools.chain(before, (block,), self.blocks)
        return None

    def written_pieces(self) -> list[bytes | Region]:
        """Return the bytes of write(): the file that has them if they were too many for memory."""
        if self.file >= 0:
            return [Region(self.file, 0, self.file_size)]
        return [bytes(self.written)] if self.written else []

    def set_length(
        self, pieces: list[bytes | Region], head: ProgramHead
    ) -> bytes | tuple[bytes | Region, ...]:
        """Set `length`; return the whole body. Raises ValueError if Content-Length is larger than the body."""
        size = body_size(tuple(pieces)) or 0
        without_body = self.without_body or head.status in BODILESS_STATUSES
        if self.length is None:
            # Many applications answer HEAD with an empty body, which does not show the length of GET's body.
            self.length = size if size or not without_body else None
        elif size < self.length and not without_body:
            raise ValueError(f"Content-Length is {self.length}, but the body has {size} bytes")
        elif size > self.length:
            logger.errors.warning(f"{self.name}: the body has {size} bytes, Content-Length is {self.length}")
            pieces, size = first_bytes(pieces, self.length), self.length
        regions = any(type(piece) is Region for piece in pieces)
        if not regions and (size <= MAX_JOINED_BYTES or len(pieces) == 1):
            return b"".join(pieces)  # type: ignore[arg-type]
        return tuple(piece for piece in pieces if piece != b"")

    def more(self) -> bytes:
        """Return the next block that is not empty, b"" at the end. An exception ends the blocks, too."""
        try:
            return self.next_block()
        except BaseException:
            self.fail()
            return b""

    def next_block(self) -> bytes:
        """Return the next block that is not empty, b"" at the end; raises what the application raises."""
        for block in self.blocks:
            self.check(block)
            if block:
                self.begun = True
                return block
        return b""

    def check(self, block: object) -> None:
        """Raise TypeError for a block that is not bytes."""
        if type(block) is not bytes:
            raise TypeError(f"the body must come as bytes, not as {type(block).__name__} (PEP 3333)")

    def fail(self) -> None:
        """Log the exception that is being handled, and finish."""
        self.fault = traceback.format_exc()
        logger.errors.exception(f"{self.name} failed")
        self.finish()

    def finish(self) -> None:
        """Call close() of the application's iterable, once; close the files that the server opened for the call."""
        if self.finished:
            return
        self.finished = True
        try:
            if hasattr(self.iterable, "close"):
                self.iterable.close()
        except BaseException:
            logger.errors.exception(f"close() after {self.name} failed")
        self.input.close()
        self.errors.flush()
        if self.file >= 0:
            os.close(self.file)


def length_of(iterable: object) -> int | None:
    """Return how many blocks an iterable has, None if it has no length."""
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return None


def file_blocks(file: int, size: int) -> Iterator[bytes]:
    """Yield the content of a file in blocks."""
    for offset in range(0, size, BLOCK_BYTES):
        yield os.pread(file, min(BLOCK_BYTES, size - offset), offset)


def first_bytes(pieces: list[bytes | Region], size: int) -> list[bytes | Region]:
    """Return the first `size` bytes of a body."""
    first: list[bytes | Region] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            piece = piece[:size]
            size -= len(piece)
        else:
            piece = Region(piece.file, piece.offset, min(piece.count, size))
            size -= piece.count
        first.append(piece)
    return first
