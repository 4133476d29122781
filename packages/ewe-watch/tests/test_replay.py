"""The replay of a trace in a real browser, with and without motion; and the picture for a slide."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devtools import Browser
from made_traces import made
from test_behind import DAEMON, SERVER, XSWITCH
from test_page import page_of

from ewe_watch import cli

pytestmark = [pytest.mark.starts_processes, pytest.mark.needs("Chromium")]

# Whether the rows of the first picture are alike between two times: nothing is there but the lines of the axis.
# {top}: the upper edge of the rows
ALIKE = (
    "((from, to) => {{ const {{canvas, layout}} = pictures[0], left = Math.ceil(xOf(layout, from)) + 3;"
    "const width = Math.floor(xOf(layout, to)) - 3 - left, top = layout.{top};"
    "const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {{willReadFrequently: true}});"
    "pen.drawImage(canvas, 0, 0); const {{data}} = pen.getImageData(left, top, width, layout.end - top);"
    "return data.every((value, at) => value === data[at % (4 * width)]); }})({begin}, {end})"
)


def is_empty(page: Browser, begin_s: float, end_s: float, top: str = "top") -> bool:
    """Return whether nothing is drawn between two times. top: the edge of the layout at which the rows begin."""
    page.drawn()
    return bool(page.run(ALIKE.format(begin=begin_s * 1e6, end=end_s * 1e6, top=top)))


@pytest.fixture(scope="module")
def chromium(one_chromium: Browser) -> Iterator[Browser]:
    with one_chromium.fresh() as page:
        yield page


def until(page: Browser, condition: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not page.run(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def moment_of(page: Browser) -> float:
    """Return the moment of the replay, in seconds."""
    return float(page.run("replay.at")) / 1e6


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_stands_to_the_right_of_the_moment(
    tmp_path: Path, chromium: Browser, width: int, scheme: str
) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")), width, scheme=scheme)
    assert not is_empty(chromium, 5.9, 11)
    chromium.run("go(5.9e6)")
    assert is_empty(chromium, 5.9, 11) and not is_empty(chromium, 2, 5.9)
    text = chromium.run("byId('now').textContent")
    assert text == "at 5.90 s: 5 of 5 rows are occupied, 9 in the queue"
    assert chromium.run("document.documentElement.scrollWidth") == width
    chromium.press("Escape")
    assert not is_empty(chromium, 5.9, 11)
    assert chromium.run("byId('now').textContent") == ""
    assert chromium.errors == []


def test_engines_and_statements_are_replayed_too(tmp_path: Path, chromium: Browser) -> None:
    (tmp_path / "all.trace").write_text("\n".join(sorted((SERVER + XSWITCH + DAEMON).splitlines())) + "\n")
    assert cli.main([str(tmp_path / "all.trace"), "-o", str(tmp_path / "page.html")]) == 0
    chromium.open(tmp_path / "page.html")
    chromium.run("go(0.55e6)")
    assert is_empty(chromium, 0.56, 0.88, "bottom") and not is_empty(chromium, 0.3, 0.5, "bottom")
    assert chromium.run("failedNow(traces[0].behind.requests.find(each => each.outcome.startsWith('504')))")
    chromium.run("go(0.4e6)")
    assert not chromium.run(
        "traces[0].behind.requests.some(each => each.kind === 'engine' && failedNow(each))"
    )
    assert chromium.errors == []


@pytest.mark.parametrize("speed", ["1", "0.01"])
def test_a_replay_runs_as_fast_as_it_says(tmp_path: Path, chromium: Browser, speed: str) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    chromium.media(prefers_reduced_motion="no-preference")
    chromium.run(f"byId('speed').value = '{speed}'")
    per_second = chromium.run(
        "new Promise(done => { const began = performance.now(); play(true); setTimeout(() => {"
        "play(false); done(replay.at / 1e3 / (performance.now() - began)); }, 400); })"
    )
    assert float(speed) * 0.2 < per_second < float(speed) * 1.2
    frames = chromium.run(
        "new Promise(done => { const moments = new Set(); play(true); let left = 20; const next = () => {"
        "moments.add(replay.at); if (--left) requestAnimationFrame(next);"
        "else { play(false); done(moments.size); } };"
        "requestAnimationFrame(next); })"
    )
    assert frames > 10  # the moment moves with each frame of the screen


def test_without_motion_the_moment_jumps_once_a_second(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    moments = chromium.run(
        "new Promise(done => { const moments = new Set(); play(true); const began = performance.now();"
        "const next = () => { moments.add(replay.at); if (performance.now() - began < 1600)"
        "requestAnimationFrame(next); else { play(false); done([...moments]); } }; requestAnimationFrame(next); })"
    )
    assert len(moments) == 2 and moments[1] == pytest.approx(1e6, rel=0.01)
    chromium.run("show(0, 2e6); go(1.9e6)")  # the view jumps, too: by a page
    assert chromium.run("[view.from, view.to]") == pytest.approx([1.7e6, 3.7e6])


def test_keys_play_pause_step_and_end(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    chromium.media(prefers_reduced_motion="no-preference")
    chromium.press(" ")
    until(chromium, "replay.playing && replay.at > 50000")
    assert chromium.run("[byId('play').textContent, byId('now').ariaLive]") == ["pause", "off"]
    chromium.press(" ")
    before = moment_of(chromium)
    chromium.press(".", ".")
    assert chromium.run("[byId('play').textContent, byId('now').ariaLive]") == ["play", "polite"]
    changes = [each / 1e6 for each in chromium.run("[...changeTimes()]")]
    assert changes == sorted(changes)
    assert moment_of(chromium) == [each for each in changes if each > before][1]
    chromium.run("document.querySelector('#pictures canvas').focus()")
    chromium.press("Escape", "Escape")  # the first one ends the choice of a span
    assert chromium.run("replay.at === null && byId('end').disabled")
    chromium.press(".")
    chromium.run("byId('end').focus()")
    chromium.press("Enter")
    assert chromium.run("replay.at === null && document.activeElement.id") == "play"
    assert chromium.errors == []


def test_a_replay_ends_begins_again_and_the_view_follows_it(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never"), made("thread")))
    chromium.media(prefers_reduced_motion="no-preference")
    chromium.run("show(2e6, 4e6); byId('at').value = '500'; byId('at').dispatchEvent(new Event('input'))")
    middle = moment_of(chromium)
    assert middle == pytest.approx(chromium.run("lastMoment()") / 2e6)
    assert chromium.run("[view.from, view.to]") == pytest.approx([(middle - 1.6) * 1e6, (middle + 0.4) * 1e6])
    assert "pool: " in chromium.run("byId('now').textContent")
    assert "; thread: " in chromium.run("byId('now').textContent")
    chromium.run("show(0, whole); go(lastMoment() - 1000); byId('speed').value = '10'; play(true)")
    until(chromium, "!replay.playing")
    assert chromium.run("replay.at === lastMoment()")
    chromium.run("byId('speed').value = '0.001'; play(true)")
    assert moment_of(chromium) < 0.5
    chromium.run("document.querySelector('[data-moment]').click()")
    assert chromium.run("replay.at === null && !replay.playing")


def test_a_span_that_goes_on_does_not_tell_its_end(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    length = "traces[0].spans.end[span] - traces[0].spans.begin[span]"
    span = f"traces[0].spans.state.findIndex((_, span) => {length} > 9.99e6)"
    assert "to 11" in "".join(chromium.run(f"words(traces[0], {span})"))
    chromium.run("go(5e6)")
    told = "".join(chromium.run(f"words(traces[0], {span})"))
    assert "up to now" in told and "11" not in told.partition("since")[2]
    point = "spanAt(pictures[0], xOf(pictures[0].layout, {}), pictures[0].layout.top + 2)"
    assert chromium.run(point.format("6e6")) is None and chromium.run(point.format("4e6")) is not None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_saves_a_picture_for_a_slide(tmp_path: Path, chromium: Browser, scheme: str) -> None:
    chromium.open(page_of(tmp_path, made("pool, never"), made("pool, always")), 390, scheme=scheme)
    chromium.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.run("byId('save').click()")
    file = tmp_path / "0.trace-1.trace.png"
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.05)
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20], "big") == 1920
    assert len(data) > 20_000
    # The page itself keeps its size, and its picture
    assert chromium.run("pictures[0].layout.width") < 390
    assert chromium.errors == []
