"""The report as one page: a summary, each check with its evidence, and a timeline with a lane for each client.

The page is self-contained: style and pictures are in it, no script, no other server. In the picture, time goes to
the right in steps, not in seconds: each column is one step of the schedule. What matters is the order.

    ○ connects   ▸ sends   ■ amber: waits for its response   ■ green: answered   × the connection has ended
"""

from __future__ import annotations

import html
from datetime import UTC, datetime
from typing import Any

from ewe.classroom.grader.verdicts import NOT_RUN, PASSED, Report, Verdict

MOST_LANES = 30
MOST_COLUMNS = 150
COLUMN, ROW, LEFT = 18, 20, 150

ENDS = {"close", "reset", "closed-by-server", "reset-by-server", "refused", "too-much"}

STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --dim: #5b6670; --paper: #fff; --card: #f5f6f4; --line: #d8dcd8;
  --good: #2c7a4b; --bad: #b3261e; --wait: #d99a1c; --note: #3b6ea5 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9e7; --dim: #9aa5a0; --paper: #16191a; --card: #1f2425;
  --line: #3a4243; --good: #63c48a; --bad: #ff8a80; --wait: #e5b454; --note: #7fb2e5 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem }
.dim { color: var(--dim); margin: .2rem 0; overflow-wrap: anywhere }
.score { font-size: 2.6rem; line-height: 1.2; font-weight: 700; margin: 1rem 0 .2rem }
.score small { font-size: 1.1rem; font-weight: 400; color: var(--dim) }
.tiles { display: flex; flex-wrap: wrap; gap: 4px; margin: .6rem 0 1.6rem; padding: 0 }
.tiles a { display: block; padding: .15rem .5rem; border-radius: 4px; font-size: .85rem; text-decoration: none;
  color: var(--paper); background: var(--good) }
.tiles a.failed, .tiles a.error { background: var(--bad) } .tiles a.not-run { background: var(--dim) } details {
border: 1px solid var(--line); border-radius: 8px; margin: .5rem 0; background: var(--card) } summary { cursor:
pointer; padding: .6rem .8rem; display: grid; grid-template-columns: 4.2rem 1fr auto; gap: .2rem .8rem }
summary::-webkit-details-marker { display: none } summary b { font-family: ui-monospace, monospace; font-weight:
600 } summary .about { grid-column: 2 / -1; color: var(--dim); font-size: .93rem } .mark { font-size: .85rem;
font-weight: 700; color: var(--good) } .failed .mark, .error .mark { color: var(--bad) } .not-run .mark { color:
var(--dim) } .inside { padding: 0 .8rem .8rem } dl { display: grid; grid-template-columns: 11.5rem 1fr; gap: .3rem
.8rem; margin: .2rem 0 1rem } dt { color: var(--dim) } dd { margin: 0; overflow-wrap: anywhere } dd.did { font-
weight: 600; color: var(--bad) } code, pre { font: .87rem/1.45 ui-monospace, monospace } pre { margin: 0; white-
space: pre-wrap } .lanes { overflow-x: auto; border-top: 1px solid var(--line); padding-top: .6rem } svg {
display: block } svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg .dim { fill: var(--dim) }
.lane { stroke: var(--line); stroke-width: 2 } .waits { fill: var(--wait) } .done { fill: var(--good) } .end {
stroke: var(--ink); stroke-width: 1.6; fill: none } .send { fill: var(--ink) } .open { fill: var(--paper); stroke:
var(--ink); stroke-width: 1.6 } .calm { stroke: var(--note); stroke-dasharray: 2 3 } .event { stroke: var(--bad);
stroke-width: 1.5 } .key { font-size: .85rem; color: var(--dim); margin: .3rem 0 0 } @media (max-width: 36rem) {
dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem }
  summary { grid-template-columns: 3.6rem 1fr auto } }
"""
KEY = (
    "One lane for each client; each column is one step. ○ connects, ▸ sends, amber: waits for its response, green: "
    "answered, × the connection ends; a dotted line: the grader waited until what it "
    "asked for came, or the server was calm."
)


def to_html(report: Report) -> str:
    """Return the page of a report."""
    when = datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    count = len(report.verdicts)
    passed = sum(verdict.status == PASSED for verdict in report.verdicts)
    tiles = "".join(
        f'<a class="{css(verdict)}" href="#{verdict.name}" title="{html.escape(verdict.status)}">{verdict.name}</a>'
        for verdict in report.verdicts
    )
    state = (
        "" if report.finished else '<p class="dim">The grader has not finished: some checks did not run.</p>'
    )
    cards = "\n".join(card(verdict) for verdict in report.verdicts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(report.title)}: {report.score} of {report.points}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(report.title)}</h1>
<p class="dim"><code>{html.escape(report.subject)}</code></p>
<p class="dim">{when}, {report.seconds:.1f} s</p>
<p class="score">{report.score} <small>of {report.points} points; {passed} of {count} checks passed</small></p>
{state}<div class="tiles">{tiles}</div>
{cards}
</body></html>
"""


def css(verdict: Verdict) -> str:
    return verdict.status.replace(" ", "-")


def card(verdict: Verdict) -> str:
    """Return one check: its verdict, its evidence, its timeline. A check that has failed is open."""
    is_open = " open" if verdict.status not in (PASSED, NOT_RUN) else ""
    rows = [
        ("What was sent", verdict.sent, ""),
        ("What happened", verdict.did, "did"),
        ("What should happen", verdict.should, ""),
        ("Likely cause", verdict.because, ""),
        ("Why it matters", verdict.why, ""),
        ("Hint", verdict.hint if is_open else "", ""),
        ("Found", "; ".join(verdict.facts), ""),
    ]
    items = "".join(
        f"<dt>{label}</dt><dd{f' class={kind}' if kind else ''}>{html.escape(text)}</dd>"
        for label, text, kind in rows
        if text
    )
    items += f"<dt>See it again</dt><dd><code>{html.escape(verdict.again)}</code></dd>"
    if verdict.output and is_open:
        items += f"<dt>The server wrote</dt><dd><pre>{html.escape(verdict.output)}</pre></dd>"
    picture = timeline(verdict.steps)
    return (
        f'<details class="{css(verdict)}" id="{verdict.name}"{is_open}><summary><span class="mark">'
        f"{html.escape(verdict.status)}</span><b>{verdict.name}</b><span>{verdict.score}/{verdict.points}</span>"
        f'<span class="about">{html.escape(verdict.proves)}</span></summary>'
        f'<div class="inside"><dl>{items}</dl>{picture}</div></details>'
    )


def timeline(steps: list[dict[str, Any]]) -> str:
    """Return the lanes of a scene as SVG, "" if no client acted."""
    lanes: dict[str, int] = {}
    for step in steps:
        if "lane" in step and len(lanes) < MOST_LANES:
            lanes.setdefault(step["lane"], len(lanes))
    if not lanes:
        return ""
    shown = [
        step for step in steps if step["do"] not in ("got", "note") and step.get("lane", "") in (*lanes, "")
    ]
    cut = len(shown) > MOST_COLUMNS
    shown = shown[:MOST_COLUMNS]
    width, height = LEFT + (len(shown) + 1) * COLUMN, (len(lanes) + 1) * ROW + 24
    parts = []
    for name, row in lanes.items():
        y = (row + 1) * ROW
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{html.escape(name[:22])}</text>')
        parts += lane(name, y, shown)
    bottom = (len(lanes) + 1) * ROW
    for column, step in enumerate(shown):
        if step["do"] in ("wait", "signal", "kill", "limit", "start-again"):
            x = LEFT + column * COLUMN
            kind = "calm" if step["do"] == "wait" else "event"
            label = step.get("what") if step["do"] == "wait" else step.get("signal", step["do"])
            outcome = "" if "happened" not in step or step["happened"] else " (it was calm, or had ended)"
            parts.append(
                f'<line class="{kind}" x1="{x}" x2="{x}" y1="8" y2="{bottom}">'
                f"<title>{html.escape(f'{label}{outcome}')}</title></line>"
            )
            if kind == "event":
                parts.append(
                    f'<text x="{x}" y="{bottom + 14}" text-anchor="middle">{html.escape(str(label))}</text>'
                )
    more = " The picture ends before the last step." if cut else ""
    return (
        f'<div class="lanes"><svg width="{width}" height="{height}" role="img" '
        f'aria-label="timeline of the clients">{"".join(parts)}</svg></div><p class="key">{KEY}{more}</p>'
    )


def lane(name: str, y: int, shown: list[dict[str, Any]]) -> list[str]:
    """Return one client's lane: a line while it is connected, bars while it waits and when it is answered."""
    parts, bars, marks = [], [], []
    first = last = None
    waits_from: int | None = None
    for column, step in enumerate(shown):
        if step.get("lane") != name:
            continue
        x, do = LEFT + column * COLUMN, step["do"]
        first = x if first is None else first
        last = x
        tip = f"<title>{html.escape(hint(step))}</title>"
        if do == "connect":
            marks.append(f'<circle class="open" cx="{x}" cy="{y}" r="4">{tip}</circle>')
        elif do == "send":
            waits_from = x if waits_from is None else waits_from
            marks.append(f'<path class="send" d="M{x - 4} {y - 5}L{x + 5} {y}L{x - 4} {y + 5}z">{tip}</path>')
        elif do == "answered" or do in ENDS:
            if waits_from is not None:
                bars.append(bar("waits", waits_from, x, y))
                waits_from = None
            if do == "answered":
                marks.append(
                    f'<rect class="done" x="{x - 5}" y="{y - 6}" width="10" height="12" rx="2">{tip}</rect>'
                )
            else:
                marks.append(f'<path class="end" d="M{x - 4} {y - 4}l8 8m0 -8l-8 8">{tip}</path>')
    if first is None or last is None:
        return []
    if waits_from is not None:
        last = LEFT + len(shown) * COLUMN
        bars.append(bar("waits", waits_from, last, y))
    parts.append(f'<line class="lane" x1="{first}" x2="{last}" y1="{y}" y2="{y}"/>')
    return parts + bars + marks


def bar(kind: str, start: int, end: int, y: int) -> str:
    return f'<rect class="{kind}" x="{start}" y="{y - 3}" width="{max(end - start, 2)}" height="6" rx="2"/>'


def hint(step: dict[str, Any]) -> str:
    """Return what a mark of the picture says when the mouse is over it."""
    text = f"{step['t']:.3f} s: {step['do']}"
    if "bytes" in step:
        text += f" {step['bytes'][:200]!r}"
    if "status" in step:
        text += f": status {step['status']}"
    return text
