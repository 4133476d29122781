"""Another system than Linux: hide() takes from this process what Python offers on Linux alone.

No test runs on macOS. A server that is started after hide() at least finds no epoll(7), no /proc, and nothing else
that macOS lacks; where a call exists there, but does less or something else, it does so here, too:

- sendfile(2) writes to sockets alone, and needs an offset
- an accepted socket blocks if the listening socket does, and has none of its time limits
- waitid() is missing, as in Python 3.11 and 3.12 on macOS

The kernel is still Linux: poll(2) reports a half-closed socket in the way of Linux, for example.
The fork server (fork_server.py) calls hide() before it imports ewe.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import selectors
import socket
import stat
import struct
import sys
from typing import Any

MISSING = {
    os: (
        "pidfd_open", "eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pipe2", "waitid", "splice",
        "copy_file_range", "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "setresuid", "setresgid",
        "getresuid", "getresgid", "posix_fallocate", "posix_fadvise", "getrandom", "getxattr", "setxattr",
        "listxattr", "removexattr", "unshare", "setns",
    ),
    socket: (
        "SOCK_NONBLOCK", "SOCK_CLOEXEC", "MSG_MORE", "MSG_CMSG_CLOEXEC", "MSG_ERRQUEUE", "SO_PEERCRED", "TCP_CORK",
        "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "SO_BINDTODEVICE",
    ),
}  # fmt: skip
BEGINNINGS = {
    os: (
        "O_PATH",
        "O_TMPFILE",
        "O_DIRECT",
        "O_NOATIME",
        "EFD_",
        "MFD_",
        "SCHED_",
        "XATTR_",
        "CLONE_",
        "SPLICE_",
    ),
    select: ("epoll", "EPOLL", "POLLRDHUP"),
}
KEPT = {"O_DIRECTORY"}
MISSING_IN_C = {"prctl", "posix_spawn_file_actions_addclosefrom_np"}
NO_TIME = struct.pack("@ll", 0, 0)


class Library(ctypes.CDLL):
    """A C library without the functions that macOS lacks."""

    def __getattr__(self, name: str) -> Any:
        if name in MISSING_IN_C:
            raise AttributeError(name)
        return super().__getattr__(name)


def refuse_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no path in /proc be there: an audit hook."""
    if event in ("open", "os.listdir", "os.scandir", "os.link") and is_proc(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


def is_proc(path: object) -> bool:
    return isinstance(path, str | bytes) and os.fsencode(path).startswith(b"/proc")


def hide() -> None:
    """Hide what macOS lacks from all that this process imports later."""
    for module, names in MISSING.items():
        for name in names:
            vars(module).pop(name, None)
    for module, beginnings in BEGINNINGS.items():
        for name in [name for name in vars(module) if name.startswith(beginnings) and name not in KEPT]:
            delattr(module, name)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
    ctypes.CDLL = Library  # type: ignore[misc]
    sys.addaudithook(refuse_proc)
    hide_calls()


def hide_calls() -> None:
    """Have calls answer as they do on macOS."""
    readlink, status, sendfile, accept = os.readlink, os.stat, os.sendfile, socket.socket.accept

    def readlink_elsewhere(path: Any, **more: Any) -> Any:
        if is_proc(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return readlink(path, **more)

    def stat_elsewhere(path: Any, **more: Any) -> os.stat_result:
        if is_proc(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return status(path, **more)

    def sendfile_elsewhere(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        if not stat.S_ISSOCK(os.fstat(out_fd).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        return sendfile(out_fd, in_fd, offset.__index__(), count)

    def accept_elsewhere(self: socket.socket) -> Any:
        accepted, address = accept(self)
        os.set_blocking(accepted.fileno(), os.get_blocking(self.fileno()))
        if self.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                accepted.setsockopt(socket.SOL_SOCKET, option, NO_TIME)
        return accepted, address

    os.readlink, os.stat, os.sendfile = readlink_elsewhere, stat_elsewhere, sendfile_elsewhere
    socket.socket.accept = accept_elsewhere  # type: ignore[method-assign]
