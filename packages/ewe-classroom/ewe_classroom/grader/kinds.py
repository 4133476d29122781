"""What a lab grades: a server, an engine of X-Switch, or the data of a measurement. `subject` in grading.toml.

Each kind has a recipe (what a path or a command on the command line means), a subject (what runs), and a scene
(what a check is given). grading.py, verdicts and reports are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ewe_classroom.grader.subject import Recipe
from ewe_classroom.seeds import Seed

SERVER, ENGINE, DATA = "server", "engine", "data"
NAMES = (SERVER, ENGINE, DATA)


@dataclass(frozen=True)
class Kind:
    """One kind. subject: called as Subject is. site: makes what all subjects of a grading share, in a directory,
    with the numbers of a student if there is a seed.
    """

    name: str
    from_path: Callable[[str], Recipe]
    from_command: Callable[[str], Recipe]
    site: Callable[[Path, Seed | None], Any]
    subject: Callable[..., Any]
    scene: Callable[[Any, dict[str, Any]], Any]


def kind(name: str) -> Kind:
    """Return a kind. Its modules are imported now: a lab about servers needs neither X-Switch nor data."""
    from ewe_classroom.grader import engine_scene, run_scene, scene, subject

    if name == ENGINE:
        return Kind(
            ENGINE, engine_scene.from_path, engine_scene.from_command,
            lambda directory, seed: engine_scene.Scripts(directory),
            engine_scene.EngineSubject, engine_scene.EngineScene,
        )  # fmt: skip
    if name == DATA:
        return Kind(
            DATA, run_scene.from_path, run_scene.from_command, lambda directory, seed: None,
            run_scene.RunSubject, run_scene.RunScene,
        )  # fmt: skip
    return Kind(SERVER, subject.from_path, subject.from_command, subject.Site, subject.Subject, scene.Scene)
