"""Checks. A check has a name, texts for the student (claim, requests, expectation, reason, hint), and a function.

    @check(
        "half-close",
        proves="a client that has finished sending still gets its response",
        sends="a request, then FIN (shutdown of the sending half)",
        expects="the whole response",
        why="...",
        hint="recv() returns b'' when the client has finished sending. ...",
    )
    def half_close(scene: Scene) -> None: ...

The function plays a scene, and returns if the server passes. Otherwise scene.fail() raises FailedExpectation with
three texts: the server's behaviour, the expected behaviour, and the likely cause. Labs choose checks by name and
give points (scheme.py).

A check gets the server that earlier checks have used. With fresh=True it gets a new one: checks that count
descriptors or memory, or end the server, need this. After a fault the grader starts a new server, so that one fault
does not fail two checks. A check with an `environment` gets a server with these variables; the next check gets a
server without them.
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
    "bursts",
    "workers",
    "queue_races",
    "race_bursts",
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
    """One check. The fields are the arguments of the decorator check()."""

    name: str
    proves: str
    sends: str
    expects: str
    why: str
    hint: str
    function: Callable[[Any], None]
    fresh: bool
    descriptors: int  # the server's limit of open files; 0: the usual limit
    options: dict[str, str]  # the options that a lab may set: name -> meaning
    environment: dict[str, str] = field(default_factory=dict)  # additional variables of the server
    kind: str = "server"  # of the submissions that have this check (kinds.py)
    # Of the programs that have this check: "python", "model", "c", "go"; (): all programs
    languages: tuple[str, ...] = ()

    def suits(self, language: str) -> bool:
        """Return whether a submission in a language has this check. "": a program without its sources."""
        return not self.languages or language in self.languages


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
    kind: str = "server",
    languages: tuple[str, ...] = (),
) -> Callable[[Callable[[AnyScene], None]], Callable[[AnyScene], None]]:
    """Return a decorator that registers a function as a check, and returns the function unchanged.

    Check has the meanings of the arguments.
    """

    def register(function: Callable[[AnyScene], None]) -> Callable[[AnyScene], None]:
        # Labs, reports and command lines know a check by its name alone, so no second check may have it.
        assert name not in CHECKS
        CHECKS[name] = Check(
            name, proves, sends, expects, why, hint, function, fresh, descriptors, options or {},
            environment or {}, kind, languages,
        )  # fmt: skip
        return function

    return register


def all_checks() -> dict[str, Check]:
    """Return every check by its name, in the order of MODULES. The import of a module registers its checks."""
    for module in MODULES:
        import_module(f"ewe_classroom.grader.{module}")
    return CHECKS
