"""What a pack is made of: the lab, the language, the wheels, and the choices of the lecturer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ewe_classroom.course.labs import Lab, LabVariant
from ewe_classroom.course.pack_scripts import EWE
from ewe_classroom.course.wheels import Wheels
from ewe_classroom.grader import scheme

# Packages of Debian and Ubuntu for a language.
TOOLS = {"c": "gcc libc6-dev make", "go": "golang-go"}
# The time that a platform gives a pack: for the installation, a build and a run, which have shorter limits.
GRADING_S = 300

Files = dict[str, bytes]


@dataclass(frozen=True)
class PackPlan:
    """The parts of a pack. own: given files that students may replace by their own ones.

    seeded: grade each student with the numbers of a seed (seeds.py), which is the student's name on the platform.
    """

    lab: Lab
    variant: LabVariant
    wheels: Wheels
    own: tuple[str, ...] = ()
    seeded: bool = False

    @property
    def handed_in(self) -> tuple[str, ...]:
        """The files that every student has to hand in."""
        return (*self.variant.work, *self.variant.data)

    @property
    def checks(self) -> Sequence[scheme.Item]:
        """The checks of the lab in this language, with their points."""
        return scheme.load(self.lab.name).checks_for_language(self.variant.name).items

    def command(self, outputs: str, given: str, seed: str = "") -> str:
        """Return the command that grades the submission in the current directory.

        outputs: the options for the results. given: the directory of the lab's own files in the pack. seed: a shell
        expression for the student's name.
        """
        words = [f"{EWE}/bin/ewe-grade --lab {self.lab.name}", outputs]
        words += [f'--seed="{seed}"'] if self.seeded else []
        words += [f"--work {name}" for name in self.handed_in]
        words += [f"--given {given}"] if self.variant.given else []
        words += [f"--own {name}" for name in self.own]
        # Name the pack's Makefile: make would prefer a GNUmakefile, which a student may have sent.
        build = "make -f Makefile" if self.variant.build == "make" else self.variant.build
        words += [f"--build {shlex.quote(build)}"] if build else []
        return " ".join([*words, self.variant.grade])

    def given_files(self, folder: str) -> Files:
        """Return the lab's own files, which replace a student's files of the same names."""
        texts = self.lab.files(self.variant, solved=True)
        return {f"{folder}/{name}": texts[name].encode() for name in self.variant.given}

    def starter_files(self, folder: str) -> Files:
        """Return what a student begins with: the starters, and the lab's own files."""
        return {
            f"{folder}/{name}": text.encode()
            for name, text in self.lab.files(self.variant, solved=False).items()
        }

    def wheel_files(self, folder: str) -> Files:
        """Return the wheels, below a folder of the pack."""
        return {f"{folder}/{name}": content for name, content in self.wheels.items()}
