"""Packs: each platform grades a good submission and three bad ones; the scripts; the wheels; the command."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from installed_wheels import library_wheels
from pack_platforms import PLATFORMS, Played, unpacked
from pack_submissions import broken, forges, good, spins

from ewe.config.messages import ConfigError
from ewe_classroom.course import cli, labs, packs, wheels
from ewe_classroom.course.archives import tar_of, zip_of
from ewe_classroom.course.pack_plan import PackPlan
from ewe_classroom.course.pack_scripts import root_script

SUBMISSIONS = {
    # the submission: the checks, the points that the platform shows, of how many, and its words
    good: (("own-answers",), 5, 5, "own-answers"),
    broken: (("own-answers",), 0, 5, "syntax|build ended"),
    spins: (("idle-cpu",), 0, 6, "idle"),
    forges: (("own-answers",), 0, 5, "before it listened"),
}
CLUSTER = Path(__file__).parents[1] / "docs" / "cluster"
PLATFORM_LANGUAGES = [*((name, "python") for name in PLATFORMS), ("gradescope", "c"), ("autolab", "c")]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return library_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def all_wheels(libraries: list[Path]) -> wheels.Wheels:
    return wheels.collect(libraries)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which packs install ewe: the first test installs, and the others use it."""
    directory = tmp_path_factory.mktemp("installed")
    directory.chmod(0o755)
    return directory / "ewe"


def plan(wheels: wheels.Wheels, language: str = "python", lab: str = "thread", **more: object) -> PackPlan:
    found = labs.lab(lab)
    return PackPlan(found, found.variants[language], wheels, **more)  # type: ignore[arg-type]


# The platforms


@pytest.mark.needs("root", "gcc")
@pytest.mark.starts_processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sent", SUBMISSIONS, ids=lambda sent: sent.__name__)
@pytest.mark.parametrize(("platform", "language"), PLATFORM_LANGUAGES)
def test_a_platform_grades(
    tmp_path: Path, all_wheels: wheels.Wheels, installed: Path, platform: str, language: str,
    sent: Callable[[str, Path], None],
) -> None:  # fmt: skip
    """The good submission in Python also installs the pack, without a network: in C, the same lines install it."""
    checks, score, points, says = SUBMISSIONS[sent]
    (tmp_path / "of-the-test").touch()
    ewe = tmp_path / "ewe" if sent is good and language == "python" else installed
    played = Played(tmp_path, ewe, packs.pack(plan(all_wheels, language), platform), checks)
    table = PLATFORMS[platform](played, lambda folder: sent(language, folder))
    assert (table.score, table.points) == (score, points), played.output
    assert re.search(says, table.text) and "FORGED" not in table.text
    if sent is forges:
        assert (tmp_path / "precious").read_text() == "kept\n" and not (tmp_path / "forged").exists()


# A grader that is killed after it has written points; with --zero it writes what a real one would.
KILLED = """#!/bin/sh
for word; do
    case "$before" in --gradescope | --prairielearn | --classroom | --classroom50) file=$word ;; esac
    case "$word" in --zero) zero=1 ;; esac
    before=$word
done
[ -z "$file" ] || touch "${file%/*}/report.html"
if [ "$zero" ]; then
    [ -z "$file" ] || echo '{"score": 0, "max-score": 5, "max_score": 5, "status": "fail", "tests": [], "zero": 1,
        "classroom": "os", "assignment": "pool", "submission": "submit/1"}' > "$file"
    echo '{"scores": {"own-answers": 0}}'
    exit 2
fi
[ -z "$file" ] || echo '{"score": 149, "tests": [], "FORGED": 1}' > "$file"
echo '{"scores": {"own-answers": 5}}'
kill -9 $$
"""


@pytest.mark.needs("root")
@pytest.mark.starts_processes
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_killed_grader_is_a_zero(tmp_path: Path, all_wheels: wheels.Wheels, platform: str) -> None:
    (tmp_path / "ewe" / "bin").mkdir(parents=True)
    grader = tmp_path / "ewe" / "bin" / "ewe-grade"
    grader.write_text(KILLED)
    grader.chmod(0o755)
    played = Played(tmp_path, tmp_path / "ewe", packs.pack(plan(all_wheels), platform), ("own-answers",))
    table = PLATFORMS[platform](played, lambda folder: None)
    assert table.score == 0 and "FORGED" not in table.text


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_script_that_is_not_root_grades_nothing(tmp_path: Path) -> None:
    script = root_script("echo graded", source=".", result=str(tmp_path / "result"))
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "as root" in done.stderr and "graded" not in done.stdout


@pytest.mark.parametrize("platform", packs.PLATFORMS)
@pytest.mark.parametrize("language", ["python", "c", "go", "model"])
@pytest.mark.starts_processes
def test_each_pack_is_well_formed(platform: str, language: str) -> None:
    made = plan({"a.whl": b"PK"}, language)
    if platform == "prairielearn" and language == "go":
        with pytest.raises(ConfigError, match="python or c"):
            packs.pack(made, platform)
        return
    files = packs.pack(made, platform)
    assert [name for name in files if name.endswith("/a.whl")]
    for name, content in files.items():
        if content.startswith(b"#!"):
            subprocess.run(["bash", "-n"], input=content, check=True)
        if name.endswith(".json"):
            json.loads(content)
        if name.endswith(".py"):
            compile(content, name, "exec")
    if platform not in ("autolab", "devcontainer"):
        given = {name.rpartition("/")[2] for name in files if "/given/" in f"/{name}"}
        assert given == set(made.variant.given)


@pytest.mark.parametrize("language", ["python", "c", "model"])
def test_the_question_of_prairielearn_has_the_words_of_its_language(language: str) -> None:
    """Its HTML is a template of PrairieLearn: an unfilled word of the text would be a hole in the page."""
    files = packs.pack(plan({"a.whl": b"PK"}, language, "pool"), "prairielearn")
    page = files["question.html"].decode()
    assert re.findall(r"\{\{(.*?)\}\}", page) == ["options.client_files_question_url"]
    assert "<!--" not in page and b"<svg" in files["clientFilesQuestion/test-again.svg"]


@pytest.mark.starts_processes
def test_an_assessment_of_autolab_has_a_problem_for_each_check(all_wheels: wheels.Wheels) -> None:
    made = plan(all_wheels, lab="pool")
    files = unpacked(packs.pack(made, "autolab")["pool.tar"])
    settings = json.loads(files["pool/pool.yml"].decode().removeprefix("---\n"))
    assert "module Pool" in files["pool/pool.rb"].decode()
    points = {problem["name"]: problem["max_score"] for problem in settings["problems"]}
    assert points == {item.check.name: item.points for item in made.checks} and "queue-races" in points
    assert len(json.loads(settings["scoreboard"]["colspec"])["scoreboard"]) == 2
    assert 10 <= settings["autograder"]["autograde_timeout"] <= 900


# Wheels and archives


@pytest.mark.starts_processes
def test_the_same_inputs_make_the_same_pack(libraries: list[Path], all_wheels: wheels.Wheels) -> None:
    again = wheels.collect(libraries)
    assert again == all_wheels
    for platform in packs.PLATFORMS:
        first, second = (packs.pack(plan(each), platform) for each in (all_wheels, again))
        assert first == second and zip_of(first) == zip_of(dict(reversed(second.items())))
        assert tar_of(first) == tar_of(dict(reversed(second.items())))


def test_a_requirement_of_another_python_is_in_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {
        "ewe-classroom": ["ewe-server==0.1.0", "jinja2<4,>=3.1", "x; extra == 'similarity'"],
        "jinja2": ['no-such-distribution>=4.4; python_version < "3.10"'],
    }
    monkeypatch.setattr(wheels.metadata, "requires", needs.get)
    assert [each.partition("==")[0] for each in wheels.requirements()] == ["jinja2"]


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        (
            ["no-such-distribution>=1"],
            "ewe-classroom needs no-such-distribution, which is not installed here",
        ),
        (['no-such-distribution; python_version >= "3.9"'], "needs no-such-distribution, which is not"),
        (['no-such-distribution; python_version < "3.12"'], "needs no-such-distribution, which is not"),
        (None, "ewe-classroom is not installed here"),
    ],
)
def test_a_library_that_is_not_installed_is_said_in_one_line(
    needs: list[str] | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the pack would be written, and could not be installed."""

    def requires(name: str) -> list[str]:
        if needs is None:
            raise wheels.metadata.PackageNotFoundError(name)
        return needs

    monkeypatch.setattr(wheels.metadata, "requires", requires)
    with pytest.raises(ConfigError, match=says):
        wheels.requirements()


def test_the_wheel_of_a_library_replaces_it_however_its_name_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = {"ewe-classroom": ["Ruamel.YAML_clib>=1"], "ruamel-yaml-clib": []}
    monkeypatch.setattr(wheels.metadata, "requires", needs.get)
    monkeypatch.setattr(wheels.metadata, "version", lambda name: "1.0")
    assert wheels.requirements() == ["ruamel-yaml-clib==1.0"]
    assert wheels.project_of("ruamel.yaml_clib-1.0-py3-none-any.whl") == "ruamel-yaml-clib"


@pytest.mark.starts_processes
def test_a_zip_file_keeps_the_execute_bits(tmp_path: Path, all_wheels: wheels.Wheels) -> None:
    packs.write(packs.pack(plan(all_wheels), "gradescope"), tmp_path / "pack.zip")
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        modes = {each.filename: each.external_attr >> 16 & 0o777 for each in archive.infolist()}
    assert modes["run_autograder"] == modes["setup.sh"] == 0o755 and modes["given/conversation.py"] == 0o644
    with pytest.raises(ConfigError, match="exists already"):
        packs.write({}, tmp_path / "pack.zip")


@pytest.mark.starts_processes
def test_no_solution_is_in_a_pack(all_wheels: wheels.Wheels) -> None:
    (content,) = (each for name, each in all_wheels.items() if name.startswith("ewe_classroom"))
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        names = [name for name in wheel.namelist() if "/labs/" in name]
        record = wheel.read(next(name for name in wheel.namelist() if name.endswith("/RECORD"))).decode()
    kept = [name for name in names if not name.endswith((".toml", ".md"))]
    assert kept == ["ewe_classroom/labs/shared/test_queue.py"]
    assert "labs/pool/grading.toml" in record and "labs/pool/server.py" not in record


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("pool.zip", b"", "not the name of a wheel"),
        ("ewe_server-9.9.9-py3-none-any.whl", b"", "version 9.9.9"),
        ("jinja2-3.1.6-py3-none-any.whl", b"PK", "no whole wheel"),
        ("jinja2-3.1.6-py3-none-any.whl", None, "No such file"),
    ],
)
def test_a_wrong_wheel_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    words = ["pack", "pool", str(tmp_path / "p"), "--for", "gradescope", "--wheel", str(tmp_path / name)]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not (tmp_path / "p").exists()


def test_a_damaged_wheel_of_the_classroom_is_refused() -> None:
    whole = zip_of({"a.py": b"pool", "a.dist-info/RECORD": b""})
    content = whole.index(b"a.py") + len(b"a.py")
    damaged = whole[:content] + b"\xff" + whole[content + 1 :]
    for wheel in (damaged, zip_of({"a.py": b"pool"})):
        with pytest.raises(ConfigError, match="no whole wheel"):
            wheels.without_sources("ewe_classroom-0.1.0-py3-none-any.whl", wheel)


@pytest.mark.starts_processes
def test_a_pack_without_an_index_is_one_line(
    tmp_path: Path,
    all_wheels: wheels.Wheels,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index has the libraries, so that only they are missing: the wheels of ewe are built without it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(wheels, "PYTHONS", wheels.PYTHONS[:1])  # a pip for each, half a second of CPU time
    own = [tmp_path / name for name in all_wheels if wheels.project_of(name) in wheels.OWN_PROJECTS]
    for path in own:
        path.write_bytes(all_wheels[path.name])
    words = ["pack", "pool", str(tmp_path / "p"), "--for", "gradescope", "--wheel", *map(str, own)]
    assert len(own) == 3 and cli.main(words) == 2
    said = capsys.readouterr().err
    assert "--wheel" in said and said.count("\n") == 1 and not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("file", "cannot write {top}/file: Not a directory"),
        ("file/pool.zip", "cannot write {top}/file/pool.zip: Not a directory"),
        ("pool.zip", "{top}/pool.zip exists already"),
        ("begun", "{top}/begun/setup.sh exists already"),
    ],
)
def test_a_target_that_cannot_be_written_is_said_before_the_wheels_are_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    says: str,
) -> None:
    def collect(given: object) -> wheels.Wheels:
        raise AssertionError("pip is at work")

    monkeypatch.setattr(wheels, "collect", collect)
    (tmp_path / "begun").mkdir()
    for name in ("file", "pool.zip", "begun/setup.sh"):
        (tmp_path / name).touch()
    assert cli.main(["pack", "pool", str(tmp_path / target), "--for", "gradescope"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ewe-course: " + says.format(top=tmp_path)) and said.count("\n") == 1
    assert len(list(tmp_path.rglob("*"))) == 4


def test_a_pack_creates_the_directories_of_its_target(tmp_path: Path) -> None:
    for target in (tmp_path / "a" / "pool.zip", tmp_path / "b" / "pool"):
        assert packs.write({"tests/run.sh": b"#!/bin/sh\n"}, target)
        assert target.exists()


@pytest.mark.starts_processes
def test_the_command_writes_a_pack(
    tmp_path: Path, all_wheels: wheels.Wheels, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [tmp_path / name for name in all_wheels]
    for path in given:
        path.write_bytes(all_wheels[path.name])
    words = ["pack", "pool", "--for", "github", "--own", "conversation.py", str(tmp_path / "p")]
    assert cli.main([*words, "--wheel", *map(str, given)]) == 0
    assert str(tmp_path / "p" / ".github" / "ewe" / "grade.sh") in capsys.readouterr().out
    assert "--own conversation.py" in (tmp_path / "p" / ".github" / "ewe" / "grade.sh").read_text()
    assert {path.name for path in (tmp_path / "p").rglob("*.whl")} == all_wheels.keys()


# The choices of a lecturer


@pytest.mark.parametrize(
    ("language", "own", "platform", "seeded", "says"),
    [
        ("c", "Makefile", "gradescope", False, "choose conversation.c or conversation.h"),
        ("python", "server.py", "gradescope", False, "choose conversation.py"),
        ("model", "conversation.py", "gradescope", False, "gives none"),
        ("python", "", "autolab", True, "no student's name"),
    ],
)
def test_a_choice_that_a_platform_does_not_have(
    language: str, own: str, platform: str, seeded: bool, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        packs.pack(plan({}, language, own=(own,) if own else (), seeded=seeded), platform)


@pytest.mark.starts_processes
def test_a_group_has_the_seed_of_the_first_address(tmp_path: Path) -> None:
    """It makes no difference which member hands in."""
    script = packs.pack(plan({}, seeded=True), "gradescope")["run_autograder"].decode()
    (seed,) = set(re.findall(r'--seed=("\$\(.*?\)")', script))
    found = set()
    users = [{"email": "Zoe@example.org", "name": "Zoe"}, {"email": "ada@example.org", "name": "Ada"}]
    for order in (users, users[::-1]):
        (tmp_path / "submission_metadata.json").write_text(json.dumps({"users": order}))
        text = seed.replace("/autograder", str(tmp_path)).replace("/var/lib/ewe/bin/python", "python3")
        found.add(subprocess.check_output(["sh", "-c", f"echo {text}"], text=True))
    assert found == {"ada@example.org\n"}


@pytest.mark.parametrize("platform", packs.PLATFORMS)
def test_a_pack_grades_by_the_lecturers_own_scheme(tmp_path: Path, platform: str) -> None:
    own = tmp_path / "my pool.toml"
    own.write_text('[[check]]\nname = "stop"\npoints = 7\n')
    files = packs.pack(plan({}, lab="pool", scheme_file=own), platform)
    if platform == "autolab":
        files = unpacked(files["pool.tar"])
        assert [each["max_score"] for each in json.loads(files["pool/pool.yml"][4:])["problems"]] == [7]
        files = unpacked(files["pool/autograde.tar"])
    (name,) = [name for name in files if name.endswith(own.name)]
    assert files[name] == own.read_bytes()
    texts = [text.decode() for other, text in files.items() if other != name]
    assert [text for text in texts if re.search(r"ewe-grade --lab \S+/\S*my pool\.toml", text)]


@pytest.mark.needs("root")
@pytest.mark.starts_processes
@pytest.mark.timeout(300)
def test_a_platform_grades_a_folder_by_the_lecturers_own_scheme(
    tmp_path: Path, all_wheels: wheels.Wheels, installed: Path
) -> None:
    own = tmp_path / "thread.toml"
    own.write_text('[[check]]\nname = "own-answers"\npoints = 9\n')
    files = packs.pack(plan(all_wheels, scheme_file=own), "gradescope")

    def hand_in(folder: Path) -> None:
        (folder / "lab 3").mkdir()
        good("python", folder / "lab 3")

    played = Played(tmp_path, installed, files, ("own-answers",))
    table = PLATFORMS["gradescope"](played, hand_in)
    assert (table.score, table.points) == (9, 9), played.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "name a file such as"),
        ('subject = "data"\n[[check]]\nname = "runs-complete"\n', "the lab pool has server"),
        ('[[check]]\nname = "stpo"\n', "no check is called"),
    ],
)
def test_a_scheme_that_suits_no_lab_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    own = tmp_path / "pool.toml"
    if text is not None:
        own.write_text(text)
    with pytest.raises(ConfigError, match=says):
        packs.check_plan(plan({}, lab="pool", scheme_file=own), "gradescope")


# Clusters


@pytest.mark.starts_processes
def test_the_tasks_of_a_job_array_grade_each_submission_once(tmp_path: Path) -> None:
    """The command of the pods in class.yaml takes the same shares."""
    names = [f"student {number}" for number in range(7)]
    for name in names:
        (tmp_path / "submissions" / name).mkdir(parents=True)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "ewe-course").write_text('#!/bin/sh\nls "$2"; echo "$@" >&2\n')
    (bin_ / "ewe-course").chmod(0o755)
    found: list[str] = []
    for task in range(8):
        environ = {
            "PATH": f"{bin_}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "8",
            "SUBMISSIONS": str(tmp_path / "submissions"), "RESULTS": str(tmp_path / "results"), "LAB": "pool",
        }  # fmt: skip
        done = subprocess.run(
            ["bash", CLUSTER / "class.slurm"], env=environ, capture_output=True, text=True, check=True
        )
        found += done.stdout.splitlines()
        assert not done.stderr or f"--lab pool --jobs 1 --output {tmp_path}/results/{task}" in done.stderr
    assert sorted(found) == names
    assert "$((number % SHARES)) -eq" in (CLUSTER / "class.yaml").read_text()


def class_of(folder: Path, good: int, broken: int) -> None:
    """Write submissions to the lab serial: `good` solutions, and `broken` files that are not Python."""
    found = labs.lab("serial")
    variant = found.variants["python"]
    for number in range(good + broken):
        (folder / f"student {number}").mkdir(parents=True)
        for name, text in found.files(variant, solved=True).items():
            if name in variant.work:
                (folder / f"student {number}" / name).write_text(text if number < good else "no program {")


def cluster_environ(top: Path) -> dict[str, str]:
    """Return the environment of a task: `ewe-course` is this Python's, and all directories are in `top`."""
    command = shlex.join([sys.executable, "-m", "ewe_classroom.course.cli"])
    # Another account may not be able to read this Python
    user = " --user root" if os.geteuid() == 0 else ""
    (top / "bin").mkdir()
    (top / "bin" / "ewe-course").write_text(f'#!/bin/sh\nexec {command} "$@"{user}\n')
    (top / "bin" / "ewe-course").chmod(0o755)
    more = {"PATH": f"{top / 'bin'}:{os.environ['PATH']}", "HOME": str(top), "LAB": "serial", "SHARES": "3"}
    return os.environ | more | {"SUBMISSIONS": str(top / "pool"), "RESULTS": str(top / "pool-shares")}


def pods_script(top: Path) -> str:
    """Return the shell script of a pod in class.yaml, with the directories of `top`."""
    script = (CLUSTER / "class.yaml").read_text().partition("- |\n")[2].partition("resources:")[0]
    for mounted, here in (("/submissions", "pool"), ("/results", "pool-shares"), ("/tmp/share", "share")):
        script = script.replace(mounted, str(top / here))
    return script


@pytest.mark.starts_processes
@pytest.mark.parametrize(("file", "good"), [("class.slurm", 1), ("class.yaml", 0)])
def test_three_shares_are_merged_and_nothing_is_graded_again(tmp_path: Path, file: str, good: int) -> None:
    """The commands of class.slurm's own comment merge the shares."""
    class_of(tmp_path / "pool", good, 6 - good)
    (tmp_path / "pool").chmod(0o700)
    environ = cluster_environ(tmp_path)
    for task in map(str, range(3)):
        numbers = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "3", "JOB_COMPLETION_INDEX": task}
        script = [str(CLUSTER / file)] if file == "class.slurm" else ["-euc", pods_script(tmp_path)]
        subprocess.run(["bash", *script], env=environ | numbers, stdout=subprocess.DEVNULL, check=True)
        shutil.rmtree(tmp_path / "share", ignore_errors=True)  # each pod has a separate /tmp
    graded = {path.parent.name: path for path in tmp_path.glob("pool-shares/*/students/*/graded.json")}
    assert len(graded) == 6
    comment = (CLUSTER / "class.slurm").read_text()
    merge = "\n".join(re.findall(r"^#   ((?:mkdir|ewe-course) .*)$", comment, re.M))
    assert merge.count("\n") == 1
    merge = merge.replace("--lab pool", "--lab serial")
    subprocess.run(["bash", "-euc", merge], env=environ, stdout=subprocess.DEVNULL, check=True)
    for name, path in graded.items():
        merged = tmp_path / "pool-marks" / "students" / name / "graded.json"
        assert merged.stat().st_mtime_ns == path.stat().st_mtime_ns, name
    with (tmp_path / "pool-marks" / "marks.csv").open(newline="") as file:
        marks = [row["mark"] for row in csv.DictReader(file)]
    assert marks == ["119"] * good + ["0"] * (6 - good)
