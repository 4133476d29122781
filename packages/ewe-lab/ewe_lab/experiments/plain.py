"""Servers under loads, as a paper's file describes them. Most published tables are of this kind.

    servers = ["thread", "nginx"]
    load = { shape = "saturation", users = 32, seconds = [1, 3] }
    columns = [{ name = "keep-alive", printed = { nginx = ["Nginx 0.8", 17000] } }]

A column is measured server by server, at each of its numbers of users if it has several. docs/papers.md explains
all keys.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ewe.config.messages import ConfigError, nearest
from ewe_lab.bench.experiment import LOAD_SHAPES, Bench, Load, ServerUnderTest
from ewe_lab.bench.links import SPEEDS
from ewe_lab.bench.results import Cell, is_figure_name
from ewe_lab.experiments.records import check_items, check_keys, check_number, checked_value, dataclass_of
from ewe_lab.experiments.tested_servers import BY_NAME

# The keys of an experiment that say how to measure, and the types of their values
KNOWN_KEYS: Mapping[str, type] = {"columns": list, "servers": list, "load": dict, "link": str, "notes": list}
DEFAULT_LOAD = Load()


@dataclass(frozen=True)
class PlainColumn:
    """A column of the table, and the measurement for it.

    load: the fields of a Load; a pair holds the number for --quick and the number for a full run. users: the
    numbers of users, each with a cell on the x axis. printed: by server, its name in the document and the figure,
    or a list of figures, one for each number of users.
    """

    name: str = ""
    servers: tuple[str, ...] = ()  # (): those of the experiment
    load: Mapping[str, Any] = field(default_factory=dict)  # beside the load of the experiment
    size: int = 0  # bytes of the requested file; 0: /index.html, 1 KB
    users: tuple[int, ...] = ()
    value: str = "rate"
    unit: str = "req/s"
    printed: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def point_count(self) -> int:
        """The number of measurements of each server: one for each number of users, or a single one."""
        return len(self.users) or 1


@dataclass(frozen=True)
class Measurement:
    """The columns to measure. link: `10mbit`, `100mbit`, `1gbit`, between server and load. notes: of the report."""

    columns: Sequence[tuple[PlainColumn, Sequence[ServerUnderTest]]]
    link: str = ""
    notes: Sequence[str] = ()

    def cells(self) -> Iterator[Cell]:
        """Yield the cells without samples, with the printed figures."""
        for column, tested_servers in self.columns:
            for tested in tested_servers:
                for index in range(column.point_count):
                    yield cell_of(column, tested, index)


def measurement(table: dict[str, Any], own: Mapping[str, ServerUnderTest], context: str) -> Measurement:
    """Return the measurement that an experiment describes. Raises ConfigError.

    table: the keys KNOWN_KEYS of the experiment, with values of their types. own: the servers that only this paper
    has. context: begins each error message.
    """
    known = {**BY_NAME, **own}
    columns = []
    if not table.get("columns"):
        raise ConfigError(f"{context}: columns: there is none, so nothing is measured")
    for name in table.get("servers", ()):
        checked_value(str, name, f"{context}: servers")
    for each in table.get("columns", ()):
        # A key of the column replaces that of the experiment
        column = dataclass_of(
            PlainColumn, {"servers": table.get("servers", [])} | each, f"{context}: columns"
        )
        column = replace(column, load=load_fields(table.get("load", {}) | column.load, context))
        if not is_figure_name(column.value):
            raise ConfigError(f"{context}: columns: value: there is no figure {column.value!r}")
        users = column.load.get("users", 0)
        users = column.users or (users if is_pair("users", users) else [users])
        if column.load.get("shape") != "arrivals" and not all(users):
            raise ConfigError(f"{context}: column {column.name!r} has no users")
        if not column.servers:
            raise ConfigError(f"{context}: column {column.name!r} has no servers")
        tested_servers = [tested_server(name, known, context) for name in column.servers]
        for name, pair in column.printed.items():
            check_printed(column, name, pair, context)
        # In the file a server may have a short name; a cell has the name for tables
        column = replace(column, printed={known[name].name: pair for name, pair in column.printed.items()})
        columns.append((column, tested_servers))
    notes = checked_value(tuple, table.get("notes", []), f"{context}: notes")
    check_items(notes, (str,), f"{context}: notes")
    if (link := table.get("link", "")) not in ("", *SPEEDS):
        raise ConfigError(f"{context}: link: there is no link of {link!r}; there are {', '.join(SPEEDS)}")
    found = Measurement(columns, link, notes)
    # Figures of one column and one number of users are compared with each other: each server has one of them
    rows = Counter((cell.server, cell.column, cell.x) for cell in found.cells())
    if twice := [row for row, count in rows.items() if count > 1]:
        server, name, _ = twice[0]
        raise ConfigError(f"{context}: two columns {name!r} measure {server}: give each column a name")
    return found


def tested_server(name: str, known: Mapping[str, ServerUnderTest], context: str) -> ServerUnderTest:
    """Return a server under test by its name. Raises ConfigError.

    known: all servers, by name. context: begins the error message.
    """
    if checked_value(str, name, f"{context}: servers") not in known:
        raise ConfigError(f"{context}: there is no server {name!r}{nearest(name, known)}")
    return known[name]


def load_fields(table: dict[str, Any], context: str) -> dict[str, Any]:
    """Return the fields of a load, pairs included. Raises ConfigError if one is unknown or has a wrong value."""
    context = f"{context}: load"
    check_keys(table, [each.name for each in fields(Load)], context)
    if table.get("shape") == "ceiling":  # a paper that others wrote may still have the former name
        print(f"{context}: the shape ceiling is now called saturation", file=sys.stderr)
        table = {**table, "shape": "saturation"}
    # A check only: loads_of() makes the Load, when it is known whether the run is quick
    for index in (0, 1):
        values = {name: value[index] if is_pair(name, value) else value for name, value in table.items()}
        check_load(dataclass_of(Load, values, context), context)
    return table


def check_load(load: Load, context: str) -> None:
    """Check that a load can be made. Raises ConfigError."""
    if load.shape not in LOAD_SHAPES:
        raise ConfigError(
            f"{context}: there is no shape {load.shape!r}; there are {', '.join(LOAD_SHAPES)}"
            + nearest(load.shape, LOAD_SHAPES)
        )
    if load.shape == "arrivals" and not load.rate and not load.phases:
        raise ConfigError(f"{context}: a load of shape arrivals needs a rate, or phases")
    if not load.duration or not load.timeout:
        raise ConfigError(f"{context}: seconds and timeout have to be more than 0")


def is_pair(name: str, value: Any) -> bool:
    """Whether a value of a load is a pair of numbers: for --quick, and for a full run. (`paths` is no pair.)"""
    return isinstance(value, list) and type(getattr(DEFAULT_LOAD, name)) in (int, float) and len(value) == 2


def check_printed(column: PlainColumn, name: str, pair: Sequence[Any], context: str) -> None:
    """Check the printed figures of a server. Raises ConfigError.

    pair: the document's name of the server, then its figure, a list of figures, or nothing.
    """
    context = f"{context}: column {column.name!r}, printed.{name}"
    if name not in column.servers:
        raise ConfigError(f"{context}: no such server is measured{nearest(name, column.servers)}")
    if not isinstance(pair, list) or not 1 <= len(pair) <= 2 or not isinstance(pair[0], str):
        raise ConfigError(f"{context}: {pair!r} is not a name and a figure")
    figures = pair[1] if len(pair) == 2 and isinstance(pair[1], list) else pair[1:]
    if any(type(each) not in (int, float) for each in figures):
        raise ConfigError(f"{context}: {figures!r} are not numbers")
    for each in figures:
        check_number(each, context)
    if len(figures) != (column.point_count if len(pair) == 2 else 0):
        raise ConfigError(f"{context}: {len(figures)} figures for {column.point_count} numbers of users")


# ---------------------------------------------------------------------------------------------------------
# The run


def run(lab: Bench, measurement: Measurement) -> Iterator[Cell]:
    """Measure column by column; yield the cells. Without the link that they need, each has the reason instead."""
    # 0 stands for /index.html, which every site has
    root = lab.site(sorted({column.size for column, _ in measurement.columns} - {0}))
    lab.notes += measurement.notes
    with ExitStack() as exits:
        if measurement.link and (problem := exits.enter_context(lab.behind_link(measurement.link))):
            yield from (replace(cell, failure=problem) for cell in measurement.cells())
            return
        for column, tested_servers in measurement.columns:
            for each in lab.servers(tested_servers):
                for index, load in enumerate(loads_of(lab, column)):
                    yield lab.fill_cell(each, load, cell_of(column, each, index), root)


def loads_of(lab: Bench, column: PlainColumn) -> Iterator[Load]:
    """Yield the loads of a column: one, or one for each number of users.

    A pair in the file gives the number for --quick and the number for a full run.
    """
    values = {
        name: lab.quick_or_full(*value) if is_pair(name, value) else value
        for name, value in column.load.items()
    }
    if column.size:
        values |= {"path": f"/{column.size}.html", "length": column.size}
    load = dataclass_of(Load, values, column.name)
    yield from (replace(load, users=users) for users in column.users) if column.users else [load]


def cell_of(column: PlainColumn, tested: ServerUnderTest, index: int) -> Cell:
    """Return an empty cell with the printed figure. index: of the column's number of users; 0 without any."""
    cell = Cell(tested.name, column.name, value=column.value, unit=column.unit)
    if column.users:
        cell.x = column.users[index]
    # [name], [name, figure] or [name, [a figure for each number of users]]
    cell.paper_server, *figure = column.printed.get(tested.name, [""])
    if figure:
        cell.paper = figure[0][index] if isinstance(figure[0], list) else figure[0]
    return cell
