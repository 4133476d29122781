"""The platforms of courses, as they run a pack.

The documentation of a platform names the directories, the account of each program, and the place of the mark.
PLATFORMS plays that: root with the capabilities of a container where the platform has containers, and files of the
account nobody where a student's account owns them. `sudo` is a script that only runs its command, since these tests
are root already. A platform's absolute paths become paths below the test's directory.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ewe_classroom.course.pack_autolab import WHEELS_OF_IMAGE
from ewe_classroom.course.pack_plan import Files
from ewe_classroom.course.pack_scripts import EWE_DIRECTORY
from ewe_classroom.grader.sandbox import private_network

# The capabilities that Docker leaves to root.
CONTAINER = (
    "setpriv", "--bounding-set", "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,"
    "+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap",
)  # fmt: skip
SUDO = """#!/bin/sh
while :; do case "$1" in -n | --preserve-env=*) shift ;; -l) exit 0 ;; *) break ;; esac; done
exec "$@"
"""


@dataclass
class Table:
    """What the platform shows: points, of how many, and the words."""

    score: float
    points: float
    text: str


@dataclass
class Played:
    """A platform with a pack and a submission.

    ewe: the directory in which the pack installs; nothing is installed if it is there already. checks: those of the
    lab that are run, so that a test is quick.
    """

    root: Path
    ewe: Path
    files: Files
    checks: tuple[str, ...]
    output: str = ""
    status: int = 0
    environ: dict[str, str] = field(default_factory=dict)

    def unpack(self, files: Files, folder: str) -> None:
        """Write files of the pack, with the platform's paths below the test's directory."""
        only = " ".join(f"--only {name}" for name in self.checks)
        for name, content in files.items():
            path = self.root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix not in (".whl", ".tar"):
                text = content.decode()
                for place in ("/autograder", "/grade/"):
                    text = text.replace(place, f"{self.root}{place}")
                text = text.replace(
                    f"{EWE_DIRECTORY}/bin/ewe-grade", f"{EWE_DIRECTORY}/bin/ewe-grade {only}"
                ).replace(EWE_DIRECTORY, str(self.ewe))
                if (self.ewe / "bin" / "ewe-grade").exists():  # installed by the test before
                    text = re.sub(r" *python=\n(.*\n)*?.*ewe-classroom==.*\n", "", text)
                content = text.encode()
            path.write_bytes(content)
            path.chmod(0o755 if content.startswith(b"#!") else 0o644)

    def run(self, *command: str, cwd: str = ".", container: bool = False) -> None:
        bin_ = self.root / "bin"
        bin_.mkdir(exist_ok=True)
        (bin_ / "sudo").write_text(SUDO)
        (bin_ / "sudo").chmod(0o755)
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))
        }
        environ["PATH"] = f"{bin_}:{environ['PATH']}"
        done = subprocess.run(
            [*(CONTAINER if container else ()), *command], cwd=self.root / cwd, env={**environ, **self.environ},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=280, check=False,
            preexec_fn=private_network,  # what a pack installs, it has itself
        )  # fmt: skip
        self.output, self.status = done.stdout, done.returncode

    def owned_by_nobody(self, folder: str) -> Path:
        """Give a directory with all its files to the account nobody; return it."""
        for path in (self.root / folder, *(self.root / folder).rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        return self.root / folder


def gradescope(played: Played, hand_in: Callable[[Path], None]) -> Table:
    """/autograder/source has the pack; the harness copies run_autograder, and its directory is /autograder."""
    played.unpack(played.files, "autograder/source")
    for name in ("submission", "results"):
        (played.root / "autograder" / name).mkdir()
    hand_in(played.root / "autograder" / "submission")
    (played.root / "autograder" / "results").chmod(0o755)
    script = played.root / "autograder" / "run_autograder"
    script.write_bytes((played.root / "autograder" / "source" / "run_autograder").read_bytes())
    script.chmod(0o755)
    played.environ["DEBIAN_FRONTEND"] = "noninteractive"
    if not (played.ewe / "bin").exists():
        setup = played.root / "autograder" / "source" / "setup.sh"
        setup.write_text(re.sub("apt-get update.*", "true", setup.read_text()))
        played.run("bash", str(setup))
        assert played.status == 0, played.output
    played.run(str(script), cwd="autograder", container=True)
    table = json.loads((played.root / "autograder" / "results" / "results.json").read_text())
    points = sum(test["max_score"] for test in table["tests"])
    return Table(table["score"], points, json.dumps(table))


def prairielearn(played: Played, hand_in: Callable[[Path], None]) -> Table:
    """/grade/student has the files that were uploaded, /grade/tests those of the question."""
    question = {name[6:]: content for name, content in played.files.items() if name.startswith("tests/")}
    played.unpack(question, "grade/tests")
    (played.root / "grade" / "student").mkdir()
    hand_in(played.root / "grade" / "student")
    info = json.loads(played.files["info.json"])["externalGradingOptions"]
    script = played.root / info["entrypoint"].lstrip("/")
    script.chmod(0o755)
    played.run(str(script), container=True)
    table = json.loads((played.root / "grade" / "results" / "results.json").read_text())
    points = sum(test["max_points"] for test in table["tests"])
    return Table(table["score"] * points, points, json.dumps(table))


def autolab(played: Played, hand_in: Callable[[Path], None]) -> Table:
    """Tango copies the two files and the hand-in into one directory, renames the Makefile, and runs make."""
    (archive,) = (content for name, content in played.files.items() if name.endswith(".tar"))
    files = {name.partition("/")[2]: content for name, content in unpacked(archive).items()}
    played.unpack(unpacked(files["autograde.tar"]), "inner")
    played.unpack({"Makefile": files["autograde-Makefile"]}, "box")
    names = sorted(path.name for path in (played.root / "inner").iterdir())
    subprocess.run(["tar", "cf", "../box/autograde.tar", *names], cwd=played.root / "inner", check=True)
    image = {name[6:]: content for name, content in played.files.items() if name.startswith("image/")}
    if not (played.ewe / "bin").exists():
        played.unpack(image, "image")
        text = (played.root / "image" / "install.sh").read_text()
        played.run("sh", "-c", text.replace(WHEELS_OF_IMAGE, f"{played.root}/image/wheels"))
        assert played.status == 0, played.output
    sent = played.root / "sent"
    sent.mkdir()
    hand_in(sent)
    subprocess.run(["tar", "cf", "../box/handin.tar", "."], cwd=sent, check=True)
    played.owned_by_nobody("box")
    played.run("make", cwd="box", container=True)
    assert not [each for each in (played.root / "box" / "handin").iterdir() if each.lstat().st_mode & 0o6000]
    table = json.loads(played.output.splitlines()[-1])
    assert played.output.splitlines()[-1].startswith("{")
    known = {
        problem["name"]: problem["max_score"] for problem in json.loads(files["thread.yml"][4:])["problems"]
    }
    assert set(table["scores"]) <= set(known)
    points = sum(known[name] for name in table["scores"])
    return Table(sum(table["scores"].values()), points, played.output)


def unpacked(archive: bytes) -> Files:
    """Return the files of a tar file."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        parts = {each.name: opened.extractfile(each) for each in opened}
        return {name: part.read() for name, part in parts.items() if part is not None}


def commands(output: str) -> list[str]:
    """Return the lines that GitHub's runner obeys in the output of a step: it ignores spaces before them."""
    found, word = [], ""
    for line in map(str.strip, output.splitlines()):
        if word:
            word = "" if line == f"::{word}::" else word
        elif line.startswith("::stop-commands::"):
            word = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            found.append(line)
    return [*found, f"::stop-commands::{word}"] if word else found


def github(played: Played, hand_in: Callable[[Path], None]) -> Table:
    """The checkout is the student's repository; the runner's account owns it, and starts the step by sudo."""
    checkout = played.root / "checkout"
    checkout.mkdir()
    hand_in(checkout)
    played.unpack(played.files, "checkout")
    played.owned_by_nobody("checkout")
    temporary = played.root / "temporary"
    temporary.mkdir()
    output = temporary / "output"
    output.touch()
    played.environ |= {"GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(temporary), "GITHUB_ACTOR": "ada"}
    workflow = played.files[".github/workflows/classroom.yml"].decode()
    (step,) = re.findall(r"run: (sudo --preserve.*)", workflow)
    played.run("sh", "-c", step, cwd="checkout")
    assert commands(played.output) == []
    (line,) = output.read_text().splitlines()
    table = json.loads(base64.b64decode(line.removeprefix("result=")))
    assert (temporary / "ewe" / "report.html").is_file() and (table["status"] == "pass") == (
        played.status == 0
    )
    return Table(sum(test["score"] for test in table["tests"]), table["max_score"], json.dumps(table))


def classroom50(played: Played, hand_in: Callable[[Path], None]) -> Table:
    """The runner unpacks the bundle, starts autograder.py in the checkout, and completes result.json there."""
    bundle = "runtime/pool"
    played.unpack(played.files, bundle)
    (played.root / "checkout").mkdir()
    hand_in(played.root / "checkout")
    checkout = played.owned_by_nobody("checkout")
    for name in ("result.json", "release-body.md"):  # as runner.py does
        if (checkout / name).exists():
            (checkout / name).unlink()
    played.environ |= {
        "CLASSROOM": "os", "ASSIGNMENT": "pool", "SUBMISSION_TAG": "submit/1", "OWNER": "ada", "USERNAME": "ada",
        "ASSIGNMENT_TYPE": "individual", "COMMIT_URL": "https://example/c", "RELEASE_URL": "https://example/r",
        "REVIEW_URL": "https://example/d",
    }  # fmt: skip
    played.run(sys.executable, str(played.root / bundle / "autograder.py"), cwd="checkout")
    assert played.status == 0 and commands(played.output) == [], played.output
    result = checkout / "result.json"
    table = json.loads(result.read_text())
    assert result.stat().st_uid == 65534 and not (checkout / "release-body.md").exists()
    assert (table["classroom"], table["assignment"], table["submission"]) == ("os", "pool", "submit/1")
    assert table["score"] == sum(test["score"] for test in table["tests"])
    return Table(table["score"], table["max-score"], json.dumps(table))


PLATFORMS = {
    "gradescope": gradescope,
    "prairielearn": prairielearn,
    "autolab": autolab,
    "github": github,
    "classroom50": classroom50,
}
