"""What a check is: a name, what it proves, what it sends, what it expects, why that matters, and a scene.

    @check(
        "half-close",
        proves="a client that has finished sending still gets its response",
        sends="a request, then FIN (shutdown of the sending half)",
        expects="the whole response",
        why="...",
        hint="recv() returns b'' when the client has finished sending. ...",
    )
    def half_close(scene: Scene) -> None: ...

The function plays a scene and returns if the server did well. It raises Fault (scene.fail()) with what the server
did, what it should have done, and the likely cause. Labs choose checks by name and give points (scheme.py).

A check gets a server that earlier checks have used, unless it says fresh=True: counts of descriptors, memory and
the end of a server need a new one. After a fault the grader starts a new server, so that one fault is not counted
twice. A check with an `environment` gets a server with these variables, and the next check a server without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from ewe_classroom.grader.scene import Scene

AnyScene = TypeVar("AnyScene", bound=Scene)

MODULES = (
    "conversations",
    "progress",
    "workers",
    "schedules",
    "programs",
    "running_programs",
    "hygiene",
    "faults",
    "stops",
    "conditional",
    "caches",
    "engines",
    "engine_xswitch",
    "runs",
)


@dataclass(frozen=True)
class Check:
    """One check, as its decorator describes it."""

    name: str
    proves: str
    sends: str
    expects: str
    why: str
    hint: str
    function: Callable[[Any], None]
    fresh: bool
    descriptors: int  # how many files the server may open; 0: as many as in other checks
    options: dict[str, str]  # what a lab may set, each with its meaning
    environment: dict[str, str] = field(default_factory=dict)  # more variables for the server
    subject: str = "server"  # what it plays a scene with: kinds.py


CHECKS: dict[str, Check] = {}


def check(
    name: str,
    *,
    proves: str,
    sends: str,
    expects: str,
    why: str,
    hint: str,
    fresh: bool = False,
    descriptors: int = 0,
    options: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    subject: str = "server",
) -> Callable[[Callable[[AnyScene], None]], Callable[[AnyScene], None]]:
    """Register a function as a check."""

    def register(function: Callable[[AnyScene], None]) -> Callable[[AnyScene], None]:
        assert name not in CHECKS
        CHECKS[name] = Check(
            name, proves, sends, expects, why, hint, function, fresh, descriptors, options or {},
            environment or {}, subject,
        )  # fmt: skip
        return function

    return register


def all_checks() -> dict[str, Check]:
    """Return every check by its name, in the order of the catalogue."""
    for module in MODULES:
        import_module(f"ewe_classroom.grader.{module}")
    return CHECKS
