"""What the parsers of all commands share: one look and one wording, whatever version of Python runs them."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence

import pytest
from support.rooms import SOURCES

from ewe import cli
from ewe.config.command_parser import CommandParser
from ewe.database import cli as database
from ewe.xswitch import check
from ewe.xswitch import cli as xswitch
from ewe_classroom.course import cli as course
from ewe_classroom.grader import cli as grader
from ewe_explore import cli as explorer
from ewe_lab import cli as lab

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "ewe": cli.main,
    "ewe-course": course.main,
    "ewe-dbd": database.main,
    "ewe-explore": explorer.main,
    "ewe-grade": grader.main,
    "ewe-lab": lab.main,
    "ewe-xswitch": xswitch.main,
    "ewe.xswitch.check": check.main,
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


def test_no_command_has_another_parser() -> None:
    others = [
        f"{module}:{node.lineno}"
        for module, path in SOURCES.items()
        if module != CommandParser.__module__ and not module.startswith("ewe_explore.samples")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Call) and names_argparse(node.func))
        or (isinstance(node, ast.ClassDef) and any(names_argparse(base) for base in node.bases))
    ]
    assert others == []


def names_argparse(node: ast.expr) -> bool:
    return ast.unparse(node) in (argparse.ArgumentParser.__name__, "argparse.ArgumentParser")
