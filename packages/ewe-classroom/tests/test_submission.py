"""A submission in a separate directory, its build, and the account that neither shares with another one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.proc import alive
from support.server import ROOT

from ewe.config.messages import ConfigError
from ewe_classroom.grader import cli as grade_cli
from ewe_classroom.grader import submission as submissions
from ewe_classroom.grader.sandbox import (
    Account,
    Limits,
    closed_to_others,
    end_account,
    named_account,
    own_account,
)
from ewe_classroom.grader.subject import BadSubject
from ewe_classroom.grader.submission import Submission


@pytest.fixture
def submission(tmp_path: Path) -> Iterator[Submission]:
    """A submission whose files are in tmp_path; root builds it as a separate account, as the command does."""
    account = own_account() if os.geteuid() == 0 else None
    made = Submission(tmp_path, Limits(account), grade_cli.place_for(account))
    yield made
    made.close()
    assert not made.path.exists()


@pytest.mark.parametrize("name", ["../server.c", "/etc/passwd", "a/b", "..", ""])
def test_only_names_of_files_are_taken(submission: Submission, name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a file"):
        submission.take([name])


def test_a_link_a_fifo_a_directory_and_a_huge_file_are_refused(
    submission: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "huge").write_bytes(b"x" * ((1 << 20) + 1))
    for name, says in (
        ("link", "a link is not followed"), ("fifo", "not a file"), ("directory", "not a file"),
        ("huge", "1 MB, which is the limit"), ("missing", "No such file"),
    ):  # fmt: skip
        with pytest.raises(BadSubject, match=f"{name}: .*{says}"):
            submission.take([name])
    assert os.listdir(submission.path) == []


def test_the_labs_own_files_replace_those_of_the_submission(submission: Submission, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("mine")
    (tmp_path / "server.c").write_text("work")
    given = tmp_path / "given"
    given.mkdir()
    (given / "Makefile").write_text("the lab's")
    submission.take(["server.c", "Makefile"])
    submission.add_given(given)
    assert (submission.path / "Makefile").read_text() == "the lab's"
    assert submission.left_out() == ["given"]
    with pytest.raises(ConfigError, match=r"--given: .*No such file"):
        submission.add_given(tmp_path / "nowhere")


@pytest.mark.starts_processes
def test_a_build_that_fails_says_the_line(submission: Submission) -> None:
    with pytest.raises(BadSubject, match=r"status 3: server.c:1: error: no"):
        submission.build("sh -c 'echo begin; echo server.c:1: error: no; echo end; exit 3'")
    with pytest.raises(BadSubject, match="signal SIGKILL: no output"):
        submission.build("sh -c 'kill -9 $$'")
    for command, says in (("'", "quote"), ("", "empty"), ("no-such-compiler x", "cannot be run")):
        with pytest.raises(ConfigError, match=says):
            submission.build(command)


BUILDS = """
import sys
from pathlib import Path
from ewe_classroom.grader import submission as submissions
from ewe_classroom.grader.sandbox import Limits, adopt_orphans
from ewe_classroom.grader.subject import BadSubject

adopt_orphans()
submission = submissions.Submission(Path.cwd(), Limits(), None)
submission.build(f"sh -c '(setsid sleep 600 & echo $! > {sys.argv[1]}/left) ; exit 0'")
submissions.BUILD_S = 2.0
try:
    submission.build(f"sh -c 'echo $$ > {sys.argv[1]}/endless; sleep 600'")
except BadSubject as reason:
    print(reason)
submission.close()
"""


@pytest.mark.starts_processes
def test_a_build_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """In a process of its own: adopting orphans is for the rest of a process's life."""
    done = subprocess.run(
        [sys.executable, "-c", BUILDS, str(tmp_path)], capture_output=True, text=True, timeout=50, check=False
    )
    assert "the build did not end within" in done.stdout, done.stderr
    for name in ("left", "endless"):
        assert not alive({int((tmp_path / name).read_text())})


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_build_is_not_root(submission: Submission, tmp_path: Path) -> None:
    submission.build("sh -c 'id -u > who; id -G >> who'")
    uid, groups = (submission.path / "who").read_text().split()
    assert int(uid) not in (0, 65534) and int(groups) != 0
    (tmp_path / "mark").write_text("0")
    (tmp_path / "mark").chmod(0o600)
    with pytest.raises(BadSubject, match="Permission denied"):
        submission.build(
            f"sh -c 'echo 100 > {tmp_path}/mark || {{ echo error: Permission denied; exit 1; }}'"
        )


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_submission_cannot_signal_another_one() -> None:
    """Two graders run beside each other: the account of one is not the account of the other."""
    victim = subprocess.Popen(["sleep", "600"], preexec_fn=Limits(own_account()))
    try:
        attacker = subprocess.run(
            ["sh", "-c", f"kill -9 {victim.pid}"],
            preexec_fn=Limits(own_account()),
            capture_output=True,
            text=True,
            check=False,
        )
        assert attacker.returncode != 0 and "not permitted" in attacker.stderr
        assert victim.poll() is None
    finally:
        victim.kill()
        assert victim.wait() == -signal.SIGKILL


# The grader, for a server that never listens. It has few processes, and the grader few rounds to kill them: a quiet
# machine would else kill them one by one.
GRADES = """
import resource, sys
from ewe_classroom.grader import cli, subject, submission

subject.START_S = 1.0
subject.ROUNDS = submission.ROUNDS = 8
resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))
sys.exit(cli.main())
"""


def seen_by(directory: Path, program: str, *options: str) -> str:
    """Grade a program as root; return what it has written to the file that its text names SEEN."""
    seen = directory / "seen"
    seen.touch()
    seen.chmod(0o666)
    server = directory / "server"
    server.write_text(program.replace("SEEN", str(seen)))
    server.chmod(0o755)
    subprocess.run(
        [
            *(sys.executable, "-c", GRADES, "--lab", "serial", "--only", "answers", "--work", "server"),
            *(*options, "server"),
        ],
        cwd=directory, capture_output=True, timeout=50, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return seen.read_text()


LOOKS = """#!/bin/sh
stat -c '%a %g' "$(dirname "$(dirname "$2")")" "$(dirname "$PWD")" > SEEN
id -g >> SEEN
exit 1
"""


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_submission_cannot_enter_the_directories_of_another_one(tmp_path: Path) -> None:
    """Not those with another's trace and gates, which servers may write, and not those with another's work."""
    *directories, group = seen_by(tmp_path, LOOKS).splitlines()
    assert directories == [f"710 {group}"] * 2 and own_account().gid == own_account().uid

    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "trace").touch()
    (closed / "trace").chmod(0o666)
    first, second = named_account("nobody"), own_account()
    closed_to_others(closed, first)
    for account, status in ((first, 0), (second, 1)):
        command = ["sh", "-c", f"echo forged >> {closed}/trace || exit 1"]
        done = subprocess.run(command, preexec_fn=Limits(account), capture_output=True, check=False)
        assert bool(done.returncode) == bool(status)


BOMB = """#!/usr/bin/perl
# As many processes as the account may have. Each of them forks and ends, and where there is room, forks again.
open(my $seen, ">", "SEEN"); print $seen "$>\\n"; close($seen);
exit 1 if fork;
while (1) { setpgrp; if (fork) { exit unless fork } }
"""


@pytest.mark.needs("root", "Perl")
@pytest.mark.starts_processes
@pytest.mark.parametrize("build", [(), ("--build", "./server")], ids=["server", "build"])
def test_processes_that_fork_and_end_are_all_ended(tmp_path: Path, build: tuple[str, ...]) -> None:
    """A walk through /proc is always late for them."""
    uid = int(seen_by(tmp_path, BOMB, *build))
    try:
        assert not processes_of(uid)
    finally:
        end_account(Account("bomb", uid, uid, is_own=True))


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_the_processes_of_one_account_are_killed_together() -> None:
    """Those of an account that others may have, too, are left."""
    mine, other = own_account(), named_account("nobody")
    sleepers = [
        subprocess.Popen(["sleep", "600"], preexec_fn=Limits(account), start_new_session=True)
        for account in (mine, mine, other)
    ]
    try:
        end_account(other)
        end_account(None)
        assert [each.poll() for each in sleepers] == [None, None, None]
        end_account(mine)
        assert [each.wait(20) for each in sleepers[:2]] == [-signal.SIGKILL, -signal.SIGKILL]
        assert sleepers[2].poll() is None and not processes_of(mine.uid)
    finally:
        for each in sleepers:
            each.kill()
            each.wait()


def processes_of(uid: int) -> list[int]:
    """Return the processes of an account that have not ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid and alive({int(pid)}):
                found.append(int(pid))
        except FileNotFoundError:
            pass  # it has ended
    return found


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_submission_gains_nothing_from_a_setuid_file(tmp_path: Path) -> None:
    """Not from sudo, and not from a file of root that was handed in."""
    program = tmp_path / "id"
    shutil.copy(shutil.which("id") or "", program)
    program.chmod(0o4755)
    account = own_account()
    done = subprocess.run(
        [program, "-u"], preexec_fn=Limits(account), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == account.uid


@pytest.mark.parametrize("option", ["--given", "--build"])
def test_options_of_a_copy_need_the_names_of_its_files(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade_cli.main([option, "x", "--command", "true {port}"]) == 2
    assert "goes with --work" in capsys.readouterr().err
