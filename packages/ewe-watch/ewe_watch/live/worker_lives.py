"""The lives of the workers of a running server, for the grounds of their rows on the live page.

A worker that begins has a row, before it takes a connection. One that ends leaves its row to the next worker:

    begins ──▶ a row ──▶ ends: the page greys the row, then folds it ──▶ the row of the next worker

Under the model fork a process lives for one connection, so fifty clients are fifty lives in few rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ewe_watch.events import is_main_thread, process_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

MOST_LIVES = 300  # of one change; of more, the last ones are shown
MOST_LIVING = 4000  # workers whose begin is kept; with more, the trace has lost their ends


class WorkerLife(NamedTuple):
    """The life of a worker that has ended, in seconds by the trace's clock."""

    began: float
    ended: float


class WorkerLives:
    """The workers that live, and the lives that have ended since the last change.

    at: returns a time of the trace as the page counts it. rows: the workers that have a row, and its number.
    """

    def __init__(self, at: Callable[[float], float], rows: Mapping[str, int]) -> None:
        self.at = at
        self.rows = rows
        self.began: dict[str, float] = {}  # worker that lives -> when it began
        self.ended: dict[str, WorkerLife] = {}  # by the worker, which has a row
        self.past: list[list[float]] = []  # [row, begin, end] of the lives since the last change
        self.reaped: set[str] = set()  # of `ended`: processes whose status the parent has read

    def begin(self, worker: str, seconds: float) -> None:
        """Note that a worker begins. A process that serves may say so twice: its first begin counts."""
        self.leaves(worker)  # the kernel gives a number again
        self.began.setdefault(worker, seconds)
        while len(self.began) > MOST_LIVING:
            del self.began[next(iter(self.began))]

    def end(self, worker: str, seconds: float) -> None:
        """Note that a worker ends, if its begin is known."""
        began = self.began.pop(worker, None)
        if began is not None and worker in self.rows:
            self.ended[worker] = WorkerLife(began, seconds)
            self.past.append([self.rows[worker], self.at(began), self.at(seconds)])

    def end_process(self, process: str, seconds: float) -> None:
        """Note that a process ends, and all its workers."""
        for worker in [each for each in self.began if process_of(each) == process]:
            self.end(worker, seconds)

    def end_killed(self, is_running: Callable[[int], bool], occupied: Container[str], now: float) -> None:
        """End the workers of processes that do not exist any more: a process that was killed writes no event.

        occupied: workers that have a connection. LiveStory.end_killed() ends these connections first.
        """
        free = [worker for worker in self.rows if worker in self.began and worker not in occupied]
        running = {process: is_running(int(process)) for process in set(map(process_of, free))}
        for worker in free:
            if not running[process_of(worker)]:
                self.end(worker, now)

    def leaves(self, worker: str) -> None:
        """Note that a worker has lost its row."""
        self.ended.pop(worker, None)
        self.reaped.discard(worker)

    def note_reaped(self, is_running: Callable[[int], bool]) -> None:
        """Note which processes that have ended do not exist any more: their parent has called wait().

        is_running: also true for a zombie. A thread that has ended leaves no status.
        """
        for worker in self.ended.keys() - self.reaped:
            if is_main_thread(worker) and not is_running(int(process_of(worker))):
                self.reaped.add(worker)

    def changes(self, workers: Iterable[str]) -> dict[str, list[list[float | None]] | list[list[float]]]:
        """Return the lives for JSON, and forget those that have ended since the last call.

        workers: by their rows. now: for each row [begin, end] of its worker in milliseconds; null: unknown, or not
        ended. past: [row, begin, end] of the lives that have ended since the last call.
        """
        now = [self.life(worker) for worker in workers]
        past, self.past = self.past[-MOST_LIVES:], []
        return {"now": now, "past": past}

    def life(self, worker: str) -> list[float | None]:
        """Return the begin and the end of a worker as the page counts them; None: unknown, or not ended."""
        if (life := self.ended.get(worker)) is not None:
            return [self.at(life.began), self.at(life.ended)]
        return [self.at(self.began[worker]) if worker in self.began else None, None]
