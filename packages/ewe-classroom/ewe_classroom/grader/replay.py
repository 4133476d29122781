"""A replay: the bytes and the schedule of a check, sent again, with every step shown.

A replay file holds JSON lines. The first one names the check; each other line is a step:

    {"t": 0.0012, "lane": "stalled 1", "do": "connect", "reads": true}
    {"t": 0.0013, "lane": "stalled 1", "do": "send", "bytes": "GET /1.txt HTTP/1.1\\r\\n..."}   bytes as Latin-1
    {"t": 0.0620, "do": "wait", "what": "the server is quiescent", "happened": false}
    {"t": 0.0711, "lane": "stalled 1", "do": "got", "bytes": "HTTP/1.1 200 OK..."}            what came back then

The replay does what the client did and, at each wait, waits until the server is quiescent. It shows the
responses beside those of the record; the reader judges whether they are right.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ewe.config.messages import ConfigError
from ewe_classroom.grader import processes, site_programs
from ewe_classroom.grader.grading import REPLAY_FORMAT
from ewe_classroom.grader.scene import Scene, SceneClient
from ewe_classroom.grader.subject import Subject

SERVER_EVENTS = ("got", "answered", "closed-by-server", "reset-by-server", "refused")
STEPS_WITHOUT_DATA = ("read", "half-close", "close", "reset")
MAX_SHOWN_CHARS = 70  # of the bytes of a step
MAX_SENT_BYTES = 64 << 20  # of one step


class RecordedCheck(NamedTuple):
    """The contents of a replay file. head: its first line, which names the check."""

    head: dict[str, Any]
    steps: list[dict[str, Any]]


def load(path: Path) -> RecordedCheck:
    """Read a replay file. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"--replay: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"--replay: {path}: not a replay file; ewe-grade --record DIR writes them"
        ) from None
    steps = []
    for number, line in enumerate(lines, 1):
        try:
            step = json.loads(line)
        except (ValueError, RecursionError):  # the latter from thousands of brackets
            raise ConfigError(f"--replay: {path}, line {number}: not JSON") from None
        if not isinstance(step, dict):
            raise ConfigError(f"--replay: {path}, line {number}: not an object")
        steps.append(step)
    if not steps or steps[0].get("format") != REPLAY_FORMAT:
        raise ConfigError(f"--replay: {path}: not a replay file; ewe-grade --record DIR writes them")
    return RecordedCheck(steps[0], steps[1:])


def play(subject: Subject, steps: list[dict[str, Any]]) -> Iterator[str]:
    """Do each step; yield a line for it, and a line for all that comes back. Raises ConfigError.

    A client is known by its lane.
    """
    scene = Scene(subject)
    clients: dict[str, SceneClient] = {}
    try:
        for step in steps:
            if line := line_of_record(step, clients):
                yield line
                continue
            shown = len(scene.steps)  # the steps that this step adds, and those of the server, come after it
            act(scene, clients, step)
            for made in scene.steps[shown:]:
                yield f"{made['t']:8.3f}  {made.get('lane', 'all')}: {made['do']} {brief(made)}".rstrip()
    finally:
        scene.close()
        # The caller ends `subject`, and does not know of a server that "start-again" has started.
        if scene.subject is not subject:
            scene.subject.close()


def line_of_record(step: dict[str, Any], clients: Collection[str]) -> str:
    """Return the line of a step that is only shown: a note, or an event of the record (SERVER_EVENTS); else "".

    The line of an event begins with "then", so that the reader can compare it with the present one. clients: the
    lanes of the clients so far.
    """
    do, lane = str(step.get("do")), str(step.get("lane", ""))
    if do == "note" and lane not in clients:
        return f"        note  {step.get('text', '')}"
    if do in SERVER_EVENTS and lane in clients:
        return f"{'then':>8}  {lane}: {do} {brief(step)}".rstrip()
    return ""


def act(scene: Scene, clients: dict[str, SceneClient], step: dict[str, Any]) -> None:
    """Do a step; add a client that connects to `clients`. An unknown step does nothing. Raises ConfigError."""
    do, lane = str(step.get("do")), str(step.get("lane", ""))
    client = clients.get(lane)
    if do == "connect":
        clients[lane] = scene.client(lane, reads=bool(step.get("reads", True)))
    elif do == "wait":
        scene.settle()
    elif do == "signal":
        # After "start-again" the scene has another server. The server may have ended already.
        processes.send_signal(scene.subject.pid, signal_of(step))
    elif do == "start-again":
        scene.start_again()
    elif do == "open-gate":
        site_programs.open_gate(scene.site.root, str(step.get("gate")))
        scene.note(do=do, gate=step.get("gate"))
    elif client is not None and do == "send":
        client.send(*sent_by(step))
    elif client is not None and do in STEPS_WITHOUT_DATA:
        {"read": client.read_on, "half-close": client.half_close, "close": client.close,
         "reset": client.reset}[do]()  # fmt: skip


def sent_by(step: dict[str, Any]) -> tuple[bytes, int]:
    """Return the bytes of a step, and how many times they are sent. Raises ConfigError above MAX_SENT_BYTES."""
    data, times = str(step.get("bytes", "")).encode("latin-1", "replace"), step.get("times", 1)
    if not isinstance(times, int) or not 1 <= times <= MAX_SENT_BYTES // max(1, len(data)):
        limit = f"the limit is {MAX_SENT_BYTES >> 20} MB"
        raise ConfigError(
            f"--replay: cannot send {len(data)} bytes {times!r:.{MAX_SHOWN_CHARS}} times; {limit}"
        )
    return data, times


def signal_of(step: dict[str, Any]) -> signal.Signals:
    """Return the signal of a step. Raises ConfigError for a name that no signal has."""
    name = str(step.get("signal", "SIGTERM"))
    try:
        return signal.Signals[name]
    except KeyError:
        raise ConfigError(f"--replay: {name[:MAX_SHOWN_CHARS]!r} is not the name of a signal") from None


def brief(step: dict[str, Any]) -> str:
    """Return the details of a step in a few words, without its time, its lane and its action."""
    if "bytes" in step:
        text = str(step["bytes"])
        times = f" {step['times']} times" if "times" in step else ""
        return repr(text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…") + times
    if step["do"] == "wait":
        return f"until {step.get('what')}"
    return " ".join(
        f"{key}={value}" for key, value in step.items() if key not in ("t", "lane", "do", "reads")
    )
