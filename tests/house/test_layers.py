"""A room imports only rooms below it, no room what it must never know, and no two files each other.

The same holds for the houses below packages/: they import ewe, and the server imports none of them.

The house has floors (tests/support/rooms.py): the grammar, the settings and the logs lie on the ground, then come
the streams, the gateway, the features, the site, the conversation, the processors, the server and the command. So
each file can be read with only the files below it in mind. The source is checked without running it. Imports for
type checkers alone count like all others: a reader has to follow them, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.rooms import FLOORS, HOUSES, PAGE, ROOT, SOURCES, page, room_of

# Which modules of its own package a room shares; where nothing is said, all of them.
# Prefork is the serial model in many processes, X-Switch the event model with something behind it. The pool parks
# conversations in a file of its own, and counts its threads in another. Prefork and the pool grow in the same way.
# The scheduled pool is a pool with another queue.
SHARED = {
    "ewe.processors": {
        f"ewe.processors{name}"
        for name in (
            *("", ".accounting", ".base", ".event", ".former", ".growth", ".names", ".pool_parking"),
            *(".pool_threads", ".properties", ".seats", ".serial"),
            *(".pool", ".request_queue", ".scheduled_pool"),
        )
    },
}

# Imports that are forbidden to a package although the other package is in a lower layer.
NEVER = {
    "ewe.http": {"ewe.config", "ewe.registry", "ewe.logger"},  # the grammar is read, tested and fuzzed alone
    "ewe.config": {"ewe.http", "ewe.registry"},
    "ewe.streams": {"ewe.gateway", "ewe.features"},  # a stream carries bytes, whatever they mean
    "ewe.gateway": {"ewe.features"},  # any feature may use what stands behind it
    "ewe.features": {"ewe.processors", "ewe.server"},  # a feature does not know which model runs it
    # A model does not know HTTP: it is given conversations (test_a_model_is_given_its_conversations)
    "ewe.processors": {"ewe.http", "ewe.features", "ewe.conversation", "ewe.site", "ewe.sites"},
}


SOCKETS = {"_socket", "asyncio", "select", "selectors", "socket", "socketserver", "uvloop"}
THREADS = {"_thread", "concurrent", "multiprocessing", "threading"}
WITH_LOCKS = {"ewe.features.libcgi.libraries"}  # it keeps the threads apart that call one library
# The logs are polled before they are written, so that none of their readers can hold the server.
ROOMS_WITH_SOCKETS = {
    "ewe.closed_loop",
    "ewe.log_files",
    "ewe.logger",
    "ewe.streams",
    "ewe.gateway",
    "ewe.database",
    "ewe.processors",
    "ewe.server",
    "ewe.xswitch",
    *HOUSES,
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

    def __init__(self, package: str, modules: set[str], calls: bool) -> None:
        self.package = package
        self.modules = modules
        self.calls = calls  # a function may import, too: look into expressions
        self.for_types = False
        self.found: list[Import] = []

    def add(self, node: ast.stmt | ast.expr, module: str) -> None:
        found = Import(node.lineno, module, self.for_types)
        if found not in self.found:  # from ewe.http import this, that
            self.found.append(found)

    def generic_visit(self, node: ast.AST) -> None:
        if self.calls or not isinstance(node, ast.expr):  # nine tenths of all nodes
            super().generic_visit(node)

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


def imports_in(source: str, package: str, modules: set[str]) -> tuple[Import, ...]:
    """Return what a source file imports. package: of its module. modules: all that there are."""
    imports = Imports(package, modules | FLOORS.keys(), "import_module" in source or "__import__" in source)
    imports.visit(ast.parse(source))
    return tuple(imports.found)


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Return what a module imports. Several tests ask, and to parse a file takes milliseconds."""
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return imports_in(path.read_text(encoding="utf-8"), package, set(SOURCES))


def offences(module: str, imports: Iterable[Import]) -> Iterator[str]:
    """What a module's imports do that the house does not allow, each beginning with its line."""
    room = room_of(module)
    if room is None:
        yield f"1: {module} is in no room: give it a floor in {Path(__file__).name}"
        return
    for found in imports:
        reason = objection(module, room, found)
        if reason:
            yield f"{found.line}: {module} imports {found.module}: {reason}"


def objection(module: str, room: str, found: Import) -> str | None:
    """Why this room may not import that, if it may not."""
    top = found.module.partition(".")[0]
    if top not in ("ewe", *HOUSES):
        if top in SOCKETS and room not in ROOMS_WITH_SOCKETS:
            return "only streams, processors and the server touch sockets and loops"
        if top in THREADS and room == "ewe.features" and module not in WITH_LOCKS:
            return "a feature does not know which model runs it"
        return None
    target = room_of(found.module)
    if target is None:
        return "that is in no room: give it a floor"
    if target in NEVER.get(room, ()):
        return f"{room} must never import {target}"
    if target == "ewe":
        return None
    if target == room:
        if found.module in SHARED.get(room, {found.module}):
            return None
        return f"of its own package it shares only {', '.join(sorted(SHARED[room]))}"
    if target in HOUSES and room not in HOUSES:
        return f"the server knows no house: {target} imports it"
    if FLOORS[target] >= FLOORS[room]:
        return f"floor {FLOORS[target]} is not below floor {FLOORS[room]}"
    return None


def test_a_room_imports_only_rooms_below_it() -> None:
    found = [
        f"\n{path.relative_to(ROOT)}:{offence}"
        for module, path in SOURCES.items()
        for offence in offences(module, imports_of(module))
    ]
    assert not found, "".join(found)


def test_a_model_is_given_its_conversations() -> None:
    """Only the former form of the constructor, which takes a site, makes the conversations itself."""
    importing = {
        module
        for module in SOURCES
        if room_of(module) == "ewe.processors"
        for found in imports_of(module)
        if room_of(found.module) == "ewe.conversations" and not found.for_types
    }
    assert importing == {"ewe.processors.former"}


def test_a_model_knows_no_protocol_of_the_connections() -> None:
    """The conversations and the server know TLS, PROXY headers, sites, and the kinds of applications."""
    unknown = re.compile(r"\b(tls|ssl|proxy.protocol|sites|asgi|wsgi)(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {name[0]}"
        for module, path in SOURCES.items()
        if room_of(module) == "ewe.processors"
        for name in unknown.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_no_files_import_each_other() -> None:
    """The files of the server and of the houses. An import for types alone counts, too."""
    arrows = {
        module: {found.module for found in imports_of(module)} & SOURCES.keys() - {module}
        for module in SOURCES
    }
    TopologicalSorter(arrows).prepare()  # raises CycleError, with the files of a circle


def test_the_documented_rooms_are_those_of_the_source() -> None:
    """Floors and files are compared. What a file is may lag behind its docstring until the next `make docs`."""
    listed, expected = (
        re.findall(r"^\| (\d+) \| (\S+) \|", text, re.MULTILINE)
        for text in (PAGE.read_text(encoding="utf-8"), page())
    )
    assert listed == expected, f"{PAGE.relative_to(ROOT)} is not up to date: run make docs"


MADE_UP_MODULES = {
    "ewe.features.static",
    "ewe.http.ranges",
    "ewe.processors.base",
    "ewe.processors.fork",
    "ewe.processors.thread",
    "ewe_lab.speed",
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
        ("ewe.features.static", "if TYPE_CHECKING:\n    from ewe.site import Site"),
        ("ewe.cli", "import ewe.__main__"),
        ("ewe", "from ewe.cli import main"),
        # the houses lean on the server, never the reverse
        ("ewe.cli", "import ewe_lab.speed"),
        ("ewe.cli", "from ewe_lab.speed import main"),
        ("ewe.cli", "if TYPE_CHECKING:\n    from ewe_lab import speed"),
        ("ewe.features.static", "def respond():\n    import ewe_explore"),
        ("ewe.server", "import importlib\nimportlib.import_module('ewe_classroom.grader.cli')"),
        # a house leans on the houses below it only
        ("ewe_explore.page", "from ewe_classroom.look import document"),
        ("ewe_classroom.look", "def page():\n    from ewe_lab.report import charts"),
        # what a feature does not know
        ("ewe.features.static", "import asyncio"),
        ("ewe.features.static", "import threading"),
        ("ewe.features.static", "from socket import AF_UNIX"),
        ("ewe.features.static", "import concurrent.futures"),
        ("ewe.features.static", "from ewe.processors import base"),
        ("ewe.features.static", "if typing.TYPE_CHECKING:\n    import asyncio"),
        # only processors and streams use sockets and loops
        ("ewe.http", "import socket"),
        ("ewe.config", "import asyncio.subprocess"),
        ("ewe.conversation", "try:\n    import select\nexcept ImportError:\n    pass"),
        ("ewe.cli", "import uvloop"),
        # what a room must never import
        ("ewe.http", "import typing\nif typing.TYPE_CHECKING:\n    from ewe.config import Limits"),
        ("ewe.http", "from ewe import registry"),
        ("ewe.config", "from ewe.http import Limits"),
        ("ewe.streams", "def spawn():\n    from ewe.gateway import programs"),
        ("ewe.gateway", "if TYPE_CHECKING:\n    from ewe.features.static import Static"),
        ("ewe.features.static", "if TYPE_CHECKING:\n    from ewe.server import run"),
        # what a processor does not know
        ("ewe.processors.fork", "from ewe.http import Request"),
        ("ewe.processors.fork", "from ewe import http"),
        ("ewe.processors.fork", "from ewe.conversation import converse"),
        ("ewe.processors.fork", "if TYPE_CHECKING:\n    from ewe.site import Site"),
        ("ewe.processors.fork", "import ewe.features.static"),
        ("ewe.processors.fork", "if TYPE_CHECKING:\n    from ewe.http import Request"),
        ("ewe.processors.fork", "from .thread import Thread"),
        ("ewe.processors.fork", "from . import thread"),
        # a room without a floor
        ("ewe.attic", "import sys"),
        ("ewe.site", "import ewe.attic"),
        ("ewe.site", "from ewe.attic.box import hat"),
    ],
)
def test_the_check_finds_what_is_wrong(module: str, source: str) -> None:
    package = "ewe" if module == "ewe" else module.rpartition(".")[0]
    (offence,) = offences(module, imports_in(source, package, MADE_UP_MODULES))
    assert f": {module} " in offence


def test_the_check_names_the_line() -> None:
    source = "import os\n\ndef late():\n    from ewe.site import Site\n\nimport socket\n"
    lines = [
        offence.partition(":")[0]
        for offence in offences("ewe.http.ranges", imports_in(source, "ewe.http", set()))
    ]
    assert lines == ["4", "6"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ewe.http", "import re\nfrom ewe import __version__"),
        ("ewe.streams", "import asyncio, socket\nfrom . import http"),
        ("ewe.features.static", "from ewe.features import ranges\nfrom .ranges import cut"),
        ("ewe.features.static", "from ewe.streams import Stream\nfrom ..http import Request"),
        ("ewe.site", "from ewe.features import static\nfrom ewe.config import Settings"),
        ("ewe.processors.fork", "import asyncio, threading, selectors\nfrom .base import Processor"),
        (
            "ewe.processors.fork",
            "from ewe.processors import base\nfrom ewe.conversations import Conversations",
        ),
        ("ewe.server", "import socket\nfrom ewe.processors import fork\nfrom ewe import conversation"),
        ("ewe.cli", "from ewe.server import serve\nfrom ewe import config, logger"),
        ("ewe.__main__", "from ewe.cli import main"),
        ("ewe_lab.speed", "import socket, asyncio\nimport ewe.__main__, ewe.http, ewe_lab.other"),
        ("ewe_lab.speed", "import ewe_classroom.grader.load, ewe_explore"),
        ("ewe_classroom", "from ewe_explore import explore"),
    ],
)
def test_the_check_allows_what_is_right(module: str, source: str) -> None:
    assert not list(offences(module, imports_in(source, module.rpartition(".")[0], MADE_UP_MODULES)))


# The packages and modules of the lab, from the lowest layer: each imports only those above it in this list.
LAB_ORDER = (
    "options",  # types of options
    "bench",  # what every measurement is made of: results, processes, links, the claims' verdicts
    "load",  # load generators: locust, wrk, ab, httperf, the pinger
    "stacks",  # servers: ewe, other servers, programs behind them
    "machines",  # other machines: agents through ssh, the target's resources, locust's workers
    "experiments",  # the comparisons
    "report",  # tables and charts of results
    "lab_bench",  # joins server, load and watch
    "speed_rows",  # what `ewe-lab speed` measures
    "speed",
    "invocation",
    "compare_target",
    "compare",
    "renew",
    "cli",
    "__main__",
)
LAB = {module: path for module, path in SOURCES.items() if module.startswith("ewe_lab.")}


def lab_imports(module: str) -> list[Import]:
    """Return what a module of the lab imports from the lab when it runs."""
    return [each for each in imports_of(module) if each.module in LAB and not each.for_types]


def test_the_rooms_of_the_lab_stand_on_each_other() -> None:
    """The locustfile is a program by itself, for students: it imports nothing of the lab."""
    assert len(LAB) > 100
    for module in LAB:
        room = module.split(".")[1]
        for found in lab_imports(module):
            below = found.module.split(".")[1]
            allowed = room != "locustfile" and LAB_ORDER.index(below) <= LAB_ORDER.index(room)
            assert allowed, f"{module}:{found.line}: {found.module}"


# Inside X-Switch
#
# X-Switch is a program of its own: it would run without ewe's server. Its ground floor is shared. Above it two
# processes stand beside each other, and share no code: switch/ reads the network without privileges, privileged/
# has privileges and reads no network. engines/ holds programs that start under a user's own interpreter.

XSWITCH_FLOORS = {
    "channel": 0,
    "packages": 0,
    "process": 0,
    "protocol": 0,
    "setting_types": 0,
    "engine_kinds": 1,
    "user_limits": 1,
    "user_logs": 1,
    "settings": 2,
    "certificates": 3,
    "public": 3,
    "settings_page": 3,
    "webapp": 3,
    "switch": 4,
    "privileged": 4,
    "tools": 4,
    "commands": 5,
    "package_commands": 5,
    "supervisor": 5,
    "check": 6,
    "cli": 6,
    "__main__": 7,
}
XSWITCH_MAY_IMPORT = {
    "ewe",
    "ewe.bounded",
    "ewe.child_processes",
    "ewe.child_slots",
    "ewe.command_logs",
    "ewe.config",
    "ewe.gateway.records",
    "ewe.libcgi",
    "ewe.http",
    "ewe.log_files",
    "ewe.logger",
    "ewe.trace",
    "ewe.streams.descriptors",
    "ewe.streams.listener",
    "ewe.streams.systemd",
}


def imports_of_xswitch() -> dict[str, list[Import]]:
    """What every module of X-Switch imports of ewe, for types too."""
    return {
        module: [each for each in imports_of(module) if each.module.partition(".")[0] == "ewe"]
        for module in SOURCES
        if module == "ewe.xswitch" or module.startswith("ewe.xswitch.")
    }


def room_of_xswitch(module: str) -> str:
    """The room or the file directly in ewe/xswitch that a module is in; "" for the package itself."""
    return module.removeprefix("ewe.xswitch").strip(".").partition(".")[0]


def objection_of_xswitch(module: str, imported: str) -> str:
    """Why a module of X-Switch may not import that, "" if it may."""
    room = room_of_xswitch(module)
    if room == "engines":
        return "an engine runs under its user's interpreter, where there is no ewe"
    if imported != "ewe.xswitch" and not imported.startswith("ewe.xswitch."):
        allowed = {imported, ".".join(imported.split(".")[:2])} & XSWITCH_MAY_IMPORT
        return "" if allowed else "X-Switch would run without ewe's server"
    target = room_of_xswitch(imported)
    if target in ("", room):
        return ""
    if target not in XSWITCH_FLOORS or room not in XSWITCH_FLOORS:
        return "that is in no room: give it a floor"
    if XSWITCH_FLOORS[target] >= XSWITCH_FLOORS[room]:
        return f"{target} is not below {room}"
    return ""


def test_xswitch_keeps_its_order() -> None:
    assert len(imports_of_xswitch()) > 30
    offences = [
        f"{SOURCES[module].relative_to(ROOT)}:{found.line}: {found.module}: {reason}"
        for module, imports in imports_of_xswitch().items()
        for found in imports
        if (reason := objection_of_xswitch(module, found.module))
    ]
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("ewe.xswitch.switch.main", "ewe.xswitch.privileged.rules"),
        ("ewe.xswitch.privileged.suexecme", "ewe.xswitch.switch.loop"),
        ("ewe.xswitch.privileged.suexecme", "ewe.xswitch.supervisor"),
        ("ewe.xswitch.protocol", "ewe.xswitch.settings"),
        ("ewe.xswitch.settings", "ewe.xswitch.attic"),
        ("ewe.xswitch.engines.python", "ewe.xswitch.protocol"),
        ("ewe.xswitch.engines.python", "ewe.logger"),
        ("ewe.xswitch.switch.main", "ewe.server.run"),
        ("ewe.xswitch.cli", "ewe.streams.base"),
        ("ewe.xswitch.cli", "ewe.conversation"),
        ("ewe.xswitch.switch.main", "ewe.gateway.upstream"),
    ],
)
def test_xswitch_may_not_import(module: str, imported: str) -> None:
    assert objection_of_xswitch(module, imported)
