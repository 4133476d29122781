"""The rooms of ewe and their floors: what tests/house/test_layers.py checks and docs/architecture.md lists.

`make docs` runs this file: it writes the list of rooms into docs/architecture.md, between two markers.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: written by make docs -->\n", "<!-- end of rooms -->\n"

# Every room and its floor. A package stands for all the modules in it.
FLOORS = {
    "ewe": 0,
    "ewe.http": 1,
    "ewe.config": 1,
    "ewe.registry": 1,
    "ewe.scratch": 1,
    "ewe.short_line": 1,
    "ewe.svg": 1,
    "ewe.bounded": 0,
    "ewe.log_files": 0,
    "ewe.logger": 2,
    "ewe.libcgi": 2,
    "ewe.streams": 3,
    "ewe.sqlpages": 5,
    "ewe.gateway": 5,
    "ewe.database": 4,
    "ewe.features": 6,
    "ewe.site": 7,
    "ewe.body": 7,
    "ewe.response_writer": 7,
    "ewe.sites": 8,
    "ewe.conversation": 8,
    "ewe.conversations": 9,
    "ewe.processors": 10,
    "ewe.xswitch": 10,
    "ewe.server": 11,
    "ewe.cli": 12,
    "ewe.__main__": 13,
    "ewe_explore": 14,
    "ewe_classroom": 15,
    "ewe_lab": 16,
}
# Packages beside the server: each has a directory below packages/. They import ewe, and ewe imports none of them.
HOUSES = ("ewe_explore", "ewe_classroom", "ewe_lab")
# Rooms beside the house. Their modules have pages of their own.
BESIDE = ("ewe.xswitch", *HOUSES)


def module_name(path: Path) -> str:
    """Return the name by which a source file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "packages":
        parts = parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# What students get (ewe_classroom/labs) is no part of a house.
SOURCES = {
    module_name(path): path
    for path in sorted([*ROOT.glob("ewe/**/*.py"), *ROOT.glob("packages/*/ewe_*/**/*.py")])
    if "/ewe_classroom/labs/" not in path.as_posix()
}


def room_of(module: str) -> str | None:
    """Return the room a module is in: itself, or the package it belongs to; None if it has no floor yet."""
    if module in FLOORS:
        return module
    top = module.partition(".")[0]
    room = top if top in HOUSES else ".".join(module.split(".")[:2])
    return room if room in FLOORS else None


def purpose(module: str) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(SOURCES[module].read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].replace("``", "`").rstrip(".:")


def page() -> str:
    """Return the list of rooms, from the highest floor to the lowest, as Markdown."""
    rows = ["| floor | file | what it is |", "|---|---|---|"]
    for room in sorted(FLOORS, key=lambda room: (-FLOORS[room], room)):
        modules = [name for name in SOURCES if room_of(name) == room] if room != "ewe" else ["ewe"]
        for module in modules if room not in BESIDE else [room]:
            file = SOURCES[module].relative_to(ROOT).as_posix().removesuffix("__init__.py")
            name = re.sub("^(ewe/|packages/[^/]*/)(?=.)", "", file)
            bold = "**" if module == room else ""
            rows.append(f"| {FLOORS[room]} | [{bold}{name}{bold}](../{file}) | {purpose(module)} |")
    return "\n" + "\n".join(rows) + "\n\n"


def with_rooms(text: str) -> str:
    """Return docs/architecture.md with its list of rooms as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + page() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_rooms(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
