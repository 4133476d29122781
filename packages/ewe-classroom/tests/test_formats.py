"""Reports in every format, compared with the documentation of the platforms; parts of responses."""

from __future__ import annotations

import html
import io
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ewe_explore
from ewe.config.messages import ConfigError
from ewe_classroom.course.leaderboard import LeaderboardEntry
from ewe_classroom.course.leaderboard_page import to_html as leaderboard
from ewe_classroom.course.text_page import to_html as assignment
from ewe_classroom.grader import cli, formats, scheme
from ewe_classroom.grader.cli import print_summary, print_verdict
from ewe_classroom.grader.grading import NOT_HIDDEN, Grading
from ewe_classroom.grader.kinds import kind
from ewe_classroom.grader.page import pieces, program_name, to_html
from ewe_classroom.grader.pictures import HELD_WORKER, MIN_TICK_PX, PAGE_WIDTH_PX, SERVED, WAITS, timeline
from ewe_classroom.grader.responses import ResponseSplitter
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.verdicts import ERROR, FAILED, PASSED, Report, Verdict
from ewe_classroom.notebook import Graded


@pytest.fixture
def report() -> Report:
    steps = [
        {"t": 0.0, "lane": "A", "do": "connect", "reads": True},
        {"t": 0.1, "lane": "A", "do": "send", "bytes": "GET /<b> HTTP/1.1\r\n\x00\xff"},
        {"t": 0.2, "do": "wait", "what": "A is answered", "happened": False},
        {"t": 0.3, "lane": "A", "do": "closed-by-server"},
    ]
    return Report(
        "pool",
        "The pool",
        "./server",
        [
            Verdict("answers", "files are served", 8, PASSED, ["five files"], seconds=0.5),
            Verdict(
                "progress", "n at a time", 20, FAILED, did="got <b>\x00 & \ud800", should="wait", steps=steps
            ),
            Verdict("fifo", "in order", 5, ERROR, did="a fault"),
            Verdict("stop", "it ends", 4),
        ],
        seconds=1.5,
    )


def test_gradescope(report: Report) -> None:
    table = json.loads(formats.to_gradescope(report))
    assert table["score"] == 8 and isinstance(table["execution_time"], int)
    assert table["stdout_visibility"] in ("hidden", "after_due_date", "after_published", "visible")
    known = {
        "score", "max_score", "status", "name", "name_format", "number", "output", "output_format", "tags",
        "visibility", "extra_data",
    }  # fmt: skip
    for test in table["tests"]:
        assert test.keys() <= known
        assert test["status"] in ("passed", "failed") and test["score"] <= test["max_score"]
        assert test["output_format"] in ("text", "html", "simple_format", "md", "ansi")
    assert sum(test["score"] for test in table["tests"]) == table["score"]
    assert "stopped before it had finished" in table["output"]
    assert "not run" in table["tests"][3]["output"]


def test_classroom50(report: Report) -> None:
    table = json.loads(formats.to_classroom50(report))
    assert table["schema"] == "classroom50/result/v1"
    for key in (
        "classroom", "assignment", "assignment_type", "owner", "submission", "commit", "release", "review",
    ):  # fmt: skip
        assert isinstance(table[key], str)
    assert datetime.fromisoformat(table["graded_at"]) >= datetime.fromisoformat(table["datetime"])
    assert type(table["score"]) is int and type(table["max-score"]) is int
    assert (table["score"], table["max-score"]) == (8, 37)
    for test in table["tests"]:
        assert type(test["passed"]) is bool
        assert {"test-name", "passed", "score", "max-score"} <= test.keys()


def test_prairielearn(report: Report) -> None:
    text = formats.to_prairielearn(report)
    table = json.loads(text)
    assert table["gradable"] is True and table["score"] == pytest.approx(8 / 37, abs=1e-5)
    for test in table["tests"]:
        assert {"name", "description", "points", "max_points", "message", "output"} == test.keys()
    report.verdicts[1].did = "x" * 2_000_000
    assert len(formats.to_prairielearn(report)) < 1 << 20


def test_junit(report: Report) -> None:
    root = ElementTree.fromstring(formats.to_junit(report).encode("utf-8", "replace"))
    (suite,) = root
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [[], ["failure"], ["error"], ["skipped"]]
    assert float(suite[0].get("time", "")) == 0.5


def test_autolab(report: Report) -> None:
    line = formats.to_autolab(report)
    assert "\n" not in line
    table = json.loads(line)
    assert table["scores"] == {"answers": 8, "progress": 0, "fifo": 0, "stop": 0}
    assert all(isinstance(value, int) for value in table["scoreboard"])


def test_json_holds_every_step(report: Report) -> None:
    table = json.loads(formats.to_json(report))
    assert table["format"] == "ewe-grade/1" and table["verdicts"][1]["steps"] == report.verdicts[1].steps


class Balance(HTMLParser):
    """Notes the open elements, and the URLs that the page loads."""

    VOID = {"meta", "br", "circle", "path", "rect", "line"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag) if tag != "meta" else None
        self.loaded += [
            str(value) for key, value in attributes if key in ("src", "href") and value[:1] != "#"
        ]  # type: ignore[index]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_pages_share_one_stylesheet_and_escape_their_values(report: Report) -> None:
    entry = LeaderboardEntry("Ada", "pool", "The <pool>", 0.0, 1, 2, 1, 2)
    pages = [to_html(report), leaderboard([entry]), assignment("text", "The <pool>")]
    shared = Path(ewe_explore.__file__).with_name("templates") / "page.css"
    assert all(shared.read_text(encoding="utf-8") in page for page in pages)
    assert not any("The <pool>" in page for page in pages)
    assert all("The &lt;pool&gt;" in page for page in pages[1:])


def test_the_page_is_whole_and_holds_no_markup_of_the_server(report: Report) -> None:
    page = to_html(report)
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert not balance.open and not balance.loaded
    assert "got <b>" not in page and "got &lt;b&gt;" in page
    assert page.count('role="img" aria-label="timeline') == 1 and 'class="ln-bar ln-queue"' in page
    assert page.count("In the pictures") == page.count("the same as a table") == page.count("<defs>") == 1


def test_the_page_names_the_student_the_program_and_the_heaviest_fault_first(report: Report) -> None:
    report.student, report.subject = "Ada L", "/venv/bin/python3.11 /home/ada/server.py '{port}' '{root}'"
    report.verdicts += [Verdict("light", "`a` is b", 1, FAILED), Verdict("heavy", "proves", 90, FAILED)]
    page = to_html(report)
    assert "<b>Ada L</b>" in page and "--seed" not in page and ">server.py</code>" in page
    assert page.index("#heavy") < page.index("#light") and page.index('id="heavy"') < page.index('id="light"')
    assert "<code>a</code> is b" in page
    report.seeded = True
    assert "--seed &#39;Ada L&#39;" in to_html(report)


def test_the_page_marks_what_the_starter_has(report: Report) -> None:
    assert "starter" not in to_html(report)
    report.starter_points = 3  # of 37
    page = to_html(report)
    assert '<u style="left: 8.1%"></u></div>' in page and "it has at most 3 points" in page


def test_a_report_knows_the_points_of_the_starter_of_a_whole_lab(tmp_path: Path) -> None:
    """A tenth is promised for the labs, not for a scheme of a lecturer or for some checks of a lab."""
    pool = scheme.load("pool")
    assert pool.starter_points == sum(item.points for item in pool.items) // 10
    assert cli.keep_only(pool, ["progress"], measures_speed=False).starter_points is None
    own = tmp_path / "pool.toml"
    own.write_text('[[check]]\nname = "stop"\npoints = 90\n')
    assert scheme.load(str(own)).starter_points is None
    runs = tmp_path / "runs.json"
    runs.write_text("{}")
    start_command = kind("data").from_path(str(runs))
    grading = Grading(start_command, pool, tmp_path, SandboxLimits())
    assert grading.empty_report().starter_points == grading.scheme.starter_points is not None
    assert scheme.load("measure").starter_points is None


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("./server {port} {root} {workers}", "server"), ("/a/model.py", "model.py"), ("python -m x", "python"),
        ("python3 '/a b/server.py' {port}", "server.py"), ("it's", "it's"), ("", ""),
    ],
)  # fmt: skip
def test_the_name_of_a_program(subject: str, name: str) -> None:
    assert program_name(subject) == name


def test_a_backtick_alone_is_a_backtick() -> None:
    assert pieces("use `while`") == [("use ", False), ("while", True)]
    assert pieces("a ` b") == [("a ` b", False)]


def test_a_timeline_fills_the_page_or_scrolls_and_has_a_time() -> None:
    def scene(count: int) -> list[dict[str, Any]]:
        sends = [{"t": number / 10, "lane": "a", "do": "send", "bytes": "x"} for number in range(count)]
        return [*sends, {"t": count / 10, "lane": "a", "do": "answered", "status": 200}]

    for count, is_wide in ((3, False), (30, False), (120, True)):
        picture = timeline(scene(count))
        assert picture is not None and picture.is_wide is is_wide
        assert picture.left + picture.width >= PAGE_WIDTH_PX and picture.ticks[0].label == "0.00 s"
        gaps = [after.x - before.x for before, after in pairwise(picture.ticks)]
        assert min(gaps) >= MIN_TICK_PX / 2 and all(tick.x <= picture.width for tick in picture.ticks)


def test_a_lane_shows_a_worker_that_the_scene_has_proven() -> None:
    steps = [{"t": 0.1, "lane": name, "do": "send", "bytes": "x"} for name in "ab"]
    steps += [{"t": 0.2, "lane": name, "do": "answered", "status": 200} for name in "ab"]
    picture = timeline([*steps, {"t": 0.3, "lane": "a", "do": HELD_WORKER}])
    assert picture is not None
    assert [lane.spans[0].kind for lane in picture.lanes] == [SERVED, WAITS]


@pytest.mark.takes_time
@pytest.mark.parametrize("text", ["\x00", "&", "\ud800"])
def test_no_report_is_larger_than_a_megabyte(text: str) -> None:
    steps = [{"t": 0.1, "lane": f"client {n % 40}", "do": "send", "bytes": text * 1000} for n in range(100)]
    words = text * 4000
    report = Report("pool", "The pool", words, student=words, verdicts=[
        Verdict(f"check {n}", "proves", 1, (PASSED, FAILED, ERROR)[n % 3], [words] * 3, words, words, words, words,
                words, words, words, words, steps=steps)
        for n in range(40)
    ])  # fmt: skip
    made = {name: each.convert(report) for name, each in formats.FORMATS.items()} | {"html": to_html(report)}
    for name, page in made.items():
        assert len(page.encode(errors="replace")) <= formats.MAX_FILE_BYTES, name
    ElementTree.fromstring(made["junit"].encode(errors="replace"))
    for name in ("json", "gradescope", "classroom50", "prairielearn"):
        tests = json.loads(made[name])
        assert len(tests.get("tests") or tests["verdicts"]) == 40
    assert made["html"].endswith("</html>\n") and made["html"].count("<details") == 40


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("directory", "Is a directory"),
        ("file/report.json", "(Not a directory|File exists)"),
        ("file/new/report.json", "Not a directory"),
        ("/proc/ewe/report.json", "No such file"),  # root has the permission to write there
    ],
)
def test_a_file_that_cannot_be_written_is_said_beforehand(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("kept")
    path = tmp_path / name
    checks: list[Callable[[Path], None]] = [formats.check_writable, lambda path: formats.write(path, "")]
    for check in checks:
        with pytest.raises(ConfigError, match=f"^cannot write {re.escape(str(path))}: .*{says}"):
            check(path)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_device_is_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, `--json /dev/stdout` would leave a file in its place, for all programs of the machine."""
    devices = tmp_path / "dev"
    monkeypatch.setattr(formats, "DEVICES", str(devices))
    devices.mkdir()
    (devices / "stdout").symlink_to(tmp_path / "terminal")
    (tmp_path / "terminal").touch()
    formats.check_writable(devices / "stdout")
    formats.write(devices / "stdout", "{}")
    assert (devices / "stdout").is_symlink() and (tmp_path / "terminal").read_text() == "{}"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="Permission denied"):
        formats.check_writable(devices / "stdout")


def test_the_check_of_a_file_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.json"
    formats.check_writable(path)
    formats.check_directory(path.parent)
    assert not list(tmp_path.iterdir())
    formats.write(path, "{}")
    formats.check_writable(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name] and path.read_text() == "{}"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write into every file
    formats.check_writable(path)  # write() replaces it


def test_the_speed_is_in_the_reports(report: Report) -> None:
    assert "leaderboard" not in json.loads(formats.to_gradescope(report))
    rates = {n: {"median": 0.5 * n, "low": 0.4, "high": 0.6, "pairs": 5} for n in (1, 2)}
    report.speed = {"reference": "ewe <b>", "claim": 2, "failure": "", "rates": rates, "cpu": 0.8, "p99": 1.2,
                    "memory_kib": 0.0, "noisy": False}  # fmt: skip
    report.verdicts.append(Verdict("speed", "how fast", 4, PASSED, earned=2))
    table = json.loads(formats.to_gradescope(report))
    assert [(each["value"], each["order"]) for each in table["leaderboard"]] == [
        (1.0, "desc"), (1.2, "asc"), (0.8, "asc"), (0.0, "asc"), (10, "desc"),
    ]  # fmt: skip
    assert table["score"] == 10 == sum(test["score"] for test in table["tests"])
    assert json.loads(formats.to_autolab(report))["scoreboard"] == [10, 2, 1.0]
    page = to_html(report)
    balance = Balance()
    balance.feed(page)
    assert not balance.open and "ewe &lt;b&gt; = 1" in page and page.count('class="whisker"') == 2
    report.speed["failure"] = "it refused"
    assert "leaderboard" not in json.loads(formats.to_gradescope(report))
    assert json.loads(formats.to_autolab(report))["scoreboard"] == [10, 2, 0]


def on_console(report: Report) -> str:
    """Return what ewe-grade prints at the end. Autolab shows it, too."""
    with redirect_stdout(io.StringIO()) as printed:
        print_summary(report)
    return printed.getvalue()


MAKERS: dict[str, Callable[[Report], str]] = {
    **{name: each.convert for name, each in formats.FORMATS.items() if name != "json"},
    "html": to_html, "notebook": lambda report: repr(Graded(report)), "console": on_console,
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unprotected": True}, formats.UNPROTECTED),
        ({"notes": [NOT_HIDDEN]}, NOT_HIDDEN),
        ({"limit_s": 120.0}, "The limit of a run was 120 s."),
        ({"restless": True}, "never sleeps"),
    ],
)
def test_each_report_says_what_holds_for_the_whole_run(
    report: Report, name: str, change: dict[str, Any], says: str
) -> None:
    """The mark alone would not say that limits did not hold, or that the run had a limit."""
    assert says not in MAKERS[name](report)
    assert says in html.unescape(MAKERS[name](replace(report, **change)))


def test_a_server_that_never_sleeps_is_told_so_in_the_first_line(report: Report) -> None:
    """Also where a platform shows the texts of checks alone: in the first one that has not passed."""
    report = replace(report, restless=True, limit_s=120.0)
    texts = [
        json.loads(formats.to_gradescope(report))["output"],
        json.loads(formats.to_prairielearn(report))["message"],
        json.loads(formats.to_classroom(report))["tests"][1]["message"],
        json.loads(formats.to_classroom50(report))["tests"][1]["output"],
        on_console(report).lstrip(),
        repr(Graded(report)),
    ]
    for text in texts:
        assert text.startswith(f"{formats.RESTLESS}\n"), text
    suite = ElementTree.fromstring(formats.to_junit(report).encode("utf-8", "replace"))[0]
    assert suite[0][0].get("value") == formats.RESTLESS
    assert json.loads(formats.to_gradescope(replace(report, restless=False)))["output"].count("\n") == 1


def test_a_report_shows_the_smallest_schedule_with_its_columns(report: Report) -> None:
    verdict = report.verdicts[1]
    verdict.schedule = " line " + "main".ljust(47) + "work".ljust(47) + "lane 3".ljust(24) + "lane 4"
    verdict.schedule += "\n  41  │".ljust(70) * 80
    lines = verdict.schedule.splitlines()
    assert "The smallest schedule:\n line main" in verdict.text()
    assert f'<dd class="columns"><pre>{verdict.schedule}</pre>' in to_html(report), "it is whole"
    with redirect_stdout(io.StringIO()) as printed:
        print_verdict(verdict, color=False)
    assert all(f"\n        {line}\n" in printed.getvalue() for line in lines), "no line is broken"
    verdict.make_not_judged("it rests on progress")
    assert not verdict.schedule and "columns" not in to_html(report).partition("</style>")[2]


def test_a_file_is_replaced_as_a_whole(report: Report, tmp_path: Path) -> None:
    target = tmp_path / "new" / "results.json"
    for text in ("first", "second"):
        formats.write(target, text)
        assert target.read_text() == text
    assert [file.name for file in target.parent.iterdir()] == ["results.json"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        formats.write(tmp_path / "report.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_bytes_without_an_end_are_not_kept() -> None:
    for fields in ("", "Transfer-Encoding: chunked\r\n", "Content-Length: 99999999999999\r\n", None):
        reader = ResponseSplitter()
        reader.feed(b"HTTP/1.1 200 OK\r\n" + (b"X: " if fields is None else f"{fields}\r\n".encode()))
        for _ in range(40):
            reader.feed(b"20000\r\n" + b"x" * (2 << 16) + b"\r\n")
            reader.feed(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        assert reader.too_much and "more than" in reader.fault and not reader.buffer
        reader.end()
        assert not any(each.whole for each in reader.responses)
        assert bool(reader.responses) == (fields is not None)
        for response in reader.responses:
            assert "more than 32 MB" in response.fault and not response.body


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
def test_responses_without_an_end_are_not_kept(head: bytes) -> None:
    """A loop that sends the response again and again, or interim responses, fills no memory."""
    reader = ResponseSplitter()
    for _ in range(20):
        reader.feed(head * 1000)
    assert reader.too_much and "more than 10,000 responses" in reader.fault
    assert len(reader.responses) <= 10_000 and not reader.buffer


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_responses_in_parts(size: int) -> None:
    data = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n"
        b"HTTP/1.0 404 Not Found\r\n\r\nuntil the end"
    )
    reader = ResponseSplitter()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    assert [response.whole for response in reader.responses] == [True, True, False]
    assert [response.keeps_open for response in reader.responses] == [True, True, False]
    reader.end()
    assert [response.body for response in reader.responses] == [b"abc", b"de", b"until the end"]
    assert not reader.fault


def test_spaces_around_the_value_of_a_field_do_not_belong_to_it() -> None:
    """RFC 9112 section 5.1."""
    reader = ResponseSplitter()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \tChunked \r\n\r\n2\r\nde\r\n0\r\n\r\n")
    assert [response.body for response in reader.responses if response.whole] == [b"de"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"hello there\r\n", "begin no response"),
        (b"HTTP/1.1 abc\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunked"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "ended after 3"),
    ],
)
def test_what_is_wrong_with_a_response_is_said(data: bytes, says: str) -> None:
    reader = ResponseSplitter()
    reader.feed(data)
    reader.end()
    assert says in (reader.fault or reader.responses[0].fault)
    assert not any(each.whole for each in reader.responses)
