"""Packs: the files with which a course's platform grades a lab. A pack is a directory or a zip file.

    gradescope      setup.sh and run_autograder, in a zip file; the result is results/results.json
    github          GitHub Classroom and GitHub Actions: a workflow that reports the points
    classroom50     autograder.py for the configuration repository; the result is result.json
    autolab         an assessment to import, with its problems, and a Dockerfile for the image that grades
    prairielearn    a question, with the starter and a grader; the result is results/results.json
    devcontainer    a container for editors (containers.dev), in which students write and grade their server

A pack contains all that it needs: the wheels of ewe and of its libraries (wheels.py), and the lab's own files. It
contains no data about the course, such as names and dates: the lecturer enters them on the platform.

A student has sent the submission, and wants a better mark. Each pack therefore keeps four rules:

    the submission and the result have different accounts    ewe-grade runs as root, the submission does not
    only the named files are graded                          ewe-grade --work copies them, and builds the copy
    the grader's files come last                             nothing that was sent can replace them
    a killed grader is a zero                                a status of 128 or more: --zero writes the result

Read next: pack_scripts.py, which writes the shell scripts; pack_autolab.py; ../grader/submission.py, which copies a
submission.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

from ewe import __version__
from ewe.config.messages import ConfigError
from ewe_classroom.course.archives import mode_of, zip_of
from ewe_classroom.course.own_parts import check_own_files, lab_scheme
from ewe_classroom.course.pack_autolab import autolab
from ewe_classroom.course.pack_plan import GRADING_S, TOOLS, Files, PackPlan
from ewe_classroom.course.pack_scripts import OBEY_COMMANDS, STOP_COMMANDS, install, root_script
from ewe_classroom.grader.formats import check_directory, check_writable

NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122: names that are URLs
PRAIRIELEARN_IMAGE = "python:3.12-bookworm"  # has gcc and make, too

# A group on Gradescope has one seed: the address of the member that comes first in the alphabet. Which member hands
# in makes no difference.
GRADESCOPE_SEED = (
    '$(/var/lib/ewe/bin/python -I -c \'import json; print(min((each["email"] or each["name"]).lower()'
    ' for each in json.load(open("/autograder/submission_metadata.json"))["users"]))\')'
)


def gradescope(plan: PackPlan) -> Files:
    """Return setup.sh, which runs once when the image is built, and run_autograder, which runs for each submission.

    https://gradescope-autograders.readthedocs.io/en/latest/specs/. Both run as root. The default image has Ubuntu
    22.04 with Python 3.10, which is too old for ewe, so setup.sh installs Python 3.11.
    """
    tools = f" {TOOLS[plan.variant.name]}" if plan.variant.name in TOOLS else ""
    # If the first apt-get fails, the script goes on: install() says whether a suitable Python is there.
    setup = (
        "#!/usr/bin/env bash\nset -e\n"
        f"apt-get update && apt-get install -y python3-venv{tools} || echo 'apt-get failed; see above' >&2\n"
        "python3 -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||"
        " apt-get install -y python3.11 python3.11-venv\n" + install("/autograder/source/wheels")
    )
    run = root_script(
        plan.command('--gradescope "$private/result"', "/autograder/source", GRADESCOPE_SEED),
        source="/autograder/submission",
        result="/autograder/results/results.json",
    )
    return {
        "setup.sh": setup.encode(),
        "run_autograder": run.encode(),
        **plan.grading_files(),
        **plan.wheel_files("wheels"),
    }


def github(plan: PackPlan) -> Files:
    """Return a workflow for the template repository, and the grader beside it.

    GitHub Classroom reads the points from the step of its reporter, which gets the results in base64
    (https://github.com/classroom-resources/autograding-grading-reporter). Without GitHub Classroom, the status of
    the step `Grade` says whether all checks have passed.
    """
    folder = ".github/ewe"
    outputs = '--classroom "$private/result" --html "$private/report.html" --junit "$private/report.xml"'
    script = root_script(
        plan.command(outputs, f'"$here/{folder}"', "$GITHUB_ACTOR"),
        source='"$here"',
        before="here=$PWD\n" + install(f"{folder}/wheels") + STOP_COMMANDS,
        after=OBEY_COMMANDS + 'mkdir -p "$RUNNER_TEMP/ewe" && cp "$private"/report.* "$RUNNER_TEMP/ewe"\n'
        'echo "result=$(base64 -w 0 < "$private/result")" >> "$GITHUB_OUTPUT"\n'
        'return "$status"\n',
    )
    tools = TOOLS.get(plan.variant.name)
    prepare = [f"      - run: sudo apt-get update && sudo apt-get install -y {tools}"] if tools else []
    lines = [
        "name: Autograding Tests", "'on': [push, workflow_dispatch, repository_dispatch]",
        "permissions:", "  checks: write", "  actions: read", "  contents: read",
        "jobs:", "  run-autograding-tests:", "    runs-on: ubuntu-latest", "    timeout-minutes: 10",
        "    if: github.actor != 'github-classroom[bot]'", "    steps:",
        "      - uses: actions/checkout@v4", "        with:", "          persist-credentials: false", *prepare,
        "      - name: Grade", "        id: ewe",
        "        run: sudo --preserve-env=GITHUB_ACTOR,GITHUB_OUTPUT,RUNNER_TEMP "
        f"sh {folder}/grade.sh",
        "      - uses: actions/upload-artifact@v4", "        if: always()", "        with:",
        "          name: report", "          path: ${{ runner.temp }}/ewe",
        "      - name: Autograding Reporter", "        if: always()",
        "        uses: classroom-resources/autograding-grading-reporter@v1", "        env:",
        '          EWE_RESULTS: "${{ steps.ewe.outputs.result }}"', "        with:", "          runners: ewe", "",
    ]  # fmt: skip
    return {
        ".github/workflows/classroom.yml": "\n".join(lines).encode(),
        f"{folder}/grade.sh": script.encode(),
        **plan.grading_files(folder),
        **plan.wheel_files(f"{folder}/wheels"),
    }


# The variables that the runner gives to an autograder, and that the result names (formats.to_classroom50).
CLASSROOM50_VARIABLES = (
    "CLASSROOM", "ASSIGNMENT", "ASSIGNMENT_TYPE", "OWNER", "SUBMISSION_TAG", "COMMIT_URL", "RELEASE_URL",
    "REVIEW_URL",
)  # fmt: skip
AUTOGRADER = '''\
"""Autograder of Classroom 50: the runner starts it in the student's checkout, once for each submission.

https://github.com/foundation50/classroom50/wiki/Advanced-Autograding. The files beside it are its bundle. It has to
write result.json into the checkout. The runner also publishes a release-body.md that it finds there, so one that a
student has committed is removed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
for name in ("result.json", "release-body.md"):
    path = Path(name)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
# Only root can give the submission another account. A container of the course runs as root anyway.
sudo = [] if os.geteuid() == 0 else ["sudo", "--preserve-env={variables}"]
done = subprocess.run([*sudo, "sh", str(here / "grade.sh"), str(here)], check=False)
# A status other than 0 means that the grader has failed, and not the submission.
sys.exit(done.returncode if done.returncode else not Path("result.json").is_file())
'''


def classroom50(plan: PackPlan) -> Files:
    """Return the bundle of an assignment: CLASSROOM/autograders/ASSIGNMENT in the configuration repository.

    autograder.py starts grade.sh in the student's checkout, with the directory of the bundle as its argument ($1).
    """
    script = root_script(
        plan.command('--classroom50 "$private/result"', '"$bundle"', "$OWNER"),
        source='"$here"',
        result='"$here/result.json"',
        before="here=$PWD bundle=$1\n" + install('"$bundle/wheels"') + STOP_COMMANDS,
        after=OBEY_COMMANDS
        + 'chown --reference="$here" "$here/result.json"\n',  # the runner completes the file
    )
    return {
        "autograder.py": AUTOGRADER.format(variables=",".join(CLASSROOM50_VARIABLES)).encode(),
        "grade.sh": script.encode(),
        **plan.grading_files(),
        **plan.wheel_files("wheels"),
    }


def prairielearn(plan: PackPlan) -> Files:
    """Return the files of a question. PrairieLearn runs the entry point as root in a new container of the image.

    https://docs.prairielearn.com/externalGrading/. It has no network, so the script installs from the pack.
    """
    info = {
        # uuid5() computes it from the name, so each pack of this lab has the same one.
        "uuid": str(uuid.uuid5(NAMESPACE, f"ewe/{plan.lab.name}/{plan.variant.name}")),
        "title": plan.lab.title,
        "topic": "Concurrency",
        "type": "v3",
        "gradingMethod": "External",
        "externalGradingOptions": {
            "enabled": True,
            "image": PRAIRIELEARN_IMAGE,
            "entrypoint": "/grade/tests/run.sh",
            "timeout": GRADING_S,
            "enableNetworking": False,
        },
    }
    script = root_script(
        plan.command('--prairielearn "$private/result"', "/grade/tests"),
        source="/grade/student",
        result="/grade/results/results.json",
        before=install("/grade/tests/wheels") + "mkdir -p /grade/results\n",
    )
    starter = plan.starter_files("clientFilesQuestion")
    text = plan.lab.in_language("text.md", plan.variant.name).strip()
    pictures = plan.lab.pictures(text, plan.variant.name)
    # PrairieLearn serves the files of the question below a URL that it inserts for this variable.
    for name in pictures:
        text = text.replace(f"]({name})", f"]({{{{options.client_files_question_url}}}}/{name})")
    links = [
        f'<pl-file-download file-name="{name.rpartition("/")[2]}"></pl-file-download>'
        for name in sorted(starter)
    ]
    optional = f' optional-file-names="{",".join(plan.own)}"' if plan.own else ""
    lines = [
        "<pl-question-panel>", "<markdown>", text, "</markdown>",
        f"<p>The starter: {' '.join(links)}</p>", "</pl-question-panel>",
        f'<pl-file-upload file-names="{",".join(plan.handed_in)}"{optional}></pl-file-upload>',
        "<pl-submission-panel>", "<pl-external-grader-results></pl-external-grader-results>",
        "<pl-file-preview></pl-file-preview>", "</pl-submission-panel>", "",
    ]  # fmt: skip
    return {
        "info.json": (json.dumps(info, indent=4) + "\n").encode(),
        "question.html": "\n".join(lines).encode(),
        "tests/run.sh": script.encode(),
        **starter,
        **{f"clientFilesQuestion/{name}": source.encode() for name, source in pictures.items()},
        **plan.grading_files("tests"),
        **plan.wheel_files("tests/wheels"),
    }


def devcontainer(plan: PackPlan) -> Files:
    """Return a development container: the same system on every laptop, with ewe and the tools of the language."""
    build = f"{plan.variant.build} && " if plan.variant.build else ""
    folder = ".devcontainer"
    command = f"{build}ewe-grade --lab {plan.lab_option(folder)} {plan.variant.grade}"
    wheels = f"{folder}/wheels"
    settings: dict[str, object] = {
        "name": f"ewe: {plan.lab.name}",
        "image": "mcr.microsoft.com/devcontainers/python:3.12",
        "postCreateCommand": f"pip install --no-index --find-links {wheels} ewe-classroom=={__version__}",
        "postAttachCommand": f"echo 'Grade your server with:'; echo {shlex.quote(command)}",
    }
    if plan.variant.name == "go":
        settings["features"] = {"ghcr.io/devcontainers/features/go:1": {}}
    return {
        ".devcontainer/devcontainer.json": (json.dumps(settings, indent=4) + "\n").encode(),
        **plan.scheme_files(folder),
        **plan.wheel_files(wheels),
    }


PLATFORMS: dict[str, Callable[[PackPlan], Files]] = {
    "gradescope": gradescope,
    "github": github,
    "classroom50": classroom50,
    "autolab": autolab,
    "prairielearn": prairielearn,
    "devcontainer": devcontainer,
}
SEEDED = ("gradescope", "github", "classroom50")  # the platforms that name the student to the grader


def check_plan(plan: PackPlan, platform: str) -> None:
    """Raise ConfigError if the platform cannot grade in the way of the plan."""
    if plan.seeded and platform not in SEEDED:
        raise ConfigError(
            f"--seeded: {platform} gives a grader no student's name; choose {' or '.join(SEEDED)}"
        )
    if platform == "prairielearn" and plan.variant.name == "go":
        raise ConfigError(
            "prairielearn: no public image has both Python and Go; choose --language python or c"
        )
    # A student may replace the code of an earlier lab, but not the build.
    check_own_files(plan.variant, plan.own)
    lab_scheme(plan.lab, plan.scheme_file)  # only to raise ConfigError for a wrong file


def pack(plan: PackPlan, platform: str) -> Files:
    """Return the files of the pack of a lab for a platform: name -> content. Raises ConfigError."""
    check_plan(plan, platform)
    return dict(sorted(PLATFORMS[platform](plan).items()))


def check_target(names: Collection[str], target: Path) -> None:
    """Raise ConfigError if a pack cannot be written to a directory or zip file. Nothing is overwritten.

    names: of the pack's files, as far as they are known.
    """
    is_zip = target.suffix == ".zip"
    paths = [target] if is_zip else [target / name for name in names]
    try:
        there = [path for path in paths if path.exists()]
    except OSError as reason:  # a name is too long, or a directory is closed
        raise ConfigError(f"cannot write {reason.filename or target}: {reason.strerror}") from None
    if there:
        raise ConfigError(f"{there[0]} exists already; choose another {'name' if is_zip else 'directory'}")
    if is_zip:
        check_writable(target)
        return
    for directory in dict.fromkeys((target, *((target / name).parent for name in names))):
        check_directory(directory)


def write(files: Files, target: Path) -> list[Path]:
    """Write a pack to a directory or to a zip file; return the written paths. Overwrite nothing.

    Raises ConfigError if a file exists already or cannot be written.
    """
    check_target(files, target)
    try:
        if target.suffix == ".zip":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(zip_of(files))
            return [target]
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode_of(content))
    except OSError as reason:
        raise ConfigError(f"cannot write {reason.filename or target}: {reason.strerror}") from None
    return [target / name for name in files]
