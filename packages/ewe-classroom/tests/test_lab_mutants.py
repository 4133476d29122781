"""The checks of the labs about caching, engines and measurements: each mutant is caught, and rightly explained.

One grading for each mutant runs in this process: that takes a fifth of a second, where the command takes one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
import types
from dataclasses import replace
from pathlib import Path
from shlex import quote

import pytest
from classroom_server import PYTHON

from ewe_classroom.course import cli as course
from ewe_classroom.grader import cli as grade_cli
from ewe_classroom.grader import engine_scene, run_scene
from ewe_classroom.grader.engine_xswitch import XSwitchServer
from ewe_classroom.grader.grading import Grading
from ewe_classroom.grader.kinds import DATA
from ewe_classroom.grader.processes import free_port
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.scene import FailedExpectation
from ewe_classroom.grader.scheme import load
from ewe_classroom.grader.subject import from_command
from ewe_classroom.grader.verdicts import FAILED, NOT_JUDGED, PASSED, Verdict

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "zoo"))
import caching_mutants  # noqa: E402
import data_mutants  # noqa: E402
import engine_mutants  # noqa: E402

sys.path.pop(0)
pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory) -> Grading:
    """Return one grading for all servers: its site has 16 MB, which need not be written for each."""
    directory = tmp_path_factory.mktemp("site")
    directory.chmod(0o755)
    return Grading(from_command("true {port}"), load("caching"), directory, SandboxLimits())


def grade(grading: Grading, subject: str, *checks: str) -> list[Verdict]:
    """Grade a command, or a file of data, by some checks of the grading's lab, or by all."""
    whole = grading.scheme
    items = tuple(item for item in whole.items if not checks or item.check.name in checks)
    start_command = (
        grading.kind.from_path(subject) if whole.kind == DATA else grading.kind.from_command(subject)
    )
    grading.start_command, grading.scheme = start_command, replace(whole, items=items)
    try:
        return grading.run().verdicts
    finally:
        grading.scheme = whole


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Grading:
    return Grading(
        engine_scene.from_command("true"), load("engine"), tmp_path_factory.mktemp("scripts"), SandboxLimits()
    )


def of_caching(name: str) -> str:
    return f"{PYTHON} -S {quote(f'{HERE}/zoo/caching_mutants.py')} {name} {{port}} {{root}} {{workers}}"


def explained(verdict: Verdict, says: str) -> bool:
    return verdict.status == FAILED and any(part in verdict.text() for part in says.split("|"))


@pytest.mark.parametrize("name", caching_mutants.ZOO)
def test_a_mutant_of_caching_is_caught(name: str, caching: Grading) -> None:
    mutant = caching_mutants.ZOO[name]
    (verdict,) = grade(caching, of_caching(name), mutant.check)
    assert explained(verdict, mutant.says), f"{mutant.check}: {verdict.status}\n{verdict.text()}"


def test_no_check_of_caching_fails_on_a_correct_server(caching: Grading) -> None:
    checks = sorted({mutant.check for mutant in caching_mutants.ZOO.values()})
    verdicts = grade(caching, of_caching("Caching"), *checks)
    assert all(each.status == PASSED for each in verdicts), [
        each.text() for each in verdicts if each.status != PASSED
    ]


@pytest.mark.parametrize("name", engine_mutants.ZOO)
def test_a_mutant_of_an_engine_is_caught(name: str, engine: Grading) -> None:
    mutant = engine_mutants.ZOO[name]
    (verdict,) = grade(engine, f"{PYTHON} {quote(f'{HERE}/zoo/engine_mutants.py')} {name}", mutant.check)
    assert explained(verdict, mutant.says), f"{mutant.check}: {verdict.status}\n{verdict.text()}"


WRITES_WITHOUT_END = "import os\nwhile True: os.write(1, bytes(65536))"


def test_an_engine_that_writes_without_end_is_stopped(engine: Grading) -> None:
    """It is never quiescent, and would fill the grader's memory."""
    (verdict,) = grade(engine, f"{PYTHON} -c {quote(WRITES_WITHOUT_END)}", "engine-answers")
    assert explained(verdict, "never wrote its end mark: it goes on after 16,"), verdict.text()


@pytest.mark.parametrize("body", [b"", b"7", b"[1]", b'{"pid": 1}', b"[" * 100_000])
def test_a_state_of_another_shape_is_no_fault_of_the_grader(body: bytes) -> None:
    """An exception in a check would leave the submission without a mark, and the student could choose that."""
    with pytest.raises((ValueError, RecursionError)):
        engine_scene.state_of(body)
    whole = {key: made() for key, made in engine_scene.STATE_TYPES.items()}
    whole |= {key: [made()] for key, made in engine_scene.STATE_ITEM_TYPES.items()}
    assert engine_scene.state_of(json.dumps(whole).encode()) == whole
    for key in whole:
        with pytest.raises(ValueError, match=f"{key}: "):
            engine_scene.state_of(json.dumps({**whole, key: [[]]}).encode())


@pytest.mark.parametrize("name", [*data_mutants.ZOO, *data_mutants.HONEST])
def test_a_measurement_that_lies_is_caught(name: str, tmp_path: Path) -> None:
    path = str(data_mutants.write(name, tmp_path))
    grading = Grading(run_scene.from_path(path), load("measure"), tmp_path, SandboxLimits())
    if name in data_mutants.HONEST:
        verdicts = grade(grading, path)
        assert all(each.status == PASSED for each in verdicts), [each.text() for each in verdicts]
        return
    _, check, _, says = data_mutants.ZOO[name]
    (verdict,) = grade(grading, path, check)
    assert explained(verdict, says), f"{check}: {verdict.status}\n{verdict.text()}"


def test_the_first_requests_of_the_log_must_be_in_the_data(tmp_path: Path) -> None:
    path = data_mutants.write("honest", tmp_path)
    table = json.loads(path.read_text())
    del table["runs"][0]["requests"][:9]
    path.write_text(json.dumps(table))
    grading = Grading(run_scene.from_path(str(path)), load("measure"), tmp_path, SandboxLimits())
    (verdict,) = grade(grading, str(path), "runs-server-log")
    assert explained(verdict, "slow requests were left out"), f"{verdict.status}\n{verdict.text()}"
    assert "9 of them are not in the data" in verdict.did


def test_no_check_of_conditions_fails_on_ewe(caching: Grading) -> None:
    command = f"{PYTHON} -m ewe -t --port {{port}} --documentroot {{root}} --access-log off"
    checks = (
        "not-modified",
        "tag-lists",
        "modified-since",
        "precedence",
        "preconditions",
        "head",
        "file-cache",
    )
    verdicts = grade(caching, command, *checks)
    assert [each.text() for each in verdicts if each.status != PASSED] == [] and len(verdicts) == len(checks)


def test_the_load_of_the_lab_goes_on_while_the_server_stands_still(tmp_path: Path) -> None:
    assert course.main(["solution", "measure", str(tmp_path)]) == 0
    load = types.ModuleType("measure")
    exec((tmp_path / "measure.py").read_text(), load.__dict__)
    port = free_port()
    log = tmp_path / "server.log"
    # A request takes 2 ms, and the server stands still in the second half of each second.
    command = [sys.executable, str(tmp_path / "queue_server.py"), str(port), str(log), "2", "500", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            began, closed = load.closed_loop(port, 2, 0.2)
            start, opened = load.open_loop(port, 50, 1.0)
        finally:
            server.terminate()
    assert len(closed) + 50 == len(log.read_text().splitlines()) and len(opened) == 50
    assert [round((due - start) * 50) for due, _, _ in sorted(opened)] == list(range(50))
    assert max(done - due for due, _, done in opened) > 0.4
    assert all(began <= due == sent < done for due, sent, done in closed)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--lab", "engine", "/nowhere/engine.py"], "not a file; name your engine"),
        (["--lab", "engine", "--command", "no-such-program"], "not a program that can be run"),
        (
            ["--lab", "engine", "--only", "answers", "--command", "true"],
            "the check answers does not suit the lab engine",
        ),
        (["--lab", "measure", "/nowhere/runs.json"], "python3 measure.py makes runs.json"),
        (["--lab", "measure", __file__], "this lab grades data"),
        (["--lab", "measure", "--command", "true"], "this lab grades data"),
        (["--lab", "pool", "--only", "runs-little", "--command", "true {port}"], "runs-little does not suit"),
        (["--lab", "engine", "--speed", "--command", "true"], "grades no server"),
    ],
)
def test_wrong_usage_of_labs_without_a_server(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade_cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def run_with(key: str, value: str) -> str:
    """Return the JSON of a run with one other value."""
    values = {
        "kind": '"closed"',
        "clients": "1",
        "repetition": "1",
        "began": "1",
        "seconds": "1",
        "rate": "1",
    }
    values |= {"mean_ms": "1", "p99_ms": "1", "requests": "[[1, 1, 2]]", key: value}
    return "{" + ", ".join(f'"{name}": {text}' for name, text in values.items()) + "}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not of the format"),
        ('{"format": "ewe-runs/1"}', "no runs"),
        ('{"format": "ewe-runs/1", "runs": [{"kind": "closed"}]}', "run 1 of the file cannot be read"),
        ('{"format": "ewe-runs/1", "runs": [[]]}', "run 1 of the file cannot be read"),
        ("[" * 100_000, "not JSON"),
        (f'{{"format": "ewe-runs/1", "runs": [{run_with("repetition", "Infinity")}]}}', "run 1 of the file"),
        (f'{{"format": "ewe-runs/1", "runs": [{run_with("clients", "0")}]}}', "no duration or no load"),
        (f'{{"format": "ewe-runs/1", "runs": [{run_with("began", "1" + "0" * 400)}]}}', "run 1 of the file"),
    ],
)
def test_data_that_is_none_is_no_fault_of_the_grader(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text)
    grading = Grading(run_scene.from_path(str(path)), load("measure"), tmp_path, SandboxLimits())
    verdicts = grade(grading, str(path))
    assert verdicts[0].status == FAILED and says in verdicts[0].text()
    rests = {
        "runs-little": "runs-server-log", "runs-open-loop": "runs-server-log", "runs-latency": "runs-complete",
    }  # fmt: skip
    for each in verdicts:
        if each.name in rests:
            assert each.status == NOT_JUDGED and f"it rests on {rests[each.name]}: " in each.because
        else:
            assert each.status == FAILED, each.name


def test_data_without_end_is_refused_before_it_takes_the_time_of_a_grading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data_mutants.write("honest", tmp_path)
    grading = Grading(run_scene.from_path(str(path)), load("measure"), tmp_path, SandboxLimits())
    for name, says in (("MAX_RUNS", "the limit is 1"), ("MAX_FILE_BYTES", "has more than 0 MB")):
        with monkeypatch.context() as limits:
            limits.setattr(run_scene, name, 1)
            (verdict,) = grade(grading, str(path), "runs-complete")
        assert verdict.status == FAILED and says in verdict.text()


@pytest.mark.parametrize("figure", ["rate", "mean_ms", "p99_ms", "seconds"])
def test_a_figure_that_is_not_a_number_is_no_figure(figure: str, tmp_path: Path) -> None:
    """No comparison with NaN is true: it would differ from nothing that the grader computes."""
    path = data_mutants.write("honest", tmp_path)
    table = json.loads(path.read_text())
    for run in table["runs"]:
        run[figure] = math.nan
    path.write_text(json.dumps(table))
    grading = Grading(run_scene.from_path(str(path)), load("measure"), tmp_path, SandboxLimits())
    verdicts = {each.name: each for each in grade(grading, str(path))}
    assert verdicts["runs-complete"].status == FAILED and "cannot be read" in verdicts["runs-complete"].did
    assert all(each.status != PASSED for name, each in verdicts.items() if name != "runs-report")


@pytest.mark.parametrize("name", ["{outside}/results.json", "../outside/results.json", "a\0b", "/dev/null"])
def test_a_report_outside_of_the_submission_is_not_read(name: str, tmp_path: Path) -> None:
    """The student chooses the name. /dev/zero has no end, so nothing outside is opened."""
    outside, work = tmp_path / "outside", tmp_path / "work"
    work.mkdir()
    path = data_mutants.write("honest", work)
    (work / "lab").rename(outside)
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "report": name.format(outside=outside)}))
    grading = Grading(run_scene.from_path(str(path)), load("measure"), tmp_path, SandboxLimits())
    (verdict,) = grade(grading, str(path), "runs-report")
    assert verdict.status == FAILED, verdict.text()
    (outside / "results.json").rename(work / "results.json")
    (verdict,) = grade(grading, str(path), "runs-report")
    assert (verdict.status == PASSED) == name.endswith("results.json")


def server_behind_xswitch(command: list[str], directory: Path) -> XSwitchServer:
    """Return the server of the check engine-xswitch before it starts."""
    server = object.__new__(XSwitchServer)
    subject = types.SimpleNamespace(
        start_command=types.SimpleNamespace(command=command), site=None, workers=1
    )
    server.scene = engine_scene.EngineScene(subject)
    server.accounts = None
    server.scripts, server.log = directory, directory / "ewe.log"
    server.log.write_text("no fault\n")
    return server


def test_xswitch_can_read_the_settings_for_an_engine_of_any_name(tmp_path: Path) -> None:
    command = ["python3", 'the "sheep" 🐑\\ewe.py']
    settings = tomllib.loads(server_behind_xswitch(command, tmp_path / "").settings())
    assert settings["engines"]["student"]["command"] == command


@pytest.mark.parametrize("body", [b"", b"half of {", b"[" * 100_000, b"7", b"[1]", b"{}", b'{"pid": []}'])
def test_a_script_with_other_output_behind_xswitch_is_the_engines_fault(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_behind_xswitch(["true"], tmp_path)
    monkeypatch.setattr(server, "ask", lambda *_, **__: (200, body))
    with pytest.raises(FailedExpectation, match="an ordinary script behind X-Switch answered"):
        server.probe()


def test_an_xswitch_that_an_engine_has_ended_is_the_engines_fault(tmp_path: Path) -> None:
    server = server_behind_xswitch(["true"], tmp_path)
    server.port = free_port()
    with pytest.raises(FailedExpectation, match=r"endless.py behind X-Switch got no connection"):
        server.leave("/cgi-bin/endless.py", os.getpid())


def test_no_check_of_engines_fails_on_the_engine_of_ewe(engine: Grading) -> None:
    checks = [item.check.name for item in engine.scheme.items if item.check.name != "engine-xswitch"]
    verdicts = grade(
        engine,
        f"{PYTHON} {quote(f'{HERE.parents[2]}/ewe/xswitch/engines/python.py')}",
        *checks,
    )
    assert [each.text() for each in verdicts if each.status != PASSED] == [] and len(verdicts) == 14
