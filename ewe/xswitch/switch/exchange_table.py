"""The states of an exchange, the events that can happen to it, and the action for each.

An exchange lies between two parties that may fail at any moment. The web server may close its connection because
its client has left. The engine may crash, take too long, or break the protocol. X-Switch itself may refuse: the
script is not allowed to run, the queue is full. The right action depends on how far the exchange has come: before
the first byte of a response an error page can be sent, after it the connection can only be closed.

The position of an exchange is therefore one word, its state. TABLE has a row for every event that can happen in a
state: the next state, and the method of Exchange (exchange.py) that is called. A pair without a row is a bug in
this program: it raises IllegalEvent.

                 IDENTIFIED          ASSIGNED           HELD            OUTPUT
    IDENTIFYING ------------> WAITING --------> RUNNING -----> HEAD -----------> RESPONDING -+
         |                     |  ^                | |          | |               |   |  ^   | OUTPUT
         |                     |  |     RETRIED    | |          | |               |   |  +---+
         |                     |  +----------------+-|----------+ |               |   |
         |                     |                     | LEFT       | LEFT     LEFT |   |
         |                     |                     +------------+---> ABANDONED <-+ |
         | ANSWERED            | REFUSED             | COMPLETED  |       | COMPLETED | COMPLETED
         | FAILED              | FAILED              | FAILED     |       | FAILED    | FAILED
         | LEFT                | LEFT                |            |       | OVERDUE   |
         +---------------------+------> DONE <-------+------------+-------+-----------+

Not drawn: OUTPUT leads from RUNNING straight to RESPONDING if the first output contains the whole head.

The state answers questions that would otherwise need booleans. Is the client still there? Yes, except in ABANDONED
and DONE. Has an engine been assigned? From RUNNING to ABANDONED. May the request be given to a second engine? In
RUNNING and HEAD, where the web server has received nothing.

Three cases show how to read the table:

    The engine is killed after part of the response was sent.   RESPONDING, FAILED: DONE, break_off(). Too late for
                                                                a 502: the web server sees the connection close.
    The engine is killed before that, and the method is GET.    RUNNING or HEAD, RETRIED: WAITING.
    The client leaves while the script runs.                    RUNNING, LEFT: ABANDONED, let_engine_end(). Later
                                                                output is dropped, until COMPLETED or OVERDUE.

There are two automata, one for each direction. The picture shows the response's. The request's body has its own,
which is small: COMING until the end of the body arrives, then COMPLETE. The two are independent: a script may
respond before it has read the body, and a body may be complete long before an engine is free.

The state HEAD exists because the head of a response is withheld until it is complete (response_head.py says why).
ABANDONED exists because an engine cannot be interrupted: when a client leaves, the script may run for a few more
seconds (setting `abandoned`). The engine is used again if the script ends by then.

Read next: exchange.py, the methods.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """How far the response has come."""

    __hash__ = object.__hash__  # by identity: each request looks its state up several times

    IDENTIFYING = "suexecme is asked whose script it is"
    WAITING = "the scheduler has it, until an engine is free"
    RUNNING = "it has an engine, whose process may still be starting; nothing is written yet"
    HEAD = "the engine has written part of the head, which is held back"
    RESPONDING = "the web server has received part of the response"
    ABANDONED = "the client has left, and the engine still runs it"
    DONE = "the response is complete, or there will be none"


# Plain names: Python 3.11 takes 0.1 us to look up a member in its class.
IDENTIFYING, WAITING, RUNNING, HEAD, RESPONDING, ABANDONED, DONE = State


class Event(Enum):
    """The events of the response."""

    __hash__ = object.__hash__

    IDENTIFIED = "the script may run, and suexecme has named its owner"
    ANSWERED = "X-Switch has the response itself: its status page"
    ASSIGNED = "an engine takes the request"
    REFUSED = (
        "no room in the queue, or no engine within `queue-timeout`; the scheduler has forgotten the exchange"
    )
    HELD = "the engine has written part of the head, which is withheld until it is complete"
    OUTPUT = "the engine has written, and there is something to send"
    COMPLETED = "the engine has ended the response"
    RETRIED = "the engine has crashed, and the request may be repeated"
    FAILED = "there will be no response of an engine"
    LEFT = "the client has left"
    OVERDUE = "the engine was ended, because it ran on for too long after the client had left"


# (state, event): (next state, method of Exchange that is called)
TABLE: dict[tuple[State, Event], tuple[State, str]] = {
    (IDENTIFYING, Event.IDENTIFIED): (WAITING, "enter_queue"),
    (IDENTIFYING, Event.ANSWERED): (DONE, "send_last"),
    (IDENTIFYING, Event.FAILED): (DONE, "send_error"),
    (IDENTIFYING, Event.LEFT): (DONE, "do_nothing"),
    (WAITING, Event.ASSIGNED): (RUNNING, "note_engine"),
    (WAITING, Event.REFUSED): (DONE, "send_error"),
    (WAITING, Event.FAILED): (DONE, "leave_queue_with_error"),
    (WAITING, Event.LEFT): (DONE, "leave_queue"),
    (RUNNING, Event.HELD): (HEAD, "do_nothing"),
    (RUNNING, Event.OUTPUT): (RESPONDING, "send"),
    (RUNNING, Event.COMPLETED): (DONE, "send_last"),
    (RUNNING, Event.RETRIED): (WAITING, "enter_queue_again"),
    (RUNNING, Event.FAILED): (DONE, "send_error"),
    (RUNNING, Event.LEFT): (ABANDONED, "let_engine_end"),
    (HEAD, Event.HELD): (HEAD, "do_nothing"),
    (HEAD, Event.OUTPUT): (RESPONDING, "send"),
    (HEAD, Event.COMPLETED): (DONE, "send_last"),
    (HEAD, Event.RETRIED): (WAITING, "enter_queue_again"),
    (HEAD, Event.FAILED): (DONE, "send_error"),
    (HEAD, Event.LEFT): (ABANDONED, "let_engine_end"),
    (RESPONDING, Event.OUTPUT): (RESPONDING, "send"),
    (RESPONDING, Event.COMPLETED): (DONE, "send_last"),
    (RESPONDING, Event.FAILED): (DONE, "break_off"),
    (RESPONDING, Event.LEFT): (ABANDONED, "let_engine_end"),
    (ABANDONED, Event.OUTPUT): (ABANDONED, "do_nothing"),
    (ABANDONED, Event.COMPLETED): (DONE, "do_nothing"),
    (ABANDONED, Event.FAILED): (DONE, "log_unseen_failure"),
    (ABANDONED, Event.OVERDUE): (DONE, "log_overdue"),
}

# Answers to questions about an exchange, as sets of its states
HEAD_NOT_SENT = (RUNNING, HEAD)
HAS_ENGINE = (RUNNING, HEAD, RESPONDING, ABANDONED)
HAS_CLIENT = tuple(state for state in State if state not in (ABANDONED, DONE))


class BodyState(Enum):
    """How far the request's body has come."""

    COMING = "its end has not arrived"
    COMPLETE = "its end has arrived"


COMING, COMPLETE = BodyState


class IllegalEvent(Exception):
    """An event happened to an exchange that cannot happen in its state: a bug in this program."""

    def __init__(self, state: State | BodyState, event: str) -> None:
        super().__init__(f"{event} in state {state.name}")
