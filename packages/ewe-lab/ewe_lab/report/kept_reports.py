"""The reports behind the page of claims: one small file for each experiment, under version control.

    reports/L-T1.json      `ewe-lab report FILE` and `ewe-lab claims FILE` read it

A report of a run is up to some megabytes: it has each second and each bucket of a histogram. This file has the
figures from which a verdict is made, with three digits, and the facts: the machine, the date, the version of the
code, and the share of the cores that other programs had. A chart of a timeline needs the whole report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ewe_lab.bench.results import Cell, ExperimentTable, Results, write_and_rename

DIGITS = 3  # of a figure: repeats differ by more
# No verdict needs the seconds of a run, its histogram, its first answers, and these counts of resources
LEFT_OUT = ("timeline", "buckets", "running", "voluntary", "involuntary", "wait_s", "descriptors")
PHASES = re.compile("/s for .* then ")  # in the description of a load whose rate changes


def report_file(directory: Path, id: str) -> Path:
    """Return the file of an experiment."""
    return directory / f"{id}.json"


def lacks_phases(table: ExperimentTable) -> bool:
    """Whether a report lacks the phases of a changing load, as those of earlier versions do.

    Its verdict needs them.
    """
    phased = [cell for cell in table.cells if PHASES.search(cell.load)]
    return bool(phased) and not any(sample.phases for cell in phased for sample in cell.samples)


def write(results: Results, table: ExperimentTable, directory: Path, code: str) -> Path:
    """Write the report of one experiment; return its path. Raises OSError. code: as text_of() has it."""
    return write_text(text_of(results, table, code), report_file(directory, table.id))


def write_text(text: str, path: Path) -> Path:
    """Write the text of a report, and the directory of its file if there is none. Return `path`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_and_rename(path, text)
    return path


def text_of(results: Results, table: ExperimentTable, code: str) -> str:
    """Return the report of one experiment as text. code: the version of the code that was measured."""
    machine = {**results.machine, "code": code}
    kept_table = replace(table, cells=without_repeated_samples(table.cells))
    alone = Results(
        started=results.started,
        command=table.command or results.command,
        machine=machine,
        tables=[kept_table],
    )
    return report_text(small(alone))


def without_repeated_samples(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without the samples, the command and the load that an earlier cell of the server has, too.

    One measurement may give several figures, such as its rate and its errors. Each is a cell, and all of them have
    the same samples. The file has these once, in the first cell, and results.load() gives them to the others again.
    """
    indexes: dict[tuple[str, ...], int] = {}  # of the first cell, by its server and what the others repeat
    kept_cells = []
    for index, cell in enumerate(cells):
        samples = json.dumps(small(cell.samples))
        first = indexes.setdefault((cell.server, cell.command, cell.load, samples), index)
        if cell.samples and first != index:
            cell = replace(cell, samples=[], command="", load="", samples_of=first)
        kept_cells.append(cell)
    return kept_cells


def small(value: Any) -> Any:
    """Return a value for JSON, without fields that have their default, and without those that only charts need.

    Floats get DIGITS significant digits.
    """
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each, getattr(value, each.name)) for each in fields(value) if each.name not in LEFT_OUT)
        return {
            each.name: small(part)
            for each, part in pairs
            # load() needs the format
            if each.name == "format" or part != default_of(each)
        }
    if isinstance(value, dict):
        return {name: small(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [small(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def default_of(field: Field[Any]) -> Any:
    """Return the value of a field that a report leaves out; MISSING for a field that no report may leave out."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def report_text(results: dict[str, Any]) -> str:
    """Return the JSON text of a report. Each cell is one line, so that a change of a cell is a change of one line.

    results: the report of one experiment, from small(): its tables are a list of one table.
    """
    [table] = results["tables"]
    table_without_cells = {name: value for name, value in table.items() if name != "cells"}
    text = json.dumps({**results, "tables": [table_without_cells]}, ensure_ascii=False, indent=1)
    cells = (json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in table.get("cells", ()))
    lines = ",\n".join(f"  {cell}" for cell in cells)
    # json.dumps() writes each value on a line, or all on one. The cells are therefore put into its text, as the
    # last value of the table. With indent=1 a brace stands behind as many spaces as its depth: only that of the
    # table has two.
    end_of_table = text.rindex("\n  }")
    return f'{text[:end_of_table]},\n   "cells": [\n{lines}\n   ]{text[end_of_table:]}\n'
