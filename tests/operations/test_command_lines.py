"""The parsers of all commands have one look and one wording, under each version of Python."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.rooms import SOURCES

from ewe import cli
from ewe.config import __main__ as settings_page
from ewe.config.command import INTERRUPTED, UsageError, entry_point, interrupt_stops
from ewe.config.command_parser import CommandParser
from ewe.config.messages import ConfigError, Failure
from ewe.database import cli as database
from ewe.database.protocol import DatabaseError
from ewe.libcgi import samples
from ewe.streams.listener import StartError
from ewe.xswitch import check
from ewe.xswitch import cli as xswitch
from ewe.xswitch import settings_page as xswitch_settings_page
from ewe_classroom.course import cli as course
from ewe_classroom.grader import cli as grader
from ewe_explore import cli as explorer
from ewe_lab import cli as lab
from ewe_lab import speed
from ewe_lab.experiments import __main__ as experiments_page
from ewe_watch import cli as watch

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "ewe": cli.main,
    "ewe-course": course.main,
    "ewe-dbd": database.main,
    "ewe-explore": explorer.main,
    "ewe-grade": grader.main,
    "ewe-lab": lab.main,
    "ewe-watch": watch.main,
    "ewe-xswitch": xswitch.main,
    "ewe-lab speed": speed.main,
    "python -m ewe.config": settings_page.main,
    "python -m ewe.libcgi.samples": samples.main,
    "python -m ewe.xswitch.check": check.main,
    "python -m ewe.xswitch.settings_page": xswitch_settings_page.main,
    "python -m ewe_lab.experiments": experiments_page.main,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_colors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("PYTHON_COLORS", raising=False)
    try:
        code = COMMANDS[command](["--help"])
    except SystemExit as done:
        code = done.code
    assert not code
    text = capsys.readouterr().out
    assert "usage: " in text and "\x1b" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_is_one_line_with_the_name_of_the_command(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert COMMANDS[command](["--no-such-option"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{command}: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--level", "alll"], "argument --level: there is no 'alll'; did you mean \"all\"?"),
        (["-l", "x"], "argument -l/--level: there is no 'x'; there are all, none"),
        (["serv"], "there is no 'serv'; did you mean \"serve\"?"),
        (["serve", "--times", "9"], "argument --times: there is no 9; there are 1, 2"),
    ],
)
def test_a_misspelt_choice(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    parser = CommandParser(prog="shear")
    parser.add_argument(*(["-l"] if "-l" in argv else []), "--level", choices=["all", "none"])
    serve = parser.add_subparsers(metavar="ACTION").add_parser("serve")
    serve.add_argument("--times", type=int, choices=[1, 2])
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(argv)
    assert raised.value.code == 2
    assert capsys.readouterr().err == f"shear{' serve' if 'serve' in argv else ''}: {message}\n"


def test_an_option_with_two_names_shows_its_value_once() -> None:
    parser = CommandParser(prog="shear")
    parser.add_argument("-o", "--out", metavar="FILE", help="where to")
    parser.add_argument("-a", "--at", nargs=2)
    parser.add_argument("-q", "--quiet", action="store_true")
    assert [line.split("  ")[1] for line in parser.format_help().splitlines() if line.startswith("  -")] == [
        "-h, --help",
        "-o, --out FILE",
        "-a, --at AT AT",
        "-q, --quiet",
    ]


def ended_by(reason: BaseException) -> int:
    """Return the exit status of a command that raises."""

    @entry_point("shear", interrupted="shear: half a sheep is shorn")
    def main(arguments: list[str]) -> int:
        raise reason

    return main(["--wool"])


@pytest.mark.parametrize(
    ("reason", "status", "told"),
    [
        (Failure("no sheep"), 1, "shear: no sheep"),
        (Failure("no\nsheep"), 1, "shear: no\\nsheep"),
        (StartError("the gate is shut"), 1, "shear: the gate is shut"),
        (DatabaseError("NO SUCH DATABASE", "no flock"), 1, "shear: no flock"),
        (ConfigError("wool: expected a colour"), 2, "shear: wool: expected a colour"),
        (UsageError("which sheep?"), 2, "shear: which sheep?"),
        (SystemExit(), 0, ""),
        (SystemExit(3), 3, ""),
        (KeyboardInterrupt(), 130, "shear: half a sheep is shorn"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_how_a_command_ends(
    capsys: pytest.CaptureFixture[str], reason: BaseException, status: int, told: str
) -> None:
    assert ended_by(reason) == status
    assert capsys.readouterr() == ("", f"{told}\n" if told else "")


def test_another_error_is_a_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        ended_by(ZeroDivisionError())


def test_an_interrupt_of_a_server_is_the_wish_to_stop_it() -> None:
    @interrupt_stops
    def serve(status: int) -> int:
        if status:
            return status
        raise KeyboardInterrupt

    assert (serve(0), serve(4)) == (0, 4)


@pytest.mark.parametrize(
    ("command", "arguments", "inside"),
    [
        ("ewe", ["--check-config"], "ewe.cli._check"),
        ("ewe-xswitch", ["status", "--listen", "unix:none"], "ewe.xswitch.commands.ask_status_page"),
        ("ewe-dbd", ["status", "--listen", "unix:none"], "ewe.database.cli.print_answer"),
    ],
)
def test_an_interrupt_of_a_command_that_is_no_server(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: list[str],
    inside: str,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inside, interrupt)
    assert COMMANDS[command](arguments) == INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["ewe-dbd", "ewe-xswitch"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--log", "none/x.log"], "cannot write none/x.log: No such file or directory (--log)"),
        (["--log", "syslog:none"], "--log syslog:none: expected syslog: or syslog:FACILITY"),
        (["--trace", "none/x.trace"], "cannot write 'none/x.trace': No such file or directory (trace)"),
    ],
)
def test_a_log_or_trace_that_cannot_be_opened_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "settings.toml"
    settings.write_text('[databases.demo]\nsource = "demo.db"\n' if command == "ewe-dbd" else "")
    assert COMMANDS[command](["--listen", "unix:x.sock", "--config", str(settings), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith(f"{command}: ") and words in line


def test_no_command_has_another_parser() -> None:
    texts = {module: path.read_text(encoding="utf-8") for module, path in SOURCES.items()}
    others = [
        f"{module}:{node.lineno}"
        for module, text in texts.items()
        if module != CommandParser.__module__ and not module.startswith("ewe_explore.samples")
        if "argparse" in text  # few, and to parse all files takes seconds
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Call) and names_argparse(node.func))
        or (isinstance(node, ast.ClassDef) and any(names_argparse(base) for base in node.bases))
    ]
    assert others == []


def names_argparse(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "argparse":
        return node.attr == argparse.ArgumentParser.__name__
    return isinstance(node, ast.Name) and node.id == argparse.ArgumentParser.__name__
