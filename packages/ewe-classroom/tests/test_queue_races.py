"""The check queue-races: each fault of a queue is found with its cause, and the right queue passes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from classroom_server import run_grader

from ewe_classroom.course.labs import lab
from ewe_classroom.grader import queue_races, race_bursts
from ewe_classroom.grader.processes import ThreadSample
from ewe_classroom.grader.sanitizers import SanitizedBuild
from ewe_classroom.grader.scene import Findings, Scene

pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(180)]
FILES = lab("pool").files(lab("pool").variant("python"), solved=True)
STARTER = lab("pool").files(lab("pool").variant("python"), solved=False)["server.py"]
GET_WAITS = "            while not self.items and not self.closed:\n"
PUT_WAITS = "            while len(self.items) >= self.room and not self.closed:\n"
CLOSED_PUT = "            if self.closed:\n                return False\n"
IMPORT = "import signal\n"
NOTIFY = "            self.not_empty.notify()\n            return True\n"
# Schedules of a scenario in which each fault shows but `if` for `while`. The explorer needs 3 ms for a schedule.
FEW_SCHEDULES: dict[str, float] = {
    f"{queue_races.__name__}.{name}": 60
    for name in ("SCHEDULES_PER_SCENARIO", "SCHEDULES_PER_MODEL_SCENARIO")
}


def verdict(
    directory: Path, source: str, *options: str, constants: dict[str, float] | None = None
) -> dict[str, object]:
    """Grade a server by the check; return its verdict. constants: None for the check's own."""
    for name, text in {**FILES, "server.py": source}.items():
        (directory / name).write_text(text)
    report = directory / "report.json"
    command = ["--lab", "pool", "--only", "queue-races", "--json", str(report), *options]
    ended = run_grader(*command, str(directory / "server.py"), constants=constants)
    assert "Traceback" not in ended.stderr, ended.stderr
    (found,) = json.loads(report.read_text())["verdicts"]
    return dict(found)


def test_the_solution_passes(tmp_path: Path) -> None:
    found = verdict(tmp_path, FILES["server.py"])
    assert found["status"] == "passed", found["text"]
    assert found["facts"] == ["6 scenarios passed in 3,023 orders of their threads"]


@pytest.mark.parametrize(
    ("before", "after", "scenario", "says"),
    [
        pytest.param(
            GET_WAITS, GET_WAITS.replace("while", "if"), "", "None, and nobody has called close", id="if-get"
        ),
        pytest.param(
            PUT_WAITS, PUT_WAITS.replace("while", "if"), "scenario_full", "did not wait", id="if-put"
        ),
        pytest.param(
            NOTIFY,
            NOTIFY.replace("            self", "            if len(self.items) == 1:\n                self"),
            "scenario_one_each",
            "deadlock",
            id="lost-wake-up",
        ),
        pytest.param("empty.notify_all()", "empty.notify()", "", "deadlock", id="close-wakes-one"),
        pytest.param(
            PUT_WAITS + "                self.not_full.wait()\n",
            "",
            "scenario_full",
            "did not wait",
            id="unbounded",
        ),
        pytest.param(
            "            self.not_full.notify()\n", "", "scenario_full", "deadlock", id="nobody-told-of-room"
        ),
        pytest.param(
            "            self.not_full.notify_all()\n",
            "",
            "scenario_stop_full",
            "deadlock",
            id="close-wakes-no-put",
        ),
        pytest.param(CLOSED_PUT, "", "scenario_stop", "get() returned ['a']", id="item-lost-after-close"),
        pytest.param(
            "self.closed = True\n            self",
            "self.closed = True\n            self.items.clear()\n            self",
            "scenario_all_items",
            "['a', 'b']|['a']|[]",
            id="close-loses-items",
        ),
        pytest.param(
            CLOSED_PUT,
            CLOSED_PUT.replace("return False", "raise ValueError"),
            "scenario_stop",
            "dies of ValueError",
            id="put-raises",
        ),
        pytest.param("def get", "def take", "", "no attribute 'get'", id="no-get"),
        pytest.param("Queue", "Line", "", "cannot import name 'Queue'", id="no-queue"),
        pytest.param(
            IMPORT,
            IMPORT + 'if __name__ == "server":\n    import no_such_module\n',
            "",
            "no_such_module",
            id="import-fails",
        ),
    ],
)
def test_a_fault_is_found_with_its_cause(
    tmp_path: Path, before: str, after: str, scenario: str, says: str
) -> None:
    text = FILES["server.py"]
    assert before in text
    is_found_late = after == before.replace("while", "if")
    constants = None if is_found_late else FEW_SCHEDULES
    found = verdict(tmp_path, text.replace(before, after), constants=constants)
    assert (found["status"], found["score"]) == ("failed", 0), found
    assert any(part in str(found["did"]) for part in says.split("|")), found["text"]
    assert scenario in str(found["sent"])
    if "deadlock" in says:
        assert "ewe-explore test_queue.py --scenario" in str(found["because"])
        head, _, *steps = str(found["schedule"]).splitlines()
        assert head.startswith(" line ") and len(head.split()) > 2, "a column for each thread"
        assert len(steps) > 3 and not any(line.startswith(("═", "✗")) for line in steps), found["text"]


REPORT = """test_queue.py: scenario_all_items: no failure in 600 runs
 line main          worker 1
      ━━━━━━━━━━━━  ━━━━━━━━━━━━
  12  put(1)        │
════════════════════════════════
✗ deadlock: worker 1 waits

Why: it waits
"""


@pytest.mark.parametrize(
    ("report", "timeline"),
    [
        (REPORT, "\n".join(REPORT.splitlines()[1:4])),
        ("✗ the file has no class Queue\n", ""),
        (REPORT.partition("✗")[0], ""),
        ("", ""),
    ],
    ids=["a failure", "without threads", "no failure", "nothing"],
)
def test_the_smallest_schedule_is_the_timeline_above_the_failure(report: str, timeline: str) -> None:
    assert queue_races.timeline_of(report) == timeline


def test_the_starter_fails(tmp_path: Path) -> None:
    assert verdict(tmp_path, STARTER)["status"] == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "while True:\n    pass\n",
        "import os\nos._exit(0)\n",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "print('test_queue.py: scenario_close: no failure in 600 runs', flush=True)\nimport os\nos._exit(0)\n",
    ],
)
def test_a_file_that_ends_or_does_not_end_when_it_is_imported_has_no_points(
    tmp_path: Path, text: str
) -> None:
    """The server itself serves: only an import shows the difference."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    source = FILES["server.py"].replace(IMPORT, f'{IMPORT}if __name__ == "server":\n{lines}', 1)
    found = verdict(tmp_path, source, "--limit", "20")
    assert found["score"] == 0 and found["status"] in ("failed", "not run"), found


IF_IN_GET = (GET_WAITS, GET_WAITS.replace("while", "if"))
PRINTS_THE_REPORT = """import os
for name in ("one_each", "all_items", "full", "close", "stop", "stop_full"):
    os.write(1, f"test_queue.py: scenario_{name}: no failure in 600 runs\\n".encode())
os._exit(0)
"""
# The search of the first scenario is under way; those of the others do nothing.
CHANGES_THE_SEARCH = """import sys
import types
cli = sys.modules["ewe_" + "explore.cli"]
result = types.SimpleNamespace(failure=None)
def search(program, options):
    result.text = lambda *more, **named: f"test_queue.py: {program.scenario}: no failure in 600 runs"
    return result
cli.search = search
"""


@pytest.mark.parametrize(
    "lines", [PRINTS_THE_REPORT, CHANGES_THE_SEARCH], ids=["prints the report", "changes the search"]
)
def test_a_report_that_the_program_makes_itself_has_no_points(tmp_path: Path, lines: str) -> None:
    """Within the explorer, the program replaces its report. The control shows that it does so for any queue."""
    text = FILES["server.py"].replace(PUT_WAITS, PUT_WAITS.replace("while", "if"))
    inner = "".join(f"    {line}\n" for line in lines.splitlines())
    found = verdict(tmp_path, text.replace(IMPORT, f'{IMPORT}if __name__ == "server":\n{inner}', 1))
    assert (found["status"], found["score"]) == ("failed", 0), found
    assert found["did"] == queue_races.FORGED


WATCHES = """if __name__ == "__main__":
    import glob, os, threading, time

    def parent_of(words):
        return int(open(words.replace("cmdline", "stat")).read().rpartition(")")[2].split()[1])

    def watch():
        while True:
            for each in glob.glob("/proc/[0-9]*/cmdline"):
                try:
                    if b"ewe_explore" in open(each, "rb").read() and parent_of(each) == os.getppid():
                        open(SEEN, "w").close()
                except OSError:
                    pass
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
"""


def test_the_server_does_not_run_beside_the_explorer(tmp_path: Path) -> None:
    """Both have one account: the server could stop the explorer, or change its memory."""
    seen = tmp_path / "seen"
    watches = WATCHES.replace("SEEN", repr(str(seen)))
    found = verdict(tmp_path, FILES["server.py"].replace(IMPORT, f"{IMPORT}{watches}", 1))
    assert found["status"] == "passed" and not seen.exists(), found["text"]


@pytest.mark.needs("a mount namespace")
def test_the_explorer_shows_no_model_of_ewe_to_the_queue(tmp_path: Path) -> None:
    """The queue could keep a copy of the model, and a later start of the server run it."""
    lines = [
        'if __name__ == "server":',
        "    import os, sys",
        '    home = os.path.dirname(sys.modules["ewe"].__file__)',
        '    assert not os.path.getsize(os.path.join(home, "processors", "pool.py")), "a model can be read"',
    ]
    source = FILES["server.py"].replace(IMPORT, IMPORT + "\n".join([*lines, ""]), 1)
    found = verdict(tmp_path, source, constants=FEW_SCHEDULES)
    assert found["status"] == "passed", found["text"]


class StillScene:
    """A scene without clients. Its checks fail with their words."""

    def pump(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def fail(self, *words: str) -> None:
        raise AssertionError(words[0])


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("while True:\n    pass", "did not end within 1 s of processor time"),
        ("import time\ntime.sleep(60)", "did not end: all threads have slept for 1.5 s"),
        ("import time\nfor _ in range(20):\n    time.sleep(0.1)\n    sum(range(300_000))", ""),
    ],
    ids=["spins", "sleeps", "waits for a busy machine"],
)
def test_the_limit_of_the_explorer_is_processor_time(
    monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    monkeypatch.setattr(queue_races, "EXPLORER_CPU_S", 1.0)
    monkeypatch.setattr(queue_races, "EXPLORER_ASLEEP_S", 1.5)
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            with pytest.raises(AssertionError, match=says) if says else nullcontext():
                queue_races.wait(cast(Scene, StillScene()), process)
            assert says or process.returncode == 0
        finally:
            process.kill()


def test_a_client_that_still_connects_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small backlog, the kernel of a client sends its next SYN only after seconds."""
    monkeypatch.setattr(race_bursts, "MIN_LOOKS", 1)
    asleep = {1: ThreadSample(1, 1, "S", turns=0, ran_s=0.0, queued_s=0.0)}
    scene = SimpleNamespace(
        pump=time.sleep,
        subject=SimpleNamespace(tasks=lambda: asleep, running=lambda: [1]),
        connecting=lambda: True,
        workers=4,
        findings=Findings(),
        note=lambda **_: None,
    )
    bursts = race_bursts.Bursts(cast(Scene, scene), cast(SanitizedBuild, None))
    bursts.hang_s = 0.1
    connects_at = time.monotonic() + 0.4
    assert bursts.wait(lambda: time.monotonic() > connects_at, "it connects")


def test_the_bursts_name_the_waits_that_they_have_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may wait at more places than the check has time for."""
    started: list[str] = []
    said: list[str] = []
    scene = SimpleNamespace(workers=4, findings=Findings(), confirm=said.append)
    bursts = race_bursts.Bursts(cast(Scene, scene), cast(SanitizedBuild, None))
    monkeypatch.setattr(race_bursts, "MAX_POSITIONS", 2)
    monkeypatch.setattr(bursts, "start", lambda spurious="": started.append(spurious))
    for name in ("serve_bursts", "stop"):
        monkeypatch.setattr(bursts, name, lambda *_: None)
    monkeypatch.setattr(bursts, "traced_positions", lambda: ["pool.c:1", "pool.c:2", "pool.c:3"])
    bursts.play(has_queue=False)
    assert started == ["", "", "pool.c:1", "pool.c:2"]
    assert said[0].endswith("; the waits at pool.c:1, pool.c:2 test again")


def test_a_test_queue_of_the_student_has_no_effect(tmp_path: Path) -> None:
    (tmp_path / "test_queue.py").write_text("def scenario():\n    pass\n")
    source = FILES["server.py"].replace("empty.notify_all()", "empty.notify()")
    found = verdict(tmp_path, source, constants=FEW_SCHEDULES)
    assert found["status"] == "failed"


def test_a_program_in_another_language_has_one_check_less(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    (tmp_path / "server").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "server").chmod(0o755)
    run_grader("--lab", "pool", "--limit", "1", "--json", str(report), str(tmp_path / "server"))
    found = json.loads(report.read_text())
    assert "queue-races" not in [each["name"] for each in found["verdicts"]] and found["max_score"] == 136


MODEL = lab("pool").files(lab("pool").variant("model"), solved=True)["model.py"]
MODEL_STARTER = lab("pool").files(lab("pool").variant("model"), solved=False)["model.py"]
ONE_CONDITION = "                stream = self.waiting.popleft()\n                self.changed.notify_all()\n"
APPENDED = "            self.waiting.append(stream)\n            self.changed.notify_all()\n"


def model_verdict(
    directory: Path, source: str, constants: dict[str, float] | None = FEW_SCHEDULES
) -> dict[str, object]:
    """Grade a model by the check; return its verdict. constants: None for the check's own."""
    (directory / "model.py").write_text(source)
    report = directory / "report.json"
    command = ["--lab", "pool", "--only", "queue-races", "--json", str(report)]
    run_grader(*command, str(directory / "model.py"), constants=constants)
    (found,) = json.loads(report.read_text())["verdicts"]
    return dict(found)


def test_the_model_of_the_solution_passes(tmp_path: Path) -> None:
    found = model_verdict(tmp_path, MODEL, constants=None)
    assert found["status"] == "passed", found["text"]
    assert found["facts"] == ["3 scenarios passed in 1,200 orders of their threads"]


@pytest.mark.parametrize(
    ("edits", "sent", "says"),
    [
        pytest.param([("while not self.waiting", "if not self.waiting")], "keep", "IndexError", id="if-get"),
        pytest.param([("range(self.config.poolthreads)", "range(1)")], "keep", "no answer", id="one-worker"),
        pytest.param(
            [
                (APPENDED, APPENDED.replace(
                    "            self.c", "            if len(self.waiting) == 1:\n                self.c"
                ).replace("notify_all", "notify")),
                (ONE_CONDITION, ONE_CONDITION.partition("\n")[0] + "\n"),
            ],
            "keep", "no answer", id="lost-wake-up",
        ),
        pytest.param(
            [(ONE_CONDITION, ONE_CONDITION.partition("\n")[0] + "\n")],
            "the same, with ROOM = 1", "deadlock", id="nobody-told-of-room",
        ),
        pytest.param([("        self.drain()\n", "")], "", "have not ended", id="no-drain"),
        pytest.param([("import threading", "import queue, threading")], "", "module queue", id="library"),
        pytest.param([("import threading", "import no_such, threading")], "", "", id="import-fails"),
    ],
)  # fmt: skip
def test_a_fault_of_a_model_is_found(
    tmp_path: Path, edits: list[tuple[str, str]], sent: str, says: str
) -> None:
    source = MODEL
    for before, after in edits:
        assert before in source
        source = source.replace(before, after)
    found = model_verdict(tmp_path, source)
    assert (found["score"], found["status"]) != (20, "passed"), found
    assert says in str(found["did"]) and sent in str(found["sent"]), found


def test_a_report_that_a_model_makes_itself_has_no_points(tmp_path: Path) -> None:
    lines = """import os, sys
if any("explore" in name for name in sys.modules):
    os.write(1, b"model.py: Mine: no failure in 400 runs\\n")
    os._exit(0)
"""
    found = model_verdict(tmp_path, MODEL.replace("import threading\n", f"import threading\n{lines}", 1))
    assert (found["status"], found["did"]) == ("failed", queue_races.FORGED), found


def test_the_starter_of_a_model_fails(tmp_path: Path) -> None:
    assert model_verdict(tmp_path, MODEL_STARTER)["status"] == "failed"


# Programs in C and Go that silence the race detector

RACE_IN_C = ("        converse(connection, root);", "        served++;\n        converse(connection, root);")
PASTED_NAME = """
#define JOIN(a, b) a##b
const char *JOIN(__ts, an_default_options)(void);
const char *JOIN(__ts, an_default_options)(void) { return "report_bugs=0"; }
"""
ASSEMBLED_NAME = """
__asm__(".text; .globl __ts" "an_default_options; __ts" "an_default_options: lea words_of_it(%rip), %rax; ret\\n"
        "words_of_it: .asciz \\"report_bugs=0\\"");
"""
STARTS_AGAIN = """
int strcmp(const char *, const char *);
__attribute__((constructor)) static void again(int count, char **words)
{
    char name[] = "TSAM_OPTIONS";
    name[3]++;
    if (count == 0 || getenv(name) == NULL || strcmp(getenv(name), "report_bugs=0") == 0)
        return;
    setenv(name, "report_bugs=0", 1);
    execv("/proc/self/exe", words);
}
"""
# As a server does that writes a log.
WRITES_ELSEWHERE = """
#include <fcntl.h>
__attribute__((constructor)) static void elsewhere(void)
{
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    dup2(null, 2);
}
"""
REMOVES_REPORTS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((destructor)) static void removes(void)
{
    char name[] = "TSAM_OPTIONS", line[4096];
    name[3]++;
    if (getenv(name) == NULL)
        return;
    snprintf(line, sizeof line, "rm -f %s.*", strstr(getenv(name), "log_path=") + 9);
    if (system(line) != 0)
        abort();
}
"""
# The words of a report in the server's own output are none of the detector's.
SAYS_ITSELF = 'fprintf(stderr, "WARNING: ThreadSanitizer: data race (pid=1)\\n");'
SAYS_AND_REMOVES = REMOVES_REPORTS.replace("    snprintf", f"    {SAYS_ITSELF}\n    snprintf")
WRITES_DECOYS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((constructor)) static void writes(void)
{
    char name[] = "TSAM_OPTIONS", path[4096];
    name[3]++;
    char *found = getenv(name) == NULL ? NULL : strstr(getenv(name), "log_path='");
    for (int number = 0; found != NULL && number < 40; number++) {
        snprintf(path, sizeof path, "%s", found + 10);
        snprintf(strchr(path, 39), 20, ".%d", number);
        FILE *file = fopen(path, "w");
        if (file != NULL)
            fclose(file);
    }
}
"""
GO_STARTS_AGAIN = """
var served int

func init() {
	if name := "GO" + "RACE"; os.Getenv(name) != "" && os.Getenv(name) != "log_path=/dev/null" {
		os.Setenv(name, "log_path=/dev/null")
		syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
}
"""


def built_verdict(directory: Path, way: str, edits: list[tuple[str, str]], more: str) -> dict[str, object]:
    """Build the solution with a fault, and grade it by the check."""
    variant = lab("pool").variant(way)
    source = f"server.{way}"
    for name, text in lab("pool").files(variant, solved=True).items():
        for before, after in edits if name == source else []:
            assert before in text, before
            text = text.replace(before, after, 1)
        (directory / name).write_text(text + (more if name == source else ""))
    subprocess.run(variant.build, shell=True, cwd=directory, check=True, capture_output=True)
    report = directory / "report.json"
    command = ["--lab", "pool", "--only", "queue-races", "--limit", "0", "--json", str(report)]
    run_grader(*command, "--command", f"{directory}/server {{port}} {{root}} {{workers}}")
    (found,) = json.loads(report.read_text())["verdicts"]
    return dict(found)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param("", "a data race on `served`", id="a plain race"),
        pytest.param(PASTED_NAME, "names the race detector: after the preprocessor", id="a pasted name"),
        pytest.param(ASSEMBLED_NAME, "names the race detector: after the compiler", id="an assembled name"),
        pytest.param(STARTS_AGAIN, "started itself again with TSAN_OPTIONS=", id="other options"),
        pytest.param(WRITES_ELSEWHERE, "a data race on `served`", id="another error output"),
        pytest.param(REMOVES_REPORTS, "the report is not there", id="no reports"),
        pytest.param(SAYS_AND_REMOVES, "the report is not there", id="no reports, and words in the output"),
        pytest.param(WRITES_DECOYS, "a data race on `served`", id="40 more files"),
    ],
)
def test_a_program_in_c_cannot_silence_the_detector(tmp_path: Path, more: str, says: str) -> None:
    declared = ("static void stop(", "static int served;\n\nstatic void stop(")
    found = built_verdict(tmp_path, "c", [RACE_IN_C, declared], more)
    assert found["status"] == "failed" and says in str(found["did"]), found["text"]


@pytest.mark.needs("gcc")
def test_a_crash_in_c_is_a_crash(tmp_path: Path) -> None:
    """The race detector ends a program after SIGSEGV with the status of a race, and writes another text."""
    crash = "    queue.count++;\n    if (queue.count == 3)\n        *(volatile int *)0 = 1;\n"
    found = built_verdict(tmp_path, "c", [("    queue.count++;\n", crash)], "")
    assert found["status"] == "failed", found["text"]
    assert "DEADLYSIGNAL at server.c:" in str(found["did"]), found["text"]
    assert "`*(volatile int *)0 = 1;`" in str(found["did"]), found["text"]


@pytest.mark.needs("gcc")
def test_a_server_in_c_may_end_with_any_status(tmp_path: Path) -> None:
    """66 is EX_NOINPUT of sysexits.h, and without an option the status of the race detector, too."""
    found = built_verdict(
        tmp_path, "c", [("    drain();\n    return 0;", "    drain();\n    return 66;")], ""
    )
    assert found["status"] == "passed", found["text"]


@pytest.mark.needs("gcc")
def test_a_server_in_c_may_wait_by_pselect(tmp_path: Path) -> None:
    """The race detector runs the handler of a signal late if it does not know the call that the signal ends."""
    edits = [
        (
            "struct pollfd watched = {listener, POLLIN, 0};",
            "fd_set watched; FD_ZERO(&watched); FD_SET(listener, &watched);",
        ),
        ("ppoll(&watched, 1, NULL, &none)", "pselect(listener + 1, &watched, NULL, NULL, NULL, &none)"),
    ]
    found = built_verdict(tmp_path, "c", edits, "struct calls { int (*select)(int); };\n")
    assert found["status"] == "passed", found["text"]


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("parts", ["one", "two", "three"])
def test_a_server_in_c_may_have_no_makefile(tmp_path: Path, parts: str) -> None:
    """One: the conversation is in server.c. Three: so is a part of the server in logarithm.c, which needs -lm."""
    files = lab("pool").files(lab("pool").variant("c"), solved=True)
    server, conversation = files["server.c"], files["conversation.c"]
    if parts == "one":
        include = '#include "conversation.h"'
        texts = {"server.c": f"{files['conversation.h']}{conversation}{server}".replace(include, "")}
    else:
        texts = {name: files[name] for name in ("server.c", "conversation.c", "conversation.h")}
    if parts == "three":
        wait = "    while (!stopping) {\n"
        called = server.replace(wait, f"    if (logarithm(argc) < 0)\n        return 3;\n{wait}")
        texts["server.c"] = f"double logarithm(double of);\n{called}"
        texts["logarithm.c"] = "#include <math.h>\ndouble logarithm(double of) { return log(of); }\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    sources = sorted(name for name in texts if name.endswith(".c"))
    command = ["cc", "-D_GNU_SOURCE", "-o", "server", *sources, "-lpthread", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    report = tmp_path / "report.json"
    command = ["--lab", "pool", "--only", "queue-races", "--limit", "0", "--json", str(report)]
    run_grader(*command, "--command", f"{tmp_path}/server {{port}} {{root}} {{workers}}")
    (found,) = json.loads(report.read_text())["verdicts"]
    assert found["status"] == "passed", found["text"]


@pytest.mark.needs("Go")
def test_a_program_in_go_cannot_silence_the_detector(tmp_path: Path) -> None:
    edits = [
        (
            "\t\t\t\t\tConverse(connection, root)\n",
            "\t\t\t\t\tserved++\n\t\t\t\t\tConverse(connection, root)\n",
        ),
        ('\t"net"\n', '\t"net"\n\t"os"\n'),
        ('\t"sync"\n', '\t"sync"\n\t"syscall"\n'),
    ]
    found = built_verdict(tmp_path, "go", edits, GO_STARTS_AGAIN)
    assert found["status"] == "failed" and "started itself again with GORACE=" in str(found["did"]), found[
        "text"
    ]
