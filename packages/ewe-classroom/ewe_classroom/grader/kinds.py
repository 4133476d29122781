"""The kinds of submissions (`subject` in grading.toml): a server, an engine of X-Switch, or data of a measurement.

Each kind has a start command (the meaning of a path or a command on the command line), a subject (the process
under test), and a scene (the argument of a check). grading.py, verdicts and reports are the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ewe_classroom.grader.subject import StartCommand
from ewe_classroom.seeds import Seed

SERVER, ENGINE, DATA = "server", "engine", "data"
NAMES = (SERVER, ENGINE, DATA)


@dataclass(frozen=True)
class SubjectKind:
    """One kind of submission.

    from_path, from_command: return the start command of a path, or of --command. subject: the class of the process
    under test, with the parameters of Subject. site: writes the files that all subjects of a grading share into a
    directory; with a seed, also the files of that student. scene: the class of a check's argument.
    """

    name: str
    from_path: Callable[[str], StartCommand]
    from_command: Callable[[str], StartCommand]
    site: Callable[[Path, Seed | None], Any]
    subject: Callable[..., Any]
    scene: Callable[[Any, dict[str, Any]], Any]


def kind(name: str) -> SubjectKind:
    """Return a kind by its name; a server for any name but "engine" and "data".

    The modules of the kinds are imported only now, when a lab is graded.
    """
    from ewe_classroom.grader import engine_scene, run_scene, scene, subject

    if name == ENGINE:
        return SubjectKind(
            ENGINE, engine_scene.from_path, engine_scene.from_command,
            site=lambda directory, seed: engine_scene.Scripts(directory),
            subject=engine_scene.EngineSubject, scene=engine_scene.EngineScene,
        )  # fmt: skip
    if name == DATA:
        return SubjectKind(
            DATA, run_scene.from_path, run_scene.from_command,
            site=lambda directory, seed: None, subject=run_scene.RunSubject, scene=run_scene.RunScene,
        )  # fmt: skip
    return SubjectKind(
        SERVER, subject.from_path, subject.from_command,
        site=subject.ServedFiles, subject=subject.Subject, scene=scene.Scene,
    )  # fmt: skip
