"""The report as one page: a summary, each check with its evidence, and a timeline with a lane for each client.

The page is self-contained: style and pictures are in it, no script, no other server. In the picture, time goes to
the right in steps, not in seconds: each column is one step of the schedule. What matters is the order.

    ○ connects   ▸ sends   ■ amber: waits   ■ blue: has a worker   ■ green: answered   × the connection has ended

A server decides what it sends, and so what a page quotes. Texts are clipped, and a page that is larger than
formats.MOST_BYTES is made again with shorter texts and fewer pictures.
"""

from __future__ import annotations

import html
from datetime import UTC, datetime
from typing import Any

from ewe_classroom.grader.formats import MOST_BYTES
from ewe_classroom.grader.verdicts import ERROR, FAILED, NOT_RUN, PASSED, Report, Verdict, clip
from ewe_classroom.look import document

MOST_LANES = 30
MOST_COLUMNS = 150
COLUMN, ROW = 18, 22
LABEL = 20  # characters of a lane's name
# How a page that is too large becomes smaller: characters of one text, and whose pictures are drawn.
LEVELS = ((2000, (PASSED, FAILED, ERROR)), (2000, (FAILED, ERROR)), (500, (FAILED, ERROR)), (200, ()))

ENDS = {"close", "reset", "closed-by-server", "reset-by-server", "refused", "too-much"}
EVENTS = ("signal", "kill", "limit", "start-again", "open-gate")

STYLE = """
.score { display: flex; align-items: baseline; flex-wrap: wrap; gap: 0 .6rem; margin: 1.2rem 0 .5rem }
.score b { font-size: 3rem; line-height: 1 }
.score span { color: var(--dim) }
.meter { height: 10px; border-radius: 5px; background: var(--bad-soft); overflow: hidden; margin: 0 0 .9rem }
.meter i { display: block; height: 100%; background: var(--good); border-radius: 5px }
.tiles { display: flex; flex-wrap: wrap; gap: 4px; margin: 0 0 1.8rem }
.tiles a { padding: .1rem .5rem; border-radius: 5px; font-size: .82rem; text-decoration: none; color: var(--good);
  background: var(--good-soft) }
.tiles a.failed, .tiles a.error { color: var(--paper); background: var(--bad); font-weight: 600 }
.tiles a.not-run { color: var(--dim); background: var(--card) }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
details { border: 1px solid var(--line); border-radius: 8px; margin: .3rem 0; background: var(--card) }
details.failed, details.error { border-left: 4px solid var(--bad) }
summary { cursor: pointer; padding: .42rem .8rem; display: grid; grid-template-columns: 1.4rem 11rem 1fr auto;
  gap: 0 .6rem; align-items: baseline; list-style: none }
summary::-webkit-details-marker { display: none }
summary b { font: 600 .9rem/1.5 ui-monospace, monospace }
summary .about { color: var(--dim); font-size: .93rem }
summary .points { font-variant-numeric: tabular-nums }
.mark { font-weight: 700; color: var(--good) }
.failed .mark, .error .mark { color: var(--bad) }
.not-run .mark { color: var(--dim) }
.inside { padding: .3rem .9rem .9rem }
dl { display: grid; grid-template-columns: 11rem 1fr; gap: .3rem .8rem; margin: .2rem 0 1rem }
dt { color: var(--dim) }
dd { margin: 0; overflow-wrap: anywhere }
dd.did { font-weight: 600; color: var(--bad) }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere }
.lanes { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem .2rem }
.lanes svg { display: block }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
svg .dim { fill: var(--dim) }
.band { fill: var(--card) }
.lane { stroke: var(--line); stroke-width: 2 }
.waits { fill: var(--wait) }
.served { fill: var(--note) }
.done { fill: var(--good) }
.busy { fill: var(--bad) }
.end { stroke: var(--ink); stroke-width: 1.8; fill: none }
.send { fill: var(--ink) }
.open { fill: var(--paper); stroke: var(--ink); stroke-width: 1.6 }
.calm { stroke: var(--note); stroke-dasharray: 2 3 }
.event { stroke: var(--bad); stroke-width: 1.5 }
.one { stroke: var(--note); stroke-width: 1.5; stroke-dasharray: 5 3 }
.whisker { stroke: var(--good); stroke-width: 6; stroke-linecap: round; opacity: .35 }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .85rem; color: var(--dim); margin: .5rem 0 0 }
.key span { display: inline-flex; align-items: center; gap: .35rem }
@media (max-width: 44rem) {
  dl { grid-template-columns: 1fr; gap: 0 }
  dd { margin-bottom: .6rem }
  summary { grid-template-columns: 1.2rem 1fr auto }
  summary .about { grid-column: 2 / -1; grid-row: 2 }
}
"""
KEY = "".join(
    f'<span><svg width="{width}" height="14" aria-hidden="true">{mark}</svg>{text}</span>'
    for width, mark, text in (
        (12, '<circle class="open" cx="6" cy="7" r="4"/>', "connects"),
        (12, '<path class="send" d="M2 2L11 7L2 12z"/>', "sends"),
        (22, '<rect class="waits" y="4" width="22" height="6" rx="2"/>', "waits for its response"),
        (22, '<rect class="served" y="4" width="22" height="6" rx="2"/>', "holds a worker"),
        (12, '<rect class="done" x="1" y="1" width="10" height="12" rx="2"/>', "answered"),
        (12, '<path class="end" d="M2 3l8 8m0 -8l-8 8"/>', "the connection ends"),
        (
            8,
            '<line class="calm" x1="4" x2="4" y1="0" y2="14"/>',
            "the grader waits until this has come, or the server is calm",
        ),
    )
)
MARKS = {PASSED: "✓", FAILED: "✗", ERROR: "!", NOT_RUN: "–"}


def to_html(report: Report) -> str:
    """Return the page of a report: at most formats.MOST_BYTES."""
    for most, drawn in LEVELS:
        page = page_of(report, most, drawn)
        if len(page.encode(errors="replace")) <= MOST_BYTES:
            break
    return page


def page_of(report: Report, most: int, drawn: tuple[str, ...]) -> str:
    """Return the page. most: characters of one text; drawn: the outcomes of checks that get a picture."""
    title = f"{report.title}: {report.score} of {report.points}"
    return document(title, STYLE, body_of(report, most, drawn))


def body_of(report: Report, most: int, drawn: tuple[str, ...]) -> str:
    """Return what is in the page, also for a notebook."""
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
    faults = [verdict for verdict in report.verdicts if verdict.status in (FAILED, ERROR)]
    others = [verdict for verdict in report.verdicts if verdict.status not in (FAILED, ERROR)]
    parts = []
    for heading, verdicts in (("Look at these", faults), ("These are right", others)):
        if verdicts:
            cards = "\n".join(card(verdict, report, most, drawn) for verdict in verdicts)
            parts.append(
                f"<h2>{heading if report.finished or verdicts is faults else 'The others'}</h2>\n{cards}"
            )
    who = f"{html.escape(clip(report.student, 200))} · " if report.student else ""
    done = 100 * report.score / report.points if report.points else 100 * passed / max(count, 1)
    return f"""<h1>{html.escape(report.title)}</h1>
<p class="dim"><code>{html.escape(clip(report.subject, most))}</code></p>
<p class="dim">{who}{when} · {report.seconds:.1f} s</p>
<div class="score"><b>{report.score}</b><span>of {report.points} points · {passed} of {count} checks passed</span>
</div>
<div class="meter"><i style="width: {done:.1f}%"></i></div>
{state}<div class="tiles">{tiles}</div>
{"".join(parts)}"""


def css(verdict: Verdict) -> str:
    return verdict.status.replace(" ", "-")


def card(verdict: Verdict, report: Report, most: int, drawn: tuple[str, ...]) -> str:
    """Return one check: its verdict, its evidence, its timeline. A check that has failed is open."""
    failed = verdict.status in (FAILED, ERROR)
    is_open = " open" if failed or verdict.name == "speed" else ""
    rows = [
        ("What was sent", verdict.sent, ""),
        ("What happened", verdict.did, "did"),
        ("What should happen", verdict.should, ""),
        ("Likely cause", verdict.because, ""),
        ("Why it matters", verdict.why, ""),
        ("Hint", verdict.hint if failed else "", ""),
        ("Found", "; ".join(verdict.facts), ""),
    ]
    items = "".join(
        f"<dt>{label}</dt><dd{f' class={kind}' if kind else ''}>{html.escape(clip(text, most))}</dd>"
        for label, text, kind in rows
        if text
    )
    items += f"<dt>See it again</dt><dd><code>{html.escape(clip(verdict.again, most))}</code></dd>"
    if verdict.output and failed:
        items += f"<dt>The server wrote</dt><dd><pre>{html.escape(clip(verdict.output, most))}</pre></dd>"
    picture = ""
    if verdict.status in drawn:
        picture = ratios(report.speed) if verdict.name == "speed" else timeline(verdict.steps)
    return (
        f'<details class="{css(verdict)}" id="{verdict.name}"{is_open}><summary>'
        f'<span class="mark" title="{verdict.status}">{MARKS[verdict.status]}</span><b>{verdict.name}</b>'
        f'<span class="about">{html.escape(verdict.proves)}</span>'
        f'<span class="points">{f"{verdict.score}/{verdict.points}" if verdict.points else "–"}</span></summary>'
        f'<div class="inside"><dl>{items}</dl>{picture}</div></details>'
    )


def ratios(speed: dict[str, Any] | None) -> str:
    """Return the ratios of the rates as SVG: a dot for the median, a band for the spread, a line for 1."""
    if speed is None or speed["failure"]:
        return ""
    rates = {int(clients): found for clients, found in speed["rates"].items()}
    most = max(1.25, *(found["high"] * 1.1 for found in rates.values()))
    width, left = 560, 110
    scale = (width - left - 60) / most
    one, name = f"{left + scale:.1f}", html.escape(speed["reference"])
    parts = [
        f'<line class="one" x1="{one}" x2="{one}" y1="16" y2="{len(rates) * 26 + 18}"/>',
        f'<text class="dim" x="{one}" y="11" text-anchor="middle">{name} = 1</text>',
    ]
    for row, (clients, found) in enumerate(rates.items()):
        y = row * 26 + 32
        low, median, high = (left + found[key] * scale for key in ("low", "median", "high"))
        many = "clients" if clients > 1 else "client"
        parts.append(
            f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{clients} {many}</text>'
            f'<line class="lane" x1="{left}" x2="{width - 50}" y1="{y}" y2="{y}"/>'
            f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="done" cx="{median:.1f}" cy="{y}" r="5"/>'
            f'<text x="{width - 40}" y="{y + 4}">{found["median"]:.2f}</text>'
        )
    caption = (
        "The rate as a share of the reference's, measured by turns. "
        "The dot is the median of the pairs, the band their middle half."
    )
    size = f'width="{width}" height="{len(rates) * 26 + 26}"'
    return (
        f'<div class="lanes"><svg {size} role="img" aria-label="ratio of the rates by the number of clients">'
        f'{"".join(parts)}</svg></div><p class="key">{caption}</p>'
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
    left = 26 + 7 * max(len(name[:LABEL]) for name in lanes)
    width, height = (
        left + (len(shown) + 1) * COLUMN,
        (len(lanes) + 1) * ROW + (24 if any(step["do"] in EVENTS for step in shown) else 6),
    )
    parts = []
    for name, row in lanes.items():
        y = (row + 1) * ROW
        if row % 2 == 0:
            parts.append(f'<rect class="band" x="0" y="{y - ROW // 2}" width="{width}" height="{ROW}"/>')
        parts.append(
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{html.escape(name[:LABEL])}</text>'
        )
        parts += lane(name, y, shown, left)
    bottom = (len(lanes) + 1) * ROW
    for column, step in enumerate(shown):
        if step["do"] in ("wait", *EVENTS):
            x = left + column * COLUMN
            kind = "calm" if step["do"] == "wait" else "event"
            label = (
                step.get("what") if step["do"] == "wait" else step.get("signal", step.get("gate", step["do"]))
            )
            outcome = "" if "happened" not in step or step["happened"] else " (it was calm, or had ended)"
            parts.append(
                f'<line class="{kind}" x1="{x}" x2="{x}" y1="8" y2="{bottom}">'
                f"<title>{html.escape(f'{label}{outcome}')}</title></line>"
            )
            if kind == "event":
                parts.append(
                    f'<text x="{x}" y="{bottom + 14}" text-anchor="middle">{html.escape(str(label))}</text>'
                )
    more = "<span>The picture ends before the last step.</span>" if cut else ""
    return (
        f'<div class="lanes"><svg width="{width}" height="{height}" role="img" '
        f'aria-label="timeline of the clients">{"".join(parts)}</svg></div><p class="key">{KEY}{more}</p>'
    )


def lane(name: str, y: int, shown: list[dict[str, Any]], left: int) -> list[str]:
    """Return one client's lane: a line while it is connected, bars while it waits and when it is answered."""
    parts, bars, marks = [], [], []
    first = last = None
    waits_from: int | None = None
    kind = "waits"
    for column, step in enumerate(shown):
        if step.get("lane") != name:
            continue
        x, do = left + column * COLUMN, step["do"]
        first = x if first is None else first
        last = x
        tip = f"<title>{html.escape(hint(step))}</title>"
        if do == "connect":
            marks.append(f'<circle class="open" cx="{x}" cy="{y}" r="4">{tip}</circle>')
        elif do == "send":
            waits_from, kind = (x, "waits") if waits_from is None else (waits_from, kind)
            marks.append(f'<path class="send" d="M{x - 4} {y - 5}L{x + 5} {y}L{x - 4} {y + 5}z">{tip}</path>')
        elif do == "served" and waits_from is not None:
            bars.append(bar(kind, waits_from, x, y))
            waits_from, kind = x, "served"
        elif do == "answered" or do in ENDS:
            if waits_from is not None:
                bars.append(bar(kind, waits_from, x, y))
                waits_from = None
            if do == "answered":
                look = "busy" if step.get("status") == 503 else "done"
                marks.append(
                    f'<rect class="{look}" x="{x - 5}" y="{y - 6}" width="10" height="12" rx="2">{tip}</rect>'
                )
            else:
                marks.append(f'<path class="end" d="M{x - 4} {y - 4}l8 8m0 -8l-8 8">{tip}</path>')
    if first is None or last is None:
        return []
    if waits_from is not None:
        last = left + len(shown) * COLUMN
        bars.append(bar(kind, waits_from, last, y))
    parts.append(f'<line class="lane" x1="{first}" x2="{last}" y1="{y}" y2="{y}"/>')
    return parts + bars + marks


def bar(kind: str, start: int, end: int, y: int) -> str:
    return f'<rect class="{kind}" x="{start}" y="{y - 3}" width="{max(end - start, 2)}" height="6" rx="2"/>'


def hint(step: dict[str, Any]) -> str:
    """Return what a mark of the picture says when the mouse is over it."""
    text = f"{step['t']:.3f} s: {step['do']}"
    if "bytes" in step:
        text += f" {step['bytes'][:80]!r}"
    if "status" in step:
        text += f": status {step['status']}"
    return text
