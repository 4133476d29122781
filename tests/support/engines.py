"""Engines of X-Switch without X-Switch, for tests: start and share an engine, and check its answers.

The engine's promise is that a script answers as it does in a process of its own. So a test asks an engine, and
compares with `answer_of_process`.
"""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ewe.xswitch.tools.driver import Driver, ScriptResult
from support.server import ROOT

ENGINES = ROOT / "ewe" / "xswitch" / "engines"
PYTHON = [sys.executable, str(ENGINES / "python.py")]
PERL = ["perl", str(ENGINES / "perl.pl")]
PATH = "/usr/local/bin:/usr/bin:/bin"
HEAD = "Content-Type: text/plain\n\n"
PERL_HEAD = 'print "Content-Type: text/plain\\n\\n";'


def isolated(isolation: str, lang: str = "C.UTF-8") -> dict[str, str]:
    """Return the environment of an engine that isolates scripts so: auto, fork or none. lang "": not set."""
    language = {"LANG": lang} if lang else {}
    return {"PATH": PATH, "XSWITCH_ISOLATION": isolation, **language}


class PatientDriver(Driver):
    """A driver that waits longer for an answer than the checker of engines does: the machine may be busy."""

    def ask(
        self,
        file: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        body: bytes = b"",
        seconds: float = 90,
    ) -> ScriptResult:
        return super().ask(file, arguments, environment, body, seconds)


class Engines:
    """One engine for each isolation, shared by many tests: a leftover of one script would appear in the next."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.running: dict[str, Driver] = {}

    def get(self, isolation: str) -> Driver:
        """Return the engine; a new one if the last has ended."""
        engine = self.running.get(isolation)
        if (
            engine is None
            or engine.pid == 0
            or engine.is_ending
            or select.select([engine.pidfd], [], [], 0)[0]
        ):
            if engine is not None:
                engine.close()
            engine = self.running[isolation] = PatientDriver(self.command, isolated(isolation))
        return engine

    def close(self) -> None:
        """End all."""
        for engine in self.running.values():
            engine.close()


def answer_of_process(
    command: Sequence[str], script: Path, variables: Mapping[str, str], *, options: Sequence[str] = ()
) -> ScriptResult:
    """Return the answer of `command options script` in a separate process."""
    done = subprocess.run(
        [*command, *options, str(script)],
        env={"PATH": PATH, "CONTENT_LENGTH": "0", **variables},
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=heed_signals,
    )
    return ScriptResult(done.stdout, done.stderr, done.returncode)


def heed_signals() -> None:
    """Let the signals of a terminal end this process: nohup and the background of a shell ignore them."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def without_times(answer: ScriptResult) -> ScriptResult:
    """Return an answer without the times that Perl's CGI::Carp puts before errors."""
    return answer._replace(errors=re.sub(rb"(?m)^\[[^]]*\]", b"", answer.errors))


def write(path: Path, text: str) -> Path:
    """Write a file; the directories to it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
