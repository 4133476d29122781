"""A feature with many faults, which tests/features/test_faulty_features.py mounts: the path names the fault.

`/faulty/timeout` calls the function timeout() of this file. A name that begins with `sent_` is a fault after the
first byte of the response.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ewe.http.messages import Region, Request, Response, Source
from ewe.http.status import HTTPError
from ewe.streams.base import Disconnected, Stream, Timeout

Fault = Callable[[Request, Stream], Awaitable[Any]]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """Add a function to the faults, by its name."""
    FAULTS[function.__name__] = function
    return function


class Faulty:
    """Calls the fault that the path names, and returns its response."""

    def __init__(self, config: object, path: str) -> None:
        pass

    async def respond(self, request: Request, io: Stream) -> Any:
        return await FAULTS[request.path.rpartition("/")[2]](request, io)


class OwnException(BaseException):
    """An exception that no `except Exception` catches."""


class Pieces(Source):
    """A body of these pieces. An exception among them is raised. closes: the exception of close()."""

    def __init__(self, *pieces: Any, length: Any = None, closes: BaseException | None = None) -> None:
        self.pieces = list(pieces)
        self.length = length
        self.closes = closes

    async def receive(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, BaseException):
            raise piece
        return piece  # type: ignore[no-any-return]

    async def close(self) -> None:
        if self.closes is not None:
            raise self.closes


class Pause:
    """An object that pauses a conversation, and that no model knows."""

    def __await__(self) -> Any:
        yield self


def raises(error: BaseException) -> None:
    """Raise an exception, as a function that io.call() calls."""
    raise error


def again(error: BaseException) -> BaseException:
    """Return a new exception of the same kind, without a traceback."""
    return type(error)(*error.args)


EXCEPTIONS: dict[str, BaseException] = {
    "timeout_of_another": Timeout(),
    "disconnected_of_another": Disconnected(),
    "reset_of_another": ConnectionResetError(104, "reset by peer"),
    "pipe_of_another": BrokenPipeError(32, "broken pipe"),
    "end_of_another": EOFError(),
    "cancelled": asyncio.CancelledError(),
    "generator_exit": GeneratorExit(),
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(0),
    "own_exception": OwnException(),
    "no_memory": MemoryError(),
    "stop": StopIteration(),
    "stop_async": StopAsyncIteration(),
}
for name, error in EXCEPTIONS.items():

    async def raised(request: Request, io: Stream, error: BaseException = error) -> None:
        raise again(error)

    async def called(request: Request, io: Stream, error: BaseException = error) -> None:
        await io.call(raises, again(error))

    async def sent(request: Request, io: Stream, error: BaseException = error) -> Response:
        return Response(200, (), Pieces(b"abc", again(error), b"def"))

    FAULTS |= {f"raised_{name}": raised, f"called_{name}": called, f"sent_{name}": sent}


@fault
async def slow_call(request: Request, io: Stream) -> Response:
    await io.call(time.sleep, 1.0, seconds=0.05)
    return Response(200)


@fault
async def recursion(request: Request, io: Stream) -> Any:
    return await recursion(request, io)


@fault
async def awaits_a_pause(request: Request, io: Stream) -> Any:
    await Pause()  # type: ignore[misc]
    return Response(200)


@fault
async def awaits_asyncio(request: Request, io: Stream) -> Any:
    await asyncio.sleep(0)
    return Response(200)


@fault
async def awaits_a_future(request: Request, io: Stream) -> Any:
    await asyncio.get_running_loop().create_future()
    return Response(200)


@fault
async def sent_awaits_a_pause(request: Request, io: Stream) -> Any:
    class Pauses(Source):
        async def receive(self) -> Any:
            await Pause()  # type: ignore[misc]

    return Response(200, (), Pauses())


@fault
async def sent_slow_call(request: Request, io: Stream) -> Any:
    class Slow(Source):
        async def receive(self) -> Any:
            await io.call(time.sleep, 1.0, seconds=0.05)

    return Response(200, (), Slow())


def later(make: Callable[[], Any]) -> Fault:
    """Return a fault that returns a new object."""

    async def respond(request: Request, io: Stream) -> Any:
        return make()

    return respond


def with_attributes(response: Response, **attributes: Any) -> Response:
    """Return a response with other attributes, which its constructor has not seen."""
    for attribute, value in attributes.items():
        setattr(response, attribute, value)
    return response


def refuses(status: Any) -> Any:
    """Raise an HTTPError with this status."""
    raise HTTPError(status, "a status of no error")


FAULTS |= {
    "returns_text": later(lambda: "text"),
    "returns_a_pair": later(lambda: (200, b"body")),
    "header_split": later(lambda: Response(200, (("X", "a\r\nSet-Cookie: b"),), b"ok")),
    "header_name_split": later(lambda: Response(200, (("X: a\r\nY", "b"),), b"ok")),
    "header_beyond_latin_1": later(lambda: Response(200, (("X", "\u20ac"),), b"ok")),
    "header_none": later(lambda: Response(200, (("X", None),), b"ok")),  # type: ignore[arg-type]
    "header_bytes": later(lambda: Response(200, ((b"X", b"a"),), b"ok")),  # type: ignore[arg-type]
    "header_of_three": later(lambda: Response(200, (("X", "a", "b"),), b"ok")),  # type: ignore[arg-type]
    "headers_as_a_dictionary": later(lambda: Response(200, {"ab": "c"}, b"ok")),  # type: ignore[arg-type]
    "reason_split": later(lambda: Response(200, (), b"ok", reason="OK\r\nSet-Cookie: b")),
    "status_99": later(lambda: Response(99, (), b"ok")),
    "status_100": later(lambda: Response(100)),
    "status_1000": later(lambda: Response(1000, (), b"ok")),
    "status_none": later(lambda: Response(None)),  # type: ignore[arg-type]
    "status_text": later(lambda: Response("200 OK")),  # type: ignore[arg-type]
    "status_assigned": later(lambda: with_attributes(Response(200), status=1000)),
    "error_200": later(lambda: refuses(200)),
    "error_text": later(lambda: refuses("404")),
    "content_in_205": later(lambda: Response(205, (), b"ok")),
    "body_none": later(lambda: Response(200, (), None)),  # type: ignore[arg-type]
    "body_text": later(lambda: Response(200, (), "text")),  # type: ignore[arg-type]
    "body_generator": later(lambda: Response(200, (), (piece for piece in (b"a", b"b")))),  # type: ignore[arg-type]
    "body_assigned": later(lambda: with_attributes(Response(200), body="text")),
    "region_of_minus_one_byte": later(lambda: Response(200, (), (Region(0, 0, -1),))),
    "length_assigned": later(lambda: with_attributes(Response(200, (), b"abc"), length=2)),
    "length_negative": later(lambda: Response(200, (), Pieces(b"a", length=-1))),
    "length_text": later(lambda: Response(200, (), Pieces(b"a", length="1"))),
    "content_length_too_large": later(lambda: Response(200, (("Content-Length", "3"),), b"ok")),
    "content_length_of_parts": later(lambda: Response(200, (("content-length", "1"),), (b"o", b"k"))),
    "content_length_no_number": later(lambda: Response(200, (("Content-Length", "two"),), b"ok")),
    "content_length_twice": later(
        lambda: Response(200, (("Content-Length", "2"), ("Content-Length", "3")), Pieces(b"ok"))
    ),
    "close_of_a_refused_response": later(
        lambda: Response(200, (("X", "\r"),), Pieces(b"ok", closes=OwnException()))
    ),
    "sent_none": later(lambda: Response(200, (), Pieces(b"abc", None))),
    "sent_text": later(lambda: Response(200, (), Pieces(b"abc", "def"))),
    "sent_number": later(lambda: Response(200, (), Pieces(b"abc", 0))),
    "sent_too_little": later(lambda: Response(200, (), Pieces(b"abc", length=4))),
    "sent_less_than_its_field": later(lambda: Response(200, (("Content-Length", "4"),), Pieces(b"abc"))),
}


# These look like faults, and have right answers


@fault
async def right_thread(request: Request, io: Stream) -> Response:
    """Answer while a thread of the feature fails, and another goes on."""
    threading.Thread(target=lambda: raises(SystemExit())).start()
    threading.Thread(target=time.sleep, args=(0.1,), daemon=True).start()
    return Response(200, (), b"ok")


@fault
async def right_body_twice(request: Request, io: Stream) -> Response:
    first = await read(request)
    return Response(200, (), first + await read(request) + b"ok")


async def read(request: Request) -> bytes:
    """Return the body of a request."""
    data = b""
    while piece := await request.body.receive():
        data += piece
    return data


KEPT = Response(200, (), b"ok")
FIELDS_OF_SERVER = (
    ("Transfer-Encoding", "chunked"),
    ("Connection", "close"),
    ("Date", "now"),
    ("Server", "mine"),
    ("Keep-Alive", "timeout=5"),
)
FAULTS |= {
    "right_kept": later(lambda: KEPT),
    "right_content_length": later(lambda: Response(200, (("content-length", "2"),), b"ok")),
    "right_content_length_twice": later(lambda: Response(200, (("Content-Length", "2"),) * 2, (b"o", b"k"))),
    "right_content_length_of_source": later(
        lambda: Response(200, (("Content-Length", "2"),), Pieces(b"o", b"k"))
    ),
    "right_fields_of_server": later(lambda: Response(200, FIELDS_OF_SERVER, b"ok")),
    "right_fields_beside_a_source": later(lambda: Response(200, FIELDS_OF_SERVER, Pieces(b"ok"))),
    "right_list": later(lambda: Response(200, (), [b"o", b"k"])),  # type: ignore[arg-type]
    "right_memoryview": later(lambda: Response(200, (), Pieces(bytearray(b"o"), memoryview(b"k")))),
    "right_close": later(lambda: Response(200, (), Pieces(b"ok", closes=asyncio.CancelledError()))),
    "right_too_much": later(lambda: Response(200, (), Pieces(b"okay", length=2))),
}
KEEP = (("Cache-Control", "max-age=60"),)
PARTS = Response(200, (), (b"o", b"k"))
SOURCE = Response(200, (), Pieces(b"ok"))
FAULTS |= {
    "once_parts": later(lambda: PARTS),
    "once_source": later(lambda: SOURCE),
    "bodiless_204": later(lambda: Response(204, (("Content-Length", "2"),), b"ok")),
    "bodiless_204_source": later(lambda: Response(204, (), Pieces(b"ok"))),
    "bodiless_304": later(lambda: Response(304, (("ETag", '"a"'),), b"ok")),
    "cached_none": later(lambda: Response(200, KEEP, Pieces(b"abc", None))),
    "cached_less": later(lambda: Response(200, (*KEEP, ("Content-Length", "4")), Pieces(b"abc"))),
    "head_of_get": later(lambda: Response(200, (("Content-Length", "1234"),))),
}
