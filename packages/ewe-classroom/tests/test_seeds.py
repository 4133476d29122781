"""Numbers of a student: the same in the handout and in the grader, and others for another student."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from classroom_server import GRADER

from ewe_classroom.course import cli as course_cli
from ewe_classroom.grader import cli as grade_cli
from ewe_classroom.grader.subject import ServedFiles
from ewe_classroom.seeds import Seed

PORT, WORKERS = 8685, 3
FILES = ["/gate-972.txt", "/bell-966.bin", "/clover/barn-722.txt"]
NAMES = [f"student {number}" for number in range(200)]


def test_numbers_are_stable_and_spread() -> None:
    ada = Seed("Ada Lovelace")
    # These values are in handouts that students have: they must not change from release to release.
    assert (ada.port, ada.workers(4), ada.workers(1)) == (PORT, WORKERS, 1)
    assert list(ada.files()) == FILES
    for name in (" ada  lovelace\n", "ADA LOVELACE"):
        assert Seed(name).port == ada.port
        assert Seed(name).order("x", "abcde") == ada.order("x", "abcde")
    assert Seed("J\u00fcrgen").port == Seed("Ju\u0308rgen").port
    # Persian and Arabic letters, and a blank that does not break
    assert (
        Seed.read("\u0639\u0644\u06cc\u200c\u0631\u0636\u0627").port
        == Seed("\u0639\u0644\u06cc\u0631\u0636\u0627").port
    )
    assert Seed.read("ada\u00a0lovelace\u200e").port == ada.port
    # What a page shows keeps the spelling, and nothing that turns the order of letters round.
    assert Seed("\u06cc\u200c\u0631\u00a0x\u202e").name == "\u06cc\u200c\u0631 x"
    workers = [Seed(name).workers(4) for name in NAMES]
    assert {workers.count(number) > 30 for number in (3, 4, 5, 6)} == {True} and len(set(workers)) == 4
    assert len({Seed(name).port for name in NAMES}) > 150
    assert len({tuple(Seed(name).order("gates", "abc")) for name in NAMES}) == 6
    assert {Seed(name).choice("tie", ("first", "last")) for name in NAMES} == {"first", "last"}
    for name in NAMES[:20]:
        sizes = [len(content) for content in Seed(name).files().values()]
        assert len(sizes) == 3 and all(1000 <= size <= 90_000 for size in sizes)


def test_the_handout_and_the_grader_have_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert course_cli.main(["new", "pool", str(tmp_path / "h"), "--seed", "Ada Lovelace"]) == 0
    assert "ewe-grade --lab pool --seed 'Ada Lovelace' server.py" in capsys.readouterr().out
    readme = (tmp_path / "h" / "README.md").read_text()
    assert f"| port | {PORT} |" in readme and f"| workers | {WORKERS} |" in readme
    assert "ewe-grade --lab pool --seed 'Ada Lovelace' server.py" in readme
    assert f"python3 server.py {PORT} site {WORKERS}" in readme
    (tmp_path / "site").mkdir()
    site = ServedFiles(tmp_path / "site", Seed("ada lovelace"))
    assert list(site.seed_files) == FILES
    for path in FILES:
        mine = (tmp_path / "h" / "site" / path[1:]).read_bytes()
        assert mine == site.files[path]
        size = re.search(rf"\| `{path}` \| ([\d,]+) bytes", readme)
        assert size is not None and int(size[1].replace(",", "")) == len(mine)
        assert (site.root / path[1:]).parent.stat().st_mode & 0o777 == 0o755
    assert course_cli.main(["new", "serial", str(tmp_path / "s"), "--seed", "J\u00fc"]) == 0
    assert course_cli.main(["new", "measure", str(tmp_path / "m"), "--seed", "Bo"]) == 0
    assert not (tmp_path / "m" / "site").exists()  # it grades no server
    assert course_cli.main(["new", "serial", str(tmp_path / "t")]) == 0
    assert "Your numbers" not in (tmp_path / "t" / "README.md").read_text()
    assert not (tmp_path / "t" / "site").exists()


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\x1bb"])
def test_a_name_that_is_none_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade_cli.main(["--seed", name, "--command", "true {port}"]) == 2
    assert course_cli.main(["new", "pool", str(tmp_path), "--seed", name]) == 2
    said = capsys.readouterr().err
    assert said.count("--seed: ") == 2 and said.count("\n") == 2


@pytest.mark.starts_processes
def test_a_server_with_the_numbers_of_another_student_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pool with 4 threads, always: {workers} of Ada Lovelace is another number."""
    assert course_cli.main(["solution", "pool", str(tmp_path / "s")]) == 0
    server = f"python3 {tmp_path / 's' / 'server.py'} {{port}} {{root}}"
    for workers, passes in (("{workers}", True), (str(WORKERS % 6 + 1), False)):
        done = subprocess.run(
            [*GRADER, "--lab", "pool", "--seed", "ada lovelace", "--only", "answers", "--only", "exactly-n",
             "--json", str(tmp_path / "r.json"), "--command", f"{server} {workers}"],
            capture_output=True, text=True, timeout=170,
        )  # fmt: skip
        assert done.returncode == (0 if passes else 1), done.stdout + done.stderr
        report = json.loads((tmp_path / "r.json").read_text())
        assert (
            report["student"] == "ada lovelace" and "--seed 'ada lovelace'" in report["verdicts"][0]["again"]
        )
        assert report["verdicts"][0]["facts"] == ["8 files arrived unchanged"]
