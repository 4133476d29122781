"""Goroutines of a program of Go, which the grader counts in place of threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ewe_classroom.grader import goroutines

DUMP = """\
listening on 8080
SIGQUIT: quit
PC=0x486c03 m=0 sigcode=0

goroutine 0 gp=0x5d4820 m=0 mp=0x5d5000 [idle]:
runtime.futex(0x5d4820, 0x80, 0x0, 0x7faca459ed28, 0x0, 0x0)
\t/usr/local/go/src/runtime/sys_linux_amd64.s:570 +0x23

goroutine 0 gp=0x1c6d8a802380 m=3 mp=0x1c6d8a85b808 [idle]:
internal/runtime/syscall/linux.Syscall6(0xe8, 0x4, 0x7fac, 0x80, 0xffffffffffffffff, 0x0, 0x0)
\t/usr/local/go/src/internal/runtime/syscall/linux/asm_linux_amd64.s:36 +0xe
runtime.netpoll(0xc000)
\t/usr/local/go/src/runtime/netpoll_epoll.go:116 +0xd2

goroutine 1 gp=0x1c6d8a9ca1e0 m=4 mp=0x1c6d8a9ff808 [syscall]:
syscall.Syscall6(0xe8, 0x4, 0x1c6d8aa9fb08, 0x40, 0xffffffffffffffff, 0x0, 0x0)
\t/usr/local/go/src/syscall/syscall_linux.go:96 +0x39
main.main()
\t/home/student/server.go:41 +0x11c

goroutine 2 gp=0x1c6d8a9cb4a0 m=nil [force gc (idle)]:
runtime.gopark(0x0?, 0x0?, 0x0?, 0x0?, 0x0?)
\t/usr/local/go/src/runtime/proc.go:462 +0xce
created by runtime.init.7 in goroutine 1
\t/usr/local/go/src/runtime/proc.go:363 +0x1a

goroutine 8 gp=0x1c6d8aa525a0 m=6 mp=0x1c6d8aaa2008 [syscall]:
runtime.notetsleepg(0x5f33c0, 0xffffffffffffffff)
\t/usr/local/go/src/runtime/lock_futex.go:123 +0x29
os/signal.signal_recv()
\t/usr/local/go/src/runtime/sigqueue.go:149 +0x98
created by os/signal.Notify.func1.1 in goroutine 1
\t/usr/local/go/src/os/signal/signal.go:152 +0x1f

goroutine 18 [IO wait, 2 minutes]:
internal/poll.runtime_pollWait(0x7f1d, 0x72)
\t/usr/local/go/src/runtime/netpoll.go:351 +0x85
main.Converse({0x5e8, 0xc00}, {0x7ff, 0x9})
\t/home/student/server.go:41 +0x11c
created by main.main.func1 in goroutine 1
\t/home/student/server.go:33 +0x1a

rax    0xca
"""


def test_the_runtimes_own_goroutines_do_not_count() -> None:
    found = goroutines.parse_dump(DUMP)
    assert [each.state for each in found] == ["syscall", "IO wait"]
    assert "main.Converse" in found[1].stack
    assert goroutines.states_text(found) == "1 in IO wait, 1 in syscall"


def test_a_program_that_writes_no_stacks_has_none() -> None:
    assert goroutines.parse_dump("Quit\n") == []


def test_python_is_not_go() -> None:
    assert not goroutines.is_go(os.getpid()) and not goroutines.is_go(0)


def test_lines_that_look_like_stacks_take_no_time() -> None:
    """A program writes what it likes: with a search of quadratic time, a megabyte of it takes hours."""
    for line in ("goroutine 1 x\n", "goroutine 1 [" + "a" * 100 + "\n", "goroutine 1 [[[" * 1000):
        assert goroutines.parse_dump(line * (1_000_000 // len(line))) == []
    assert len(goroutines.parse_dump("goroutine 1 [" + "a" * 1_000_000 + "\n\n" + DUMP)) == 2


class DumpingScene:
    """A scene whose program has written one stack before SIGQUIT; until() writes the dump of the runtime."""

    def __init__(self, output: Path) -> None:
        self.output, self.subject = output, self
        output.write_text("goroutine 9 [running]:\nmain.Converse(0x1)\n\t/home/student/server.go:41 +0x1\n\n")

    def note(self, **_: object) -> None:
        pass

    def running(self) -> list[int]:
        return []

    def until(self, *_: object) -> None:
        with self.output.open("a") as output:
            output.write(DUMP)


def test_stacks_that_the_program_wrote_before_the_signal_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goroutines, "listening_pids", lambda scene: [])
    found = goroutines.dump_goroutines(DumpingScene(tmp_path / "output"))  # type: ignore[arg-type]
    assert [each.state for each in found] == ["syscall", "IO wait"]
