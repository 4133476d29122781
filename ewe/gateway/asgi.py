"""ASGI 3: an application in this process, as Starlette, FastAPI and Django offer one.

An application is a coroutine function that the server calls once for each request:

    async def app(scope, receive, send):
        message = await receive()                                             the request's body, piece by piece
        await send({"type": "http.response.start", "status": 200, ...})       the head of the response
        await send({"type": "http.response.body", "body": b"hello"})          its body, piece by piece

The application awaits asyncio's futures, and so it runs as a Task of an event loop. The conversation awaits its
stream. An ApplicationCall is one request to the application. Its two halves communicate only through a CallChannel
(ewe.streams.loops):

    application ── receive() ─▶ post(ASK)             ─▶ conversation reads the client's next piece ─▶ call(deliver)
                ── send()    ─▶ post(ApplicationHead) ─▶ conversation makes a Response of it
                             ─▶ post((piece, more))   ─▶ conversation sends it to the client ─▶ call(count_taken)
                ── raises    ─▶ post(FAULT)           ─▶ conversation answers 500, or aborts the response
                                                         the client has left                        ─▶ call(leave)

- **The head waits for the first piece.** A response that is complete in one piece becomes bytes with a known
  length: one system call, and no chunks. A fault before the first piece is still a 500.
- **Back-pressure, both ways.** The client's next piece is read when the application asks. send() waits while more
  than MAX_QUEUED_BYTES are on their way to the client. Neither direction fills memory.
- **The client leaves.** receive() returns http.disconnect, and send() raises ClientLeft, an OSError (ASGI 2.4).
- **After the response** the application may continue (background tasks); the conversation does not wait for it.

Lifespan: one more call of the application in each process. It lasts as long as the process answers requests. The
application gets a startup message before the first request, and a shutdown message after the last one. An
application without lifespan support raises an exception at once; that is no fault. Entries that the application
makes in scope["state"] are in the scope of each request.

Possible failures: an application is silent longer than program-timeout (504, or the response is aborted). It
returns without a complete response (500, or aborted). A piece is longer or shorter than Content-Length promised
(the conversation checks the length, as for every feature). While an application waits in receive() for the
client's next piece, data that it sends from another task goes out after that piece. It neither sends nor receives
after the client has left, or has got the head alone: its call lasts until it does either, or until the stop.

Source: https://asgi.readthedocs.io/en/latest/specs/ (HTTP 2.4, lifespan 2.0).
Read next: ewe/features/asgi.py, which makes the Response; ewe/streams/loops.py.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.gateway.cgi import MAX_CACHED_HEAD_BYTES
from ewe.http.messages import NO_BODY
from ewe.streams.base import CALL_COST_BYTES, TURN_BYTES
from ewe.streams.flag import Flag
from ewe.streams.loops import Cancelled, Event, get_running_loop, run_unless_given_up, start_task, wait_until

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.loops import CallChannel

Message = dict[str, Any]
Scope = dict[str, Any]
Program = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

# Bytes that may be on their way from the application to the conversation; each piece counts CALL_COST_BYTES more
MAX_QUEUED_BYTES = 64 * 1024
CANCEL_TIMEOUT_S = 0.5  # seconds that cancelled calls may take to end
MAX_DISCARDED_BYTES = 64 * 1024  # bytes that an application may send for a response without a body
# Exceptions that are looked at, each the cause of the one before: they may refer to each other in a circle
MAX_CAUSES = 100
ASK = object()  # the application asks for the next piece of the request's body
FAULT = object()  # the application failed before its response was complete
DISCONNECT: Message = {"type": "http.disconnect"}
# Fields that only the server may set
SERVERS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
     b"date", b"server")
)  # fmt: skip


class ClientLeft(OSError):
    """The client has left. send() raises this exception, as ASGI 2.4 requires."""


class StartupFailed(Exception):
    """The application's startup failed. The text is one line."""


class ApplicationHead:
    """The head of a response, and the first piece of its body if the application sent both together.

    length: the application's Content-Length, None without one. more: pieces follow. path: of the file that is the
    whole body (the extension http.response.pathsend).
    """

    __slots__ = ("fields", "length", "more", "path", "piece", "status")

    def __init__(self, message: Message) -> None:
        """Raises ValueError for a message that cannot be a head."""
        self.status = message["status"]
        if not (isinstance(self.status, int) and 200 <= self.status <= 599):
            raise ValueError(f"status {self.status!r} is not in 200 to 599")
        self.more = False
        self.piece = b""
        self.path: str | None = None
        headers = tuple([(bytes(name), bytes(value)) for name, value in message.get("headers", ())])
        # Fast path, same meaning: most applications send few different heads, so parsed heads are cached.
        # A long head goes past the cache of lru_cache (__wrapped__), so that the cache stays small.
        is_short = sum([len(name) + len(value) for name, value in headers]) <= MAX_CACHED_HEAD_BYTES
        parse = parsed_fields if is_short else parsed_fields.__wrapped__
        self.fields, self.length = parse(headers)


@functools.lru_cache(maxsize=256)
def parsed_fields(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[tuple[str, str], ...], int | None]:
    """Return the fields that go to the client, and the Content-Length, None without one. Raises ValueError."""
    length = None
    fields: list[tuple[str, str]] = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length":
            if not value.isdigit():
                raise ValueError(f"Content-Length is {value!r}")
            length = int(value)
        elif lower not in SERVERS:
            fields.append((name.decode("latin-1"), value.decode("latin-1")))
    return tuple(fields), length


class ApplicationCall:
    """One request to an application. The application calls receive() and send() on the loop.

    request: the conversation reads its body. channel: connects the two halves.
    """

    __slots__ = (
        "application", "ask_is_posted", "bodiless", "channel", "client_left", "discarded_bytes", "fault",
        "head", "head_is_posted", "incoming", "is_complete", "posted_bytes", "read_to_end", "receive_event",
        "request", "scope", "send_event", "task", "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self, application: Application, request: Request, scope: Scope, channel: CallChannel
    ) -> None:
        self.application = application
        self.request = request
        self.scope = scope
        self.channel = channel
        self.task: Any = None  # runs the application; None before start(), or if it has ended at once
        self.head: ApplicationHead | None = None  # sent by the application, and not posted yet
        self.head_is_posted = False
        self.is_complete = False  # the application has sent all of its response
        self.client_left = False
        self.bodiless = False  # the head alone goes to the client
        self.discarded_bytes = 0  # of pieces of a body that no client gets
        self.fault = ""  # the traceback of a fault before the response was complete
        self.read_to_end = request.body is NO_BODY  # the request's body has ended
        # The next message for receive(); None if it has not come. A request without a body has only one message,
        # and receive() can return it at once.
        self.incoming: Message | None = None
        if self.read_to_end:
            self.incoming = {"type": "http.request", "body": b"", "more_body": False}
        self.ask_is_posted = False  # ASK is posted, and no piece has come yet
        # Set for each receive(), and for each send(), that waits: several tasks of the application may wait.
        self.receive_event: Event | None = None  # None: none has waited yet
        self.send_event: Event | None = None
        # Bytes of the pieces that the conversation has not taken yet, with CALL_COST_BYTES for each piece
        self.unsent_bytes = 0
        # Bytes that the conversation got without a round of the loop since send() last waited
        self.posted_bytes = 0

    # The application's half: all of it runs on the loop

    def start(self) -> None:
        """Start the application."""
        self.application.calls.add(self)
        task = start_task(self.channel.loop, self.run(), self.application.context.copy())
        if self in self.application.calls:  # otherwise it has ended at once (start_task)
            self.task = task

    async def run(self) -> None:
        """Run the application until it returns or raises."""
        application = self.application
        try:
            # A child of the fork model has inherited an application that is not started in its process.
            if application.process != os.getpid():
                await application.start()
                self.scope["state"] = dict(application.state)
            await application.program(self.scope, self.receive, self.send)
            if not (self.is_complete or self.client_left or self.bodiless):
                raise RuntimeError("the application returned without a complete response")
        except BaseException as reason:
            self.fail(reason)
        finally:
            application.calls.discard(self)
            if application.idle is not None and not application.calls:
                application.idle.set()

    def fail(self, reason: BaseException) -> None:
        """Make the conversation answer 500 or abort the response; log the fault, unless the client's leaving is the
        reason.
        """
        was_cancelled = isinstance(reason, Cancelled) and self.client_left
        if not was_cancelled and not (self.client_left and is_because_client_left(reason)):
            if isinstance(reason, StartupFailed):
                logger.errors.error(str(reason))
            else:
                logger.errors.exception(f"{self.request.line[:200]!r}: {self.application.text} failed")
        if not self.is_complete:
            if not isinstance(reason, StartupFailed):
                self.fault = traceback.format_exc()
            self.is_complete = True
            self.channel.post(FAULT)

    async def receive(self) -> Message:
        """Return the next message about the request: http.request, or http.disconnect when the exchange is over."""
        while True:
            if self.incoming is not None:
                message, self.incoming = self.incoming, None
                return message
            if self.client_left or self.is_complete or self.bodiless:
                return dict(DISCONNECT)
            if not self.read_to_end and not self.ask_is_posted:
                self.ask_is_posted = True
                self.channel.post(ASK)
                continue  # the piece may have come already
            self.receive_event = self.receive_event or Event()
            self.receive_event.clear()
            await self.receive_event.wait()

    async def send(self, message: Message) -> None:
        """Accept a message of the response. Raises ClientLeft; ValueError, RuntimeError for a wrong message."""
        kind = message["type"]
        if kind == "http.response.start":
            if self.head is not None or self.head_is_posted or self.is_complete:
                raise RuntimeError("http.response.start was sent twice")
            self.head = ApplicationHead(message)
        elif kind == "http.response.body":
            await self.send_piece(bytes(message.get("body", b"")), message.get("more_body", False))
        elif kind == "http.response.pathsend":
            if self.head is None:
                raise RuntimeError("http.response.pathsend comes directly after http.response.start")
            self.head.path = os.fspath(message["path"])
            await self.send_piece(b"", more=False)
        else:
            raise RuntimeError(f"{kind!r} is no message of a response")

    async def send_piece(self, piece: bytes, more: bool) -> None:
        """Accept a piece of the response's body, and wait while more than MAX_QUEUED_BYTES are on their way.

        Short pieces wait for the loop's next round, so that they leave together. Once the queue is full, the
        conversation takes it at once: a round for each long piece would cost more than the piece. After TURN_BYTES
        the other connections have a turn.
        """
        if self.client_left:
            raise ClientLeft("the client has left")
        if self.is_complete:
            raise RuntimeError("http.response.body was sent after the response was complete")
        if self.head is None and not self.head_is_posted:
            raise RuntimeError("http.response.body was sent before http.response.start")
        if not more:
            self.is_complete = True
            wake(self.receive_event)  # receive() then returns http.disconnect
        item: Any = piece, more
        if (head := self.head) is not None:
            self.head = None
            self.head_is_posted = True
            head.piece = piece
            head.more = more
            if not more:
                # The response is complete: no other piece could leave together with it.
                self.channel.post(head)
                return
            item = head
        elif self.bodiless:
            await self.discard(piece)
            return
        self.unsent_bytes += len(piece) + CALL_COST_BYTES
        # In the event model, post() runs the conversation before it returns, post_soon() in the loop's next round.
        if self.unsent_bytes > MAX_QUEUED_BYTES and self.posted_bytes < TURN_BYTES:
            self.posted_bytes += self.unsent_bytes
            self.channel.post(item)
        else:
            self.channel.post_soon(item)
        if more and (self.unsent_bytes > MAX_QUEUED_BYTES or self.client_left):
            await self.wait_for_room()

    async def wait_for_room(self) -> None:
        """Wait until the conversation has taken enough: count_taken() then sets `send_event`. Raises ClientLeft."""
        while self.unsent_bytes > MAX_QUEUED_BYTES and not (self.bodiless or self.client_left):
            self.posted_bytes = 0
            self.send_event = self.send_event or Event()
            self.send_event.clear()
            await self.send_event.wait()
        if self.client_left:
            raise ClientLeft("the client has left")

    async def discard(self, piece: bytes) -> None:
        """Drop a piece of a body that no client gets. Raises ClientLeft after MAX_DISCARDED_BYTES."""
        self.discarded_bytes += len(piece) + CALL_COST_BYTES
        if self.discarded_bytes > MAX_DISCARDED_BYTES:
            self.client_left = True
            wake(self.receive_event)
            raise ClientLeft("the response has no body")

    # The conversation calls these methods through the channel

    def deliver(self, piece: bytes, more: bool) -> None:
        """Give the application a piece of the request's body. more: other pieces follow."""
        self.ask_is_posted = False
        self.read_to_end = not more
        self.incoming = {"type": "http.request", "body": piece, "more_body": more}
        wake(self.receive_event)

    def count_taken(self, size: int) -> None:
        """Note that the conversation took pieces of `size` bytes."""
        self.unsent_bytes -= size
        if self.unsent_bytes <= MAX_QUEUED_BYTES:
            wake(self.send_event)

    def send_no_body(self) -> None:
        """Note that the client gets the head alone: the exchange is over."""
        self.bodiless = True
        wake(self.receive_event)
        wake(self.send_event)

    def leave(self, cancel: bool = False) -> None:
        """Note that the client has left, or that the conversation gives up; cancel: end the application, too.

        The application's waiting calls end now: receive() with http.disconnect, send() with ClientLeft.
        """
        self.client_left = True
        wake(self.receive_event)
        wake(self.send_event)
        if cancel and self.task is not None:
            self.task.cancel()

    # The conversation's half

    async def next(self) -> Any:
        """Return the application's next item: an ApplicationHead, (piece, more) or FAULT. Serve its receive()
        meanwhile.

        Raises Timeout, Disconnected, and HTTPError for a request's body that cannot be read.
        """
        channel, seconds = self.channel, self.application.timeout_s
        while (item := await channel.take(seconds)) is ASK:
            body = self.request.body
            piece = await body.receive()
            channel.call(self.deliver, piece, not body.finished)
        return item

    def end_without_body(self) -> None:
        """Tell the application that the client gets the head alone."""
        self.channel.call(self.send_no_body)
        self.channel.close()

    def give_up(self, cancel: bool = False) -> None:
        """Tell the application that the client has left; cancel: end it, too."""
        self.channel.call(self.leave, cancel)
        self.channel.close()


def wake(event: Event | None) -> None:
    """Wake the tasks that wait for an event. None: no task has waited yet."""
    if event is not None:
        event.set()


def is_because_client_left(reason: BaseException) -> bool:
    """Return whether an exception is ClientLeft, or was caused by one; of a group, whether all its exceptions are.

    An asyncio.TaskGroup raises the exceptions of its tasks as a group.
    """
    if isinstance(reason, BaseExceptionGroup):
        _, others = reason.split(is_or_follows_client_left)
        return others is None
    return is_or_follows_client_left(reason)


def is_or_follows_client_left(reason: BaseException) -> bool:
    """Return whether an exception is ClientLeft, or was raised because of one, or while one was handled."""
    each: BaseException | None = reason
    for _ in range(MAX_CAUSES):
        if each is None or isinstance(each, ClientLeft):
            break
        each = each.__cause__ or each.__context__
    return isinstance(each, ClientLeft)


class Application:
    """One application. It starts once in each process, and then answers requests.

    text: "module:app", from the setting. timeout_s: how long the application may be silent. process: the process
    in which it has started, 0 before. state: entries that its lifespan made for the requests. calls: the requests
    that run.
    """

    # The same Application serves two paths, and stays after the settings were read again.
    by_name: dict[str, Application] = {}

    def __init__(self, text: str, program: Program, timeout_s: float) -> None:
        self.text = text
        self.program = program
        self.timeout_s = timeout_s
        self.process = 0
        self.context = Context()  # the context variables that its lifespan sets; each call gets a copy
        self.state: dict[str, Any] = {}
        self.calls: set[ApplicationCall] = set()
        self.lifespan: Lifespan | None = None
        self.idle: Event | None = None  # while it is being stopped: set once no call runs

    @classmethod
    def of(cls, text: str, program: Program, timeout_s: float) -> Application:
        """Return the application of this name; make it if there is none."""
        found = cls.by_name.get(text)
        if found is None or found.program is not program:
            found = cls.by_name[text] = cls(text, program, timeout_s)
        found.timeout_s = timeout_s
        return found

    async def start(self) -> None:
        """Start the application in this process, if it has not started. Runs on its loop. Raises StartupFailed."""
        process = os.getpid()
        if self.process == process:
            return
        if self.lifespan is None or self.lifespan.process != process:
            self.context = copy_context()
            self.state = {}
            self.lifespan = Lifespan(self, process)
        lifespan = self.lifespan
        await lifespan.started.wait()
        if lifespan.failure:
            if self.lifespan is lifespan:  # another request may have tried again already
                self.lifespan = None
            raise StartupFailed(f"application {self.text!r} cannot start: {lifespan.failure} (asgi)")
        self.process = process

    async def stop(self, seconds: float, aborting: Flag) -> None:
        """Stop the application: let its calls end, cancel those that do not, and end its lifespan.

        seconds: for the calls, and again for the lifespan. aborting: raised when it is time to end at once.
        """
        lifespan, self.lifespan = self.lifespan, None
        if lifespan is None or lifespan.process != os.getpid():
            return
        self.idle = Event()  # the last call that ends sets it
        if not self.calls:
            self.idle.set()
        if not await wait_until(self.idle, seconds, aborting):
            logger.errors.warning(
                f"application {self.text!r}: {len(self.calls)} calls are aborted by the stop"
            )
            for call in list(self.calls):
                call.leave(cancel=True)
            await wait_until(self.idle, CANCEL_TIMEOUT_S, Flag())  # a Flag that no one raises
        self.idle = None
        self.process = 0
        await lifespan.stop(seconds, aborting)


class Lifespan:
    """The call of an application that lasts as long as its process answers. Make it on the loop; it begins at once.

    started: an asyncio.Event, set when the startup is over. failure: why the startup failed, or "".
    """

    def __init__(self, application: Application, process: int) -> None:
        """process: the pid of this process. A child that it forks must start the application again."""
        self.application = application
        self.process = process
        self.failure = ""
        self.started = Event()
        self.stopping = Event()
        self.over = Event()  # the application has answered the shutdown, or has ended
        self.receive_count = 0  # calls of receive()
        # At the end: run() begins at once, and uses the attributes above
        self.task = start_task(get_running_loop(), self.run(), application.context)

    async def run(self) -> None:
        """Call the application, and wait until it returns or raises an exception. Never raises.

        An Exception before the answer to the startup message means that the application does not support lifespan
        (ASGI lifespan 2.0). It can answer requests all the same. Any other BaseException, such as SystemExit, means
        that it cannot start.
        """
        text = self.application.text
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.application.state,
        }
        try:
            await self.application.program(scope, self.receive, self.send)
        except BaseException as reason:
            if self.started.is_set():
                if not isinstance(reason, Cancelled):
                    logger.errors.exception(f"application {text!r}: its lifespan failed")
            elif isinstance(reason, Exception):
                logger.errors.info(f"application {text!r} has no lifespan: {one_line(reason)}")
            else:
                self.failure = one_line(reason)
        finally:
            self.over.set()
            self.started.set()

    async def receive(self) -> Message:
        """Return the next message: startup, then shutdown once the server stops."""
        self.receive_count += 1
        if self.receive_count == 1:
            return {"type": "lifespan.startup"}
        await self.stopping.wait()
        return {"type": "lifespan.shutdown"}

    async def send(self, message: Message) -> None:
        """Accept the application's answer to a startup or a shutdown."""
        kind = message["type"]
        reason = str(message.get("message", ""))
        if kind == "lifespan.startup.complete":
            self.started.set()
        elif kind == "lifespan.startup.failed":
            self.failure = last_line(reason) or "it does not say why"
            logger.errors.debug(f"application {self.application.text!r}: {reason}")
            self.started.set()
        elif kind in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            if kind.endswith("failed"):
                logger.errors.error(
                    f"application {self.application.text!r}: its shutdown failed: {last_line(reason)}"
                )
            self.over.set()
        else:
            raise RuntimeError(f"{kind!r} is no message of a lifespan")

    async def stop(self, seconds: float, aborting: Flag) -> None:
        """Tell the application to stop, and wait up to `seconds` until it has stopped."""
        self.stopping.set()
        if not await wait_until(self.over, seconds, aborting):
            logger.errors.warning(
                f"application {self.application.text!r}: its shutdown is aborted by the stop"
            )
        if not self.task.done():
            self.task.cancel()


def one_line(reason: BaseException) -> str:
    """Return an exception in one line."""
    return last_line("".join(traceback.format_exception_only(reason)))


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


async def start_all(applications: Iterable[Application], given_up: Flag) -> str:
    """Start applications in this process, on their loop. Return "", or one line about the one that cannot start.

    given_up: raised when the server is asked to stop; a start in progress is then cancelled.
    """
    try:
        for application in applications:
            await run_unless_given_up(application.start(), given_up)
    except StartupFailed as reason:
        return str(reason)
    return ""


async def stop_all(seconds: float, aborting: Flag) -> None:
    """Stop all applications that have started in this process; on their loop."""
    for application in list(Application.by_name.values()):
        await application.stop(seconds, aborting)
