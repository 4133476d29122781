"""The leaderboard as one page: a table that can be sorted by each column, without another server.

The script only sorts. Without it, the table is there in the order of the rates. On a phone each row is a card, and
the head of the table becomes a row of buttons.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from ewe_classroom.course.leaderboard import Entry, Standing, shown, standings
from ewe_classroom.look import document

STYLE = """
.rule { max-width: 46rem; margin: .6rem 0 1.4rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: right; padding: 0; border-bottom: 2px solid var(--line); vertical-align: bottom }
th button { font: inherit; font-size: .85rem; font-weight: 600; color: var(--dim); background: none; border: 0;
  padding: .4rem .5rem; cursor: pointer; text-align: inherit; white-space: nowrap }
th button:hover { color: var(--ink) }
th[aria-sort] button { color: var(--ink) }
th[aria-sort=descending] button::after { content: " ↓" }
th[aria-sort=ascending] button::after { content: " ↑" }
td { text-align: right; padding: .5rem; border-bottom: 1px solid var(--line) }
th.name, td.name, th.rate, td.rate { text-align: left }
td.name { font-weight: 600; overflow-wrap: anywhere; min-width: 11rem }
td.rank { color: var(--dim); width: 2.6rem }
tr.top td.rank { color: var(--good); font-weight: 700 }
td.rate { width: 34% }
.bar { display: grid; grid-template-columns: 3rem 1fr; align-items: center; gap: .5rem }
.bar b { text-align: right }
.track { position: relative; height: 16px; background:
  linear-gradient(var(--line), var(--line)) var(--one) 0 / 2px 100% no-repeat }
.track i { position: absolute; top: 3px; bottom: 3px; left: 0; border-radius: 2px; background: var(--good) }
.track u { position: absolute; top: 7px; height: 2px; background: var(--ink); opacity: .75 }
.noisy .track i { background: var(--wait) }
.note { color: var(--dim); font-size: .9rem; max-width: 46rem; margin: 1rem 0 0 }
.unit { color: var(--dim); font-weight: 400 }
@media (max-width: 44rem) {
  table, tbody, thead, tr, td { display: block }
  thead tr { display: flex; flex-wrap: wrap; gap: .3rem; margin-bottom: .8rem }
  thead tr::before { content: "Sort by"; font-size: .85rem; color: var(--dim); align-self: center }
  th { border: 0 }
  th.rank { display: none }
  th button { border: 1px solid var(--line); border-radius: 6px; background: var(--card); padding: .2rem .5rem }
  th[aria-sort] button { border-color: var(--good) }
  tbody tr { display: grid; grid-template-columns: 2rem repeat(4, 1fr); gap: .1rem .4rem; background: var(--card);
    border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; margin: .4rem 0 }
  td { border: 0; padding: 0; text-align: left; width: auto !important; min-width: 0 !important }
  td.rank { grid-row: 1 }
  td.name { grid-column: 2 / -1 }
  td.rate { grid-column: 2 / -1; margin: .15rem 0 .3rem }
  td.p99 { grid-column: 2 }
  td.p99::before, td.cpu::before, td.memory::before, td.checks::before { content: attr(data-label); display: block;
    font-size: .75rem; color: var(--dim) }
}
"""
SCRIPT = """
document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => {
  const head = button.parentNode, body = document.querySelector("tbody");
  const column = [...head.parentNode.children].indexOf(head);
  const before = head.getAttribute("aria-sort");
  const up = before ? before === "descending" : head.dataset.first === "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (row) => row.children[column].dataset.value;
  const order = (a, b) => a === b ? 0 : a === "" ? 1 : b === "" ? -1 :
    (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b) * (up ? 1 : -1);
  body.append(...[...body.children].sort((a, b) => order(value(a), value(b))));
}));
"""
# Of each column: its class, its head, its unit, and how a first click sorts.
HEADS = (
    ("rank", "#", "", "ascending"),
    ("name", "server", "", "ascending"),
    ("rate", "rate", "reference = 1", "descending"),
    ("p99", "99 % below", "ref. = 1", "ascending"),
    ("cpu", "CPU", "ref. = 1", "ascending"),
    ("memory", "memory", "KiB", "ascending"),
    ("checks", "checks", "", "descending"),
)


def to_html(entries: list[Entry], title: str = "") -> str:
    """Return the page."""
    first = entries[0]
    title = title or f"Leaderboard: {first.title}"
    rows = standings(entries)
    missing = len(entries) - len(rows)
    when = datetime.fromtimestamp(max(entry.began for entry in entries), UTC).strftime("%Y-%m-%d %H:%M UTC")
    head = "".join(
        f'<th class="{name}" scope="col" data-first="{order}"{" aria-sort=descending" if name == "rate" else ""}>'
        f'<button type="button">{text}{f" <span class=unit>{unit}</span>" if unit else ""}</button></th>'
        for name, text, unit, order in HEADS
    )
    most = max([1.0, *(row.entry.high for row in rows)]) * 1.04
    body = "\n".join(row_of(row, most) for row in rows)
    claims = sorted({row.entry.claim for row in rows})
    references = sorted({row.entry.reference for row in rows})
    about = (
        f"Each server was measured beside {escape(' or '.join(references))}, by turns on the same machine, with "
        f"{' or '.join(map(str, claims))} clients at once. A rate of 2 means twice as many responses a second. "
        if rows
        else ""
    )
    notes = [
        "The thin line over a bar is the spread: the middle half of the measured pairs. "
        "Servers with overlapping spreads are about as fast."
    ]
    if any(row.rank is None for row in rows):
        notes.append("An amber bar has no rank: its spread is too large to tell.")
    if missing:
        what = "server has" if missing == 1 else "servers have"
        notes.append(
            f"{missing} {what} no entry: a server that fails a request, at up to twice the load that it "
            "claims, has no speed."
        )
    return document(
        title,
        STYLE,
        f'<h1>{escape(title)}</h1>\n<p class="dim">{len(rows)} of {len(entries)} servers · {when}</p>\n'
        f'<p class="rule">{about}</p>\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n'
        + "".join(f'<p class="note">{note}</p>\n' for note in notes)
        + f"<script>{SCRIPT}</script>",
    )


def row_of(row: Standing, most: float) -> str:
    """Return one row. most: the rate at the right end of the bars."""
    entry = row.entry
    low, rate, one = (f"{100 * value / most:.1f}%" for value in (entry.low, entry.rate, 1.0))
    width = f"{100 * (entry.high - entry.low) / most:.1f}%"
    spread = f'<u style="left: {low}; width: {width}"></u>'
    track = f'<div class="track" style="--one: {one}" title="{entry.low:.2f} to {entry.high:.2f}">'
    bar = f'<div class="bar"><b>{entry.rate:.2f}</b>{track}<i style="width: {rate}"></i>{spread}</div></div>'
    css = " ".join(
        word for word, holds in (("top", row.rank in (1, 2, 3)), ("noisy", row.rank is None)) if holds
    )
    cells = [
        ("rank", row.rank, str(row.rank or "–"), ""),
        ("name", entry.name, escape(entry.name), ""),
        ("rate", entry.rate, bar, ""),
        ("p99", entry.p99, shown(entry.p99), "99 %"),
        ("cpu", entry.cpu, shown(entry.cpu), "CPU"),
        ("memory", entry.memory_kib, shown(entry.memory_kib, 1), "KiB"),
        ("checks", entry.passed, f"{entry.passed}/{entry.checks}", "checks"),
    ]
    return f'<tr class="{css}">' + "".join(
        f'<td class="{name}" data-value="{"" if value is None else escape(str(value))}"'
        + (f' data-label="{label}"' if label else "")
        + f">{text}</td>"
        for name, value, text, label in cells
    ) + "</tr>"  # fmt: skip
