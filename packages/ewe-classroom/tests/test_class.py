"""`ewe-course grade`: the folders of the platforms, hostile archives, rules and tables of marks, and whole runs."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import importlib.util
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from classroom_server import ZOO, make_nested
from support import needs
from support.engines import heed_signals
from support.server import wait_until

from ewe.config.messages import ConfigError
from ewe.scratch import Scratch
from ewe_classroom.course import class_command, class_run, cli, marks, submissions
from ewe_classroom.course.class_run import ClassPlan, GradedHandIn
from ewe_classroom.course.labs import lab
from ewe_classroom.course.submissions import BadHandIn, HandIn

PROGRAM = "print('server')\n"


def put(path: Path, text: str = PROGRAM) -> Path:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def zipped(path: Path, members: dict[str, str]) -> Path:
    """Write a zip file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def files_of(each: HandIn, target: Path) -> dict[str, str]:
    """Return the files of a submission, as take_files() copies them: name -> text."""
    target.mkdir(parents=True)
    submissions.take_files(each, target)
    return {
        path.relative_to(target).as_posix(): path.read_text()
        for path in submissions.walk(target)
        if path.is_file()
    }


# The folders of the platforms


def moodle(top: Path) -> None:
    put(top / "Ada Lovelace_1001_assignsubmission_file_" / "server.py")
    put(top / "Bo_Di_1002_assignsubmission_file_" / "lib" / "server.py")


def moodle_flat(top: Path) -> None:
    put(top / "Ada Lovelace_1001_assignsubmission_file_server.py")
    put(top / "Bo_Di_1002_assignsubmission_file_server.py")


def canvas(top: Path) -> None:
    put(top / "lovelaceada_1001_77_server.py", "old")
    put(top / "lovelaceada_1001_78_server-1.py", "newer")
    put(top / "lovelaceada_1001_79_server-2.py")
    put(top / "dibo_LATE_1002_80_server.py")


def gradescope(top: Path) -> None:
    put(top / "submission_7" / "server.py")
    put(
        top / "submission_metadata.yml",
        "---\nsubmission_7:\n  :submitters:\n  - :name: Ada Lovelace\n    :sid: '1001'\n"
        "    :email: ada@example.org\n"
        "  :created_at: 2026-03-01 10:00:00.123 Z\n  :status: processed\n"
        "submission_8:\n  :submitters:\n  - :name: Bo Di\n    :sid: ''\n    :email: bo@example.org\n"
        "  :created_at: 2026-03-03 10:00:00 +0100\n",
    )


def github(top: Path) -> None:
    for name in ("ada", "bo"):
        repository = top / "pool-submissions" / f"pool-{name}"
        put(repository / "server.py")
        made = {
            **os.environ, "GIT_COMMITTER_DATE": "2026-03-01T10:00:00+00:00", "GIT_AUTHOR_NAME": name,
            "GIT_COMMITTER_NAME": name, "EMAIL": f"{name}@example.org", "HOME": str(top),
        }  # fmt: skip
        for words in (["init", "-q"], ["add", "server.py"], ["commit", "-q", "-m", "done"]):
            subprocess.run(["git", *words], cwd=repository, env=made, check=True, stdout=subprocess.DEVNULL)


def folders(top: Path) -> None:
    put(top / "Ada Lovelace" / "server.py")
    zipped(top / "Bo Di.zip", {"Bo Di/server.py": PROGRAM, "__MACOSX/._server.py": "x"})
    put(top / "Cy.py")


@pytest.mark.parametrize(
    ("layout", "names", "identity"),
    [
        (moodle, ["Ada Lovelace", "Bo_Di"], {"Identifier": "Participant 1001", "Full name": "Ada Lovelace"}),
        (
            moodle_flat,
            ["Ada Lovelace", "Bo_Di"],
            {"Identifier": "Participant 1001", "Full name": "Ada Lovelace"},
        ),
        (canvas, ["dibo", "lovelaceada"], {"Student": "dibo", "ID": "1002"}),
        (
            gradescope,
            ["Ada Lovelace", "Bo Di"],
            {"Name": "Ada Lovelace", "SID": "1001", "Email": "ada@example.org"},
        ),
        pytest.param(
            github,
            ["ada", "bo"],
            {"GitHub": "ada"},
            marks=[pytest.mark.needs("git"), pytest.mark.starts_processes],
        ),
        (folders, ["Ada Lovelace", "Bo Di", "Cy"], {"name": "Ada Lovelace"}),
    ],
)
def test_the_folders_of_platforms(
    tmp_path: Path, layout: Callable[[Path], None], names: list[str], identity: dict[str, str]
) -> None:
    layout(tmp_path / "class")
    found = submissions.read(tmp_path / "class")
    assert found.platform == layout.__name__.partition("_")[0]
    assert [each.name for each in found.hand_ins] == names
    assert found.hand_ins[0].identity == identity
    for number, each in enumerate(found.hand_ins):
        if each.problem:
            continue
        assert "/" not in each.key and " " not in each.key
        target = tmp_path / f"to{number}"
        files = files_of(each, target)
        if each.name != "Cy":
            assert files[
                (submissions.directory_of(target, ["server.py"]) / "server.py").relative_to(target).as_posix()
            ]
            assert PROGRAM in files.values() and "old" not in files.values()


def test_the_name_of_a_file_puts_it_into_no_submission_of_another_student(tmp_path: Path) -> None:
    """If Moodle puts all files into one folder, a student chooses the end of each name."""
    put(tmp_path / "class" / "Ada Lovelace_1001_assignsubmission_file_x_1002_assignsubmission_file_server.py")
    put(tmp_path / "class" / "Bo Di_1002_assignsubmission_file_server.py")
    ada, bo = submissions.read(tmp_path / "class").hand_ins
    assert (ada.name, len(ada.source)) == ("Ada Lovelace", 1)
    assert (bo.name, [name for _, name in bo.source]) == ("Bo Di", ["server.py"])


def test_a_folder_with_the_name_of_an_archive_is_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "pool.zip" / "server.py")
    files = files_of(HandIn("a", "a", [(tmp_path / "ada", "")]), tmp_path / "to")
    assert files == {"pool.zip/server.py": PROGRAM}


def test_when_a_platform_says_so_a_submission_has_a_time(tmp_path: Path) -> None:
    gradescope(tmp_path / "g")
    first, second = submissions.read(tmp_path / "g").hand_ins
    assert first.sent == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert second.sent == datetime(2026, 3, 3, 9, tzinfo=UTC)
    assert "submission_8: this folder is missing" in second.problem
    canvas(tmp_path / "c")
    late, on_time = submissions.read(tmp_path / "c").hand_ins
    assert late.late and not on_time.late and late.sent is None


@pytest.mark.needs("git")
@pytest.mark.starts_processes
def test_a_repository_has_the_time_of_its_last_commit_and_runs_no_program_of_its_own(tmp_path: Path) -> None:
    github(tmp_path)
    repository = tmp_path / "pool-submissions" / "pool-ada"
    trap = put(tmp_path / "trap", f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "gpg.program", "core.hooksPath"):
        subprocess.run(["git", "config", key, str(trap)], cwd=repository, check=True)
    subprocess.run(["git", "config", "log.showSignature", "true"], cwd=repository, check=True)
    assert submissions.last_commit(repository) == datetime(2026, 3, 1, 10, tzinfo=UTC)
    # A partial clone fetches a missing commit with the program that its address names
    head = (repository / ".git" / "HEAD").read_text().split()[-1]
    commit = (repository / ".git" / head).read_text().strip()
    (repository / ".git" / "objects" / commit[:2] / commit[2:]).unlink()
    for key, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::{trap}"),
        ("protocol.ext.allow", "always"),
    ):
        subprocess.run(["git", "config", key, value], cwd=repository, check=True)
    assert submissions.last_commit(repository) is None
    assert not (tmp_path / "sprung").exists()


READS_COMMIT = """
import resource, sys
from pathlib import Path
from ewe_classroom.course import submissions

submissions.MAX_GIT_BYTES = 32 << 20
print(submissions.last_commit(Path(sys.argv[1])), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""


@pytest.mark.needs("git")
@pytest.mark.starts_processes
def test_a_commit_that_is_large_in_memory_has_no_time(tmp_path: Path) -> None:
    """Its object takes 120 KB on the disk, and with ten gigabytes of zeros it takes ten megabytes."""
    github(tmp_path)
    repository = tmp_path / "pool-submissions" / "pool-ada"
    head = repository / ".git" / (repository / ".git" / "HEAD").read_text().split()[-1]
    size = 128 << 20
    commit = put(repository / ".git" / "objects" / "12" / ("34" * 19))
    commit.write_bytes(zlib.compress(b"commit %d\0" % size + bytes(size), 1))
    head.write_text("12" + "34" * 19 + "\n")
    done = subprocess.run(
        [sys.executable, "-c", READS_COMMIT, str(repository)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    found, megabytes = done.stdout.split()
    assert found == "None" and int(megabytes) < 128


def test_a_commit_without_a_time_is_a_remark() -> None:
    """A student who is late could hand in a commit that cannot be read."""
    for sent, says in (
        (None, "the time of the last commit cannot be read; no late day is counted"),
        (DUE, ""),
    ):
        result = graded("ada", identity={"GitHub": "ada"}, sent=sent)
        mark = marks.mark_of(result, marks.MarkRules(due=DUE, percent_per_day=50.0), 100, {})
        assert marks.remark(mark) == says


@pytest.mark.needs("git", "root")
@pytest.mark.starts_processes
def test_a_repository_of_another_account_has_the_time_of_its_last_commit(tmp_path: Path) -> None:
    """As root, git takes such a repository for unsafe. Without the time, no submission would be late."""
    github(tmp_path)
    repository = tmp_path / "pool-submissions" / "pool-ada"
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 65534, 65534)
    assert submissions.last_commit(repository) == datetime(2026, 3, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda top: None, "no submissions"),
        (lambda top: put(top / ".hidden"), "no submissions"),
        (lambda top: top.rmdir(), "No such file"),
    ],
)
def test_a_folder_without_submissions_is_said(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    top = tmp_path / "class"
    top.mkdir()
    make(top)
    with pytest.raises(ConfigError, match=says):
        submissions.read(top)


@pytest.mark.parametrize(("make", "platform"), [(moodle, "moodle"), (canvas, "canvas")])
def test_a_table_beside_the_submissions_does_not_hide_the_platform(
    tmp_path: Path, make: Callable[[Path], None], platform: str
) -> None:
    make(tmp_path)
    put(tmp_path / "worksheet.csv", "Identifier,Grade\n")
    found = submissions.read(tmp_path)
    assert found.platform == platform and [each.name for each in found.hand_ins][-1] == "worksheet"
    assert len(found.hand_ins) == 3


def test_a_class_of_one_student_with_a_folder_has_one_submission(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "server.py")
    put(tmp_path / "ada" / "tests" / "test.py")
    assert [each.name for each in submissions.read(tmp_path, "server.py").hand_ins] == ["ada"]


def test_two_students_of_one_name_have_directories_of_their_own() -> None:
    found = [
        HandIn("Ann", "Ann"),
        HandIn("ann", "ann"),
        HandIn("../..", "../.."),
        HandIn("-rf", "-rf"),
        HandIn("", ""),
    ]
    submissions.make_keys_unique(found)
    keys = [each.key for each in found]
    assert keys[3] == "rf" and keys[2][:8] == keys[4][:8] == "student-"
    assert len({key.casefold() for key in keys}) == 5


def test_a_student_keeps_the_key_when_another_of_this_name_hands_in() -> None:
    """manual.csv knows the students by their keys."""

    def keys(*numbers: str) -> dict[str, str]:
        found = [HandIn("Kim Lee", "Kim Lee", identity={"SID": number}) for number in numbers]
        submissions.make_keys_unique(found)
        return {each.identity["SID"]: each.key for each in found}

    two, three = keys("2", "3"), keys("1", "2", "3")
    assert all(three[number] == key for number, key in two.items())
    assert keys("3")["3"] not in three.values()


def test_invisible_characters_of_a_name_cost_no_extension(tmp_path: Path) -> None:
    """A platform or a lecturer may write them or not: U+200C in Persian names, U+00A0 between two names."""
    typed = "\u0639\u0644\u06cc\u0631\u0636\u0627 Zo\u00eb"
    written = "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627\u00a0Zo\u00eb"
    put(tmp_path / "class" / written / "server.py")
    put(tmp_path / "class" / "ada" / "server.py")
    _, found = submissions.read(tmp_path / "class").hand_ins
    assert found.name == written.replace("\u00a0", " ")  # U+200C is a part of the spelling
    assert "u200c" in found.key  # as ever: manual.csv of an earlier run has this key
    result = graded(written, 50, sent=DUE + timedelta(days=2), identity={"Full name": typed})
    rules = marks.MarkRules(due=DUE, percent_per_day=50.0, extensions={typed: 2})
    mark = marks.mark_of(result, rules, 100, {})
    assert mark.total == 50 and marks.unknown_students(rules, [result]) == []
    table = marks.fill_table(put(tmp_path / "table.csv", f"Full name,Grade\n{written},\n"), None, [mark])
    assert table.text == f"Full name,Grade\n{written},50\n" and not table.missing


def test_a_name_that_is_not_utf_8_can_be_written(tmp_path: Path) -> None:
    put(tmp_path / os.fsdecode(b"M\xfcller\n") / "server.py")
    put(tmp_path / "ada" / "server.py")
    found = submissions.read(tmp_path).hand_ins[0]
    assert found.name == "M\N{REPLACEMENT CHARACTER}ller\\n" and found.key == "M-ller-n"
    assert str(found.identity).encode()


def test_the_results_in_the_folder_of_the_class_are_no_submission(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "server.py")
    put(tmp_path / "class-marks" / "marks.csv")
    found = submissions.read(tmp_path / "ada" / "..", results=tmp_path / "class-marks").hand_ins
    assert [each.name for each in found] == ["ada"]


def test_the_results_in_the_only_folder_are_no_submission(tmp_path: Path) -> None:
    for name in ("ada", "bob", "marks"):
        put(tmp_path / "pool" / name / "server.py")
    found = submissions.read(tmp_path, "server.py", tmp_path / "pool" / "marks").hand_ins
    assert [each.name for each in found] == ["ada", "bob"]


def test_a_class_in_a_folder_that_is_closed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "pool" / "ada" / "server.py")
    entries_of = Path.iterdir

    def refuse_pool(path: Path) -> Iterator[Path]:
        if path.name == "pool":  # root may read each folder, so no mode refuses it
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return entries_of(path)

    monkeypatch.setattr(Path, "iterdir", refuse_pool)
    with pytest.raises(ConfigError, match="pool: Permission denied; name the folder"):
        submissions.read(tmp_path)


def test_a_folder_that_is_a_link_to_itself_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("class").symlink_to("class")
    assert cli.main(["grade", "class", "--lab", "pool"]) == 2
    assert "Too many levels of symbolic links; name the folder" in capsys.readouterr().err


def test_a_link_to_a_name_that_is_too_long_does_not_end_the_class(tmp_path: Path) -> None:
    for name in ("ada", "bo"):
        put(tmp_path / name / "server.py")
    for name in (".git", "notes"):
        (tmp_path / "bo" / name).symlink_to("a" * 300)
    (tmp_path / "cy").symlink_to("a" * 300)
    found = submissions.read(tmp_path).hand_ins
    assert [each.name for each in found] == ["ada", "bo"] and all(each.sent for each in found)


@pytest.mark.parametrize("seconds", [1e12, 1e17])
def test_a_time_of_change_that_no_calendar_has_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A tmpfs keeps any number that an archive has given a file; ext4 does not."""
    file = put(tmp_path / "server.py")
    monkeypatch.setattr(Path, "lstat", lambda path: SimpleNamespace(st_mtime=seconds))
    assert submissions.newest_change(file) is None


@pytest.mark.parametrize("text", ["2026-02-01T10:00:00+99:99", "2026-99-01T10:00:00Z", "soon"])
def test_a_time_that_cannot_be_is_none(text: str) -> None:
    assert submissions.time_of(text) is None


def test_a_folder_with_too_many_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MAX_FILES", 3)
    for name in ("a", "b", "c", "server.py"):
        put(tmp_path / "ada" / name)
    with pytest.raises(BadHandIn, match="more than 3 files"):
        files_of(HandIn("ada", "ada", [(tmp_path / "ada", "")]), tmp_path / "to")


@pytest.mark.takes_time
@pytest.mark.parametrize("levels", [101, 3000])
def test_folders_within_each_other_are_a_problem_of_their_student_alone(tmp_path: Path, levels: int) -> None:
    scratch = Scratch("ewe-nested-", str(tmp_path))
    try:
        put(Path(scratch.path) / "class" / "bo" / "server.py")
        (Path(scratch.path) / "class" / "ada").mkdir()
        make_nested(Path(scratch.path) / "class" / "ada", levels)
        ada, bo = submissions.read(Path(scratch.path) / "class").hand_ins
        assert files_of(bo, tmp_path / "bo") == {"server.py": PROGRAM}
        with pytest.raises(BadHandIn, match="more than 100 folders within each other"):
            files_of(ada, tmp_path / "ada")
    finally:
        scratch.close()


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_folders_within_each_other_in_an_archive_are_refused(tmp_path: Path, suffix: str) -> None:
    """A class is graded again and again, and its old files are removed: this must not fail by one student."""
    names = ["d/" * levels + "server.py" for levels in range(300, 1800, 300)]
    path = tmp_path / f"ada{suffix}"
    if suffix == ".zip":
        zipped(path, dict.fromkeys(names, PROGRAM))
    else:
        with tarfile.open(path, "w") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    scratch = Scratch("ewe-nested-", str(tmp_path))
    try:
        to = Path(scratch.path) / "to"
        with pytest.raises(BadHandIn, match="more than 100 folders within each other"):
            files_of(HandIn("ada", "ada", [(path, path.name)]), to)
        shutil.rmtree(to)
    finally:
        scratch.close()


def test_such_folders_in_the_archive_of_a_class_are_a_problem_of_their_student_alone(tmp_path: Path) -> None:
    deep = {f"class/ada/{'d/' * levels}server.py": PROGRAM for levels in range(300, 1800, 300)}
    path = zipped(tmp_path / "class.zip", {**deep, "class/bo/server.py": PROGRAM})
    with class_command.unpacked(path) as folder:
        ada, bo = submissions.read(folder).hand_ins
        assert files_of(bo, tmp_path / "bo") == {"server.py": PROGRAM}
        with pytest.raises(BadHandIn, match="more than 100 folders within each other"):
            files_of(ada, tmp_path / "ada")
    assert not folder.exists()


def test_folders_of_an_archive_count_like_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a change of the last files would go unnoticed, and the old mark would stay."""
    path = zipped(tmp_path / "a.zip", {"a/server.py": PROGRAM, "b/server.py": PROGRAM})
    assert len(files_of(HandIn("a", "a", [(path, "a.zip")]), tmp_path / "to")) == 2
    monkeypatch.setattr(submissions, "MAX_FILES", 3)
    with pytest.raises(BadHandIn, match="more than 3 files and folders"):
        files_of(HandIn("a", "a", [(path, "a.zip")]), tmp_path / "again")


# Archives that nobody should believe


def tarred(path: Path, kind: bytes, name: str = "x") -> Path:
    """Write a tar file with one member of a kind, and a server."""
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
        data = PROGRAM.encode()
        good = tarfile.TarInfo("server.py")
        good.size = len(data)
        archive.addfile(good, io.BytesIO(data))
    return path


def damaged(path: Path, compression: int) -> Path:
    """Write a zip file whose compressed bytes are damaged."""
    content = "".join(f"line {number}\n" for number in range(400))
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("server.py", content)
    data = bytearray(path.read_bytes())
    begin = data.find(b"server.py") + len("server.py")
    data[begin + 40 : begin + 80] = b"\xff" * 40
    path.write_bytes(data)
    return path


def with_size(path: Path, kind: bytes, size: int) -> Path:
    """Write a tar file whose second header, for a member of a kind without contents, has this size."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    first = tarfile.TarInfo("server.py").tobuf(tarfile.GNU_FORMAT)
    path.write_bytes(first + header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    return path


def with_long_header(path: Path, kind: bytes, size: int) -> Path:
    """Write a compressed tar file with a header of this size, which takes a thousandth of it."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    with gzip.open(path, "wb") as archive:
        archive.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(size + 1024))
    return path


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_an_archive_does_not_fill_the_memory(tmp_path: Path, kind: bytes) -> None:
    path = with_long_header(tmp_path / "a.tar.gz", kind, 2 << 20)
    with pytest.raises(BadHandIn, match="a header of 2 MB"):
        files_of(HandIn("a", "a", [(path, "a.tar.gz")]), tmp_path / "to")


@pytest.mark.parametrize("comment", [b"", b"a comment"])
@pytest.mark.parametrize("large", [False, True])
def test_the_list_of_a_zip_file_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comment: bytes, large: bool
) -> None:
    """A list of 100 MB would take 700 MB of memory before the first member is counted."""
    if large:
        monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
    with zipfile.ZipFile(tmp_path / "ada.zip", "w") as archive:
        archive.comment = comment
        for number in range(40):
            archive.writestr(f"{'n' * 1000}{number}", "")
    listed = submissions.directory_bytes(tmp_path / "ada.zip")
    assert 40 * 1046 < listed < 40 * 1100
    monkeypatch.setattr(submissions, "MAX_ENTRY_BYTES", 100)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(BadHandIn, match="list of more than 40 files"):
        submissions.unpack(tmp_path / "ada.zip", "ada.zip", target, submissions.SubmissionCounter(40))


@pytest.mark.parametrize("forged", ["no locator", "another locator"])
def test_the_size_of_the_list_of_a_zip_file_is_not_forged(tmp_path: Path, forged: str) -> None:
    """A record of 64-bit numbers says 10 bytes: zipfile uses it only with a locator behind it."""
    record = b"PK\6\6" + bytes(36) + (10).to_bytes(8, "little") + bytes(8)
    with zipfile.ZipFile(tmp_path / "ada.zip", "w") as archive:
        for number in range(40):
            archive.writestr(zipfile.ZipInfo(f"{'n' * 1000}{number}"), "")
        archive.infolist()[-1].comment = record + (
            bytes(20) if forged == "no locator" else b"PK\6\7" + bytes(16)
        )
    if forged == "no locator":
        assert len(zipfile.ZipFile(tmp_path / "ada.zip").namelist()) == 40
    assert submissions.directory_bytes(tmp_path / "ada.zip") > 40 * 1046


def test_a_zip_file_may_have_its_size_only_in_64_bits(tmp_path: Path) -> None:
    """As programs write it that send an archive before they know its size."""
    with zipfile.ZipFile(tmp_path / "ada.zip", "w") as archive:
        archive.writestr("server.py", PROGRAM)
    whole = (tmp_path / "ada.zip").read_bytes()
    at = whole.rfind(b"PK\5\6")
    size, start = whole[at + 12 : at + 16], whole[at + 16 : at + 20]
    numbers = [
        (44).to_bytes(8, "little"),
        bytes(12),
        *[(1).to_bytes(8, "little")] * 2,
        size,
        bytes(4),
        start,
        bytes(4),
    ]
    locator = b"PK\6\7" + bytes(4) + at.to_bytes(8, "little") + (1).to_bytes(4, "little")
    end = whole[at : at + 8] + b"\xff" * 12 + bytes(2)
    (tmp_path / "ada.zip").write_bytes(whole[:at] + b"PK\6\6" + b"".join(numbers) + locator + end)
    assert submissions.directory_bytes(tmp_path / "ada.zip") == int.from_bytes(size, "little")
    found = files_of(HandIn("a", "a", [(tmp_path / "ada.zip", "ada.zip")]), tmp_path / "to")
    assert found == {"server.py": PROGRAM}


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_a_long_name_in_an_archive_is_no_bomb(tmp_path: Path, suffix: str) -> None:
    """And a large file is no header."""
    path, name = tmp_path / f"a.tar{suffix}", f"{'a' * 200}/server.py"
    program = PROGRAM + "#" * (3 << 20)
    with tarfile.open(path, f"w:{suffix[1:]}") as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(program)
        archive.addfile(member, io.BytesIO(program.encode()))
    assert files_of(HandIn("a", "a", [(path, path.name)]), tmp_path / "to") == {name: program}


def test_a_damaged_archive_stays_for_the_lecturer(tmp_path: Path) -> None:
    (tmp_path / "class" / "ada").mkdir(parents=True)
    (tmp_path / "class" / "ada" / "lab.tgz").write_bytes(b"not a tar")
    to = tmp_path / "to"
    to.mkdir()
    with pytest.raises(BadHandIn):
        submissions.take_files(HandIn("ada", "ada", [(tmp_path / "class" / "ada", "ada")]), to)
    assert (to / "lab.tgz").read_bytes() == b"not a tar" and sorted(os.listdir(tmp_path)) == ["class", "to"]


def test_an_archive_may_contain_a_part_of_itself(tmp_path: Path) -> None:
    """`tar cf lab.tar .` leaves such a part. 2 MB are not read yet when the first member is written."""
    folder = tmp_path / "ada"
    members = {"lab.tar": "x", "big": "x" * (2 << 20), "server.py": PROGRAM}
    folder.mkdir()
    with tarfile.open(folder / "lab.tar", "w") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    assert files_of(HandIn("ada", "ada", [(folder, "ada")]), tmp_path / "to") == members


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_of_an_archive_are_left_out(tmp_path: Path, kind: bytes) -> None:
    path = tarred(tmp_path / "a.tar", kind)
    assert files_of(HandIn("a", "a", [(path, "a.tar")]), tmp_path / "to") == {"server.py": PROGRAM}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda top: zipped(top / "a.zip", {"../../evil.py": "x"}), "outside of its folder"),
        (lambda top: zipped(top / "a.zip", {"/etc/evil.py": "x"}), "outside of its folder"),
        (lambda top: zipped(top / "a.zip", {"..\\evil.py": "x"}), "outside of its folder"),
        (lambda top: tarred(top / "a.tar", tarfile.REGTYPE, "../evil"), "outside of its folder"),
        # A pipe is left out, but its contents would be decompressed.
        (lambda top: with_size(top / "a.tar", tarfile.FIFOTYPE, 5000), "more than"),
        (lambda top: put(top / "a.zip", "no zip"), "cannot be unpacked"),
        (lambda top: put(top / "a.tar.gz", "no tar"), "cannot be unpacked"),
        (lambda top: damaged(top / "a.zip", zipfile.ZIP_DEFLATED), "cannot be unpacked"),
        (lambda top: damaged(top / "a.zip", zipfile.ZIP_LZMA), "cannot be unpacked"),
        (lambda top: zipped(top / "a.zip", {f"{n}.py": "" for n in range(30)}), "more than 20 files"),
        (lambda top: zipped(top / "a.zip", {"big": "x" * 5000}), "more than"),
        # Of an unknown kind, so it is left out: but its bytes are decompressed.
        (lambda top: with_long_header(top / "a.tar.gz", b"Z", 5000), "more than"),
    ],
)
def test_a_bad_archive_is_a_problem_of_its_student_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], says: str
) -> None:
    monkeypatch.setattr(submissions.SubmissionCounter.__init__, "__defaults__", (20, 4096))
    path = make(tmp_path)
    target = tmp_path / "to"
    target.mkdir()
    with pytest.raises(BadHandIn, match=says):
        submissions.take_files(HandIn("a", "a", [(path, path.name)]), target)
    assert not (tmp_path / "evil.py").exists() and not (tmp_path / "evil").exists()


def test_a_size_below_zero_is_read_once(tmp_path: Path) -> None:
    """tarfile would read this header again and again. A newer one takes it for the end. The type Z is unknown."""
    path = with_size(tmp_path / "a.tar", b"Z", -512)
    (tmp_path / "to").mkdir()
    with contextlib.suppress(BadHandIn):
        submissions.take_files(HandIn("a", "a", [(path, path.name)]), tmp_path / "to")
    assert [each.name for each in (tmp_path / "to").iterdir()] == ["server.py"]  # the member before it
    with pytest.raises(BadHandIn, match="a file of -512 bytes"):
        submissions.SubmissionCounter().count(-512)


def test_an_archive_that_lies_about_its_size_is_a_bomb(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"server.py": "x" * 1000})
    data = bytearray(path.read_bytes())
    for start in (data.find(b"PK\3\4") + 22, data.find(b"PK\1\2") + 24):  # the size in both heads
        data[start : start + 4] = (10).to_bytes(4, "little")
    path.write_bytes(data)
    target = tmp_path / "to"
    target.mkdir()
    with pytest.raises(BadHandIn, match=r"larger than its archive says|cannot be unpacked"):
        submissions.take_files(HandIn("a", "a", [(path, "a.zip")]), target)


def test_links_of_a_folder_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "ada" / "server.py")
    (tmp_path / "ada" / "secret").symlink_to("/etc/passwd")
    (tmp_path / "ada" / "all").symlink_to("/etc")
    os.mkfifo(tmp_path / "ada" / "pipe")
    assert files_of(HandIn("a", "a", [(tmp_path / "ada", "")]), tmp_path / "to") == {"server.py": PROGRAM}


def test_a_fifo_with_the_name_of_an_archive_keeps_no_class_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ada.zip")
    with pytest.raises(BadHandIn, match="not a file"):
        files_of(HandIn("ada", "ada", [(tmp_path / "ada.zip", "ada.zip")]), tmp_path / "to")


def test_an_archive_of_windows_has_folders_with_a_backslash(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"lab\\": "", "lab\\server.py": PROGRAM})
    assert files_of(HandIn("a", "a", [(path, "a.zip")]), tmp_path / "to") == {"lab/server.py": PROGRAM}


def zip_of_a_class(path: Path) -> None:
    """Write a class of two: one program has noted the local time, the other one also UTC, six hours later."""
    with zipfile.ZipFile(path, "w") as archive:
        local, both = (zipfile.ZipInfo(f"{name}/server.py", (2026, 3, 1, 12, 0, 0)) for name in ("ada", "bo"))
        seconds = int(datetime(2026, 3, 1, 18, tzinfo=UTC).timestamp())
        both.extra = b"ux\x01\x00\x00UT\x05\x00\x01" + seconds.to_bytes(4, "little")
        for member in (local, both):
            archive.writestr(member, PROGRAM)


def tar_of_a_class(path: Path) -> None:
    """Write a class of two, with the same times."""
    with tarfile.open(path, "w") as archive:
        for name, when in (("ada", datetime(2026, 3, 1, 12)), ("bo", datetime(2026, 3, 1, 18, tzinfo=UTC))):
            member = tarfile.TarInfo(f"{name}/server.py")
            member.size, member.mtime = len(PROGRAM), when.timestamp()  # type: ignore[assignment]
            archive.addfile(member, io.BytesIO(PROGRAM.encode()))


@pytest.mark.parametrize(("name", "make"), [("class.zip", zip_of_a_class), ("class.tar", tar_of_a_class)])
def test_the_archive_of_a_class_says_when_its_files_were_sent(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """The time at which the command unpacks the files would make each submission late."""
    make(tmp_path / name)
    with class_command.unpacked(tmp_path / name) as folder:
        ada, bo = submissions.read(folder, "server.py").hand_ins
    assert ada.sent == datetime(2026, 3, 1, 12).astimezone()
    assert bo.sent == datetime(2026, 3, 1, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["server.py"], ""),
        (["lab/server.py", "lab/other.py"], "lab"),
        (["a/b/c/server.py"], "a/b/c"),
        (["server.py", "old/server.py"], ""),
        (["new/server.py", "old/server.py"], None),
        (["a/b/c/d/server.py"], None),
        (["sever.py"], None),
        ([], None),
    ],
)
def test_the_files_of_the_work_are_found_in_a_folder(
    tmp_path: Path, names: list[str], found: str | None
) -> None:
    for name in names:
        put(tmp_path / name)
    if found is not None:
        assert submissions.directory_of(tmp_path, ["server.py"]) == tmp_path / found
        return
    with pytest.raises(BadHandIn, match=r"no server\.py in it|several server\.py"):
        submissions.directory_of(tmp_path, ["server.py"])


# Rules and tables


def report(score: int = 100, *, failed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a report of ewe-grade: the parts that the tables read."""
    verdicts = [
        {
            "name": name, "status": "failed" if name in failed else "passed", "proves": "p", "points": 10,
            "score": 0, "did": f"=cmd({name})", "because": "",
        }
        for name in ("answers", "fifo")
    ]  # fmt: skip
    return {
        "format": "ewe-grade/1",
        "score": score,
        "max_score": 100,
        "seconds": 9.0,
        "refused": "",
        "finished": True,
        "verdicts": verdicts,
    }


def graded(name: str, score: int = 100, **more: Any) -> GradedHandIn:
    """Return a result."""
    each = HandIn(name, name, identity=more.pop("identity", {"name": name}))
    for key in ("sent", "late"):
        if key in more:
            setattr(each, key, more.pop(key))
    return GradedHandIn(each, report(score), **more)


DUE = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rules", "after", "total"),
    [
        ({}, 0.0, 50),
        ({"points": 20.0}, 0.0, 10),
        ({"points": 20.0, "percent_per_day": 10.0}, 0.0, 10),
        ({"points": 20.0, "percent_per_day": 10.0}, 0.1, 9),
        ({"points": 20.0, "percent_per_day": 10.0}, 1.0, 9),
        ({"points": 20.0, "percent_per_day": 10.0}, 1.1, 8),
        ({"points": 20.0, "percent_per_day": 10.0, "free_days": 1}, 1.1, 9),
        ({"points": 20.0, "percent_per_day": 10.0, "extensions": {" ada  LOVELACE": 5}}, 3.0, 10),
        ({"points": 20.0, "percent_per_day": 10.0, "most_days": 2}, 2.5, 0),
        ({"points": 20.0, "percent_per_day": 50.0}, 9.0, 0),
        ({"points": 7.0, "round_to": 0.5}, 0.0, 3.5),
        ({"points": 7.5, "round_to": 1.0}, 0.0, 4),
        ({"points": 1.9, "round_to": 0.1}, 0.0, 1.0),
        ({"points": 2.0, "round_to": 0.1, "percent_per_day": 5.0}, 0.5, 1.0),
    ],
)
def test_a_mark_follows_the_rules(rules: dict[str, Any], after: float, total: float) -> None:
    result = graded("Ada Lovelace", 50, sent=DUE + timedelta(days=after))
    mark = marks.mark_of(result, marks.MarkRules(due=DUE, **rules), 100, {})
    assert mark.total == pytest.approx(total)


@pytest.mark.parametrize(
    ("free_days", "says"),
    [(0, "one day is counted"), (1, "no day is counted, because of free days or an extension")],
)
def test_the_table_says_how_a_late_submission_without_a_time_counts(free_days: int, says: str) -> None:
    mark = marks.mark_of(graded("Ada", late=True), marks.MarkRules(free_days=free_days), 100, {})
    assert marks.remark(mark) == f"late, as the platform says; {says}"


def test_an_accent_has_two_spellings_and_one_meaning(tmp_path: Path) -> None:
    composed, apart = "Zo\N{LATIN SMALL LETTER E WITH ACUTE}", "Zoe\N{COMBINING ACUTE ACCENT}"
    result = graded(apart, 50, sent=DUE + timedelta(days=2), identity={"Full name": apart})
    rules = marks.MarkRules(due=DUE, percent_per_day=50.0, extensions={composed: 2})
    mark = marks.mark_of(result, rules, 100, {})
    assert mark.total == 50 and marks.unknown_students(rules, [result]) == []
    table = marks.fill_table(put(tmp_path / "table.csv", f"Full name,Grade\n{composed},\n"), None, [mark])
    assert table.text == f"Full name,Grade\n{composed},50\n" and not table.missing


@pytest.mark.parametrize(
    ("students", "rows", "filled"),
    [
        (["Kim Lee", "Kim Lee", "Ada"], ["Kim Lee", "Ada"], ["", "50"]),
        (["Kim Lee", "Ada"], ["Kim Lee", "kim  lee", "Ada"], ["", "", "50"]),
    ],
)
def test_a_name_that_two_students_have_gets_no_mark_of_the_other(
    tmp_path: Path, students: list[str], rows: list[str], filled: list[str]
) -> None:
    text = "Full name,Grade\n" + "".join(f"{name},\n" for name in rows)
    results = [graded(name, 50, identity={"Full name": name}) for name in students]
    found = [marks.mark_of(each, marks.MarkRules(), 100, {}) for each in results]
    table = marks.fill_table(put(tmp_path / "table.csv", text), None, found)
    assert [row["Grade"] for row in csv.DictReader(table.text.splitlines())] == filled
    assert set(table.missing) == {"Kim Lee"}


def test_a_mark_that_the_grader_could_not_give_is_empty() -> None:
    mark = marks.mark_of(graded("Ada", grader_failed=True, problem="killed"), marks.MarkRules(), 100, {})
    assert mark.total is None
    row = next(csv.DictReader(marks.to_csv([mark], marks.MarkRules()).splitlines()))
    assert row["mark"] == "" and row["remark"] == "killed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("points = 'x'", "points is a number"),
        ("points = true", "points is a number"),
        ("points = -1", "points is a number"),
        ("poins = 1", 'did you mean "points"'),
        ("due = 2026-01-01", "time with its zone"),
        ("due = 2026-01-01T00:00:00", "time with its zone"),
        ("late = 3", "late is a table"),
        ("[late]\nfree = 1", "[late] free is not a rule"),
        ("[late]\npercent_per_day = 101", "percent_per_day is a number from 0 to 100"),
        ("[manual]\nstyle = 'x'", "style is a number"),
        ("[extensions]\nAda = 'x'", "Ada is a number"),
        ("[extensions]\nAda = 0.5", "Ada is a number of whole days"),
        ("[late]\nfree_days = 1.5", "free_days is a number of whole days"),
        ("x", "rules.toml"),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        marks.read_rules(put(tmp_path / "rules.toml", text))
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_manual_marks_are_kept_and_added(tmp_path: Path) -> None:
    rules = marks.MarkRules(points=10.0, manual={"style": 2.0, "text": 3.0})
    ada, bo = graded("Ada"), graded("Bo")
    assert marks.read_manual(tmp_path, rules, [ada])["Ada"] == {"style": None, "text": None}
    file = tmp_path / "manual.csv"
    file.write_text(file.read_text().replace("Ada,Ada,,", 'Ada,Ada,1.5,"2,5"'))
    found = marks.read_manual(tmp_path, rules, [ada, bo])
    assert found == {"Ada": {"style": 1.5, "text": 2.5}, "Bo": {"style": None, "text": None}}
    mark = marks.mark_of(ada, rules, 100, found["Ada"])
    assert (mark.total, mark.max_points, mark.lacks_manual_mark) == (14, 15, False)
    file.write_text(file.read_text().replace("1.5", "2.5"))
    with pytest.raises(ConfigError, match=r"Ada, style: '2\.5' is no number from 0 to 2"):
        marks.read_manual(tmp_path, rules, [ada, bo])


@pytest.mark.parametrize(
    ("text", "column", "identity", "filled"),
    [
        (
            "Identifier,Full name,Grade,Feedback comments\nParticipant 7,A,,\n",
            None,
            {"Identifier": "Participant 7"},
            "Grade",
        ),
        (
            "\ufeffIdentifier;Full name;Grade\nParticipant 7;A;\n",
            None,
            {"Identifier": "Participant 7"},
            "Grade",
        ),
        ("Student,ID,SIS User ID,Pool (12)\nA,7,,\n", "Pool (12)", {"ID": "7"}, "Pool (12)"),
        ("assignment,github_username,grade\npool,ADA,\n", None, {"GitHub": "ada"}, "grade"),
    ],
)
def test_a_platforms_table_is_filled(
    tmp_path: Path, text: str, column: str | None, identity: dict[str, str], filled: str
) -> None:
    path = put(tmp_path / "table.csv", text)
    result = graded("A", 80, identity=identity)
    result.report = report(80, failed=("fifo",))
    found = [
        marks.mark_of(each, marks.MarkRules(), 100, {})
        for each in (result, graded("Bo", identity={"ID": "9"}))
    ]
    table = marks.fill_table(path, column, found)
    (row,) = csv.DictReader(table.text.splitlines(True))
    assert row[filled] == "80" and table.missing == ["Bo"] and not table.above
    if "Feedback comments" in row:
        assert "fifo (0/10)" in row["Feedback comments"] and not row["Feedback comments"].startswith("=")


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("a,b\n1,2\n", None, "none of the columns"),
        ("ID,Pool\n7,\n", None, "no column 'Grade'"),
        ("ID,Pool\n7,\n", "Pol", 'did you mean "Pool"'),
        ("", None, "none of the columns"),
    ],
)
def test_a_table_of_another_kind_is_refused(tmp_path: Path, text: str, column: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        marks.fill_table(put(tmp_path / "table.csv", text), column, [])


@pytest.mark.parametrize(
    ("text", "column", "key"),
    [
        ("Identifier,Maximum Grade,Grade\n7,20.00,\n8,20.00,\n", None, "Identifier"),
        ("Identifier;Maximum Grade;Grade\n7;20,00;\n8;20,00;\n", None, "Identifier"),
        ("Student,ID,Pool (12)\n    Points Possible,,20\nA,7,\nB,8,\n", "Pool (12)", "ID"),
        ("SID,Pool,Pool - Max Points,Cgi,Cgi - Max Points\n7,,20.0,1,94\n8,,20.0,1,94\n", "Pool", "SID"),
        ("SID,Total Score,Max Points\n7,,20.0\n8,,20.0\n", "Total Score", "SID"),
    ],
)
def test_a_mark_above_the_maximum_of_the_table_is_written_and_said(
    tmp_path: Path, text: str, column: str | None, key: str
) -> None:
    results = [graded("Ada", identity={key: "7"}), graded("Bo", identity={key: "8"})]
    rules = marks.MarkRules(points=20, manual={"structure": 2})
    for each, score in zip(results, (100, 80), strict=True):
        each.report = report(score)
    found = [marks.mark_of(each, rules, 100, {"structure": 2.0}) for each in results]
    table = marks.fill_table(put(tmp_path / "table.csv", text), column, found)
    assert table.above == ["Ada 22 of 20"] and not table.missing
    rows = {row[key]: row for row in csv.DictReader(table.text.splitlines(True))}
    assert (rows["7"][column or "Grade"], rows["8"][column or "Grade"]) == ("22", "18")


def test_rounding_gives_no_more_than_the_maximum() -> None:
    result = graded("A")
    result.report = report(100)
    mark = marks.mark_of(result, marks.MarkRules(points=20.25, round_to=0.5), 100, {})
    assert (mark.total, mark.max_points) == (20.25, 20.25)


# Runs, with a grader that these tests play

FAKE = """
import json, os, signal, sys, time
do = open("server.py").read().strip()
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open({log!r}, "a").write(do + "\\n")
table = {report}
if do == "spin":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
if do == "usage":
    print("ewe-grade: --user: there is no account", file=sys.stderr)
    sys.exit(2)
# A neighbour has taken all memory, so that the kernel kills this grader.
if do == "die" or do == "victim" and open({log!r}).read().count("victim") == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if do == "slow":
    time.sleep(0.3)
limit_s = float(arguments["--limit"])
table |= dict(limit_s=limit_s, restless=do == "restless", seconds=limit_s)
table |= dict(waited_s=dict(busy=limit_s / 2, stuck=None).get(do, 1.0))
if do in ("stuck", "silent", "restless") or do == "busy" and limit_s < 300:
    table["verdicts"][0]["status"] = "not run"
if do == "full disk":  # an exception within the grader, after some checks
    table["finished"] = False
table["score"] = 100 if do != "bad" else 20
open(arguments["--json"], "w").write(json.dumps(table))
open(arguments["--html"], "w").write("<p>report")
sys.exit(0 if do == "good" else 1)
"""


@pytest.fixture
def run_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that grades a class: name -> what the played grader does for this student."""
    log = tmp_path / "log"
    log.touch()
    fake = put(tmp_path / "grader.py", FAKE.format(log=str(log), report=report()))

    def command(plan: ClassPlan, hand_in: HandIn, given: Path | None) -> list[str]:
        directory = plan.directory(hand_in)
        return [
            sys.executable,
            "-S",
            str(fake),
            "--limit",
            str(plan.limit_s),
            "--json",
            f"{directory}/report.json",
            "--html",
            f"{directory}/report.html",
        ]

    monkeypatch.setattr(ClassPlan, "command", command)
    monkeypatch.setattr(class_run, "BUILD_AND_GRACE_S", 0.5)
    monkeypatch.setattr(class_run, "GRACE_S", 0.5)
    # The played graders need no networks of their own, so several may run at once on every system
    monkeypatch.setattr(class_command, "may_have_private_network", lambda: True)

    def run(students: dict[str, str], *options: str) -> int:
        for name, do in students.items():
            put(tmp_path / "class" / name / "server.py", do)
        return cli.main(
            ["grade", str(tmp_path / "class"), "--lab", "pool", "--output", str(tmp_path / "out"), *options]
        )

    return run


@pytest.mark.parametrize(
    "data",
    [
        b"name;key;x (of 2)\r\nAda;Ada;1,5\r\n",
        "\ufeffx (of 2);name;key\r\n1,5;Müller;Ada\r\n".encode(),
        "key\tname\tx (of 2)\r\nAda\tMüller\t1,5\r\n".encode("utf-16"),
        "key;name;x (of 2)\r\nAda;Müller;1,5\r\n;;\r\n".encode("cp1252"),
    ],
)
def test_manual_marks_that_a_spreadsheet_has_saved_are_read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "manual.csv").write_bytes(data)
    graded = [GradedHandIn(HandIn("Müller", "Ada"))]
    found = marks.read_manual(tmp_path, marks.MarkRules(manual={"x": 2.0}), graded)
    assert found == {"Ada": {"x": 1.5}}


def test_manual_marks_without_keys_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "manual.csv", "Name,x (of 2)\nAda,1\n")
    with pytest.raises(ConfigError, match="no column 'key'"):
        marks.read_manual(tmp_path, marks.MarkRules(manual={"x": 2.0}), [])


def test_a_full_disk_keeps_the_manual_marks(tmp_path: Path) -> None:
    """A new student makes the file longer: cut, it would have lost the marks of others."""
    names = [f"student {number}" for number in range(100)]
    kept = "key,x (of 2)\n" + "".join(f"{name},1\n" for name in names)
    put(tmp_path / "manual.csv", kept)
    graded = [GradedHandIn(HandIn(name, name)) for name in [*names, "new"]]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, limits[1]))
    try:
        with pytest.raises(ConfigError, match="File too large"):
            marks.read_manual(tmp_path, marks.MarkRules(manual={"x": 2.0}), graded)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "manual.csv").read_text() == kept


def test_checks_that_were_not_run_are_a_remark() -> None:
    """The limit of a run is reached when a machine is busy, too, which is no fault of the student."""
    found = json.loads(json.dumps(report()))
    found["verdicts"][0]["status"] = "not run"
    mark = marks.mark_of(GradedHandIn(HandIn("ada", "ada"), found), marks.MarkRules(round_to=5e-324), 100, {})
    assert "1 check was not run" in marks.remark(mark)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--table", "{top}/manual.csv"), "rename the platform's table"),
        (("--table", "{top}/worksheet.csv", "--column", "Nix"), "no column 'Nix'"),
    ],
)
def test_a_wrong_table_is_said_before_the_class_is_graded(
    tmp_path: Path,
    run_class: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    says: str,
) -> None:
    for name in ("manual.csv", "worksheet.csv"):
        put(tmp_path / name, "Identifier,Grade\nParticipant 1,\n")
    assert run_class({"Ada": "good"}, *(word.format(top=tmp_path) for word in options)) == 2
    assert says in capsys.readouterr().err and (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("marks.csv", ()),
        ("index.html", ()),
        ("manual.csv", ("--rules", "{top}/rules.toml")),
        ("worksheet.csv", ("--table", "{top}/worksheet.csv")),
        ("similar.html", ("--similar",)),
    ],
)
def test_a_result_that_cannot_be_written_is_said_before_the_class_is_graded(
    tmp_path: Path, run_class: Callable[..., int], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], name: str, options: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setattr("ewe_classroom.course.class_command.needs_copydetect", lambda: None)
    put(tmp_path / "worksheet.csv", "Identifier,Grade\nParticipant 1,\n")
    put(tmp_path / "rules.toml", "[manual]\nStructure = 2\n")
    (obstacle := tmp_path / "out" / name).mkdir(parents=True)
    assert run_class({"Ada": "good"}, *(word.format(top=tmp_path) for word in options)) == 2
    assert capsys.readouterr().err == f"ewe-course: cannot write {obstacle}: Is a directory\n"
    assert (tmp_path / "log").read_text() == ""


def test_a_feedback_is_no_formula(tmp_path: Path) -> None:
    file = put(tmp_path / "worksheet.csv", "Identifier,Grade,Feedback comments\nParticipant 1,,\n")
    hand_in = HandIn("Ada", "Ada", identity={"Identifier": "Participant 1"})
    graded = GradedHandIn(hand_in, problem="=cmd|x.zip cannot be unpacked")
    mark = marks.mark_of(graded, marks.MarkRules(), 100, {})
    assert "'=cmd" in marks.fill_table(file, None, [mark]).text


@pytest.mark.starts_processes
def test_a_directory_of_all_accounts_is_not_closed(
    tmp_path: Path, run_class: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o1777)  # as /tmp
    assert run_class({"Ada": "good"}) == 2
    assert (
        "other accounts" in capsys.readouterr().err and (tmp_path / "out").stat().st_mode & 0o7777 == 0o1777
    )


@pytest.mark.starts_processes
def test_two_runs_in_one_directory_do_not_meet(
    tmp_path: Path, run_class: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with class_run.locked(tmp_path / "out"):
        assert run_class({"Ada": "good"}) == 2
    assert "another run" in capsys.readouterr().err
    assert run_class({"Ada": "good"}) == 0


def test_an_output_without_a_reader_is_no_fault_of_the_results(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), class_run.locked(tmp_path / "out"):
        raise BrokenPipeError


def table(directory: Path) -> dict[str, dict[str, str]]:
    """Return marks.csv: student -> row."""
    return {row["name"]: row for row in csv.DictReader((directory / "marks.csv").read_text().splitlines())}


@pytest.mark.parametrize(("seeded", "word"), [(False, "--student=-x Ada"), (True, "--seed=-x Ada")])
def test_each_report_has_the_name_of_its_student(tmp_path: Path, seeded: bool, word: str) -> None:
    plan = ClassPlan(
        lab("pool"), lab("pool").variant("python"), tmp_path, jobs=1, limit_s=120.0, seeded=seeded
    )
    words = plan.command(HandIn("-x Ada", "x-ada"), None)
    named = [each for each in words if each.startswith(("--student", "--seed"))]
    assert named == [word]


@pytest.mark.starts_processes
def test_a_report_with_another_name_is_not_kept(tmp_path: Path, run_class: Callable[..., int]) -> None:
    """Both names give the same directory of results, and the kept report would show the earlier one."""
    assert run_class({"Ada L": "good"}) == 0
    (tmp_path / "class" / "Ada L").rename(tmp_path / "class" / "Ada-L")
    for _ in range(2):  # the second run keeps the new report
        assert run_class({}) == 0
        assert (tmp_path / "log").read_text().split() == ["good", "good"]
    assert [path.name for path in (tmp_path / "out" / "students").iterdir()] == ["Ada-L"]


@pytest.mark.starts_processes
def test_a_class_is_graded_and_goes_on_where_it_stopped(
    tmp_path: Path, run_class: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    students = {"Ada": "good", "Bo": "bad", "Cy": "slow", "Di": "die"}
    assert run_class(students, "--jobs", "3") == 1
    said = capsys.readouterr().out
    assert "4 submissions (folders)" in said and "Bo" in said and "4 submissions, 1 not graded" in said
    rows = table(tmp_path / "out")
    assert {name: row["mark"] for name, row in rows.items()} == {
        "Ada": "156",
        "Bo": "31.2",
        "Cy": "156",
        "Di": "",
    }
    assert "status -9" in rows["Di"]["remark"] and rows["Ada"]["page"] == "students/Ada/report.html"
    page = (tmp_path / "out" / "index.html").read_text()
    assert 'href="students/Ada/report.html"' in page and "1 submission was not graded" in page
    # Two students are graded: Di (no result yet) and Bo (a new submission)
    (tmp_path / "log").write_text("")
    assert run_class({"Bo": "good", "Di": "good"}) == 0
    assert sorted((tmp_path / "log").read_text().split()) == ["good", "good"]
    assert {row["mark"] for row in table(tmp_path / "out").values()} == {"156"}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    assert "Traceback" not in said


@pytest.mark.starts_processes
def test_a_grader_that_hangs_is_ended_and_costs_one_row(
    tmp_path: Path, run_class: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ewe_classroom.course.class_command.MIN_LIMIT_S", 0.0)
    assert run_class({"Ada": "good", "Bo": "spin"}, "--jobs", "2", "--limit", "0.5") == 1
    rows = table(tmp_path / "out")
    assert (rows["Ada"]["mark"], rows["Bo"]["mark"]) == ("156", "")


@pytest.mark.starts_processes
def test_a_run_that_has_reached_its_limit_is_repeated_alone_and_for_longer(
    tmp_path: Path, run_class: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine a right server may reach the limit. Those that never sleep or answer reach it on each."""
    class_of_five = {"Ada": "good", "Bo": "busy", "Cy": "restless", "Di": "stuck", "Ed": "silent"}
    assert run_class(class_of_five, "--jobs", "4") == 0
    said = capsys.readouterr().out
    assert "2 submissions to be graded again, one at a time, with 360 s" in said
    assert said.count("(graded again)") == 2
    rows = table(tmp_path / "out")
    not_run = {name for name, row in rows.items() if "not run" in row["remark"]}
    assert not_run == {"Cy", "Di", "Ed"}
    for _ in range(2):  # the second run keeps the reports
        log = (tmp_path / "log").read_text().split()
        assert sorted(log) == ["busy", "busy", "good", "restless", "silent", "stuck", "stuck"]
        assert run_class({}) == 0


@pytest.mark.starts_processes
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_submission_whose_grader_failed_beside_others_is_graded_again_alone(
    tmp_path: Path, run_class: Callable[..., int], capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    assert run_class({"Ada": "good", "Bo": "victim", "Cy": "die"}, "--jobs", str(jobs)) == 1
    said = capsys.readouterr().out
    assert ("the grader failed: 2 submissions to be graded again, one at a time" in said) == (jobs > 1)
    rows = table(tmp_path / "out")
    assert [rows[name]["mark"] for name in ("Ada", "Bo", "Cy")] == ["156", "156" if jobs > 1 else "", ""]
    assert (tmp_path / "log").read_text().split().count("die") == jobs


@pytest.mark.starts_processes
def test_after_an_edit_of_the_scheme_a_class_is_graded_again(
    tmp_path: Path, run_class: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(tmp_path / "pool.toml", lab("pool").read("grading.toml"))
    text = file.read_text()
    for graded_count, new_text in ((2, text), (2, text), (4, text.replace("points = 20", "points = 24", 1))):
        file.write_text(new_text)
        assert run_class({"Ada": "good", "Bo": "bad"}, "--scheme", str(file)) == 0
        assert len((tmp_path / "log").read_text().split()) == graded_count
    said = capsys.readouterr().out
    assert (
        said.count("the grading scheme has changed since the last run: 2 submissions to be graded again") == 1
    )
    assert {row["of"] for row in table(tmp_path / "out").values()} == {"160"}


@pytest.mark.parametrize(
    ("earlier", "said"),
    [
        (None, []),
        ({"files": "", "scheme": ""}, []),
        ({"scheme": ""}, ["the grading scheme has changed"]),
        ({"given": "", "own": []}, ["--own has changed", "the files that the lab gives have changed"]),
        ({"format": "ewe-class/1", "scheme": None}, ["the version of ewe has changed"]),
    ],
)
def test_a_change_since_the_earlier_report_is_named(
    tmp_path: Path, earlier: dict[str, Any] | None, said: list[str]
) -> None:
    """Not if the student has handed in other files: these are the reason then."""
    pool = lab("pool")
    plan = ClassPlan(pool, pool.variant("python"), tmp_path, jobs=1, limit_s=9.0, own=("conversation.py",))
    given = class_run.write_given_files(plan)
    put(tmp_path / "ada" / "server.py")
    rules = class_run.digests(plan, given)
    now = class_run.identify_work(plan, HandIn("Ada", "ada"), tmp_path / "ada", rules)
    assert class_run.what_changed(now, now) == ()
    assert list(class_run.what_changed({} if earlier is None else {**now, **earlier}, now)) == said
    put(tmp_path / "given" / "conversation.py", "# another one\n")
    assert class_run.digests(plan, given)["given"] != rules["given"]


def test_the_given_files_of_another_lab_are_removed(tmp_path: Path) -> None:
    """conversation.c is given in the lab fork, and work in the lab serial: a solution would replace the work."""
    for name, given in (
        ("fork", {"conversation.c", "conversation.h", "Makefile"}),
        ("serial", {"conversation.h", "Makefile"}),
    ):
        plan = ClassPlan(lab(name), lab(name).variant("c"), tmp_path, jobs=1, limit_s=9.0)
        assert set(os.listdir(class_run.write_given_files(plan) or "")) == given


@pytest.mark.parametrize("text", ["[]", "7", "null", "{}", "[" * 100_000])
def test_a_file_in_place_of_a_report_is_no_report(tmp_path: Path, text: str) -> None:
    """A server with the grader's account may write it, and kill the grader: it costs only its own row."""
    with pytest.raises(ValueError):
        class_run.read_report(put(tmp_path / "report.json", text))
    assert class_run.kept_report(tmp_path) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--own", "server.py"), "choose conversation.py"),
        (("--scheme", "nowhere.toml"), "name a file such as my/grading.toml"),
    ],
)
def test_a_wrong_part_of_a_lab_is_said_before_the_class_is_graded(
    run_class: Callable[..., int], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert run_class({"Ada": "good"}, *options) == 2
    assert says in capsys.readouterr().err


def test_a_class_is_graded_by_the_lecturers_scheme_and_with_the_students_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ClassPlan(
        lab("pool"), lab("pool").variant("python"), tmp_path, jobs=1, limit_s=120.0, own=("conversation.py",),
        scheme=Path("my/pool.toml"),
    )  # fmt: skip
    words = plan.command(HandIn("Ada", "ada"), tmp_path / "given")
    assert words[words.index("--own") + 1] == "conversation.py"
    assert words[words.index("--lab") + 1] == str(tmp_path / "my" / "pool.toml")


@pytest.mark.starts_processes
def test_a_report_that_is_not_finished_is_no_mark_and_is_graded_again(
    tmp_path: Path, run_class: Callable[..., int]
) -> None:
    """An exception within the grader has the exit status of a failed check, 1."""
    assert run_class({"Ada": "good", "Bo": "full disk"}) == 1
    rows = table(tmp_path / "out")
    assert (rows["Ada"]["mark"], rows["Bo"]["mark"]) == ("156", "")
    assert "status 1 before it had finished" in rows["Bo"]["remark"]
    assert run_class({}) == 1
    assert (tmp_path / "log").read_text().splitlines().count("full disk") == 4  # twice in each run


@pytest.mark.starts_processes
def test_wrong_usage_of_the_grader_ends_the_run_at_once(
    run_class: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_class({"Ada": "usage", "Bo": "good"}, "--jobs", "1") == 2
    assert "there is no account" in capsys.readouterr().err


@pytest.mark.starts_processes
def test_a_students_module_does_not_replace_one_of_the_grader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", *sys.path[1:]]))
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')\nraise SystemExit(0)\n"
    for name in ("argparse.py", "ewe/__init__.py", "ewe_classroom/__init__.py"):
        put(tmp_path / "class" / "ada" / name, trap)
    put(tmp_path / "class" / "ada" / "measure.py")
    for name in lab("measure").variant("python").data:
        put(tmp_path / "class" / "ada" / name, "{}")
    cli.main(["grade", str(tmp_path / "class"), "--lab", "measure", "--output", str(tmp_path / "out")])
    assert not (tmp_path / "sprung").exists()
    assert (tmp_path / "out" / "students" / "ada" / "output.txt").stat().st_size > 0


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_run_leaves_no_grader_and_is_continued(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    for name in ("ada", "bo"):
        put(tmp_path / "class" / name / "server.py", "import time\ntime.sleep(60)\n")
    command = [
        sys.executable,
        "-m",
        "ewe_classroom.course.cli",
        "grade",
        "class",
        "--lab",
        "pool",
        "--jobs",
        "2",
    ]
    command += ["--user", "root"] if os.geteuid() == 0 else []
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_signals
    ) as process:
        try:
            output = tmp_path / "class-marks" / "students" / "bo" / "output.txt"
            wait_until(lambda: output.exists() and output.stat().st_size > 0, 30, "ewe-grade has started")
            process.send_signal(number)
            error = process.communicate(timeout=150)[1]
        finally:
            process.kill()
    assert process.returncode == status and "Traceback" not in error
    wait_until(lambda: not graders_of(tmp_path), 30, "a grader lives on")


@pytest.mark.starts_processes
def test_without_private_networks_no_two_servers_run_beside_each_other(
    tmp_path: Path, run_class: Callable[..., int], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As in a container: a server could hold the workers of another student's server."""
    monkeypatch.setattr(class_command, "may_have_private_network", lambda: False)
    assert run_class({"ada": "", "bo": ""}, "--jobs", "2") == 0
    said = capsys.readouterr()
    assert "2 submissions (folders), 1 at a time" in said.out
    assert "graded one at a time, and not 2" in said.err and "sudo" in said.err and said.err.count("\n") == 1
    assert run_class({}, "--jobs", "1") == 0 and not capsys.readouterr().err


def graders_of(directory: Path) -> list[str]:
    """Return the processes whose working directory lies in a directory."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(link.readlink()).startswith(str(directory)):
                found.append(link.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.starts_processes
def test_a_grader_without_a_descriptor_for_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(["sleep", "60"])

    def start(plan: ClassPlan, waiting: class_run.WaitingHandIn, *_: object) -> class_run.RunningGrader:
        return class_run.RunningGrader(waiting.hand_in, process, {}, time.monotonic() + 60)

    def no_descriptor(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(class_run, "start_grader", start)
    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    plan = ClassPlan(lab("pool"), lab("pool").variant("python"), tmp_path, jobs=1, limit_s=9.0)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            waiting = class_run.WaitingHandIn(HandIn("ada", "ada"), tmp_path, {})
            list(class_run.in_parallel(plan, [waiting], None))
        assert process.returncode == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


@pytest.mark.starts_processes
def test_a_submission_that_takes_all_processes_stops_no_class(
    run_class: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No further grader can be started until it has ended."""
    running: list[class_run.RunningGrader] = []
    start = class_run.start_grader

    def start_alone(*arguments: Any) -> class_run.RunningGrader:
        if any(each.process.poll() is None for each in running):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        running.append(start(*arguments))
        return running[-1]

    monkeypatch.setattr(class_run, "start_grader", start_alone)
    assert run_class({"ada": "slow", "bo": "good", "cy": "slow"}, "--jobs", "3") == 0
    assert len(running) == 3 and "0 not graded" in capsys.readouterr().out


@pytest.mark.starts_processes
@pytest.mark.timeout(180)
def test_a_class_with_the_grader_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lab measure hands in data, so the grader needs no server, and a second."""
    spec = importlib.util.spec_from_file_location("data_mutants", ZOO / "data_mutants.py")
    assert spec is not None and spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    for student, kind in (("ada", "honest"), ("bo", "once")):
        directory = tmp_path / "class" / student
        directory.mkdir(parents=True)
        runs = data.write(kind, directory)
        (directory / "lab" / "results.json").rename(directory / "results.json")
        runs.write_text(json.dumps({**json.loads(runs.read_text()), "report": "results.json"}))
        put(directory / "measure.py")
    put(tmp_path / "class" / "cy" / "notes.txt")
    zipped_class = tmp_path / "class.zip"
    with zipfile.ZipFile(zipped_class, "w") as archive:
        for path in sorted((tmp_path / "class").rglob("*")):
            archive.write(path, path.relative_to(tmp_path))
    assert cli.main(["grade", str(zipped_class), "--lab", "measure", "--output", str(tmp_path / "out")]) == 1
    rows = table(tmp_path / "out")
    assert rows["ada"]["mark"] == rows["ada"]["of"] and "runs-repetitions" in rows["bo"]["failed checks"], (
        rows
    )
    assert rows["cy"]["mark"] == "0" and "no measure.py in it" in rows["cy"]["remark"]
    assert "ewe-grade" not in capsys.readouterr().err


def test_the_submissions_and_the_results_are_hidden_from_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, folder, results = tmp_path / "class.zip", tmp_path / "unpacked", tmp_path / "out"
    hidden = class_command.hidden_paths(given, folder, results)
    assert hidden == (given, folder, results)
    variant = lab("pool").variant("c")
    words = ClassPlan(lab("pool"), variant, results, jobs=1, limit_s=9.0, hidden=hidden).command(
        HandIn("ada", "ada"), None
    )
    assert [words[number + 1] for number, word in enumerate(words) if word == "--hide"] == [*map(str, hidden)]
    # A server and its build need Python and the temporary directory.
    assert class_command.hidden_paths(Path("/"), folder, results) == (folder, results)
    assert "/ contains" in capsys.readouterr().err


@pytest.mark.starts_processes
def test_the_correct_servers_of_a_clone_are_hidden_from_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests have a correct server for each model."""
    plans: list[ClassPlan] = []

    def grade_class(plan: ClassPlan, *_: object) -> list[GradedHandIn]:
        plans.append(plan)
        raise ConfigError("nothing is graded")

    monkeypatch.setattr(class_run, "grade_class", grade_class)
    put(tmp_path / "class" / "ada" / "server.py")
    words = ["--lab", "pool", "--output", str(tmp_path / "out")]
    assert cli.main(["grade", str(tmp_path / "class"), *words]) == 2
    assert ZOO.resolve() in plans[0].hidden


@pytest.mark.starts_processes  # matplotlib, which copydetect imports, asks for the fonts of the system
def test_similar_submissions_are_found_in_spite_of_names_and_order(tmp_path: Path) -> None:
    needs.module("copydetect")
    from ewe_classroom.course.similarity import similar

    text = lab("pool").files(lab("pool").variant("python"), solved=True)["server.py"]
    starter = lab("pool").files(lab("pool").variant("python"), solved=False)["server.py"]
    renamed = text.replace("items", "dinge").replace("queue", "schlange").replace("worker", "arbeiter")
    other = "import queue\nclass Box:\n    def __init__(self):\n        self.q = queue.Queue(64)\n" + "".join(
        f"def step_{n}(x):\n    return [x * {n}, x - {n}] if x else None\n" for n in range(9)
    )
    sources = {
        name: put(tmp_path / f"{name}.py", source)
        for name, source in (("ada", text), ("bo", renamed), ("cy", other), ("di", starter))
    }
    (pair,) = similar(sources, starter, ".py")
    assert (pair.first, pair.second) == ("ada", "bo") and pair.share > 0.9


def moved(text: str) -> str:
    """Return a source with its functions, methods and other parts of several lines in another order.

    A part ends before an empty line, as soon as its brackets are closed.
    """
    parts: list[str] = []
    for part in re.split(r"\n\n+", text.strip("\n")):
        if parts and parts[-1].count("{") > parts[-1].count("}"):
            parts[-1] += "\n\n" + part
        else:
            parts.append(part)
    return "\n\n".join(parts[::-1]) + "\n"


def swapped(text: str) -> str:
    """Return a source in which neighbouring assignments and calls of one line change places."""
    lines, simple = text.splitlines(), re.compile(r"\s+[\w.]+(\+\+;| = .*[^{:(,]|\(.*\);?)")
    for number in range(1, len(lines), 2):
        first, second = lines[number - 1 : number + 1]
        if simple.fullmatch(first) and simple.fullmatch(second):
            lines[number - 1 : number + 1] = second, first
    return "\n".join(lines) + "\n"


# Words that are no names of the student, in any of the languages
KEPT = """if for int var nil def self else func type true None True False while class break return import
package static struct const char void chan range switch case default goto with from try except not and"""


def renamed(text: str) -> str:
    """Return a source with other names, and with other comments."""
    text = re.sub(r'"""[^"]*"""|/\*[^*]*\*/', lambda match: match[0][:3] + "mine" + match[0][-3:], text)
    kept = "|".join(KEPT.split())
    return re.sub(rf"\b(?!(?:{kept})\b)([a-z][a-z_]{{2,}})\b", r"x\1", text)


@pytest.mark.starts_processes
@pytest.mark.parametrize("way", ["python", "c", "go"])
def test_a_copy_with_other_names_comments_and_order_is_found(tmp_path: Path, way: str) -> None:
    """All changes together; the server of another lab is no copy."""
    needs.module("copydetect")
    from ewe_classroom.course import similarity

    variant = lab("pool").variant(way)
    name, suffix = variant.work[0], Path(variant.work[0]).suffix
    text, starter = (lab("pool").files(variant, solved=solved)[name] for solved in (True, False))
    copy = moved(swapped(renamed(text)))
    assert copy != text and not set(copy.splitlines()) & {
        line for line in text.splitlines() if "get(" in line
    }
    other = lab("event").files(lab("event").variant(way), solved=True)[name]
    sources = {
        key: put(tmp_path / f"{key}{suffix}", source)
        for key, source in (("ada", text), ("bo", copy), ("cy", other), ("di", starter))
    }
    shares = {(pair.first, pair.second): pair.share for pair in similarity.similar(sources, starter, suffix)}
    assert list(shares) == [("ada", "bo")], shares
