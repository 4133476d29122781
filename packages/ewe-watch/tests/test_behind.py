"""X-Switch's engines and the connections to databases: their story, their moments, and their rows on the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from devtools import Browser
from test_access import SAMPLES

from ewe_watch import cli
from ewe_watch.behind import DATABASE, ENGINE
from ewe_watch.document import document
from ewe_watch.events import parse
from ewe_watch.moments import moments
from ewe_watch.perfetto import perfetto
from ewe_watch.story import TraceStory, story_of_events

SERVER = """\
100.000000 model - 10/10 xswitch an event loop before X-Switch
100.100000 accepted 10.1 10/10 127.0.0.1:4001
100.100001 runs 10.1 10/10
100.100010 request 10.1 10/10 GET /~alice/cgi-bin/a.py
100.100020 waits 10.1 10/10 program
100.100021 parked 10.1 10/10 bytes
100.150000 accepted 10.2 10/10 127.0.0.1:4002
100.150001 runs 10.2 10/10
100.150010 request 10.2 10/10 GET /~alice/cgi-bin/b.py
100.150020 waits 10.2 10/10 program
100.150021 parked 10.2 10/10 bytes
100.900000 stops - 10/10
"""
XSWITCH = """\
100.050000 x-begins - 20/20
100.101000 x-request 20.1 20/20 10.1 alice python /home/alice/a.py
100.101100 x-engine - 20/20 20.1 alice python
100.101200 x-runs 20.1 20/20 20.1
100.120000 x-process - 20/20 20.1 33
100.151000 x-request 20.2 20/20 10.2 alice python /home/alice/b.py
100.151100 x-queued 20.2 20/20 1
100.301000 x-answered 20.1 20/20 ok
100.301100 x-runs 20.2 20/20 20.1
100.501000 x-ended - 20/20 20.1 killed: ended after 0.2 s (time-limit)
100.501001 x-answered 20.2 20/20 504 ended after 0.2 s (time-limit)
100.600000 x-request 20.3 20/20 - bob perl /home/bob/c.pl
100.600100 x-engine - 20/20 20.2 bob perl
100.600200 x-runs 20.3 20/20 20.2
100.650000 x-left 20.3 20/20
100.890000 x-stops - 20/20
"""
DAEMON = """\
100.040000 db-begins - 40/40 log
100.110000 db-request 40.1 40/40 10.1 uid:7 log
100.111000 db-runs 40.1 41/42 SELECT a FROM t WHERE b = ?
100.112000 db-opened - 41/42 log sqlite
100.155000 db-request 40.2 40/40 10.2 uid:7 log
100.161000 db-answered 40.1 41/42 50.000 ok
100.162000 db-runs 40.2 41/42 SELECT 1
100.163000 db-answered 40.2 41/42 1.000 STATEMENT
100.163500 db-answered 40.2 40/40 0 LEFT
100.170000 db-lost - 40/40 41
"""


@pytest.fixture(scope="module")
def chromium(one_chromium: Browser) -> Iterator[Browser]:
    with one_chromium.fresh() as page:
        yield page


def story() -> TraceStory:
    lines = sorted((SERVER + XSWITCH + DAEMON).splitlines())
    return story_of_events(map(parse, lines))


def test_requests_wait_and_engines_take_them() -> None:
    found = story().behind
    assert [(lane.kind, lane.name, lane.why.partition(":")[0]) for lane in found.sorted_lanes()] == [
        (ENGINE, "alice: python", "killed"),
        (ENGINE, "bob: perl", "X-Switch stops"),
        (DATABASE, "log", "its process has ended"),
    ]
    shown = [
        (span.state, round((span.end - span.begin) * 1000, 1), span.goes_on)
        for span in found.all_spans()
        if span.request.kind == ENGINE
    ]
    assert shown == [
        ("runs", 199.8, False), ("queued", 150.0, False), ("runs", 199.9, False), ("runs", 49.8, False),
        ("left", 240.0, True),
    ]  # fmt: skip
    assert [step.queued for step in found.steps[ENGINE]] == [1, 0]
    assert [each.outcome for each in found.requests if each.kind == DATABASE] == ["ok", "STATEMENT"]


def test_each_request_knows_the_one_of_the_server() -> None:
    told = story()
    behind = [
        (each.name, told.requests[each.request].line[-4:]) for each in told.behind.requests if each.server
    ]
    assert sorted(behind) == [("20.1", "a.py"), ("20.2", "b.py"), ("40.1", "a.py"), ("40.2", "b.py")]
    found = document(told, "x")["behind"]
    assert [each["connection"] for each in found["requests"] if each["kind"] == ENGINE] == [0, 1, -1]
    assert len(found["spans"]["begin"]) == len(found["spans"]["lane"]) == 9


def test_the_moments_name_the_waits_and_the_end() -> None:
    texts = {each.kind: each.text for each in moments(story())}
    assert (
        "b.py of alice waited 150 ms in X-Switch's queue. When it came, 1 engine ran" in texts["engine-wait"]
    )
    ran_on = "The engine of bob: perl still ran c.pl for 240 ms after its client had left."
    assert texts["engine-outlived-client"] == ran_on
    assert "alice: python (process 33) ended after 400 ms, killed: ended after 0.2 s" in texts["engine-end"]
    assert "waited 7.00 ms in the daemon's queue" in texts["connection-wait"]
    assert "busy for 50.0 ms: SELECT a FROM t WHERE b = ?" in texts["statement"]


def test_two_traces_become_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, text in (("ewe", SERVER), ("x", XSWITCH), ("d", DAEMON)):
        (tmp_path / name).write_text(text)
        files.append(str(tmp_path / name))
    assert cli.main([*reversed(files), "--json"]) == 0
    group_by_picture = json.loads(capsys.readouterr().out)
    assert (
        group_by_picture["name"] == "ewe" and group_by_picture["behind"] == document(story(), "ewe")["behind"]
    )
    (tmp_path / "second").write_text(SERVER)
    assert cli.main([*files, str(tmp_path / "second")]) == 2
    assert "with the trace of one server, and here are 2" in capsys.readouterr().err
    assert cli.main([files[1], "--json"]) == 0  # X-Switch before another web server
    assert len(json.loads(capsys.readouterr().out)["behind"]["lanes"]) == 2


def test_arrows_lead_from_the_server_to_the_engines() -> None:
    events = perfetto(story())["traceEvents"]
    assert sum(each["ph"] == "s" for each in events) == sum(each["ph"] == "f" for each in events) == 4
    runs = [each for each in events if each["ph"] == "X" and each["cat"] == "engine"]
    assert [each["name"] for each in runs].count("/home/bob/c.pl") == 2
    assert all(each["dur"] >= 0 for each in runs)


def test_lost_events_of_two_programs_are_added() -> None:
    lines = ["1.0 x-begins - 20/20 ", "1.1 lost - 10/10 3", "1.2 lost - 11/11 5", "1.3 lost - 20/20 7"]
    assert story_of_events(map(parse, lines)).lost == 12


@pytest.mark.parametrize("busy", [False, True])
def test_a_connection_whose_end_was_lost_gives_way_to_the_next_one(busy: bool) -> None:
    statement = ["1.2 db-request 40.1 40/40 - uid:7 log", "1.3 db-runs 40.1 41/42 SELECT ?"] if busy else []
    lines = ["1.1 db-opened - 41/42 log sqlite", *statement, "1.4 db-opened - 41/42 other sqlite"]
    found = story_of_events(map(parse, lines)).behind
    assert [(lane.name, lane.began, lane.ended) for lane in found.lanes] == [
        ("log", 1.1, 1.4),
        ("other", 1.4, None),
    ]
    assert found.count_lanes(DATABASE) == 1 and found.count_lanes(DATABASE, busy=True) == busy
    assert all(request.lane is found.lanes[1] for request in found.requests)
    found.feed(parse("1.5 db-answered 40.1 41/42 1.000 ok"))
    assert found.count_lanes(DATABASE, busy=True) == 0


def test_a_trace_of_nonsense_is_told_without_a_fault() -> None:
    lines = [line for line in (XSWITCH + DAEMON).splitlines() if "x-engine" not in line]
    for cut in range(len(lines)):
        told = story_of_events(map(parse, lines[cut:] + lines[:cut]))
        document(told, "x")
        moments(told)
        perfetto(told)
    for kind in (
        "x-engine",
        "x-runs",
        "x-request",
        "x-ended",
        "db-request",
        "db-opened",
        "db-lost",
        "db-closed",
    ):
        document(story_of_events([parse(f"1.0 {kind} 1.1 2/2"), parse(f"1.0 {kind} - 2/2")]), "x")


@pytest.mark.starts_processes
@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (390, 844)])
def test_the_page_shows_them(chromium: Browser, tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "t").write_text("".join(sorted((SERVER + XSWITCH + DAEMON).splitlines(keepends=True))))
    assert cli.main([str(tmp_path / "t"), "-o", str(tmp_path / "page.html")]) == 0
    chromium.open(tmp_path / "page.html", width, height)
    assert chromium.run("traces[0].sections.map(each => each.kind).join()") == "engine,database"
    assert chromium.run("pictures[0].layout.tops.length") == 3
    assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
    text = chromium.run("byId('tables').textContent")
    for words in (
        "xswitch: engines",
        "killed: ended after 0.2 s",
        "/home/bob/c.pl",
        "SELECT a FROM t WHERE b = ?",
    ):
        assert words in text
    chromium.run("choose(pictures[0], 1, 0)")
    tip = chromium.run("byId('tip').textContent")
    assert "alice: python (process 33)" in tip and "GET /~alice/cgi-bin/" in tip
    chromium.run("byId('worker').value = '0/b1', byId('worker').dispatchEvent(new Event('input'))")
    assert "/home/alice/a.py" not in chromium.run("byId('tables').textContent")


@pytest.mark.starts_processes
def test_engines_and_databases_differ_without_colours(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("".join(sorted((SERVER + XSWITCH + DAEMON).splitlines(keepends=True))))
    assert cli.main([str(tmp_path / "t"), "-o", str(tmp_path / "page.html")]) == 0
    chromium.open(tmp_path / "page.html")
    chromium.media(forced_colors="active", prefers_color_scheme="light")
    chromium.run("readColours(); legend(); redraw()")
    words = chromium.run("[...document.querySelectorAll('#legend li')].map(item => item.textContent)")
    assert {"an engine runs a script", "a database runs a statement", "failed, or was ended"} <= set(words)
    samples = chromium.run(SAMPLES)
    assert len(samples) == len(set(samples)) == len(words)
    assert chromium.run("Object.values(colours).filter(colour => colour.startsWith('#'))") == []
    chromium.media(forced_colors="none", prefers_color_scheme="light")
    assert chromium.errors == []
