"""The states of a worker process, the events that can happen to it, and what the supervisor then does.

A worker is forked, reports that it serves, and ends some day. What its end means depends on when it comes: one of
the first workers that cannot serve stops the server, a new worker of a change that cannot serve takes the change
back, a worker that is told to retire may end without a word, and any other is replaced.

A worker has a generation, too. The first workers are generation 1. A change (HUP, or a changed source file) starts
the next generation in every place. While it comes, the workers of the one before serve on; if all of the new ones
serve, the older ones retire; if one of the new ones cannot serve, the new ones retire.

TABLE has a row for every event that can happen in a state: the next state, and the method of Supervisor
(supervisor.py) that is called. A pair that has no row is a mistake in our own code: it raises IllegalEvent.

    fork: a first worker      BEGINNING --+
                                          | READY
    fork: in an empty place   STARTING ---+---------> SERVING --+
                                          |             |       | RETIRE
    fork: for a change        COMING -----+             |       v
                                 |                      |    RETIRING ---> HURRIED
                                 |                      |       |    HURRY    |
                                 | DIED,                | DIED, | DIED,       | DIED,
                                 | UNUSABLE, ...        | ...   | ...         | ...
                                 +---------> GONE <-----+-------+-------------+

Not drawn: BEGINNING, STARTING and COMING retire, too. The events that end a worker say what its end means:

    DIED        it has ended, although nothing asked it to; or it has retired by itself (setting `retire`)
    UNUSABLE    it has ended after its report that it cannot serve
    SUPERSEDED  it has ended, and a worker of the next generation is on its way to its place
    AT_STOP     it has ended while the server stops

Three cases show how to read the table:

    A first worker cannot import the application.    BEGINNING, UNUSABLE: GONE, stop_unusable(). The command ends.
    After HUP, a new worker cannot.                  COMING, UNUSABLE: GONE, give_up(). The old ones serve on.
    A worker crashes while new ones are coming.      SERVING, SUPERSEDED: GONE, do_nothing(). Another is coming.

Read next: supervisor.py, the methods.
"""

from __future__ import annotations

import time
from enum import Enum


class State(Enum):
    """How far a worker has come."""

    BEGINNING = "one of the first; it has not reported yet, and the server may be waiting for that"
    STARTING = "in the place of one that has ended; it has not reported yet"
    COMING = "of a change; it has not reported yet, and those it is to replace serve on"
    SERVING = "it has reported that it serves"
    RETIRING = "it was told to end with its connections"
    HURRIED = "it was told to close its idle connections as well"
    GONE = "its exit status has been read"


class Event(Enum):
    """What can happen to a worker."""

    READY = "it reports that it serves"
    RETIRE = "others take its place, or the place is given up"
    HURRY = "its idle connections have been kept for long enough"
    DIED = "it has ended, and its place is empty"
    UNUSABLE = "it has ended after its report that it cannot serve"
    SUPERSEDED = "it has ended, and a new worker is on its way to its place"
    AT_STOP = "it has ended while the server stops"


BEGINNING, STARTING, COMING, SERVING, RETIRING, HURRIED, GONE = State

# (state, event): (next state, method of Supervisor that is called)
TABLE: dict[tuple[State, Event], tuple[State, str]] = {
    (BEGINNING, Event.READY): (SERVING, "do_nothing"),
    (BEGINNING, Event.RETIRE): (RETIRING, "tell_to_retire"),
    (BEGINNING, Event.DIED): (GONE, "replace"),
    (BEGINNING, Event.UNUSABLE): (GONE, "stop_unusable"),
    (BEGINNING, Event.SUPERSEDED): (GONE, "do_nothing"),
    (BEGINNING, Event.AT_STOP): (GONE, "note_status"),
    (STARTING, Event.READY): (SERVING, "do_nothing"),
    (STARTING, Event.RETIRE): (RETIRING, "tell_to_retire"),
    (STARTING, Event.DIED): (GONE, "replace"),
    (STARTING, Event.UNUSABLE): (GONE, "replace"),
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

IN_PLACE = (BEGINNING, STARTING, COMING, SERVING)  # it has a place, which nobody else should take
XSWITCH = -1  # the place of X-Switch, which is kept like a worker


class IllegalEvent(Exception):
    """Something happened to a worker that cannot happen in its state: a mistake in our own code."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name} in state {state.name}")


class WorkerProcess:
    """One worker, as the supervisor sees it.

    place: from 0 on, or XSWITCH. born: on time.monotonic(). failure: why it cannot serve, as it has reported.
    hurry_at: when its idle connections are closed, if it retires.
    """

    def __init__(self, pid: int, place: int, generation: int, state: State) -> None:
        self.pid = pid
        self.place = place
        self.generation = generation
        self.state = state
        self.born = time.monotonic()
        self.failure = ""
        self.hurry_at: float | None = None

    def happen(self, event: Event) -> str:
        """Take the row of the table for an event: change the state, and return the method to call."""
        try:
            self.state, method = TABLE[self.state, event]
        except KeyError:
            raise IllegalEvent(self.state, event) from None
        return method

    @property
    def in_place(self) -> bool:
        """Whether it has its place, as a worker that does not retire."""
        return self.state in IN_PLACE

    def is_to_hurry(self, now: float) -> bool:
        """Return whether it has kept its idle connections for long enough."""
        return self.state is RETIRING and self.hurry_at is not None and self.hurry_at <= now

    @property
    def name(self) -> str:
        """What the log calls it."""
        return "X-Switch" if self.place == XSWITCH else f"worker {self.place + 1}"
