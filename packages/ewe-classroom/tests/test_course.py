"""ewe-course: one source for starter and solution, handouts, measurements and questions; the labs."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import psutil
import pytest
from classroom_server import run_grader
from support.server import wait_until

from ewe.config.messages import ConfigError
from ewe_classroom.course import (
    class_run,
    cli,
    handout,
    labs,
    marks,
    measurements,
    other_measurements,
    packs,
    questions,
    rubric,
)
from ewe_classroom.course.one_source import SourceError, solution, starter
from ewe_classroom.course.submissions import HandIn
from ewe_classroom.grader.processes import free_port, listener_inode
from ewe_classroom.grader.run_scene import FORMAT
from ewe_classroom.grader.scheme import load as scheme

LABS = [each.name for each in labs.labs()]
LAB_LANGUAGES = [(each.name, language) for each in labs.labs() for language in each.variants]
FOUND = measurements.Measurements(
    "pool", workers=4, rate={1: 100.0, 2: 150.0, 4: 200.0, 8: 200.0, 16: 400.0},
    time_ms={1: 10.0, 2: 13.0, 4: 20.0, 8: 40.0, 16: 39.0}, tasks={0: 5, 100: 5},
    memory_kib={0: 1000, 100: 3000}, cpu_us=250.0, program_ms={1: 12.0},
)  # fmt: skip

# Measurements of some labs only: other_measurements.py.
MORE = dict.fromkeys(
    ("full_bytes", "not_modified_bytes", "full_ms", "not_modified_ms", "first_ms", "again_ms", "process_ms",
     "alone_ms", "most_clients", "most_rate", "best_rate", "open_rate", "open_ms"), 2.0,
)  # fmt: skip


def course(*arguments: str) -> int:
    return cli.main(arguments)


# One source


SOURCE = """\
def f():
    # --- solution
    return 1
    # --- starter
    # # How many?
    # return 0
    # --- end
// --- solution
int g;
// --- end
"""


def test_one_source_makes_two_files() -> None:
    assert solution(SOURCE) == "def f():\n    return 1\nint g;\n"
    assert starter(SOURCE) == "def f():\n    # How many?\n    return 0\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("# --- solution\n", "a block is open"),
        ("# --- starter\n", "line 1: --- starter"),
        ("# --- end\n", "line 1: --- end"),
        ("x\n# --- solution\n# --- solution\n", "line 3: --- solution"),
        (
            "# --- solution\n# --- starter\nx = 1\n# --- end\n",
            "line 3: a line of the starter must be a comment",
        ),
    ],
)
def test_markers_that_make_no_sense(source: str, words: str) -> None:
    with pytest.raises(SourceError, match=re.escape(words)):
        starter(source)


# The labs


@pytest.mark.parametrize("name", LABS)
def test_a_lab_is_complete(name: str) -> None:
    lab = labs.lab(name)
    assert "python" in lab.variants and len(lab.questions) == 3
    assert sum(item.points for item in scheme(name).items) > 50
    assert lab.read("text.md").count("\n## ") >= 3 and "| Structure |" in lab.read("rubric.md")
    assert (
        len(questions.questions(lab, measurements.Measurements(**{**vars(FOUND), "lab": name, "more": MORE})))
        == 3
    )


@pytest.mark.parametrize(("name", "language"), LAB_LANGUAGES)
def test_starter_and_solution_differ_and_compile(name: str, language: str) -> None:
    lab = labs.lab(name)
    solved = lab.files(lab.variants[language], solved=True)
    begun = lab.files(lab.variants[language], solved=False)
    for file in lab.variants[language].work:
        assert begun[file] != solved[file]
    for file in lab.variants[language].given:
        assert begun[file] == solved[file]
    for file, text in (*solved.items(), *begun.items()):
        assert not re.search(r"--- (solution|starter|end)", text)
        if file.endswith(".py"):
            compile(text, file, "exec")


# The quick checks that prove the model of a lab. All checks take 15 s: `ewe-course solution`, `ewe-grade`.
QUICK = {
    **dict.fromkeys(LABS, ("answers", "progress")),
    "fork": ("progress", "parent-lets-go"),
    "cgi": ("cgi-environment", "cgi-deadlock"),
    "engine": ("engine-globals", "engine-errors", "engine-xswitch"),
    "caching": ("modified-since", "fresh-file"),
    "scheduling": ("order-sff", "trace"),
}


# Another account may not enter this clone.


def grade(lab: str, *server: str) -> subprocess.CompletedProcess[str]:
    only = [word for check in QUICK[lab] for word in ("--only", check)]
    return run_grader("--lab", lab, *only, *server, timeout_s=300)


GRADED_LAB_LANGUAGES = [
    *((name, "python") for name in LABS if name != "measure"), ("pool", "model"), ("scheduling", "model"),
]  # fmt: skip


@pytest.mark.starts_processes
@pytest.mark.parametrize(("name", "language"), GRADED_LAB_LANGUAGES)
def test_solution_and_starter_are_graded(tmp_path: Path, name: str, language: str) -> None:
    file = labs.lab(name).variants[language].grade
    assert course("solution", name, str(tmp_path / "solved"), "--language", language) == 0
    graded = grade(name, str(tmp_path / "solved" / file))
    assert graded.returncode == 0, graded.stdout + graded.stderr
    assert course("new", name, str(tmp_path / "begun"), "--language", language) == 0
    graded = grade(name, str(tmp_path / "begun" / file))
    assert graded.returncode == 1, graded.stdout + graded.stderr
    assert "FAILED" in graded.stdout and "the grader has a fault" not in graded.stdout


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", [name for name, language in LAB_LANGUAGES if language == "c"])
@pytest.mark.needs("gcc")
def test_solutions_in_c_are_graded(tmp_path: Path, name: str) -> None:
    assert course("new", name, str(tmp_path / "begun"), "--language", "c") == 0
    subprocess.run(["make", "-s", "-C", tmp_path / "begun"], check=True, capture_output=True)
    assert course("solution", name, str(tmp_path / "solved"), "--language", "c") == 0
    flags = "CFLAGS=-std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror"
    subprocess.run(["make", "-s", "-C", tmp_path / "solved", flags], check=True)
    graded = grade(name, "--command", f"{tmp_path}/solved/server {{port}} {{root}} {{workers}}")
    assert graded.returncode == 0, graded.stdout + graded.stderr


@pytest.mark.starts_processes
@pytest.mark.needs("Go")
@pytest.mark.timeout(300)  # a new machine compiles Go's library first
@pytest.mark.parametrize("name", [name for name, language in LAB_LANGUAGES if language == "go"])
def test_solutions_in_go_are_graded(tmp_path: Path, name: str) -> None:
    for command, directory in (("new", "begun"), ("solution", "solved")):
        assert course(command, name, str(tmp_path / directory), "--language", "go") == 0
        subprocess.run(["go", "vet", "."], cwd=tmp_path / directory, check=True)
        subprocess.run(["go", "build", "-o", "server", "."], cwd=tmp_path / directory, check=True)
        misplaced = subprocess.check_output(["gofmt", "-l", "."], cwd=tmp_path / directory)
        assert not misplaced
    graded = grade(
        name,
        "--only",
        "who-works",
        "--command",
        f"{tmp_path}/solved/server {{port}} {{root}} {{workers}}",
    )
    assert graded.returncode == 0, graded.stdout + graded.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", ["fork", "thread", "pool", "cgi", "scheduling"])
def test_a_second_sigterm_does_not_cut_a_response_of_a_solution(tmp_path: Path, name: str) -> None:
    assert course("solution", name, str(tmp_path)) == 0
    (tmp_path / "large").write_bytes(bytes(8 << 20))  # more than the buffers of a connection hold
    port = free_port()
    command = [sys.executable, "server.py", str(port), str(tmp_path), "2"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:
        wait_until(lambda: listener_inode(port), 10)
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            client.recv(1)  # the response has begun
            server.terminate()
            wait_until(lambda: not listener_inode(port), 10)
            server.terminate()
            received_bytes = 1
            while data := client.recv(1 << 16):
                received_bytes += len(data)
        assert server.wait(60) == 0 and received_bytes > 8 << 20


# Handouts


def test_a_handout_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert course("new", "pool", str(tmp_path)) == 0
    page = (tmp_path / "assignment.html").read_text()
    assert "ewe-grade --lab pool server.py" in page and "http" not in page.replace("http://127", "")
    (tmp_path / "server.py").write_text("my work\n")
    assert course("new", "pool", str(tmp_path)) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "server.py").read_text() == "my work\n"


def test_a_full_disk_is_said_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """write(2) fails without the name of a file, where open(2) gives it."""

    def full(*_: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("write_text", "write_bytes"):
        monkeypatch.setattr(Path, name, full)
    pool = labs.lab("pool")
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path}: No space"):
        handout.write(pool, pool.variant("python"), tmp_path, solved=True)
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path}: No space"):
        packs.write({"setup.sh": b""}, tmp_path)
    monkeypatch.setattr(class_run, "take_files", full)
    plan = class_run.ClassPlan(pool, pool.variant("python"), tmp_path, jobs=1, limit_s=9.0)
    (tmp_path / "students").mkdir()
    found = class_run.prepare(plan, HandIn("Ada", "ada"), {})
    assert isinstance(found, class_run.GradedHandIn)
    assert (
        found.problem == f"{tmp_path / 'students' / 'ada'}: No space left on device" and found.grader_failed
    )


@pytest.mark.parametrize("name", LABS)
def test_the_criteria_of_a_rubric_are_the_manual_marks_of_the_rules(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = labs.lab(name).read("rubric.md")
    assert course("show", name, "--rubric", "--toml") == 0
    rules = tmp_path / "rules.toml"
    rules.write_text(capsys.readouterr().out)
    manual = marks.read_rules(rules).manual
    assert manual == rubric.criteria(text) and manual["Structure"] == 2
    whole = re.match(r"# What a person marks: (\d+) points", text)
    assert whole is not None and sum(manual.values()) == int(whole[1])


def test_a_rubric_without_points_has_no_criteria() -> None:
    with pytest.raises(ValueError, match="no table with a head of points"):
        rubric.criteria("# What a person marks\n\n| | good |\n|---|---|\n| Structure | yes |\n")


@pytest.mark.parametrize("arguments", [
    ["new", "pol", "x"], ["show", "../pool"], ["new", "fork", "x", "--language", "model"], ["pack", "pool", "x"],
    ["show", "pool", "--toml"],
    ["measure", "pool"], ["measure", "pool", "nothing.py"], ["questions", "pool", "nothing.json"], [],
    ["show", "a" * 300], ["leaderboard", "a" * 300], ["pack", "pool", "a" * 300, "--for", "autolab"],
    ["pack", "pool", "x", "--for", "autolab", "--scheme", f"{'a' * 300}.toml"],
])  # fmt: skip
def test_wrong_usage_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert course(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("ewe-course: ") and said.count("\n") == 1


# Measurements and questions


def test_a_fault_of_a_measurement_is_none_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object, **__: object) -> measurements.Measurements:
        raise TimeoutError("timed out")

    file = tmp_path / "runs.json"
    file.write_text("{}")
    monkeypatch.setattr(measurements, "measure", measure)
    assert course("measure", "measure", str(file)) == 2
    assert capsys.readouterr().err == "ewe-course: cannot measure: timed out\n"


def test_an_output_that_cannot_be_written_is_said_before_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object, **__: object) -> measurements.Measurements:
        raise AssertionError("the measurement has begun")

    file = tmp_path / "runs.json"
    file.write_text("{}")
    monkeypatch.setattr(measurements, "measure", measure)
    assert course("measure", "measure", str(file), "--output", str(tmp_path)) == 2
    assert capsys.readouterr().err == f"ewe-course: cannot write {tmp_path}: Is a directory\n"


@pytest.mark.parametrize("clients", ["1" + "0" * 400, "[" * 100_000])
def test_a_file_of_runs_with_impossible_numbers_is_refused(tmp_path: Path, clients: str) -> None:
    file = tmp_path / "runs.json"
    run = f'{{"kind": "closed", "clients": {clients}, "mean_ms": 1.0, "rate": 1.0}}'
    opened = '{"kind": "open", "rate_wanted": 5, "mean_ms": 1.0, "rate": 1.0}'
    file.write_text(f'{{"format": "{FORMAT}", "runs": [{run}, {opened}, {run.replace(clients, "1")}]}}')
    with pytest.raises(ConfigError, match="not a complete file of runs"):
        other_measurements.of_data(file, print)


@pytest.mark.starts_processes
def test_a_server_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "CLOSED_LOOP_S", 0.1)
    assert course("solution", "thread", str(tmp_path)) == 0
    file = tmp_path / "m.json"
    assert course("measure", "thread", str(tmp_path / "server.py"), "--output", str(file)) == 0
    found = measurements.load(file)
    assert found.tasks[100] - found.tasks[0] == 100
    assert found.memory_kib[100] > found.memory_kib[0]
    assert min(found.rate.values()) > 0 and found.cpu_us > 0


def test_a_process_that_ends_while_it_is_measured_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forking server has such a child at any moment."""

    def gone() -> None:
        raise psutil.NoSuchProcess(1)

    child = types.SimpleNamespace(cpu_times=gone, memory_full_info=gone, num_threads=gone)
    server: Any = None
    monkeypatch.setattr(measurements, "processes_of", lambda subject: [child, psutil.Process()])
    assert measurements.cpu_seconds(server) > 0
    threads, memory_kib = measurements.threads_and_memory_kib(server)
    assert threads >= 1 and memory_kib > 0


def test_a_stalled_client_that_cannot_connect_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="a stalled client could not connect"):
        measurements.connect_stalled(port)


def test_answers_are_computed_from_the_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.json"
    FOUND.save(file)
    assert measurements.load(file) == FOUND
    assert course("questions", "pool", str(file), "--mark", "400", "2.5", "15.6") == 0
    assert capsys.readouterr().out.count(": right") == 3
    assert course("questions", "pool", str(file), "--mark", "400", "2.5", "16.5") == 1
    assert "16.5: wrong" in (said := capsys.readouterr().out) and "15.6 requests. Little's law" in said
    assert course("questions", "thread", str(file)) == 2
    file.write_text("{}")
    assert course("questions", "pool", str(file)) == 2


@pytest.mark.parametrize(
    ("lab", "changes"),
    [
        ("pool", {"rate": {}}),
        ("pool", {"rate": {"8": "400"}}),
        ("pool", {"rate": {str(clients): math.nan for clients in (1, 2, 4, 8, 16)}}),
        ("pool", {"rate": {"8": 10**400}}),
        # The answer to the question about Little's law would be infinite: every answer would be right.
        ("pool", {"rate": {str(clients): 1e308 for clients in (1, 2, 4, 8, 16)}}),
        ("pool", {"more": 5}),
        ("pool", {"workers": "four"}),
        ("measure", {"more": {}}),
    ],
)
def test_measurements_that_a_student_has_changed_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lab: str, changes: dict[str, Any]
) -> None:
    file = tmp_path / "m.json"
    measurements.Measurements(**{**vars(FOUND), "lab": lab}).save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert course("questions", lab, str(file)) == 2
    said = capsys.readouterr().err
    assert "measure" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["__import__('os')", "rate.keys", "workers ** 9", "[1]", "open(1)", "other + 1"]
)
def test_an_expression_only_counts(text: str) -> None:
    with pytest.raises(ValueError, match="not an expression"):
        questions.evaluate(text, {"rate": {1: 2.0}, "workers": 4})


def test_a_figure_for_one_lab_replaces_no_table() -> None:
    more = measurements.Measurements(**{**vars(FOUND), "more": {"rate": 5.0}})
    assert questions.questions(labs.lab("pool"), more) == questions.questions(labs.lab("pool"), FOUND)


def test_measurements_with_a_zero_are_refused() -> None:
    flat = measurements.Measurements(**{**vars(FOUND), "lab": "thread", "memory_kib": {0: 5, 100: 5}})
    with pytest.raises(ConfigError, match="measure again"):
        questions.questions(labs.lab("thread"), flat)
