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

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError
from ewe_classroom.grader import site_programs
from ewe_classroom.grader.grading import REPLAY_FORMAT
from ewe_classroom.grader.scene import Scene, SceneClient
from ewe_classroom.grader.subject import Subject

STEPS_WITHOUT_DATA = ("read", "half-close", "close", "reset")
MAX_SHOWN_CHARS = 70  # of the bytes of a step
MAX_TIMES = 10_000  # that a step repeats its bytes; a check sends a body of 8,192 lines


def load(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first line of a replay file, and its steps. Raises ConfigError."""
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
    return steps[0], steps[1:]


def play(subject: Subject, steps: list[dict[str, Any]]) -> Iterator[str]:
    """Do each step; yield a line for it, and a line for all that comes back.

    A client is known by its lane. A step of the record that the server made ("got", "answered") is only shown,
    after the word "then", so that the reader can compare it with the present one. Raises ConfigError.
    """
    scene = Scene(subject)
    clients: dict[str, SceneClient] = {}
    try:
        for step in steps:
            do, lane = str(step.get("do")), str(step.get("lane", ""))
            client = clients.get(lane)
            shown = len(scene.steps)  # the steps that this step adds, and those of the server, come after it
            if do == "connect":
                clients[lane] = scene.client(lane, reads=bool(step.get("reads", True)))
            elif do == "wait":
                scene.settle()
            elif do == "signal":
                number = signal_of(step)
                # After "start-again" the scene has another server. The server may have ended already.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(scene.subject.pid, number)
            elif do == "start-again":
                scene.start_again()
            elif do == "open-gate":
                site_programs.open_gate(subject.site.root, str(step.get("gate")))
                scene.note(do=do, gate=step.get("gate"))
            elif client is None:  # all further actions need a client
                if do == "note":
                    yield f"        note  {step.get('text', '')}"
                continue
            elif do == "send":
                client.send(str(step.get("bytes", "")).encode("latin-1", "replace"), times_of(step))
            elif do in ("got", "answered", "closed-by-server", "reset-by-server", "refused"):
                yield f"{'then':>8}  {lane}: {do} {brief(step)}".rstrip()
                continue
            elif do in STEPS_WITHOUT_DATA:
                {"read": client.read_on, "half-close": client.half_close, "close": client.close,
                 "reset": client.reset}[do]()  # fmt: skip
            for line in scene.steps[shown:]:
                yield f"{line['t']:8.3f}  {line.get('lane', 'all')}: {line['do']} {brief(line)}".rstrip()
    finally:
        scene.close()
        # The caller ends `subject`, and does not know of a server that "start-again" has started.
        if scene.subject is not subject:
            scene.subject.close()


def signal_of(step: dict[str, Any]) -> signal.Signals:
    """Return the signal of a step. Raises ConfigError for a name that no signal has."""
    name = str(step.get("signal", "SIGTERM"))
    try:
        return signal.Signals[name]
    except KeyError:
        raise ConfigError(f"--replay: {name[:MAX_SHOWN_CHARS]!r} is not the name of a signal") from None


def times_of(step: dict[str, Any]) -> int:
    """Return how many times a step sends its bytes. Raises ConfigError."""
    times = step.get("times", 1)
    if not isinstance(times, int) or not 0 < times <= MAX_TIMES:
        shown = str(times)[:MAX_SHOWN_CHARS]
        raise ConfigError(f"--replay: a step sends its bytes {shown} times: expected 1 to {MAX_TIMES:,}")
    return times


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
