"""`make quick` collects only quick tests: it makes no item for a test that says that it starts processes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
from support.documents import ROOT


@pytest.fixture
def conftest(pytestconfig: pytest.Config) -> ModuleType:
    """Return the conftest.py of the whole run."""
    found = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert isinstance(found, ModuleType)
    return found


def collector(expression: str) -> SimpleNamespace:
    """Return the part of a collector that the hook reads. expression: the value of pytest's option -m."""
    return SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(markexpr=expression)))


@pytest.mark.starts_processes
def marked() -> None: ...


@pytest.mark.timeout(9)
def takes_a_path(tmp_path: object) -> None:
    start = tmp_path  # a variable, and no fixture
    assert start


def takes_a_server(shared_server: object, rows: object) -> None: ...


def starts_servers(*, start: object) -> None: ...


def starts_shared_servers(tmp_path: object, start_shared: object) -> None: ...


@pytest.mark.parametrize(
    ("test", "left_out"),
    [(marked, True), (takes_a_server, True), (starts_servers, True), (starts_shared_servers, True),
     (takes_a_path, False)],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_test_that_starts_processes_has_no_items_in_a_quick_run(
    conftest: ModuleType, test: Callable[..., None], left_out: bool
) -> None:
    """Without an answer of this hook, pytest makes the items of the test."""
    made = conftest.pytest_pycollect_makeitem(collector(conftest.QUICK), "test_it", test)
    assert made == ([] if left_out else None)


@pytest.mark.parametrize("expression", ["", "starts_processes"])
def test_other_runs_collect_the_test(conftest: ModuleType, expression: str) -> None:
    assert conftest.pytest_pycollect_makeitem(collector(expression), "test_it", marked) is None


def test_a_helper_or_a_class_is_left_to_pytest(conftest: ModuleType) -> None:
    assert conftest.pytest_pycollect_makeitem(collector(conftest.QUICK), "marked", marked) is None
