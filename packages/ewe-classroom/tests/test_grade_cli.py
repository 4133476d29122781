"""The command `ewe-grade`: what it says of wrong usage, and what it leaves behind when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from classroom_server import COMMAND, GRADER
from support.proc import alive, descendants
from support.server import wait_until

from ewe.config.messages import ConfigError
from ewe_classroom.grader import cli as grade_cli
from ewe_classroom.grader import replay, scheme, site_programs
from ewe_classroom.grader.check import all_checks
from ewe_classroom.grader.formats import FORMATS
from ewe_classroom.grader.kinds import ENGINE, SERVER
from ewe_classroom.grader.located import locate_submission
from ewe_classroom.grader.subject import NUMBERED_FILES, BadSubject, from_path

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(180)  # a grading of seconds takes a minute beside a heavy load


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name one server"),
        (["--command", "./server"], "no {port}"),
        (["--command", "no-such-program {port}"], "not an executable program"),
        (["--command", "'unclosed {port}"], "quote"),
        (["--command", ""], "name one server"),
        (["/nowhere/server.py"], "not a file"),
        (["--lab", "pol", "--command", "true {port}"], 'did you mean "pool"?'),
        (["--lab", "a" * 300, "--command", "true {port}"], "there is no lab"),
        (["--only", "fifi", "--command", "true {port}"], 'did you mean "fifo"?'),
        (["--explain", "fifi"], 'did you mean "fifo"?'),
        (["--repeat", "0", "--command", "true {port}"], "--repeat"),
        (["--repeat", "x", "--command", "true {port}"], "invalid int"),
        (["--jobs", "0", "--command", "true {port}"], "--jobs"),
        (["--repeat", "2", "--jobs", "2", "--network", "host", "--command", "true {port}"], "--network host"),
        (["--replay", "/nowhere/x.jsonl", "--command", "true {port}"], "No such file"),
        (["--user", "no-such-account", "--command", "true {port}"], "--user"),
        (["--nonsense"], "unrecognized"),
    ],
)
def test_wrong_usage_is_said_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade_cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and error.startswith("ewe-grade: ")


@pytest.mark.parametrize(
    "options",
    [
        ["--json", "{file}/report.json"],
        ["--html", "{top}"],
        ["--record", "{file}"],
        ["--repeat", "2", "--gradescope", "{file}/results.json"],
        ["--work", "server.py", "--build", "make", "--junit", "{file}/report.xml"],
    ],
)
def test_a_report_that_cannot_be_written_is_said_before_the_submission_is_built(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(user: str | None) -> None:
        raise AssertionError("the grading has begun")

    monkeypatch.setattr(grade_cli, "account_of", begin)
    (file := tmp_path / "file").touch()
    words = [word.format(file=file, top=tmp_path) for word in options]
    assert grade_cli.main([*words, "--command", "true {port}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ewe-grade: cannot write {tmp_path}") and error.count("\n") == 1


class Prepared(Exception):
    """jinja2 would be imported now."""


@pytest.mark.starts_processes
def test_what_writes_the_page_is_imported_before_the_submission_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later a file of the submission could take the place of a module that jinja2 imports."""

    def prepare() -> None:
        raise Prepared

    monkeypatch.setattr("ewe_explore.pages.prepare", prepare)
    with pytest.raises(Prepared):
        grade_cli.run(grade_cli.parser().parse_args(["--html", "page.html", "no-such-server.py"]))
    assert grade_cli.run(grade_cli.parser().parse_args(["no-such-server.py"])) == 2


@pytest.mark.starts_processes
@pytest.mark.parametrize("text", [None, "def (", "-" * 100_000 + "1"])
def test_a_submission_that_cannot_start_has_a_report(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = tmp_path / "server.py"
    if text is not None:
        server.write_text(text)
    files = {name: tmp_path / name for name in (*FORMATS, "html")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert grade_cli.main(["--lab", "pool", "--autolab", *options, str(server)]) == 2
    says = "not a file" if text is None else "not Python"
    said = capsys.readouterr()
    assert says in said.err and set(json.loads(said.out)["scores"].values()) == {0}
    for file in files.values():
        assert says in file.read_text() or file.name == "classroom50"
    table = json.loads(files["gradescope"].read_text())
    assert table["score"] == 0 and says in table["output"] and says in table["tests"][0]["output"]
    assert says in json.loads(files["prairielearn"].read_text())["message"]


@pytest.mark.starts_processes
def test_a_server_that_sleeps_and_does_not_listen_is_given_up(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(
        "import socket\nlistener = socket.socket()\nlistener.bind(('127.0.0.1', 0))\n"
        "listener.listen()\nlistener.accept()\n"
    )
    done = subprocess.run(
        [*GRADER, "--lab", "pool", "--only", "answers", str(server)],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "the server sleeps, and nothing listens on port" in " ".join(
        done.stdout.split()
    )


def test_every_check_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert grade_cli.main(["--list"]) == 0
    listed = capsys.readouterr().out
    used = {item.check.name for lab in scheme.lab_names() for item in scheme.load(lab).items}
    for name in all_checks():
        assert f"  {name} " in listed and name in used
        assert grade_cli.main(["--explain", name]) == 0
        text = capsys.readouterr().out
        assert all(f"  {word} " in text for word in ("proves", "sends", "expects", "why", "hint", "labs"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense = 1", "unknown key nonsense"),
        ("x = [", "Invalid value"),
        ("workers = 0", "workers = 0"),
        ("workers = true", "workers = True"),
        ("title = 'a'", "no [[check]]"),
        ("check = [1]", "not a table"),
        ("[[check]]\nname = 'fifi'", 'did you mean "fifo"?'),
        ("[[check]]\nname = 'fifo'\npoints = -1", "points = -1"),
        ("[[check]]\nname = 'fifo'\npoints = 0.5", "points = 0.5"),
        ("[[check]]\nname = 'fifo'\noptions = { limt = 'all' }", "unknown option limt"),
        ("[[check]]\nname = 'fifo'\noptions = { limit = 'some' }", "expected one of none, workers, all"),
        ("[[check]]\nname = 'fifo'\n[[check]]\nname = 'fifo'", "appears twice"),
    ],
)
def test_a_wrong_scheme_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "grading.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        scheme.load(str(file))
    assert says in str(caught.value) and str(file) in str(caught.value)


def test_a_scheme_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "grading.toml"
    file.symlink_to("/proc/self/mem")  # its first page is never mapped; root may read a file of any mode
    with pytest.raises(ConfigError, match=r"grading.toml: Input/output error"):
        scheme.load(str(file))


def test_a_file_is_a_model_or_a_program(tmp_path: Path) -> None:
    model = tmp_path / "mine.py"
    model.write_text("from ewe.processors.base import Processor\nclass Mine(Processor):\n    pass\n")
    assert "mine:Mine" in from_path(str(model)).command
    model.write_text("import socket\nclass Mine:\n    pass\n")
    assert from_path(str(model)).command[1:] == (str(model), "{port}", "{root}", "{workers}")
    model.write_text("def broken(:\n")
    with pytest.raises(BadSubject, match=r"not Python: .*line 1\); the grader has Python 3\."):
        from_path(str(model))
    program = tmp_path / "server"
    program.write_text("x")
    with pytest.raises(BadSubject, match="not executable"):
        from_path(str(program))


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GRADER, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=170, **more
    )  # type: ignore[call-overload, no-any-return]


@pytest.mark.starts_processes
def test_a_model_of_ewe_in_one_file_is_graded(tmp_path: Path) -> None:
    model = tmp_path / "mine.py"
    model.write_text(
        "from ewe.processors.base import Processor\n\n\nclass Mine(Processor):\n"
        "    def serve(self, listener):\n        for accepted in listener:\n"
        "            self.run(self.stream_of(accepted))\n"
    )
    done = run("--lab", "serial", "--only", "progress", "--only", "answers", "--autolab", str(model))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 checks passed" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["scores"] == {"progress": 12, "answers": 8}


@pytest.mark.starts_processes
def test_the_most_workers_of_a_scheme_need_no_file_that_the_site_lacks(tmp_path: Path) -> None:
    """The check has three clients for each of 16 workers, and the site has fewer numbered files."""
    assert NUMBERED_FILES < 3 * 16
    file = tmp_path / "many.toml"
    file.write_text("workers = 16\n[[check]]\nname = 'exactly-n'\npoints = 1\n")
    done = run("--lab", str(file), "--only", "exactly-n", "--command", COMMAND.replace(" thread ", " pool "))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("source", "how", "output"),
    [
        ("import no_such_module\n", "status 1", "no_such_module"),
        # Python has no name for this real-time signal.
        ("import os\nprint('the end', flush=True)\nos.kill(os.getpid(), 40)\n", "signal 40", "the end"),
    ],
)
def test_a_server_that_does_not_start_is_said_with_its_output(
    tmp_path: Path, source: str, how: str, output: str
) -> None:
    server = tmp_path / "server.py"
    server.write_text(source)
    done = run("--only", "answers", str(server))
    assert done.returncode == 1
    assert f"ended with {how} before it listened" in done.stdout and output in done.stdout


@pytest.mark.starts_processes
def test_a_grader_that_is_killed_leaves_files_that_count_what_was_done(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    formats = [f"--{name}={tmp_path / name}" for name in ("json", "classroom50", "prairielearn")]
    grader = subprocess.Popen(
        [*GRADER, "--lab", "thread", f"--gradescope={results}", *formats, "--command", COMMAND],
        stdout=subprocess.DEVNULL, cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # its directory stays: nothing can remove it after SIGKILL
    )  # fmt: skip
    try:
        files = [results, *(tmp_path / name for name in ("json", "classroom50", "prairielearn"))]
        wait_until(
            lambda: all(each.exists() and json.loads(each.read_text())["score"] > 0 for each in files), 60
        )
        family = descendants(grader.pid)
    finally:
        grader.send_signal(signal.SIGKILL)
        grader.wait()
    for file in files:
        assert json.loads(file.read_text())["score"] > 0
    tests = json.loads(results.read_text())["tests"]
    assert "passed" in [each["status"] for each in tests] and "not run" in tests[-1]["output"]
    wait_until(lambda: not alive(family), 30)  # the server ends with its grader


@pytest.mark.starts_processes
def test_a_replay_shows_what_was_sent_and_what_comes_back(tmp_path: Path) -> None:
    done = run("--only", "own-answers", "--record", str(tmp_path), "--command", COMMAND)
    assert done.returncode == 0, done.stdout
    file = tmp_path / "own-answers.jsonl"
    head, *steps = map(json.loads, file.read_text().splitlines())
    assert head["check"] == "own-answers" and any(step["do"] == "send" for step in steps)
    done = run("--replay", str(file), "--command", COMMAND)
    assert done.returncode == 0, done.stderr
    assert "A: send 'GET /1.txt HT'" in done.stdout and "D: answered status=200" in done.stdout
    for text in ("not JSON\n", "[" * 100_000):
        file.write_text(text)
        assert "line 1: not JSON" in run("--replay", str(file), "--command", COMMAND).stderr


def test_a_replay_file_writes_into_no_file(tmp_path: Path) -> None:
    """A student sends it to a lecturer: a gate may have the name of any file, and a signal any name."""
    (tmp_path / "site").mkdir()
    site_programs.write(tmp_path / "site")
    (tmp_path / "notes").write_text("my notes")
    for name in ("../notes", str(tmp_path / "notes"), "gate-1", "gate-99"):
        assert not site_programs.open_gate(tmp_path / "site", name)
    assert (tmp_path / "notes").read_text() == "my notes"
    with pytest.raises(ConfigError, match="'SIGNONE' is not the name of a signal"):
        replay.signal_of({"do": "signal", "signal": "SIGNONE"})
    assert replay.sent_by({"do": "send", "bytes": "\xe9", "times": 3}) == (b"\xe9", 3)
    for times in ("x", -1, 1 << 26, 1.5, None):
        with pytest.raises(ConfigError, match=r"cannot send 2 bytes .* the limit is 64 MB"):
            replay.sent_by({"do": "send", "bytes": "ab", "times": times})


@pytest.mark.starts_processes
@pytest.mark.needs("a private network")
def test_two_graders_at_once_use_the_same_port_where_networks_are_private() -> None:
    graders = [
        subprocess.Popen(
            [*GRADER, "--only", "idle-cpu", "--command", COMMAND], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    shown = [grader.communicate(timeout=150)[0] for grader in graders]
    assert [grader.returncode for grader in graders] == [0, 0], shown


@pytest.mark.needs("a private network")
@pytest.mark.starts_processes
def test_a_busy_machine_changes_no_mark() -> None:
    """Progress is proved, not timed. The long form: `ewe-grade --repeat 200` beside the same load."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        wanted = ["--lab", "pool", "--repeat", "3", "--jobs", "3", "--only", "progress", "--only", "fifo"]
        done = run(*wanted, "--command", COMMAND.replace(" thread ", " pool "))
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert done.returncode == 0 and "0 with different marks" in done.stdout, done.stdout
    assert done.stdout.count("2 of 2 checks passed") == 3


@pytest.mark.needs("a private network")
@pytest.mark.starts_processes
def test_a_check_that_was_not_run_has_not_passed() -> None:
    """The time limit ends each run before its second check."""
    wanted = ["--lab", "pool", "--repeat", "2", "--limit", "0.1", "--only", "progress", "--only", "fifo"]
    done = run(*wanted, "--command", COMMAND.replace(" thread ", " pool "))
    assert done.returncode == 1 and "failed: none" in done.stdout, done.stdout


def test_a_directory_stands_for_the_file_in_it(tmp_path: Path) -> None:
    inner = tmp_path / "lab 4" / "src"
    inner.mkdir(parents=True)
    (inner / "server.py").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "server.py").write_text("")
    for text in (str(tmp_path), str(inner), str(tmp_path / "server.py"), str(inner / "server.py")):
        assert locate_submission(text, SERVER) == str(inner / "server.py")
    for text, subject, words in (
        (str(tmp_path), ENGINE, "a directory without engine.py"),
        (str(tmp_path / "model.py"), SERVER, "not a file, and no folder beside it has a model.py"),
    ):
        with pytest.raises(BadSubject, match=words):
            locate_submission(text, subject)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "server.py").write_text("")
    with pytest.raises(BadSubject, match=r"there are 2 files server.py; name one of them: .*lab 4"):
        locate_submission(str(tmp_path), SERVER)
    assert locate_submission("/nowhere/server.py", SERVER) == "/nowhere/server.py"
