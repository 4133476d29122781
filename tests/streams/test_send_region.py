"""The substitutes of pipe2(2) and eventfd(2), and of sendfile(2) on file systems without it."""

from __future__ import annotations

import errno
import os
import select
import socket
from pathlib import Path

import pytest

from ewe.streams.base import Disconnected
from ewe.streams.descriptors import Waker, nonblocking_pipe, send_region


@pytest.fixture(params=[False, True])
def hidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        for name in ("pipe2", "eventfd"):
            monkeypatch.delattr(os, name)
    return bool(request.param)


def test_a_pipe(hidden: bool) -> None:
    reader, writer = nonblocking_pipe()
    assert not os.get_blocking(reader) and not os.get_blocking(writer)
    assert not os.get_inheritable(reader) and not os.get_inheritable(writer)
    os.close(reader)
    os.close(writer)


def test_a_waker(hidden: bool) -> None:
    waker = Waker()

    def is_awake() -> bool:
        return bool(select.select([waker.reader], [], [], 0)[0])

    assert not is_awake()
    for _ in range(20_000):  # more than a pipe holds
        waker.wake()
    assert is_awake()
    while is_awake():
        waker.clear()
    waker.clear()
    waker.wake()
    assert is_awake()
    before = len(os.listdir("/proc/self/fd"))
    waker.close()
    assert before - len(os.listdir("/proc/self/fd")) == (2 if hidden else 1)


@pytest.mark.parametrize("number", [0, errno.ENOTSUP, errno.EINVAL])
def test_a_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")

    def cannot(*arguments: int) -> int:
        raise OSError(number, os.strerror(number))

    if number:
        monkeypatch.setattr(os, "sendfile", cannot)
    ours, peer = socket.socketpair()
    with open(tmp_path / "file", "rb") as file, ours, peer:
        assert send_region(ours.fileno(), file.fileno(), 2, 5) == 5
        assert peer.recv(100) == b"23456"
        with pytest.raises(Disconnected, match="shorter"):
            send_region(ours.fileno(), file.fileno(), 10, 5)
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                send_region(ours.fileno(), file.fileno(), 0, 10)


def test_a_disk_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log must not say that the client has left."""

    def fails(*arguments: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "sendfile", fails)
    with pytest.raises(Disconnected, match="the file cannot be read: Input/output error"):
        send_region(1, 2, 0, 5)
