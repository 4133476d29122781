"""The pages for each reader, in a real Chromium: by keys alone, without motion, without colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devtools import Browser
from made_traces import made
from test_live import LivePage, kinds, watch
from test_live_browser import chromium, click, figure, show, until
from test_page import page_of

from ewe_watch.live.scenes import scene_files

__all__ = ["chromium", "watch"]  # the fixtures

pytestmark = [pytest.mark.starts_processes, pytest.mark.needs("Chromium"), pytest.mark.timeout(180)]

# The controls that Tab can reach, in the order of the document
CONTROLS = (
    "[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]"
    ".filter(each => !each.disabled && each.checkVisibility())"
)
NAME = "(each => each.id || each.dataset.send || each.dataset.do || each.textContent.slice(0, 30) || each.tagName)"
OUTLINED = (
    "(style => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2)"
    "(getComputedStyle(document.activeElement))"
)


def tabbed(page: Browser) -> list[list[Any]]:
    """Press Tab once for each control; return the number and the name of each, and whether its focus is visible."""
    page.run(f"controls = {CONTROLS}; document.activeElement.blur(); 0")
    found = []
    for _ in range(page.run("controls.length")):
        page.press("Tab")
        found.append(
            page.run(
                f"[controls.indexOf(document.activeElement), {NAME}(document.activeElement), {OUTLINED}]"
            )
        )
    return found


def test_tab_reaches_every_control_of_the_live_page(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    show(chromium, watch("-p --parking never", "-t"))
    found = tabbed(chromium)
    assert [number for number, _, _ in found] == list(range(len(found))), found
    names = [name for _, name, _ in found]
    assert {"visitor", "silent", "flood", "let-go", "pace", "pause", "window", "parameters"} <= set(names)
    assert [name for _, name, visible in found if not visible] == []


def test_tab_reaches_every_control_of_a_trace(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    found = tabbed(chromium)
    assert [number for number, _, _ in found] == list(range(len(found))), found
    assert {"left", "in", "out", "right", "whole", "connection", "CANVAS"} <= {name for _, name, _ in found}
    assert [name for _, name, visible in found if not visible] == []


def test_keys_alone_send_clients_pause_and_close(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("-t")
    show(chromium, page)
    chromium.run("document.querySelector('[data-send=visitor]').focus()")
    chromium.press("Enter", " ")
    until(chromium, f"{figure(0, 'answered')} === '2'")
    chromium.run("byId('pause').focus()")
    chromium.press(" ")
    assert chromium.run("paused && !byId('step').disabled")
    chromium.press("Enter")
    assert chromium.run("!paused")
    chromium.run("document.querySelector('.model details summary').focus()")
    chromium.press("Enter", "Tab")
    assert chromium.run("document.activeElement.dataset.key") == "poolthreads"
    chromium.press("Escape")
    assert chromium.run("!document.querySelector('.model details').open")
    assert chromium.run("document.activeElement.textContent") == "parameters"
    page.until(lambda models: kinds(models, "visitor", "answered") == [2])
    assert chromium.errors == []


def test_a_scene_is_chosen_played_and_left_by_keys(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("-t", "-a")
    show(chromium, page)
    chromium.run("document.querySelector('#scenes summary').focus()")
    chromium.press("Enter", "Tab")
    assert chromium.run("document.activeElement.id") == "scene-name"
    assert chromium.run("document.querySelectorAll('#scene-name option').length") == len(scene_files())
    for _ in scene_files():
        if chromium.run("byId('scene-name').value") == "serial-queue":
            break
        chromium.press("ArrowDown")
    assert chromium.run("byId('scene-text').textContent.match(/[.]/g).length") >= 3
    chromium.press("Tab", "Enter")
    until(chromium, "!byId('scene').hidden && document.querySelector('.model h2').textContent === 'serial'")
    until(chromium, "!byId('next').disabled && !byId('scenes').open")
    chromium.run("byId('play').focus()")
    chromium.press("Enter")
    until(chromium, "document.querySelectorAll('.steps .done').length === 3 && !byId('leave').disabled")
    chromium.run("byId('leave').focus()")
    chromium.press("Enter")
    until(
        chromium, "byId('scene').hidden && models.map(model => model.facts.label).join() === 'thread,asyncio'"
    )
    assert chromium.errors == []


NEVER = """title = "Never"
text = "One sentence."
models = ["-t"]
[[step]]
say = "Nobody comes."
until = ["1: answered visitor = 1"]
[[step]]
say = "Nobody comes again."
until = ["1: answered visitor = 1"]
"""


def test_the_wait_of_a_step_is_left_by_a_key_and_by_its_button(
    watch: Callable[..., LivePage], chromium: Browser, tmp_path: Path
) -> None:
    (tmp_path / "never.toml").write_text(NEVER)
    show(chromium, watch("--scene", "never.toml"))
    done = "document.querySelectorAll('.steps .done').length"
    assert chromium.run("byId('skip').disabled")
    chromium.run("byId('next').focus()")
    chromium.press("Enter")
    until(chromium, "!byId('skip').disabled")
    chromium.press("s")
    until(chromium, f"{done} === 1 && byId('skip').disabled && !byId('next').disabled")
    assert chromium.run("document.querySelector('.steps .done').textContent").endswith("(skipped)")
    click(chromium, "#next")
    until(chromium, "!byId('skip').disabled")
    chromium.run("byId('skip').focus()")
    chromium.press("Enter")
    until(chromium, f"{done} === 2")
    assert chromium.run("document.activeElement.id") == "leave"
    assert chromium.errors == []


def test_a_scene_that_needs_users_says_so_in_one_line(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    show(chromium, watch("-t"))
    chromium.run("byId('scenes').open = true; byId('scene-name').value = 'xswitch-engines'; tellScene()")
    needs = "needs root and 2 accounts (--users NAME,NAME)"
    assert needs in chromium.run("byId('scene-lacks').textContent")
    chromium.run("byId('scene-name').value = 'parking'; tellScene()")
    assert not chromium.run("byId('scene-lacks').checkVisibility()")
    chromium.run("byId('scene-name').value = 'xswitch-engines'; byId('start').click()")
    until(chromium, "document.querySelector('.model h2')?.textContent === 'asyncio'")
    until(chromium, "!byId('play').disabled")
    text = chromium.run("document.querySelector('#scene .lacks').textContent")
    assert needs in text and "\n" not in text
    click(chromium, "#play")
    rows = "[...document.querySelectorAll('[data-model=\"1\"] li[data-behind=engine]')]"
    until(chromium, f"{rows}.some(row => row.textContent.includes(': python'))")
    assert chromium.run(f"{rows}[0].previousElementSibling.innerText").startswith("X-Switch\n")
    assert "an engine runs a script" in chromium.run("byId('legend').textContent")
    assert chromium.errors == []


def test_a_scene_that_cannot_start_is_one_line_in_the_page(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("-t")
    show(chromium, page)
    chromium.run(
        "byId('scene-name').options[0].value = '/etc/passwd.toml'; byId('scene-name').selectedIndex = 0"
    )
    click(chromium, "#start")
    until(chromium, "byId('status').className === 'wrong'")
    text = chromium.run("byId('status').textContent")
    assert text.startswith("there is no scene '/etc/passwd.toml'") and "\n" not in text
    assert chromium.run("byId('scene').hidden && models[0].facts.label") == "thread"
    assert page.until(lambda models: True)[0]["alive"]


def draws(page: Browser) -> int:
    """Return how often the live page draws in thirty frames of the screen."""
    return int(
        page.run(
            "new Promise(done => { const before = drawn; let left = 30; const next = () => --left "
            "? requestAnimationFrame(next) : done(drawn - before); requestAnimationFrame(next); })"
        )
    )


def test_without_motion_the_live_page_stands_still_and_its_numbers_change(
    watch: Callable[..., LivePage], chromium: Browser
) -> None:
    page = watch("-t")
    show(chromium, page)
    chromium.run("drawn = 0; frameOf = draw; draw = () => { drawn++; frameOf(); }; 0")
    chromium.media(prefers_reduced_motion="no-preference")
    moving = draws(chromium)
    chromium.media(prefers_reduced_motion="reduce")
    assert draws(chromium) * 3 < moving
    assert chromium.run("document.getAnimations().length") == 0
    page.press(do="send", kind="visitor", count=3)
    until(chromium, f"{figure(0, 'answered')} === '3'")


def test_without_motion_a_row_folds_in_one_picture(watch: Callable[..., LivePage], chromium: Browser) -> None:
    """The canvas, which is drawn once a second without motion, has the height of its rows in the same picture."""
    page = watch("-f")
    show(chromium, page)
    chromium.media(prefers_reduced_motion="reduce")
    chromium.run(
        "heights = []; fold = draw; draw = () => { fold(); heights.push([models[0].rows.offsetHeight,"
        " models[0].canvas.offsetHeight]); }; 0"
    )
    # The first height is that of the parent alone. One row of a child is as high as the lines that it folds into
    until(chromium, "heights.length > 0")
    page.press(do="send", kind="visitor", count=3)
    until(chromium, "Boolean(document.querySelector('li.past'))")
    until(chromium, "Boolean(document.querySelector('li.folded'))")
    until(chromium, "new Set(heights.map(each => each[0])).size >= 3")
    assert chromium.run("heights.filter(([rows, canvas]) => rows !== canvas)") == []
    assert chromium.run("document.getAnimations().length") == 0


def test_without_motion_a_trace_zooms_at_once(tmp_path: Path, chromium: Browser) -> None:
    chromium.open(page_of(tmp_path, made("pool, never")))
    chromium.run("length = () => view.to - view.from; 0")
    zoom = "(() => { ACTIONS.whole(); const all = length(); ACTIONS.in(); return length() / all; })()"
    assert chromium.run(zoom) == pytest.approx(0.5)
    chromium.media(prefers_reduced_motion="no-preference")
    assert chromium.run(zoom) == pytest.approx(1)  # the first frame of the movement is still to come
    until(chromium, "(view.to - view.from) / whole < 0.51")


# The samples of the legend, as the brightness of their pixels
SAMPLES = (
    "[...document.querySelectorAll('#legend canvas')].map(canvas => { const {data} = canvas.getContext('2d')"
    ".getImageData(0, 0, 60, 32); let text = ''; for (let at = 0; at < data.length; at += 4) text += "
    "(765 - data[at] - data[at + 1] - data[at + 2]) * data[at + 3] < 97000 ? 1 : 0; return text; })"
)


@pytest.mark.parametrize("forced", ["active", "none"])
def test_the_kinds_differ_without_colours(
    watch: Callable[..., LivePage], chromium: Browser, forced: str
) -> None:
    show(chromium, watch("-t"))
    chromium.run(
        "zombies = failures = lives = true; behind = new Set(Object.keys(BEHIND));"
        "seen = new Set(LEGEND.map(each => each[0])); 0"
    )
    chromium.media(forced_colors=forced, prefers_color_scheme="light")
    chromium.run("readColours(); legend(); 0")
    if forced == "active":  # each sample as two brightnesses: the pattern alone makes the difference
        samples = chromium.run(SAMPLES)
        assert len(samples) == len(set(samples)) == 14
        assert all(len(set(each)) == 2 for each in samples[1:])
        colour = "getComputedStyle(document.querySelector('button.main')).color"
        assert chromium.run(f"{colour} !== getComputedStyle(document.body).backgroundColor")
    else:
        patterned = "blocked sends client other queue backlog engine database zombie"
        assert chromium.run("Object.keys(patterns).join(' ')") == patterned


def test_a_zombie_has_its_own_state(watch: Callable[..., LivePage], chromium: Browser) -> None:
    page = watch("--scene", "fork-processes")
    show(chromium, page)
    until(chromium, "!byId('play').disabled")
    click(chromium, "#play")
    until(chromium, f"{figure(0, 'zombies')} === '6' && {figure(0, 'held')} === '0'")
    rows = (
        "[...document.querySelectorAll('[data-model=\"{}\"] li[data-state]')].map(row => row.dataset.state)"
    )
    until(chromium, f"{rows.format(0)}.filter(state => state === 'zombie').length === 6")
    until(chromium, f"{rows.format(1)}.every(state => state === '') && {figure(1, 'zombies')} === '0'")
    assert "zombie" in chromium.run("byId('legend').textContent")
    assert chromium.errors == []
