"""The commands and settings that the documents show are accepted: by the parsers and readers that a user meets.

No command runs. A command's parser reads the words that a page shows, and the words that name an experiment, a
lab, a check, a sample, a file or a target of make are looked up. In `inline code` a command may end early, as in
"`ewe-course pack` writes them"; a block shows whole commands.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import re
import shlex
import sqlite3
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest
from support.documents import (
    BLOCK,
    PAGES,
    ROOT,
    SOURCES,
    CodeBlock,
    ShownCommand,
    blocks,
    commands_in_blocks,
    commands_in_lines,
    split,
)
from support.exercises import of_the_docs

import ewe.cli
import ewe.database.cli
import ewe.xswitch.check
import ewe.xswitch.cli
import ewe_classroom.course.cli
import ewe_classroom.grader.cli
import ewe_explore.cli
import ewe_lab.cli
import ewe_watch.cli
from ewe.config.feature_table import STEPS, feature
from ewe.config.messages import ConfigError, Failure
from ewe.config.setting_types import BOOL
from ewe.config.settings import KEYS, OWN_SETTINGS, Config, know_settings
from ewe.database import access_log
from ewe.database import settings as database_settings
from ewe.processors import base
from ewe.registry import look_here
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.xswitch import settings as xswitch_settings
from ewe.xswitch.packages import parse_settings
from ewe_classroom import pytest_plugin
from ewe_classroom.course import labs, marks
from ewe_classroom.grader import scheme
from ewe_classroom.grader.check import all_checks
from ewe_classroom.grader.speed import SPEED
from ewe_lab.experiments.catalog import CATALOG

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
PARTS = set(re.findall(r"^TESTS_([a-z]+) =", MAKEFILE, re.MULTILINE))
# The command whose words ARGS holds, for the targets that run one
ARGS_OF = {
    "serve": ["ewe"],
    "lab": ["ewe-lab"],
    "bench": ["ewe-lab", "speed"],
    "claims": ["ewe-lab", "renew", "--page", "claims.md"],
    "where-tested": ["python", "tests/support/where_tested.py"],
    **{target: ["pytest"] for target in ("quick", "gigabyte", "applications", "zoo")},
}
# Options of pytest and of xdist, with the number of their values
PYTEST_OPTIONS = {"-x": 0, "-k": 1, "-m": 1, "-n": 1, "--dist": 1}
# Options of curl, with the number of their values
CURL_OPTIONS = {
    **dict.fromkeys(("-s", "-i", "-I", "-v", "--raw"), 0),
    **dict.fromkeys(("-o", "-D", "-H", "-T", "-X", "-m", "-u", "--data-binary"), 1),
}
# Commands of others, whose words are not read
OF_OTHERS = {
    *("cat", "echo", "grep", "mkdir", "printf", "sleep", "export", "head"),
    *("docker", "htpasswd", "locust", "openssl", "scp", "sqlite3", "sudo", "uwsgi"),
}
# Files and models that the readers of a page write themselves
OF_READERS = {
    "mine",
    "mine.py",
    "pool.py",
    "model.py",
    "test_bank.py",
    "test_queue.py",
    "my/grading.toml",
    "lock",
}
FEATURES_OF_READERS = ("Hello", "Words", "Countdown", "Door", "Stopwatch")  # classes of write-a-feature.md
# URLs of the sample site that lead to files which the readers of a page write themselves
URLS_OF_READERS = {"/cgi-bin/now", "/page.html"}
PLACEHOLDER = re.compile(r"[A-Z]{2,}(:[A-Z]+)?")


class WrongCommand(Exception):
    """A shown command would not work. The text says why."""


class Parsed(Exception):
    """A parser has accepted the words of a command."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options


@pytest.fixture(autouse=True)
def an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the readers of settings in a directory without settings, and end each command after its parser."""
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    for key in KEYS:
        monkeypatch.delenv(f"EWE_{key.upper().replace('-', '_')}", raising=False)
    real = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, args: list[str]) -> NoReturn:
        raise Parsed(real(self, args))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)


# The checkers of commands


def is_placeholder(word: object) -> bool:
    """Return whether a word stands for another one, as FILE does."""
    return isinstance(word, str) and PLACEHOLDER.fullmatch(word) is not None


def parsed(main: Callable[..., int], words: list[str]) -> argparse.Namespace:
    """Return the options that a command's parser reads from its words. Raises ConfigError."""
    try:
        inspect.unwrap(main)(words)
    except Parsed as found:
        return found.options
    raise WrongCommand("its main() has called no parser")


def look_up(kind: str, names: list[str], known: object) -> None:
    """Raise WrongCommand for a name that is not known."""
    for name in names:
        if name not in known and not is_placeholder(name):  # type: ignore[operator]
            raise WrongCommand(f"there is no {kind} {name}")


def write_features_of_readers() -> None:
    """Write the features of docs/write-a-feature.md into the current directory, and register `hello`."""
    for name in FEATURES_OF_READERS:
        Path(f"{name.lower()}.py").write_text(of_the_docs("write-a-feature.md", name))
    with Path("hello.py").open("a") as module:
        module.write(of_the_docs("write-a-feature.md", "FEATURE", 'Feature("hello"'))
    about = Path("hello-1.0.dist-info")
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Name: hello\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ewe.features]\nhello = hello:Hello\n")
    look_here()


def check_ewe(words: list[str], directory: Path) -> None:
    if "--mount" in words:
        write_features_of_readers()
    try:
        check_options_of_ewe(ewe.cli._parse(words), directory)
    finally:
        know_settings(OWN_SETTINGS)
        for name in FEATURES_OF_READERS:
            sys.modules.pop(name.lower(), None)


def check_options_of_ewe(options: argparse.Namespace, directory: Path) -> None:
    options.words = ["." if "/" in word or is_placeholder(word) else word for word in options.words]
    if options.config and not (directory / options.config).exists():
        options.config = None
    for key, values in list(options.given.items()):
        own_model = key == "concurrency" and (":" in str(values[-1][1]) or values[-1][1] in OF_READERS)
        if own_model or is_placeholder(values[-1][1]):
            del options.given[key]
    ewe.cli._configure(options)


def check_xswitch(words: list[str], directory: Path) -> None:
    if words and is_placeholder(words[0]):  # the name of a subcommand
        return
    options = parsed(ewe.xswitch.cli.main, words)
    if "root" in options:
        options.config = options.config if (directory / str(options.config)).exists() else None
        ewe.xswitch.cli.CommandLine(options)


def check_dbd(words: list[str], directory: Path) -> None:
    options = parsed(ewe.database.cli.main, words)
    file = directory / str(getattr(options, "config", None))
    if file.exists():
        database_settings.load(str(file))


def check_lab(words: list[str], directory: Path) -> None:
    options = parsed(ewe_lab.cli.main, words)
    ids = [name for name in getattr(options, "ids", ()) if not is_placeholder(name)]
    ewe_lab.cli.checked_ids(ewe_lab.cli.expand_documents(ids, CATALOG), list(CATALOG))
    for name in getattr(options, "models", None) or ():
        if ":" not in name:
            base.model_named(name)


def check_grade(words: list[str], directory: Path) -> None:
    options = parsed(ewe_classroom.grader.cli.main, words)
    if options.lab not in OF_READERS:
        scheme.load(options.lab)
    explained = [options.explain] if options.explain else []
    look_up("check", [*(options.only or ()), *explained], {*all_checks(), SPEED.name})


def check_course(words: list[str], directory: Path) -> None:
    options = parsed(ewe_classroom.course.cli.main, words)
    if getattr(options, "lab", None):
        look_up("lab", [options.lab], {*OF_READERS, *(each.name for each in labs.labs())})


def check_explore(words: list[str], directory: Path) -> None:
    options = parsed(ewe_explore.cli.main, words)
    if options.file and options.file not in OF_READERS and not is_placeholder(options.file):
        found = ROOT / options.file
        ewe_explore.cli.find_file(str(found) if found.exists() else options.file)


def check_watch(words: list[str], directory: Path) -> None:
    parsed(ewe_watch.cli.main, words)


def check_make(words: list[str], directory: Path) -> None:
    targets = [word for word in words if "=" not in word]
    look_up("target of make", targets, TARGETS)
    for name, value in (word.split("=", 1) for word in words if "=" in word):
        if name not in VARIABLES:
            raise WrongCommand(f"there is no variable of make: {name}")
        if name == "PART":
            look_up("part", [value], PARTS)
        elif name in ("ARGS", "PYTEST_ARGS"):
            command = ["pytest"] if name == "PYTEST_ARGS" else ARGS_OF[targets[0]]
            [inner] = split(" ".join((*command, value)))
            check_words(list(inner), directory)


def without_options(words: list[str], known: dict[str, int]) -> list[str]:
    """Return the words that are no option and no option's value. Raises WrongCommand for an unknown option."""
    rest = []
    left = iter(words)
    for word in left:
        cluster = [f"-{letter}" for letter in word[1:]] if re.match(r"-[a-zA-Z]", word) else [word]
        if not word.startswith("-"):
            rest.append(word)
            continue
        for option in cluster:
            if option not in known:
                raise WrongCommand(f"no known option {option}")
        for _ in range(known[cluster[-1]]):
            next(left, None)
    return rest


class OptionNames(dict[str, int]):
    """Collects the options that a plugin adds to pytest, with the number of their values."""

    def getgroup(self, *_: object) -> OptionNames:
        return self

    def addoption(self, *names: str, action: str = "", **_: object) -> None:
        self.update(dict.fromkeys(names, 0 if action.startswith("store_") else 1))


def check_pytest(words: list[str], directory: Path) -> None:
    known = OptionNames(PYTEST_OPTIONS)
    pytest_plugin.pytest_addoption(known)  # type: ignore[arg-type]
    text = ""
    for name in without_options(words, known):
        path = ROOT / name.partition("::")[0]
        if not path.exists():
            raise WrongCommand(f"there is no {name}")
        text += "".join(each.read_text() for each in (path.rglob("*.py") if path.is_dir() else [path]))
    if text and "-k" in words:
        look_up("test", re.findall(r"\b(?!(?:and|or|not)\b)\w+", words[words.index("-k") + 1]), text)


def named(name: str) -> list[Path]:
    """Return the sources whose path ends with a name."""
    return [ROOT / source for source in SOURCES if f"/{source}".endswith(f"/{name}")]


def check_python(words: list[str], directory: Path) -> None:
    if len(words) < 1 + (words[:1] == ["-m"]):
        raise WrongCommand("the following arguments are required: a file or a module")
    if words[0] == "-m":
        if find_spec(words[1]) is None:
            raise WrongCommand(f"there is no module {words[1]}")
        if words[1] in ("ewe", "pytest"):
            check_words(words[1:], directory)
        return
    if words[0] == "script":
        return
    found = [path for path in (directory / words[0], *named(words[0])) if path.exists()]
    if not found:
        raise WrongCommand(f"there is no file {words[0]}")
    text = found[0].read_text()
    look_up("option", [f'"{word}"' for word in words if word.startswith("--")], text)


def check_pip(words: list[str], directory: Path) -> None:
    projects = {tomllib.loads(path.read_text())["project"]["name"]: path for path in
        (ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml"))}  # fmt: skip
    look_up("command of pip", words[:1], ["install"])
    for word in words[1:]:
        name, _, extras = word.rstrip("]").partition("[")
        path = ROOT / name / "pyproject.toml" if name.startswith(".") else projects.get(name)
        if path is None:
            continue
        if not path.exists():
            raise WrongCommand(f"there is no project {name}")
        known = tomllib.loads(path.read_text())["project"].get("optional-dependencies", {})
        look_up(f"extra of {name}:", [each for each in extras.split(",") if each], known)


def check_curl(words: list[str], directory: Path) -> None:
    for url in without_options(words, CURL_OPTIONS):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "telnet") or not parts.hostname:
            raise WrongCommand(f"{url} is no URL")
        if parts.port == 4000 and parts.path not in URLS_OF_READERS:
            check_url_of_sample(parts.path)


def check_url_of_sample(path: str) -> None:
    """Raise WrongCommand if the sample site has no answer to a URL's path."""
    config = Config.load(
        (("documentroot", str(ROOT / "htdocs")), ("cgi-path", str(ROOT / "cgi-bin"))), environ={}
    )
    lines = list(explain(make_site(config, imports=False), path, ("127.0.0.1", 4000)))
    if "404" in lines[-1]:
        raise WrongCommand(f"the sample site has no {path}")


CHECKERS: dict[str, Callable[[list[str], Path], None]] = {
    "ewe": check_ewe,
    "ewe-xswitch": check_xswitch,
    "ewe-dbd": check_dbd,
    "ewe-lab": check_lab,
    "ewe-grade": check_grade,
    "ewe-course": check_course,
    "ewe-explore": check_explore,
    "ewe-watch": check_watch,
    "make": check_make,
    "pytest": check_pytest,
    "python": check_python,
    "python3": check_python,
    "pip": check_pip,
    "curl": check_curl,
}


def check_words(words: list[str], directory: Path) -> None:
    """Check a command. Raises WrongCommand, ConfigError."""
    name = words[0].rpartition("/")[2]
    if words[:2] == ["docker", "run"] and "ewe" in words[2:-1]:  # the name of the image, then a command
        check_words(words[words.index("ewe") + 1 :], directory)
    elif name in CHECKERS:
        with contextlib.suppress(SystemExit):  # --help and --version, which parsers print
            CHECKERS[name](words[1:], directory)
    elif name not in (*OF_OTHERS, "cd"):
        raise WrongCommand("no known command")


def commands_in_share() -> list[tuple[Path, str]]:
    """Return the commands in the units of systemd and in the compose files, each with its file."""
    files = [*(ROOT / "share/systemd").glob("*.service"), *(ROOT / "share/compose").glob("*.yml")]
    line = re.compile(r"^(?:ExecStart=| *command: )(.+)", re.MULTILINE)
    return [(file, command) for file in sorted(files) for command in line.findall(file.read_text())]


@pytest.mark.parametrize(("file", "command"), commands_in_share())
def test_units_and_compose_files_have_commands_that_work(file: Path, command: str) -> None:
    assert re.match(r"(/opt/ewe/bin/)?ewe", command), file
    check_words(shlex.split(command), file.parent)


@pytest.mark.parametrize("file", sorted((ROOT / "share/compose").glob("*.yml")), ids=lambda file: file.name)
def test_compose_files_name_files_that_are_there(file: Path) -> None:
    """Files that are mounted into a container; Docker would make a directory in place of one that is not there."""
    mounted = re.findall(r"^ *- (\.[^:]*):/", file.read_text(), re.MULTILINE)
    assert mounted
    assert all((file.parent / name).exists() for name in mounted), mounted


# How argparse begins its message about a command that ends early
ENDS_EARLY = re.compile(r"the following arguments are required|expected one argument|expected at least one")


def faults(shown: Iterable[ShownCommand], *, whole: bool) -> list[str]:
    """Return a line for each command that would not work. whole: no command may end early."""
    found = []
    for command in shown:
        words = [word for word in command.words if word != "..."]
        try:
            check_words(words, command.directory)
        except (WrongCommand, Failure) as reason:
            if whole or not ENDS_EARLY.search(str(reason)):
                found.append(f"{command}\n    {reason}")
    return found


def test_blocks_show_commands_that_work() -> None:
    shown = [command for page in PAGES for command in commands_in_blocks(page)]
    assert len(shown) > 150
    found = faults(shown, whole=True)
    assert not found, "\n".join(found)


def test_lines_name_commands_that_work() -> None:
    shown = [command for name in (*PAGES, *SOURCES) for command in commands_in_lines(name)]
    assert len(shown) > 400
    found = faults(shown, whole=False)
    assert not found, "\n".join(found)


# Single options, as in `--parking never`

SUBCOMMANDS: list[tuple[Callable[..., int], tuple[str, ...]]] = [
    (ewe.xswitch.cli.main, ("", "status", "drain", "java", "libcgi")),
    (ewe.xswitch.check.main, ("",)),
    (ewe.database.cli.main, ("", "status", "ask", "time", "sample", "load")),
    (ewe_explore.cli.command, ("",)),
    (ewe_watch.cli.main, ("",)),
    (ewe_classroom.grader.cli.main, ("",)),
    (
        ewe_classroom.course.cli.main,
        ("", "new", "show", "pack", "grade", "measure", "questions", "leaderboard"),
    ),
    (ewe_lab.cli.main, ("", "compare", "run", "report", "speed")),
]
# The options of commands of others that pages name
OPTIONS_OF_OTHERS = {
    "--buffer-size": "uWSGI",
    "--crossdb": "Datasette",
    "--durations": "pytest",
    "--host": "locust, Hypercorn",
    "--master-host": "locust",
    "--root-path": "Uvicorn",
    "--webroot": "Certbot",
}


def options_known() -> set[str]:
    """Return the options of every command."""
    known = OptionNames(OPTIONS_OF_OTHERS)  # type: ignore[arg-type]
    pytest_plugin.pytest_addoption(known)  # type: ignore[arg-type]
    with contextlib.redirect_stdout(io.StringIO()) as helps:
        for main, names in [(ewe.cli.main, ("all",)), *SUBCOMMANDS]:
            for name in names:
                words = ["--help", name] if name == "all" else [*name.split(), "--help"]
                with contextlib.suppress(SystemExit):
                    inspect.unwrap(main)(words)
    return {*known, *re.findall(r"--[a-z][a-z0-9-]*", helps.getvalue())}


def test_lines_name_options_that_exist() -> None:
    known = options_known()
    wrong = [
        f"{page}: {option}"
        for page in PAGES
        for option in re.findall(r"`(--[a-z][a-z0-9-]*)", BLOCK.sub("", (ROOT / page).read_text()))
        if option not in known
    ]
    assert not wrong


def test_lines_give_no_value_to_a_flag() -> None:
    """A setting that is true or false has two flags, as `--proxy-keep` and `--no-proxy-keep`."""
    flags = "|".join(key for key, setting in KEYS.items() if setting.kind is BOOL)
    assert "proxy-keep" in flags
    wrong = [
        f"{page}: {shown}"
        for page in PAGES
        for shown in re.findall(
            rf"--(?:no-)?(?:{flags}) (?:yes|no|true|false|on|off)\b", (ROOT / page).read_text()
        )
    ]
    assert not wrong


# Settings


def reader_of(block: CodeBlock) -> Callable[[str], object] | None:
    """Return the reader of a block of settings; None if another test reads it."""
    keys = tomllib.loads(block.text).keys()
    if block.page.endswith("papers.md") or "project" in keys:  # test_papers.py, packages' entry points
        return None
    if keys & database_settings.FILE_TABLE.keys.keys() - KEYS - xswitch_settings.FILE_TABLE.keys.keys():
        return database_settings.load
    if "check" in keys:
        return scheme.load
    if {"version", "entry"} <= keys:
        return lambda file: parse_settings(Path(file).read_bytes())
    if {"late", "manual"} <= keys:
        return lambda file: marks.read_rules(Path(file))
    if keys & xswitch_settings.FILE_TABLE.keys.keys() - KEYS - {"listen"}:
        return xswitch_settings.load
    return read_settings


def read_settings(file: str) -> None:
    """Read a file of ewe's settings, with the keys that ewe reads when it builds a site. Raises ConfigError."""
    for site in Config.load(environ={}, file=file).sites:
        for table in (site, *site.locations):
            for key, raw in table.steps.items():
                feature(STEPS[key].module).keys[key].kind.read_at(f"{table.origin}: {key} =", raw)


def in_context(block: CodeBlock) -> str:
    """Return a block of ewe's settings with the tables that stand around a fragment of them."""
    table = tomllib.loads(block.text)
    if isinstance(table.get("site"), dict):  # [[site.location]] without a [[site]]
        before = block.text.partition("[[site.location]]")[0]
        return block.text.replace(before, before + "[[site]]\n", 1)
    if table.keys() - KEYS - {"site"}:  # keys of a location
        return f'[[site]]\n[[site.location]]\nprefix = "/"\n{block.text}'
    return block.text


SETTINGS_SHOWN = [block for page in PAGES for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize(
    "block", SETTINGS_SHOWN, ids=[f"{block.page}:{block.line}" for block in SETTINGS_SHOWN]
)
def test_settings_are_read(block: CodeBlock, tmp_path: Path) -> None:
    reader = reader_of(block)
    if reader is None:
        return
    file = tmp_path / "shown.toml"
    file.write_text(in_context(block) if reader is read_settings else block.text)
    reader(str(file))


# Transcripts: the output that a page shows


def block_after(page: str, command: str) -> str:
    """Return the block of a page that begins with this command, without the command's line."""
    [text] = [each.text for each in blocks(page) if each.text.startswith(f"$ {command}")]
    return text.partition("\n")[2]


def test_the_site_of_the_docs_is_explained_as_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [site, *_] = [block for block in SETTINGS_SHOWN if block.page == "docs/sites.md"]
    for name in ("example", "term2"):
        (tmp_path / name).mkdir()
    Path("ewe.toml").write_text(site.text)
    assert ewe.cli.main(["--explain", "http://example.org/old/week1.txt"]) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "/srv/course")
    assert printed == block_after("docs/sites.md", "ewe --explain http")
    Path("ewe.toml").write_text(site.text.replace("indexes = false", "indxes = false"))
    assert ewe.cli.main(["--check-config"]) == 2
    assert capsys.readouterr().err == block_after("docs/sites.md", "ewe --check-config")


def test_the_sample_database_has_the_rows_of_the_docs() -> None:
    shown = block_after("docs/database.md", "ewe-dbd sample")
    assert access_log.write_rows("access.db", access_log.sample(), new=True) == (50_000, 0)
    [ask] = [each for each in commands_in_blocks("docs/database.md") if each.words[:2] == ("ewe-dbd", "ask")]
    with contextlib.closing(sqlite3.connect("access.db")) as database:
        rows = database.execute(ask.words[-2], (int(ask.words[-1]),)).fetchall()
    assert "".join(f"{address},{total}\n" for address, total in rows) in shown
    assert shown.startswith("access.db: 50000 rows in the table log\n")


# Each check fails if its subject is wrong


@pytest.mark.parametrize(
    "line, fault",
    [
        ("ewe --no-such-option", "unknown option --no-such-option"),
        ("ewe --threads many", "--threads"),
        ("ewe --wsgi shop", "--wsgi"),
        ("ewe-xswitch --time-limit soon", "time-limit"),
        ("ewe-xswitch java --fast", "unrecognized arguments: --fast"),
        ("ewe-dbd ask --layout yaml log statement", "yaml"),
        ("ewe-lab run E-T99", "there is no experiment 'E-T99'"),
        ("ewe-lab compare --rate none", "--rate"),
        ("ewe-grade --lab ponds server.py", "there is no lab ponds"),
        ("ewe-grade --only progres server.py", "there is no check progres"),
        ("ewe-course new ponds DIR", "there is no lab ponds"),
        ("ewe-course pack pool DIR", "the following arguments are required"),
        ("ewe-explore lost_wake", "there is no file"),
        ("ewe-watch pool.trace --html", "unrecognized arguments: --html"),
        ("make tests", "there is no target of make tests"),
        ("make quick ARG=-x", "there is no variable of make: ARG"),
        ("make test PART=labs", "there is no part labs"),
        ('make lab ARGS="compare --again"', "unrecognized arguments: --again"),
        ("pytest tests/https", "there is no tests/https"),
        ("pytest tests/house -k no_test_of_this_kind" + "_at_all", "there is no test no_test"),
        ("python -m ewe.none", "there is no module ewe.none"),
        ("python tests/support/soaks.py", "there is no file"),
        ("python tests/support/soak.py --minutes 3", "there is no option"),
        ("pip install ./packages/ewe-labs", "there is no project"),
        ("pip install 'ewe-server[page]'", "there is no extra of ewe-server: page"),
        ("curl --silently http://127.0.0.1/", "no known option"),
        ("curl http://127.0.0.1:4000/no-such-page", "the sample site has no /no-such-page"),
        ("docker run -it ewe ewe-lab runs", "there is no 'runs'"),
        ("ewe-db status", "no known command"),
    ],
)
def test_a_wrong_command_is_found(line: str, fault: str) -> None:
    [found] = faults(iter(ShownCommand("page:1", words) for words in split(line)), whole=True)
    assert fault in found


@pytest.mark.parametrize(
    "page, text",
    [
        ("docs/sites.md", 'port = 8080\nindex = "a"\ndocument-root = "/srv"'),
        ("docs/sites.md", '[[site.location]]\nprefix = "/a"\nexpires = "soon"'),
        ("docs/xswitch.md", "[limits]\nmemories = 1"),
        ("docs/database.md", '[databases.shop]\ndriver = "oracle"\nplace = "x"'),
        ("packages/ewe-classroom/docs/grading.md", '[[check]]\nname = "progres"'),
    ],
)
def test_wrong_settings_are_found(page: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        test_settings_are_read(CodeBlock(page, 1, "toml", text), tmp_path)
