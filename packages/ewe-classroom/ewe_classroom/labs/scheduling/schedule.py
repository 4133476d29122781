"""The schedule: which request waits, which is next, and which has to go when the queue is full.

    put(request) ─▶ [ waiting: at most `room` ] ─▶ get(worker): the next one by the policy
        └─▶ the request that has to go, if it was full      └─▶ done(request, worker)

The settings are variables of the server's environment:

    POLICY    fifo: first come, first served. sff: the shortest file first; of equal ones, the first that came
    QUEUE     how many requests may wait, beside those that workers have
    DROP      who has to go when one more comes: newest, oldest, or largest (of equal ones, the last that came)
    PATIENCE  sff: a request that so many later ones have overtaken is next, large or small
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
    """One request. client: its port. size: of the file, in bytes; 0 if there is none. connection: the server's."""

    client: int
    target: str
    size: int
    connection: Any
    overtaken: int = 0  # by how many requests that came later


class Schedule:
    """A bounded queue with a policy. Any thread may call any method."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []  # in the order of their coming
        self.closed = False
        self.changed = threading.Condition()
        self.trace = Trace()
        self.free = 0  # workers that wait in get(), and have not been given a request

    def put(self, request: Request) -> Request | None:
        """Let a request wait. Return the one that has to go, which may be this one: None if there is room."""
        # --- solution
        with self.changed:
            self.trace.note("arrival", request.client, request.target)
            self.waiting.append(request)
            dropped = None
            # A free worker has not woken up yet, but it will take one of those that wait.
            if len(self.waiting) > QUEUE + self.free:
                dropped = self.victim()
                self.waiting.remove(dropped)
                self.trace.note("drop", dropped.client, dropped.target)
            self.changed.notify()
            return dropped
        # --- starter
        # # How many may wait? And which events belong into the trace, here and below?
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
        """Return the request that is to be served next. The lock is held, and at least one request waits."""
        # --- solution
        if POLICY == "fifo":
            return self.waiting[0]
        for request in self.waiting:
            if request.overtaken >= PATIENCE:
                return request
        return min(self.waiting, key=lambda request: request.size)  # min() takes the first of equal ones
        # --- starter
        # # By which policy? And who waits without an end under this one?
        # return self.waiting[-1]
        # --- end

    def victim(self) -> Request:
        """Return the request that has to go, since one too many waits. The lock is held."""
        # --- solution
        if DROP == "oldest":
            return self.waiting[0]
        if DROP == "largest":
            return max(reversed(self.waiting), key=lambda request: request.size)
        return self.waiting[-1]
        # --- starter
        # # The one that has just come is the last of those that wait. What does DROP say?
        # return self.waiting[-1]
        # --- end

    def done(self, request: Request, worker: int) -> None:
        """Note that a worker has sent the response to a request."""
        # --- solution
        self.trace.note("completion", request.client, request.target, worker)
        # --- starter
        # # An event, too.
        # --- end

    def close(self) -> None:
        """Let the workers end once no request waits."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
