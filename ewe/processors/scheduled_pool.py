"""The scheduled pool: a pool whose queue has an order, and drops requests by a policy (`schedule`, `overload`).

The pool's usual queue gets a connection as soon as its client sends. To choose among requests, ewe has to read them
before a worker does. The main thread therefore looks at each head, without taking it from the kernel (MSG_PEEK):

    parked, between two requests
        │ epoll: bytes have come
        ▼
    main thread: peek ─┬─ the head is incomplete: wait for more bytes (edge-triggered), or for head-timeout
                       └─ complete: size of its file ─▶ RequestQueue ─▶ worker: the conversation reads the head
                                                            └─▶ dropped: 503, by the main thread

A client that sends half a request therefore occupies no worker, also with parking = idle. The conversation knows
nothing of all this: it reads the same bytes once more. That costs a system call, the parsing of a head that the
site's cache does not have, and a stat(2), in the one thread that serves all clients (docs/running.md has figures).

**How often a conversation is scheduled** depends on `parking`. With idle, a worker serves a request to its end, as
in lab 7: a small file waits for the whole large one that has begun. With always, a response goes back to the queue
after each TURN_BYTES, and a smaller one is next: the policy is preemptive. If a client pipelines requests, only the
first of them is scheduled, since the others follow in the same turn.

Possible failures, and where each is prevented:

- The bytes of an incomplete head stay unread, and level-triggered epoll would report them again and again. The head
  is therefore watched edge-triggered, and no longer once a worker may run the conversation.
- An incomplete head gets to a worker at head-timeout, and occupies it for another head-timeout. ScheduledStream
  keeps the first deadline, so that the conversation answers 408 at once.
- A stop closes the receiving side of an idle connection, behind an incomplete head. Its end is looked for, too.

Read next: request_queue.py; pool_parking.py.
"""

from __future__ import annotations

import math
import socket
import time
from select import poll
from typing import TYPE_CHECKING

from ewe.processors.pool import Pool
from ewe.processors.pool_parking import Parking
from ewe.processors.request_queue import RequestQueue, ScheduledTask
from ewe.streams.base import RECEIVE_BYTES, Wait
from ewe.streams.descriptor_set import EPOLLET, EPOLLIN, EPOLLRDHUP, POLLRDHUP
from ewe.streams.listener import Accepted
from ewe.streams.scheduled import ScheduledStream

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations


PEEK_BYTES = 4096  # nearly all heads are shorter; a buffer of RECEIVE_BYTES would cost more than the call
PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT


class ScheduledParking(Parking):
    """Parked conversations, of which those with a complete head are queued as requests."""

    queue: RequestQueue  # type: ignore[assignment]

    def __init__(self, pool: ScheduledPool) -> None:
        super().__init__(pool.queue)  # type: ignore[arg-type]
        self.pool = pool

    def handle_ready(self, descriptor: int) -> None:
        """Queue the conversation whose client's socket epoll has reported, unless its head is incomplete."""
        task = self.parked.get(descriptor)
        if not isinstance(task, ScheduledTask) or not task.stream.idle:
            super().handle_ready(descriptor)
        elif self.pool.has_complete_head(task):
            if task.stream.head_until < math.inf:  # the head was incomplete at an earlier look
                task.stream.head_until = math.inf
                self.listener.unwatch(descriptor)
                task.watched = False
            with self.lock:
                del self.parked[descriptor]
            if (dropped := self.queue.put(task)) is not None:
                self.pool.drop(dropped)
        elif task.stream.head_until == math.inf:
            wait, until = task.wait, time.monotonic() + self.pool.config.head_timeout
            assert isinstance(wait, Wait)
            wait.expires = task.stream.head_until = min(wait.expires, until)
            self.listener.watch(descriptor, EPOLLIN | EPOLLRDHUP | EPOLLET, again=True)


class ScheduledPool(Pool):
    """A pool with another order than first come, first served, or with another rule for a full queue."""

    queue: RequestQueue  # type: ignore[assignment]
    task_class = ScheduledTask
    stream_class = ScheduledStream

    def __init__(self, conversations: Conversations, config: Config) -> None:
        super().__init__(conversations, config)
        self.parking = ScheduledParking(self)

    def make_queue(self) -> RequestQueue:  # type: ignore[override]
        """Return the queue."""
        return RequestQueue(self.config)

    @classmethod
    def description(cls, config: Config) -> str:
        return f"{super().description(config)}, {config.schedule}"

    def adopt(self, conversations: Conversations, config: Config) -> None:
        """Use another configuration for new connections, and for the order of the queue."""
        super().adopt(conversations, config)
        self.queue.adopt(config)

    def limit_reached(self) -> str:
        """Return the setting whose limit leaves no room. A policy that drops requests has to see them first."""
        if self.config.overload == "wait":
            return super().limit_reached()
        return "" if len(self.live) < self.connection_limit else "connections"

    def has_complete_head(self, task: ScheduledTask) -> bool:
        """Return whether a worker may have a parked conversation, because the head of its request is complete.

        Note in the stream which size the requested file has. A worker also gets the end of a connection, and a head
        that will not become complete.
        """
        stream = task.stream
        stream.file_bytes, stream.is_new_request = 0, False
        try:
            head = stream.socket.recv(PEEK_BYTES, PEEK)  # most heads are short
            if len(head) == PEEK_BYTES:
                head = stream.socket.recv(RECEIVE_BYTES, PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the worker gets the same error
        if not head:  # the end of the connection
            return True
        size, stream.head_checked = self.conversations.requested_bytes(head, stream.head_checked)
        if size is None:  # the head is incomplete, and too long if it fills the buffer
            return len(head) == RECEIVE_BYTES or has_ended(stream.socket)
        stream.file_bytes, stream.is_new_request = size, True
        return True

    def drop(self, task: ScheduledTask) -> None:
        """Answer 503 to a request that the queue has dropped, and end its connection."""
        stream = task.stream
        task.conversation.close()
        if task.watched:
            self.listener.unwatch(task.descriptor)
        self.refuse(Accepted(stream.socket, stream.client, stream.server), "overload")
        self.served += stream.requests
        self.forget(stream)


def has_ended(sock: socket.socket) -> bool:
    """Return whether a client has closed its sending side; its last bytes may still be unread."""
    watched = poll()
    watched.register(sock, POLLRDHUP)
    return bool(watched.poll(0))
