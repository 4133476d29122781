"""The command ewe-lab, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_bench import quick_lab
from support.proc import command_line, descendants
from support.server import ROOT, wait_until

from ewe_lab import cli, compare
from ewe_lab.bench import processes
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, load
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.invocation import PlannedTable, fill_table
from ewe_lab.lab_bench import LabBench
from ewe_lab.report.summary import standings
from ewe_lab.stacks.machine import machine_facts
from ewe_lab.stacks.other_servers import OTHER_SERVERS


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ewe_lab.cli", *words]


def environment(tmp: Path) -> dict[str, str]:
    (tmp / "scratch").mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("EWE_")}
    return {**env, "TMPDIR": str(tmp / "scratch"), "PYTHONPATH": str(ROOT), "EWE_INDEXES": "nonsense"}


@pytest.mark.starts_processes
def test_a_comparison(tmp_path: Path) -> None:
    done = subprocess.run(
        command(
            "compare", "-f", "--model", "pool --poolthreads 3", "--users", "10", "--time", "1s", "--repeats", "1",
            "--warm-up", "200ms", "--think", "50ms", "--out", "found",
        ),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^fork +[\d.]+ ", done.stdout, re.M)
    assert re.search(r"^pool --poolthreads 3 +[\d.]+ ", done.stdout, re.M)
    assert "\r" not in done.stderr  # plain lines in a pipe
    assert "fork, 10 users, 50 ms think time, 1 s\n" in done.stderr
    results = load(tmp_path / "found" / "results.json")
    assert results.command == (
        "ewe-lab compare -f --model 'pool --poolthreads 3' --users 10 --time 1s --repeats 1"
        " --warm-up 200ms --think 50ms"
    )
    (table,) = results.tables
    assert [cell.server for cell in table.cells] == ["fork", "pool --poolthreads 3"]
    for cell in table.cells:
        assert len(cell.samples) == 1
        assert cell.failure == ""
        for sample in cell.samples:
            assert sample.rate < 210  # at most one request per user and think time
            assert sample.service is not None and sample.service.count >= 10  # no user is left out
            assert sample.errors == {}
            assert sample.usage is not None
    page = (tmp_path / "found" / "report.html").read_text()
    assert "pool --poolthreads 3" in page
    rows = list(csv.reader(io.StringIO((tmp_path / "found" / "results.csv").read_text())))
    assert len(rows) == 3  # a head, and a row for each sample
    assert str(tmp_path) not in page + json.dumps(rows)
    assert os.listdir(tmp_path / "scratch") == []


MINE = """
from ewe.processors.base import Processor

class Mine(Processor):
    def serve(self, listener):
        for accepted in listener:
            self.run(self.stream_of(accepted))
"""


@pytest.mark.starts_processes
def test_a_model_of_ones_own(tmp_path: Path) -> None:
    """What `ewe --model mine:Mine` finds in the current directory is found here, too; also by python -m ewe_lab."""
    (tmp_path / "mine.py").write_text(MINE)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ewe_lab", "compare", "-t", "-a", "--model", "mine:Mine", "--users", "1",
         "--time", "500ms", "--repeats", "1", "--warm-up", "100ms", "--think", "20ms", "--out", "found"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = load(tmp_path / "found" / "results.json")
    cell = results.tables[0].cells[-1]
    assert (cell.server, cell.failure) == ("mine:Mine", "") and cell.samples[0].replies
    assert "mine:Mine" in [each.model for each in standings(results)]


@pytest.mark.starts_processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_there_is(tmp_path: Path, number: int) -> None:
    with subprocess.Popen(
        command("compare", "-t", "-f", "--users", "5", "--time", "1s", "--warm-up", "0", "--out", "found"),
        cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            assert started.stderr is not None
            while "fork" not in (line := started.stderr.readline()):
                assert line
            wait_until(
                lambda: any("--model\0fork" in command_line(pid) for pid in descendants(started.pid)), 20
            )
            family = [each.pid for each in processes.process_tree(started.pid)]
            started.send_signal(number)
            started.send_signal(number)  # an impatient one
            output, errors = started.communicate(timeout=150)
        finally:
            started.kill()
    assert started.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert re.search(r"^thread ", output, re.M)
    (table,) = load(tmp_path / "found" / "results.json").tables
    assert table.interrupted
    assert [(cell.server, len(cell.samples)) for cell in table.cells] == [("thread", 1)]
    assert "thread" in (tmp_path / "found" / "report.html").read_text()
    assert os.listdir(tmp_path / "scratch") == []
    assert len(family) >= 2
    wait_until(
        lambda: not [each for each in processes.processes() if each.pid in family and each.state not in "ZX"],
        20,
    )


@pytest.mark.starts_processes
def test_arrivals_and_a_site_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.txt").write_text("hello")
    done = subprocess.run(
        command(
            "compare", "-a", "--rate", "100", "--users", "4", "--root", "site", "--path", "/a.txt", "--time", "1s",
            "--repeats", "1", "--warm-up", "200ms", "--against", "nginx,h2o", "-o", "found",
        ),
        cwd=tmp_path, env={**environment(tmp_path), "PATH": ""}, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    (table,) = load(tmp_path / "found" / "results.json").tables
    assert done.returncode == 0, done.stderr
    cell = table.cells[0]
    assert cell.server == "asyncio"
    assert cell.load == "100 sessions/s, over 4 connections, 1 s"
    assert cell.samples[0].response is not None
    assert cell.samples[0].response.count == 100
    assert "h2o is not installed: apt install h2o" in table.notes


LONG = "a" * 300  # characters of a file's name; a file system has 255


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--against", "ngnix"], "there is no server 'ngnix'; did you mean \"nginx\"?"),
        (
            ["compare", "--against", "cherokee"],
            "cherokee is in no current distribution, and the lab does not build it",
        ),
        (["compare", "--model", "thraed"], '; did you mean "thread"?'),
        (["compare", "--think", "soon"], "'soon' is not a time such as 500ms"),
        (["compare", "--users", "0"], "'0' is not a whole number from 1 to 10000"),
        (["compare", "--rate", "nan"], "'nan' is not a number from 0.1 to 20000"),
        (["compare", "--path", "x"], "'x' is not a path that begins with /"),
        (["compare", "--path", "/x"], "--path needs --root DIR"),
        *(
            (["compare", option, text], f"argument {option}: {text!r} names nothing")
            for option in ("--model", "--against", "--gateways", "--load-from")
            for text in ("", ",", " ")
        ),
        *(
            (["compare", option, ""], "'' is not the name of a file or a directory")
            for option in ("--root", "--cgi", "--out")
        ),
        (["report", ""], "'' is not the name of a file or a directory"),
        (["compare", "--rate", "9", "--think", "1s"], "--think is for users"),
        (["compare", "--ssh", "ssh -v"], "--ssh needs --target URL"),
        (["compare", "--cgi", ".", "--target-ssh", "lab7"], "--target-ssh needs --target URL"),
        (["compare", "--load-python", "python3"], "--load-python needs --load-from"),
        (["compare", "--target", "http://a/x", "--path", "/y"], "--path is for a target without a path"),
        (["compare", "--target", "http://a/", "--target-ssh", ""], "'' is not a host for ssh"),
        (
            ["compare", "--target", "http://a/", "--load-from", "b", "--load-python", ""],
            "'' is not a program",
        ),
        (
            ["compare", "--target", "http://a/", "--rate", "9", "--users", "1", "--load-from", "b,c"],
            "--users 1: the 2 workers of --load-from need a connection each",
        ),
        (["compare", "--root", "/nowhere"], "--root '/nowhere' is not a directory"),
        (["compare", "--out", "/proc/x"], "cannot write /proc/x"),
        (["compare", "--model", "'"], "is not the name of a model"),
        (["run", "e-t22"], "there is no experiment 'e-t22'; did you mean \"E-T2\"?"),
        (["run"], "run needs ids of experiments, or --all"),
        (["run", "--all", "E-T2"], "run needs ids of experiments, or --all"),
        (["show", "nothing"], "there is no experiment 'nothing'; `ewe-lab list` shows them"),
        (["report", "/nowhere"], "/nowhere: No such file or directory"),
        (["compair"], "there is no 'compair'; did you mean \"compare\"?"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output, errors = said(capsys, *words)
    assert (status, output) == (2, "")
    assert errors.startswith("ewe-lab: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [("--think", "20s"), ("--rate", "1", "--users", "2")])
def test_a_server_may_close_an_idle_connection(words: tuple[str, ...]) -> None:
    """The keep-alive timeout of Apache is 5 s: half of the requests after a longer think time would be lost."""
    line = ["compare", "-t", *words]
    assert compare.load_of(cli.arguments(line).parse_args(line)).reopens


@pytest.mark.parametrize(
    ("words", "path"), [((), "/"), (("--path", "/index.html"), "/index.html"), (("--path", "/a?b"), "/a?b")]
)
def test_a_target_is_asked_for_the_path_that_is_given(words: tuple[str, ...], path: str) -> None:
    """Also for the one that a server of the lab would have by default."""
    line = ["compare", "--target", "http://127.0.0.1:9", *words]
    planned = compare.planned_table(cli.arguments(line).parse_args(line), "ewe-lab")
    assert planned.table.title.endswith(f", {path}")


def test_without_its_extra_it_says_how_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "locust" else name)
    for words in (["compare", "-f"], ["run", "E-T2"]):
        assert said(capsys, *words) == (1, "", "ewe-lab: locust missing: pip install 'ewe-lab[locust]'\n")


@pytest.mark.parametrize(
    "words",
    [["report", LONG], ["claims", LONG, "--page", "x.md"], ["compare", "--root", ".", "--path", f"/{LONG}"]],
)
def test_a_name_that_is_too_long_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, errors = said(capsys, *words)
    assert status == 1
    assert (
        errors.startswith("ewe-lab: ")
        and errors.endswith(": File name too long\n")
        and errors.count("\n") == 1
    )


@pytest.mark.starts_processes
def test_a_table_is_printed_where_its_results_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "results.json").mkdir()
    status, output, errors = said(capsys, "run", "E-T1", "--quick", "--out", str(tmp_path))
    assert status == 1 and "of 10 defaults are as printed" in output
    assert errors.splitlines()[-1] == f"ewe-lab: {tmp_path}/results.json: Is a directory"


@pytest.mark.starts_processes
def test_a_table_of_defaults_needs_nothing_that_loads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "locust" else name)
    status, output, _ = said(capsys, "run", "E-T1", "--quick", "--out", str(tmp_path))
    assert status == 0 and "of 10 defaults are as printed" in output


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = said(capsys, "list")
    assert status == 0
    assert re.search(r"^  E-T2 +q +[\d.]+ min  ", output, re.M)
    for name in CATALOG:
        assert f"  {name} " in output
    status, output, _ = said(capsys, "show", "e-t2")
    assert status == 0
    assert output.startswith("E-T2: ")
    assert "EWE, table 2" in output
    assert "ewe-lab run E-T2" in output


@pytest.mark.starts_processes
def test_an_experiment_that_waits_is_reported_with_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "E-T2", replace(CATALOG["E-T2"], run=None, needs="a better clock"))
    assert "waits   " in said(capsys, "list")[1]
    status, _, errors = said(capsys, "run", "E-T2", "--quick", "--out", str(tmp_path / "one"))
    assert status == 0, errors
    (table,) = load(tmp_path / "one" / "results.json").tables
    assert table.skipped == "a better clock"
    (tmp_path / "one" / "report.html").unlink()
    status, output, _ = said(capsys, "report", str(tmp_path / "one"))
    assert status == 0
    assert str(tmp_path / "one" / "report.html") in output.splitlines()
    assert (tmp_path / "one" / "report.html").exists()
    status, output, _ = said(
        capsys, "report", str(tmp_path / "one"), str(tmp_path / "one"), "-o", str(tmp_path / "two")
    )
    assert status == 0
    assert len(load(tmp_path / "two" / "results.json").tables) == 1


@pytest.mark.starts_processes
def test_a_program_that_does_not_end_ends_only_its_experiment() -> None:
    def run(lab: LabBench) -> Iterator[Cell]:
        yield Cell("ewe", samples=[Sample("x", 1.0, 9, 9)])
        raise subprocess.TimeoutExpired(["javac"], 60)

    table = ExperimentTable("X")
    with quick_lab() as lab:
        assert fill_table(PlannedTable(table, run, 1.0), lab, Progress(file=io.StringIO())) == 1
    assert [cell.server for cell in table.cells] == ["ewe"]
    assert "The experiment could not go on: Command '['javac']' timed out after 60 seconds." in table.notes
    assert table.interrupted  # the page of claims keeps nothing of it


@pytest.mark.starts_processes
def test_what_figures_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = machine_facts(["nginx", "http.server"])
    assert facts["python"] == facts["http.server"] == platform.python_version()
    assert platform.node() not in " ".join(facts.values()).split()
    monkeypatch.setattr("ewe_lab.stacks.other_servers.find_tool", lambda name: None)
    assert machine_facts(["nginx"])["wrk"] == "not installed"
    assert "nginx" not in machine_facts(["nginx"])


@pytest.mark.parametrize(
    "reason",
    [
        FileNotFoundError("yaws.app"),
        KeyError("ServerInfo.properties"),
        LabError("m2sh missing"),
        subprocess.TimeoutExpired("m2sh", 10),
        zipfile.BadZipFile("File is not a zip file"),
    ],
    ids=lambda reason: type(reason).__name__,
)
def test_a_version_that_cannot_be_read_is_unknown(reason: Exception) -> None:
    def read_version() -> str:
        raise reason

    assert replace(OTHER_SERVERS["tomcat"], read_version=read_version).version() == ""


def test_a_bare_directory_with_the_name_of_a_module_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_nobody").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    tested = replace(OTHER_SERVERS["gunicorn"], module="module_of_nobody")
    assert not tested.why_missing and tested.version() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    terminal = Terminal()
    progress = Progress(60, terminal)
    assert (
        progress.planned_time_text() == "about 60 s"
        and Progress(347).planned_time_text() == "about 6 min"
        and Progress().planned_time_text() == ""
    )
    progress.begin_table(20)
    progress.show_step("one")
    clock[0] = 5.0
    progress.show_step("two")
    clock[0] = 40.0
    assert progress.time_left_text() == "40 s left"  # it takes longer than planned
    progress.end_table()
    progress.begin_table(40)
    progress.show_step("three")
    expected = "\r\x1b[K[60 s left] one\r\x1b[K[55 s left] two\r\x1b[K[80 s left] three"
    assert terminal.getvalue() == expected
    clock[0] = 500.0
    assert progress.time_left_text() == "longer than planned"
    progress.end_table()
    assert progress.time_left_text() == "0 s left"


def test_progress_on_a_terminal_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe_lab.bench.progress.UPDATE_EVERY_S", 0.01)
    terminal = Terminal()
    with Progress(60, terminal) as progress:
        progress.show_step("one")
        wait_until(lambda: terminal.getvalue().count("left] one") > 2, 20)
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_command_that_does_it_again() -> None:
    words = ["compare", "-f", "--out", "/tmp/a b", "--model", "pool --poolthreads 3"]
    assert cli.rerun(words) == "ewe-lab compare -f --model 'pool --poolthreads 3'"
    assert cli.rerun(["compare", "-o", "x", "-t"]) == "ewe-lab compare -t"
    for out in (["--out=my dir"], ["-omy dir"], ["--out", "it's"]):
        assert cli.rerun(["compare", *out, "-t"]) == "ewe-lab compare -t"
    assert cli.rerun(["compare", "--model", "pool -o x"]) == "ewe-lab compare --model 'pool -o x'"


def test_the_locustfile_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = said(capsys, "locustfile")
    assert status == 0
    compile(output, "locustfile.py", "exec")
    assert "LoadTestShape" in output
