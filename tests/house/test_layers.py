"""A room imports only rooms below it.

The house has floors: the grammar, the settings and the logs lie on the ground, then come the streams, the
features, the site, the conversation, the processors, the server and the command. That is what lets each
file be read alone, so it is checked here on the source, without running it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Every room and its floor. A package stands for all the modules in it.
FLOORS = {
    "ewe": 0,
    "ewe.http": 0,
    "ewe.fastcgi": 0,
    "ewe.xswitch": 8.5,
    "ewe.kinds": -0.3,
    "ewe.config": 0,
    "ewe.dates": 0,
    "ewe.descriptors": 0,
    "ewe.chunked": 0.3,
    "ewe.logger": 0.3,
    "ewe.programs": 0.6,
    "ewe.streams": 1,
    "ewe.poolstream": 1.3,
    "ewe.eventstream": 1.3,
    "ewe.listener": 1.5,
    "ewe.systemd": 1.5,
    "ewe.orphans": 0,
    "ewe.tls": 1.5,
    "ewe.upstream": 1.5,
    "ewe.features": 2,
    "ewe.site": 3,
    "ewe.body": 3.5,
    "ewe.conversation": 4,
    "ewe.processors": 5,
    "ewe.identity": 1.6,
    "ewe.companion": 5.5,
    "ewe.blueprint": 5.6,
    "ewe.worker": 6,
    "ewe.supervisor": 6.3,
    "ewe.server": 6.6,
    "ewe.cli": 7,
    "ewe.__main__": 8,
    "ewe.lab": 9,
}

# Which modules of its own package a room shares; where nothing is said, all of them.
# Prefork is the serial model in many processes, X-Switch the event model with something behind it.
SHARED = {
    "ewe.processors": {f"ewe.processors{name}" for name in ("", ".base", ".serial", ".event")},
}

# What a room may not know, though it lies below.
UNKNOWN_TO = {"ewe.processors": {"ewe.http", "ewe.features"}}

SOCKETS = {"_socket", "asyncio", "select", "selectors", "socket", "socketserver", "uvloop"}
THREADS = {"_thread", "concurrent", "multiprocessing", "threading"}
# The logger polls its own descriptors, so that no reader of a log can hold the server.
ROOMS_WITH_SOCKETS = {
    "ewe.logger",
    "ewe.streams",
    "ewe.poolstream",
    "ewe.eventstream",
    "ewe.listener",
    "ewe.companion",
    "ewe.upstream",
    "ewe.systemd",
    "ewe.processors",
    "ewe.worker",
    "ewe.supervisor",
    "ewe.server",
    "ewe.xswitch",
    "ewe.lab",
}


@dataclass(frozen=True)
class Import:
    line: int
    module: str
    for_types: bool  # below `if TYPE_CHECKING:`, so it is not there when the program runs


class Imports(ast.NodeVisitor):
    """Collects what a module imports, wherever in it the import stands.

    `from a import b` imports the module a.b if there is one, else something that is in a.
    """

    def __init__(self, package: str, modules: set[str]) -> None:
        self.package = package
        self.modules = modules
        self.for_types = False
        self.found: list[Import] = []

    def add(self, node: ast.stmt | ast.expr, module: str) -> None:
        found = Import(node.lineno, module, self.for_types)
        if found not in self.found:  # from ewe.http import this, that
            self.found.append(found)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            parts = self.package.split(".")
            above = parts[: len(parts) - node.level + 1]
            origin = ".".join([*above, origin]) if origin else ".".join(above)
        for alias in node.names:
            whole = f"{origin}.{alias.name}"
            self.add(node, whole if whole in self.modules else origin)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value[:1] != ".":
                self.add(node, name.value)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        outside = self.for_types
        self.for_types = outside or ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body:
            self.visit(statement)
        self.for_types = outside
        for statement in node.orelse:
            self.visit(statement)


def room_of(module: str) -> str | None:
    """The room a module is in: itself, or the package it belongs to; None if it has no floor yet."""
    if module in FLOORS:
        return module
    room = ".".join(module.split(".")[:2])
    return room if room in FLOORS else None


def offences(module: str, source: str, modules: set[str], *, is_package: bool = False) -> Iterator[str]:
    """What a module's imports do that the house does not allow, each beginning with its line."""
    room = room_of(module)
    if room is None:
        yield f"1: {module} is in no room: give it a floor in {Path(__file__).name}"
        return
    imports = Imports(module if is_package else module.rpartition(".")[0], modules | FLOORS.keys())
    imports.visit(ast.parse(source))
    for found in imports.found:
        reason = objection(room, found)
        if reason:
            yield f"{found.line}: {module} imports {found.module}: {reason}"


def objection(room: str, found: Import) -> str | None:
    """Why this room may not import that, if it may not."""
    top = found.module.partition(".")[0]
    if top != "ewe":
        if top in SOCKETS and room not in ROOMS_WITH_SOCKETS:
            return "only streams, processors and the server touch sockets and loops"
        if top in THREADS and room == "ewe.features":
            return "a feature does not know which model runs it"
        return None
    target = room_of(found.module)
    if target is None:
        return "that is in no room: give it a floor"
    if target in UNKNOWN_TO.get(room, ()):
        return f"{room} does not know {target}"
    if target == "ewe":
        return None
    if target == room:
        if found.module in SHARED.get(room, {found.module}):
            return None
        return f"of its own package it shares only {', '.join(sorted(SHARED[room]))}"
    if target == "ewe.lab":
        return "nothing leans on the lab"
    if FLOORS[target] >= FLOORS[room] and not found.for_types:
        return f"floor {FLOORS[target]} is not below floor {FLOORS[room]}"
    return None


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(ROOT.glob("ewe/**/*.py"))}


@pytest.mark.parametrize("module", SOURCES)
def test_a_room_imports_only_rooms_below_it(module: str) -> None:
    path = SOURCES[module]
    is_package = path.name == "__init__.py"
    found = list(offences(module, path.read_text(encoding="utf-8"), set(SOURCES), is_package=is_package))
    assert not found, "".join(f"\n{path.relative_to(ROOT)}:{offence}" for offence in found)


MADE_UP_MODULES = {
    "ewe.features.static",
    "ewe.features.ranges",
    "ewe.processors.base",
    "ewe.processors.fork",
    "ewe.processors.pool",
    "ewe.lab.speed",
}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        # up, and across
        ("ewe.http", "import ewe.config"),
        ("ewe.http", "from ewe import logger"),
        ("ewe.streams", "from ewe.site import Site"),
        ("ewe.site", "from . import conversation"),
        ("ewe.site", "from .conversation import converse"),
        ("ewe.features.static", "from ..site import Site"),
        ("ewe.features.static", "def respond():\n    from ewe.site import Site"),
        ("ewe.features.static", "import importlib\nimportlib.import_module('ewe.site')"),
        ("ewe.features.static", "if TYPE_CHECKING:\n    pass\nelse:\n    from ewe.site import Site"),
        ("ewe.features.static", "if not TYPE_CHECKING:\n    from ewe.site import Site"),
        ("ewe.cli", "import ewe.__main__"),
        ("ewe", "from ewe.cli import main"),
        # the lab leans on everything, nothing on the lab
        ("ewe.cli", "import ewe.lab.speed"),
        ("ewe.cli", "from ewe.lab.speed import main"),
        ("ewe.cli", "if TYPE_CHECKING:\n    from ewe.lab import speed"),
        # what a feature does not know
        ("ewe.features.static", "import asyncio"),
        ("ewe.features.static", "import threading"),
        ("ewe.features.static", "from socket import AF_UNIX"),
        ("ewe.features.static", "import concurrent.futures"),
        ("ewe.features.static", "from ewe.processors import base"),
        ("ewe.features.static", "if typing.TYPE_CHECKING:\n    import asyncio"),
        # who touches sockets and loops
        ("ewe.http", "import socket"),
        ("ewe.config", "import asyncio.subprocess"),
        ("ewe.conversation", "try:\n    import select\nexcept ImportError:\n    pass"),
        ("ewe.cli", "import uvloop"),
        # what a processor does not know
        ("ewe.processors.fork", "from ewe.http import Request"),
        ("ewe.processors.fork", "from ewe import http"),
        ("ewe.processors.fork", "import ewe.features.static"),
        ("ewe.processors.fork", "if TYPE_CHECKING:\n    from ewe.http import Request"),
        ("ewe.processors.fork", "from .pool import Pool"),
        ("ewe.processors.fork", "from . import pool"),
        # a room without a floor
        ("ewe.attic", "import sys"),
        ("ewe.site", "import ewe.attic"),
        ("ewe.site", "from ewe.attic.box import hat"),
    ],
)
def test_the_check_finds_what_is_wrong(module: str, source: str) -> None:
    (offence,) = offences(module, source, MADE_UP_MODULES, is_package=module == "ewe")
    assert f": {module} " in offence


def test_the_check_names_the_line() -> None:
    source = "import os\n\ndef late():\n    from ewe.site import Site\n\nimport socket\n"
    lines = [offence.partition(":")[0] for offence in offences("ewe.features.ranges", source, set())]
    assert lines == ["4", "6"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ewe.http", "import re\nfrom ewe import __version__"),
        ("ewe.http", "import typing\nif typing.TYPE_CHECKING:\n    from ewe.config import Limits"),
        ("ewe.streams", "import asyncio, socket\nfrom . import http"),
        ("ewe.features.static", "from ewe.features import ranges\nfrom .ranges import cut"),
        ("ewe.features.static", "from ewe.streams import Stream\nfrom ..http import Request"),
        ("ewe.site", "from ewe.features import static\nfrom ewe.config import Settings"),
        ("ewe.processors.fork", "import asyncio, threading, selectors\nfrom .base import Processor"),
        ("ewe.processors.fork", "from ewe.processors import base\nfrom ewe.conversation import converse"),
        ("ewe.server", "import socket\nfrom ewe.processors import fork\nfrom ewe import conversation"),
        ("ewe.cli", "from ewe.server import serve\nfrom ewe import config, logger"),
        ("ewe.__main__", "from ewe.cli import main"),
        ("ewe.lab.speed", "import socket, asyncio\nimport ewe.__main__, ewe.http, ewe.lab.other"),
    ],
)
def test_the_check_allows_what_is_right(module: str, source: str) -> None:
    assert not list(offences(module, source, MADE_UP_MODULES))
