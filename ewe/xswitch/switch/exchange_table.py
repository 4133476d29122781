"""The states of an exchange, the events that can happen to it, and what is then done."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """How far the response has come."""

    __hash__ = object.__hash__  # by identity: the table is asked several times for each request

    IDENTIFYING = "suexecme is asked whose script it is"
    WAITING = "the scheduler has it, until an engine is free"
    RUNNING = "it has an engine, whose process may still be starting; nothing is written yet"
    HEAD = "the engine has written part of the head, which is held back"
    RESPONDING = "the web server has received part of the response"
    ABANDONED = "the client has left, and the engine still runs it"
    DONE = "the response is complete, or there will be none"


# As plain names, since Python 3.11 takes 0.1 us to look up a member in its class.
IDENTIFYING, WAITING, RUNNING, HEAD, RESPONDING, ABANDONED, DONE = State


class Event(Enum):
    """What can happen to the response."""

    __hash__ = object.__hash__

    IDENTIFIED = "the script may run, and its owner is known"
    ANSWERED = "X-Switch has the response itself: its status page"
    ASSIGNED = "an engine takes the request"
    REFUSED = "no room in the queue, or no engine within `patience`; the scheduler has forgotten the exchange"
    HELD = "the engine has written, and the head is not complete"
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
    (ABANDONED, Event.FAILED): (DONE, "log_failure"),
    (ABANDONED, Event.OVERDUE): (DONE, "log_overdue"),
}

HEAD_NOT_SENT = (RUNNING, HEAD)
HAS_ENGINE = (RUNNING, HEAD, RESPONDING, ABANDONED)
HAS_CLIENT = tuple(state for state in State if state not in (ABANDONED, DONE))


class Body(Enum):
    """How far the request's body has come."""

    COMING = "its end has not arrived"
    COMPLETE = "its end has arrived"


COMING, COMPLETE = Body


class IllegalEvent(Exception):
    """Something happened to an exchange that cannot happen in its state: a mistake in our own code."""

    def __init__(self, state: State | Body, event: str) -> None:
        super().__init__(f"{event} in state {state.name}")
