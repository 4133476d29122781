"""The parts of a lab that a course replaces: the grading scheme, and files that the lab gives to its students.

    --scheme my/grading.toml        other points, or fewer checks, than the lab has (../grader/scheme.py)
    --own conversation.py           the student's own file of an earlier lab in place of the lab's, if there is one

`ewe-course grade` and `ewe-course pack` have both options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe_classroom.course.labs import Lab, LabVariant
from ewe_classroom.grader import scheme
from ewe_classroom.grader.scheme import Scheme

BUILD_FILES = ("Makefile", "go.mod")


def scheme_file(lab: Lab, own_file: Path | None) -> Path:
    """Return the file of the scheme that grades a lab. own_file: the lecturer's; None: use the lab's own."""
    return lab.folder / "grading.toml" if own_file is None else own_file


def lab_scheme(lab: Lab, own_file: Path | None) -> Scheme:
    """Return the scheme that grades a lab. own_file: the lecturer's scheme; None: use the lab's own.

    Raises ConfigError if there is no such file, if it is no scheme, or if it grades another kind of submission.
    """
    default = scheme.load(lab.name)
    if own_file is None:
        return default
    if own_file.suffix != ".toml" or not os.path.isfile(own_file):
        raise ConfigError(
            f"--scheme {own_file}: name a file such as my/grading.toml, a copy of the lab's scheme"
        )
    own = scheme.load(str(own_file))
    if own.kind != default.kind:
        raise ConfigError(
            f"--scheme {own_file}: its subject is {own.kind}, and the lab {lab.name} has {default.kind};"
            f' write subject = "{default.kind}"'
        )
    return own


def check_own_files(variant: LabVariant, names: Sequence[str]) -> None:
    """Raise ConfigError if a student may not replace one of these files: only given sources are replaceable."""
    replaceable = [name for name in variant.given if name not in BUILD_FILES]
    for name in names:
        if name not in replaceable:
            choice = f"choose {' or '.join(replaceable)}" if replaceable else "it gives none in this language"
            raise ConfigError(f"--own {name}: not a source that the lab gives to students; {choice}")
