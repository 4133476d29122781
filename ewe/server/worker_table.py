"""The states of a worker process, the events that can happen to it, and the supervisor's reaction to each event.

The supervisor forks a worker, the worker reports that it serves, and later it ends. The meaning of its end depends
on its state. If one of the first workers cannot serve, the server stops. If a new worker of a change cannot serve,
the change is undone. If a worker was asked to retire, its end needs no reaction. Any other worker is replaced.

Each worker has a generation. The first workers are generation 1. A change (HUP, or a changed source file) starts
the next generation in every slot. Until all new workers serve, the workers of the present generation go on. Then
these retire. If a new worker cannot serve, the new ones retire instead.

TABLE has a row for every event that can happen in a state: the next state, and the method of Supervisor
(supervisor.py) to call. A pair without a row is a mistake in our own code: it raises IllegalEvent.

    fork: a first worker      FIRST --+
                                          | READY
    fork: in an empty slot    STARTING ---+---------> SERVING --+
                                          |             |       | RETIRE
    fork: for a change        COMING -----+             |       v
                                 |                      |    RETIRING ---> HURRIED
                                 |                      |       |    HURRY    |
                                 | DIED,                | DIED, | DIED,       | DIED,
                                 | UNUSABLE, ...        | ...   | ...         | ...
                                 +---------> GONE <-----+-------+-------------+

The picture leaves out that workers in FIRST, STARTING and COMING can retire, too. Four events end a worker:

    DIED        the worker ended unasked, or retired by itself (setting `retire`)
    UNUSABLE    the worker ended after its report that it cannot serve
    SUPERSEDED  the worker ended, and a worker of the next generation will take its slot
    AT_STOP     the worker ended while the server stops

Three cases show how to read the table:

    A first worker cannot import the application.    FIRST, UNUSABLE: GONE, stop_unusable(). The server stops.
    After HUP, a new worker cannot import it.        COMING, UNUSABLE: GONE, give_up(). The old workers go on.
    A worker crashes during a change.                SERVING, SUPERSEDED: GONE, do_nothing(). A new one will come.

Read next: supervisor.py, which has the methods.
"""

from __future__ import annotations

import time
from enum import Enum


class State(Enum):
    """The stages of a worker's life."""

    FIRST = "one of the first; it has not reported yet, and the server may be waiting for that"
    STARTING = "in the slot of one that has ended; it has not reported yet"
    COMING = "of a change; it has not reported yet, and those it is to replace serve on"
    SERVING = "it has reported that it serves"
    RETIRING = "it was asked to end with its connections"
    HURRIED = "it was asked to close its idle connections as well"
    GONE = "its exit status has been read"


class Event(Enum):
    """The events that can happen to a worker."""

    READY = "it reports that it serves"
    RETIRE = "others take its slot, or the slot is given up"
    HURRY = "its idle connections have been kept for long enough"
    DIED = "it has ended, and its slot is empty"
    UNUSABLE = "it has ended after its report that it cannot serve"
    SUPERSEDED = "it has ended, and a new worker is on its way to its slot"
    AT_STOP = "it has ended while the server stops"


FIRST, STARTING, COMING, SERVING, RETIRING, HURRIED, GONE = State

# (state, event): (next state, method of Supervisor that is called)
TABLE: dict[tuple[State, Event], tuple[State, str]] = {
    (FIRST, Event.READY): (SERVING, "do_nothing"),
    (FIRST, Event.RETIRE): (RETIRING, "tell_to_retire"),
    (FIRST, Event.DIED): (GONE, "replace_dead"),
    (FIRST, Event.UNUSABLE): (GONE, "stop_unusable"),
    (FIRST, Event.SUPERSEDED): (GONE, "do_nothing"),
    (FIRST, Event.AT_STOP): (GONE, "note_status"),
    (STARTING, Event.READY): (SERVING, "do_nothing"),
    (STARTING, Event.RETIRE): (RETIRING, "tell_to_retire"),
    (STARTING, Event.DIED): (GONE, "replace_dead"),
    (STARTING, Event.UNUSABLE): (GONE, "replace_dead"),
    (STARTING, Event.SUPERSEDED): (GONE, "do_nothing"),
    (STARTING, Event.AT_STOP): (GONE, "note_status"),
    (COMING, Event.READY): (SERVING, "do_nothing"),
    (COMING, Event.RETIRE): (RETIRING, "tell_to_retire"),
    (COMING, Event.DIED): (GONE, "give_up"),
    (COMING, Event.UNUSABLE): (GONE, "give_up"),
    (COMING, Event.AT_STOP): (GONE, "note_status"),
    (SERVING, Event.RETIRE): (RETIRING, "tell_to_retire"),
    (SERVING, Event.DIED): (GONE, "replace"),
    (SERVING, Event.SUPERSEDED): (GONE, "do_nothing"),
    (SERVING, Event.AT_STOP): (GONE, "note_status"),
    (RETIRING, Event.READY): (RETIRING, "do_nothing"),
    (RETIRING, Event.HURRY): (HURRIED, "tell_to_finish"),
    (RETIRING, Event.DIED): (GONE, "do_nothing"),
    (RETIRING, Event.UNUSABLE): (GONE, "do_nothing"),
    (RETIRING, Event.AT_STOP): (GONE, "note_status"),
    (HURRIED, Event.READY): (HURRIED, "do_nothing"),
    (HURRIED, Event.DIED): (GONE, "do_nothing"),
    (HURRIED, Event.UNUSABLE): (GONE, "do_nothing"),
    (HURRIED, Event.AT_STOP): (GONE, "note_status"),
}

OCCUPYING = (FIRST, STARTING, COMING, SERVING)  # the states in which a worker occupies its slot
XSWITCH = -1  # the slot of X-Switch, which the supervisor restarts like a worker


class IllegalEvent(Exception):
    """An event happened to a worker that cannot happen in its state: a mistake in our own code."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name} in state {state.name}")


class WorkerProcess:
    """One worker, as the supervisor sees it.

    slot: a number from 0 on, or XSWITCH. seat: the number of its byte in shared memory (ewe.processors.seats).
    born: the time.monotonic() of its start. failure: its report why it cannot serve. hurry_at: the time.monotonic()
    at which it must close its idle connections, if it retires.
    """

    def __init__(self, pid: int, slot: int, generation: int, state: State, seat: int = 0) -> None:
        self.pid = pid
        self.slot = slot
        self.seat = seat
        self.generation = generation
        self.state = state
        self.born = time.monotonic()
        self.failure = ""
        self.hurry_at: float | None = None

    def apply_event(self, event: Event) -> str:
        """Apply the table's row for an event: change the state, and return the method to call."""
        try:
            self.state, method = TABLE[self.state, event]
        except KeyError:
            raise IllegalEvent(self.state, event) from None
        return method

    @property
    def occupies_slot(self) -> bool:
        """Whether the worker occupies its slot: it has not ended and does not retire."""
        return self.state in OCCUPYING

    def is_to_hurry(self, now: float) -> bool:
        """Return whether the worker must close its idle connections now."""
        return self.state is RETIRING and self.hurry_at is not None and self.hurry_at <= now

    @property
    def name(self) -> str:
        """The name of the worker in the log."""
        return "X-Switch" if self.slot == XSWITCH else f"worker {self.slot + 1}"
