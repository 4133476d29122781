"""What a worker may come to import, it has imported before root is given up.

ewe imports some modules only when they are first needed. A process that has become another user may no longer be
allowed to read the directories of ewe and of Python. A server that changes its user therefore imports these modules
before. The declaration of a feature lists those that the feature imports (Feature.late), LATE_MODULES of
ewe.server.run the others. This test finds them in the source.
"""

from __future__ import annotations

import ast
import encodings
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import statements

from ewe.config.settings import Config
from ewe.server import run
from ewe.server.run import OPTIONAL_MODULES, late_modules

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "body",
    "config",
    "conversation",
    "features",
    "gateway",
    "http",
    "log_files",
    "logger",
    "processors",
    "server",
    "site",
    "sites",
    "streams",
)
# Imported by every server before it becomes another user, although a function does it.
EARLIER = {
    "importlib": "loads the model",
    "importlib.metadata": "finds the models and features of other packages",
    "ewe.features.sql_pages": "the site is made before",
    "ewe.conversations": "the server has made the conversations before",
    "ewe.config.settings": "the command has read the settings",
    "ewe.registry": "finds the model",
    "errno": "is part of the interpreter",
    "markdown": "the site is made before, and pages of Markdown files are its",
    "passlib.exc": "an htpasswd file is first read with the settings",
    "passlib.hash": "an htpasswd file is first read with the settings",
    "ewe.database": "the program manager loads the daemon before",
    "ewe.database.drivers": "only --check-config opens databases",
    "ewe.database.protocol": "only --check-config opens databases",
    "ewe.gateway": "is loaded with the supervisor",
    "ewe.server.program_manager": "starts before",
    "ewe.features.databases.daemon_program": "the program manager starts before",
    "ewe.features.fastcgi_programs": "the program manager starts before",
    "ewe.gateway.kept_programs": "the program manager starts before",
    "ewe.server.xswitch_process": "starts before, and stays root",
    "socket": "the listening sockets are open",
    "fcntl": "the pid file is locked before",
}


INDENTED_IMPORT = re.compile(r"^\s+(?:import|from) ", re.MULTILINE)


def late_imports(source: str) -> set[str]:
    """Return the modules that a source imports inside functions."""
    found: set[str] = set()
    for function in statements(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in statements(function):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    return found


def test_all_late_imports_are_known() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.glob("ewe/**/*.py")):
        if path.relative_to(ROOT / "ewe").parts[0].removesuffix(".py") in ROOMS:
            source = path.read_text(encoding="utf-8")
            for module in late_imports(source) if INDENTED_IMPORT.search(source) else ():
                found.setdefault(module, set()).add(str(path.relative_to(ROOT)))
    unknown = found.keys() - {*late_modules(), *OPTIONAL_MODULES} - EARLIER.keys()
    assert not unknown, {module: found[module] for module in unknown}


def test_the_shim_of_libcgi_is_loaded_with_the_late_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a file, which no import loads."""
    loaded: list[str] = []
    monkeypatch.setattr("ewe.libcgi.build.preload", lambda: loaded.append("shim"))
    monkeypatch.setattr("ewe.server.sources.foreign_directories", lambda: loaded.append("directories"))
    monkeypatch.setattr(run, "late_modules", lambda: ())
    monkeypatch.setattr(run, "OPTIONAL_MODULES", ())
    run.load_late_modules(Config())
    assert loaded == ["shim", "directories"]


ALWAYS_LOADED = {"utf_8"}  # Python needs it for the names of files


def codecs_in(source: str) -> Iterator[str]:
    """Yield the modules of the codecs that a source names: x.encode("ascii"), open(path, encoding="ascii")."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        named = [word.value for word in call.keywords if word.arg == "encoding"]
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("encode", "decode"):
            named += call.args[:1]
        for each in named:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                name = encodings.normalize_encoding(each.value.lower())
                yield encodings.aliases.aliases.get(name, name)


def test_all_codecs_are_known() -> None:
    """Python imports a codec when a file is first opened with it, also in the middle of an error."""
    known = ALWAYS_LOADED | {
        each.removeprefix("encodings.") for each in late_modules() if each.startswith("encodings.")
    }
    for path in sorted(ROOT.glob("ewe/**/*.py")):
        if path.relative_to(ROOT / "ewe").parts[0].removesuffix(".py") in (*ROOMS, "database"):
            source = path.read_text(encoding="utf-8")
            for codec in codecs_in(source) if re.search("encod|decod", source) else ():
                assert codec in known, (
                    f"{path}: the codec {codec} is imported late: name it in ewe.server.run.LATE_MODULES"
                )
