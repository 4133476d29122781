"""The schedule: the waiting requests, the choice of the next one, and the choice of the one to drop.

    put(request) ─▶ [ waiting: at most QUEUE ] ─▶ get(worker): the next request by the policy
        └─▶ the dropped request, if the queue was full      └─▶ done(request, worker)

The settings are variables of the server's environment:

    POLICY    fifo: first come, first served. sff: the shortest file first; of equal files, the first request
    QUEUE     the number of requests that may wait, without those of the workers
    DROP      the request to drop when the queue is full: newest, oldest, or largest (of equal ones, the last)
    PATIENCE  sff: a request that so many later requests have overtaken is next, large or small
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from events import Trace

POLICY = os.environ.get("POLICY", "fifo")
QUEUE = int(os.environ.get("QUEUE", "16"))
DROP = os.environ.get("DROP", "newest")
PATIENCE = int(os.environ.get("PATIENCE", "8"))


@dataclass(eq=False)
class Request:
    """One request. client: its port. size: the file size in bytes, 0 without a file."""

    client: int
    target: str
    size: int
    connection: Any
    overtaken: int = 0  # the number of later requests that were served before this one


class Schedule:
    """A bounded queue with a policy. Any thread may call put(), get(), done() and close()."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []  # in the order of arrival
        self.closed = False
        self.changed = threading.Condition()
        self.trace = Trace()
        self.free = 0  # workers that wait in get()

    def put(self, request: Request) -> Request | None:
        """Add a request to the queue. Return the request to drop, which may be this one; None if there was room."""
        # --- solution
        with self.changed:
            self.trace.note("arrival", request.client, request.target)
            self.waiting.append(request)
            dropped = None
            # A free worker has perhaps not woken up yet, but it will take one of the waiting requests.
            if len(self.waiting) > QUEUE + self.free:
                dropped = self.victim()
                self.waiting.remove(dropped)
                self.trace.note("drop", dropped.client, dropped.target)
            self.changed.notify()
            return dropped
        # --- starter
        # # How many requests may wait? Which events belong into the trace, here and below?
        # with self.changed:
        #     self.waiting.append(request)
        #     self.changed.notify()
        #     return None
        # --- end

    def get(self, worker: int) -> Request | None:
        """Wait for a request, and take the next one; None once the schedule is closed and empty."""
        with self.changed:
            self.free += 1
            while not self.waiting and not self.closed:
                self.changed.wait()
            self.free -= 1
            if not self.waiting:
                return None
            request = self.next()
            # --- solution
            for earlier in self.waiting[: self.waiting.index(request)]:
                earlier.overtaken += 1
            self.trace.note("dispatch", request.client, request.target, worker)
            # --- end
            self.waiting.remove(request)
            return request

    def next(self) -> Request:
        """Return the request to serve next. The caller has the lock, and at least one request waits."""
        # --- solution
        if POLICY == "fifo":
            return self.waiting[0]
        for request in self.waiting:
            if request.overtaken >= PATIENCE:
                return request
        return min(self.waiting, key=lambda request: request.size)  # min() takes the first of equal ones
        # --- starter
        # # Which policy is this? Which requests may starve under it?
        # return self.waiting[-1]
        # --- end

    def victim(self) -> Request:
        """Return the request to drop, because one request too many waits. The caller has the lock."""
        # --- solution
        if DROP == "oldest":
            return self.waiting[0]
        if DROP == "largest":
            return max(reversed(self.waiting), key=lambda request: request.size)
        return self.waiting[-1]
        # --- starter
        # # The newest request is the last one of the list. Use DROP.
        # return self.waiting[-1]
        # --- end

    def done(self, request: Request, worker: int) -> None:
        """Note that a worker has sent the response to a request."""
        # --- solution
        self.trace.note("completion", request.client, request.target, worker)
        # --- starter
        # # This is an event, too.
        # --- end

    def close(self) -> None:
        """Let the workers end when no request waits."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
