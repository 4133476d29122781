"""The check queue-races: run the student's queue in many orders of its threads.

A queue in C or Go is part of a server: race_bursts.py builds it again, and sends bursts. In Python it is a class:

    the student's *.py ─┐                      the account of the server
    test_queue.py ──────┴─▶ a directory ─▶ python -m ewe_explore test_queue.py --runs N ─▶ its report

The queue of a model of ewe is a part of its class, so the explorer runs the class, with clients in memory. They
keep their connections until all have their answers; then the same with room for one connection, if the file has a
line `ROOM = N`; then the server is stopped while it serves them.

A client sees a lost wake-up once in a million runs. The explorer (ewe_explore) decides at each lock and each
condition which thread goes on, so it finds one within some hundred schedules. It draws the timeline of the smallest
one, and the verdict quotes this timeline. The number of schedules and the seed are fixed: the mark does not depend
on the speed of the machine.

The grader copies test_queue.py from the lab, so an easier copy in the submission has no effect. The queue runs
within the explorer, so a program could write the explorer's report itself, or change the explorer. After a success
the grader therefore runs the *control*: the same command with a queue that loses each item, or a model that serves
nobody. A report of success is then a forgery. A program that looks for the control could still deceive this check.
The other checks watch the server from outside, and cannot be deceived like this.

Possible failures: the file has no class Queue; it does not end; it imports a module that is not there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import ewe
import ewe_explore
from ewe.scratch import remove
from ewe_classroom.grader import own_model, processes, race_bursts
from ewe_classroom.grader.check import check
from ewe_classroom.grader.library_queues import library_queue, with_imports
from ewe_classroom.grader.sandbox import end_all
from ewe_classroom.grader.scene import Scene
from ewe_classroom.grader.subject import BadSubject
from ewe_classroom.grader.submission import copy

SCENARIOS = Path(__file__).resolve().parents[1] / "labs" / "shared" / "test_queue.py"
SCHEDULES_PER_SCENARIO = 600  # schedules of each scenario; `if` for `while` needs 355
SCHEDULES_PER_MODEL_SCENARIO = 400  # schedules of each of the MODEL_SCENARIOS
EXPLORER_CPU_S = 60.0  # time on a processor: a busy machine costs no points
EXPLORER_ASLEEP_S = 30.0  # nothing wakes an explorer that has slept for so long
MAX_EXPLORER_BYTES = 1 << 30  # memory of the explorer, with the student's queue
MAX_REPORT_BYTES = 1 << 20
SCENARIO_COUNT = SCENARIOS.read_text(encoding="utf-8").count("\ndef scenario_")
# Its groups: the name of a scenario, and the number of its schedules, with a comma between thousands.
PASSED_LINE = re.compile(r"^[^:\n]+\.py: (\w+): no failure in ([\d,]+) runs?", re.MULTILINE)
ROOM_LINE = re.compile(rb"^ROOM = \d+", re.MULTILINE)
SMALLEST_ROOM = b"ROOM = 1"


class ModelScenario(NamedTuple):
    """The behaviour of a model's clients. option: of the explorer. room_for_one: its queue has room for one."""

    text: str
    option: str
    room_for_one: bool = False


MODEL_SCENARIOS = (
    ModelScenario("three clients keep their connections until all have their answers", "--together"),
    ModelScenario("the same, with ROOM = 1", "--together", room_for_one=True),
    ModelScenario(
        "the server is stopped while it serves three clients, with ROOM = 1",
        "--stop-early",
        room_for_one=True,
    ),
)
# The control: lines that break the queue or the model after its file was read.
QUEUE_IMPORT = "\nfrom server import Queue\n"
QUEUE_CONTROL = QUEUE_IMPORT + "\nQueue.put = lambda self, item: None\n"
MODEL_CONTROL = "\n\n{name}.serve = lambda self, listener: None\n"
CONTROL_PASSES = {"scenario_close"}  # the scenarios that put nothing
FORGED = "the program itself reports success: it does so with a queue that loses each item, too"
# The beginnings of lines in the explorer's report: a failure, its explanation, the command that repeats it.
FAILURE, WHY = "✗ ", "Why: "
# The beginnings of the timeline's first line, and of the line between its last one and the failure.
TIMELINE_HEAD, RULE = " line ", "═"
AGAIN_LINE = re.compile(r"^again: (.*)$", re.MULTILINE)


@check(
    "queue-races",
    proves="the queue loses no connection and no wake-up, in every order of its threads that was tried",
    sends=f"Python: no request; the explorer runs the class Queue in {SCHEDULES_PER_SCENARIO:,} orders of each "
    "of six scenarios,"
    f" and a model of ewe in {SCHEDULES_PER_MODEL_SCENARIO:,} orders of each of three."
    " C and Go: bursts of clients, to the server built with -fsanitize=thread or `go build -race`",
    expects="each item is taken once; put() waits while the queue is full; close() wakes every worker,"
    " and ends a put() that waits; and the queue is not a library's",
    why="A lost wake-up shows once in a million runs: on the day when the server has the most clients.",
    hint="Python: run `ewe-explore test_queue.py`; it shows the order of the threads, step by step. The explorer"
    ' imports server.py, so signals and the command line belong below `if __name__ == "__main__"`. A model: run'
    " `ewe-explore model.py --model Mine --clients 3 --together`. C and Go: build"
    " with -fsanitize=thread or `go build -race`, and start many clients at once.",
    languages=("python", "c", "go", "model"),
)
def queue_races(scene: Scene) -> None:
    # The explorer has the server's account. A server that runs could stop it, or write into its memory.
    scene.subject.close()
    start_command = scene.subject.start_command
    if start_command.language == "python":
        source = Path(start_command.command[1])
        expect_own_queue(scene, with_imports(source))
        explore_queue(scene, source)
    elif start_command.language == "model":
        model = start_command.command[start_command.command.index("--model") + 1]  # "model:Mine"
        module, _, name = model.partition(":")
        expect_own_queue(scene, with_imports(start_command.directory / f"{module}.py"))
        explore_model(scene, module, name)
    else:
        sources = race_bursts.unchanged_sources(scene)
        expect_own_queue(scene, [sources.program.parent / name for name in sources.names])
        race_bursts.play_with_detector(scene, has_queue=True)


def expect_own_queue(scene: Scene, files: list[Path]) -> None:
    """Fail if a file uses the queue of a library."""
    found = library_queue(scene.subject.start_command.language, files)
    if found:
        scene.fail(found, "write the queue with one lock and two conditions: no library's queue")


def explore_queue(scene: Scene, source: Path) -> None:
    """Run the class Queue of a file under the explorer; fail if a scenario fails."""
    directory = copy_of_submission(scene, source.parent)
    # The scenarios import `server`, but the submission may have another name.
    if source.name != "server.py" and (directory / source.name).is_file():
        (directory / source.name).rename(directory / "server.py")
    copy(SCENARIOS, directory / SCENARIOS.name)
    done = explore(scene, directory, [SCENARIOS.name, "--runs", str(SCHEDULES_PER_SCENARIO)])
    passed = PASSED_LINE.findall(done.report)
    if done.exit_status == 0 and len({name for name, _ in passed}) == SCENARIO_COUNT:
        # The control (see above): the same scenarios with a queue that loses each item.
        broken = SCENARIOS.read_text(encoding="utf-8").replace(QUEUE_IMPORT, QUEUE_CONTROL)
        (directory / SCENARIOS.name).write_text(broken, encoding="utf-8")
        expect_failure(scene, directory, [SCENARIOS.name, "--runs", str(SCHEDULES_PER_SCENARIO)])
        schedules = sum(int(count.replace(",", "")) for _, count in passed)
        scene.confirm(f"{len(passed)} scenarios passed in {schedules:,} orders of their threads")
        return
    fail(scene, done.report)


def explore_model(scene: Scene, module: str, name: str) -> None:
    """Run the class `name` of a model under the explorer; fail if it fails in one of MODEL_SCENARIOS."""
    directory = copy_of_submission(scene, scene.subject.start_command.directory)
    file = directory / f"{module}.py"
    runs = ("--runs", str(SCHEDULES_PER_MODEL_SCENARIO))
    schedules = 0
    for scenario in MODEL_SCENARIOS:
        if scenario.room_for_one and file.is_file():
            file.write_bytes(ROOM_LINE.sub(SMALLEST_ROOM, file.read_bytes()))
        arguments = [file.name, "--model", name, "--clients", "3", scenario.option, *runs]
        done = explore(scene, directory, arguments)
        passed = PASSED_LINE.findall(done.report)
        if done.exit_status != 0 or not passed:
            fail(scene, done.report, f"the explorer ran {name} of {file.name}: {scenario.text}")
        schedules += sum(int(count.replace(",", "")) for _, count in passed)
    with file.open("a", encoding="utf-8") as broken:
        broken.write(MODEL_CONTROL.format(name=name))
    expect_failure(scene, directory, arguments)  # the last scenario again
    scene.confirm(f"{len(MODEL_SCENARIOS)} scenarios passed in {schedules:,} orders of their threads")


def expect_failure(scene: Scene, directory: Path, arguments: list[str]) -> None:
    """Run the explorer for the control, which no honest report passes; fail if this one does."""
    report = explore(scene, directory, arguments).report
    if {name for name, _ in PASSED_LINE.findall(report)} - CONTROL_PASSES:
        scene.fail(
            FORGED,
            "leave the report to the explorer: print nothing in its name, and change none of its parts",
            sent="the explorer ran the queue with a put() that loses each item, or a model without serve()",
        )


def fail(scene: Scene, report: str, sent: str = "") -> None:
    """Fail the check with the failure that a report of the explorer shows, or else with its last line."""
    report_lines = [line for line in report.splitlines() if line.strip()]
    headline = paragraph_of(report, FAILURE)
    again = AGAIN_LINE.search(report)
    scenario = re.search(r"--scenario (\w+)", again[1]) if again else None
    scene.schedule = timeline_of(report)
    scene.fail(
        headline or (report_lines[-1] if report_lines else "the explorer has written nothing"),
        "keep every item and every wake-up in each order of the threads",
        paragraph_of(report, WHY) + (f" Run `{again[1]}` in your directory." if again else ""),
        sent=f"the explorer ran {scenario[1]} of test_queue.py" if scenario else sent,
    )


def paragraph_of(report: str, begin: str) -> str:
    """Return the paragraph of a report whose first line begins with `begin`, without `begin`; "" if there is none.

    The paragraph ends at an empty line, or where the explanation (WHY) begins.
    """
    # A line feed before the report, so that its first line is found like any other line.
    _, found, after = ("\n" + report).partition("\n" + begin)
    if not found:
        return ""
    lines = []
    for line in after.splitlines():
        if not line.strip() or line.startswith(WHY):
            break
        lines.append(line.strip())
    return " ".join(lines)


def timeline_of(report: str) -> str:
    """Return the timeline above the failure in a report of the explorer: the smallest schedule that fails.

    Return "" if there is none. Without threads there is nothing to draw.
    """
    before, found, _ = ("\n" + report).partition("\n" + FAILURE)
    lines = before.splitlines() if found else []
    heads = [number for number, line in enumerate(lines) if line.startswith(TIMELINE_HEAD)]
    return "\n".join(line for line in lines[heads[-1] :] if not line.startswith(RULE)) if heads else ""


def copy_of_submission(scene: Scene, source: Path) -> Path:
    """Copy the Python files of a submission's directory to a new directory; return it.

    The check adds its own files to the copy: the scenarios, and the control that has to fail.
    """
    directory = scene.subject.output.parent / "queue"
    # shutil.rmtree() of Python 3.11 calls itself for each level, and a program may have made a thousand of them.
    remove(str(directory))
    directory.mkdir()
    directory.chmod(0o755)  # the explorer may run as another account
    for file in sorted(source.glob("*.py")):
        try:
            copy(file, directory / file.name)
        except BadSubject:
            continue  # a link, or a file that is too large
    return directory


class ExplorerRun(NamedTuple):
    """A finished run of the explorer. report: the first MAX_REPORT_BYTES of its output."""

    exit_status: int
    report: str


def explore(scene: Scene, directory: Path, arguments: list[str]) -> ExplorerRun:
    """Run the explorer in a directory as the server's account. Fail if it does not end (wait())."""
    # The explorer needs ewe, which may be hidden from the server, but none of ewe's models.
    limits = replace(
        scene.subject.limits, also_hidden=own_model.hidden_parts("model"), data_bytes=MAX_EXPLORER_BYTES
    )
    homes = {str(Path(package.__file__ or "").resolve().parents[1]) for package in (ewe, ewe_explore)}
    command = [sys.executable, "-P", "-m", "ewe_explore", *arguments]
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sorted(homes)), "COLUMNS": "100"}
    before = set(processes.children_of_grader())
    report_file = scene.subject.output.parent / "queue-report"
    with report_file.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env={**environment, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, preexec_fn=limits,
        )  # fmt: skip
        try:
            wait(scene, process)
        finally:
            end_all(process, before, limits.account)
    with report_file.open("rb") as report:
        return ExplorerRun(process.returncode, report.read(MAX_REPORT_BYTES).decode(errors="replace"))


def wait(scene: Scene, process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the explorer. Fail the check after EXPLORER_CPU_S, or if all its threads sleep.

    A limit of processor time, and not of time: on a busy machine, the same work takes longer.
    """
    used_s, awake_at = 0.0, time.monotonic()
    while process.poll() is None:
        scene.pump(0.05)
        now_s = sum(map(processes.cpu_s, processes.family([process.pid])))
        if now_s != used_s:
            used_s, awake_at = now_s, time.monotonic()
        asleep = all(task.asleep for task in processes.tasks([process.pid]).values())
        if asleep and time.monotonic() - awake_at > EXPLORER_ASLEEP_S:
            scene.fail(
                f"the queue's scenarios did not end: all threads have slept for {EXPLORER_ASLEEP_S:g} s",
                "end: each scenario starts two or three threads for three items",
                "a call that waits outside of the queue, or when server.py is imported: keep it in main()",
            )
        if used_s > EXPLORER_CPU_S:
            scene.fail(
                f"the queue's scenarios did not end within {used_s:.0f} s of processor time",
                "end: each scenario starts two or three threads for three items",
                "a loop outside of the queue, or work when server.py is imported: keep it in main()",
            )
