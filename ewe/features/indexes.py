"""Directory indexes: a page to browse, sortable without scripts, or JSON for programs that prefer it.

listing: read -> arrange -> page or JSON. What cannot be fetched is not listed: names that begin with a dot,
links that dangle, sockets, devices.
"""

from __future__ import annotations

import os
import re
import stat
import time

from ewe.features.errors import html_escape
from ewe.http import Refused, Request, Response, escape

MAX_ENTRIES = 50_000  # a longer listing would hold the server for seconds, and nobody reads it
# Each column's label, and the order in which it is sorted at first.
COLUMNS = {"name": ("Name", "asc"), "size": ("Size", "desc"), "date": ("Modified", "desc")}
DIGITS = re.compile("([0-9]+)")
WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")  # RFC 9110 section 12.4.2
# What a name must not do to the page: control characters are shown as ␀ ␁ ␂ …, and � stands for those that
# turn the direction of writing round, so that "evil\u202etxt.exe" is not read as a text file's name.
CONTROLS = {code: 0x2400 + code for code in range(32)} | {127: 0x2421}
CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
DATES = range(-62135596800, 253402300800)  # seconds since 1970: the years 1 to 9999
FIELDS = (
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'"),
    ("Vary", "Accept"),
    ("X-Content-Type-Options", "nosniff"),
)
STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf5; --panel: #f1f2e9; --ink: #1f2a24; --quiet: #55605a;
  --line: #d3d8cb; --accent: #1d6b45; --pad: .4rem .6rem }
@media (prefers-color-scheme: dark) { :root { --paper: #151a18; --panel: #1f2623; --ink: #e5e9e4;
  --quiet: #a5b0a9; --line: #3a443f; --accent: #86d3a8 } }
html { font: 1.0625rem/1.5 system-ui, sans-serif; background: var(--paper); color: var(--quiet);
  -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { max-width: 50rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1, p, th a, td a, td + td { margin: 0; padding: var(--pad) }
h1 { font-size: 1.4rem; font-weight: 400; line-height: 1.35; overflow-wrap: anywhere }
a { color: var(--accent); text-decoration: none }
a:hover { text-decoration: underline; text-underline-offset: .15em }
[aria-sort], [aria-current] { font-weight: 650 }
[aria-current] { color: var(--ink) }
table { width: 100%; margin: .4rem 0; border-spacing: 0 }
th { position: sticky; top: 0; padding: 0; background: var(--paper); border-bottom: 2px solid var(--line);
  text-align: left; font-weight: 400 }
th a { display: block; white-space: nowrap }
td { padding: 0; border-bottom: 1px solid var(--line); vertical-align: baseline }
tr > :first-child { width: 100% }
td + td { white-space: nowrap; font-variant-numeric: tabular-nums }
tr > :nth-child(2) { text-align: right }
tr:hover td { background: var(--panel) }
td a { display: flex; gap: .6rem; align-items: baseline }
bdi { min-width: 0; white-space: pre-wrap; overflow-wrap: anywhere }
td a::before { content: ""; flex: none; align-self: start; width: 1.1rem; height: .95rem; margin-top: .3rem;
  background: var(--quiet); opacity: .5; clip-path: polygon(18% 0, 58% 0, 82% 25%, 82% 100%, 18% 100%) }
.d a::before { background: var(--accent); opacity: 1;
  clip-path: polygon(0 6%, 38% 6%, 48% 22%, 100% 22%, 100% 96%, 0 96%) }
.up a::before { opacity: 1; clip-path: polygon(50% 6%, 92% 52%, 62% 52%, 62% 96%, 38% 96%, 38% 52%, 8% 52%) }
@media (max-width: 36rem) { :root { --pad: .6rem .35rem } body { padding: .5rem .5rem 2rem }
  time span { display: none } td + td { font-size: .85rem } }
@media print { :root { --pad: .15rem .3rem; --paper: #fff; --ink: #000; --quiet: #333; --line: #999;
  --accent: #000 } html { font-size: 10pt } body { max-width: none; padding: 0 } tr { break-inside: avoid }
  .up, td a::before { display: none } }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Index of {title}</title>
<style>{style}</style>
<nav aria-label="Path"><h1>{crumbs}</h1></nav>
<table>
<thead><tr>{heads}
<tbody>
{rows}
</table>
<p>{summary}
</html>
"""
PRIVATE = ("WEB-INF", "META-INF")  # of web applications of Java


class Entry:
    """A file or directory. name: as in the file system. size: None for a directory. modified: seconds."""

    __slots__ = ("is_directory", "modified", "name", "size")

    def __init__(self, name: str, about: os.stat_result) -> None:
        self.name = name
        self.is_directory = stat.S_ISDIR(about.st_mode)
        self.size = None if self.is_directory else about.st_size
        self.modified = about.st_mtime_ns // 10**9


def listing(request: Request, path: str, descriptor: int, root: str = "") -> Response:
    """Return the index of the open directory at path, which ends in a slash. Raises Refused.

    root: the document root; links that lead out of it are not listed. "": every link is.
    """
    sort, order = wanted(request.query)
    entries = arranged(read(descriptor, path, root), sort, order)
    if prefers_json(request.values.get("accept", "")):
        return Response(200, (("Content-Type", "application/json"), *FIELDS), as_json(entries).encode())
    page = as_page(entries, path, request.host, sort, order)
    return Response(200, (("Content-Type", "text/html; charset=utf-8"), *FIELDS), page.encode())


def wanted(query: str | None) -> tuple[str, str]:
    """Return the column to sort by, and "asc" or "desc"."""
    said = {name: value for name, _, value in (pair.partition("=") for pair in (query or "").split("&"))}
    sort = said.get("sort", "name")
    return (sort, "desc" if said.get("order") == "desc" else "asc") if sort in COLUMNS else ("name", "asc")


def prefers_json(accepts: str) -> bool:
    """Does the client prefer JSON to HTML? Of equal weights, the type it names beats one it implies.

    RFC 9110 section 12.5.1: the most specific range decides what a type weighs.
    """
    weights = {}
    for part in accepts.lower().split(","):
        kind, *parameters = (piece.strip(" \t") for piece in part.split(";"))
        weight = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        if WEIGHT.fullmatch(weight):
            weights[kind] = float(weight)

    def rank(*ranges: str) -> tuple[float, int]:
        return next(((weights[kind], -place) for place, kind in enumerate(ranges) if kind in weights), (0, 0))

    json, html = rank("application/json", "application/*", "*/*"), rank("text/html", "text/*", "*/*")
    return json[0] > 0 and json > html


def read(descriptor: int, path: str, root: str) -> list[Entry]:
    """Return what is to be listed of a directory, as it comes. Raises Refused when it is too much."""
    entries = []
    directory = os.readlink(f"/proc/self/fd/{descriptor}") + "/" if root else ""
    with os.scandir(descriptor) as items:
        for item in items:
            if item.name.startswith(".") or item.name.upper() in PRIVATE:
                continue
            try:
                about = item.stat()
                outside = root and item.is_symlink() and leads_out(directory + item.name, root)
            except OSError:  # gone meanwhile, a link to nothing, a directory that may not be searched
                continue
            if not outside and (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
                entries.append(Entry(item.name, about))
            if len(entries) > MAX_ENTRIES:
                raise Refused(403, f"{path} has more than {MAX_ENTRIES} entries, too many to list")
    return entries


def leads_out(name: str, root: str) -> bool:
    """Does a link of this name lead out of root?"""
    return not (os.path.realpath(name) + "/").startswith(root.rstrip("/") + "/")


def arranged(entries: list[Entry], sort: str, order: str) -> list[Entry]:
    """Sort by the column, then by name, and put directories first."""
    down = order == "desc"
    entries.sort(key=lambda entry: natural(entry.name), reverse=down and sort == "name")
    if sort == "size":
        entries.sort(key=lambda entry: entry.size or 0, reverse=down)
    elif sort == "date":
        entries.sort(key=lambda entry: entry.modified, reverse=down)
    entries.sort(key=lambda entry: not entry.is_directory)
    return entries


def natural(name: str) -> tuple[list[str | int], str]:
    """Return the key that sorts names as people do: a2 before A10."""
    parts = DIGITS.split(name.casefold())
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def as_json(entries: list[Entry]) -> str:
    """Return an array, an entry a line."""
    from json import dumps

    lines = []
    for entry in entries:
        kind = "directory" if entry.is_directory else "file"
        about = {"name": text(entry.name), "type": kind, "size": entry.size, "modified": date(entry.modified)}
        lines.append(dumps(about, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def as_page(entries: list[Entry], path: str, host: str, sort: str, order: str) -> str:
    """Return the page of a directory."""
    parent = '<tr class="up"><td colspan="3"><a href="../"><bdi>Parent directory</bdi></a>'
    rows = [parent] if path != "/" else []
    rows += map(row, entries)
    size = human(sum(entry.size or 0 for entry in entries))
    count = f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
    return PAGE.format(
        title=shown(path),
        style=STYLE,
        crumbs=crumbs(path, host),
        heads="".join(head(column, sort, order) for column in COLUMNS),
        rows="\n".join(rows),
        summary=f"{count}, {size} in files. Times are in UTC." if entries else "This directory is empty.",
    )


def crumbs(path: str, host: str) -> str:
    """Return a link to each directory on the path, from the root on."""
    links = [f'<a href="/">{shown(host or "home")}</a>']
    at = "/"
    for name in path.split("/")[1:-1]:
        at += escape(name) + "/"
        links.append(f'<a href="{html_escape(at)}"><bdi>{shown(name)}</bdi></a>')
    links[-1] = links[-1].replace("<a", '<a aria-current="page"', 1)
    return " / ".join(links)


def head(column: str, sort: str, order: str) -> str:
    """Return a column's head, a link: it sorts by the column, or turns the order round when that is so."""
    label, other = COLUMNS[column]
    state = ""
    if column == sort:
        arrow, name, other = ("↓", "descending", "asc") if order == "desc" else ("↑", "ascending", "desc")
        label, state = f"{label} {arrow}", f' aria-sort="{name}"'
    return f'<th scope="col"{state}><a href="?sort={column}&amp;order={other}">{label}</a>'


def row(entry: Entry) -> str:
    """Return an entry's row. Without "./", a name with a colon could be read as a scheme."""
    kind, slash = (' class="d"', "/") if entry.is_directory else ("", "")
    link = f'<a href="./{html_escape(escape(entry.name))}{slash}"><bdi>{shown(entry.name)}{slash}</bdi></a>'
    size = "<td>" if entry.size is None else f'<td title="{entry.size:,} B">{human(entry.size)}'
    at = date(entry.modified)
    when = f'<time datetime="{at}">{at[:10]}<span> {at[11:16]}</span></time>' if at else ""
    return f"<tr{kind}><td>{link}{size}<td>{when}"


def human(size: int) -> str:
    """Return a size with two or three digits and a unit."""
    if size < 1000:
        return f"{size} B"
    power = 1
    while size >= 999.5 * 1024**power and power < 6:
        power += 1
    amount = size / 1024**power
    return f"{amount:{'.1f' if amount < 9.95 else '.0f'}} {'KMGTPE'[power - 1]}iB"


def date(seconds: int) -> str | None:
    """Return a time in the form of ISO 8601, in UTC; None if it is in no year that has four digits."""
    if seconds not in DATES:
        return None
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"


def text(name: str) -> str:
    """Return a name as Unicode, with � for what is not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown(name: str) -> str:
    """Return a name to be read in HTML, on one line."""
    return html_escape(text(name).translate(CONTROLS))
