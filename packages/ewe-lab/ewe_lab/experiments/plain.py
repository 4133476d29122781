"""Servers under loads, as a paper's file describes them. Most published tables are of this kind.

    servers = ["thread", "nginx"]
    load = { shape = "ceiling", users = 32, seconds = [1, 3] }
    columns = [{ name = "keep-alive", printed = { nginx = ["Nginx 0.8", 17000] } }]

A column is measured server by server, at each of its numbers of users if it has several. docs/papers.md explains
all keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ewe.config.messages import ConfigError, nearest
from ewe_lab.bench.experiment import Bench, Contender, Load
from ewe_lab.bench.results import Cell
from ewe_lab.experiments.contenders import BY_NAME
from ewe_lab.experiments.records import checked, of_type, record

KEYS = ("columns", "servers", "load", "link", "notes")  # of an experiment
EMPTY = Load()


@dataclass(frozen=True)
class Column:
    """A column of the table, and what is measured for it.

    load: the fields of a Load; a pair is a number with --quick, and in full. users: a cell for each, on the x axis.
    printed: by server, its name in the document and the figure, or a list of figures, one for each of `users`.
    """

    name: str = ""
    servers: tuple[str, ...] = ()  # (): those of the experiment
    load: Mapping[str, Any] = field(default_factory=dict)  # beside the load of the experiment
    size: int = 0  # bytes of the file that is asked for; 0: /index.html, 1 KB
    users: tuple[int, ...] = ()
    value: str = "rate"
    unit: str = "req/s"
    printed: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """What is measured. link: `10mbit`, `100mbit` or `1gbit`, between servers and load. notes: for the report."""

    columns: Sequence[tuple[Column, Sequence[Contender]]]
    link: str = ""
    notes: Sequence[str] = ()

    def cells(self) -> Iterator[Cell]:
        """Return the cells without samples: what is printed."""
        for column, contenders in self.columns:
            for contender in contenders:
                for index in range(len(column.users or "1")):
                    yield cell_of(column, contender, index)


def measurement(table: dict[str, Any], own: Mapping[str, Contender], where: str) -> Measurement:
    """Return what the keys of an experiment describe. own: contenders of the paper. Raises ConfigError."""
    known = {**BY_NAME, **own}
    columns = []
    for each in table.get("columns", ()):
        column = record(Column, {"servers": table.get("servers", [])} | each, f"{where}: columns")
        column = replace(column, load=load_fields(table.get("load", {}) | column.load, where))
        if not column.servers:
            raise ConfigError(f"{where}: column {column.name!r} has no servers")
        contenders = [contender(name, known, where) for name in column.servers]
        for name, pair in column.printed.items():
            check_printed(column, name, pair, where)
        column = replace(column, printed={known[name].name: pair for name, pair in column.printed.items()})
        columns.append((column, contenders))
    link = of_type(str, table.get("link", ""), f"{where}: link")
    return Measurement(columns, link, of_type(tuple, table.get("notes", []), f"{where}: notes"))


def contender(name: str, known: Mapping[str, Contender], where: str) -> Contender:
    """Return a contender by its name. Raises ConfigError."""
    if name not in known:
        raise ConfigError(f"{where}: there is no server {name!r}{nearest(name, known)}")
    return known[name]


def load_fields(table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a load. Raises ConfigError if they make none."""
    where = f"{where}: load"
    checked(table, [each.name for each in fields(Load)], where)
    record(Load, {name: value[0] if is_pair(name, value) else value for name, value in table.items()}, where)
    return table


def is_pair(name: str, value: Any) -> bool:
    """Whether a value of a load has two numbers: with --quick, and in full."""
    return isinstance(value, list) and type(getattr(EMPTY, name)) in (int, float) and len(value) == 2


def check_printed(column: Column, name: str, pair: Sequence[Any], where: str) -> None:
    """Check what is printed for a server. Raises ConfigError."""
    where = f"{where}: column {column.name!r}, printed.{name}"
    if name not in column.servers:
        raise ConfigError(f"{where}: no such server is measured{nearest(name, column.servers)}")
    if not isinstance(pair, list) or not 1 <= len(pair) <= 2 or not isinstance(pair[0], str):
        raise ConfigError(f"{where}: {pair!r} is not a name and a figure")
    figures = pair[1] if len(pair) == 2 and isinstance(pair[1], list) else pair[1:]
    if any(type(each) not in (int, float) for each in figures):
        raise ConfigError(f"{where}: {figures!r} are not numbers")
    if len(figures) not in (0, len(column.users or "1")):
        raise ConfigError(f"{where}: {len(figures)} figures for {len(column.users)} numbers of users")


# ---------------------------------------------------------------------------------------------------------
# What it does


def run(lab: Bench, measurement: Measurement) -> Iterator[Cell]:
    """Measure column by column."""
    root = lab.site(sorted({column.size for column, _ in measurement.columns} - {0}))
    lab.notes += measurement.notes
    with ExitStack() as stack:
        if measurement.link and (why := stack.enter_context(lab.linked(measurement.link))):
            lab.notes.append(f"Not behind a link of {measurement.link}: {why}")
        for column, contenders in measurement.columns:
            for each in lab.servers(contenders):
                for index, load in enumerate(loads(lab, column)):
                    yield lab.measure(each, load, cell_of(column, each, index), root)


def loads(lab: Bench, column: Column) -> Iterator[Load]:
    """Return the loads of a column: one, or one for each number of users."""
    values = {
        name: lab.seconds(*value) if is_pair(name, value) else value for name, value in column.load.items()
    }
    if column.size:
        values |= {"path": f"/{column.size}.html", "length": column.size}
    if "sessions" in values:
        values["sessions"] = int(values["sessions"])
    load = record(Load, values, column.name)
    yield from (replace(load, users=users) for users in column.users) if column.users else [load]


def cell_of(column: Column, contender: Contender, index: int) -> Cell:
    """Return an empty cell with the printed figure. index: of the number of users."""
    cell = Cell(contender.name, column.name, value=column.value, unit=column.unit)
    if column.users:
        cell.x = column.users[index]
    cell.paper_server, *figure = column.printed.get(contender.name, [""])
    if figure:
        cell.paper = figure[0][index] if isinstance(figure[0], list) else figure[0]
    return cell
