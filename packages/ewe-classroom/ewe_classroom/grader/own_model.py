"""Is a submission in Python the student's own work? It may not be one of ewe's models, renamed or wrapped.

    class Mine(Pool): pass            a subclass, or a subclass of a subclass
    Mine = Pool                       another name
    self.inner = Pool(...)            a delegate

Each of them has to import a model of ewe. A submission may therefore import one name from ewe's models: Processor,
the base class without a model. The same holds for the modules beside the submission that it imports.

This reads the source and runs nothing. A program that computes the name of a module can deceive it. Where the
system allows this (sandbox.py), the server of a lab therefore gets an empty directory in place of ewe, and a model
gets ewe without the files of its models (hidden_parts). A server in C or Go could start ewe, too.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ewe
from ewe_classroom.grader.subject import BadSubject, parse_python

BASE, ALLOWED = "ewe.processors.base", "Processor"
MODELS = "ewe.processors"
# The modules below ewe/processors that a server needs under any model. The others are models, or parts of one.
NEEDED_MODULES = (
    "__init__",
    "accounting",
    "base",
    "former",
    "growth",
    "names",
    "properties",
    "seats",
)
# Modules that start ewe, or load a model by its name.
STARTERS = ("ewe.cli", "ewe.__main__", "ewe.registry", "ewe_classroom", "ewe_explore")


def expect_own_work(path: Path) -> None:
    """Raise BadSubject if a submission, or a module beside it that it imports, takes a model from ewe."""
    pending, seen = [path], {path}  # files to be read; a set, because two files may import each other
    while pending:
        file = pending.pop()
        tree = parse_python(file)
        for line, module, name in imports(tree):
            if is_foreign(module, name):
                raise BadSubject(
                    f"{file.name}, line {line}: this takes {name or module} from ewe; a model of a lab derives "
                    f"from Processor alone (from {BASE} import {ALLOWED}), and any other server does without ewe"
                )
        new = imported_files(tree, path.parent) - seen
        seen |= new
        pending += sorted(new)


def hidden_parts(language: str) -> tuple[str, ...]:
    """Return the paths of ewe that a submission in this language may not read.

    A server in Python, C or Go needs no part of ewe, and could start ewe as its own work; an engine in Python could
    start the one of ewe/xswitch/engines. A model of ewe needs ewe, but none of its models.
    """
    home = Path(ewe.__file__).resolve().parent
    if language in ("python", "c", "go"):
        return (str(home),)
    return hidden_models(home / "processors") if language == "model" else ()


def hidden_models(directory: Path) -> tuple[str, ...]:
    """Return the files of ewe's models, with the directory of their compiled files, if there is one."""
    models = [each for each in directory.glob("*.py") if each.stem not in NEEDED_MODULES]
    return tuple(str(each) for each in [*sorted(models), directory / "__pycache__"] if each.exists())


class ImportedName(NamedTuple):
    """One import. module: "" for `from . import name`. name: "" for the module itself, as by `import module`."""

    line: int
    module: str
    name: str


def imports(tree: ast.Module) -> Iterator[ImportedName]:
    """Yield each import. A text that is the name of a module of ewe counts, because importlib may import it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (ImportedName(node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (ImportedName(node.lineno, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and is_name_in_ewe(node.value):
            yield ImportedName(node.lineno, str(node.value), "")


def is_name_in_ewe(value: object) -> bool:
    """Return whether a constant is the name of a model or a starter. A text with a blank is none."""
    return isinstance(value, str) and " " not in value and value.startswith((f"{MODELS}.", *STARTERS))


def imported_files(tree: ast.Module, directory: Path) -> set[Path]:
    """Return the files of a directory that a module imports, also by `from . import name`."""
    # Of `a.b`, which may be a package, the first name; of `from . import b`, which names no module, b.
    stems = {(each.module or each.name).partition(".")[0] for each in imports(tree)}
    files = {directory / f"{stem}.py" for stem in stems}
    # os.path.isfile() is false for a name that is too long, where Path.is_file() raises an error.
    return {file for file in files if os.path.isfile(file)}


def is_foreign(module: str, name: str) -> bool:
    """Return whether an import gives a model of ewe, or starts ewe. The base class (ALLOWED) is no model."""
    if (module, name) == (BASE, ALLOWED):
        return False
    full_name = f"{module}.{name}" if name else module
    return any(full_name == each or full_name.startswith(f"{each}.") for each in (MODELS, *STARTERS))
