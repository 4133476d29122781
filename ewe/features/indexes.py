"""Directory indexes: a page to browse, sortable without scripts, or JSON for programs that prefer it.

listing: names -> read -> arrange -> page or JSON. Names that a client could not fetch are not listed: names that
begin with a dot, broken symbolic links, sockets, devices.

The time of a listing is bounded to about 50 ms. Up to MAX_SORTED names are examined, and can be sorted by any
column. A longer directory is listed in the order of its names, with PAGE_NAMES on a page, and only the names of
this page are examined. An event loop would serve no other client meanwhile. A directory with more than INLINE_NAMES
names is therefore listed by the stream's call() (ewe.features.static): beside an event loop, in an executor thread.
Only one such directory is listed at a time (ewe.gateway.turns).

**A validator.** A listing has an entity tag, so that a client that asks again gets 304 (RFC 9110 section 13). The
date of the directory is not enough: it changes when a name is added or removed, but not when a file grows, and the
page shows sizes. The tag is a hash of everything on which the page depends: names, sizes and times in their order,
the path, the host, the version of ewe. Making the page costs far more than the hash. Two checksums of zlib are
enough: an account that chooses names with equal checksums can only hide a change of this directory. hashlib would
load OpenSSL, which takes 20 ms in each child of the fork model.

**A page is kept for a second** if it has more than INLINE_NAMES names: making it costs 10 to 20 ms, and a client
may ask again and again. A new or a removed name changes the date of the directory, and is seen at once. A size or a
date on the page may be a second old, as the contents of a cached file may be (ewe.features.static).
"""

from __future__ import annotations

import os
import re
import stat
import time
import zlib
from itertools import islice

from ewe import __version__
from ewe.bounded import SETTLED_S, BoundedDict
from ewe.config.defaults import PRIVATE_DIRECTORIES
from ewe.gateway.true_names import NAME_ONLY_FLAGS, true_name
from ewe.gateway.turns import Turns
from ewe.http.conditional import status_by_conditions
from ewe.http.dates import FIRST_SECOND, LAST_SECOND
from ewe.http.error_pages import error_page, html_document, html_escape
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

MAX_SORTED = 2_000
PAGE_NAMES = 1_000
MAX_NAMES = 50_000  # reading more names would take too long, even without examining them
INLINE_NAMES = 200  # names that are listed without call(), in about 3 ms
PAGE_CACHE_S = 1.0  # seconds that a page is kept
Fields = tuple[tuple[str, str], ...]


class KeptPage:
    """A page as it was sent. made_at: time.monotonic() before its directory was read."""

    def __init__(self, etag: str, fields: Fields, body: bytes, made_at: float) -> None:
        self.etag = etag
        self.fields = fields
        self.body = body
        self.made_at = made_at


# By all on which a page depends. A page has some hundred KB, 5 MB if its 2,000 names are as long as they may be.
KEPT_PAGES: BoundedDict[tuple[object, ...], KeptPage] = BoundedDict(4)
LISTING_TURNS = Turns()
RUN_NAMES = 1_000  # names that one call of sorted() sorts; no other thread runs during the call
# Each column: its label, and the order in which the first click sorts it
COLUMNS = {"name": ("Name", "asc"), "size": ("Size", "desc"), "date": ("Modified", "desc")}
DIGITS = re.compile("([0-9]+)")
NUMBER = re.compile("[1-9][0-9]{0,5}")
ALWAYS = frozenset({"Cache-Control", "ETag", "Vary"})  # fields of a 304, too: RFC 9110 section 15.4.5
WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")  # RFC 9110 section 12.4.2
# Control characters in a name are shown as ␀ ␁ ␂ … Characters that end a line or change the direction of writing
# are shown as �, so that "evil\u202etxt.exe" does not look like the name of a text file.
CONTROLS = {code: 0x2400 + code for code in range(32)} | {127: 0x2421}
CONTROLS |= dict.fromkeys((0x85, 0x2028, *range(0x2029, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
FIELDS = (
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'"),
    ("Vary", "Accept"),
    ("X-Content-Type-Options", "nosniff"),
)
STYLE = """:root { --pad: .4rem .6rem }
html { font: 1.0625rem/1.5 system-ui, sans-serif; background: var(--paper); color: var(--quiet);
  -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { max-width: 50rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1, p, th a, td a, td + td { margin: 0; padding: var(--pad) }
h1 { font-size: 1.4rem; font-weight: 400; line-height: 1.35; overflow-wrap: anywhere }
a { color: var(--accent); text-decoration: none }
a:not([href]) { color: inherit }
a[href]:hover, main p a { text-decoration: underline; text-underline-offset: .15em }
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
BODY = """<nav aria-label="Path"><h1>{crumbs}</h1></nav>
<main>
{above}<table>
<thead><tr>{heads}
<tbody>
{rows}
</table>
<p>{summary}
{below}</main>"""


class DirectoryEntry:
    """A file or directory. name: as in the file system. size: None for a directory. modified: in seconds."""

    __slots__ = ("is_directory", "modified", "name", "size")

    def __init__(self, name: str, file_status: os.stat_result) -> None:
        self.name = name
        self.is_directory = stat.S_ISDIR(file_status.st_mode)
        self.size = None if self.is_directory else file_status.st_size
        self.modified = file_status.st_mtime_ns // 10**9


def listing(
    request: Request,
    path: str,
    descriptor: int,
    root: str = "",
    directory: str = "",
    names: list[str] | None = None,
) -> Response:
    """Return the listing of an open directory, or a 304 or 412. path: the URL's path, with a slash at its end.

    root: the document root; symbolic links that lead out of it are not listed. "": all links are listed. directory:
    the directory's path in the file system. names: all names in the directory, if the caller has read them; None:
    they are read here. Raises HTTPError.
    """
    made_at = time.monotonic()
    file_status = os.fstat(descriptor)
    is_settled = time.time() - file_status.st_mtime > SETTLED_S
    query = parameters(request.query)
    names = names_in(descriptor, path) if names is None else listable_names(names)
    part = DirectoryPage(names, query.get("page", "")) if len(names) > MAX_SORTED else None
    sort, order = sort_of_query(query) if part is None else ("", "")
    entries = read(descriptor, names if part is None else part.names, root, directory)
    if part is None:
        sort_entries(entries, sort, order)
    is_json = prefers_json(request.values.get("accept", ""))
    page_number = "" if part is None else f"{part.number} of {part.name_count}"
    etag = tag_of(entries, f"{is_json}\0{path}\0{request.host}\0{sort}\0{order}\0{page_number}")
    fields: Fields = (*FIELDS, ("ETag", etag))
    if (refusal := refused_by_condition(request, etag, fields)) is not None:
        return refusal
    if part is not None:
        fields = (*fields, ("Link", part.links()))
    if is_json:
        fields = (("Content-Type", "application/json"), *fields)
        body = as_json(entries).encode()
    else:
        fields = (("Content-Type", "text/html; charset=utf-8"), *fields)
        body = as_page(entries, path, request.host, sort, order, part).encode()
    if len(names) > INLINE_NAMES and is_settled:
        KEPT_PAGES[key_of(request, path, file_status, root)] = KeptPage(etag, fields, body, made_at)
    return Response(200, fields, body)


def key_of(request: Request, path: str, file_status: os.stat_result, root: str) -> tuple[object, ...]:
    """Return all on which the page of a directory depends, except the sizes and the dates of its files."""
    directory = file_status.st_dev, file_status.st_ino, file_status.st_mtime_ns
    return *directory, root, path, request.host, request.query, request.values.get("accept")


def kept_page(request: Request, path: str, descriptor: int, root: str) -> Response | None:
    """Return the page of an open directory as it was made in the last PAGE_CACHE_S, or a 304 or 412; else None."""
    page = KEPT_PAGES.get(key_of(request, path, os.fstat(descriptor), root)) if KEPT_PAGES else None
    if page is None or time.monotonic() - page.made_at > PAGE_CACHE_S:
        return None
    return refused_by_condition(request, page.etag, page.fields) or Response(200, page.fields, page.body)


def refused_by_condition(request: Request, etag: str, fields: Fields) -> Response | None:
    """Return the 304 or 412 if a condition of the request forbids to send the page, else None."""
    status = status_by_conditions(request, etag, None) if request.conditional else None
    if status == 304:
        return Response(304, (field for field in fields if field[0] in ALWAYS))
    return error_page(412, "the condition does not hold") if status == 412 else None


def tag_of(entries: list[DirectoryEntry], more: str) -> str:
    """Return the entity tag of a listing. more: the other facts on which the page depends."""
    # A name contains no slash and no NUL, so different lists give different texts.
    parts = [f"{entry.name}/{entry.size}/{entry.modified}" for entry in entries]
    text = "\0".join((__version__, more, *parts)).encode("utf-8", "surrogateescape")
    return f'"{zlib.crc32(text):x}-{zlib.adler32(text):x}-{len(entries):x}"'


class DirectoryPage:
    """One page of a long directory. names: the names on the page. number: the page number, from 1 to last."""

    def __init__(self, names: list[str], number: str) -> None:
        """number: the text in the query; if there is no such page, the first page is used."""
        # The final sort then only has to merge, in a third of the time
        for at in range(0, len(names), RUN_NAMES):
            names[at : at + RUN_NAMES] = sorted(names[at : at + RUN_NAMES], key=str.casefold)
        names.sort(key=str.casefold)
        self.name_count = len(names)
        self.last = (self.name_count + PAGE_NAMES - 1) // PAGE_NAMES
        self.number = int(number) if NUMBER.fullmatch(number) and 1 <= int(number) <= self.last else 1
        self.names = names[(self.number - 1) * PAGE_NAMES : self.number * PAGE_NAMES]

    def neighbours(self) -> list[tuple[str, int]]:
        """Return the relation and the number of the previous and of the next page, if they exist."""
        pages = (("prev", self.number - 1), ("next", self.number + 1))
        return [(relation, number) for relation, number in pages if 1 <= number <= self.last]

    def links(self) -> str:
        """Return the Link field (RFC 8288), with the URLs of the previous and the next page for programs."""
        return ", ".join(f'<?page={number}>; rel="{relation}"' for relation, number in self.neighbours())

    def navigation(self, label: str) -> str:
        """Return the links to the other pages. label: the name of this landmark, unique on the page."""
        labels = {"prev": "← Previous page", "next": "Next page →"}
        links = {
            relation: f'<a href="?page={number}" rel="{relation}">{labels[relation]}</a>'
            for relation, number in self.neighbours()
        }
        parts = (links.get("prev"), f"Page {self.number} of {self.last}", links.get("next"))
        return f'<nav aria-label="{label}"><p>{" · ".join(filter(None, parts))}</nav>\n'

    def summary(self) -> str:
        """Return a sentence about the contents of the directory."""
        return f"This directory has {self.name_count:,} names, too many to sort by size or date. Times are in UTC."


def parameters(query: str | None) -> dict[str, str]:
    """Return the parameters of a query."""
    return {name: value for name, _, value in (pair.partition("=") for pair in (query or "").split("&"))}


def sort_of_query(query: dict[str, str]) -> tuple[str, str]:
    """Return the column to sort by, and "asc" or "desc"."""
    sort = query.get("sort", "name")
    return (sort, "desc" if query.get("order") == "desc" else "asc") if sort in COLUMNS else ("name", "asc")


def prefers_json(accepts: str) -> bool:
    """Return whether the client prefers JSON to HTML. If weights are equal, a named type wins over a range.

    The most specific range decides the weight of a type: RFC 9110 section 12.5.1.
    """
    weights = {}
    for part in accepts.lower().split(","):
        kind, *parameters = (piece.strip(" \t") for piece in part.split(";"))
        weight = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        if WEIGHT.fullmatch(weight):
            weights[kind] = float(weight)

    def rank(*ranges: str) -> tuple[float, int]:
        """Return the weight of the most specific range that the client names, and 0, -1 or -2 for its position."""
        return next(((weights[kind], -index) for index, kind in enumerate(ranges) if kind in weights), (0, 0))

    json, html = rank("application/json", "application/*", "*/*"), rank("text/html", "text/*", "*/*")
    json_weight, _ = json
    return json_weight > 0 and json > html


def first_names(descriptor: int) -> list[str]:
    """Return the first INLINE_NAMES + 1 names in a directory, or all names if there are fewer."""
    with os.scandir(descriptor) as items:
        return [item.name for item in islice(items, INLINE_NAMES + 1)]


def names_in(descriptor: int, path: str) -> list[str]:
    """Return the names in a directory that may be listed, unsorted. Raises HTTPError if there are too many."""
    with os.scandir(descriptor) as items:
        names = [item.name for item in islice(items, MAX_NAMES + 1)]
    if len(names) > MAX_NAMES:
        raise HTTPError(403, f"{path} has more than {MAX_NAMES} entries, too many to list")
    return listable_names(names)


def listable_names(names: list[str]) -> list[str]:
    """Return the names that may be listed."""
    return [name for name in names if not name.startswith(".") and name.upper() not in PRIVATE_DIRECTORIES]


def read(descriptor: int, names: list[str], root: str, directory: str) -> list[DirectoryEntry]:
    """Return a DirectoryEntry for each of these names in a directory, in their order.

    Names that clients cannot get are left out. root: the document root; links that lead out of it are left out ("":
    no link is). directory: its path in the file system.
    """
    entries = []
    for name in names:
        try:
            file_status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(file_status.st_mode):
                if root and leads_out(name, descriptor, root, directory):
                    continue
                file_status = os.stat(name, dir_fd=descriptor)
        except OSError:  # a file removed meanwhile, a broken link, a directory that may not be searched
            continue
        if stat.S_ISREG(file_status.st_mode) or stat.S_ISDIR(file_status.st_mode):
            entries.append(DirectoryEntry(name, file_status))
    return entries


def leads_out(name: str, descriptor: int, root: str, directory: str) -> bool:
    """Return whether a symbolic link leads out of the document root. Raises OSError.

    name: of the link, in an open directory. descriptor, directory: the directory's descriptor and path. root: the
    document root. The function opens the link's target and asks the kernel for its path (true_name()), which is ten
    times as fast as os.path.realpath().
    """
    opened = os.open(name, NAME_ONLY_FLAGS, dir_fd=descriptor)
    try:
        return not (true_name(opened, os.path.join(directory, name)) + "/").startswith(root.rstrip("/") + "/")
    finally:
        os.close(opened)


def sort_entries(entries: list[DirectoryEntry], sort: str, order: str) -> None:
    """Sort by the column, then by name, and put directories first."""
    down = order == "desc"
    entries.sort(key=lambda entry: natural(entry.name), reverse=down and sort == "name")
    if sort == "size":
        entries.sort(key=lambda entry: entry.size or 0, reverse=down)
    elif sort == "date":
        entries.sort(key=lambda entry: entry.modified, reverse=down)
    entries.sort(key=lambda entry: not entry.is_directory)


def natural(name: str) -> tuple[list[str | int], str]:
    """Return a sort key for the natural order of names: a2 before A10."""
    parts = DIGITS.split(name.casefold())
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def as_json(entries: list[DirectoryEntry]) -> str:
    """Return a JSON array, one entry on each line."""
    from json import dumps

    lines = []
    for entry in entries:
        kind = "directory" if entry.is_directory else "file"
        fields = {
            "name": as_unicode(entry.name),
            "type": kind,
            "size": entry.size,
            "modified": date(entry.modified),
        }
        lines.append(dumps(fields, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def as_page(
    entries: list[DirectoryEntry],
    path: str,
    host: str,
    sort: str,
    order: str,
    part: DirectoryPage | None = None,
) -> str:
    """Return the page of a directory. part: the part of a long directory that it shows; None: it shows all."""
    parent = '<tr class="up"><td colspan="3"><a href="../"><bdi>Parent directory</bdi></a>'
    rows = [parent] if path != "/" else []
    rows += map(row, entries)
    size = size_for_people(sum(entry.size or 0 for entry in entries))
    count = f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
    summary = f"{count}, {size} in files. Times are in UTC." if entries else "This directory is empty."
    body = BODY.format(
        crumbs=crumbs(path, host),
        heads="".join(head(column, sort, order) for column in COLUMNS),
        rows="\n".join(rows),
        summary=part.summary() if part is not None else summary,
        above=part.navigation("Pages") if part is not None else "",
        below=part.navigation("Pages, below the names") if part is not None else "",
    )
    return html_document(f"Index of {shown(path)}", STYLE, body)


def crumbs(path: str, host: str) -> str:
    """Return a link to each directory on the path, from the root on."""
    links = [f'<a href="/">{shown(host or "home")}</a>']
    at = "/"
    for name in path.split("/")[1:-1]:
        at += percent_encode(name) + "/"
        links.append(f'<a href="{html_escape(at)}"><bdi>{shown(name)}</bdi></a>')
    links[-1] = links[-1].replace("<a", '<a aria-current="page"', 1)
    return " / ".join(links)


def head(column: str, sort: str, order: str) -> str:
    """Return the head of a column: a link that sorts by the column, or reverses the order.

    sort: the column by which the page is sorted; "" if it cannot be sorted.
    """
    label, link_order = COLUMNS[column]
    if not sort:
        return f'<th scope="col"><a>{label}</a>'
    state = ""
    if column == sort:
        arrow, name, link_order = (
            ("↓", "descending", "asc") if order == "desc" else ("↑", "ascending", "desc")
        )
        label, state = f"{label} {arrow}", f' aria-sort="{name}"'
    return f'<th scope="col"{state}><a href="?sort={column}&amp;order={link_order}">{label}</a>'


def row(entry: DirectoryEntry) -> str:
    """Return the row of an entry. Without "./", a browser could read a name with a colon as a scheme."""
    kind, slash = (' class="d"', "/") if entry.is_directory else ("", "")
    link = f'<a href="./{html_escape(percent_encode(entry.name))}{slash}"><bdi>{shown(entry.name)}{slash}</bdi></a>'
    size = "<td>" if entry.size is None else f'<td title="{entry.size:,} B">{size_for_people(entry.size)}'
    at = date(entry.modified)
    day, _, clock = (at or "").partition("T")  # clock: HH:MM:SSZ
    when = f'<time datetime="{at}">{day}<span> {clock[:5]}</span></time>' if at else ""
    return f"<tr{kind}><td>{link}{size}<td>{when}"


def size_for_people(size: int) -> str:
    """Return a size with two or three digits and a unit."""
    if size < 1000:
        return f"{size} B"
    power = 1
    while size >= 999.5 * 1024**power and power < 6:
        power += 1
    amount = size / 1024**power
    return f"{amount:{'.1f' if amount < 9.95 else '.0f'}} {'KMGTPE'[power - 1]}iB"


def date(seconds: int) -> str | None:
    """Return a time in UTC in the format of RFC 3339; None if its year does not have four digits.

    seconds: since 1970.
    """
    if not FIRST_SECOND <= seconds <= LAST_SECOND:
        return None
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"


def as_unicode(name: str) -> str:
    """Return a name as Unicode, with � for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown(name: str) -> str:
    """Return a name as HTML, on one line."""
    return html_escape(as_unicode(name).translate(CONTROLS))
