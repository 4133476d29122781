"""Pool: a fixed number of threads for any number of connections.

A thread for each connection is wasteful, since most connections wait most of the time. A pool has few threads
(workers), started once, and a queue of conversations that can go on:

    main thread: epoll over the listening sockets and the parked connections
        │                                        │ accepted: start the conversation, which waits for its request
        │ ready                                  ▼
        │                                      parked
        ▼                                        ▲ park: the client is silent, or does not read
      queue ──▶ worker 1: run a conversation ────┤
            ──▶ worker 2: ... until it must wait │
            ──▶ worker N                         └─▶ end: release

Over TLS a conversation begins with a handshake, which computes and may wait in recv(2). The main thread therefore
queues the new conversation, and a worker starts it. With parking = never no connection is parked: the main thread
queues accepted connections as blocking streams, and hold() runs their conversations.

The lesson is what a worker does when its client makes it wait. The setting `parking` has three answers:

- never: the worker waits. Five silent clients stop a pool of five: the EWE of 2006.
- idle: between two requests the connection is parked and the worker takes another. A client that sends its request
  slowly still holds a worker. Apache's event MPM began like this.
- always: the connection is parked in every wait for the client, so that a slow client holds no worker.

A conversation is a coroutine, so parking is cheap: the coroutine object with its local variables is all that must
be kept, and send(None) goes on where it paused, in any thread.

What can go wrong, and where it is prevented:

- Two workers run one conversation. A parked connection is watched with EPOLLONESHOT, so that it is reported
  once; and only the thread that removes it from `parked` may queue it.
- The client is ready before its connection is recorded as parked. park() therefore records it first and then tells
  epoll. In between the deadline does not count (Wait.watched).
- A few fast clients never wait and keep all workers. With parking = always, a conversation that has handled SHARE
  bytes joins the end of the queue.
- A program of a CGI request holds its worker. Parking is for clients, and for the servers that the proxy asks
  (streams/parking.py): their sockets are watched by the same epoll, and `others` has who waits for them.

Read next: streams/pool.py for the stream that pauses; event.py, where one thread is enough.
"""

from __future__ import annotations

import functools
import time
from _thread import start_new_thread
from collections.abc import Coroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.processors.base import Processor
from ewe.streams.base import Stream, Timeout, Wait, Want
from ewe.streams.descriptor_set import EPOLLIN, EPOLLONESHOT, EPOLLOUT
from ewe.streams.listener import ACCEPTS
from ewe.streams.pool import PoolStream

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Accepted, Listener
    from ewe.streams.parking import ParkedPoll

LOOK = 0.25  # seconds between two looks at the deadlines of parked connections
EVENTS = {Want.BYTES: EPOLLIN | EPOLLONESHOT, Want.ROOM: EPOLLOUT | EPOLLONESHOT}


class Task:
    """A conversation of the pool: it is with a worker, in the queue, or parked.

    wait: the one that it is parked for, or was the last time. watched: epoll knows the descriptor. error: to be
    thrown into the conversation.
    """

    __slots__ = ("conversation", "descriptor", "error", "stream", "wait", "watched")

    def __init__(self, stream: PoolStream, conversation: Coroutine[Any, Any, None]) -> None:
        self.stream = stream
        self.conversation = conversation
        self.descriptor = stream.socket.fileno()
        self.watched = False
        self.wait: Wait | None = None
        self.error: Exception | None = None


class Pool(Processor):
    """Runs conversations in config.poolthreads workers.

    Accepting pauses while config.queue conversations, new or resumed, are in the queue.
    """

    name = "pool"
    many_threads = True
    ceiling = 4000

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.queue: SimpleQueue[Task | Stream | None] = SimpleQueue()
        self.parked: dict[int, Task] = {}
        self.others: dict[int, ParkedPoll] = {}  # descriptors of other servers, and who waits for them
        self.parks = config.parking != "never"

    @classmethod
    def idle_holds(cls, config: Config) -> bool:
        return config.parking == "never"

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        return config.poolthreads > 1

    @classmethod
    def words(cls, config: Config) -> str:
        return f"a pool of {config.poolthreads} threads, parking {config.parking}"

    def serve(self, listener: Listener) -> None:
        threads = self.start()
        if not threads:
            return
        if self.parks:
            self.serve_parked(listener)
        else:
            while not listener.closed:
                accepted = self.next(listener)
                if accepted is not None:
                    self.queue.put(self.meet(accepted))
        self.drain()
        for _ in range(threads):
            self.queue.put(None)

    def start(self) -> int:
        """Start the workers; return how many started: the system may refuse threads."""
        for number in range(self.config.poolthreads):
            try:
                start_new_thread(self.work, ())
            except RuntimeError as reason:
                logger.errors.error(
                    f"{number} of {self.config.poolthreads} threads run (poolthreads): {reason}"
                )
                return number
        return self.config.poolthreads

    def has_room(self) -> bool:
        return self.queue.qsize() < self.config.queue and super().has_room()

    # The main thread

    def serve_parked(self, listener: Listener) -> None:
        """Accept connections, and queue the parked conversations that can go on."""
        looked = time.monotonic()
        while not listener.closed or self.live:
            refuses = self.config.overload == "refuse"
            accepted, ready = listener.wait(LOOK, ACCEPTS if refuses or self.has_room() else 0)
            for descriptor in ready:
                task = self.parked.pop(descriptor, None)
                if task is not None:
                    self.queue.put(task)
                elif (parked := self.others.pop(descriptor, None)) is not None:
                    parked.ring()
            for each in accepted:
                if self.has_too_many(each.client[0]):
                    self.refuse(each, "connections-per-client")
                elif refuses and not self.has_room():
                    self.refuse(each, "connections, queue")
                else:
                    self.begin(each)
            now = time.monotonic()
            if now - looked >= LOOK:
                looked = now
                self.expire(now)

    def begin(self, accepted: Accepted) -> None:
        """Start a conversation and run it to its first wait, where it parks; a worker does it if it computes."""
        stream = PoolStream(
            accepted.socket, accepted.client, accepted.server, self.config, self.config.parking == "always"
        )
        self.register(stream)
        task = Task(stream, self.converse(stream))
        if self.conversations.computes_first:
            self.queue.put(task)  # the main thread must not compute, or wait in recv(2) (parking = idle)
        else:
            self.advance(task)

    def expire(self, now: float) -> None:
        """Queue the parked conversations that are past their deadline; Timeout is thrown into them."""
        for descriptor, task in list(self.parked.items()):
            wait = task.wait
            assert wait is not None
            # One that is only recorded yet is still with the worker that parks it
            if wait.expires < now and wait.watched and self.parked.pop(descriptor, None) is not None:
                task.error = Timeout()
                self.queue_unwatched(task)

    def wake(self, task: Task) -> None:
        """Queue a conversation whose bell has rung, if it is still parked; any thread may call this."""
        other = self.parked.pop(task.descriptor, None)
        if other is task:
            self.queue_unwatched(task)
        elif other is not None:  # as in park()
            self.parked[task.descriptor] = other

    def queue_unwatched(self, task: Task) -> None:
        """Queue a conversation that is no longer parked, although its client did nothing."""
        # Else epoll could report it, too, while a worker runs the conversation.
        self.listener.unwatch(task.descriptor)
        task.watched = False
        self.queue.put(task)

    # The workers

    def work(self) -> None:
        """Run the conversations of the queue, in a worker, until the queue yields None."""
        while (entry := self.queue.get()) is not None:
            if not self.listener.accepting:
                self.listener.wake()  # the queue has room again, so the main thread may accept
            if isinstance(entry, Task):
                self.advance(entry)
            else:
                # parking = never: the entry is a blocking stream
                self.hold(entry)

    def advance(self, task: Task) -> None:
        """Run a conversation until it parks or ends."""
        try:
            if task.error is None:
                wait = task.conversation.send(None)
            else:
                error, task.error = task.error, None
                wait = task.conversation.throw(error)
        except StopIteration:
            self.release(task.stream)
        except Exception:
            logger.errors.exception(f"a conversation with {task.stream.client[0]} failed")
            self.release(task.stream)
        else:
            if wait.want is Want.TURN:
                self.queue.put(task)
            else:
                self.park(task, wait)

    def park(self, task: Task, wait: Wait) -> None:
        """Have epoll watch the connection of a conversation that waits."""
        task.wait = wait
        bell = wait.bell
        if bell is not None:
            bell.wake = None
        self.parked[task.descriptor] = task  # before epoll knows: the connection may be ready at once
        try:
            again, task.watched = task.watched, True
            self.listener.watch(task.descriptor, bell.events() if bell else EVENTS[wait.want], again)
        except OSError:
            logger.errors.exception("a connection cannot be parked")
            other = self.parked.pop(task.descriptor, None)
            if other is task:
                self.release(task.stream)
            elif other is not None:  # our connection has ended, and a new one has its descriptor's number
                self.parked[task.descriptor] = other
            return
        # The conversation may be with another worker by now, in another wait: only this one's deadline may count
        wait.watched = True
        if bell is not None:
            bell.wake = functools.partial(self.wake, task)
            if bell.descriptor >= 0:
                self.watch_other(bell)  # type: ignore[arg-type]
            if bell.rung:  # checked last: it may ring at any point
                self.wake(task)

    def watch_other(self, parked: ParkedPoll) -> None:
        """Have epoll watch the socket of another server that a parked conversation waits for, too."""
        descriptor, events = parked.descriptor, parked.mask | EPOLLONESHOT
        try:
            with parked.lock:
                if parked.over:  # the client's event came first
                    return
                self.others[descriptor] = parked
                try:
                    self.listener.watch(descriptor, events, True)
                except FileNotFoundError:
                    self.listener.watch(descriptor, events)
        except OSError:  # let the conversation find out
            parked.ring()
