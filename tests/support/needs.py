"""Skip tests whose resources are missing, count them by the missing resource, and let no other test be skipped.

A test names what it needs: `@pytest.mark.needs("gcc", "root")`, on a function, a class, a `pytest.param` or, as
`pytestmark`, a file. A fixture that needs something asks for it, `require("gcc")`: each test that uses the fixture
is counted. The names are those of `support.resources.RESOURCES`.

This file is a plugin of pytest, which conftest.py registers.
"""

from __future__ import annotations

import importlib
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NoReturn

import pytest

from support.resources import PATH, RESOURCES, lacking

COMPLETE = bool(os.environ.get("EWE_TEST_COMPLETE"))  # every resource is here: a skip is a failure
SKIPPED = "The test was skipped, and EWE_TEST_COMPLETE is set."
UNCOUNTED = 'A test is skipped by needs("...") or require("...") alone: see tests/README.md.'
PROPERTY = "lacks"
WIDTH = 110


class Lacking(pytest.skip.Exception):
    """A test is skipped for want of these resources."""

    def __init__(self, names: Iterable[str], why: str = "") -> None:
        self.names = list(names)
        super().__init__(f"needs {', '.join(self.names)}" + (f": {why}" if why else ""))


def require(*names: str) -> None:
    """Skip the test that asks if one of these resources is not here."""
    if missing := lacking(names):
        raise Lacking(missing)


def lacks(name: str, why: str) -> NoReturn:
    """Skip the test that asks: only by using it has the test found out that a resource is not here."""
    raise Lacking([name], why)


def left_out(why: str) -> NoReturn:
    """Skip a test of what the lab leaves out; its words name the packages: "... is left out: apt install nginx"."""
    names = [name for name, each in RESOURCES.items() if set(each.packages.split()) & set(why.split())]
    assert names, why
    raise Lacking(names, why)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(*names): the test is skipped where a resource of support/resources.py is not here",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A name that the table does not have is a mistake, also where the test would be skipped."""
    for item in items:
        for name in needs_of(item):
            if name not in RESOURCES:
                raise pytest.UsageError(f"{item.nodeid} needs {name!r}: tests/support/resources.py lacks it")


def needs_of(item: pytest.Item) -> Iterator[str]:
    """Return the names of what a test is marked to need."""
    for mark in item.iter_markers("needs"):
        yield from mark.args


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    require(*needs_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report what a skipped test lacks; a skip for any other reason is a failure."""
    report = yield
    if not report.skipped or hasattr(report, "wasxfail") or call.excinfo is None:
        return report
    error = call.excinfo.value
    if isinstance(error, Lacking) and not COMPLETE:
        report.user_properties.append((PROPERTY, ",".join(error.names)))
    else:
        report.outcome = "failed"
        report.longrepr = f"{error}\n{SKIPPED if COMPLETE else UNCOUNTED}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by the missing resource, and name the remedy."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        for key, names in report.user_properties:
            counts.update(names.split(",") if key == PROPERTY else ())
    for line in summary(counts):
        terminalreporter.write_line(line)


def summary(counts: Counter[str]) -> list[str]:
    """Return the lines that end a run; a test that lacks two things is counted under both."""
    remedies: dict[str, list[str]] = {}
    for name, count in counts.most_common():
        resource = RESOURCES[name]
        remedies.setdefault("" if resource.packages else resource.instead, []).append(f"{count} {name}")
    lines = []
    for remedy, named in remedies.items():
        first, *others = named
        count, _, name = first.partition(" ")
        text = ", ".join([f"{count} tests need {name}" if count != "1" else f"1 test needs {name}", *others])
        lines += textwrap.wrap(f"{text}: {remedy or how_to_install()}", WIDTH, subsequent_indent="  ")
    return lines


def how_to_install() -> str:
    """Say how the packages come to this system."""
    if shutil.which("apt-get", path=PATH):
        return "`sudo make packages` installs them"
    return "they are not installed (`make packages` lists them)"


def module(name: str, package: str = "") -> Any:
    """Import a module for a file of tests. Where `package` is not here, a test that uses the module is skipped."""
    package = package or name
    return Absent(package) if lacking([package]) else importlib.import_module(name)


class Absent:
    """Stands for a module that is not here: skips the test that asks it for anything."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):  # pytest looks for marks of its own
            raise AttributeError(attribute)
        raise Lacking([self._name])
