"""The timeline as a page: one file of HTML with its style inside, for a browser, a lecture or a report.

Wide windows show a column for each thread. Narrow ones show the threads as rails on the left, as a history of
commits is drawn, and the words beside them. The page follows the reader's choice of light or dark.

Read next: cli.py.
"""

from __future__ import annotations

import linecache
from html import escape

from ewe_explore.explain import Event, Story
from ewe_explore.scheduler import short

CONTEXT = 3  # lines of source around a line that takes part
WHOLE = 70  # a file of so many lines is shown whole

STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #fff; --ink: #22211e; --soft: #6d6a63; --rule: #e4e0d7;
  --fail: #b3261e; --failpaper: #fdecea; --mark: #fff3c4;
  --l0: #3d6b99; --l1: #b3541e; --l2: #6b4fa0; --l3: #2f7d4f; --l4: #a83268; --l5: #6f6a1d; }
@media (prefers-color-scheme: dark) { :root { --paper: #17181a; --card: #1f2124; --ink: #e9e6df; --soft: #a09c93;
  --rule: #34373b; --fail: #ff8a80; --failpaper: #3a2220; --mark: #4a4020;
  --l0: #8ab8e6; --l1: #f0a36b; --l2: #b9a0ee; --l3: #7fcf9d; --l4: #f08cb8; --l5: #cfc96a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .2rem 0 .8rem; text-wrap: balance; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
code, pre, .step, .line, .source { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; }
.eyebrow { color: var(--soft); font-size: .85rem; margin: 0; }
.fail { color: var(--fail); }
.why { background: var(--failpaper); border-left: 4px solid var(--fail); border-radius: 0 8px 8px 0;
  padding: .7rem 1rem; margin: 0 0 1rem; }
.why p { margin: .25rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; color: var(--soft); font-size: .9rem; margin: 0; }
.facts b { color: var(--ink); }
pre.command { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .6rem .8rem;
  overflow-x: auto; font-size: .85rem; margin: .8rem 0 0; }
.lanes { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 0 .6rem .4rem;
  font-size: .82rem; overflow: clip; }
.row { display: grid; grid-template-columns: 2.6rem repeat(var(--n), minmax(0, 1fr)); min-height: 1.75rem;
  position: relative; align-items: stretch; }
.head { position: sticky; top: 0; background: var(--card); z-index: 2; border-bottom: 1px solid var(--rule);
  font-weight: 650; padding: .45rem 0; margin-bottom: .3rem; align-items: center; }
.head span { padding-left: 1.3rem; position: relative; overflow-wrap: anywhere; }
.head span::before { content: ""; position: absolute; left: .1rem; top: .35em; width: .7rem; height: .7rem;
  border-radius: 50%; background: var(--c); }
.line { color: var(--soft); grid-column: 1; text-align: right; padding: .22rem .7rem 0 0; grid-row: 1; }
.rail { grid-row: 1; position: relative; }
.rail::before { content: ""; position: absolute; left: .4rem; top: 0; bottom: 0; width: 0;
  border-left: 2px solid var(--c); opacity: .22; }
.rail.on::before { opacity: 1; border-left-width: 4px; left: calc(.4rem - 1px); }
.rail.waits::before { border-left-style: dotted; opacity: .8; }
.rail.none::before { display: none; }
.step { grid-row: 1; padding: .18rem .3rem .18rem 1.3rem; position: relative; overflow-wrap: anywhere; z-index: 1; }
.step::before { content: ""; position: absolute; left: .08rem; top: .56em; width: .64rem; height: .64rem;
  border-radius: 50%; background: var(--card); border: 2px solid var(--c); }
.step.write::before { background: var(--c); }
.step.wait { color: var(--soft); }
.step.wait::before { border-radius: 2px; }
.step.write { font-weight: 600; }
.stop { min-height: 2.1rem; }
.stop .cut { grid-row: 1; align-self: center; margin: 0 calc(100% / var(--span) - .4rem) 0 .4rem; height: 0;
  border-top: 2px dashed var(--soft); position: relative; }
.stop .cut::after { content: ""; position: absolute; top: -6px; border: 5px solid transparent; }
.stop .cut.right::after { right: -4px; border-left-color: var(--soft); }
.stop .cut.left::after { left: -4px; border-right-color: var(--soft); }
.stop .label { grid-row: 1; grid-column: 2 / -1; justify-self: center; align-self: center; background: var(--mark);
  border-radius: 99px; padding: .08rem .8rem; font-style: italic; z-index: 2; text-align: center; }
.gap { color: var(--soft); padding: .3rem 2.8rem; font-style: italic; }
.end { background: var(--failpaper); color: var(--fail); border-radius: 6px; font-weight: 650; padding: .4rem .8rem;
  margin-top: .5rem; overflow-wrap: anywhere; }
ol.story { padding-left: 1.3rem; margin: 0; } ol.story li { margin: .3rem 0; padding-left: .3rem; }
ol.story b { color: var(--c, var(--ink)); }
.source { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .5rem 0; margin: 0;
  font-size: .82rem; overflow-x: auto; }
.source div { padding: 0 1rem 0 .4rem; white-space: pre; width: max-content; min-width: 100%; }
.source i { display: inline-block; width: 2.6rem; text-align: right; margin-right: .9rem; color: var(--soft);
  font-style: normal; }
.source .hit { background: var(--mark); } .source .bad { background: var(--failpaper); color: var(--fail); }
.source s { display: inline-block; width: .55rem; height: .55rem; border-radius: 50%; margin-right: .2rem;
  background: var(--c); }
.source u { display: inline-block; text-decoration: none; }
@media (max-width: 46rem) {
  main { padding: 1rem .8rem 3rem; } h1 { font-size: 1.25rem; }
  .row { grid-template-columns: 2rem repeat(var(--n), 1.05rem) minmax(0, 1fr); }
  .line { padding-right: .45rem; font-size: .75rem; padding-top: .28rem; }
  .head { display: flex; flex-wrap: wrap; gap: .2rem .9rem; } .head .line { display: none; }
  .head span { padding-left: 1rem; }
  .step { grid-column: -2 / -1 !important; padding-left: .5rem; color: var(--ink); }
  .step::before { display: none; }
  .dot { display: block; }
  .stop .label { grid-column: -2 / -1; justify-self: start; border-radius: 8px; text-align: left;
    padding: .1rem .5rem; margin: .15rem 0; }
  .stop .cut { margin: 0 .55rem 0 .4rem; }
}
@media (min-width: 46.01rem) { .dot { display: none; } }
.dot { position: absolute; left: .08rem; top: .5rem; width: .68rem; height: .68rem; border-radius: 50%; z-index: 1;
  background: var(--card); border: 2px solid var(--c); }
.dot.write { background: var(--c); } .dot.wait { border-radius: 2px; }
"""


def page(story: Story, title: str) -> str:
    """Return a story as a whole page."""
    used = sorted({event.lane for event in story.events})
    places = {lane: place for place, lane in enumerate(used)}
    why = "".join(f"<p>{marked(text)}</p>" for text in story.why)
    facts = "".join(
        f"<span>{escape(key)} <b>{escape(value)}</b></span>"
        for key, value in story.facts.items()
        if key != "command"
    )
    command = story.facts.get("command", "")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}: {escape(story.headline)}</title><style>{STYLE}</style></head><body><main>",
        f'<p class="eyebrow">ewe-explore · {escape(title)}</p>',
        f'<h1 class="fail">{escape(capital(story.headline, story.lanes))}</h1>',
        f'<div class="why">{why}</div>' if why else "",
        f'<p class="facts">{facts}</p>',
        f'<pre class="command">{escape(command)}</pre>' if command else "",
        "<h2>The threads, from top to bottom</h2>",
        lanes(story, places),
        "<h2>In words</h2>",
        f'<ol class="story">{"".join(told(story, text) for text in story.sentences)}</ol>',
        *(listing(story, file) for file in story.files),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def capital(text: str, names: list[str]) -> str:
    """Return a headline with a capital letter, unless it begins with a thread's name."""
    return text if text.startswith(tuple(names)) else text[:1].upper() + text[1:]


def marked(text: str) -> str:
    """Return a text as HTML, with its code between backticks set as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def colour(lane: int) -> str:
    return f"--c:var(--l{lane % 6})"


def told(story: Story, text: str) -> str:
    """Return a sentence, with the name of its thread in the thread's colour."""
    for number, name in enumerate(story.lanes):
        if text.startswith(name + " "):
            rest = escape(text[len(name) :])
            return f'<li><b style="{colour(number)}">{escape(name)}</b>{rest}</li>'
    return f"<li>{escape(text)}</li>"


def lanes(story: Story, places: dict[int, int]) -> str:
    """Return the lanes."""
    head = "".join(f'<span style="{colour(lane)}">{escape(story.lanes[lane])}</span>' for lane in places)
    rows = [f'<div class="row head"><span class="line"></span>{head}</div>']
    states = dict.fromkeys(places, "")
    for event in story.events:
        if event.kind == "fail":
            rows.append(f'<div class="end">✗ {escape(event.text)}</div>')
            continue
        if event.kind == "gap":
            rows.append(f'<div class="gap">⋮ {escape(event.text)}</div>')
            continue
        for lane in states:
            if states[lane] == "on":
                states[lane] = ""
        states[event.lane] = "on"
        rows.append(
            stop(event, places, states, story) if event.kind == "stop" else step(event, places, states)
        )
        states[event.lane] = "waits" if event.kind in ("wait", "stop") else ""
    return f'<div class="lanes" style="--n:{len(places)}">{"".join(rows)}</div>'


def rails(event: Event, places: dict[int, int], states: dict[int, str]) -> str:
    """Return the cells of a row: a piece of each lane's line."""
    cells = []
    for lane, place in places.items():
        dot = ""
        if lane == event.lane and event.kind != "stop":
            dot = f'<span class="dot {shape(event)}"></span>'
        state = "on" if lane == event.lane and event.kind != "stop" else states[lane].replace("on", "")
        cells.append(
            f'<span class="rail {state}" style="grid-column:{place + 2};{colour(lane)}">{dot}</span>'
        )
    return "".join(cells)


def shape(event: Event) -> str:
    """Return the class of an event's dot."""
    return "wait" if event.kind == "wait" else "write" if event.writes else "read"


def step(event: Event, places: dict[int, int], states: dict[int, str]) -> str:
    """Return the row of a step."""
    place = places[event.lane]
    return (
        f'<div class="row"><span class="line">{event.line or ""}</span>{rails(event, places, states)}'
        f'<span class="step {shape(event)}" style="grid-column:{place + 2};{colour(event.lane)}">'
        f"{escape(event.text)}</span></div>"
    )


def stop(event: Event, places: dict[int, int], states: dict[int, str], story: Story) -> str:
    """Return the row of a switch: an arrow from the lane that is stopped to the one that goes on."""
    here, there = places[event.lane], places.get(event.other, places[event.lane])
    low, high = min(here, there), max(here, there)
    arrow = (
        f'<span class="cut {"right" if there > here else "left"}" '
        f'style="grid-column:{low + 2}/{high + 3};--span:{high - low + 1}"></span>'
    )
    text = f"{story.lanes[event.lane]} {event.text}"
    return (
        f'<div class="row stop"><span class="line">{event.line or ""}</span>{rails(event, places, states)}'
        f'{arrow}<span class="label">{escape(text)}</span></div>'
    )


def listing(story: Story, file: str) -> str:
    """Return the source of a file, with the lines that take part."""
    lines = [line.rstrip("\n") for line in linecache.getlines(file)]
    if not lines:
        return ""
    hits = story.files[file]
    last = story.events[-1]
    shown = set(range(1, len(lines) + 1))
    if len(lines) > WHOLE:
        shown = {near for line in hits for near in range(line - CONTEXT, line + CONTEXT + 1)} & shown
    users: dict[int, list[int]] = {}
    for event in story.events:
        if event.file == file and event.kind != "fail" and event.lane not in users.setdefault(event.line, []):
            users[event.line].append(event.lane)
    width = max((len(lanes) for lanes in users.values()), default=0)
    rows = []
    before = 0
    for number in sorted(shown):
        if number != before + 1:
            rows.append("<div><i></i>⋯</div>")
        before = number
        dots = "".join(f'<s style="{colour(lane)}"></s>' for lane in users.get(number, []))
        kind = "bad" if (last.file, last.line) == (file, number) else "hit" if number in hits else ""
        attribute = f' class="{kind}"' if kind else ""
        rows.append(
            f'<div{attribute}><i>{number}</i><u style="width:{width * 0.8:.1f}rem">{dots}</u>'
            f"{escape(lines[number - 1])}</div>"
        )
    return f'<h2>{escape(short(file))}</h2><div class="source">{"".join(rows)}</div>'
