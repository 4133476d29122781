"""Checks whether a program speaks the engine protocol: python -m ewe.xswitch.check ENGINE-COMMAND

Starts the engine, gives it small scripts of its language and says of each rule of docs/write-an-engine.md
whether it is kept. Exit status: 0 all kept, 1 some not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ewe.config.command import RaisingParser, entry_point
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.tools.check_scripts import SCRIPTS
from ewe.xswitch.tools.driver import Answer, Driver

NAME = "python -m ewe.xswitch.check"
BIG = 1_000_000  # bytes of the large answer and of the large body
HEAD = b"Content-Type: text/plain\n\n"

Check = Callable[[Driver, str, str], str]


class Broken(Exception):
    """A rule is not kept. The text says what was seen."""


def same(what: str, found: object, wanted: object) -> None:
    """Raise Broken where two things differ."""
    if found != wanted:
        raise Broken(f"{what} is {shortened(found)}, not {shortened(wanted)}")


def shortened(value: object) -> str:
    """Return a value as one short piece of text."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def echoed(answer: Answer) -> tuple[list[bytes], bytes]:
    """Return the lines and the body in the answer of the script `echo`."""
    if not answer.output.startswith(HEAD):
        raise Broken(f"the output begins with {shortened(answer.output[:60])}")
    head, _, body = answer.output[len(HEAD) :].partition(b"\n\n")
    return head.split(b"\n"), body


# The rules, in the order of the document


def answers(engine: Driver, scripts: str, suffix: str) -> None:
    """a script's output comes, and then the mark with status 0"""
    answer = engine.ask(f"{scripts}/echo{suffix}")
    echoed(answer)
    same("the exit status", answer.status, 0)


def passes_arguments(engine: Driver, scripts: str, suffix: str) -> None:
    """arguments arrive, also empty ones and those with spaces, tabs and line feeds"""
    words = ["one", "two words", "tab\there", "50%25", "über", ""]
    answer = engine.ask(f"{scripts}/echo{suffix}", words)
    same("the answer", answer.output, HEAD + "\n".join([*words, "", scripts, "\n"]).encode())


def passes_line_feeds(engine: Driver, scripts: str, suffix: str) -> None:
    """a value with a line feed and a percent sign arrives whole"""
    lines, _ = echoed(engine.ask(f"{scripts}/echo{suffix}", environment={"CHECK_VALUE": "a\nb%0A c\t="}))
    same("CHECK_VALUE", b"\n".join(lines[:-1]), b"a\nb%0A c\t=")


def forgets_environment(engine: Driver, scripts: str, suffix: str) -> None:
    """the environment of one request is gone in the next"""
    engine.ask(f"{scripts}/echo{suffix}", environment={"CHECK_VALUE": "of another request"})
    lines, _ = echoed(engine.ask(f"{scripts}/echo{suffix}"))
    same("CHECK_VALUE", lines[-2], b"")


def changes_directory(engine: Driver, scripts: str, suffix: str) -> None:
    """a script runs in its own directory"""
    lines, _ = echoed(engine.ask(f"{scripts}/echo{suffix}"))
    same("the directory", lines[-1], scripts.encode())


def passes_bodies(engine: Driver, scripts: str, suffix: str) -> None:
    """a body of any bytes arrives whole on standard input"""
    for body in (b"x", bytes(range(256)) * 8):
        same("the body", echoed(engine.ask(f"{scripts}/echo{suffix}", body=body))[1], body)


def passes_large_bodies(engine: Driver, scripts: str, suffix: str) -> None:
    """a large body arrives whole"""
    body = os.urandom(BIG)
    found = echoed(engine.ask(f"{scripts}/echo{suffix}", body=body))[1]
    if found != body:
        raise Broken(f"{len(found)} bytes came back of {len(body)}, or not the same")


def skips_bodies(engine: Driver, scripts: str, suffix: str) -> None:
    """a body that the script does not read is gone before the next request"""
    engine.ask(f"{scripts}/count{suffix}", body=b"left over" * 50_000)
    same("the next body", echoed(engine.ask(f"{scripts}/echo{suffix}", body=b"mine"))[1], b"mine")


def answers_largely(engine: Driver, scripts: str, suffix: str) -> None:
    """a large answer comes whole, before its mark"""
    answer = engine.ask(f"{scripts}/big{suffix}")
    same("the length of the answer", len(answer.output) - len(HEAD), BIG)


def forgets_variables(engine: Driver, scripts: str, suffix: str) -> None:
    """a script begins with fresh variables"""
    for _ in range(3):
        same("a counter that starts at 0", engine.ask(f"{scripts}/count{suffix}").output, HEAD + b"1\n")


def reports_status(engine: Driver, scripts: str, suffix: str) -> None:
    """exit(3) is the status in the mark, and the engine lives on"""
    answer = engine.ask(f"{scripts}/exit{suffix}")
    same("the output", answer.output, HEAD + b"going\n")
    same("the exit status", answer.status, 3)


def survives_failure(engine: Driver, scripts: str, suffix: str) -> None:
    """a script that fails says so on standard error, with another status than 0"""
    answer = engine.ask(f"{scripts}/fail{suffix}")
    if answer.status in (0, None):
        raise Broken(f"the exit status is {answer.status}")
    if not answer.errors:
        raise Broken("nothing is on standard error")
    answers(engine, scripts, suffix)


def survives_absence(engine: Driver, scripts: str, suffix: str) -> None:
    """a file that is not there has another status than 0, and the engine lives on"""
    if (status := engine.ask(f"{scripts}/absent{suffix}").status) in (0, None):
        raise Broken(f"the exit status is {status}")
    answers(engine, scripts, suffix)


def notices_edits(engine: Driver, scripts: str, suffix: str) -> None:
    """an edit counts at the next request"""
    file = Path(scripts, f"edited{suffix}")
    original = Path(scripts, f"count{suffix}").read_text()
    for text in ("first", "again", "third"):
        fresh = file.with_suffix(".new")
        fresh.write_text(original.replace("text/plain", f"text/{text}"))
        fresh.replace(file)
        same("the answer", engine.ask(str(file)).output, HEAD.replace(b"plain", text.encode()) + b"1\n")


RULES: tuple[Callable[[Driver, str, str], None], ...] = (
    answers, passes_arguments, passes_line_feeds, forgets_environment, changes_directory, passes_bodies,
    passes_large_bodies, skips_bodies, answers_largely, forgets_variables, reports_status, survives_failure,
    survives_absence, notices_edits,
)  # fmt: skip


def try_rule(
    command: Sequence[str], rule: Callable[[Driver, str, str], None], scripts: str, suffix: str
) -> str:
    """Return what breaks a rule, "" if it is kept."""
    try:
        with Driver(command) as engine:
            try:
                rule(engine, scripts, suffix)
            except (Broken, TimeoutError, ProtocolError, OSError) as reason:
                said = os.pread(engine.errors.fileno(), 2000, 0).decode(errors="replace").strip().splitlines()
                return str(reason) + (f" (it said: {said[-1]})" if said else "")
    except OSError as reason:
        return f"{command[0]}: {reason.strerror}"
    return ""


def try_end(command: Sequence[str]) -> str:
    """Return "" if the engine ends when its sockets are closed."""
    with Driver(command) as engine:
        return "" if engine.ends() else "it still runs 5 s later"


def write_scripts(directory: str, suffix: str) -> None:
    """Write the scripts of a language."""
    for name, text in SCRIPTS[suffix].items():
        file = Path(directory, name + suffix)
        file.write_text(text.replace("@BIG@", str(BIG)))
        file.chmod(0o755)


def guess_suffix(command: Sequence[str]) -> str:
    """Return the suffix of the engine program, which is most often in the language that it runs."""
    return next((Path(word).suffix for word in reversed(command) if Path(word).suffix in SCRIPTS), "")


@entry_point(NAME)
def main(arguments: list[str]) -> int:
    """Check an engine; print a line for each rule; return the exit status."""
    parser = RaisingParser(prog=NAME, description="Check an engine program.")
    parser.add_argument(
        "--suffix", choices=sorted(SCRIPTS), help="of the scripts that it runs [the program's own]"
    )
    parser.add_argument(
        "--scripts", metavar="DIR", help="your own echo, big, count, exit and fail, for any suffix"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the engine and its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("which engine?")
    suffix = options.suffix or guess_suffix(options.command)
    if options.scripts:
        suffix = next((each.suffix for each in Path(options.scripts).glob("echo.*")), "")
    if not suffix:
        parser.error("what do its scripts look like? Say --suffix, or --scripts with an echo in it")
    command = [shutil.which(options.command[0]) or options.command[0], *options.command[1:]]
    command = [os.path.abspath(word) if os.path.exists(word) else word for word in command]
    return report(command, options.scripts, suffix)


def report(command: Sequence[str], own_scripts: str | None, suffix: str) -> int:
    """Try every rule, a line each; return the exit status."""
    broken = 0
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
        broken += bool(fault)
    print(f"{len(outcomes) - broken} of {len(outcomes)} rules are kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
