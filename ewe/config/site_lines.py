"""Where the tables [[site]] and [[site.location]] and their keys stand in a settings file: its lines.

tomllib keeps no positions. Headers and keys are looked for at the beginning of lines, in the order of the file; the
tables of the parsed file have the same order. A table that is written inline has its parent's line.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Any

from ewe.config.site_tables import SourcedTable

# [[site.location]] or [site.location.headers]; the second group is the name of the table
HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*[.=]""")


class TableLines:
    """The lines of one table: of its header, of its keys, and of the tables [[site.location]] below it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.keys: dict[str, int] = {}
        self.below: list[TableLines] = []


def with_lines(sites: list[Any], text: str, path: str, section: str) -> list[Any]:
    """Return the tables of `site` as SourcedTables that know their lines. section: "tool.ewe", or ""."""
    found = lines_of(text, section + "." if section else "")
    # Without a header that was found, the lines of a table are None.
    return [table_of(raw, lines, path) for raw, lines in zip_longest(sites, found[: len(sites)])]


def table_of(raw: Any, lines: TableLines | None, path: str) -> Any:
    """Return one table, and its locations, with their lines; another value unchanged, for read_sites() to refuse.

    lines: None if no header of the table was found. A location that is written inline has the line of its site.
    """
    if not isinstance(raw, dict):
        return raw
    if lines is None:
        return SourcedTable(raw, path)
    table = SourcedTable(
        raw, f"{path} line {lines.number}", {k: f"{path} line {n}" for k, n in lines.keys.items()}
    )
    if isinstance(locations := table.get("location"), list):
        below = zip_longest(locations, lines.below[: len(locations)], fillvalue=lines)
        table["location"] = [table_of(each, its_lines, path) for each, its_lines in below]
    return table


def lines_of(text: str, prefix: str) -> list[TableLines]:
    """Return the lines of each [[site]]. prefix: "tool.ewe." or ""."""
    sites: list[TableLines] = []
    current: TableLines | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if header := HEADER.match(line):
            name = re.sub(r"\s*\.\s*", ".", header[2])
            current = None
            if name == prefix + "site":
                current = TableLines(number)
                sites.append(current)
            elif sites and name == prefix + "site.location":
                current = TableLines(number)
                sites[-1].below.append(current)
            elif sites and name.startswith(prefix + "site."):
                # A table as [site.location.headers] is a key of the last location, or of the site.
                owner, key = sites[-1], name.removeprefix(prefix + "site.")
                if owner.below and key.startswith("location."):
                    owner, key = owner.below[-1], key.removeprefix("location.")
                owner.keys.setdefault(key.partition(".")[0].strip("\"'"), number)
        elif current is not None and (match := KEY.match(line)):
            current.keys.setdefault(match[1], number)
    return sites
