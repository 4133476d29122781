"""Reads the papers: a TOML file each, which describes its experiments. docs/papers.md explains the format.

    ewe.toml, thesis.toml, ...       the five documents, and ours.toml
    EWE_LAB_PAPERS=DIR               a directory with the files of others

An experiment is run in one of three ways, and its file says in which:

    columns = [...]        servers under loads: plain.py measures them, and no Python is written
    run = "e_c2"           by the function run() of e_c2.py, beside this file
    run = "x.y:measure"    by any function; the table `given` holds its keywords

A module that `run` or `check` names is imported when its function is called.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError, nearest
from ewe.config.tables import read_file
from ewe_lab.bench.experiment import Chart, Contender, Experiment
from ewe_lab.bench.results import Cell
from ewe_lab.experiments import plain
from ewe_lab.experiments.records import checked, record

OTHERS = "EWE_LAB_PAPERS"  # variable of the environment
HERE = Path(__file__).parent
LAST = 100  # the place of a paper that names none
TABLES = ("document", "heading", "order", "machine", "remarks", "contenders", "like", "experiment")
APART = (
    "like",
    "machine",
    "charts",
    "by_column",
    "run",
    "check",
    "given",
    "printed",
)  # not as Experiment has them


@dataclass(frozen=True)
class Code:
    """A function of a module, which is imported when the function is called. given: its keywords."""

    module: str
    function: str
    given: Mapping[str, Any] = field(default_factory=dict)

    def find(self) -> Any:
        """Import the module; return the function."""
        return getattr(import_module(self.module), self.function)

    def __call__(self, *arguments: Any) -> Any:
        return self.find()(*arguments, **self.given)


@dataclass(frozen=True)
class Paper:
    """A file. What stands in the tables `printed` and `given` of an experiment is kept by its id."""

    document: str
    heading: str = ""
    order: int = LAST
    experiments: list[Experiment] = field(default_factory=list)
    checks: dict[str, Code] = field(default_factory=dict)
    waiting: dict[str, list[Cell]] = field(default_factory=dict)  # printed figures of what cannot be run yet
    printed: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)


def papers() -> list[Paper]:
    """Return the papers of the lab and of EWE_LAB_PAPERS, in the order of the catalogue. Raises ConfigError."""
    files = sorted(HERE.glob("*.toml"))
    if others := os.environ.get(OTHERS):
        if not os.path.isdir(others):
            raise ConfigError(f"{OTHERS}: {others} is not a directory")
        files += sorted(Path(others).glob("*.toml"))
    found = sorted(map(paper, files), key=lambda each: each.order)
    ids = Counter(each.id for one in found for each in one.experiments)
    if twice := [id for id, count in ids.items() if count > 1]:
        raise ConfigError(f"two papers have an experiment {twice[0]}")
    return found


@cache
def paper(file: Path) -> Paper:
    """Read a file. Raises ConfigError."""
    data = read_file(str(file))
    try:
        return made(data, file.stem)
    except ConfigError as reason:
        raise ConfigError(f"{file}: {reason}") from None


@cache
def printed(id: str) -> Any:
    """Return the table `printed` of an experiment: what the document prints."""
    return {id: table for each in papers() for id, table in each.printed.items()}[id]


@cache
def given(id: str) -> Any:
    """Return the table `given` of an experiment: the keywords of its function."""
    return {id: table for each in papers() for id, table in each.given.items()}[id]


# ---------------------------------------------------------------------------------------------------------
# From the tables of a file to experiments. Everything raises ConfigError


def made(data: dict[str, Any], name: str) -> Paper:
    """Return the paper of a file's tables. name: of the document, if the file does not say it."""
    checked(data, TABLES, "the file")
    document = data.get("document", name)
    found = Paper(document, data.get("heading", document), data.get("order", LAST))
    contenders = {
        key: record(Contender, {"name": key} | table, f"contenders.{key}")
        for key, table in data.get("contenders", {}).items()
    }
    for id, own in data.get("experiment", {}).items():
        kinds = data.get("like", {})
        if (like := own.get("like")) and like not in kinds:
            raise ConfigError(f"{id}: there is no table like.{like}{nearest(like, kinds)}")
        table = with_remarks(kinds.get(like, {}) | own, data.get("remarks", {}), id)
        add(found, id, table, data.get("machine", {}), contenders)
    return found


def add(
    to: Paper, id: str, table: dict[str, Any], machine: dict[str, str], contenders: Mapping[str, Contender]
) -> None:
    """Add an experiment to a paper."""
    apart = {key: table.pop(key) for key in APART if key in table}
    measured = {key: table.pop(key) for key in plain.KEYS if key in table}
    own = apart.get("machine", {})  # false: the document names none for this experiment
    table |= {
        "id": id,
        "document": to.document,
        "machine": {} if own is False else machine | own,
        "charts": tuple(charts(apart, measured, table, id)),
        "by_column": {name: tuple(pair) for name, pair in apart.get("by_column", {}).items()},
    }
    if "run" in apart:
        table["run"] = code(apart["run"], "run", apart.get("given", {}))
    elif measured:
        measurement = plain.measurement(measured, contenders, id)
        if "needs" in table:
            to.waiting[id] = list(measurement.cells())
        else:
            table["run"] = Code(plain.__name__, "run", {"measurement": measurement})
    if ("run" in table) is ("needs" in table):
        raise ConfigError(f"{id}: one of columns, run and needs has to be there")
    to.experiments.append(record(Experiment, table, id))
    if "check" in apart:
        to.checks[id] = code(apart["check"], "check")
    for kept, key in ((to.printed, "printed"), (to.given, "given")):
        if key in apart:
            kept[id] = apart[key]


def charts(
    apart: Mapping[str, Any], measured: Mapping[str, Any], table: Mapping[str, Any], id: str
) -> Iterator[Chart]:
    """Yield the charts of an experiment. One that names {column}, or a group, is drawn for each column."""
    columns = [each.get("name", "") for each in measured.get("columns", ())]
    columns = columns or list(apart.get("given", {}).get("printed", ()))
    for each in apart.get("charts", ()):
        group = each if isinstance(each, list) else [each]
        for column in columns if "{column}" in str(group) else [""]:
            for chart in group:
                words = {"column": column, "reference": table.get("reference", "")}
                yield record(Chart, filled(chart, words), f"{id}: charts")


def filled(value: Any, words: Mapping[str, str]) -> Any:
    """Return a chart with words in place of their names in braces."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [filled(each, words) for each in value]
    return {key: filled(each, words) for key, each in value.items()} if isinstance(value, dict) else value


def code(text: str, function: str, keywords: Mapping[str, Any] | None = None) -> Code:
    """Return the function of `module` or `module:function`. A module without a dot is beside this file."""
    module, _, name = text.partition(":")
    return Code(module if "." in module else f"{__package__}.{module}", name or function, keywords or {})


def with_remarks(value: Any, remarks: Mapping[str, Any], id: str) -> Any:
    """Return a value with the remark `name`, or those of a list by this name, in place of each text `@name`."""
    if isinstance(value, dict):
        return {key: with_remarks(each, remarks, id) for key, each in value.items()}
    if isinstance(value, list):
        found = []
        for each in value:
            named = with_remarks(each, remarks, id)
            found += named if isinstance(named, list) and isinstance(each, str) else [named]
        return found
    if isinstance(value, str) and value.startswith("@"):
        if (name := value[1:]) not in remarks:
            raise ConfigError(f"{id}: there is no remark {name!r}{nearest(name, remarks)}")
        return remarks[name]
    return value
