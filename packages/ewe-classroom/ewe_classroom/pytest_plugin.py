"""A pytest plugin: `pytest --ewe server.py --ewe-lab pool` grades a server, with one test for each check.

    server.py::progress PASSED
    server.py::fifo FAILED        the text of the failure is the explanation of ewe-grade

pytest's options work as usual: -k, -x, --lf, -n, --junit-xml. Without --ewe the plugin only registers its options.
Every run of pytest in the environment imports this file. The file therefore imports other parts of ewe only if the
command line names a server.

Read next: grader/apart.py, which runs the grader.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ewe_classroom.grader.apart import Grader
    from ewe_classroom.grader.verdicts import Verdict

OPTIONS = (
    (
        "--ewe",
        "ewe_path",
        "PATH",
        "grade a server: a model of ewe, or a program (`ewe-grade --help` names the page about both)",
    ),
    (
        "--ewe-command",
        "ewe_command",
        "TEXT",
        "grade the server of this command: './server {port} {root} {workers}'",
    ),
    ("--ewe-lab", "ewe_lab", "NAME", "the lab, or a grading.toml [thread]"),
    ("--ewe-seed", "ewe_seed", "NAME", "use the numbers of this student"),
    ("--ewe-user", "ewe_user", "NAME", "the server's account, if pytest runs as root [a separate one]"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ewe", "grading web servers with ewe")
    for flag, name, metavar, text in OPTIONS:
        group.addoption(flag, dest=name, metavar=metavar, default=None, help=text)
    group.addoption(
        "--ewe-speed", action="store_true", help="also measure the speed, as a ratio to a reference server"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the grading if the command line names a server. Other tests then run only if it names them, too."""
    if config.option.ewe_path is None and config.option.ewe_command is None:
        return
    if config.option.ewe_path is not None and config.option.ewe_command is not None:
        raise pytest.UsageError("name one server: --ewe PATH, or --ewe-command TEXT")
    # Without paths on the command line, pytest would collect `testpaths`, or all tests below the directory.
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    config.pluginmanager.register(Checks(config), "ewe-checks")


class Checks:
    """Makes a test for each check, and runs the grader for the selected tests.

    grader: the one of all selected tests; None before the first test, and always in a process of pytest-xdist.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.grader: Grader | None = None

    def arguments(self) -> list[str]:
        """Return the arguments of ewe-grade, without the names of checks."""
        option = self.config.option
        made = [] if option.ewe_lab is None else ["--lab", option.ewe_lab]
        made += [] if option.ewe_seed is None else ["--seed", option.ewe_seed]
        made += [] if option.ewe_user is None else ["--user", option.ewe_user]
        return made + (
            [option.ewe_path] if option.ewe_path is not None else ["--command", option.ewe_command]
        )

    def language(self, kind_name: str) -> str:
        """Return the language of the submission; "" if it cannot be run. Some checks are for some languages only.

        kind_name: "server", "engine" or "data" (kinds.py), as the lab says. --ewe may name a directory, too.
        """
        from ewe_classroom.grader.kinds import kind
        from ewe_classroom.grader.located import locate_submission
        from ewe_classroom.grader.subject import BadSubject

        option, subject_kind = self.config.option, kind(kind_name)
        try:
            if option.ewe_path is not None:
                return subject_kind.from_path(locate_submission(option.ewe_path, kind_name)).language
            return subject_kind.from_command(option.ewe_command).language
        except BadSubject:
            return ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Insert a test for each check before the other tests. pytest then applies -k and -m to them, too."""
        from ewe.config.messages import ConfigError
        from ewe_classroom.grader import scheme

        try:
            lab = scheme.load(self.config.option.ewe_lab or "thread")
            lab = lab.checks_for_language(self.language(lab.kind))
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from None
        name = Path(self.config.option.ewe_path or "server").name
        parent = Server.from_parent(session, name=name, nodeid=name, checks=self)
        found: list[pytest.Item | pytest.Collector] = [
            CheckItem.from_parent(parent, name=item.check.name, points=item.points) for item in lab.items
        ]
        if self.config.option.ewe_speed or lab.speed.marks:
            found.append(CheckItem.from_parent(parent, name="speed", points=lab.speed.points))
        items[:0] = [each for each in found if isinstance(each, pytest.Item)]
        # pytest's terminal output counts collected tests by these reports.
        self.config.hook.pytest_collectreport(report=pytest.CollectReport(name, "passed", None, found))

    def verdict(self, item: CheckItem) -> Verdict:
        """Return the verdict of a check. The first call starts one grader for all selected checks.

        Raises GradingFailed.
        """
        from ewe_classroom.grader.apart import Grader

        directory = str(self.config.invocation_params.dir)
        # A process of pytest-xdist gets its tests one after the other: it does not know them beforehand.
        if hasattr(self.config, "workerinput"):
            with Grader([*self.arguments(), "--only", item.name], directory) as one:
                return one.verdict(item.name)
        if self.grader is None:
            chosen = [each.name for each in item.session.items if isinstance(each, CheckItem)]
            only = [word for name in chosen for word in ("--only", name)]
            self.grader = Grader([*self.arguments(), *only], directory)
        return self.grader.verdict(item.name)

    def pytest_unconfigure(self) -> None:
        if self.grader is not None:
            self.grader.close()


class Server(pytest.Collector):
    """The server under test: the parent of its checks in pytest's tree."""

    def __init__(self, *, checks: Checks, **more: Any) -> None:
        super().__init__(**more)
        self.checks = checks

    def collect(self) -> Iterator[pytest.Item]:
        # Checks.pytest_collection_modifyitems() makes the tests, which needs the finished collection.
        return iter(())


class CheckItem(pytest.Item):
    """One check."""

    parent: Server

    def __init__(self, *, points: int, **more: Any) -> None:
        super().__init__(**more)
        self.points = points

    def runtest(self) -> None:
        """Grade one check. Raises CheckFailed; ends pytest if the grader itself has failed."""
        from ewe_classroom.grader.apart import GradingFailed
        from ewe_classroom.grader.verdicts import PASSED

        try:
            verdict = self.parent.checks.verdict(self)
        except GradingFailed as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        self.user_properties += [("points", verdict.score), ("max_points", verdict.points)]
        if verdict.status != PASSED:
            raise CheckFailed(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | Any:
        """Return the text that pytest shows for a failure: the verdict, not a traceback through the grader."""
        if isinstance(excinfo.value, CheckFailed):
            verdict = excinfo.value.verdict
            points = f"{verdict.score} of {verdict.points} points"
            return f"{verdict.name} ({points}): {verdict.proves}\n\n{verdict.text()}"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[str, None, str]:
        return self.parent.name, None, self.name


class CheckFailed(Exception):
    """A check has failed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.did or verdict.status)
        self.verdict = verdict
