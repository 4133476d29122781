"""A server's story of its scheduling (EWE_TRACE), compared with what the clients have seen.

The variable EWE_TRACE names a file. The server appends one line for each event, with one write():

    SECONDS EVENT CLIENT WORKER TARGET          arrival, dispatch, completion or drop; CLIENT is the client's port
    8123.551207 arrival 40112 - /sizes/a
    8123.551311 dispatch 40112 2 /sizes/a

The grader trusts its clients, and never the trace: it knows the order of service from whose response has begun
while all others wait (schedules.py). The trace has to tell the same story at every step. `mismatch()` returns the
first contradiction. A server that writes what should have happened, or writes late, is found out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

EVENTS = ("arrival", "dispatch", "completion", "drop")
FORM = "SECONDS EVENT CLIENT WORKER TARGET"


class BadTrace(ValueError):
    """A line of the trace is not of its form. The text is one line."""


@dataclass
class Story:
    """Who arrived, was dispatched, completed and dropped, in order, as ports; workers: port -> worker."""

    arrival: list[int] = field(default_factory=list)
    dispatch: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)
    workers: dict[int, str] = field(default_factory=dict)


def read(path: Path) -> Story:
    """Return what a trace tells. Raises BadTrace. A last line without its end is still being written."""
    story = Story()
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n")[:-1], 1):
        words = line.split(" ", 4)
        if len(words) != 5 or words[1] not in EVENTS or not words[2].isdigit():
            raise BadTrace(f"line {number} of the trace is {line[:80]!r}, and not of the form {FORM}")
        port = int(words[2])
        getattr(story, words[1]).append(port)
        if words[1] == "dispatch":
            story.workers[port] = words[3]
        elif words[1] == "completion" and story.workers.get(port, words[3]) != words[3]:
            raise BadTrace(
                f"line {number} of the trace: {words[3]} completes what {story.workers[port]} was given"
            )
    return story


def mismatch(story: Story, seen: Story, names: dict[int, str]) -> str:
    """Return how a trace contradicts what the clients have seen, in words; "" if it does not. names: by port."""

    def shown(ports: list[int]) -> str:
        return ", ".join(names.get(port, f"port {port}") for port in ports) or "nobody"

    for event, what in (
        ("arrival", "sent their requests in the order"),
        ("drop", "got status 503 in the order"),
        ("dispatch", "got the first bytes of their responses in the order"),
    ):
        told, true = getattr(story, event), getattr(seen, event)
        if told != true:
            return f"the clients {what} {shown(true)}, and the trace has the {event} of {shown(told)}"
    if sorted(story.completion) != sorted(seen.completion):
        return (
            f"the responses to {shown(seen.completion)} have been read to their ends, and the trace has the "
            f"completion of {shown(story.completion)}"
        )
    for port, worker in seen.workers.items():
        if port in story.workers and story.workers[port] != story.workers.get(int(worker), ""):
            return (
                f"{names[port]} was served when the worker of {names[int(worker)]} became free, and the trace says "
                f"that it was worker {story.workers[port]}, and not {story.workers[int(worker)]}"
            )
    return ""
