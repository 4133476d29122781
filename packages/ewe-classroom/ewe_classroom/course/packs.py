"""Packs: a lab as a course's platform takes it. Each is a directory of files, or a zip file of it.

    gradescope      setup.sh and run_autograder, in a zip file; results go to results/results.json
    classroom50     a workflow that writes result.json and uploads it
    github          a workflow of GitHub Actions: the exit code is the mark, the page is an artifact
    autolab         a Makefile and autograde.tar; the last line of output has the scores
    prairielearn    info.json, question.html and a grader that writes results/results.json
    devcontainer    a container for editors (containers.dev), in which students write and grade

Every pack installs ewe where the student's server is graded, and runs ewe-grade with the lab's own scheme. What a
platform wants to know of the course (names, dates) is its own to ask; a pack holds none of it.
"""

from __future__ import annotations

import json
import shlex
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path

from ewe import __version__
from ewe.config.messages import ConfigError
from ewe_classroom.course.labs import Lab, Way

EXECUTABLE = 0o755
INSTALL = f'python3 -m pip install "ewe-classroom=={__version__}"'
AUTOGRADE = "autograde"  # of the pack for Autolab: the directory that is in autograde.tar
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122: names that are URLs


def grade(lab: Lab, way: Way, *outputs: str, given: str = "") -> str:
    """Return the command that grades a submission in the current directory.

    ewe-grade copies the files of the work, and builds the copy as the server's account: a submission may hold a
    GNUmakefile, which make would read first. given: the directory of the lab's own files, where the pack has them;
    without one the student's copies of these files are graded.
    """
    names = (*way.work, *way.data, *(way.given if not given else ()))
    words = [f"ewe-grade --lab {lab.name}", *outputs, *(f"--work {name}" for name in names)]
    words += [f"--given {given}"] if given and way.given else []
    words += [f"--build {shlex.quote(way.build)}"] if way.build else []
    return " ".join([*words, way.grade])


def gradescope(lab: Lab, way: Way) -> dict[str, str]:
    """Return setup.sh, which runs once as the image is built, and run_autograder, which runs for a submission.

    Gradescope's default image has Ubuntu 22.04, whose Python 3.10 is too old: ewe gets a virtual environment.
    """
    tools = {"c": " gcc make", "go": " golang-go"}.get(way.name, "")
    return {
        "setup.sh": "#!/usr/bin/env bash\nset -e\napt-get update\n"
        f"apt-get install -y python3-venv{tools}\npython=python3\n"
        "if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then\n"
        "    apt-get install -y python3.11 python3.11-venv\n    python=python3.11\nfi\n"
        "$python -m venv /opt/ewe\n"
        f"{INSTALL.replace('python3', '/opt/ewe/bin/python3')}\nln -sf /opt/ewe/bin/ewe* /usr/local/bin/\n",
        "run_autograder": "#!/usr/bin/env bash\n"
        "# The exit code of ewe-grade says whether every check passed; Gradescope reads the file.\n"
        "cd /autograder/submission\n"
        f"{grade(lab, way, '--gradescope /autograder/results/results.json', given='/autograder/source/given')}\n"
        "true\n",
    }


def workflow(lab: Lab, way: Way, name: str, steps: str) -> str:
    """Return a workflow of GitHub Actions."""
    return (
        f"name: {name}\non: [push, workflow_dispatch]\njobs:\n  grade:\n    runs-on: ubuntu-latest\n"
        f"    timeout-minutes: 10\n    steps:\n      - uses: actions/checkout@v4\n"
        f"      - uses: actions/setup-python@v5\n        with:\n          python-version: '3.12'\n"
        f"      - run: {json.dumps(INSTALL)}\n{steps}"
    )


def classroom50(lab: Lab, way: Way) -> dict[str, str]:
    command = grade(lab, way, "--classroom50 result.json", "--html report.html") + " || true"
    steps = (
        f"      - run: {json.dumps(command)}\n"
        "      - uses: actions/upload-artifact@v4\n        with:\n          name: result\n"
        "          path: |\n            result.json\n            report.html\n"
    )
    return {".github/workflows/grade.yml": workflow(lab, way, "Grade", steps)}


def github(lab: Lab, way: Way) -> dict[str, str]:
    steps = (
        f"      - run: {json.dumps(grade(lab, way, '--html report.html', '--junit report.xml'))}\n"
        "      - uses: actions/upload-artifact@v4\n        if: always()\n        with:\n          name: report\n"
        "          path: |\n            report.html\n            report.xml\n"
    )
    return {".github/workflows/grade.yml": workflow(lab, way, "Grade", steps)}


def autolab(lab: Lab, way: Way) -> dict[str, str]:
    """Return the Makefile, and the directory of which pack() makes autograde.tar: Autolab copies these two.

    The hand-in is unpacked into a separate directory, so that no file in it replaces the driver or autograde.tar.
    Without options, tar under root would make files of root with the setuid bit, as the archive says.
    """
    steps = grade(lab, way, "--autolab", given="../given")
    return {
        "autograde-Makefile": "all:\n\t@rm -rf handin && mkdir handin\n"
        "\t@if [ -f handin.tar ]; then "
        "tar xf handin.tar -C handin --no-same-owner --no-same-permissions; "
        f"else cp -P {' '.join((*way.work, *way.data))} handin 2>&1 || true; fi\n"
        "\t@tar xf autograde.tar\n\t@sh driver.sh\n",
        f"{AUTOGRADE}/driver.sh": f"#!/bin/sh\n# Autolab reads the last line.\ncd handin\n{steps}\ntrue\n",
        "README.md": f"Put autograde-Makefile and autograde.tar into the assessment's directory. Students hand in "
        f"`{way.work[0]}`, or several files as `handin.tar`.\n\n"
        f"Install ewe in the image of the course: `{INSTALL}`\n",
    }


def prairielearn(lab: Lab, way: Way) -> dict[str, str]:
    info = {
        "uuid": str(uuid.uuid5(NAMESPACE, f"ewe/{lab.name}/{way.name}")),
        "title": lab.title,
        "topic": "Concurrency",
        "type": "v3",
        "gradingMethod": "External",
        "externalGradingOptions": {
            "enabled": True,
            "image": "prairielearn/grader-python",
            "entrypoint": "/grade/tests/run.sh",
            "timeout": 300,
            "enableNetworking": True,  # off by default, and run.sh installs ewe
        },
    }
    files = "".join(
        f'<pl-file-upload file-names="{name}"></pl-file-upload>\n' for name in (*way.work, *way.data)
    )
    run = (
        f"#!/bin/sh\n{INSTALL} >&2\nmkdir -p /grade/results\ncd /grade/student\n"
        f"{grade(lab, way, '--prairielearn /grade/results/results.json', given='/grade/tests/given')}\ntrue\n"
    )
    page = (
        f"<pl-question-panel>\n<markdown>\n{lab.read('text.md').strip()}\n</markdown>\n</pl-question-panel>\n"
    )
    results = "<pl-external-grader-results></pl-external-grader-results>"
    panel = f"<pl-submission-panel>\n{results}\n</pl-submission-panel>\n"
    return {
        "info.json": json.dumps(info, indent=4) + "\n",
        "question.html": page + files + panel,
        "tests/run.sh": run,
    }


def devcontainer(lab: Lab, way: Way) -> dict[str, str]:
    """Return a development container: the same system on each laptop, with ewe and the language's tools."""
    build = f"{way.build} && " if way.build else ""
    command = f"{build}ewe-grade --lab {lab.name} {way.grade}"
    table: dict[str, object] = {
        "name": f"ewe: {lab.name}",
        "image": "mcr.microsoft.com/devcontainers/python:3.12",
        "postCreateCommand": INSTALL.replace("python3 -m ", ""),
        "postAttachCommand": f"echo 'Grade your server with:'; echo {shlex.quote(command)}",
    }
    if way.name == "go":
        table["features"] = {"ghcr.io/devcontainers/features/go:1": {}}
    return {".devcontainer/devcontainer.json": json.dumps(table, indent=4) + "\n"}


PLATFORMS: dict[str, Callable[[Lab, Way], dict[str, str]]] = {
    "gradescope": gradescope,
    "classroom50": classroom50,
    "github": github,
    "autolab": autolab,
    "prairielearn": prairielearn,
    "devcontainer": devcontainer,
}

GIVEN_IN = {"gradescope": "given", "autolab": f"{AUTOGRADE}/given", "prairielearn": "tests/given"}


# Where a platform tells a shell script who submitted: the account at GitHub, the e-mail address at Gradescope.
WHO = {
    "gradescope": """"$(python3 -c 'import json; print(json.load(open("/autograder/submission_metadata.json"))"""
    """["users"][0]["email"])')\"""",
    "classroom50": "$GITHUB_ACTOR",
    "github": "$GITHUB_ACTOR",
}


def pack(lab: Lab, way: Way, platform: str, directory: Path, *, seeded: bool = False) -> list[Path]:
    """Write a lab's pack for a platform; return the files. Raises ConfigError.

    seeded: each student is graded with the numbers of a seed (seeds.py), the name that the platform knows.
    """
    files = PLATFORMS[platform](lab, way)
    if seeded:
        if platform not in WHO:
            raise ConfigError(
                f"--seeded: {platform} tells no name to a grader; it can be {', '.join(sorted(WHO))}"
            )
        start = f"ewe-grade --lab {lab.name} "
        files = {name: text.replace(start, f"{start}--seed {WHO[platform]} ") for name, text in files.items()}
    if folder := GIVEN_IN.get(platform):
        for name in way.given:  # a student's file of the same name is replaced by the lab's own
            files[f"{folder}/{name}"] = lab.files(way, solved=True)[name]
    written = []
    try:
        for name, text in files.items():
            path = directory / name
            if path.exists():
                raise ConfigError(f"{path} is there already; choose another directory")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(EXECUTABLE)
            written.append(path)
        if platform == "autolab":
            written.append(archived(directory / AUTOGRADE))
    except OSError as reason:
        raise ConfigError(f"{reason.filename}: {reason.strerror}") from None
    return written


def archived(folder: Path) -> Path:
    """Write FOLDER.tar with what is in the folder, beside it; return its path."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for each in sorted(folder.iterdir()):
            archive.add(each, each.name)
    return path
