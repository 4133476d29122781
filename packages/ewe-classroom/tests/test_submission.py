"""A submission in a separate directory, its build, and the account that neither shares with another one."""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from classroom_server import processes_of
from support import needs
from support.proc import alive

from ewe.config.messages import ConfigError
from ewe.scratch import Scratch
from ewe.server.privileges import KEYCTL_NUMBERS
from ewe_classroom.grader import cli as grade_cli
from ewe_classroom.grader import processes, race_bursts, sandbox, scheme, sources, subject
from ewe_classroom.grader import submission as submissions
from ewe_classroom.grader.apart import IMPORT_DIRECTORIES
from ewe_classroom.grader.sandbox import (
    SHARED_DIRECTORIES,
    SandboxLimits,
    SubjectAccount,
    close_to_others,
    end_account,
    named_account,
    own_account,
)
from ewe_classroom.grader.sanitizers import mention_in_sources, source_line
from ewe_classroom.grader.scene import FailedExpectation, Scene
from ewe_classroom.grader.sources import BUILD_INFO, SourceFiles, find_sources, has_build_info
from ewe_classroom.grader.subject import BadSubject, Subject
from ewe_classroom.grader.submission import Submission


@pytest.fixture
def submission(tmp_path: Path) -> Iterator[Submission]:
    """A submission whose files are in tmp_path; root builds it as a separate account, as the command does."""
    account = own_account() if os.geteuid() == 0 else None
    made = Submission(tmp_path, SandboxLimits(account), grade_cli.directory_for(account))
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
    monkeypatch.setattr(submissions, "MAX_SOURCE_BYTES", 1 << 20)
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "huge").write_bytes(b"x" * ((1 << 20) + 1))
    for name, says in (
        ("link", "follows no symbolic link"), ("fifo", "not a file"), ("directory", "not a file"),
        ("huge", "1 MB, which is the limit"), ("missing", "No such file"),
    ):  # fmt: skip
        with pytest.raises(BadSubject, match=f"{name}: .*{says}"):
            submission.take([name])
    assert os.listdir(submission.path) == []


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (["lab4/server.c", "lab4/queue.c"], "lab4"),
        (["a/b/server.c", "a/b/queue.c", "old/server.c"], "a/b"),
        (["server.c", "queue.c", "old/server.c", "old/queue.c"], "."),
        ([".git/server.c", ".git/queue.c", "x/server.c", "x/queue.c"], "x"),
    ],
)
def test_the_files_of_the_work_may_be_in_one_folder(
    submission: Submission, tmp_path: Path, sent: list[str], taken: str
) -> None:
    for name in sent:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    submission.take(["server.c", "queue.c"])
    assert submission.source == tmp_path / taken
    assert (submission.path / "queue.c").read_text() == str(Path(taken, "queue.c"))


def test_a_grading_says_which_folder_it_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grade_cli, "adopt_orphans", lambda: None)
    (tmp_path / "lab4").mkdir()
    (tmp_path / "lab4" / "server.py").touch()
    options = grade_cli.parser().parse_args(["--work", "server.py", "server.py"])
    with grade_cli.graded_copy(options, None, ()):
        assert os.listdir() == ["server.py"]
    assert capsys.readouterr().out == "graded: the folder lab4\n"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (
            ["a/server.c", "a/queue.c", "b/server.c", "b/queue.c"],
            "2 folders with server.c: a, b; hand in one",
        ),
        (["src/server.c"], "cannot read queue.c: the folder src has no such file"),
        (["src/queue.c"], "cannot read server.c: the folder src has no such file"),
        (["server.c", "src/queue.c"], "cannot read queue.c: No such file"),
        (["site/sever.c"], "cannot read server.c: No such file"),
    ],
)
def test_a_folder_without_all_files_of_the_work_is_named(
    submission: Submission, tmp_path: Path, sent: list[str], says: str
) -> None:
    for name in sent:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(BadSubject, match=says):
        submission.take(["server.c", "queue.c"])


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


def test_a_python_file_that_the_grader_would_parse_is_small(submission: Submission, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_bytes(b"x = [" + b"1," * (1 << 20) + b"]\n")
    with pytest.raises(BadSubject, match=r"server.py: larger than 2 MB"):
        submission.take(["server.py"])


@pytest.mark.parametrize(
    ("name", "line", "is_found"),
    [
        ("server.c", "#ifdef __SANITIZE_THREAD__", True),
        ("server.c", 'const char *__tsan_default_options(void) { return "report_bugs=0"; }', True),
        ("server.c", '__attribute__((no_sanitize("thread"))) void put(void);', True),
        ("server.c", "int sanitize_path(const char *path);", False),
        ("server.go", "//go:build !race", True),
        ("server.go", "//go:norace", True),
        ("server.go", "// a race between put() and get() loses a wake-up", False),
    ],
)
def test_a_source_that_names_the_race_detector_is_found(
    tmp_path: Path, name: str, line: str, is_found: bool
) -> None:
    (tmp_path / name).write_text(f"\n{line}\n")
    language = name.rpartition(".")[2]
    found = mention_in_sources(SourceFiles(language, tmp_path / "server", 0))
    assert found == (f"{name}:2, `{line}`" if is_found else "")


def test_a_linked_worktree_has_its_history_in_another_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labs = tmp_path / "worktree" / "packages" / "ewe-classroom" / "ewe_classroom" / "labs"
    inside = tmp_path / "ewe" / ".git" / "worktrees" / "pool"
    for directory in (labs, inside):
        directory.mkdir(parents=True)
    (tmp_path / "worktree" / ".git").write_text(f"gitdir: {inside}\n")
    monkeypatch.setattr(scheme, "LABS", labs)
    assert scheme.solutions() == [str(labs), str(tmp_path / "ewe" / ".git")]


def test_a_form_feed_ends_no_line_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "server.c").write_text("int a;\f\n\fint __tsan_b;\n")
    assert mention_in_sources(SourceFiles("c", tmp_path / "server", 0)) == "server.c:2, `int __tsan_b;`"
    assert source_line(tmp_path / "server.c", 2) == "int __tsan_b;"


@pytest.mark.needs("Perl")
@pytest.mark.starts_processes
def test_a_build_has_a_limit_of_memory(submission: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MAX_BUILD_BYTES", 64 << 20)
    with pytest.raises(BadSubject, match="Out of memory"):
        submission.build("""perl -e '$n = 200_000_000; $x = "x" x $n'""")


BUILDS = """
import sys
from pathlib import Path
from ewe_classroom.grader import submission as submissions
from ewe_classroom.grader.sandbox import SandboxLimits, adopt_orphans
from ewe_classroom.grader.subject import BadSubject

adopt_orphans()
submission = submissions.Submission(Path.cwd(), SandboxLimits(), None)
submission.build(f"sh -c '(setsid sleep 600 & echo $! > {sys.argv[1]}/left) ; exit 0'")
submissions.BUILD_TIMEOUT_S = 2.0
try:
    submission.build(f"sh -c 'echo $$ > {sys.argv[1]}/endless; sleep 600'")
except BadSubject as reason:
    print(reason)
submission.close()
"""


@pytest.mark.starts_processes
def test_a_build_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """The build runs in a separate process, because adopting orphans lasts for the rest of a process's life."""
    done = subprocess.run(
        [sys.executable, "-c", BUILDS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
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
    victim = subprocess.Popen(["sleep", "600"], preexec_fn=SandboxLimits(own_account()))
    try:
        attacker = subprocess.run(
            ["sh", "-c", f"kill -9 {victim.pid}"],
            preexec_fn=SandboxLimits(own_account()),
            capture_output=True,
            text=True,
            check=False,
        )
        assert attacker.returncode != 0 and "not permitted" in attacker.stderr
        assert victim.poll() is None
    finally:
        victim.kill()
        assert victim.wait() == -signal.SIGKILL


@pytest.mark.needs("root")
@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "fill",
    ["head -c 3000000 /dev/zero > fill", "exec 3> fill; rm fill; head -c 3000000 /dev/zero >&3"],
    ids=["work", "removed"],
)
def test_a_build_that_fills_the_disk_ends(
    submission: Submission, monkeypatch: pytest.MonkeyPatch, fill: str
) -> None:
    monkeypatch.setattr(submissions, "MAX_DISK_BYTES", 1 << 20)
    monkeypatch.setattr(submissions, "DISK_CHECK_EVERY_S", 0.1)
    with pytest.raises(BadSubject, match=r"its files take \d MB of the disk; the limit is 1 MB"):
        submission.build(f"sh -c '{fill}; sleep 60'")


def test_a_server_cannot_replace_its_sources_before_they_are_judged(tmp_path: Path) -> None:
    program, source = tmp_path / "server", tmp_path / "server.c"
    program.write_bytes(b"\x7fELF")
    source.write_text("int main(void) { return 0; }\n")
    sources = find_sources([str(program)], tmp_path)
    assert sources is not None
    ends: list[str] = []
    subject = types.SimpleNamespace(
        start_command=types.SimpleNamespace(command=[str(program)], directory=tmp_path),
        site=None, workers=1, close=lambda: ends.append("the server"),
    )  # fmt: skip
    scene = Scene(cast(Subject, subject))
    scene.findings.sources_digest = sources.digest()
    assert race_bursts.unchanged_sources(scene) == sources and ends == ["the server"]
    source.write_text("int main(void) { return 1; }\n")
    with pytest.raises(FailedExpectation, match="the source files beside the program have changed"):
        race_bursts.unchanged_sources(scene)
    source.unlink()
    with pytest.raises(FailedExpectation, match="the source files beside the program have changed"):
        race_bursts.unchanged_sources(scene)


READS_PROGRAM = """
import sys
from ewe_classroom.grader.sources import has_build_info

for _ in range(20):
    has_build_info(sys.argv[1])
"""


@pytest.mark.starts_processes
def test_a_program_that_becomes_shorter_while_it_is_read_ends_no_grader(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.touch()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reader = subprocess.Popen([sys.executable, "-c", READS_PROGRAM, str(program)], env=variables)
    while reader.poll() is None:
        os.truncate(program, 64 << 20)
        time.sleep(0.002)
        os.truncate(program, 0)
    assert reader.returncode == 0


def test_the_mark_of_a_program_in_go_may_lie_across_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "READ_BYTES", 32)
    program = tmp_path / "server"
    for before in range(70):
        program.write_bytes(b"x" * before + BUILD_INFO + b"x" * 9)
        assert has_build_info(program)
    program.write_bytes(b"x" * 30 + BUILD_INFO[:-1] + b"x" * 40)
    assert not has_build_info(program)


CLAIMS = """
import sys
from ewe_classroom.grader import sandbox

sandbox.ACCOUNT_LOCKS = sys.argv[1]
print(sandbox.claim(int(sys.argv[2])))
"""


@pytest.mark.starts_processes
def test_two_graders_claim_different_user_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has started a server yet, and their process ids may differ by the number of user ids."""
    # A container may lack /run, and only root may write there.
    monkeypatch.setattr(sandbox, "ACCOUNT_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(sandbox, "account_locks", functools.cache(sandbox.account_locks.__wrapped__))

    def claims_in_another_grader(uid: int) -> str:
        claim = [sys.executable, "-c", CLAIMS, str(tmp_path / "locks"), str(uid)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(claim, env=variables, capture_output=True, text=True, check=True).stdout

    first, second = own_account(), own_account()
    assert first.uid != second.uid
    assert claims_in_another_grader(first.uid) == "False\n"
    os.close(sandbox.account_locks())
    assert claims_in_another_grader(first.uid) == "True\n"


def test_without_a_file_for_the_locks_an_account_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without /run, or if the grader is not root."""
    monkeypatch.setattr(sandbox, "ACCOUNT_LOCKS", str(tmp_path / "nowhere" / "locks"))
    monkeypatch.setattr(sandbox, "account_locks", functools.cache(sandbox.account_locks.__wrapped__))
    assert own_account().uid != own_account().uid


# The grader, for a server that never listens. It has few processes, and the grader few rounds to kill them: a quiet
# machine would else kill them one by one.
GRADES = """
import resource, sys
from ewe_classroom.grader import cli, sandbox, subject

subject.START_TIMEOUT_S = 1.0
sandbox.MAX_KILL_ROUNDS = 8
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
        cwd=directory, capture_output=True, timeout=170, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
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
    """Neither the directories with another's trace and gates, which servers may write, nor those with its files."""
    *directories, group = seen_by(tmp_path, LOOKS).splitlines()
    account = own_account()
    assert directories == [f"710 {group}"] * 2 and account.gid == account.uid

    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "trace").touch()
    (closed / "trace").chmod(0o666)
    first, second = named_account("nobody"), own_account()
    close_to_others(closed, first)
    for account, status in ((first, 0), (second, 1)):
        command = ["sh", "-c", f"echo forged >> {closed}/trace || exit 1"]
        done = subprocess.run(command, preexec_fn=SandboxLimits(account), capture_output=True, check=False)
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
        end_account(SubjectAccount("bomb", uid, uid, is_own=True))


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_the_processes_of_one_account_are_killed_together() -> None:
    """Those of an account that others may have, too, are left."""
    mine, other = own_account(), named_account("nobody")
    sleepers = [
        subprocess.Popen(["sleep", "600"], preexec_fn=SandboxLimits(account), start_new_session=True)
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


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_an_account_is_ended_although_another_grader_kills_the_killer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The accounts share 606 user ids for this purpose, and kill(2) with -1 reaches each process of such an id."""
    account, kill = own_account(), os.kill
    tokens = os.pipe()
    os.write(tokens[1], b"dies" + b"kills")

    def kill_or_die(
        pid: int, number: int
    ) -> None:  # within the forked process, the first of which takes "dies"
        kill(os.getpid() if os.read(tokens[0], 4) == b"dies" else pid, number)

    monkeypatch.setattr(os, "kill", kill_or_die)
    sleeper = subprocess.Popen(["sleep", "600"], preexec_fn=SandboxLimits(account), start_new_session=True)
    try:
        end_account(account)
        assert sleeper.wait(20) == -signal.SIGKILL
    finally:
        monkeypatch.undo()
        sleeper.kill()
        sleeper.wait()
        for each in tokens:
            os.close(each)


@pytest.mark.starts_processes
@pytest.mark.parametrize(("is_parent", "status"), [(True, 0), (False, -signal.SIGTERM)])
def test_a_process_ends_whose_parent_had_ended_before(is_parent: bool, status: int) -> None:
    """Between fork() and prctl(2) the parent may end, and the kernel then sends no signal."""
    code = "import sys; from ewe_classroom.grader.processes import *; end_with_parent(15, int(sys.argv[1]))"
    parent = os.getpid() if is_parent else os.getppid()
    done = subprocess.run(
        [sys.executable, "-c", code, str(parent)], check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == status


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_the_process_that_ends_an_account_gets_no_signal_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGSTOP would keep the grader waiting for that process, and the submission would outlive the grader."""
    account, kill = own_account(), os.kill
    ready, go = os.pipe(), os.pipe()

    def kill_later(pid: int, number: int) -> None:  # within the forked process
        os.write(ready[1], b"%d" % os.getpid())
        os.read(go[0], 1)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", kill_later)
    sleeper = subprocess.Popen(["sleep", "600"], preexec_fn=SandboxLimits(account), start_new_session=True)
    ends = threading.Thread(target=end_account, args=[account])
    ends.start()
    killer = int(os.read(ready[0], 20))
    try:
        command = ["sh", "-c", f"kill -STOP {killer}"]
        done = subprocess.run(
            command, preexec_fn=SandboxLimits(account), capture_output=True, text=True, check=False
        )
        assert done.returncode != 0 and "not permitted" in done.stderr
        os.write(go[1], b"!")
        assert sleeper.wait(20) == -signal.SIGKILL
    finally:
        os.write(go[1], b"!")
        with contextlib.suppress(ProcessLookupError):
            kill(killer, signal.SIGCONT)
        ends.join()
        sleeper.kill()
        sleeper.wait()
        for each in (*ready, *go):
            os.close(each)


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_a_submission_gains_nothing_from_a_setuid_file(tmp_path: Path) -> None:
    """Neither from sudo, nor from a submitted file of root."""
    program = tmp_path / "id"
    shutil.copy(shutil.which("id") or "", program)
    program.chmod(0o4755)
    account = own_account()
    done = subprocess.run(
        [program, "-u"], preexec_fn=SandboxLimits(account), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == account.uid


LITTERS = """#!/bin/sh
id -u > SEEN
for directory in /tmp /var/tmp /dev/shm WIDE; do
    mkdir $directory/ewe-left-$$ && echo a solution > $directory/ewe-left-$$/file && ln -s / $directory/ewe-link-$$
done
perl -e 'shmget(4711, 4096, 01666)'
perl -e 'chdir "/tmp"; for ("ewe-left-deep-$$", ".lock", ("d") x 1500) { mkdir $_; chdir $_ }'
exit 1
"""


@pytest.mark.needs("root", "Perl", "a mount namespace")
@pytest.mark.starts_processes
def test_no_file_of_a_submission_stays_in_a_shared_directory(tmp_path: Path) -> None:
    """Also none in a directory within /tmp that every account may write, and no shared memory of System V."""
    with tempfile.TemporaryDirectory(dir="/tmp") as wide:
        os.chmod(wide, 0o1777)
        uid = int(seen_by(tmp_path, LITTERS.replace("WIDE", wide)))
        found = [
            each
            for name in (*SHARED_DIRECTORIES, wide)
            if os.path.isdir(name)
            for each in os.scandir(name)
            if each.name.startswith("ewe-l")
        ]
        assert not [each.path for each in found if each.stat(follow_symlinks=False).st_uid == uid]
    segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    assert str(uid) not in [words[7] for words in segments]  # the column uid


@pytest.mark.takes_time
def test_directories_of_any_depth_count_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program can make more levels than Python has calls, and paths that are too long for the system."""
    monkeypatch.setattr(sandbox, "SHARED_DIRECTORIES", ())
    scratch = Scratch("ewe-deep-", str(tmp_path))
    try:
        at = os.open(scratch.path, os.O_RDONLY)
        for level in range(3000):
            if level == 1200:
                file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at)
                os.write(file, b"x" * (1 << 20))
                os.fsync(file)
                os.close(file)
            os.mkdir("d", dir_fd=at)
            below = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)
        account = SubjectAccount("mine", os.geteuid(), os.getegid())
        assert sandbox.disk_bytes_of(account, Path(scratch.path), []) >= 1 << 20
    finally:
        scratch.close()


SHARES = """#!/bin/sh
perl -e '$id = shmget(4711, 1536 << 20, 01666); print defined($id) ? "taken" : "refused"; shmctl($id, 0, 0)' > SEEN
exit 1
"""


@pytest.mark.needs("root", "Perl", "a mount namespace")
@pytest.mark.starts_processes
def test_shared_memory_that_no_process_uses_has_a_limit(tmp_path: Path) -> None:
    """It counts as the memory of no process, so the kernel would end others when the memory is full."""
    assert seen_by(tmp_path, SHARES) == "refused"


def test_memory_that_processes_share_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = subject.ExcessWatch(None, Path("/"))
    used = processes.memory_share_with_shared_bytes(os.getpid())
    monkeypatch.setattr(subject, "MAX_MEMORY_BYTES", used + (16 << 20))
    assert not watch.text([os.getpid()])
    with mmap.mmap(-1, 32 << 20) as memory:
        memory.write(b"x" * len(memory))
        assert "MB of memory; the limit is" in watch.text([os.getpid()])


FINDS = """#!/bin/sh
cat LABS/pool/server.py PRIVATE/* PRIVATE.zip >> SEEN
exit 1
"""


@pytest.mark.needs("root")
@pytest.mark.starts_processes
@pytest.mark.parametrize("build", [(), ("--build", "./server")], ids=["server", "build"])
def test_a_submission_reads_no_solution_and_no_hidden_path(tmp_path: Path, build: tuple[str, ...]) -> None:
    """An #include in a source in C reads files in the build."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        private = Path(directory) / "class"
        private.mkdir()
        for file in (private / "bo.py", Path(f"{private}.zip")):
            file.write_text("the server of another student\n")
        program = FINDS.replace("LABS", str(scheme.LABS)).replace("PRIVATE", str(private))
        assert seen_by(tmp_path, program) != ""  # --hide is what hides
        (tmp_path / "seen").write_text("")
        assert seen_by(tmp_path, program, "--hide", str(private), "--hide", f"{private}.zip", *build) == ""


def test_a_path_below_a_hidden_one_is_hidden_with_it() -> None:
    paths = ("/class", "/labs", "/class/results", "/class", "/classes")
    assert sandbox.outermost(paths) == ["/class", "/labs", "/classes"]


@pytest.mark.needs("root")
@pytest.mark.starts_processes
def test_the_results_may_lie_in_the_folder_of_the_class(tmp_path: Path) -> None:
    """`ewe-course grade .` puts them there: it hid nothing, because the second path was already empty."""
    (tmp_path / "class" / "results").mkdir(parents=True)
    paths = (str(tmp_path / "class"), str(tmp_path / "class" / "results"))
    assert sandbox.hideable(paths) == paths


@pytest.mark.starts_processes
def test_a_refused_network_changes_nothing_in_the_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubuntu 24.04 makes the user namespace and refuses its map: the grader was left without a network.

    private_network() tries the steps in a child process first, so none of them may have run in this process.
    """
    steps: list[int] = []

    def refuse_the_map(flags: int) -> bool:
        steps.append(flags)
        raise PermissionError

    monkeypatch.setattr(sandbox, "new_namespaces", refuse_the_map)
    assert not sandbox.private_network() and steps == []


@pytest.mark.starts_processes
def test_an_attempt_that_fails_by_an_exception_leaves_no_second_grader() -> None:
    assert not sandbox.succeeds_in_child(lambda: bool(1 / 0))
    assert sandbox.succeeds_in_child(lambda: True) and not sandbox.succeeds_in_child(lambda: False)


@pytest.mark.starts_processes
def test_a_program_that_could_read_hidden_paths_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """hideable() has succeeded at the beginning of the grading, but the memory may be full later."""
    monkeypatch.setattr(sandbox, "hide", lambda paths: False)
    with pytest.raises(subprocess.SubprocessError):
        subprocess.run(["true"], preexec_fn=SandboxLimits(hidden=("/labs",)), check=False)


@pytest.mark.starts_processes
def test_a_build_that_could_read_hidden_paths_is_no_wrong_usage(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong usage concerns all submissions, and ends the grading of a class (class_run.result_of)."""
    monkeypatch.setattr(sandbox, "hide", lambda paths: False)
    submission.limits = replace(submission.limits, hidden=("/labs",))
    with pytest.raises(subprocess.SubprocessError):
        submission.build("true")


def test_a_path_to_be_hidden_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade_cli.main(["--hide", str(tmp_path / "nowhere"), "--command", "true {port}"]) == 2
    assert "no such file or directory" in capsys.readouterr().err


@pytest.mark.needs("root", "Perl")
@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("limit", "program", "says"),
    [
        ("MAX_DISK_BYTES", "head -c 3000000 /dev/zero > /tmp/ewe-fill-$$; sleep 60", "its files take 2 MB"),
        ("MAX_DISK_BYTES", "head -c 3000000 /dev/zero > fill; sleep 60", "its files take 2 MB"),
        (
            "MAX_DISK_BYTES",
            'perl -e \'for (1..600) { open(my $f, ">", "/tmp/ewe-fill-$$-$_") } sleep 60\'',
            "its files take 2 MB",
        ),
        (
            "MAX_DISK_BYTES",
            "exec 3> fill; rm fill; head -c 3000000 /dev/zero >&3; sleep 60",
            "its files take 2 MB",
        ),
        ("MAX_MEMORY_BYTES", "perl -e '$x = \"x\" x 9000000; sleep 60'", "MB of memory"),
    ],
    ids=["tmp", "work", "empty", "removed", "memory"],
)
def test_a_server_that_uses_too_much_before_it_listens_is_ended(
    tmp_path: Path, limit: str, program: str, says: str
) -> None:
    grades = GRADES.replace("subject.START_TIMEOUT_S = 1.0", f"subject.{limit} = 1 << 20")
    (tmp_path / "server").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "server").chmod(0o755)
    subprocess.run(
        [sys.executable, "-c", grades, "--lab", "serial", "--only", "answers", "--work", "server",
         "--json", str(tmp_path / "report.json"), "server"],
        cwd=tmp_path, capture_output=True, timeout=170, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    (verdict,) = json.loads((tmp_path / "report.json").read_text())["verdicts"]
    assert "before it listens" in verdict["did"] and says in verdict["did"]


# As in a container of Docker: its root has no CAP_SYS_PTRACE.
SEES = """
import subprocess, sys
from ewe_classroom.grader import goroutines, processes
from ewe_classroom.grader.sandbox import SandboxLimits, own_account

limits = SandboxLimits(own_account())
with subprocess.Popen([sys.argv[1], "60"], stdin=subprocess.DEVNULL, preexec_fn=limits) as sleep:
    try:
        print(processes.descriptors(sleep.pid)[0], processes.memory_share_bytes(sleep.pid) > 0)
        print(processes.bytes_read(sleep.pid) > 0, goroutines.is_go(sleep.pid))
    except processes.HiddenProcess as hidden:
        print(hidden)
    finally:
        sleep.kill()
"""


@pytest.mark.needs("root")
@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("mode", "says"), [(0o755, "/dev/null True\nTrue True\n"), (0o711, "keeps the grader from reading")]
)
def test_in_a_container_the_grader_looks_inside_a_process_of_another_account(
    tmp_path: Path, mode: int, says: str
) -> None:
    program = tmp_path / "sleep"
    # The mark of Go's linker at the end of a program changes nothing but the answer of is_go().
    program.write_bytes(Path(shutil.which("sleep") or "").read_bytes() + BUILD_INFO)
    program.chmod(mode)
    command = ["setpriv", "--bounding-set", "-sys_ptrace", sys.executable, "-c", SEES, str(program)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(IMPORT_DIRECTORIES)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert says in done.stdout, done.stderr


@pytest.mark.parametrize("handed_in", [True, False])
def test_the_students_own_file_replaces_the_given_one(
    submission: Submission, tmp_path: Path, handed_in: bool
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for name in ("conversation.py", "test_queue.py"):
        (given / name).write_text("the lab's\n")
        if handed_in:
            (tmp_path / name).write_text("the student's\n")
    submission.add_given(given, submission.take_own(["conversation.py"]))
    texts = {each.name: each.read_text() for each in submission.path.iterdir()}
    own = "the student's\n" if handed_in else "the lab's\n"
    assert texts == {"conversation.py": own, "test_queue.py": "the lab's\n"}


def test_a_killed_grading_becomes_a_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    file.write_text('{"score": 149}')
    words = [
        "--lab",
        "pool",
        "--zero",
        "the grader was killed",
        "--gradescope",
        str(file),
        "--autolab",
        "server.py",
    ]
    assert grade_cli.main(words) == 2
    table = json.loads(file.read_text())
    assert table["score"] == 0 and "the grader was killed" in table["output"]
    assert set(json.loads(capsys.readouterr().out)["scores"].values()) == {0}


@pytest.mark.parametrize("option", ["--given", "--build"])
def test_options_of_a_copy_need_the_names_of_its_files(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade_cli.main([option, "x", "--command", "true {port}"]) == 2
    assert "needs --work" in capsys.readouterr().err


# Puts a key into a new session keyring, becomes nobody, and prints whether the keyring has the key. add_key(2) has
# a number two below that of keyctl(2), and 10 is KEYCTL_SEARCH
KEY_OF_ROOT = """import ctypes, os
from ewe.server.privileges import JOIN_SESSION_KEYRING, KEYCTL_NUMBERS
from ewe_classroom.grader.sandbox import become, named_account
keyctl = KEYCTL_NUMBERS.get(os.uname().machine)
if keyctl is None:
    raise SystemExit(print("unknown"))
call = ctypes.CDLL(None).syscall
call(keyctl, JOIN_SESSION_KEYRING, None)
call(keyctl - 2, b"user", b"ewe:test", b"secret", 6, -3)
find = lambda: call(keyctl, 10, -3, b"user", b"ewe:test", 0) > 0
print(find())
become(named_account("nobody"))
print(find(), os.getuid())
"""


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_a_server_has_no_key_of_root() -> None:
    if sys.platform != "linux" or os.uname().machine not in KEYCTL_NUMBERS:
        needs.lacks("root", "no keyrings whose system calls have known numbers")
    done = subprocess.run([sys.executable, "-c", KEY_OF_ROOT], capture_output=True, text=True)
    found = done.stdout.split()
    assert found, done.stderr
    if found[0] in ("False", "unknown"):
        needs.lacks("root", "no keyrings that this account may use, or a machine with other numbers of calls")
    assert found[1:] == ["False", str(named_account("nobody").uid)], done.stderr
