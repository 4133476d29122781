"""The proof of the grader: each mutant is caught by the check meant for it, and no check fails on a correct server.

matrix.py grades every mutant by every check of its lab, and every correct server; its result is
docs/kill-matrix.md. Here each mutant meets its own check, and some correct servers meet quick checks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import pytest
from classroom_server import PYTHON, run_grader

HERE = Path(__file__).parent
ZOO = HERE / "zoo"
HOUSE = HERE.parent
ROOT = HOUSE.parents[1]
FILES = (
    "mutants",
    "caching_mutants",
    "engine_mutants",
    "data_mutants",
)  # test_lab_mutants.py grades all but the first
LABS = ("serial", "fork", "thread", "pool", "event")
SMALL = (*LABS, "cgi", "scheduling")
pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(300)]


def load(name: str) -> Any:
    """Return a module of the zoo."""
    sys.path.insert(0, str(ZOO))
    try:
        spec = importlib.util.spec_from_file_location(name, ZOO / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ZOO))


class MutantRow(NamedTuple):
    """A faulty server. check: must catch the fault in the lab, with a text that has one of `says` ("|" between)."""

    fault: str
    check: str
    lab: str
    says: str


def load_mutants(file: str) -> dict[str, MutantRow]:
    """Return the mutants of a file by their names."""
    return {name: MutantRow(kind.__doc__, *rest) for name, (kind, *rest) in load(file).ZOO.items()}


MUTANTS = load_mutants(FILES[0])
in_c = load("zoo_in_c")
IN_C = {name: MutantRow(*row) for name, row in in_c.IN_C.items()}
solution_faults = load("solution_faults")
FAULTS = {name: MutantRow(*each.row) for name, each in solution_faults.FAULTS.items()}


def grade(
    tmp_path: Path, *arguments: str, timeout_s: float = 280
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run ewe-grade; return its report as JSON, and what it printed."""
    report = tmp_path / "report.json"
    done = run_grader("--json", str(report), *arguments, timeout_s=timeout_s)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads(report.read_text()), done


def of_zoo(file: str, name: str) -> list[str]:
    """Return the arguments of ewe-grade for a class of a file of the zoo."""
    return [
        "--command",
        f"{PYTHON} -S {quote(str(ZOO / file))} {name} {{port}} {{root}} {{workers}}",
    ]


def failures(report: dict[str, Any]) -> str:
    return "\n\n".join(
        f"{verdict['name']}: {verdict['text']}"
        for verdict in report["verdicts"]
        if verdict["status"] != "passed"
    )


def documented(page: str, heading: str) -> list[str]:
    """Return the rows of a page's table of mutants: their first four columns."""
    text = (HOUSE / "docs" / page).read_text().partition(heading)[2]
    return ["|".join(line.split("|")[:5]) for line in text.splitlines() if line.startswith("| `")]


def rows(mutants: dict[str, MutantRow]) -> list[str]:
    """Return the first four columns of the rows that a page must have for these mutants."""
    return [f"| `{name}` | {each.fault} | {each.lab} | `{each.check}` " for name, each in mutants.items()]


def test_the_documented_zoo_is_the_one_that_is_tested() -> None:
    everything = [row for file in FILES for row in rows(load_mutants(file))]
    assert documented("grading.md", "## The zoo") == everything


def test_the_kill_matrix_has_every_mutant() -> None:
    mutants = MUTANTS | {f"{name}, in C": row for name, row in IN_C.items()}
    for file in FILES[1:]:
        mutants |= load_mutants(file)
    assert documented("kill-matrix.md", "## All rows") == rows(mutants | FAULTS)


def expect_caught(mutant: MutantRow, tmp_path: Path, *server: str) -> None:
    """Assert that the check of a mutant fails on it, and says why. server: arguments of ewe-grade."""
    report, done = grade(tmp_path, "--lab", mutant.lab, "--only", mutant.check, *server)
    (verdict,) = report["verdicts"]
    assert verdict["status"] == "failed", f"{mutant.check} did not catch it: {verdict['facts']}"
    assert any(part in verdict["text"] for part in mutant.says.split("|")), verdict["text"]
    assert verdict["score"] == 0 and done.returncode == 1
    assert f"--only {mutant.check}" in verdict["again"]


# These take seconds each, or differ little from their neighbours; matrix.py grades them all.
ONLY_IN_MATRIX = {
    "SharedEnvironment", "TellsPassword", "ForgetsStart", "StopsReading", "AlwaysFine", "OnlyCrLf", "TrustsOutput",
    "InputStaysOpen", "RunsAnything", "InheritsAll", "Endless", "Terminates", "WaitsForEver", "WrongStatus",
    "KeepsPipes",
    "TakesLast", "LastOfEqual", "IgnoresPolicy", "Starves", "Impatient", "CountsWorkers", "WaitsForRoom",
    "ClosesSilently", "DropsNewest", "DropsFirstOfEqual", "TellsEarly", "MixesWorkers", "SaysNothing",
}  # fmt: skip


def one_for_each_check() -> list[str]:
    """Return a mutant for each check; with EWE_TEST_ZOO (`make zoo`) all that this file grades."""
    tested = [name for name in MUTANTS if name not in ONLY_IN_MATRIX]
    if os.environ.get("EWE_TEST_ZOO"):
        return tested
    first = {(MUTANTS[name].check, MUTANTS[name].lab): name for name in reversed(tested)}
    return [name for name in tested if name in first.values()]


@pytest.mark.parametrize("name", one_for_each_check())
def test_the_check_meant_for_a_mutant_catches_it(name: str, tmp_path: Path) -> None:
    expect_caught(MUTANTS[name], tmp_path, *of_zoo("mutants.py", name))


@pytest.fixture(scope="session")
def program_in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = in_c.build(tmp_path_factory.mktemp("zoo"))
    return found


# A listening queue that is full and a loop that spins take some seconds to be proved; matrix.py grades these two.
@pytest.mark.parametrize("name", sorted(IN_C.keys() - {"BacklogZero", "SpinningAccept"}))
def test_the_check_meant_for_a_mutant_in_c_catches_it(name: str, tmp_path: Path, program_in_c: Path) -> None:
    expect_caught(IN_C[name], tmp_path, *in_c.command(program_in_c, name))


def of_ewe(lab: str) -> list[str]:
    model = {"event": "asyncio"}.get(lab, lab)
    command = f"{PYTHON} -m ewe --model {model} --parking never --threads {{workers}} --workers 1 "
    command += "--host 127.0.0.1 --port {port} --documentroot {root} --access-log off "
    # A schedule may stall a client for seconds; the check `silence` waits for 15 s.
    command += f"--head-timeout {'10s' if lab == 'event' else '60s'}"
    return ["--command", command]


def ewe_with_programs() -> list[str]:
    start = (
        f"EWE_PROGRAM_TIMEOUT=${{CGI_TIMEOUT:-30}}s exec {PYTHON} -m ewe --model thread --host 127.0.0.1 "
        "--port {port} --documentroot {root} --cgi-path {root}/cgi-bin --access-log off"
    )
    return ["--command", f"sh -c '{start}'"]


def ewe_scheduled() -> list[str]:
    """Return the pool with the policies that the lab's variables ask for. Where they ask for none, it has SFF."""
    drop = "case ${DROP:-newest} in newest) overload=refuse;; *) overload=drop-$DROP;; esac"
    start = (
        f"{drop}; exec {PYTHON} -m ewe -p --parking idle --schedule ${{POLICY:-sff}} --overload $overload "
        "--queue ${QUEUE:-16} --schedule-ageing ${PATIENCE:-8} --poolthreads {workers} --workers 1 "
        "--host 127.0.0.1 --port {port} --documentroot {root} --access-log off --head-timeout 60s"
    )
    return ["--command", f"sh -c '{start}'"]


def known_server(name: str) -> list[str]:
    """Return the arguments of ewe-grade for a well-known server: "nginx", "lighttpd", "apache-worker" and so on."""
    return [
        "--command",
        f"{PYTHON} -S {quote(str(ZOO / 'known.py'))} {name} {{port}} {{root}} {{workers}}",
    ]


CORRECT = {
    "ewe, cgi": ("cgi", ewe_with_programs()),
    "ewe, caching": ("caching", of_ewe("thread")),
    "ewe, engine": (
        "engine",
        ["--command", f"{PYTHON} {quote(str(ROOT / 'ewe/xswitch/engines/python.py'))}"],
    ),
    "small, caching": ("caching", of_zoo("caching_mutants.py", "Caching")),
    **{f"ewe, {lab}": (lab, of_ewe(lab)) for lab in LABS},
    **{f"small, {lab}": (lab, of_zoo("correct.py", lab)) for lab in SMALL},
    "ewe, scheduling": ("scheduling", ewe_scheduled()),
    "http.server": ("thread", [str(ZOO / "http_server.py")]),
    "nginx": ("event", known_server("nginx")),
    "lighttpd": ("event", known_server("lighttpd")),
    "Apache, prefork": ("pool", known_server("apache-prefork")),
    "Apache, worker": ("pool", known_server("apache-worker")),
    "Apache, event": ("event", known_server("apache-event")),
}
# Checks that do not apply, each with the reason.
SIGTERM = "SIGTERM ends Apache at once, as documented; SIGWINCH is its graceful stop"
EXCEPTIONS = {
    "ewe, caching": {
        "fresh-file": 'ewe compares a file with the disk once a second, as `within = "second"` allows'
    },
    "ewe, pool": {"bound": "ewe accepts up to its limit of connections, 4,000, and answers 503 beyond it"},
    "http.server": {"pause": "socketserver calls accept() again at once while no descriptor is free"},
    "Apache, prefork": {"drain": SIGTERM},
    "Apache, worker": {"drain": SIGTERM},
    "Apache, event": {
        "who-works": "this module has threads beside its loop",
        "silence": "the kernel keeps a connection without a byte from Apache (TCP_DEFER_ACCEPT)",
        "descriptors-used-up": "accept() without a descriptor ends Apache's child, and its connections",
    },
}
# Some checks of some servers; matrix.py grades all by all.
QUICKLY = {
    "ewe, fork": (),
    "nginx": ("progress", "slow-readers", "keep-alive", "oversized"),
    "lighttpd": ("descriptors-used-up", "progress"),
    "ewe, scheduling": (
        "progress",
        "order-fifo",
        "order-sff",
        "order-patience",
        "queue-bound",
        "drop-oldest",
        "drop-largest",
        "trace",
    ),
    "small, pool": ("bursts", "bound", "pause"),
    "small, event": ("bursts", "pause", "silence"),
    "Apache, prefork": ("progress", "exactly-n"),
    "Apache, event": ("stop", "progress"),
}
NEEDED = {
    "nginx": ("nginx",),
    "lighttpd": ("lighttpd",),
    "Apache, prefork": ("apache2",),
    "Apache, event": ("apache2",),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs(*NEEDED.get(name, ()))) for name in QUICKLY]
)
def test_no_check_fails_on_a_correct_server(name: str, tmp_path: Path) -> None:
    lab, arguments = CORRECT[name]
    only = [word for check in QUICKLY[name] for word in ("--only", check)]
    report, _ = grade(tmp_path, "--lab", lab, *only, *arguments)
    assert not failures(report), failures(report)
