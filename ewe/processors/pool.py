"""Pool: a fixed number of threads, and connections that wait for one of them.

What a worker does when it would have to wait for its client is the lesson, `parking`:

- never: it waits. Five silent clients stop a pool of five: the EWE of 2006.
- idle: between two requests the connection is parked with a selector and the worker takes another; a slow
  request still holds it. Apache's event MPM began so.
- always: it is parked in every wait for the client, so that slow clients cost no worker either.

The main thread accepts and watches what is parked; a conversation that can go on joins the queue, and any
worker goes on with it.
"""

from __future__ import annotations

import time
from _thread import start_new_thread
from collections.abc import Coroutine
from queue import SimpleQueue
from select import EPOLLIN, EPOLLONESHOT, EPOLLOUT
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.poolstream import PoolStream
from ewe.processors.base import Processor
from ewe.streams import Stream, Timeout, Wait, Want

if TYPE_CHECKING:
    from ewe.config import Config
    from ewe.listener import Accepted, Listener

LOOK = 0.25  # seconds between two looks at the deadlines of parked connections
EVENTS = {Want.BYTES: EPOLLIN | EPOLLONESHOT, Want.ROOM: EPOLLOUT | EPOLLONESHOT}


class Task:
    """A conversation and where it stands: with a worker, in the queue, or parked."""

    __slots__ = ("conversation", "descriptor", "error", "expires", "stream", "watched")

    def __init__(self, stream: PoolStream, conversation: Coroutine[Any, Any, None]) -> None:
        self.stream = stream
        self.conversation = conversation
        self.descriptor = stream.socket.fileno()
        self.watched = False  # known to the selector
        self.expires = 0.0
        self.error: Exception | None = None


class Pool(Processor):
    """config.poolthreads workers, a queue of at most config.queue new connections."""

    name = "pool"
    many_threads = True
    ceiling = 4000

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.ready: SimpleQueue[Task | Stream | None] = SimpleQueue()
        self.parked: dict[int, Task] = {}
        self.parks = config.parking != "never"

    @classmethod
    def idle_holds(cls, config: Config) -> bool:
        return config.parking == "never"

    @classmethod
    def words(cls, config: Config) -> str:
        return f"a pool of {config.poolthreads} threads, parking {config.parking}"

    def serve(self, listener: Listener) -> None:
        for _ in range(self.config.poolthreads):
            start_new_thread(self.work, ())
        if self.parks:
            self.serve_parked(listener)
        else:
            while not listener.closed:
                accepted = self.next(listener)
                if accepted is not None:
                    self.ready.put(self.meet(accepted))
        self.drain()
        for _ in range(self.config.poolthreads):
            self.ready.put(None)

    def has_room(self) -> bool:
        return self.ready.qsize() < self.config.queue and super().has_room()

    # The main thread

    def serve_parked(self, listener: Listener) -> None:
        """Accept, and queue what is parked and can go on."""
        looked = time.monotonic()
        while not listener.closed or self.live:
            refuses = self.config.overload == "refuse"
            accepted, ready = listener.wait(LOOK, 16 if refuses or self.has_room() else 0)
            for descriptor in ready:
                task = self.parked.pop(descriptor, None)
                if task is not None:
                    self.ready.put(task)
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
        """Start a conversation: it parks at once, until the client speaks."""
        stream = PoolStream(
            accepted.socket, accepted.client, accepted.server, self.config, self.config.parking == "always"
        )
        self.entered(stream)
        self.advance(Task(stream, self.converse(stream)))

    def expire(self, now: float) -> None:
        """Let those go on, with Timeout, that have waited too long."""
        for descriptor, task in list(self.parked.items()):
            if task.expires < now and self.parked.pop(descriptor, None) is not None:
                task.error = Timeout()
                self.ready.put(task)

    # The workers

    def work(self) -> None:
        """Take what is ready, for ever."""
        while (task := self.ready.get()) is not None:
            if not self.listener.accepting:
                self.listener.wake()  # there is room in the queue again
            if isinstance(task, Task):
                self.advance(task)
            else:
                self.hold(task)

    def advance(self, task: Task) -> None:
        """Go on with a conversation until it parks or ends."""
        try:
            if task.error is None:
                wait = task.conversation.send(None)
            else:
                error, task.error = task.error, None
                wait = task.conversation.throw(error)
        except StopIteration:
            self.leave(task.stream)
        except Exception:
            logger.errors.exception(f"a conversation with {task.stream.client[0]} failed")
            self.leave(task.stream)
        else:
            self.park(task, wait)

    def park(self, task: Task, wait: Wait) -> None:
        """Give a waiting conversation to the selector."""
        task.expires = wait.expires
        self.parked[task.descriptor] = task  # before the selector knows: it may be ready at once
        try:
            if task.watched:
                self.listener.epoll.modify(task.descriptor, EVENTS[wait.want])
            else:
                task.watched = True
                self.listener.epoll.register(task.descriptor, EVENTS[wait.want])
        except OSError:
            logger.errors.exception("a connection cannot be parked")
            if self.parked.pop(task.descriptor, None) is not None:
                self.leave(task.stream)
