"""Checks whether a program speaks the engine protocol: python -m ewe.xswitch.check ENGINE-COMMAND

Starts the engine, gives it small scripts of its language, and reports for each rule of docs/xswitch-internals.md
whether the engine keeps it. Exit status: 0 all kept, 1 some not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ewe.config.command import RaisingParser, entry_point
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.tools.check_scripts import SCRIPTS
from ewe.xswitch.tools.driver import Driver, ScriptResult

NAME = "python -m ewe.xswitch.check"
LARGE_BODY_BYTES = 1_000_000  # bytes of the large answer and of the large body
MAX_ERROR_BYTES = 2000  # at the end of standard error, of which the last line is shown
MAX_SHOWN_CHARS = 120  # of a value in a message
HEAD = b"Content-Type: text/plain\n\n"


class Broken(Exception):
    """A rule is not kept. The text describes the difference."""


class Trial(NamedTuple):
    """A running engine, and the scripts that it can run. suffix: of their names (".py")."""

    engine: Driver
    directory: str
    suffix: str

    def script(self, name: str) -> Path:
        """Return the path of a script."""
        return Path(self.directory, name + self.suffix)

    def ask(
        self,
        name: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> ScriptResult:
        """Make the engine run a script. Raises TimeoutError, ProtocolError, ConnectionError."""
        return self.engine.ask(str(self.script(name)), arguments, environment, body)


# Checks one rule. Raises Broken.
Rule = Callable[[Trial], None]


def require_equal(description: str, actual: object, expected: object) -> None:
    """Raise Broken if two values differ. description: of the value, for the message."""
    if actual != expected:
        raise Broken(f"{description} is {shortened(actual)}, not {shortened(expected)}")


def shortened(value: object) -> str:
    """Return a value as one short piece of text."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}... ({len(text)} characters)"


def parse_echo(answer: ScriptResult) -> tuple[list[bytes], bytes]:
    """Return the lines of the answer of the script `echo`, and the body that it has sent back. Raises Broken.

    The last two lines are the value of CHECK_VALUE, and the directory.
    """
    if not answer.output.startswith(HEAD):
        raise Broken(f"the output begins with {shortened(answer.output[:60])}")
    head, _, body = answer.output[len(HEAD) :].partition(b"\n\n")
    return head.split(b"\n"), body


# The rules, in the order of the document. The output of this program shows their docstrings.


def answers(trial: Trial) -> None:
    """a script's output comes, and then the mark with status 0"""
    answer = trial.ask("echo")
    parse_echo(answer)
    require_equal("the exit status", answer.status, 0)


def passes_arguments(trial: Trial) -> None:
    """arguments arrive, also empty ones and those with spaces, tabs and line feeds"""
    words = ["one", "two words", "tab\there", "50%25", "über", ""]
    answer = trial.ask("echo", words)
    require_equal("the answer", answer.output, HEAD + "\n".join([*words, "", trial.directory, "\n"]).encode())


def passes_line_feeds(trial: Trial) -> None:
    """a value with a line feed and a percent sign arrives whole"""
    lines, _ = parse_echo(trial.ask("echo", environment={"CHECK_VALUE": "a\nb%0A c\t="}))
    *value_lines, _directory = lines
    require_equal("CHECK_VALUE", b"\n".join(value_lines), b"a\nb%0A c\t=")


def forgets_environment(trial: Trial) -> None:
    """the environment of one request is gone in the next"""
    trial.ask("echo", environment={"CHECK_VALUE": "of another request"})
    (*_, value, _directory), _ = parse_echo(trial.ask("echo"))
    require_equal("CHECK_VALUE", value, b"")


def changes_directory(trial: Trial) -> None:
    """a script runs in its own directory"""
    (*_, directory), _ = parse_echo(trial.ask("echo"))
    require_equal("the directory", directory, trial.directory.encode())


def passes_bodies(trial: Trial) -> None:
    """a body of any bytes arrives whole on standard input"""
    for body in (b"x", bytes(range(256)) * 8):
        _, actual = parse_echo(trial.ask("echo", body=body))
        require_equal("the body", actual, body)


def passes_large_bodies(trial: Trial) -> None:
    """a large body arrives whole"""
    body = os.urandom(LARGE_BODY_BYTES)
    _, actual = parse_echo(trial.ask("echo", body=body))
    if actual != body:
        raise Broken(f"{len(actual)} bytes came back of {len(body)}, or not the same")


def discards_unread_bodies(trial: Trial) -> None:
    """a body that the script does not read is gone before the next request"""
    # `count` reads no body; `echo` sends its own back
    trial.ask("count", body=b"left over" * 50_000)
    _, next_body = parse_echo(trial.ask("echo", body=b"mine"))
    require_equal("the next body", next_body, b"mine")


def answers_largely(trial: Trial) -> None:
    """a large answer comes whole, before its mark"""
    answer = trial.ask("big")
    require_equal("the length of the answer", len(answer.output) - len(HEAD), LARGE_BODY_BYTES)


def forgets_variables(trial: Trial) -> None:
    """a script begins with fresh variables"""
    # `count` adds 1 to a global variable, and prints it
    for _ in range(3):
        require_equal("a counter that starts at 0", trial.ask("count").output, HEAD + b"1\n")


def reports_status(trial: Trial) -> None:
    """exit(3) is the status in the mark, and the engine lives on"""
    answer = trial.ask("exit")
    require_equal("the output", answer.output, HEAD + b"going\n")
    require_equal("the exit status", answer.status, 3)


def survives_failure(trial: Trial) -> None:
    """a script that fails says so on standard error, with another status than 0"""
    answer = trial.ask("fail")
    if answer.status in (0, None):
        raise Broken(f"the exit status is {answer.status}")
    if not answer.errors:
        raise Broken("nothing is on standard error")
    answers(trial)


def survives_absence(trial: Trial) -> None:
    """a file that is not there has another status than 0, and the engine lives on"""
    if (status := trial.ask("absent").status) in (0, None):
        raise Broken(f"the exit status is {status}")
    answers(trial)


def notices_edits(trial: Trial) -> None:
    """an edit counts at the next request"""
    file = trial.script("edited")
    original = trial.script("count").read_text()
    for text in ("first", "again", "third"):
        new_file = file.with_suffix(".new")
        new_file.write_text(original.replace("text/plain", f"text/{text}"))
        new_file.replace(file)
        require_equal(
            "the answer", trial.ask("edited").output, HEAD.replace(b"plain", text.encode()) + b"1\n"
        )


RULES: tuple[Rule, ...] = (
    answers, passes_arguments, passes_line_feeds, forgets_environment, changes_directory, passes_bodies,
    passes_large_bodies, discards_unread_bodies, answers_largely, forgets_variables, reports_status,
    survives_failure, survives_absence, notices_edits,
)  # fmt: skip


def try_rule(command: Sequence[str], rule: Rule, scripts: str, suffix: str) -> str:
    """Start an engine, and return how it breaks a rule; "" if it keeps the rule.

    scripts: the directory of the test scripts. suffix: of their names (".py").
    """
    try:
        with Driver(command) as engine:
            try:
                rule(Trial(engine, scripts, suffix))
            except (Broken, TimeoutError, ProtocolError, OSError) as reason:
                last_line = last_error_line(engine)
                return str(reason) + (f" (it said: {last_line})" if last_line else "")
    except OSError as reason:  # of Driver(): no process could be made
        return f"{command[0]}: {reason.strerror}"
    return ""


def last_error_line(engine: Driver) -> str:
    """Return the last line of an engine's standard error, "" if there is none."""
    descriptor = engine.errors.fileno()
    end = os.fstat(descriptor).st_size
    errors = os.pread(descriptor, MAX_ERROR_BYTES, max(0, end - MAX_ERROR_BYTES))
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def try_end(command: Sequence[str]) -> str:
    """Return "" if the engine ends when its sockets are closed; otherwise the fault."""
    with Driver(command) as engine:
        return "" if engine.ends() else "it still runs 5 s later"


def write_scripts(directory: str, suffix: str) -> None:
    """Write the scripts of a language into a directory. suffix: of the language, a key of SCRIPTS."""
    for name, text in SCRIPTS[suffix].items():
        file = Path(directory, name + suffix)
        file.write_text(text.replace("@BIG@", str(LARGE_BODY_BYTES)))
        file.chmod(0o755)


def guess_suffix(command: Sequence[str]) -> str:
    """Return the suffix of the engine program: an engine is most often written in the language that it runs."""
    return next((Path(word).suffix for word in reversed(command) if Path(word).suffix in SCRIPTS), "")


@entry_point(NAME)
def main(arguments: list[str]) -> int:
    """Check an engine; print a line for each rule; return the exit status."""
    parser = RaisingParser(prog=NAME, description="Check an engine program.")
    parser.add_argument(
        "--suffix",
        choices=sorted(SCRIPTS),
        help="the suffix of the scripts that the engine runs [the program's own]",
    )
    parser.add_argument(
        "--scripts",
        metavar="DIR",
        help="a directory with your own scripts echo, big, count, exit and fail, of any suffix",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the engine and its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("name the engine: its program and arguments")
    suffix = options.suffix or guess_suffix(options.command)
    if options.scripts:
        suffix = next((script.suffix for script in Path(options.scripts).glob("echo.*")), "")
    if not suffix:
        parser.error(
            "the suffix of its scripts is unknown: write --suffix SUFFIX, or --scripts DIR with an echo in it"
        )
    command = [shutil.which(options.command[0]) or options.command[0], *options.command[1:]]
    # Each rule runs the engine in another directory
    command = [os.path.abspath(word) if os.path.exists(word) else word for word in command]
    return report(command, options.scripts, suffix)


def report(command: Sequence[str], own_scripts: str | None, suffix: str) -> int:
    """Try every rule, and print a line for each; return the exit status.

    own_scripts: a directory with scripts in place of check_scripts.py; None without one.
    """
    broken_count = 0
    with tempfile.TemporaryDirectory() as directory:
        scripts = os.path.realpath(directory)
        if own_scripts:
            shutil.copytree(own_scripts, scripts, dirs_exist_ok=True)
        else:
            write_scripts(scripts, suffix)
        outcomes = [(str(rule.__doc__), try_rule(command, rule, scripts, suffix)) for rule in RULES]
        outcomes.append(("it ends when its sockets are closed", try_end(command)))
    for rule, fault in outcomes:
        print(f"{'NOT' if fault else 'ok '}  {rule}" + (f": {fault}" if fault else ""))
        broken_count += bool(fault)
    print(f"{len(outcomes) - broken_count} of {len(outcomes)} rules are kept")
    return 1 if broken_count else 0


if __name__ == "__main__":
    sys.exit(main())
