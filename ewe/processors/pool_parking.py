"""The pool's parking: where conversations wait without a worker.

A conversation that must wait yields a Wait (streams/base.py). Its worker then parks it, and is free:

    worker: park(task, wait) ─▶ parked[descriptor] = task ─▶ epoll watches the client's connection
                                    │
    main thread: ready(descriptor) ─┤ the client has sent, has read, or has left
                 expire()          ─┤ the deadline has passed: Timeout is thrown into the conversation
    any thread:  resume(task)      ─┤ a bell has rung: another conversation, or the server behind a proxy
                                    └─▶ queue ─▶ a worker

What can go wrong, and where it is prevented:

- Two workers run one conversation. A parked connection is watched with EPOLLONESHOT, so that it is reported once;
  and only the thread that removes it from `parked` may queue it.
- The client is ready before its connection is recorded as parked. park() therefore records it first and then tells
  epoll. In between the deadline does not count (Wait.watched).
- A connection ends, and a new one gets its descriptor's number, while a thread still holds the old task. The thread
  therefore looks whether the task that it removes from `parked` is the one it means (leave).

Read next: streams/parking.py, how a conversation waits for another server.
"""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.streams.base import Timeout, Wait, Want
from ewe.streams.descriptor_set import EPOLLIN, EPOLLONESHOT, EPOLLOUT
from ewe.streams.parking import OtherSockets

if TYPE_CHECKING:
    from ewe.streams.listener import Listener
    from ewe.streams.pool import PoolStream

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


class Parking:
    """The parked conversations of a pool, by the descriptor of their connection. queue: where they go from here."""

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self.queue = queue
        self.parked: dict[int, Task] = {}

    def open(self, listener: Listener) -> None:
        """Begin: the listener's epoll watches the connections."""
        self.listener = listener
        self.others = OtherSockets(listener)

    def park(self, task: Task, wait: Wait) -> bool:
        """Have epoll watch the connection of a conversation that waits; return False if that cannot be."""
        task.wait = wait
        bell = wait.bell
        self.parked[task.descriptor] = task  # before epoll knows: the connection may be ready at once
        try:
            again, task.watched = task.watched, True
            self.listener.watch(task.descriptor, bell.events() if bell else EVENTS[wait.want], again)
        except OSError:
            logger.errors.exception("a connection cannot be parked")
            return not self.leave(task)
        # The conversation may be with another worker by now, in another wait: only this one's deadline may count
        wait.watched = True
        if bell is not None:
            bell.park(functools.partial(self.resume, task), self.others.watch)
        return True

    def ready(self, descriptor: int) -> None:
        """Queue the conversation whose connection epoll has reported, or ring the bell of another descriptor."""
        task = self.parked.pop(descriptor, None)
        if task is not None:
            self.queue.put(task)
        else:
            self.others.ready(descriptor)

    def expire(self, now: float) -> None:
        """Queue the conversations that are past their deadline; Timeout is thrown into them."""
        for task in list(self.parked.values()):
            wait = task.wait
            assert wait is not None
            # One that is only recorded yet is still with the worker that parks it
            if wait.expires < now and wait.watched:
                self.resume(task, Timeout())

    def resume(self, task: Task, error: Exception | None = None) -> None:
        """Queue a conversation that is still parked, although its client did nothing; any thread may call this."""
        if self.leave(task):
            task.error = error
            self.listener.unwatch(
                task.descriptor
            )  # epoll would report it while a worker runs the conversation
            task.watched = False
            self.queue.put(task)

    def leave(self, task: Task) -> bool:
        """Take a conversation from `parked`; return whether it was there."""
        found = self.parked.pop(task.descriptor, None)
        if found is not None and found is not task:
            self.parked[task.descriptor] = found
        return found is task
