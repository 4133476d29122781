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


def scheme_file(lab: Lab, own: Path | None) -> Path:
    """Return the file of the grading scheme. own: the lecturer's own one; None: that of the lab."""
    return lab.folder / "grading.toml" if own is None else own


def lab_scheme(lab: Lab, own: Path | None) -> Scheme:
    """Return the grading scheme of a lab. own: the file of the lecturer's own one; None: that of the lab.

    Raises ConfigError if there is no such file, if it is no scheme, or if it grades another kind of submission.
    """
    of_lab = scheme.load(lab.name)
    if own is None:
        return of_lab
    if own.suffix != ".toml" or not os.path.isfile(own):
        raise ConfigError(f"--scheme {own}: name a file such as my/grading.toml, a copy of the lab's scheme")
    found = scheme.load(str(own))
    if found.subject != of_lab.subject:
        raise ConfigError(
            f"--scheme {own}: its subject is {found.subject}, and the lab {lab.name} has {of_lab.subject};"
            f' write subject = "{of_lab.subject}"'
        )
    return found


def check_own_files(variant: LabVariant, names: Sequence[str]) -> None:
    """Raise ConfigError if a student may not replace one of these files: only given sources are replaceable."""
    replaceable = [name for name in variant.given if name not in BUILD_FILES]
    for name in names:
        if name not in replaceable:
            choice = f"choose {' or '.join(replaceable)}" if replaceable else "it gives none in this language"
            raise ConfigError(f"--own {name}: not a source that the lab gives to students; {choice}")
