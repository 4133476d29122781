"""The command and its page; in a real browser the page shows, zooms, and has no error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from devtools import Browser
from made_traces import MadeTrace, Visitor, made, many

from ewe_watch import cli
from ewe_watch.page import as_data, hash_of

EVIL = Visitor(0.5, line="GET /</script><script>document.title='taken'</script>{{program}}")


@pytest.fixture(scope="module")
def chromium(one_chromium: Browser) -> Iterator[Browser]:
    with one_chromium.fresh() as page:
        yield page


def page_of(directory: Path, *traces: MadeTrace) -> Path:
    """Write the page of some traces by the command."""
    files = [str(trace.write(directory / f"{number}.trace")) for number, trace in enumerate(traces)]
    assert cli.main([*files, "-o", str(directory / "page.html")]) == 0
    return directory / "page.html"


def test_the_command_writes_a_page_that_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made("pool, never").write(tmp_path / "pool.trace")
    assert cli.main(["pool.trace"]) == 0
    printed = capsys.readouterr().out
    assert "pool.trace: 263 events, 26 connections, 20 requests, 5 workers" in printed
    assert "Connection 14 waited 9.90 s in the queue." in printed
    text = (tmp_path / "pool.trace.html").read_text()
    assert not re.search(r"""(src|href)=(?!"#)|@import|url\((?!#)|\son\w+=|\sstyle=""", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy and script and hash_of(script[1]) in policy[1] and "default-src 'none'" in policy[1]


def test_a_page_whose_program_does_not_run_has_a_picture(tmp_path: Path) -> None:
    text = page_of(tmp_path, made("pool, never", [EVIL]), made("thread", [EVIL])).read_text()
    still = re.search(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    assert still is not None
    assert still[1].count('class="ln-names"') == still[1].count('class="ln-table"') == 2
    assert "<script" not in still[1] and "&lt;script&gt;" in still[1]


def test_text_of_strangers_stays_text() -> None:
    assert "</script>" not in as_data([{"line": EVIL.line}])
    assert json.loads(as_data([{"line": EVIL.line}])) == [{"line": EVIL.line}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a trace (ewe --trace FILE writes one) or a model such as -p; see ewe-watch --help"),
        (["none.trace"], "cannot read none.trace: No such file or directory"),
        (["empty.trace"], "empty.trace has no events: has the server served anybody?"),
        (["a.trace", "--svg", "none/a.svg"], "cannot write none/a.svg: No such file or directory"),
        (["a.trace", "-o", "none/page.html"], "cannot write none/page.html: No such file or directory"),
        (["a.trace", "a.trace", "--perfetto", "x.json"], "--perfetto takes one trace"),
        (["a.trace"] * 5, "a page shows 4 traces at most, and here are 5"),
        (["a.trace", "-o", "./a.trace"], "./a.trace is a trace that is read here: write to another file"),
        (["a.trace", "--svg", "a.trace"], "a.trace is a trace that is read here: write to another file"),
        (["a.trace", "--perfetto", "a.trace"], "a.trace is a trace that is read here: write to another file"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made("event").write(tmp_path / "a.trace")
    (tmp_path / "empty.trace").touch()
    before = (tmp_path / "a.trace").read_bytes()
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == f"ewe-watch: {message}\n"
    assert (tmp_path / "a.trace").read_bytes() == before


def test_a_name_that_is_no_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff.trace")
    Path(name).write_text("1.0 accepted 1.1 1/1 a\n")
    assert cli.main([name]) == 0
    assert "the page: \ufffd.trace.html" in capsys.readouterr().out
    assert "\ufffd.trace" in Path(name + ".html").read_text()


def test_json_perfetto_and_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = made("pool, never").write(tmp_path / "a.trace")
    svg, perfetto = str(tmp_path / "a.svg"), str(tmp_path / "p.json")
    assert cli.main([str(trace), "--json", "--perfetto", perfetto, "--svg", svg]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["description"]) == ("pool", "a pool of 5 threads, parking never")
    assert max(document["queue"]["queued"]) == 13
    assert len({len(column) for column in document["spans"].values()}) == 1
    assert json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "a.trace", "p.json"]
    assert "pool: a pool of 5 threads, parking never (a.trace)" in (tmp_path / "a.svg").read_text()


@pytest.mark.starts_processes
@pytest.mark.needs("Chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_page_fits_and_has_no_error(tmp_path: Path, chromium: Browser, width: int, scheme: str) -> None:
    page = page_of(tmp_path, made("pool, never"), made("pool, always"))
    chromium.open(page, width, scheme=scheme)
    assert chromium.errors == []
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.run("document.querySelectorAll('#pictures canvas').length") == 2
    # The picture has the colour of a wait where the workers stand still, and not where they are free.
    colours = chromium.run(
        "(({canvas, layout}) => { const left = xOf(layout, 10e6) | 0, right = xOf(layout, 15e6) | 0;"
        "const {data, width} = canvas.getContext('2d').getImageData(left, layout.top + 1, right - left, 8);"
        "const colour = (x, y) => data.slice(4 * (y * width + x), 4 * (y * width + x) + 3).join();"
        "return [0, width - 10].map(x => new Set([...Array(72).keys()].map(i => colour(x + i % 9, i / 9 | 0)))"
        ".size); }"
        ")(pictures[0])"
    )
    assert colours[0] > 2 and colours[1] == 1
    chromium.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.starts_processes
@pytest.mark.needs("Chromium")
def test_keys_zoom_and_choose(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    whole = chromium.run("view.to - view.from")
    chromium.press("+", "+")
    assert chromium.run("view.to - view.from") == pytest.approx(whole / 4)
    before = chromium.run("view.from")
    chromium.press("ArrowRight")
    assert chromium.run("view.from") > before
    chromium.press("0")
    assert chromium.run("view.to - view.from") == pytest.approx(whole)
    chromium.run("document.querySelector('#pictures canvas').focus()")
    chromium.press("ArrowDown", "n", "n", "n", "n", "n")
    assert chromium.run("document.getElementById('tip').textContent").startswith("worker 2 (thread 7132)")
    chromium.press("Enter")
    assert chromium.run("view.to - view.from") < whole / 2
    before = chromium.run("view.from")
    chromium.run("document.querySelector('#tables .table').focus()")
    chromium.press("ArrowRight")  # it scrolls the table, and not the picture
    assert chromium.run("view.from") == before
    assert chromium.errors == []


@pytest.mark.starts_processes
@pytest.mark.needs("Chromium")
def test_a_key_does_not_zoom_to_a_span_of_another_picture(tmp_path: Path, chromium: Browser) -> None:
    """The keys belong to the picture that has the focus; the pointer may be over another one."""
    chromium.open(page_of(tmp_path, made("pool, never"), made("pool, never")))
    chromium.run("document.querySelector('#pictures canvas').focus()")
    chromium.run("select({trace: traces[1], row: 0, span: traces[1].spans.begin.length - 1})")
    before = chromium.run("[view.from, view.to]")
    chromium.press("Enter")
    assert chromium.run("[view.from, view.to]") == before
    assert chromium.errors == []


@pytest.mark.starts_processes
@pytest.mark.needs("Chromium")
def test_moments_and_filters(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    chromium.run("document.querySelector('[data-moment]').click()")
    assert chromium.run("view.from < 1.08e6 && view.to > 11.08e6 && view.to < 16e6")
    rows = "[...document.querySelectorAll('#tables table')].map(table => table.tBodies[0].rows.length)"
    assert chromium.run(rows) == [5, 26]
    fill = "((name, value) => { const box = document.getElementById(name); box.value = value; " \
        "box.dispatchEvent(new Event('input')); })"  # fmt: skip
    chromium.run(f"{fill}('connection', '14')")
    assert chromium.run(rows) == [5, 1]
    chromium.run(f"{fill}('connection', ''); {fill}('longer', '35')")
    assert chromium.run(rows) == [5, 2]  # of the ordinary visitors, two ask for 40 ms of work
    chromium.run(f"{fill}('longer', ''); {fill}('worker', '0/1')")
    of_worker = chromium.run("traces[0].connections.filter(each => each.on.has(1)).length")
    assert 0 < of_worker < 26 and chromium.run(rows) == [1, of_worker]
    assert chromium.errors == []


@pytest.mark.starts_processes
@pytest.mark.needs("Chromium")
def test_a_hostile_request_line_is_only_shown(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("event", [EVIL])))
    assert chromium.run("document.title") == "0.trace: what the workers do"
    assert EVIL.line in chromium.run("document.getElementById('tables').textContent")
    assert chromium.errors == []


@pytest.mark.starts_processes
@pytest.mark.needs("Chromium")
def test_a_trace_of_100_000_events_is_usable(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, many(100_000)))
    assert chromium.run("traces[0].spans.begin.length") > 40_000
    assert chromium.run("document.querySelectorAll('tr').length") < 250
    # A column of pixels that many short spans share has their colour.
    assert chromium.run(
        "(({canvas, layout}) => new Set(canvas.getContext('2d').getImageData(layout.gutter + 50, layout.top, 40, "
        "layout.lane - 4).data).size > 4)(pictures[0])"
    )
    assert chromium.errors == []
