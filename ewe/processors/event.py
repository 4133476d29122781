"""Event: one thread and one event loop for every connection (--model asyncio).

The other models let the kernel decide who runs: it schedules processes and threads. Here the program decides. One
thread asks the kernel which of all connections are ready, runs each of their conversations until it would wait, and
asks again:

    ┌─▶ epoll_wait(2): which connections are ready? ─▶ for each of them: callback ─▶ EventStream.step() ─┐
    └──────────── the conversation has run until it waits again, or has ended ◀──────────────────────────┘

A connection costs no thread and no process: an EventStream, a suspended coroutine and the kernel's socket, a few
KB. Ten thousand idle clients fit into one process, and no two conversations run at once, which needs no lock.

The price: a conversation that computes or blocks stops all others. No feature may call what waits in the kernel,
conversations must pause from time to time even if they never need to wait (Stream.share), and a second processor
core needs a second process (--workers).

EventStream is the loop's protocol and resumes its conversation directly, without a Task or a Future in between.
This module makes the loop (uvloop where it is installed, else asyncio's own: --loop), accepts through the loop's
servers, looks at all deadlines four times a second (tick), and stops.

What can go wrong, and where it is prevented:

- finish() and abort() are called by signal handlers, at any point of the loop's work: they only ask the loop to
  call a function or to stop (call).
- A stop comes while a connection is accepted but not yet known here. asyncio would reset it; settle() runs the loop
  for some more rounds first.
- The loop accepts by itself, so the listener's ceiling does not hold: has_room() also counts connections that
  are on their way (coming), and a Refusal answers 503 to one too many.

Read next: streams/event.py, where a conversation pauses and goes on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.processors.base import Processor
from ewe.streams.base import Stream
from ewe.streams.calls import CallThreads
from ewe.streams.descriptors import EXHAUSTED
from ewe.streams.event import TICK, Clock, EventStream
from ewe.streams.listener import ACCEPTS, KEEPS_NAME
from ewe.streams.loops import loop_maker

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Listener


ROUNDS = 4  # of the loop from accept(2) to connection_made(): asyncio takes two, uvloop one


class Event(Processor):
    """Runs every conversation of this process on one loop."""

    name = "asyncio"
    holds_idle = False
    ceiling = 10_000

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        return config.call_threads > 1

    @classmethod
    def words(cls, config: Config) -> str:
        return f"an event loop ({loop_maker(config.loop)[1]})"

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.loop = loop_maker(config.loop)[0]()
        self.loop.set_exception_handler(self.complain)
        self.clock = Clock()
        self.calls = CallThreads(self.loop, config.call_threads)
        self.streams: set[EventStream] = set()
        self.live = self.streams  # type: ignore[assignment]
        # How many connections are accepted whose connection_made() the loop has not called yet
        self.coming = 0
        self.turned_away: deque[asyncio.Transport] = deque(maxlen=self.refused.maxlen)
        self.running = False  # the loop runs, and may be told to stop

    def serve(self, listener: Listener) -> None:
        try:
            servers = [
                self.loop.run_until_complete(self.listen(sock, listener.names[number]))
                for number, sock in listener.sockets.items()
            ]
            if listener.lifeline >= 0:
                self.loop.add_reader(listener.lifeline, self.supervisor_lost)
            self.tick()
            self.running = True
            if not listener.closed:  # checked last: a signal may come at any point
                self.loop.run_forever()
            self.settle(servers)
            while self.streams:
                if self.finishing:
                    self.let_finish()
                self.loop.run_forever()
        finally:
            self.running = False
            self.calls.close()
            self.stop_conversations()
            self.loop.close()

    def start_conversations(self) -> str:
        return self.conversations.start(self.told_to_finish, self.loop.run_until_complete)

    def stop_conversations(self) -> None:
        # serve() calls this before it closes the loop; the server calls it again, since serve() may not have run.
        if not self.loop.is_closed():
            self.conversations.stop(self.told_to_abort, self.run_at_the_end)

    def run_at_the_end(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine to its end, although a stop that came late may end each run of the loop at once."""
        task = self.loop.create_task(work)
        task.add_done_callback(lambda _: self.loop.stop())
        while not task.done():
            self.loop.run_forever()
        task.result()

    def settle(self, servers: list[asyncio.Server]) -> None:
        """Stop accepting, and let the connections begin that the loop has accepted already.

        The close() of asyncio's servers would reset the connections that were accepted in the loop's last round.
        """
        for server in servers:
            for sock in server.sockets:
                self.loop.remove_reader(sock.fileno())
        self.run_rounds(ROUNDS)
        for server in servers:
            server.close()
        # uvloop accepts until then: what it accepted in its last round begins in the next.
        self.run_rounds(ROUNDS)

    def run_rounds(self, number: int) -> None:
        """Run so many rounds of the loop."""
        for _ in range(number):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that reached the loop: no descriptors are left (the loop tries again), or a fault."""
        reason = context.get("exception")
        if isinstance(reason, OSError) and reason.errno in EXHAUSTED:
            self.listener.complain(reason)
        else:
            logger.errors.error(f"the event loop: {context.get('message')}: {reason!r}")

    def listen(self, sock: Any, name: tuple[str, int]) -> Any:
        """Return the coroutine that makes a server of one listening socket."""
        # The loop closes its servers' sockets, and the listener's must stay open: give the loop a duplicate.
        own = Listening(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        # asyncio accepts up to `backlog` connections in one round. uvloop accepts all there are, and passes
        # `backlog` to listen(2) by itself.
        backlog = ACCEPTS if isinstance(self.loop, asyncio.BaseEventLoop) else self.config.backlog

        def connection() -> Any:
            return self.accepted(name)

        if own.family.name == "AF_UNIX":
            return self.loop.create_unix_server(connection, sock=own, backlog=backlog, **KEEPS_NAME)
        return self.loop.create_server(connection, sock=own, backlog=backlog)

    def accepted(self, server: tuple[str, int]) -> Any:
        """Return the protocol of a new connection."""
        if not self.has_room():
            return Refusal(self, "connections")
        self.coming += 1
        return EventStream(
            self.loop, self.clock, self.converse, server, self.config, self.admit, self.connection_lost,
            self.calls,
        )  # fmt: skip

    def has_room(self) -> bool:
        return len(self.streams) + self.coming < self.ceiling

    def admit(self, stream: EventStream) -> bool:
        """Register a connection, now that its address is known; return False if it is refused."""
        self.coming -= 1
        if not stream.client[0]:  # it has left already, and uvloop no longer knows its address
            stream.transport.abort()
            return False
        if not self.has_too_many(stream.client[0]):
            self.register(stream)
            return True
        refusal = Refusal(self, "connections-per-client")
        stream.transport.set_protocol(refusal)
        refusal.connection_made(stream.transport)
        return False

    def turn_away(self, transport: asyncio.Transport, limit: str) -> None:
        """Answer 503 without reading a request; the last few stay open for a while (Processor.refuse)."""
        peer = transport.get_extra_info("peername")
        self.report_refusal(peer[0] if peer else "unix:", limit)
        if self.conversations.refusal:
            transport.write(self.conversations.refusal)
        try:
            transport.write_eof()
        except (OSError, RuntimeError):  # the client has left
            transport.abort()
            return
        if len(self.turned_away) == self.turned_away.maxlen:
            self.turned_away.popleft().close()  # after the 503, which uvloop sends at the end of a round
        self.turned_away.append(transport)
        self.loop.call_later(1, transport.abort)

    def connection_lost(self, stream: Stream) -> None:
        """Release the stream of a connection that has ended; at a stop, the last one ends the loop."""
        self.release(stream)
        if self.stopping and not self.streams:
            self.loop.stop()

    def tick(self) -> None:
        """Check all deadlines, four times a second."""
        self.clock.now = now = time.monotonic()
        for stream in list(self.streams):
            stream.check_deadline(now)
        self.loop.call_later(TICK, self.tick)

    # finish() and abort() may come from a signal handler, while the loop is anywhere

    def retire(self) -> None:
        super().retire()
        self.call(self.loop.stop)

    def finish(self) -> None:
        self.finishing = self.stopping = True
        self.told_to_finish.set()
        self.listener.close()
        self.call(self.loop.stop)

    def supervisor_lost(self) -> None:
        """Finish, since the lifeline has reached its end, and watch it no longer: its end would wake each round."""
        self.loop.remove_reader(self.listener.lifeline)
        self.finish()

    def let_finish(self) -> None:
        """Close idle connections."""
        for stream in list(self.streams):
            stream.finish()

    def abort(self) -> None:
        self.told_to_abort.set()
        self.finish()
        self.call(self.let_abort)

    def let_abort(self) -> None:
        """End every conversation."""
        for stream in list(self.streams):
            stream.abort()

    def call(self, function: Callable[[], None]) -> None:
        """Have the loop call a function soon, if the loop runs."""
        if not self.running:
            return
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop is closed


class Listening(socket.socket):
    """A listening socket whose backlog stays as it is: the loop's call of listen() changes nothing."""

    def listen(self, backlog: int = 0) -> None:
        """Do nothing."""


class Refusal(asyncio.Protocol):
    """The protocol of a connection that is refused; bytes that it still sends are dropped."""

    def __init__(self, processor: Event, limit: str) -> None:
        self.processor = processor
        self.limit = limit

    def connection_made(self, transport: Any) -> None:
        """Answer 503."""
        self.processor.turn_away(transport, self.limit)

    def eof_received(self) -> bool:
        """Let the transport close: the client has closed its side."""
        return False
