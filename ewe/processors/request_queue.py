"""The request queue: which conversation is next, and which request is dropped when too many wait.

The pool's usual queue is a SimpleQueue: first come, first served, and no entry is removed. This queue takes its
place if the setting `schedule` or `overload` asks for another policy (scheduled_pool.py):

    put(task) ─▶ [ waiting, by number of arrival and by size ] ─▶ get(): the next one by `schedule`
        └─▶ the dropped task, if more than `queue` requests wait: chosen by `overload`

**The next one.** If one worker serves waiting requests of known lengths, the shortest first has the smallest mean
wait of all orders. If a request of length b stands directly before a shorter one of length a, exchanging the two
delays the first by a and speeds the second up by b, and b > a. A web server knows the lengths: those of the files.

- fifo: first come, first served. A request waits only for those that were there when it came.
- sff: the smallest file first (shortest file first, the SJF of a web server); of equal files, the first request.
- srpt: the smallest rest first (shortest remaining processing time). A response in progress goes on from the queue
  after each TURN_BYTES (pool.py). sff orders it by its whole file, srpt by the bytes that are still to be sent.

**Ageing.** Under load a smaller file always waits, and a large one would never be served: starvation. The request
that `schedule-ageing` later ones have overtaken is therefore next, large or small. Only the oldest entry has to be
checked, since an entry that overtakes any other one overtakes the oldest one, too. `overtaking` has the numbers of
those that were taken before the oldest, so it is never longer than schedule-ageing.

**The dropped one.** Only new requests may be dropped, since a response in progress cannot become a 503. A free
worker has perhaps not woken up yet, but it will take one of the waiting entries. The limit therefore counts the
workers that wait in get().

Possible failures: a burst comes in one moment, and finds all workers free (above). A task is taken twice: the entry
leaves both orders under one lock. A worker takes an entry that is not there: put() adds the entry before its token.
put() and get() take O(n) steps for the list by size, but these are a memmove(3) of some kilobytes.

Read next: scheduled_pool.py. Lab 7 of the classroom is this queue as an exercise.
"""

from __future__ import annotations

from _thread import allocate_lock
from bisect import bisect, bisect_left, insort
from collections import OrderedDict
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from ewe.processors.pool_parking import PoolTask

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.scheduled import ScheduledStream


class ScheduledTask(PoolTask):
    """A conversation of the scheduled pool."""

    __slots__ = ()
    stream: ScheduledStream


class Entry(NamedTuple):
    """An entry of the queue. size: bytes, 0 if unknown. is_new_request: a new request, which may be dropped."""

    task: ScheduledTask
    size: int
    is_new_request: bool


class RequestQueue:
    """Conversations that can go on, in the order of a policy. Any thread may call any method.

    waiting: the entries by number, in the order of arrival. by_size: (size, number) of each. overtaking: the
    numbers of those that were taken before the oldest entry, sorted. requests: how many entries may be dropped.
    free: how many workers are in get(). newest: the number of the newest entry. tokens: True for each entry. A
    worker waits for a token, without the lock. The token None orders the worker to end.
    """

    def __init__(self, config: Config) -> None:
        """Make an empty queue. config: the policies, as adopt() takes them."""
        self.waiting: OrderedDict[int, Entry] = OrderedDict()
        self.by_size: list[tuple[int, int]] = []
        self.overtaking: list[int] = []
        self.requests = 0
        self.free = 0
        self.newest = 0
        self.lock = allocate_lock()
        self.tokens: SimpleQueue[bool | None] = SimpleQueue()
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Use the policies of a configuration from now on."""
        self.schedule = config.schedule
        self.overload = config.overload
        self.limit = config.queue
        self.ageing = config.schedule_ageing

    def qsize(self) -> int:
        """Return the number of waiting conversations."""
        return len(self.waiting)

    def put(self, task: ScheduledTask | None) -> ScheduledTask | None:
        """Add a conversation. Return the one to drop, which may be this one; None if there was room.

        task: None orders one worker to end, after as many entries as wait now.
        """
        if task is None:
            self.tokens.put(None)
            return None
        with self.lock:
            self.newest += 1
            size, is_new_request = task.stream.rank(self.schedule)
            self.waiting[self.newest] = Entry(task, size, is_new_request)
            insort(self.by_size, (size, self.newest))
            self.requests += is_new_request
            if is_new_request and self.is_full():
                return self.remove(self.number_to_drop())  # as many entries as before, and as many tokens
        self.tokens.put(True)
        return None

    def get(self) -> ScheduledTask | None:
        """Wait for a conversation, and take the next one. None orders the worker to end."""
        with self.lock:
            self.free += 1
        token = self.tokens.get()  # waits until put() adds one
        with self.lock:
            self.free -= 1
            if token is None:
                return None
            number = self.number_to_take()
            insort(self.overtaking, number)  # remove() drops it again if no older entry waits
            return self.remove(number)

    # The policies. The caller has the lock, and at least one entry waits.

    def number_to_take(self) -> int:
        """Return the number of the entry to take next."""
        if self.schedule == "fifo" or len(self.overtaking) >= self.ageing:
            return next(iter(self.waiting))
        _, number = self.by_size[0]  # of equal sizes, the smallest number
        return number

    def is_full(self) -> bool:
        """Return whether one request too many waits, and the policy drops one."""
        # Free workers that have not woken up yet will take so many requests, besides the responses in progress.
        taken = max(self.free - (len(self.waiting) - self.requests), 0)
        return self.overload != "wait" and self.requests > self.limit + taken

    def number_to_drop(self) -> int:
        """Return the number of the request to drop."""
        if self.overload == "drop-oldest":
            return next(number for number, each in self.waiting.items() if each.is_new_request)
        if self.overload == "drop-largest":  # of equal sizes, the last request
            return next(number for _, number in reversed(self.by_size) if self.waiting[number].is_new_request)
        return self.newest  # refuse

    def remove(self, number: int) -> ScheduledTask:
        """Remove an entry; return its task."""
        task, size, is_new_request = self.waiting.pop(number)
        del self.by_size[bisect_left(self.by_size, (size, number))]
        self.requests -= is_new_request
        # The numbers below the oldest entry have overtaken no entry that still waits.
        oldest = next(iter(self.waiting), self.newest)
        del self.overtaking[: bisect(self.overtaking, oldest)]
        return task
