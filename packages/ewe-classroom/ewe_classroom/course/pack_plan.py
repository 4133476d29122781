"""What a pack is made of: the lab, the language, the wheels, and the choices of the lecturer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ewe_classroom.course.labs import Lab, LabVariant
from ewe_classroom.course.own_parts import lab_scheme
from ewe_classroom.course.pack_scripts import EWE_DIRECTORY
from ewe_classroom.course.wheels import Wheels
from ewe_classroom.grader.scheme import Item, Scheme

# Packages of Debian and Ubuntu for a language.
TOOLS = {"c": "gcc libc6-dev make", "go": "golang-go"}
# The time that a platform gives a pack: for the installation, a build and a run, which have shorter limits.
GRADING_S = 300

Files = dict[str, bytes]


@dataclass(frozen=True)
class PackPlan:
    """The parts of a pack. own: given files that students may replace by their own ones.

    seeded: grade each student with the numbers of a seed (seeds.py), which is the student's name on the platform.
    scheme_file: the lecturer's own grading scheme; None: that of the lab.
    """

    lab: Lab
    variant: LabVariant
    wheels: Wheels
    own: tuple[str, ...] = ()
    seeded: bool = False
    scheme_file: Path | None = None

    @property
    def handed_in(self) -> tuple[str, ...]:
        """The files that every student has to hand in."""
        return (*self.variant.work, *self.variant.data)

    @property
    def scheme(self) -> Scheme:
        """The grading scheme. Raises ConfigError if the lecturer's own one is wrong."""
        return lab_scheme(self.lab, self.scheme_file)

    @property
    def checks(self) -> Sequence[Item]:
        """The checks of the scheme in this language, with their points."""
        return self.scheme.checks_for_language(self.variant.name).items

    @property
    def scheme_name(self) -> str:
        """The name of the lecturer's scheme in the pack: reports show it without its end."""
        return f"{self.scheme.name}.toml"

    def lab_option(self, folder: str) -> str:
        """Return the argument of --lab for a shell. folder: a shell word for the directory of grading_files()."""
        return self.lab.name if self.scheme_file is None else f"{folder}/{shlex.quote(self.scheme_name)}"

    def command(self, outputs: str, folder: str, seed: str = "") -> str:
        """Return the command that grades the submission in the current directory.

        outputs: the options for the results. folder: a shell word for the directory in the pack that has the files
        of grading_files(): the lab's given files, and the lecturer's own scheme. seed: a shell expression for the
        student's name.
        """
        words = [f"{EWE_DIRECTORY}/bin/ewe-grade --lab {self.lab_option(folder)}", outputs]
        words += [f'--seed="{seed}"'] if self.seeded else []
        words += [f"--work {name}" for name in self.handed_in]
        words += [f"--given {folder}/given"] if self.variant.given else []
        words += [f"--own {name}" for name in self.own]
        # Name the pack's Makefile: make would prefer a GNUmakefile, which a student may have sent.
        build = "make -f Makefile" if self.variant.build == "make" else self.variant.build
        words += [f"--build {shlex.quote(build)}"] if build else []
        return " ".join([*words, self.variant.grade])

    def grading_files(self, folder: str = "") -> Files:
        """Return the files by which the pack grades, below a folder of the pack; "": at its top.

        They are the lab's given files, in a folder `given`: they replace a student's files of the same names,
        except those of `own`. Beside `given` is the lecturer's own scheme, if there is one.
        """
        texts = self.lab.files(self.variant, solved=True)  # the given files are complete in both forms
        prefix = f"{folder}/" if folder else ""
        given = {f"{prefix}given/{name}": texts[name].encode() for name in self.variant.given}
        return given | self.scheme_files(folder)

    def scheme_files(self, folder: str = "") -> Files:
        """Return the lecturer's own scheme below a folder of the pack; nothing if the lab's scheme grades.

        Raises ConfigError if it is wrong.
        """
        if self.scheme_file is None:
            return {}
        name = f"{folder}/{self.scheme_name}" if folder else self.scheme_name
        return {name: self.scheme_file.read_bytes()}

    def starter_files(self, folder: str) -> Files:
        """Return what a student begins with: the starters, and the lab's own files."""
        return {
            f"{folder}/{name}": text.encode()
            for name, text in self.lab.files(self.variant, solved=False).items()
        }

    def wheel_files(self, folder: str) -> Files:
        """Return the wheels, below a folder of the pack."""
        return {f"{folder}/{name}": content for name, content in self.wheels.items()}
