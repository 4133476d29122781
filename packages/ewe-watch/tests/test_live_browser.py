"""The live page in a real Chromium: a click sends clients, and the page says what they saw."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from devtools import Browser
from support.server import wait_until
from test_live import SECONDS, LivePage, kinds, watch

__all__ = ["watch"]  # the fixture

pytestmark = [pytest.mark.starts_processes, pytest.mark.needs("Chromium"), pytest.mark.timeout(180)]


@pytest.fixture
def chromium(one_chromium: Browser) -> Iterator[Browser]:
    with one_chromium.fresh() as page:
        yield page


def show(chromium: Browser, page: LivePage) -> None:
    """Open the page, and wait until it shows its models."""
    chromium.ask(
        "Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False
    )
    chromium.ask("Page.navigate", url=page.url)
    until(chromium, "document.querySelectorAll('.model').length > 0")


def until(chromium: Browser, condition: str) -> None:
    """Wait until an expression of the page is true."""
    deadline = time.monotonic() + SECONDS
    while not chromium.run(condition):
        assert time.monotonic() < deadline, (
            condition,
            chromium.run("document.body.innerText"),
            chromium.errors,
        )
        time.sleep(0.05)


def click(chromium: Browser, selector: str) -> None:
    chromium.run(f"document.querySelector({selector!r}).click()")


def figure(model: int, name: str) -> str:
    """Return the expression of a figure of the page."""
    return f"document.querySelector('[data-model=\"{model}\"] [data-figure={name}]').textContent"


def table(chromium: Browser, model: int) -> dict[str, list[int]]:
    """Return what the page says of each kind of client: sent, answered, waiting."""
    rows: Any = chromium.run(
        f"[...document.querySelectorAll('[data-model=\"{model}\"] tr[data-kind]')]"
        ".map(row => [row.dataset.kind, ...['sent', 'answered', 'waiting'].map(name => Number(row.dataset[name]))])"
    )
    return {kind: numbers for kind, *numbers in rows}


def test_clicks_lanes_and_what_the_clients_saw(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("-p --parking never", "-t")
    show(chromium, page)
    click(chromium, '[data-send="silent"]')
    until(chromium, f"{figure(0, 'held')} === '5' && {figure(1, 'held')} === '5'")
    click(chromium, '[data-send="fifty"]')
    until(chromium, f"{figure(0, 'queued')} === '50' && {figure(1, 'answered')} === '50'")
    models = page.until(lambda models: kinds(models, "visitor", "answered") == [0, 50])
    for number, model in enumerate(models):
        of_kinds = model["clients"]["kinds"]
        seen = {kind: [of_kinds[kind][what] for what in ("sent", "answered", "waiting")] for kind in of_kinds}
        assert table(chromium, number) == seen
    lanes = chromium.run(
        "[...document.querySelectorAll('[data-model=\"0\"] li[data-state=waits]')].map(lane => lane.dataset.holds)"
    )
    assert lanes == ["client"] * 5
    # The picture itself: the last column of the first lane has the colour of a worker that its client holds.
    last_column = (
        "(canvas => { const pen = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});"
        "pen.drawImage(canvas, canvas.width - 4, 91, 1, 1, 0, 0, 1, 1);"
        "return pen.getImageData(0, 0, 1, 1).data; })(models[0].canvas)"
    )
    until(chromium, f"(([red, green, blue]) => red > green && green > blue)({last_column})")
    click(chromium, "#let-go")
    until(chromium, f"{figure(0, 'answered')} === '50' && {figure(0, 'held')} === '0'")
    assert chromium.errors == []


def test_the_page_lists_the_clients_that_ended_last(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("-t")
    show(chromium, page)
    page.press(do="send", kind="silent", count=2)
    page.press(do="send", kind="visitor")
    page.until(lambda models: kinds(models, "visitor", "answered") == [1])
    page.press(do="let-go")
    (model,) = page.until(lambda models: kinds(models, "silent", "let go") == [2])
    ends = [(label, end) for label, end, _ in model["clients"]["recent"]]
    assert ends[0] == ("visitor 1", "answered") and {end for _, end in ends[1:]} == {"let go"}
    until(chromium, "models[0].recent.children.length === 3")
    shown: Any = chromium.run("[...models[0].recent.children].map(item => item.textContent)")
    assert [text.partition(",")[0] for text in shown] == [f"{label}: {end}" for label, end in ends]
    assert all(re.search(r", [0-9.]+ (ms|s|µs)$", text) for text in shown), shown


def test_the_file_for_the_browser_leads_to_the_page(
    watch: Callable[..., LivePage], chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")  # a program that does nothing
    page = watch("--open", "-n")
    wait_until(lambda: list(page.temporary.glob("*/open.html")), SECONDS)
    (opener,) = page.temporary.glob("*/open.html")
    chromium.ask("Page.navigate", url=opener.as_uri())

    def is_there() -> bool:
        """Return whether the browser has left the file; between two pages it can evaluate nothing."""
        with suppress(AssertionError):
            return bool(chromium.run("document.querySelectorAll('.model').length === 1"))
        return False

    wait_until(is_there, SECONDS)
    assert chromium.run("location.href") == page.url


def test_a_figure_that_cannot_be_seen_is_a_question_mark(
    watch: Callable[..., LivePage], chromium: Browser, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(
        "import http.server as h, sys\n"
        "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()\n"
    )
    page = watch("--command", f"{sys.executable} server.py {{port}}", "-t")
    show(chromium, page)
    click(chromium, '[data-send="visitor"]')
    until(chromium, f"{figure(1, 'answered')} === '1'")
    assert [chromium.run(figure(0, name)) for name in ("queued", "answered", "refused")] == ["?", "?", "?"]
    assert chromium.run(figure(0, "held")).isdecimal()


def test_the_run_becomes_one_page(watch: Callable[..., LivePage], chromium: Browser, tmp_path: Path) -> None:
    page = watch("-p --parking never", "-a")
    page.press(do="send", kind="silent", count=6)
    page.press(do="send", kind="visitor")
    page.until(lambda models: models[0]["queued"] == 2 and models[1]["answered"] == 1)
    show(chromium, page)
    assert chromium.run("byId('run').href") == f"{page.url}page"
    status, text = page.ask("GET", f"{page.path}page")
    assert status == 200
    page.stop()
    file = tmp_path / "run.html"
    file.write_bytes(text)
    chromium.open(file)
    names = "traces.map(trace => [...new Set(trace.connections.map(each => each.label))].sort().join(', '))"
    clients = [*(f"silent {number}" for number in range(1, 7)), "visitor 1"]
    assert chromium.run(names) == [", ".join(clients)] * 2
    assert "connection silent" in chromium.run("words(traces[0], traces[0].lanes[0].spans.at(-1))[0]")
    assert chromium.errors == []


def test_a_paused_picture_stops_no_server(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("-t")
    show(chromium, page)
    click(chromium, "#pause")
    assert page.press(do="send", kind="visitor", count=3)[0] == 204
    page.until(lambda models: kinds(models, "visitor", "answered") == [3])
    until(chromium, "buffered.some(change => change.models[0].answered === 3)")
    assert chromium.run(figure(0, "answered")) == "0"
    for _ in range(10):
        click(chromium, "#step")
    until(chromium, f"{figure(0, 'answered')} === '3'")
    click(chromium, "#pause")
    assert chromium.run("buffered.length") == 0
    assert chromium.errors == []


def test_a_paused_picture_keeps_nothing_of_models_that_have_gone(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("-p")
    show(chromium, page)
    until(chromium, "models[0].last !== null")
    click(chromium, "#pause")
    assert page.press(do="send", kind="visitor", count=3)[0] == 204
    until(chromium, "buffered.some(change => change.models[0].answered === 3)")
    chromium.run("window.before = models[0]")
    assert page.press(do="change", model=0, values={"poolthreads": "2"})[0] == 204
    until(chromium, "models[0] !== window.before")
    click(chromium, "#pause")
    until(chromium, "models[0].last !== null")
    assert chromium.run("models[0].spans.length") == 0
    assert chromium.run(figure(0, "answered")) == "0"


def test_figures_of_many_workers_and_of_a_flood_that_nobody_answers(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    """The change is made up: 60 of 60 threads are occupied, 40 of them in rows."""
    show(chromium, watch("-p --poolthreads 60"))
    until(chromium, "models[0].last !== null && models[0].last.cost.threads !== undefined")
    click(chromium, "#pause")
    chromium.run(
        """(model => {
          const change = structuredClone(model.last);
          change.rows = [...Array(40).keys()].map(row => [`thread ${row + 1}`, "1/2", "busy", 0, "", "", ""]);
          Object.assign(change, {held: 60, rowless: 20});
          Object.assign(change.cost, {threads: 61, processes: 1});
          const kind = {sent: 1, answered: 0, waiting: 0, error: 1, refused: 0, lost: 0, "let go": 0};
          change.clients = {kinds: {flood: kind}, recent: [], flood: {error: 3, refused: 1997}};
          takeModel(model, change);
        })(models[0])"""
    )
    assert chromium.run(figure(0, "held")) == "60"
    assert "20 occupied workers without a row" in chromium.run("models[0].cost.textContent")
    assert chromium.run("document.querySelectorAll('li.more-free').length") == 0
    cells = chromium.run("[...models[0].body.rows[0].cells].map(cell => cell.textContent)")
    assert cells == ["flood: 2000 requests", "1", "–", "–", "3", "1997", "–", "–"]


def test_a_scene_is_played_by_its_buttons(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("--scene", "serial-queue")
    show(chromium, page)
    click(chromium, "#next")
    until(chromium, "document.querySelectorAll('.steps .done').length === 1")
    click(chromium, "#play")
    until(chromium, "document.querySelectorAll('.steps .done').length === 3")
    assert chromium.run("byId('next').disabled && byId('play').disabled")
    assert chromium.errors == []


def test_a_form_changes_the_parameters(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("-p")
    show(chromium, page)
    chromium.run("document.querySelector('[data-key=poolthreads]').value = '0'")
    click(chromium, "[data-change]")
    until(chromium, "byId('status').textContent.includes('poolthreads')")
    chromium.run("document.querySelector('[data-key=poolthreads]').value = '2'")
    click(chromium, "[data-change]")
    until(chromium, "document.querySelector('.model h2').textContent === 'pool, poolthreads: 2'")
    log_of_refused_action = [error for error in chromium.errors if "409" not in error]
    assert log_of_refused_action == []


# Keeps where each line begins and ends: the kind of the row, "worker" for a worker's
LINES_DRAWN = """
globalThis.linesDrawn = [];
const reallyDraws = drawAsks;
globalThis.drawAsks = (pen, from, high, to, low, ...rest) => {
  const model = models.find(each => each.canvas === pen.canvas);
  const kindAt = y => {
    const {row} = model.lines.find(line => line.top <= y && y <= line.top + line.height) ?? {};
    return row === undefined ? "none" : model.rowsNow[row][KIND] ?? "worker";
  };
  if (model) linesDrawn.push(`${kindAt(high)} ${kindAt(low)} ${from <= to}`);
  reallyDraws(pen, from, high, to, low, ...rest);
};
"""


def test_a_line_leads_from_the_worker_that_asks_to_the_database(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("--scene", "database-daemon")
    show(chromium, page)
    chromium.run(LINES_DRAWN)
    click(chromium, "#next")
    until(chromium, "linesDrawn.length > 0")
    # A statement waits for a moment, until its connection is open.
    rows = "[...document.querySelectorAll('[data-model=\"0\"] .picture li')].map(row => row.textContent)"
    until(chromium, f"{rows}.some(text => text.startsWith('database daemonno statements wait'))")
    assert chromium.run("[...new Set(linesDrawn)]") == ["worker database true"]
    legend = chromium.run("byId('legend').innerText")
    assert "from the worker that asks" in legend and "failed" not in legend
    assert chromium.errors == []


def test_a_pool_whose_options_do_not_name_parking_says_that_it_parks(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    show(chromium, watch("-p", "-p --parking never", "-p --parking always", "-t"))
    hints = "models.map(model => model.card.querySelector('.hint')?.textContent ?? '')"
    said = chromium.run(hints)
    assert "parks a connection that waits" in said[0] and said[1:] == ["", "", ""]
    chromium.run("byId('scene-name').value = 'pool-starves'; byId('start').click()")
    until(chromium, "!byId('next').disabled && models.length === 2")
    assert "parks" in chromium.run(hints)[1]
    assert not chromium.run("document.querySelector('.hint').checkVisibility()")  # the scene's text says it


# Keeps the length of the last span of a silent client that was drawn, in milliseconds
LENGTH_DRAWN = """
globalThis.lengthDrawn = 0;
const reallyDrawsSpan = drawSpan;
globalThis.drawSpan = (pen, kind, from, to, ...rest) => {
  if (kind === "client") lengthDrawn = (to - from) / pen.canvas.clientWidth * Number(byId("window").value) * 1000;
  reallyDrawsSpan(pen, kind, from, to, ...rest);
};
const timeOfRow = () => {
  const text = document.querySelector("li[data-holds=client] i").textContent;
  return parseFloat(text) * (text.endsWith(" ms") ? 1 : 1000);
};
"""


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_the_time_of_a_row_is_the_length_in_the_picture(
    watch: Callable[..., LivePage], chromium: Browser, motion: str
) -> None:
    """Without motion, the picture is drawn once a second, and the rows change twenty times."""
    chromium.media(prefers_reduced_motion=motion)
    page = watch("-t")
    show(chromium, page)
    chromium.run(LENGTH_DRAWN)
    page.press(do="send", kind="silent", count=1)
    until(chromium, "lengthDrawn > 0")
    for _ in range(25):
        time_of_row, length = chromium.run("[timeOfRow(), lengthDrawn]")
        assert abs(time_of_row - length) <= 60, (time_of_row, length)  # a row has a tenth of a second
        time.sleep(0.1)
    assert chromium.errors == []


def test_areas_grow_upwards_and_say_their_scale(watch: Callable[..., LivePage], chromium: Browser) -> None:
    """The change is made up: first 3, then 12 parked connections, and 6 in the queue."""
    show(chromium, watch("-p"))
    until(chromium, "models[0].last !== null")
    click(chromium, "#pause")
    high, scale = chromium.run(
        """(model => {
          const {canvas} = model, scales = [], write = drawScale;
          globalThis.drawScale = (...rest) => { scales.push(rest[3]); write(...rest); };
          const highest = number => {  // the highest pixel of the parked ones
            model.samples = [[0, 0, 0, 0, {}], [model.now - 5000, 0, number / 2, number, {}]];
            draw();
            const ratio = canvas.height / model.whole;
            const from = Math.ceil((AREA / 2 + 2) * ratio), end = Math.floor((AREA - 2) * ratio);
            const {data} = canvas.getContext("2d").getImageData(canvas.width * 0.77, from, 1, end - from);
            return Array.from({length: end - from}, (_, y) => y).find(y => data[4 * y + 3] > 100) / ratio;
          };
          const found = [3, 12].map(number => { scales.length = 0; return highest(number); });
          return [found, scales];
        })(models[0])"""
    )
    assert scale == [6, 12]
    assert high[0] > high[1] + 3  # three of four, then twelve of twelve


def test_a_thread_that_a_page_blocks_does_not_look_as_if_it_works(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("-a", "-t")
    show(chromium, page)
    page.press(do="send", kind="endless page", count=1)
    until(chromium, "document.querySelectorAll('li[data-holds=blocked]').length === 2")
    until(chromium, "byId('legend').innerText.includes('blocked: its page waits')")
    assert "is blocked by its page" in chromium.run("document.querySelector('li[data-holds=blocked]').title")
    page.press(do="let-go")
    until(chromium, "document.querySelectorAll('li[data-holds=blocked]').length === 0")
    assert chromium.errors == []


def test_the_tile_of_the_workers_says_their_limit(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("--command", f"{sys.executable} -m http.server {{port}}", "-t --connections 2")
    show(chromium, page)
    page.press(do="send", kind="silent", count=3)
    until(chromium, f"{figure(1, 'held')} === '2'")
    titles = (
        "[...document.querySelectorAll('[data-figure=held]')].map(each => each.previousSibling.textContent)"
    )
    assert chromium.run(titles) == ["workers occupied", "workers occupied of 2"]


def test_the_head_of_the_areas_names_the_clients_that_wait(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("-p --parking never", "-a")
    show(chromium, page)
    head = "document.querySelector('[data-model=\"{}\"] li.waiting b').textContent"
    page.press(do="send", kind="silent", count=6)
    page.until(lambda models: models[0]["queued"] == 1)
    page.press(do="send", kind="visitor")
    until(chromium, f"{head.format(0)} === '2 in the queue: silent 6, visitor 1'")
    page.press(do="send", kind="visitor", count=5)
    until(chromium, f"{head.format(0)} === '7 in the queue: silent 6, visitor 1 and 5 more'")
    page.press(do="send", kind="blocking", count=1)
    page.until(lambda models: models[1]["held"] == 1)
    page.press(do="send", kind="silent", count=2)
    until(chromium, f"/^2 in the backlog: silent [78], silent [78]$/.test({head.format(1)})")
    page.press(do="let-go")
    until(chromium, f"{head.format(0)} === 'the queue is empty' && {head.format(1)} === 'the queue is empty'")
    assert chromium.errors == []


# The texts that are wider than their boxes, which hide a part of them
CLIPPED = """
[...document.querySelectorAll(
  ".figures dd, .figures dt, .model h2, .cost, .hint, .recent li, .group button, .steps li")]
  .filter(each => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1)
  .map(each => each.textContent)
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_live_page_fits_and_has_no_error(
    watch: Callable[..., LivePage], chromium: Browser, width: int, scheme: str
) -> None:
    """With four models, and with a scene of three: on a phone, a laptop and a projector."""
    page = watch("-p", "-p --parking never --poolthreads 2", "-t", "-a")
    show(chromium, page)
    chromium.ask(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    chromium.media(prefers_color_scheme=scheme)
    for kind, count in (("silent", 12), ("keep-alive", 3), ("visitor", 200)):
        page.press(do="send", kind=kind, count=count)
    until(chromium, f"Number({figure(3, 'answered')}) > 100")
    chromium.drawn()
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.run(CLIPPED) == []
    chromium.run("byId('scene-name').value = 'parking'; byId('start').click()")
    until(
        chromium,
        "!byId('next').disabled && models.length === 3 && models.every(model => model.last !== null)",
    )
    click(chromium, "#next")
    until(chromium, "document.querySelectorAll('.steps .done').length === 1")
    chromium.drawn()
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.run(CLIPPED) == []
    assert chromium.errors == []


def test_titles_and_legend_say_what_differs_and_what_is_seen(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    options = "--poolthreads 3"
    show(chromium, watch(f"-p {options} --parking never", f"-p {options}", "-a"))
    titles = "[...document.querySelectorAll('.model h2')].map(title => title.textContent)"
    assert chromium.run(titles) == ["pool, parking: never", "pool, parking: always", "asyncio"]
    legend = "[...byId('legend').children].map(item => item.textContent)"
    until(chromium, "models.every(model => model.last !== null)")
    assert chromium.run(legend) == ["works"]
    click(chromium, "[data-send=silent]")
    until(chromium, f"{legend}.includes('held: its client is silent or slow') && {legend}.includes('parked')")
    click(chromium, "#let-go")
    click(chromium, "[data-send=visitor]")
    free = "[...document.querySelectorAll('[data-model=\"1\"] li.more-free')].map(item => item.textContent)"
    rows = "models[1].last.rows.filter(row => row[0].startsWith('thread')).length"
    # How many of the three threads have had a client differs: a client that goes has one, too.
    said = f"`${{3 - {rows}}} more ${{{rows} === 1 ? 'threads' : 'thread'}}: free`"
    until(chromium, f"{rows} && ({rows} === 3 || {free}[0] === {said})")


def test_a_span_too_narrow_for_its_label_has_it_behind_it(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    """A visitor is answered in a moment: its name stands where the row is free, and not over another span."""
    show(chromium, watch("-t"))
    until(chromium, "models[0].last !== null")
    click(chromium, "#pause")
    chromium.run(
        """(model => {
          const change = structuredClone(model.last), now = change.now;
          change.rows = [["thread 1", "1/2", "", 0, "", "", ""]];
          const span = (begin, label) => [0, now - begin, now - begin + 1, "busy", "", label, "GET /", null];
          change.spans = [span(9000, "first"), span(5050, "hidden"), span(5000, "second")];
          window.texts = [];
          const pen = CanvasRenderingContext2D.prototype, write = pen.fillText;
          pen.fillText = function(text, ...rest) { texts.push(text); write.call(this, text, ...rest); };
          takeModel(model, change);
          draw();
        })(models[0])"""
    )
    assert set(chromium.run("texts")) & {"first", "hidden", "second"} == {"first", "second"}


def test_a_failed_statement_is_seen_and_read(watch: Callable[..., LivePage], chromium: Browser) -> None:
    """The change is made up: no statement of the demonstration fails."""
    show(chromium, watch("-t"))
    until(chromium, "models[0].last !== null")
    click(chromium, "#pause")
    chromium.run(
        """(model => {
          const change = structuredClone(model.last), now = change.now;
          change.behind.rows = [["demo", "sqlite", "", 0, "", "locked", "", null, "database"]];
          change.behind.spans = [[0, now - 900, now, "database", "", "report 1", "SELECT ?", null, "locked"]];
          change.behind.queued.database = 2;
          takeModel(model, change);
          draw();
        })(models[0])"""
    )
    rows = chromium.run("[...models[0].rows.children].map(row => row.innerText.replace(/\\s+/g, ' '))")
    assert rows[-2:] == ["database daemon 2 statements wait", "demo free; failed: locked"]
    assert "failed, or was ended" in chromium.run("byId('legend').innerText")
    edge: Any = chromium.run(
        "(({canvas, tops, whole}) => { const scale = canvas.height / whole, y = (tops.at(-1) + 24) * scale;"
        "return [...canvas.getContext('2d').getImageData(canvas.width - 12, y, 8, 3).data]; })(models[0])"
    )
    assert any(red > green + 60 for red, green in zip(edge[::4], edge[1::4], strict=True))  # the dashes
    assert chromium.errors == []


def test_an_engine_that_ends_is_grey_then_folded_within_its_own_rows(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    """The change is made up: an engine ends only after minutes without work."""
    show(chromium, watch("-t"))
    until(chromium, "models[0].last !== null")
    click(chromium, "#pause")
    chromium.run(
        """end = age => { const model = models[0], change = structuredClone(model.last), now = change.now;
          const row = (name, want, kind) => [name, "", "", 0, want, "", "", null, kind];
          change.behind.rows = [row("alice: python", "ended", "engine"), row("bob: python", "", "engine"),
            row("demo", "", "database")];
          change.behind.lives = {now: [[now - 15000, now - age], [now - 9000, null], [now - 9000, null]], past: []};
          takeModel(model, change);
          draw();
          return [...model.rows.children].slice(1).map(each => each.className + "/" + each.textContent); }; 0"""
    )
    waiting = ["waiting/X-Switchno scripts wait", "waiting/database daemonno statements wait"]
    ended, lives, demo = "alice: pythonended", "/bob: pythonfree", "/demofree"
    rows = [each.replace(" two-lines", "").replace("two-lines", "") for each in chromium.run("end(1000)")]
    assert rows == [waiting[0], f"past/{ended}", lives, waiting[1], demo]
    rows = [each.replace(" two-lines", "").replace("two-lines", "") for each in chromium.run("end(11000)")]
    folded = "more-free/1 ended engine: folded"
    assert rows == [waiting[0], f"folded/{ended}", lives, folded, waiting[1], demo]
    assert chromium.errors == []


def test_a_title_names_keep_alive(watch: Callable[..., LivePage], chromium: Browser) -> None:
    show(chromium, watch("-t --persistent", "-t --no-persistent"))
    titles = "[...document.querySelectorAll('.model h2')].map(title => title.textContent)"
    assert chromium.run(titles) == ["thread, keep-alive: yes", "thread, keep-alive: no"]


def test_the_rows_of_engines_are_in_the_window_beside_seven_steps(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    show(chromium, watch("--scene", "xswitch-engines"))
    until(chromium, "models.every(model => model.last !== null) && !byId('next').disabled")
    assert chromium.run("document.querySelectorAll('.steps li').length") == 7
    # Below the picture there is room for the queue of X-Switch and three engines
    room = (
        "innerHeight - document.querySelector('article:last-child .picture').getBoundingClientRect().bottom"
    )
    # On a busy machine, the picture may show the queue already, and an engine that has ended
    shown = (
        "((lines, at) => at < 0 ? 0 : lines.slice(at).reduce((sum, line) => sum + line.height, 0))"
        "(models.at(-1).lines, models.at(-1).lines.findIndex(line => line.queue))"
    )
    assert chromium.run(room) + chromium.run(shown) >= chromium.run("STRIP + 3 * 30")
    chromium.run("showScene({title: 'T', text: '', lacks: '', steps: Array(7).fill('Long words. '.repeat(9)),"
                 " at: 6, skipped: [], failed: '', running: false})")  # fmt: skip
    steps = "document.querySelector('.steps')"
    inside = "(list, item) => item.top >= list.top - 1 && item.bottom <= list.bottom + 1"
    place = ".getBoundingClientRect()"
    assert chromium.run(f"({inside})({steps}{place}, document.querySelector('.steps .shown'){place})")


def test_a_process_that_ends_leaves_a_grey_row_which_is_folded(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    """Fifty visitors are fifty processes of fork, whose lives share few rows."""
    page = watch("-f")
    show(chromium, page)
    click(chromium, "[data-send=silent]")
    until(chromium, f"{figure(0, 'held')} === '5'")
    alive = "[...models[0].rows.children].filter(row => row.matches(':not(.past, .folded, .waiting, .more-free)'))"
    assert chromium.run(f"{alive}.length") == 5
    click(chromium, "[data-send=fifty]")
    until(chromium, f"{figure(0, 'answered')} === '50' && models[0].lives.length === 50")
    until(chromium, "document.querySelector('li.past')?.textContent.endsWith('wait() called')")
    click(chromium, "#let-go")
    page.until(lambda models: models[0]["held"] == 0)
    until(chromium, f"{alive}.length === 0 && document.querySelectorAll('li.past').length === 0")
    folded = chromium.run("document.querySelectorAll('li.folded').length")
    assert folded >= 5
    said = chromium.run("document.querySelector('.more-free').innerText")
    assert said.startswith(f"{folded} ended processes: folded")
    heights = "[...document.querySelectorAll('li.folded')].every(row => row.offsetHeight <= FOLDED)"
    assert chromium.run(heights)
    assert "a worker lives, from edge to edge" in chromium.run("byId('legend').innerText")
    until(chromium, "[...document.querySelectorAll('li.folded')].every(row => !row.offsetHeight)")
    assert chromium.errors == []
