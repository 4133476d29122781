"""The trace of a server's scheduling (EWE_TRACE), compared with the clients' observations.

The variable EWE_TRACE names a file. The server appends one line for each event, with one write():

    SECONDS EVENT CLIENT WORKER TARGET          arrival, dispatch, completion or drop; CLIENT is the client's port
    8123.551207 arrival 40112 - /sizes/a
    8123.551311 dispatch 40112 2 /sizes/a

ewe's own models write more events of each connection (ewe.trace). Some of them are the same facts: `accepted` is
an arrival, the first `runs` a dispatch, and `ended` a completion, or a drop if its text says `dropped`. A pool runs
a conversation to its first wait before the request comes. The dispatch is then the first `runs` after `ready`.

The grader trusts its clients, and never the trace. It knows the order of service because exactly one response
begins while all other clients wait (schedules.py). The trace has to agree at every step. `mismatch()` returns the
first contradiction, so a server that writes planned events, or writes late, fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ewe_classroom.grader.sources import read_regular

EVENTS = ("arrival", "dispatch", "completion", "drop")
EVENTS_OF_EWE = {"accepted": "arrival", "runs": "dispatch", "ended": "completion"}
LINE_FORMAT = "SECONDS EVENT CLIENT WORKER TARGET"
MAX_BYTES = 4 << 20  # of a trace: the check of a lab makes some dozen lines
PORT = re.compile("[0-9]{1,9}")  # isdigit() is also true for digits that int() refuses


class BadTrace(ValueError):
    """The trace cannot be read, or has a malformed line. The message is one line."""


@dataclass
class TraceOrder:
    """The clients' ports for each kind of event, in order. workers: port -> worker."""

    arrival: list[int] = field(default_factory=list)
    dispatch: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)
    workers: dict[int, str] = field(default_factory=dict)


@dataclass
class ObservedOrder(TraceOrder):
    """The same by the clients' observations, which do not know the names of workers.

    predecessors: port of a client -> port of the client whose worker became free, and then served it.
    """

    predecessors: dict[int, int] = field(default_factory=dict)


def read(path: Path) -> TraceOrder:
    """Return the events of a trace. Ignore an incomplete last line. Raises BadTrace."""
    try:
        data = read_regular(path, MAX_BYTES + 1)
    except OSError as reason:  # the server may remove the file, or put a FIFO or a symbolic link in its place
        raise BadTrace(f"the trace cannot be read: {reason.strerror}") from None
    if len(data) > MAX_BYTES:
        raise BadTrace(f"the trace has more than {MAX_BYTES >> 20} MB")
    # The text after the last line feed is "", or a line that is not complete yet.
    lines = data.decode(errors="replace").split("\n")[:-1]
    if lines and lines[0].split(" ")[1:2] == ["model"]:  # the first event of ewe's own models names the model
        try:
            return read_of_ewe(lines)
        except ValueError:
            raise BadTrace("a line of the trace has not the form of ewe's own events (ewe.trace)") from None
    order = TraceOrder()
    for number, line in enumerate(lines, 1):
        words = line.split(" ", 4)  # the target may contain spaces
        if len(words) != 5 or words[1] not in EVENTS or not PORT.fullmatch(words[2]):
            raise BadTrace(
                f"line {number} of the trace is {line[:80]!r}; the form of a line is {LINE_FORMAT}"
            )
        _, event, client, worker, _ = words
        port = int(client)
        getattr(order, event).append(port)  # the lists of TraceOrder have the names of the events
        if event == "dispatch":
            order.workers[port] = worker
        elif event == "completion" and order.workers.get(port, worker) != worker:
            raise BadTrace(
                f"line {number} of the trace: worker {worker} completes a request of worker {order.workers[port]}"
            )
    return order


def read_of_ewe(lines: Sequence[str]) -> TraceOrder:
    """Return the events of a trace that ewe has written. Raises ValueError.

    A line may come after later lines of other workers, so the time decides.
    """
    order = TraceOrder()
    ports: dict[str, int] = {}  # ewe's name of a connection -> the client's port
    queued: set[int] = set()  # the ports of the connections whose request has come
    for line in sorted(lines, key=lambda line: float(line.partition(" ")[0])):
        _, event, connection, worker, text = line.split(" ", 4)
        if event == "accepted":
            address, _, _ = text.partition(" ")  # the time in the backlog may follow it
            ports[connection] = int(address.rpartition(":")[2])
        port = ports.get(connection, 0)
        if event == "ready" and port not in queued:
            queued.add(port)
            # A `runs` before the request was not the dispatch yet.
            if order.workers.pop(port, None) is not None:
                order.dispatch.remove(port)
        if event == "runs" and port in order.workers:
            continue  # the conversation goes on
        if event == "runs":
            order.workers[port] = worker
        if event == "ended" and text == "dropped":
            order.drop.append(port)
        elif event in EVENTS_OF_EWE:
            getattr(order, EVENTS_OF_EWE[event]).append(port)
    return order


def mismatch(traced_order: TraceOrder, observed_order: ObservedOrder, names: dict[int, str]) -> str:
    """Describe how a trace contradicts the clients' observations; "" if it agrees. names: client names by port."""

    def shown(ports: list[int]) -> str:
        return ", ".join(names.get(port, f"port {port}") for port in ports) or "no client"

    for event, what in (
        ("arrival", "sent their requests in the order"),
        ("drop", "got status 503 in the order"),
        ("dispatch", "got the first bytes of their responses in the order"),
    ):
        traced, actual = getattr(traced_order, event), getattr(observed_order, event)
        if traced != actual:
            return f"the clients {what} {shown(actual)}, and the trace has the {event} of {shown(traced)}"
    if sorted(traced_order.completion) != sorted(observed_order.completion):
        return (
            f"the responses to {shown(observed_order.completion)} have been read to their ends, and the trace has "
            f"the completion of {shown(traced_order.completion)}"
        )
    for port, predecessor in observed_order.predecessors.items():
        traced_worker = traced_order.workers.get(port)
        freed_worker = traced_order.workers.get(predecessor, "")
        if traced_worker is not None and traced_worker != freed_worker:
            return (
                f"{names[port]} was served when the worker of {names[predecessor]} became free, and the trace "
                f"says that worker {traced_worker} served it, and not worker {freed_worker}"
            )
    return ""
