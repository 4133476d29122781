"""Read the papers: one TOML file describes the experiments of one paper. docs/papers.md explains the format.

    ewe.toml, thesis.toml, ...       the five documents, and ours.toml
    EWE_LAB_PAPERS=DIR               a directory with the files of others

The file says in which of three ways an experiment is run:

    columns = [...]        servers under loads: plain.py measures them, and no Python is written
    run = "e_c2"           by the function run() of e_c2.py, beside this file
    run = "x.y:measure"    by any function; the table `given` holds its keywords

A module that `run` or `check` names is imported when the experiment is run, before anything is measured.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ewe.config.messages import ConfigError, nearest
from ewe.config.tables import read_file
from ewe_lab.bench.experiment import CHART_KINDS, Chart, Experiment, ServerUnderTest
from ewe_lab.bench.results import Cell, is_figure_name
from ewe_lab.experiments import plain
from ewe_lab.experiments.records import check_keys, checked_value, dataclass_of

PAPERS_VARIABLE = "EWE_LAB_PAPERS"  # variable of the environment
PACKAGE_DIRECTORY = Path(__file__).parent
DEFAULT_ORDER = 100  # the `order` of a paper that names none
KNOWN_TABLES = (
    "document",
    "heading",
    "order",
    "machine",
    "remarks",
    "tested",
    "like",
    "experiment",
    "untested",
)
TYPES = {"document": str, "heading": str, "order": int, "untested": list}  # all others are tables
TABLES_OF_TABLES = ("tested", "like", "experiment")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of an experiment: also the name of its files
FORMER_TESTED_TABLE = "contenders"  # the former name of the tables `tested`
# The keys of an experiment that are not passed to Experiment unchanged, and the types of their values
APART: Mapping[str, type] = {
    "like": str,
    "machine": dict,
    "charts": list,
    "by_column": dict,
    "run": str,
    "check": str,
    "given": dict,
    "printed": dict,
}


@dataclass(frozen=True)
class Code:
    """A function of a module, which is imported when the experiment is run or its check is called.

    given: its keywords. context: the key that names the function, with which an error message begins.
    """

    module: str
    function: str
    given: Mapping[str, Any] = field(default_factory=dict)
    context: str = ""

    def find(self) -> Any:
        """Import the module; return the function. Raises ConfigError if there is none.

        A mistake that ends the module's import is raised as it is: its author needs the file and the line.
        """
        named = f"{self.context}: {self.module}:{self.function}"
        if not self.module or self.module.startswith("."):
            raise ConfigError(f"{named}: {self.module!r} is not the whole name of a module")
        try:
            module = import_module(self.module)
        except (ImportError, SyntaxError) as reason:  # the text of a SyntaxError names the file and the line
            raise ConfigError(f"{named}: {reason}") from None
        try:
            return getattr(module, self.function)
        except AttributeError as reason:
            raise ConfigError(f"{named}: {reason}") from None

    def __call__(self, *arguments: Any) -> Any:
        return self.find()(*arguments, **self.given)


@dataclass(frozen=True)
class UntestedClaim:
    """A claim of a document that no experiment tests. state: missing, or in part. reason: why no more is tested."""

    source: str
    claim: str
    state: str
    reason: str


@dataclass(frozen=True)
class Paper:
    """One TOML file. printed, given: the tables of these names of each experiment, by its id."""

    document: str
    heading: str = ""
    order: int = DEFAULT_ORDER
    experiments: list[Experiment] = field(default_factory=list)
    checks: dict[str, Code] = field(default_factory=dict)
    waiting: dict[str, list[Cell]] = field(default_factory=dict)  # printed figures of experiments that wait
    printed: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    untested: tuple[UntestedClaim, ...] = ()


def papers() -> list[Paper]:
    """Return the papers of the lab and of EWE_LAB_PAPERS, in the order of the catalogue. Raises ConfigError."""
    found = sorted(map(paper, paper_files()), key=lambda each: each.order)
    ids = Counter(each.id for one in found for each in one.experiments)
    if twice := [id for id, count in ids.items() if count > 1]:
        raise ConfigError(f"two papers have an experiment {twice[0]}")
    return found


def paper_files() -> list[Path]:
    """Return the files of the lab and of EWE_LAB_PAPERS. Raises ConfigError."""
    files = sorted(PACKAGE_DIRECTORY.glob("*.toml"))
    if others := os.environ.get(PAPERS_VARIABLE):
        if not os.path.isdir(others):
            raise ConfigError(f"{PAPERS_VARIABLE}: {others} is not a directory")
        files += sorted(Path(others).glob("*.toml"))
    return files


def paper_of_experiment(id: str) -> Paper:
    """Return the paper that has an experiment. Raises ConfigError, and KeyError if no paper has it.

    Reading all papers takes 30 ms, so only the files that contain the id are parsed.
    """
    found = [
        each
        for each in (paper(file) for file in paper_files() if may_contain(file, id))
        if any(experiment.id == id for experiment in each.experiments)
    ]
    if len(found) > 1:
        raise ConfigError(f"two papers have an experiment {id}")
    if not found:
        raise KeyError(id)
    return found[0]


def may_contain(file: Path, id: str) -> bool:
    """Whether a file contains an id, in its text. Also True if the file cannot be read: paper() then says why."""
    try:
        return id.encode() in file.read_bytes()
    except OSError:
        return True


@cache
def paper(file: Path) -> Paper:
    """Read a file, once; return its paper. Raises ConfigError, which names the file."""
    data = read_file(str(file))
    try:
        return paper_of(data, file.stem)
    except ConfigError as reason:
        raise ConfigError(f"{file}: {reason}") from None


@cache
def printed(id: str) -> Any:
    """Return the table `printed` of an experiment: the figures of the document. Raises ConfigError, KeyError."""
    return paper_of_experiment(id).printed[id]


@cache
def given(id: str) -> Any:
    """Return the table `given` of an experiment: the keywords of its function. Raises ConfigError, KeyError."""
    return paper_of_experiment(id).given[id]


# ---------------------------------------------------------------------------------------------------------
# From the tables of a file to experiments. All functions raise ConfigError


def with_tested_tables(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a file's tables, with the name `tested` in place of its synonym FORMER_TESTED_TABLE.

    Print a warning if the file has the synonym. name: of the file, for the warning.
    """
    if FORMER_TESTED_TABLE not in data:
        return data
    print(
        f"{data.get('document', name)}: [{FORMER_TESTED_TABLE}.NAME] is now called [tested.NAME]",
        file=sys.stderr,
    )
    former, present = data[FORMER_TESTED_TABLE], data.get("tested", {})
    check_types({FORMER_TESTED_TABLE: former, "tested": present})
    others = {key: table for key, table in data.items() if key != FORMER_TESTED_TABLE}
    return others | {"tested": former | present}


def paper_of(data: dict[str, Any], name: str) -> Paper:
    """Return the paper of a file's tables. name: of the document, if the file names none."""
    data = with_tested_tables(data, name)
    check_keys(data, KNOWN_TABLES, "the file")
    check_types(data)
    document = data.get("document", name)
    untested = tuple(dataclass_of(UntestedClaim, each, "untested") for each in data.get("untested", ()))
    heading, order = data.get("heading", document), data.get("order", DEFAULT_ORDER)
    found = Paper(document, heading, order, untested=untested)
    tested_servers = {
        key: dataclass_of(ServerUnderTest, {"name": key} | table, f"tested.{key}")
        for key, table in data.get("tested", {}).items()
    }
    for id, own in data.get("experiment", {}).items():
        kinds = data.get("like", {})
        like = checked_value(str, own.get("like", ""), f"{id}: like")
        if like and like not in kinds:
            raise ConfigError(f"{id}: there is no table like.{like}{nearest(like, kinds)}")
        table = with_remarks(kinds.get(like, {}) | own, data.get("remarks", {}), id)
        add_experiment(found, id, table, data.get("machine", {}), tested_servers)
    return found


def check_types(data: dict[str, Any]) -> None:
    """Check that each value of a file has its type. Raises ConfigError."""
    for key, value in data.items():
        checked_value(TYPES.get(key, dict), value, key)
        for name, table in value.items() if key in TABLES_OF_TABLES else ():
            checked_value(dict, table, f"{key}.{name}")
    check_machine(data.get("machine", {}), "machine")


def check_machine(machine: Mapping[str, Any], context: str) -> None:
    """Check that a machine has only texts. Raises ConfigError."""
    for name, text in machine.items():
        checked_value(str, text, f"{context}: {name}")


def add_experiment(
    to: Paper,
    id: str,
    table: dict[str, Any],
    machine: dict[str, str],
    tested_servers: Mapping[str, ServerUnderTest],
) -> None:
    """Add an experiment to a paper.

    table: of the experiment; keys are moved out of it until only the fields of an Experiment are left. machine:
    that of the document. tested_servers: those that only this paper has.
    """
    if not ID.fullmatch(id):
        raise ConfigError(f"experiment.{id}: write an id with letters, digits, `-`, `_` and `.` only")
    if table.get("machine") is False:  # the document names none for this experiment
        del table["machine"]
        machine = {}
    apart = moved_keys(table, APART, id)
    measured = moved_keys(table, plain.KNOWN_KEYS, id)
    check_machine(apart.get("machine", {}), f"{id}: machine")
    for column in measured.get("columns", ()):
        checked_value(dict, column, f"{id}: columns")
        checked_value(str, column.get("name", ""), f"{id}: columns: name")
    table |= {
        "id": id,
        "document": to.document,
        "machine": machine | apart.get("machine", {}),
        "charts": tuple(charts(apart, measured, table, id)),
        "by_column": {
            name: pair_of_servers(pair, f"{id}: by_column.{name}")
            for name, pair in apart.get("by_column", {}).items()
        },
    }
    if "run" in apart:
        table["run"] = code_of(apart["run"], "run", id, apart.get("given", {}))
    elif measured:
        measurement = plain.measurement(measured, tested_servers, id)
        check_names(table, measurement, id)
        if "needs" in table:  # it cannot run yet: only its printed figures are shown
            to.waiting[id] = list(measurement.cells())
        else:
            table["run"] = Code(plain.__name__, "run", {"measurement": measurement})
    if ("run" in table) is ("needs" in table):  # both, or neither
        raise ConfigError(f"{id}: one of columns, run and needs has to be there")
    to.experiments.append(dataclass_of(Experiment, table, id))
    if "check" in apart:
        to.checks[id] = code_of(apart["check"], "check", id)
    for kept, key in ((to.printed, "printed"), (to.given, "given")):
        if key in apart:
            kept[id] = apart[key]


def check_names(table: Mapping[str, Any], measurement: plain.Measurement, id: str) -> None:
    """Check that references and charts name what the columns measure. Raises ConfigError.

    A wrong reference would make each verdict "not testable", and a chart of an unknown column would be empty.
    table: the fields of the experiment.
    """
    cells = list(measurement.cells())
    columns = {cell.column for cell in cells}
    servers = {cell.server for cell in cells}
    printed_servers = {cell.paper_server for cell in cells if cell.paper_server}
    references = {"reference": table.get("reference", "")}
    printed_references = {"paper_reference": table.get("paper_reference", "")}
    for column, (ours, theirs) in table["by_column"].items():
        check_known(column, columns, f"{id}: by_column", "column")
        references[f"by_column.{column}"] = ours
        printed_references[f"by_column.{column}"] = theirs
    for named, known in ((references, servers), (printed_references, printed_servers)):
        for key, name in named.items():
            check_known(name, {*known, ""}, f"{id}: {key}", "measured or printed server")
    for chart in table["charts"]:
        for column in chart.columns:
            check_known(column, columns, f"{id}: charts: columns", "column")


def check_known(name: Any, known: Iterable[str], context: str, kind: str) -> None:
    """Check that a name is one of those that are known. kind: what it names. Raises ConfigError."""
    known = list(known)
    if checked_value(str, name, context) not in known:
        raise ConfigError(f"{context}: there is no {kind} {name!r}{nearest(name, known)}")


def moved_keys(table: dict[str, Any], types: Mapping[str, type], id: str) -> dict[str, Any]:
    """Move the keys of `types` out of the table of an experiment; return them. Their values have these types."""
    return {
        key: checked_value(kind, table.pop(key), f"{id}: {key}")
        for key, kind in types.items()
        if key in table
    }


def pair_of_servers(value: Any, context: str) -> tuple[str, str]:
    """Return the two references of a column: our server, and the document's."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{context}: {value!r} is not a list of two servers")
    return value[0], value[1]


def charts(
    apart: Mapping[str, Any], measured: Mapping[str, Any], table: Mapping[str, Any], id: str
) -> Iterator[Chart]:
    """Yield the charts of an experiment. A chart or a group of charts with {column} is drawn for each column."""
    columns = [each.get("name", "") for each in measured.get("columns", ())]
    # Without `columns`, the printed figures that the experiment's function is given are a table with a key for each
    printed_figures = apart.get("given", {}).get("printed")
    columns = columns or (list(printed_figures) if isinstance(printed_figures, dict) else [])
    for each in apart.get("charts", ()):
        group = each if isinstance(each, list) else [each]
        if not group:
            raise ConfigError(f"{id}: charts: a group has no chart")
        # str(): the name may be in any key of any chart of the group
        for column in columns if "{column}" in str(group) else [""]:
            for chart in group:
                words = {"column": column, "reference": str(table.get("reference", ""))}
                found = dataclass_of(Chart, with_words(chart, words), f"{id}: charts")
                check_known(found.kind, CHART_KINDS, f"{id}: charts: kind", "kind of chart")
                # The value of a timeline is a server
                if found.value and found.kind != "timeline" and not is_figure_name(found.value):
                    raise ConfigError(f"{id}: charts: value: there is no figure {found.value!r}")
                yield found


def with_words(value: Any, words: Mapping[str, str]) -> Any:
    """Return a chart, or a part of one, with each name in braces replaced by its word. Unknown names stay."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [with_words(each, words) for each in value]
    return {key: with_words(each, words) for key, each in value.items()} if isinstance(value, dict) else value


def code_of(text: str, key: str, id: str, keywords: Mapping[str, Any] | None = None) -> Code:
    """Return the function of `module` or `module:function`. A module without a dot is beside this file.

    key: of the experiment that has the text; it is also the function's name, if the text has none.
    """
    module, _, name = text.partition(":")
    path = module if "." in module else f"{__package__}.{module}"
    return Code(path, name or key, keywords or {}, context=f"{id}: {key}")


def check_code(chosen: Iterable[Experiment], checks: Mapping[str, Any]) -> None:
    """Check the functions of experiments, and of their checks, before hours are measured. Raises ConfigError.

    Each is imported, and has to take one argument, the bench or the table, and the keywords of `given`.
    """
    for each in chosen:
        for code in (each.run, checks.get(each.id)):
            if not isinstance(code, Code):
                continue
            function = code.find()
            try:
                inspect.signature(function).bind(None, **code.given)
            except (TypeError, ValueError) as reason:
                raise ConfigError(f"{code.context}: {code.function}: {reason}") from None


def with_remarks(value: Any, remarks: Mapping[str, Any], id: str) -> Any:
    """Return a value with each text `@name` replaced by the remark `name`, or by a list of remarks."""
    if isinstance(value, dict):
        return {key: with_remarks(each, remarks, id) for key, each in value.items()}
    if isinstance(value, list):
        found = []
        for each in value:
            named = with_remarks(each, remarks, id)
            # A name in a list may stand for several remarks: they become elements of this list
            found += named if isinstance(named, list) and isinstance(each, str) else [named]
        return found
    if isinstance(value, str) and value.startswith("@"):
        if (name := value[1:]) not in remarks:
            raise ConfigError(f"{id}: there is no remark {name!r}{nearest(name, remarks)}")
        return remarks[name]
    return value
