"""Event: one thread, one event loop, every connection at once (--model asyncio).

A connection is an EventStream: the loop's callbacks resume its conversation directly, without a Task, a
Future or a timer in between. With uvloop where it is installed, else with the standard loop (--loop).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.conversation import BUSY
from ewe.eventstream import TICK, Clock, EventStream
from ewe.listener import KEEPS_NAME, OVERLOADED
from ewe.processors.base import Processor
from ewe.streams import Stream

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.listener import Listener


class Event(Processor):
    """Run every conversation of this process on one loop."""

    name = "asyncio"
    holds_idle = False
    ceiling = 10_000

    @classmethod
    def words(cls, config: Config) -> str:
        return f"an event loop ({loop_maker(config.loop)[1]})"

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.loop = loop_maker(config.loop)[0]()
        self.loop.set_exception_handler(self.complain)
        self.clock = Clock()
        self.streams: set[EventStream] = set()
        self.live = self.streams  # type: ignore[assignment]

    def serve(self, listener: Listener) -> None:
        try:
            servers = [
                self.loop.run_until_complete(self.listen(sock, listener.names[number]))
                for number, sock in listener.sockets.items()
            ]
            if listener.lifeline >= 0:
                self.loop.add_reader(listener.lifeline, self.finish)
            self.tick()
            if not listener.closed:
                self.loop.run_forever()
            for server in servers:
                server.close()
            while self.streams:
                if self.finishing:
                    self.let_finish()
                self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()

    def complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop met what nobody else takes: a system out of descriptors, and it tries again; or a fault."""
        reason = context.get("exception")
        if isinstance(reason, OSError) and reason.errno in OVERLOADED:
            self.listener.complain(reason)
        else:
            logger.errors.error(f"the event loop: {context.get('message')}: {reason!r}")

    def listen(self, sock: Any, name: tuple[str, int]) -> Any:
        """Return the coroutine that makes a server of one listening socket."""
        own = sock.dup()  # the loop closes its servers' sockets; the listener's are not ours to close

        def connection() -> Any:
            return self.accepted(name)

        if own.family.name == "AF_UNIX":
            return self.loop.create_unix_server(connection, sock=own, **KEEPS_NAME)
        return self.loop.create_server(connection, sock=own, backlog=self.config.backlog)

    def accepted(self, server: tuple[str, int]) -> Any:
        """Return the protocol of a new connection."""
        if not self.has_room():
            return self.refusal("connections")
        return EventStream(self.loop, self.clock, self.begin, server, self.config, self.entered, self.gone)

    def begin(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation of a new connection, or its refusal, now that its address is known."""
        if self.has_too_many_with(stream.client[0]):
            return self.turn_away(stream)
        return self.converse(stream)

    def has_too_many_with(self, client: str) -> bool:
        """Is this connection, which is counted already, one too many?"""
        most = self.config.connections_per_client
        return bool(most) and self.clients[client] > most

    async def turn_away(self, stream: Stream) -> None:
        """Answer 503 without reading a request."""
        logger.errors.warning(f"{stream.client[0]}: 503 (connections-per-client)")
        if self.site.tls is None:
            await stream.send(BUSY)
        await stream.linger()

    def refusal(self, limit: str) -> asyncio.Protocol:
        """Return the protocol of a connection above the ceiling."""
        logger.errors.warning(f"503, {len(self.live)} connections are open ({limit})")
        return Refusal(self.loop, BUSY if self.site.tls is None else b"")

    def gone(self, stream: Stream) -> None:
        """A connection was lost: count it, and end with the last."""
        self.leave(stream)
        if self.stopping and not self.streams:
            self.loop.stop()

    def tick(self) -> None:
        """Look at all deadlines, four times a second."""
        self.clock.now = now = time.monotonic()
        for stream in list(self.streams):
            stream.look(now)
        self.loop.call_later(TICK, self.tick)

    # finish() and abort() may come from a signal handler, while the loop is anywhere

    def retire(self) -> None:
        super().retire()
        self.call(self.loop.stop)

    def finish(self) -> None:
        self.finishing = self.stopping = True
        self.listener.close()
        self.call(self.loop.stop)

    def let_finish(self) -> None:
        """Close idle connections."""
        for stream in list(self.streams):
            stream.finish()

    def abort(self) -> None:
        self.finish()
        self.call(self.let_abort)

    def let_abort(self) -> None:
        """End every conversation."""
        for stream in list(self.streams):
            stream.abort()

    def call(self, function: Callable[[], None]) -> None:
        """Have the loop call a function soon."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # it is closed


class Refusal(asyncio.Protocol):
    """A connection above the ceiling: 503, and nothing else."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: bytes) -> None:
        self.loop = loop
        self.answer = answer

    def connection_made(self, transport: Any) -> None:
        """Answer; what the client sends is read off for a second, so that the close is no reset."""
        transport.write(self.answer)
        transport.write_eof()
        self.loop.call_later(1, transport.abort)


def loop_maker(choice: str) -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    """Return what makes the loop of a choice (auto, uvloop, asyncio), and its name. Raises ImportError."""
    if choice != "asyncio":
        try:
            import uvloop
        except ImportError:
            if choice == "uvloop":
                raise
        else:
            return uvloop.new_event_loop, "uvloop"
    return asyncio.new_event_loop, "asyncio"
