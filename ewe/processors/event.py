"""Event: one thread and one event loop for every connection (--model asyncio).

In the other models the kernel schedules processes and threads. In this model the program schedules its
conversations itself. One thread asks the kernel which connections are ready, runs each of their conversations until
it would wait, and asks again:

    ┌─▶ epoll_wait(2): which connections are ready? ─▶ for each of them: callback ─▶ EventStream.step() ─┐
    └──────────── the conversation has run until it waits again, or has ended ◀──────────────────────────┘

A connection needs no thread and no process, only an EventStream, a suspended coroutine and the kernel's socket: a
few KB. Ten thousand idle clients fit into one process. Two conversations never run at once, so they need no locks.

The price: a conversation that computes or blocks stops all others. Three rules follow. No feature may call a
function that waits in the kernel. Conversations must pause from time to time even if they never need to wait
(Stream.share). A second processor core needs a second process (--workers).

EventStream is the loop's protocol. It resumes its conversation directly, without a Task or a Future in between.
This module makes the loop (uvloop where it is installed, else asyncio's own: --loop), accepts connections through
the loop's servers, checks all deadlines four times a second (tick), and stops the loop.

Possible failures, and where each is prevented:

- Signal handlers call finish() and abort(), at any point of the loop's work. These methods therefore only ask the
  loop to call a function or to stop (call_soon).
- A stop comes when the loop has accepted a connection, but has not called connection_made() for it. asyncio would
  reset that connection. stop_accepting() therefore runs the loop for some more rounds first.
- The loop accepts connections itself, so the listener cannot enforce the connection limit. limit_reached() also
  counts accepted connections without a stream (pending_connections). A RefusedConnection answers 503 to each
  surplus one.

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
from ewe.streams.base import RECEIVE_BYTES, Stream
from ewe.streams.calls import ExecutorThreads
from ewe.streams.descriptors import EXHAUSTED
from ewe.streams.event import DEADLINE_CHECK_S, Clock, EventStream
from ewe.streams.listener import KEEPS_SOCKET_PATH, let_others_run
from ewe.streams.loops import loop_kind, run_loop

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.listener import Listener


REFUSED_S = 1  # seconds for which a refused connection stays open
ACCEPT_ROUNDS = 4  # of the loop from accept(2) to connection_made(): asyncio takes two, uvloop one


class Event(Processor):
    """Runs every conversation of this process on one loop."""

    name = "asyncio"
    idle_occupies_worker = False
    connection_limit = 10_000

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        """Return whether several executor threads may make calls at once (call-threads)."""
        return config.call_threads > 1

    @classmethod
    def description(cls, config: Config) -> str:
        return f"an event loop ({loop_kind(config.loop).name})"

    def make_loop(self, config: Config) -> asyncio.AbstractEventLoop:
        """Return the model's loop. A subclass may run another one."""
        return loop_kind(config.loop).make()

    def __init__(self, conversations: Conversations, config: Config) -> None:
        super().__init__(conversations, config)
        self.loop = self.make_loop(config)
        self.loop.set_exception_handler(self.log_loop_exception)
        self.clock = Clock()
        self.executor = ExecutorThreads(self.loop, config.call_threads)
        # The live streams of accounting.py, under a second name whose type is narrower
        self.streams: set[EventStream] = set()
        self.live = self.streams  # type: ignore[assignment]
        # asyncio would allocate 256 KB for each recv(2), and so map memory and unmap it again. uvloop has a buffer.
        self.sizes_reads = isinstance(self.loop, asyncio.BaseEventLoop)
        # Accepted connections for which the loop has not called connection_made() yet
        self.pending_connections = 0
        # Refused connections that still linger, the oldest first: like `refused`, but as transports
        self.refused_transports: deque[asyncio.Transport] = deque(maxlen=self.refused.maxlen)
        self.running = False  # the loop runs, and call_soon() may use it

    def serve(self, listener: Listener) -> None:
        """Serve connections: run the loop until a stop, then until no conversation is left; then close it."""
        try:
            servers = [
                self.loop.run_until_complete(self.listen(sock, listener.names[descriptor]))
                for descriptor, sock in listener.sockets.items()
            ]
            if listener.lifeline >= 0:
                self.loop.add_reader(listener.lifeline, self.supervisor_lost)
            self.tick()
            self.running = True
            while not listener.closed:  # checked last: a signal may come at any point
                run_loop(self.loop)
            self.stop_accepting(servers)
            while self.streams:  # each stop signal ends run_forever(), and so does the last stream
                if self.finishing:
                    self.finish_streams()
                run_loop(self.loop)
        finally:
            self.running = False
            self.executor.close()
            self.stop_conversations()
            self.loop.close()

    def start_conversations(self) -> str:
        """Start the applications on the loop; return why one cannot start, or ""."""
        return self.conversations.start(self.asked_to_finish, self.loop.run_until_complete)

    def stop_conversations(self) -> None:
        """Stop the applications on the loop; do nothing if it is closed."""
        # serve() calls this before it closes the loop. The server calls it as well, in case serve() did not run.
        if not self.loop.is_closed():
            self.conversations.stop(self.asked_to_abort, run=self.run_at_the_end)

    def run_at_the_end(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine to its end, even if a late stop request ends a run of the loop at once."""
        task = self.loop.create_task(work)
        task.add_done_callback(lambda _: self.loop.stop())
        while not task.done():
            run_loop(self.loop)
        task.result()

    def stop_accepting(self, servers: list[asyncio.Server]) -> None:
        """Stop accepting connections, and start the conversations of those that the loop has accepted already.

        The close() of asyncio's servers would reset the connections that were accepted in the loop's last round.
        """
        for server in servers:
            for sock in server.sockets:
                self.loop.remove_reader(sock.fileno())
        self.run_rounds(ACCEPT_ROUNDS)
        for server in servers:
            server.close()
        # uvloop accepts until close(). Connections of its last round start in the next round.
        self.run_rounds(ACCEPT_ROUNDS)

    def run_rounds(self, rounds: int) -> None:
        """Run some rounds of the loop."""
        for _ in range(rounds):
            self.loop.call_soon(self.loop.stop)
            run_loop(self.loop)

    def log_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that reached the loop: a bug, or a lack of descriptors (the loop will try again)."""
        reason = context.get("exception")
        if isinstance(reason, OSError) and reason.errno in EXHAUSTED:
            self.listener.log_accept_failure(reason)
        else:
            logger.errors.error(f"the event loop: {context.get('message')}: {reason!r}")

    def listen(self, sock: Any, name: tuple[str, int]) -> Any:
        """Return the coroutine that makes a server of one listening socket."""
        # The loop closes its servers' sockets, and the listener's socket must stay open. The loop gets a duplicate,
        # whose listen() does nothing: the loop would change the backlog of both.
        duplicate = WithoutListen(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        # asyncio accepts up to `backlog` connections in one round. uvloop accepts all connections that wait, and
        # passes `backlog` to listen(2).
        backlog = self.config.backlog
        if isinstance(self.loop, asyncio.BaseEventLoop):
            backlog = self.listener.accepts_at_once

        def make_protocol() -> Any:
            return self.accepted(name)

        if duplicate.family.name == "AF_UNIX":
            return self.loop.create_unix_server(
                make_protocol, sock=duplicate, backlog=backlog, **KEEPS_SOCKET_PATH
            )
        return self.loop.create_server(make_protocol, sock=duplicate, backlog=backlog)

    def accepted(self, server: tuple[str, int]) -> Any:
        """Return the protocol object of a new connection."""
        if self.listener.takes_turns:  # uvloop would accept a whole burst before another worker has woken
            let_others_run()
        if limit := self.limit_reached():
            return RefusedConnection(self, limit)
        self.pending_connections += 1
        return EventStream(self, server, self.config)

    def limit_reached(self) -> str:
        """Return the setting whose limit leaves no room. Connections that the loop has accepted count, too."""
        return "" if len(self.streams) + self.pending_connections < self.connection_limit else "connections"

    def admit(self, stream: EventStream) -> bool:
        """Register a connection; the client's address is known now. Return False if it is refused or has ended."""
        self.pending_connections -= 1
        if self.sizes_reads:  # by default asyncio's own loop allocates 256 KB for each recv(2)
            stream.transport.max_size = RECEIVE_BYTES  # type: ignore[attr-defined]
        if not stream.client[0]:  # the client has left already, and uvloop no longer knows its address
            stream.transport.abort()
            return False
        if not self.has_too_many(stream.client[0]):
            self.register(stream)
            return True
        refusal = RefusedConnection(self, "connections-per-client")
        stream.transport.set_protocol(refusal)
        refusal.connection_made(stream.transport)
        return False

    def refuse_transport(self, transport: asyncio.Transport, limit: str) -> None:
        """Answer 503 without reading a request. The last few connections stay open for a while (see refuse())."""
        peer = transport.get_extra_info("peername")
        self.report_refusal(peer[0] if isinstance(peer, tuple) else "unix:", limit)
        if self.conversations.refusal:
            transport.write(self.conversations.refusal)
        try:
            transport.write_eof()
        except (OSError, RuntimeError):  # the client has left
            transport.abort()
            return
        if len(self.refused_transports) == self.refused_transports.maxlen:
            # close() sends the buffered bytes first: uvloop sends the 503 at the end of a round.
            self.refused_transports.popleft().close()
        self.refused_transports.append(transport)
        self.loop.call_later(REFUSED_S, transport.abort)

    def connection_lost(self, stream: Stream) -> None:
        """Release the stream of a connection that has ended. During a stop, the last connection stops the loop."""
        self.release(stream)
        if self.stopping and not self.streams:
            self.loop.stop()

    def tick(self) -> None:
        """Check all deadlines, four times a second."""
        self.loop.call_later(DEADLINE_CHECK_S, self.tick)  # first: a failure below must not end the checks
        self.clock.now = now = time.monotonic()
        for stream in list(self.streams):
            stream.check_deadline(now)

    # Called by a signal handler

    def retire(self) -> None:
        """Stop accepting, and close each connection after its next exchange; end run_forever()."""
        super().retire()
        self.call_soon(self.loop.stop)

    def finish(self) -> None:
        """Stop accepting, and end run_forever(): serve() then closes the idle connections."""
        self.finishing = self.stopping = True
        self.asked_to_finish.set()
        self.listener.close()
        self.call_soon(self.loop.stop)

    def supervisor_lost(self) -> None:
        """Finish, since the lifeline has reached its end. Stop watching it, or its end would wake each round."""
        self.loop.remove_reader(self.listener.lifeline)
        self.finish()

    def finish_streams(self) -> None:
        """Close the idle connections, and make the exchange in progress the last of each other one."""
        for stream in list(self.streams):
            stream.finish()

    def abort(self) -> None:
        """Stop accepting, and have the loop end every conversation. A signal handler may call this."""
        self.asked_to_abort.set()
        self.finish()
        self.call_soon(self.abort_streams)

    def abort_streams(self) -> None:
        """End every conversation, in the loop's thread."""
        for stream in list(self.streams):
            stream.abort()

    def call_soon(self, function: Callable[[], None]) -> None:
        """Have the loop call a function in its next round, if the loop runs.

        Otherwise do nothing: a stop before the loop runs has closed the listener, and serve() looks at the listener
        before it runs the loop.
        """
        if not self.running:
            return
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop is closed


class WithoutListen(socket.socket):
    """A listening socket that keeps its backlog, although the loop calls listen()."""

    def listen(self, backlog: int = 0) -> None:
        """Do nothing: the socket listens already."""


class RefusedConnection(asyncio.Protocol):
    """The protocol object of a refused connection. It drops the bytes that the client still sends."""

    def __init__(self, processor: Event, limit: str) -> None:
        self.processor = processor
        self.limit = limit

    def connection_made(self, transport: Any) -> None:
        """Answer 503."""
        self.processor.refuse_transport(transport, self.limit)

    def eof_received(self) -> bool:
        """Let the transport close: the client has closed its side."""
        return False
