"""A server that never sleeps gets true verdicts in a bounded time, and a run has a limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from classroom_server import run_grader

from ewe_classroom.course.labs import lab

pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(180)]

START = """\
    while True:
        connection, _ = listener.accept()
        queue.put(connection)
        work(queue, root)
"""
WORKERS = """\
    for _ in range(workers):
        threading.Thread(target=work, args=(queue, root), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        queue.put(connection)
"""
ONCE = """\
    connection = queue.get()
    converse(connection, root)
"""
FOREVER = """\
    while True:
        connection = queue.get()
        with connection:
            converse(connection, root)
"""


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    """The starter of the lab pool with its threads started, and its queue as it is given: get() spins."""
    for name, text in lab("pool").files(lab("pool").variant("python"), solved=False).items():
        if name == "server.py":
            assert START in text and ONCE in text
            text = text.replace(START, WORKERS).replace(ONCE, FOREVER)
        (tmp_path / name).write_text(text)
    return tmp_path / "server.py"


def graded(server: Path, *options: str) -> dict[str, dict[str, object]]:
    """Grade a server; return name -> verdict, and the whole report under ""."""
    file = server.parent / "report.json"
    ended = run_grader("--lab", "pool", "--json", str(file), *options, str(server))
    assert "Traceback" not in ended.stderr, ended.stderr
    report = json.loads(file.read_text())
    return {
        "": report,
        "output": {"text": ended.stdout},
        **{each["name"]: each for each in report["verdicts"]},
    }


ONLY = ("--only", "progress", "--only", "idle-cpu", "--only", "pipelined")


@pytest.mark.parametrize("pause", ["pass", "time.sleep(0.01)"])
def test_a_server_that_never_sleeps_is_judged_truly(starter: Path, pause: str) -> None:
    starter.write_text(starter.read_text().replace("            pass\n", f"            {pause}\n"))
    found = graded(starter, *ONLY)
    assert found["idle-cpu"]["status"] == "failed" and found[""]["restless"]
    # With four stalled clients no worker is left that spins, so this is a fact
    assert found["progress"]["status"] == "passed", found["progress"]
    assert found["pipelined"]["status"] == "passed", found["pipelined"]
    lines = [line for line in str(found["output"]["text"]).splitlines() if not line.startswith(" ")]
    assert lines[1].startswith("FAILED  idle-cpu"), "it is said first"
    assert any(line.startswith("Begin with idle-cpu") for line in lines)


SPINS_ON = """\
    def spin() -> None:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        goes_on()

    {goes_on}

    goes_on()
    while True:
        connection, _ = listener.accept()
"""
IN_THREADS = """def goes_on() -> None:
        threading.Thread(target=spin, daemon=True).start()"""
IN_PROCESSES = """def goes_on() -> None:
        if os.fork() == 0:
            spin()
            os._exit(0)"""


@pytest.mark.parametrize("goes_on", [IN_THREADS, IN_PROCESSES], ids=["threads", "processes"])
def test_a_loop_that_goes_on_in_new_threads_is_busy(tmp_path: Path, goes_on: str) -> None:
    """No thread spins for long: each starts the next one, and ends."""
    for name, text in lab("pool").files(lab("pool").variant("python"), solved=False).items():
        if name == "server.py":
            before = START.partition("        queue")[0]
            assert before in text
            text = text.replace(before, SPINS_ON.format(goes_on=goes_on)).replace(
                "import signal", "import os\nimport signal"
            )
        (tmp_path / name).write_text(text)
    found = graded(tmp_path / "server.py", "--only", "idle-cpu")
    assert found["idle-cpu"]["status"] == "failed" and found[""]["restless"], found["idle-cpu"]
    assert "of a processor" in str(found["idle-cpu"]["did"])


def test_what_a_server_that_never_sleeps_has_not_done_is_not_judged(starter: Path) -> None:
    """It never answers a second request, and spins: nothing shows that it will not."""
    text = starter.read_text().replace("            converse(connection, root)\n", "            never()\n")
    starter.write_text(
        text.replace("def work(", "def never() -> None:\n    while True:\n        pass\n\n\ndef work(")
    )
    found = graded(starter, "--only", "pipelined", "--only", "idle-cpu")
    assert found["pipelined"]["status"] == "not judged" and found["pipelined"]["score"] == 0
    assert "it rests on idle-cpu" in str(found["pipelined"]["text"])


def test_a_run_has_a_limit_and_names_what_it_did_not_reach(starter: Path) -> None:
    html, junit = starter.parent / "report.html", starter.parent / "report.xml"
    found = graded(starter, "--limit", "6", "--html", str(html), "--junit", str(junit))
    left = [name for name, each in found.items() if each.get("status") == "not run"]
    assert "drain" in left and len(left) > 10 and found[""]["finished"]
    assert "limit of 6 s" in str(found["drain"]["text"]) and float(str(found[""]["seconds"])) < 60
    assert "The limit of a run was 6 s." in html.read_text() and "skipped" in junit.read_text()


@pytest.mark.parametrize("limit", ["-1", "x", "1e9", "nan"])
def test_a_limit_is_a_number_of_seconds(starter: Path, limit: str) -> None:
    ended = run_grader(f"--limit={limit}", str(starter))
    assert ended.returncode == 2 and "limit" in ended.stderr and ended.stderr.count("\n") == 1
