"""The pool's parking: conversations wait here without a worker.

A conversation that must wait yields a Wait (streams/base.py). Its worker parks it, and is then free:

    worker: park(task, wait) ─▶ parked[descriptor] = task ─▶ epoll watches the client's connection
                                    │
    main thread: handle_ready()    ─┤ the client has sent, has read, or has left
                 expire()          ─┤ the deadline has passed: Timeout is thrown into the conversation
    any thread:  resume(task)      ─┤ another conversation, or an upstream's socket, has set the WakeEvent
                                    └─▶ queue ─▶ a worker

Possible failures, and where each is prevented:

- Two workers run one conversation. epoll watches a parked connection with EPOLLONESHOT and reports it only once.
  Only the thread that removes the task from `parked` may queue it.
- The client is ready before its connection is in `parked`. park() therefore first adds the task to `parked`, and
  then registers the descriptor with epoll. Until then the deadline is ignored (Wait.watched).
- A connection ends and a new connection gets the same descriptor number, while a thread still has the old task. Or
  a thread sets a WakeEvent late: the conversation has gone on, and is about to park in another Wait, whose
  descriptor is not registered yet. remove_parked() therefore checks the task, and the event that it waits for.

Read next: streams/parking.py, where a conversation waits for an upstream.
"""

from __future__ import annotations

import functools
import time
from _thread import allocate_lock
from collections.abc import Coroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.streams.base import Timeout, Wait, Want
from ewe.streams.descriptor_set import EPOLLIN, EPOLLONESHOT, EPOLLOUT
from ewe.streams.parking import UpstreamSockets

if TYPE_CHECKING:
    from ewe.streams.listener import Listener
    from ewe.streams.pool import PoolStream
    from ewe.streams.wake_events import ParkedWakeEvent

EVENTS = {Want.BYTES: EPOLLIN | EPOLLONESHOT, Want.ROOM: EPOLLOUT | EPOLLONESHOT}


class PoolTask:
    """A conversation of the pool: a worker runs it, or it is in the queue, or it is parked.

    wait: the current Wait, or the last one. watched: the descriptor is registered with epoll. error: the exception
    that a worker will throw into the conversation.
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
    """The parked conversations of a pool, by the descriptor of their connection.

    queue: receives the conversations that can go on.
    """

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self.queue = queue
        self.parked: dict[int, PoolTask] = {}
        self.lock = allocate_lock()  # held while a task is removed from `parked`

    def open(self, listener: Listener) -> None:
        """Use the listener's epoll to watch the parked connections."""
        self.listener = listener
        self.upstreams = UpstreamSockets(listener)

    def park(self, task: PoolTask, wait: Wait) -> bool:
        """Park a conversation: have epoll watch its connection. Return False if epoll cannot watch it."""
        task.wait = wait
        event = wait.event
        self.parked[task.descriptor] = task  # before watch(): the connection may be ready at once
        try:
            was_watched, task.watched = task.watched, True
            events = event.client_events if event else EVENTS[wait.want]
            self.listener.watch(task.descriptor, events, again=was_watched)
        except OSError:
            logger.errors.exception("a connection cannot be parked")
            return not self.remove_parked(task, event)
        # Another worker may run the conversation by now, in another Wait. This Wait is `wait`, not task.wait.
        wait.watched = True
        if event is not None:
            event.park(functools.partial(self.resume, task, event), self.upstreams.watch)
        return True

    def handle_ready(self, descriptor: int) -> None:
        """Handle a descriptor that epoll has reported: queue its parked conversation, so that a worker runs it.

        A descriptor that belongs to no parked conversation is the socket of an upstream. `upstreams` then wakes the
        conversation that waits for this upstream.
        """
        with self.lock:
            task = self.parked.pop(descriptor, None)
        if task is not None:
            wait = task.wait
            # The client has read: it is the server that now needs time, in the queue.
            if wait is not None and wait.want is Want.ROOM:
                wait.ready_at = time.monotonic()
            self.queue.put(task)
        else:
            self.upstreams.handle_ready(descriptor)

    def expire(self, now: float) -> None:
        """Queue the conversations whose deadlines have passed; workers throw Timeout into them."""
        for task in list(self.parked.values()):
            wait = task.wait
            assert wait is not None
            # Until `watched` is set, the worker that parks the conversation has not finished.
            if wait.expires < now and wait.watched:
                self.resume(task, wait.event, Timeout())

    def resume(self, task: PoolTask, event: ParkedWakeEvent | None, error: Exception | None = None) -> None:
        """Queue a conversation, although its client did nothing, if it is still parked and waits for `event`.

        Any thread may call this. event: None for a Wait without one. error: the exception that the worker throws
        into the conversation, if any.
        """
        if self.remove_parked(task, event):
            task.error = error
            # Otherwise epoll would report the descriptor while a worker runs the conversation.
            self.listener.unwatch(task.descriptor)
            task.watched = False
            self.queue.put(task)

    def remove_parked(self, task: PoolTask, event: ParkedWakeEvent | None) -> bool:
        """Remove a conversation from `parked` if it waits for `event`; return whether it was removed."""
        with self.lock:  # handle_ready() could remove the task between the check and the removal
            if (
                self.parked.get(task.descriptor) is not task
                or task.wait is None
                or task.wait.event is not event
            ):
                return False
            del self.parked[task.descriptor]
        return True
