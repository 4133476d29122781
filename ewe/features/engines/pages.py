"""The page of engines as HTML: a section for each user, with the engines, the limits and the buttons.

A report of X-Switch contains texts of users, such as the names of their scripts. text() escapes each of them.
"""

from __future__ import annotations

import hashlib
import os
import time
from base64 import b64encode
from typing import Any, NamedTuple
from urllib.parse import quote

from ewe.http.error_pages import PALETTE, html_document, html_escape
from ewe.logger import UNPRINTABLE_IN_MESSAGE, escaped

STYLE = """:root { --warn: #9a3412; --field: #fff }
@media (prefers-color-scheme: dark) { :root { --warn: #fdba74; --field: #101412 } }
* { box-sizing: border-box }
html { font: 1rem/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { max-width: 70rem; margin: 0 auto; padding: 1rem 1.2rem 3rem }
a { color: var(--accent) } :focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
h1, h2 { font-weight: 650; line-height: 1.3; overflow-wrap: anywhere } h1 { font-size: 1.45rem; margin: .4rem 0 }
h2 { font-size: 1.1rem; margin: 0 } p { margin: .4rem 0 } .quiet, th, dt { color: var(--quiet) }
.top { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; align-items: baseline; justify-content: space-between }
.said { border-left: 4px solid var(--accent); background: var(--panel); padding: .5rem .9rem; margin: 1rem 0 }
section { margin: 1.6rem 0 } form { display: flex; flex-wrap: wrap; gap: .4rem; margin: 0 }
button { font: inherit; font-size: .92rem; color: var(--accent); background: var(--field); cursor: pointer;
  border: 1px solid var(--accent); border-radius: .35rem; padding: .3rem .8rem; min-height: 2.2rem }
button:hover { background: var(--panel) } button.drain { color: var(--warn); border-color: var(--warn) }
table { border-spacing: 0; width: 100%; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .95rem }
th, td { padding: .45rem .6rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: middle }
thead th { font-weight: 400; font-size: .88rem; background: var(--panel) } .n { text-align: right }
td form { flex-wrap: nowrap } .script { overflow-wrap: anywhere; min-width: 12rem }
.busy { font-weight: 650; color: var(--accent) }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .5rem; margin: .6rem 0 }
dl div { background: var(--panel); border-radius: .4rem; padding: .4rem .7rem }
dt { font-size: .82rem } dd { margin: 0 } summary { cursor: pointer; width: fit-content; color: var(--quiet) }
ol { list-style: none; margin: 1rem 0; padding: 0; font: .85rem/1.55 ui-monospace, monospace }
li { padding: .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
time { color: var(--quiet); margin-right: .6rem } li b { font-weight: 650; margin-right: .6rem }
@media (max-width: 46rem) {
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
  table, tbody, tr, td { display: block; width: 100% }
  tr { border: 1px solid var(--line); border-radius: .5rem; margin: .7rem 0; padding: .3rem 0 }
  td, td.n { display: flex; gap: .8rem; justify-content: space-between; text-align: right; border: 0;
    padding: .25rem .8rem; min-width: 0 }
  td::before { content: attr(data-label); color: var(--quiet); flex: none }
  td.actions::before { content: none } td button { flex: 1 } td form { width: 100% }
}
@media (forced-colors: active) { button, .said { border-color: ButtonText } }
"""
STYLE_HASH = "sha256-" + b64encode(hashlib.sha256((PALETTE + STYLE).encode()).digest()).decode()
# The headings of the columns of a table
COLUMNS = ("language", "process", "script", "state", "requests", "age", "memory")
# The limits of a user, by their names in the settings, in the words of the page
LIMITS = {
    "engines": "engines",
    "requests": "requests at once",
    "time-limit": "time of a request",
    "memory": "memory",
    "processes": "processes",
    "cpu": "CPU time of an engine",
    "cpu-share": "share of one CPU",
    "file-size": "size of a file",
    "private": "private file system",
}
DONE = {"restart": "restarted", "drain": "ended"}


class EnginesView(NamedTuple):
    """The visitor of a page, and the user whose engines it shows.

    base: the path of the page of engines, with a slash at its end. sees_all: the visitor is an administrator.
    token: for the forms. user: the page shows only this user; "" means all that the visitor may see.
    """

    base: str
    visitor: str
    sees_all: bool
    token: str
    user: str

    def shows_all_users(self) -> bool:
        """Return whether the page shows the engines of all users."""
        return self.sees_all and not self.user


class ActionDone(NamedTuple):
    """The action of the last form, and how many engines have ended, end after their request, and are unknown."""

    action: str
    ended: int
    ending: int
    unknown: int


def engines_page(view: EnginesView, found: dict[str, Any], done: ActionDone | None) -> str:
    """Return the page of engines. found: the answer of X-Switch to `list`. done: None if no form was sent."""
    by_user: dict[str, list[dict[str, Any]]] = {user: [] for user in found["limits"]}
    for engine in found["engines"]:
        by_user.setdefault(engine["user"], []).append(engine)
    sections = [
        section(view, user, engines, found["limits"].get(user, {}), found["waiting"].get(user, 0))
        for user, engines in by_user.items()
    ]
    body = [heading(view, "Engines"), message_of(done)]
    body += sections or ["<p>No engine runs. The next request to a script starts one."]
    if view.shows_all_users():
        body.append(summary(found))
    return page("Engines", body)


def log_page(view: EnginesView, lines: list[list[Any]]) -> str:
    """Return the page of messages, the newest first. lines: seconds since the epoch, user and message of each."""
    items = [
        f"<li><time>{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}</time>"
        + (f"<b>{text(user)}</b>" if view.sees_all else "")
        + text(line)
        for at, user, line in reversed(lines)
    ]
    shown = f"<ol>{''.join(items)}</ol>" if items else "<p>X-Switch has no messages since its start."
    return page("Messages", [heading(view, "Messages"), shown])


def page(title: str, body: list[str]) -> str:
    """Return a whole page. body: HTML."""
    return html_document(title, STYLE, "\n".join(("<main>", *body, "</main>")))


def heading(view: EnginesView, title: str) -> str:
    """Return the heading of a page, with links to the other pages."""
    query = f"?user={quoted(view.user)}" if view.user else ""
    links = [
        f'<a href="{html_escape(view.base)}{query}">Engines</a>',
        f'<a href="{html_escape(view.base)}log{query}">Messages</a>',
    ]
    if view.user and view.sees_all:
        links.append(f'<a href="{html_escape(view.base)}">All users</a>')
    users = f" of {text(view.user)}" if view.user else " of all users" if view.sees_all else ""
    role = " (administrator)" if view.sees_all else ""
    return (
        f'<div class="top"><h1>{title}{users}</h1><nav>{" · ".join(links)}</nav></div>\n'
        f'<p class="quiet">You are {text(view.visitor)}{role}.'
    )


def message_of(done: ActionDone | None) -> str:
    """Return the message about the last form, "" without one."""
    if done is None:
        return ""
    words = []
    if done.ended or not done.ending:
        words.append(f"{number_of(done.ended, 'engine')} {DONE[done.action]}.")
    if done.ending:
        words.append(
            f"{number_of(done.ending, 'engine')} will be {DONE[done.action]} after the running request."
        )
    if done.unknown:
        words.append("An engine of the form does not run any more, or is not yours.")
    return f'<p class="said" role="status">{" ".join(words)}'


def section(
    view: EnginesView, user: str, engines: list[dict[str, Any]], limits: dict[str, Any], waiting: int
) -> str:
    """Return the section of one user. waiting: requests in the user's queue."""
    link = f'<a href="{html_escape(view.base)}?user={quoted(user)}">{text(user)}</a>'
    name = link if view.shows_all_users() else text(user)
    queue = f", {number_of(waiting, 'request')} waiting" if waiting else ""
    count = f'<small class="quiet">{number_of(len(engines), "engine")}{queue}</small>'
    top = f'<div class="top"><h2>{name} {count}</h2>'
    if engines:
        top += form(view, {"user": user}, f"all engines of {user}", " all")
    rows = "\n".join(row(view, engine) for engine in engines)
    heads = "".join(f'<th scope="col"{right(column)}>{column}</th>' for column in COLUMNS)
    head = f'<thead><tr>{heads}<th scope="col">actions</th></tr></thead>'
    table = f"<table>\n{head}\n<tbody>\n{rows}\n</tbody></table>"
    shown = "".join(
        f"<div><dt>{LIMITS[key]}<dd>{limit(key, limits[key])}</div>" for key in LIMITS if key in limits
    )
    opened = " open" if engines and not view.shows_all_users() else ""
    details = f"<details{opened}><summary>Limits</summary><dl>{shown}</dl></details>"
    return f"<section>\n{top}</div>\n{table if engines else ''}\n{details}\n</section>"


def row(view: EnginesView, engine: dict[str, Any]) -> str:
    """Return the row of one engine."""
    state = engine["state"]
    if engine["ends"]:
        state += ", then " + ("restarted" if engine["ends"] == "restarted" else "ended")
    cells = {
        "language": text(engine["language"]),
        "process": str(engine["pid"] or "starts"),
        "script": text(engine["script"]),
        "state": f'<span class="busy">{state}</span>' if engine["state"] == "busy" else state,
        "requests": f"{engine['requests']:,}",
        "age": interval(engine["age"]),
        "memory": size(engine["private"] + engine["shared"]),
    }
    shown = "".join(
        f'<td data-label="{name}"{right(name)}{" class=script" if name == "script" else ""}>{cell}</td>'
        for name, cell in cells.items()
    )
    pid = engine["pid"]
    target = f"{engine['language']} engine {pid} of {engine['user']}"
    buttons = form(view, {"pid": str(pid), "user": engine["user"]}, target) if pid else ""
    return f'<tr>{shown}<td class="actions">{buttons}</td></tr>'


def form(view: EnginesView, fields: dict[str, str], target: str, suffix: str = "") -> str:
    """Return a form with two buttons.

    fields: the engines, as the form names them: pid, or user. The form adds the token that protects it against
    other sites, and the user whose engines the page shows (shown-user), to which the answer returns. target: names
    the engines to a screen reader. suffix: a text after the word of each button; "" for none.
    """
    hidden = {"token": view.token, **fields, **({"shown-user": view.user} if view.user else {})}
    inputs = "".join(
        f'<input type="hidden" name="{name}" value="{html_escape(value)}">' for name, value in hidden.items()
    )
    buttons = "".join(
        f'<button formaction="{html_escape(view.base)}{name}" class="{name}" aria-label="{label} {text(target)}">'
        f"{label}{suffix}</button>"
        for name, label in (("restart", "Restart"), ("drain", "Drain"))
    )
    return f'<form method="post" action="{html_escape(view.base)}restart">{inputs}{buttons}</form>'


def summary(found: dict[str, Any]) -> str:
    """Return the section about X-Switch itself, for an administrator."""
    items = "".join(f"<div><dt>{text(name)}<dd>{count:,}</div>" for name, count in found["counters"].items())
    up, connections = interval(found["uptime"]), number_of(found["connections"], "connection")
    return (
        f"<section><h2>X-Switch</h2><p>Up {up}, {connections} of web servers.<dl>{items}</dl>"
        f'<p class="quiet">Limits of users are kept by {text(found["kept"])}.</section>'
    )


def limit(key: str, value: float | None) -> str:
    """Return a limit for people. value: in the unit of the setting; None: no limit."""
    if value is None:
        return "none"
    if key == "private":
        return "yes" if value else "no"
    if key in ("memory", "file-size"):
        return size(int(value))
    # Not "g" alone: it has 6 digits, and shows 1048576 as 1.04858e+06
    return f"{value:.15g}" + {"time-limit": " s", "cpu": " s", "cpu-share": " %"}.get(key, "")


def right(column: str) -> str:
    """Return the attribute of a column of numbers."""
    return ' class="n"' if column in ("requests", "age", "memory") else ""


def text(value: object) -> str:
    """Return a text as HTML. Control characters and surrogates are shown as escapes."""
    return html_escape(escaped(str(value), UNPRINTABLE_IN_MESSAGE))


def quoted(value: str) -> str:
    """Return a text for the query of a URL."""
    return quote(os.fsencode(value), safe="")


def number_of(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def interval(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def size(number: int) -> str:
    """Return a number of bytes for people."""
    return f"{number / (1 << 20):.0f} MB" if number >= 1 << 20 else f"{number / 1024:.0f} KB"
