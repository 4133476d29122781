"""The page: one HTML file with its style, its program and its numbers, which needs no network.

watch.html is the frame, watch.css the style, and behind.js, replay.js and watch.js are the program. lanes.js and
ewe_explore.lanes have the parts that the live page shares: the kinds of work with their colours and patterns.
They all become parts of the page, so it works from a file, as an attachment, and without the package. In a
browser that does not run the program, the page has the picture of picture.py.

A trace holds text of strangers: request lines, addresses. The page shows it as text only. Its Content Security
Policy (CSP Level 3) allows this one program and this one style by their hashes, and no other source:
even a mistake in the program could not execute a part of the trace, or send one away.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from ewe_explore import lanes
from ewe_watch.moment import duration_of_micros
from ewe_watch.picture import picture_html

# A hole in watch.html, such as {{title}}: page() puts the value of this name there
HOLE = re.compile(r"\{\{(\w+)\}\}")


@cache
def part(name: str) -> str:
    """Return a file of the package."""
    return resources.files("ewe_watch").joinpath(name).read_text(encoding="utf-8")


def style() -> str:
    """Return the style of both pages: the kinds of ewe_explore.lanes, and watch.css."""
    return lanes.style() + part("watch.css")


def lanes_program() -> str:
    """Return the program that both pages share: the kinds of ewe_explore.lanes, and lanes.js."""
    return f'"use strict";\nconst LANE_KINDS = {json.dumps(lanes.description())};\n{part("lanes.js")}'


def page(documents: Sequence[dict[str, Any]]) -> str:
    """Return the page of one or more traces: watch.html with all its holes filled. documents: those of document.py.

    The policy allows the program and the style by their hashes, so nothing else on the page is executed.
    """
    styles, program = style(), lanes_program() + part("behind.js") + part("replay.js") + part("watch.js")
    policy = (
        f"default-src 'none'; script-src '{hash_of(program)}'; style-src '{hash_of(styles)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    values = {
        "title": html.escape(" and ".join(each["name"] for each in documents)),
        "policy": policy,
        "style": styles,
        "program": program,
        "picture": picture_html(documents),
        "moments": "".join(moment_list(index, each) for index, each in enumerate(documents)),
        "data": as_data(documents),
    }
    # One pass only: a trace may contain the text of a hole, which is not to be filled
    return HOLE.sub(lambda hole: values[hole[1]], part("watch.html"))


def hash_of(text: str) -> str:
    """Return the source expression of the Content Security Policy that allows this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def as_data(documents: Sequence[dict[str, Any]]) -> str:
    """Return JSON that may stand in a script element: no text in it can end the element."""
    text = json.dumps(list(documents), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def moment_list(index: int, document: dict[str, Any]) -> str:
    """Return the moments of one trace as HTML: a link each, by which watch.js zooms to the moment.

    index: of the trace on the page. document: as document() returns it; its times are microseconds.
    """
    model, name = document["model"], document["name"]
    title = html.escape(f"{model} ({name})" if model else name)
    rows = [
        f'<li><a href="#trace{index}" data-trace="{index}" data-moment="{number}">'
        f"{html.escape(moment['title'])}</a> "
        f'<span class="at">at {duration_of_micros(moment["begin"])}</span><br>{html.escape(moment["text"])}</li>'
        for number, moment in enumerate(document["moments"])
    ]
    body = f"<ol>{''.join(rows)}</ol>" if rows else "<p>No connection waited 1 ms or longer in the queue.</p>"
    return f"<div><h3>{title}</h3>{body}</div>"
