"""The leaderboard: the listed servers and their order, pseudonyms, and its page, CSV and JSON."""

from __future__ import annotations

import csv
import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from classroom_server import make_nested

from ewe.scratch import remove
from ewe_classroom.course import cli
from ewe_classroom.course.leaderboard import pseudonyms
from ewe_classroom.course.leaderboard_page import ticks


def result(name: str, rate: float, **more: Any) -> dict[str, Any]:
    """Return the output of ewe-grade --speed --json for a server: the parts that a leaderboard reads."""
    speed = {
        "reference": "ewe --model pool", "claim": 16, "failure": more.pop("failure", ""), "noisy": False,
        "rates": {"8": {}, "16": {"median": rate, "low": rate * 0.9, "high": rate * 1.1, "pairs": 5}},
        "p99": 1.25, "cpu": None, "memory_kib": 8.5, **more.pop("speed", {}),
    }  # fmt: skip
    return {
        "format": "ewe-grade/1", "lab": "pool", "title": "The <pool>", "student": name, "began": 5.0, "score": 7,
        "max_score": 9, "verdicts": [{"name": "a", "status": "passed"}, {"name": "b", "status": "failed"}],
        "speed": speed, **more,
    }  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for number, table in enumerate(
        [
            result("Bo <b>", 0.5),
            result("Ada", 0.9, began=1.0),
            result("Ada", 1.5, began=2.0),
            result("=1+1", 0.7),
            result("Di", 0.8, speed={"noisy": True}),
            result("Ed", 0.0, failure="with 32 clients at once: reset"),
            result("", 0.1, speed={"cpu": 0.5}),
        ]
    ):
        file = tmp_path / f"s{number}" / "report.json"
        file.parent.mkdir()
        file.write_text(json.dumps(table))
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "nan.json").write_text(json.dumps(result("Nan", float("nan"))))
    return tmp_path


def board(*arguments: str) -> int:
    return cli.main(["leaderboard", *arguments])


def test_the_standings(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: directory / "out" / name for name in ("csv", "json")}
    assert board(str(directory), *(f"--{name}={file}" for name, file in files.items())) == 0
    shown = capsys.readouterr()
    assert shown.err.count("left out") == 2 and "Traceback" not in shown.err
    rows = json.loads(files["json"].read_text())["rows"]
    # The latest result of a name counts; a noisy one has no rank; one without speed comes last.
    assert [(row["rank"], row["name"], row["rate"]) for row in rows] == [
        (1, "Ada", 1.5), (None, "Di", 0.8), (2, "=1+1", 0.7), (3, "Bo <b>", 0.5), (4, "s6", 0.1), (None, "Ed", 0.0),
    ]  # fmt: skip
    assert rows[-1]["failure"] == "with 32 clients at once: reset" and rows[0]["passed"] == 1
    table = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert [row["name"] for row in table][2] == "'=1+1" and table[0]["cpu"] == "" and table[4]["cpu"] == "0.5"
    assert "no speed: with 32 clients" in shown.out and shown.out.index("Ada") < shown.out.index("Di")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps(result("Infinite", 0.5, score=float("inf"))),
        json.dumps(result("Large", 0.5, began=10**400)),
        json.dumps(result("Far", 0.5, began=1e300)),
        json.dumps(result("Never", 0.5, began=float("nan"))),
    ],
    ids=["lists", "infinite", "large", "far", "never"],
)
def test_a_file_that_a_student_has_made_up_is_left_out(
    directory: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (directory / "made-up.json").write_text(text)
    assert board(str(directory), "--html", str(directory / "board.html")) == 0
    assert "made-up.json: not a file that ewe-grade --json has written; left out" in capsys.readouterr().err


@pytest.mark.parametrize("given", [".", "students", "students/eve", "students/eve/files", "link"])
def test_a_submission_in_the_results_of_a_class_is_no_result(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """A student could hand in a report with another student's name."""
    eve = directory / "students" / "eve"
    for place in ("files", "files.new", "files/lab/deep"):
        (eve / place).mkdir(parents=True, exist_ok=True)
        (eve / place / "report.json").write_text(json.dumps(result("Ada", 0.2, began=9.0)))
    (eve / "report.json").write_text(json.dumps(result("Eve", 0.6)))
    (eve / "graded.json").write_text("{}")
    (directory / "link").symlink_to(eve)
    monkeypatch.chdir(directory / given)
    status = board(".", "--json", str(directory / "board"))
    assert "handed in by a student; left out, as each such file (" in capsys.readouterr().err
    assert status == (2 if given == "students/eve/files" else 0)
    rows = json.loads((directory / "board").read_text())["rows"] if status == 0 else []
    rates = {row["name"]: row["rate"] for row in rows}
    assert 0.2 not in rates.values() and (rates.get("Eve") == 0.6 or status == 2)


def test_a_directory_with_the_names_of_results_may_have_reports(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = directory / "students" / "prof" / "files" / "reports"
    reports.mkdir(parents=True)
    (reports / "eve.json").write_text(json.dumps(result("Eve", 0.6)))
    assert board(str(reports)) == 0
    assert "Eve" in capsys.readouterr().out


def test_a_student_with_folders_of_any_depth_stops_no_leaderboard(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Path.rglob() of Python 3.11 calls itself for each level."""
    top = directory / "dee"
    top.mkdir()
    try:
        make_nested(top, 1500)
        assert board(str(directory)) == 0
        assert "Ada" in capsys.readouterr().out
    finally:
        remove(str(top))


def test_a_fifo_of_a_student_keeps_no_leaderboard_waiting(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(directory / "fifo.json")
    assert board(str(directory)) == 0
    assert "fifo.json: not a file that ewe-grade --json has written; left out" in capsys.readouterr().err


def test_no_text_of_a_file_moves_the_cursor_of_a_terminal(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "fy.json").write_text(json.dumps(result("Fy", 0.0, failure="reset\x1b[2J\nAda 9.00")))
    assert board(str(directory)) == 0
    assert "no speed: reset?[2J?Ada 9.00" in capsys.readouterr().out


class Table(HTMLParser):
    """Notes the rows of the page, the open elements, and the URLs that the page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.values: list[list[str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        assert "src" not in found and "href" not in found
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr" and "tbody" in self.open:
            self.values.append([])
        if tag == "td":
            self.values[-1].append(found["data-value"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_can_be_sorted_without_a_network(directory: Path) -> None:
    file = directory / "board.html"
    assert board(str(directory), "--html", str(file)) == 0
    page = file.read_text()
    table = Table()
    table.feed(page)
    table.close()
    assert not table.open
    assert [row[:3] for row in table.values] == [
        ["1", "Ada", "1.5"], ["", "Di", "0.8"], ["2", "=1+1", "0.7"], ["3", "Bo <b>", "0.5"], ["4", "s6", "0.1"],
    ]  # fmt: skip
    assert "Bo <b>" not in page and "The <pool>" not in page and page.count("<button") == 7
    assert "Ed" not in page and "1 server has no entry" in page and "too large to tell" in page


def test_a_speed_alone_has_no_checks_and_no_points(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ewe-grade --only speed` runs no check: 0 of 0 would look like a server that passes none."""
    (directory / "gus.json").write_text(json.dumps(result("Gus", 0.6, verdicts=[], score=0, max_score=0)))
    assert board(str(directory), "--html", str(directory / "board.html")) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "Gus" in each]
    assert line.endswith("     –       –")
    page = (directory / "board.html").read_text()
    assert '<td class="checks" data-value="" data-label="checks">–</td>' in page and "0/0" not in page


@pytest.mark.parametrize(
    ("max_rate", "expected"),
    [
        (1.04, [0, 0.5, 1]),
        (1.3, [0, 0.5, 1]),
        (2.6, [0, 1, 2]),
        (9.9, [0, 2, 4, 6, 8]),
        (10.0, [0, 5, 10]),
        (1e9, [0, 5e8, 1e9]),
    ],
)
def test_the_scale_of_the_rates_has_few_round_ticks(max_rate: float, expected: list[float]) -> None:
    assert ticks(max_rate) == pytest.approx(expected)


def test_the_head_of_the_rates_shows_the_scale_of_the_bars(directory: Path) -> None:
    assert board(str(directory), "--html", str(directory / "board.html")) == 0
    head = (directory / "board.html").read_text().partition("<tbody>")[0]
    # The longest bar ends with the spread of Ada, at 1.65, and has a margin of 4 % beside it.
    assert '<span style="left: 58.3%">1</span><span style="left: 87.4%">1.5</span></div>' in head


def test_pseudonyms_are_stable_and_need_the_key(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"student {number}" for number in range(300)]
    first, other = pseudonyms(names, "wool"), pseudonyms(names, "yarn")
    assert len(set(first.values())) == 300 and first == pseudonyms(names[::-1], "wool")
    assert sum(first[name] == other[name] for name in names) < 3
    keys = directory / "names.csv"
    assert board(str(directory), "--pseudonyms", "wool", "--names", str(keys)) == 0
    shown = capsys.readouterr().out
    assert "Ada" not in shown and dict(csv.reader(keys.read_text().splitlines()))["Ada"] in shown


def test_a_leaderboard_that_cannot_be_written_whole_is_not_begun(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the table of real names would be there, and no board."""
    output = tmp_path_factory.mktemp("output")
    words = ["--pseudonyms", "wool", "--names", str(output / "names.csv"), "--json", str(output)]
    assert board(str(directory), *words) == 2
    assert capsys.readouterr().err == f"ewe-course: cannot write {output}: Is a directory\n"
    assert not list(output.iterdir())


def test_wrong_usage_of_the_leaderboard(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    for arguments, says in (
        ([str(empty)], "no results"),
        ([str(empty / "none")], "not a directory"),
        ([str(directory), "--lab", "fork"], "no results of the lab fork"),
        ([str(directory), "--names", "x"], "needs pseudonyms"),
    ):
        assert board(*arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("ewe-course: ") and says in error
    (directory / "fork.json").write_text(json.dumps(result("Zoe", 1.0, lab="fork")))
    assert board(str(directory)) == 2
    assert "choose one with --lab: fork, pool" in capsys.readouterr().err
