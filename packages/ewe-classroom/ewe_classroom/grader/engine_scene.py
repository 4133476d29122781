"""A scene for an engine of X-Switch: the grader takes the part of X-Switch, and the engine runs scripts for it.

    grader ──control socket, data socket──▶ the student's engine, started as X-Switch starts one
             two lines, a body ─▶
             ◀─ output, end mark

X-Switch's own code starts the engine, so that the engine gets the same descriptors, signals and umask as in use. It
also gets the limits and the account of a program under test. If an engine ends, the next request goes to a new
engine.

As with servers, a wait does not use a clock. It ends when the engine has answered, has ended, or is *quiescent*
(processes.py). A quiescent engine sleeps, all bytes have arrived, and so it will never write its end mark.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ewe.config.defaults import SEARCH_PATH
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.tools.driver import Driver, ScriptResult, ScriptRun
from ewe_classroom.grader import processes
from ewe_classroom.grader.sandbox import SandboxLimits, end_all
from ewe_classroom.grader.scene import EXCESS_CHECK_EVERY_S, SURE_S, WAIT_LIMIT_S, Scene
from ewe_classroom.grader.subject import (
    FAULTS_OF_MACHINE,
    BadSubject,
    ExcessWatch,
    NotStarted,
    StartCommand,
    last_lines,
)

POLL_EVERY_S = 0.02
MAX_SHORT_CHARS, SHOWN_CHARS = 160, 140  # of a value in a message; the beginning of a longer one
MAX_OUTPUT_BYTES = 16 << 20  # of one answer; the largest one of a check has a megabyte
MAX_WHOLE_BYTES = 100  # of an output that a message shows whole
BYTES_BEFORE, BYTES_AFTER = 10, 30  # of a longer one, around the first difference
SCRIPT_HEAD = b"Content-Type: text/plain\n\n"  # with which the scripts of the checks begin their output
# A script that prints the state of its process. The state must be the same for each script, whichever ran before.
# The script changes nothing: signal.alarm(0) would end the alarm that a later reading has to find.
PROBE = """\
import builtins, json, os, signal, subprocess, sys
mask = os.umask(0)
os.umask(mask)
seen = {
    "pid": os.getpid(), "directory": os.getcwd(), "arguments": sys.argv, "environment": dict(os.environ),
    "umask": oct(mask), "name": __name__, "file": __file__,
    "globals": sorted(name for name in globals() if name[0] != "_"),
    "builtins": len(vars(builtins)), "path": sys.path[:],
    "descriptors": sorted(
        entry for entry in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + entry)
    ),
    "ignored": sorted(int(each) for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN),
    "handled": sorted(
        int(each) for each in signal.valid_signals()
        if callable(signal.getsignal(each)) and signal.getsignal(each) is not signal.default_int_handler
        and not isinstance(signal.getsignal(each), signal.Handlers)
    ),
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "alarm": round(signal.getitimer(signal.ITIMER_REAL)[0]),
    "inherited": subprocess.run(["env"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.split(),
}
print("Content-Type: application/json\\n")
print(json.dumps(seen))
"""
# The types of the values that PROBE prints; for a list, those of its items.
STATE_TYPES: dict[str, type] = {
    "pid": int, "directory": str, "environment": dict, "umask": str, "name": str, "file": str, "builtins": int,
    "alarm": int,
}  # fmt: skip
STATE_ITEM_TYPES: dict[str, type] = {
    "arguments": str, "globals": str, "path": str, "descriptors": str, "inherited": str, "ignored": int,
    "handled": int, "blocked": int,
}  # fmt: skip


def state_of(output: bytes) -> dict[str, Any]:
    """Return the state that PROBE has printed. Raises ValueError or RecursionError for any other output.

    The engine may print any text. Without this test, a missing key or a value of another type would raise an
    exception in a check. The verdict would then name a fault of the grader, and the submission would have no mark.
    """
    found = json.loads(output)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    for key, value_type in STATE_TYPES.items():
        if type(found.get(key)) is not value_type:
            raise ValueError(f"{key}: not the value of a process")
    for key, item_type in STATE_ITEM_TYPES.items():
        items = found.get(key)
        if not isinstance(items, list) or any(type(item) is not item_type for item in items):
            raise ValueError(f"{key}: not the values of a process")
    return found


def from_path(text: str) -> StartCommand:
    """Return the start command of an engine: a Python file, or any program. Raises BadSubject."""
    path = Path(text).absolute()
    if not os.path.isfile(path):  # false for a name that is too long, where Path.is_file() raises an error
        raise BadSubject(f"{text}: not a file; name your engine, or use --command 'PROGRAM ARGUMENT ...'")
    if path.suffix == ".py":
        return StartCommand((sys.executable, str(path)), path.parent, shlex.quote(text), language="python")
    if not os.access(path, os.X_OK):
        raise BadSubject(f"{text}: not executable; run chmod +x, or use --command")
    return StartCommand((str(path),), path.parent, shlex.quote(text))


def from_command(text: str) -> StartCommand:
    """Return the start command of --command. Raises BadSubject."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadSubject(f"--command: {error}; quote it as a shell would") from None
    if not words or shutil.which(words[0]) is None:
        raise BadSubject(f"--command: {words[0] if words else text!r} is not a program that can be run")
    if os.sep in words[0]:
        words[0] = os.path.abspath(words[0])
    # X-Switch (engine_xswitch.py) starts the engine in another directory: the names of files must be absolute.
    words[1:] = [os.path.abspath(word) if os.path.isfile(word) else word for word in words[1:]]
    return StartCommand(tuple(words), Path.cwd(), f"--command {shlex.quote(text)}")


class Scripts:
    """The directory of the scripts. root: the directory, which the engine's account may read and not write."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "cgi-bin"
        self.root.mkdir(exist_ok=True)
        for each in (directory, self.root):
            each.chmod(0o755)

    def write(self, name: str, text: str) -> str:
        """Write a script or a module; return its path."""
        file = self.root / name
        file.parent.mkdir(exist_ok=True)
        file.parent.chmod(0o755)
        file.write_text(text)
        file.chmod(0o755)
        return str(file)


class EngineSilent(Exception):
    """The engine has not ended its answer, and will not end it. The message says what it does instead."""


class PatientDriver(Driver):
    """A driver that waits without a clock, until the engine has answered, has ended, or is quiescent.

    excess_text: describes the limit of memory, tasks or files that the engine exceeds; "" if it exceeds none.
    """

    excess_text: Callable[[], str] = staticmethod(lambda: "")

    def converse(self, body: bytes, deadline: float) -> tuple[bytes, int | None]:
        """Send the body; read the output up to the end mark or the engine's end.

        Return the output and the exit status, None if the engine ended without an end mark. deadline: not used,
        because quiescence decides. An engine that writes without end is never quiescent: the output and the time
        have limits. Raises EngineSilent, ProtocolError.
        """
        exchange = ScriptRun(self, body)
        began = quiescent_from = time.monotonic()
        previous: object = None  # the activity at the last look
        excess_checked_at = 0.0
        while not exchange.has_ended:
            moved = exchange.transfer(POLL_EVERY_S)
            now = time.monotonic()
            size = f"{len(exchange.output):,} bytes of output"
            if now - excess_checked_at > EXCESS_CHECK_EVERY_S:
                excess_checked_at = now
                if excess := self.excess_text():
                    raise EngineSilent(f"it uses too much: {excess}")
            if len(exchange.output) > MAX_OUTPUT_BYTES:
                raise EngineSilent(f"it goes on after {size}")
            if now - began > WAIT_LIMIT_S:
                raise EngineSilent(f"after {WAIT_LIMIT_S:.0f} s with {size} it is still busy")
            if moved:
                previous, quiescent_from = None, now
                continue
            seen = self.activity()
            if seen is None or seen != previous:
                previous, quiescent_from = seen, now
            elif now - quiescent_from > SURE_S:
                raise EngineSilent(f"it sleeps after {size}")
        return bytes(exchange.output), exchange.status

    def activity(self) -> tuple[object, ...] | None:
        """Return a fingerprint of the engine's activity; None while one of its threads runs."""
        tasks = processes.tasks(processes.family([self.pid]))
        if not all(task.asleep for task in tasks.values()):
            return None
        return tuple((tid, task.turns) for tid, task in sorted(tasks.items()))


class EngineSubject:
    """The engine under test. If the engine ends, driver() starts another one."""

    def __init__(
        self,
        start_command: StartCommand,
        site: Scripts,
        workers: int,
        limits: SandboxLimits,
        port: int,
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take the arguments of Subject, since Grading makes either (kinds.py).

        port and output have no use: an engine inherits its sockets.
        """
        self.start_command, self.site, self.workers, self.limits = start_command, site, workers, limits
        self.environment = dict(environment or {})
        self.own_children = set(processes.children_of_grader())  # started before, so not the engine's
        self.excess = ExcessWatch(limits.account, start_command.directory)
        self.engine: PatientDriver | None = None
        self.starts = 0

    def driver(self) -> PatientDriver:
        """Return the running engine, or start one. Raises NotStarted."""
        # is_ending: the engine has closed its sockets within an answer, so its process will end soon.
        if self.engine is not None and (self.engine.is_ending or self.has_ended()):
            self.end()
        if self.engine is None:
            environment = {
                "PATH": SEARCH_PATH,
                "LANG": "C.UTF-8",
                "XSWITCH_ISOLATION": "none",
                **self.environment,
            }
            try:
                self.engine = PatientDriver(self.start_command.command, environment, self.limits)
            except OSError as error:
                if error.errno in FAULTS_OF_MACHINE:
                    raise
                raise NotStarted(f"the engine could not be started: {error}") from None
            self.engine.excess_text = self.excess_text
            self.starts += 1
        return self.engine

    def has_ended(self) -> bool:
        """Return whether no engine runs. A pidfd is readable once its process has ended (pidfd_open(2))."""
        engine = self.engine
        return engine is None or bool(select.select([engine.pidfd], [], [], 0)[0])

    def tasks(self) -> dict[int, processes.ThreadSample]:
        return processes.tasks(processes.family([self.engine.pid])) if self.engine else {}

    def family(self) -> list[int]:
        """Return the processes of the engine, with adopted orphans."""
        return processes.family(set(processes.children_of_grader()) - self.own_children)

    def excess_text(self) -> str:
        """Describe the limit of memory, tasks or files that the engine's processes exceed together; "" if none."""
        return self.excess.text(self.family())

    def alive(self) -> bool:
        return True  # driver() starts an engine if none runs, so the end of one does not end the subject

    def end(self) -> None:
        """End the engine, if one runs: close its sockets, and kill it if it does not end (Driver.close()).

        Also end the processes that it has left: Driver.close() does not reach those of another process group.
        """
        if self.engine is not None:
            self.engine.close()
            self.engine = None
            end_all(None, self.own_children, self.limits.account)

    close = end

    def log(self, lines: int = 12) -> str:
        """Return the last lines that the engine and its script wrote to descriptor 2 during this request."""
        if self.engine is None or self.engine.errors.closed:
            return ""
        return last_lines(self.engine.errors.fileno(), lines)

    def __enter__(self) -> EngineSubject:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class EngineScene(Scene):
    """The scene of a check of engines: it writes scripts, and an engine runs them."""

    subject: Any

    def __init__(self, subject: EngineSubject, options: dict[str, Any] | None = None) -> None:
        super().__init__(subject, options)  # type: ignore[arg-type]
        self.asked = 0

    def write(self, name: str, text: str) -> str:
        """Write a script or a module; return its path."""
        return str(self.subject.site.write(name, text))

    def run(
        self,
        name: str,
        text: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> ScriptResult:
        """Let the engine run a script, which is written first if `text` is given. Return the answer, or fail."""
        path = str(self.subject.site.root / name) if text is None else self.write(name, text)
        engine: PatientDriver = self.subject.driver()
        self.asked += 1
        lane = f"{self.asked}: {name}"
        self.note(lane=lane, do="connect", engine=self.subject.starts)
        self.note(lane=lane, do="send", bytes=f"{path} {' '.join(arguments)}\n{dict(environment or {})}\n")
        try:
            answer = engine.ask(
                path, arguments, {"SCRIPT_NAME": f"/cgi-bin/{name}", **(environment or {})}, body
            )
        except (EngineSilent, ProtocolError, BrokenPipeError, ConnectionResetError) as error:
            message = self.subject.log(1).strip()
            last_words = f"; its last words: {message}" if message else ""
            if isinstance(error, EngineSilent):
                did = f"the engine ran {name} and never wrote its end mark: {error}"
                should = "write EOT, the exit status and LF to descriptor 3 when a script has ended"
            elif isinstance(error, ProtocolError):
                did, should = f"{error}", "write the end mark and nothing else to descriptor 3"
            else:
                did = f"the engine ended before it read the request for {name}{last_words}"
                should = "stay alive after a script: the next request comes on the same sockets"
            self.subject.end()
            self.fail(did, should, last_words.removeprefix("; "))
        self.note(lane=lane, do="got", bytes=answer.output[:300].decode("latin-1"))
        if answer.status is None:
            self.note(lane=lane, do="closed-by-server")
        else:
            self.note(lane=lane, do="answered", status=answer.status)
        return answer

    def expect(
        self,
        name: str,
        text: str | None,
        output: str | bytes,
        *,
        because: str,
        status: int | None = 0,
        **more: Any,
    ) -> ScriptResult:
        """Run a script; fail unless its output is SCRIPT_HEAD and `output`, and its exit status is `status`.

        name: of the script's file, which gets this text if it is given. because: the likely cause of a failure.
        status: None if the engine ends without an end mark. more: the other arguments of run().
        """
        answer = self.run(name, text, **more)
        expected = SCRIPT_HEAD + (output.encode() if isinstance(output, str) else output)
        if answer.output != expected:
            self.fail(
                f"{name} answered {difference_text(answer.output, expected)}{self.errors_text(answer)}",
                f"answer {difference_text(expected, answer.output)}",
                because,
            )
        if answer.status != status:
            self.fail(
                f"the end mark of {name} has status {status_text(answer.status)}{self.errors_text(answer)}",
                f"give the script's exit status: {status_text(status)}",
                because,
            )
        return answer

    def errors_text(self, answer: ScriptResult) -> str:
        """Return a part of a message: the last line that the script wrote to descriptor 2."""
        last = answer.errors.decode(errors="replace").strip().rpartition("\n")[2]
        return f"; on descriptor 2: {last[:150]}" if last else ""

    def probe(self, *, after: str = "", name: str = "probe.py") -> dict[str, Any]:
        """Run PROBE, which prints the state of its process, under a file name; return this state.

        after: the earlier script, for a message.
        """
        answer = self.run(name, PROBE, environment={"CHECK_VALUE": "mine"})
        body = answer.output.partition(b"\n\n")[2]
        try:
            return state_of(body)
        except (ValueError, RecursionError):
            self.fail(
                f"an ordinary script{after and ' after ' + after} answered "
                f"{short_text(answer.output)}{self.errors_text(answer)}",
                "run the script as in a new process",
            )

    def expect_same(self, key: str, wanted: object, *, after: str, because: str) -> None:
        """Fail unless the next script sees the value `wanted` for `key` in its process.

        key: of the state that PROBE prints. after: the earlier script, for the message. because: the likely cause.
        """
        found = self.probe(after=after)[key]
        if found != wanted:
            self.fail(
                f"after {after}, the next script found {key} {short_text(found)}",
                f"give each script a fresh start: {key} {short_text(wanted)}",
                because,
            )


def short_text(value: object) -> str:
    """Return a value as a short text: its beginning and its length if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHORT_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text)} characters)"


def difference_text(found: bytes, wanted: bytes) -> str:
    """Describe the output `found`: the whole output if it is short, else its bytes at the first difference."""
    if len(found) <= MAX_WHOLE_BYTES and len(wanted) <= MAX_WHOLE_BYTES:
        return repr(found)
    pairs = zip(found, wanted, strict=False)
    # Without a different byte, one is the beginning of the other: they differ where the shorter one ends.
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(found), len(wanted)))
    around = found[max(at - BYTES_BEFORE, 0) : at + BYTES_AFTER]
    return f"{len(found):,} bytes; from byte {at:,} on: {around!r}"


def status_text(status: int | None) -> str:
    """Return the exit status of an end mark in words. None: the engine ended without a mark."""
    return "none: the engine ended" if status is None else str(status)
