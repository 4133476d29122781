"""Transports: what carries the frames of the protocol between a gateway and the demon.

The paper compares message queues, sockets and named pipes (section 3.2). Here all four are a *line*: bytes in order
in both directions, and an end that the other side sees. protocol.py cuts the bytes into frames, and is the same for
all. What differs is how a line begins, and how the demon knows the account at its other end:

    unix:PATH    connect()                                  the kernel says who connected (SO_PEERCRED)
    HOST:PORT    connect()                                  nothing says it, so a key is asked for
    fifo:PATH    two pipes, and a note through a third      the owner of the pipes
    mq:NAME      two queues, and a token                    the owner of the queue for replies

**Named pipes.** A pipe that several programs read would give a reply to any of them, so each gateway makes two
pipes for itself. PATH is a directory with mode 1733: every account may make a file in it, none may list them.

    gateway                                      PATH/                     demon
    mkfifo, twice, with a random name            ID.request  ID.reply
    writes "ID\\n", less than PIPE_BUF, so whole  demon ──────────────────▶ opens both, looks who owns them,
    reads "\\n"            ◀────────────────────  ID.reply                  removes the names
    writes frames          ────────────────────▶ (ID.request)
    reads frames           ◀────────────────────  (ID.reply)               either side ends: the other reads the end

The pipes are writable by every account, since the demon may have another than the gateway. Their names are secret:
32 random digits in a directory that nobody else can list, and they are gone when the first frame is written.

**Message queues.** A message has at most 8,192 bytes. The demon reads one queue, NAME, that every account may write
to; a gateway makes NAME.ID for its replies. The names of queues are public, so nothing that a message says of its
sender is believed before the sender has shown that it can read the queue it names:

    gateway ── O ID secret pid ──▶ NAME          ID's owner is the account
            ◀── secret token ────── NAME.ID      only the owner can read it
            ── D token data ──────▶ NAME         the token proves who writes
            ◀── secret data ─────── NAME.ID      the secret proves that the demon writes

A queue has no end that its reader would see. The demon therefore watches the process `pid` by a pidfd, and a
gateway looks whether the demon still holds its lock (flock) on NAME.

Read next: lines.py, the demon's side; dialing.py, the gateway's.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import os
import re
import secrets
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import parse_address

if TYPE_CHECKING:
    Queue = Any  # posix_ipc.MessageQueue, which has no types

MESSAGE = 8192  # bytes of a message, the default limit of Linux
SECRET = 16  # bytes of a token, and of a gateway's secret
PAYLOAD = MESSAGE - SECRET - 1  # bytes of a message that are the line's
REQUESTS = 10  # messages that the demon's queue holds, the default limit of Linux
REPLIES = 2  # messages that a queue for replies holds: RLIMIT_MSGQUEUE is 800 KB for all queues of an account
DOOR = "demon"  # the name of the pipe that takes the notes
ADDRESS = "unix:PATH, HOST:PORT, fifo:PATH or mq:NAME"


def parse_transport(text: str) -> tuple[str, str, int]:
    """Return an address as parse_address() does; ("fifo", path, 0) and ("mq", name, 0) besides. Raises ValueError.

    >>> parse_transport("mq:ewe")
    ('mq', '/ewe', 0)
    """
    kind, colon, rest = text.partition(":")
    if kind == "fifo" and colon:
        if not rest or not rest.isprintable():
            raise ValueError(text)
        return "fifo", rest, 0
    if kind == "mq" and colon:
        if re.fullmatch(r"/?[\w.-]{1,200}", rest, re.ASCII) is None or rest.strip("/.") == "":
            raise ValueError(text)
        return "mq", "/" + rest.removeprefix("/"), 0
    return parse_address(text)


def new_id() -> str:
    """Return the name of a line, which cannot be guessed."""
    return secrets.token_hex(16)


def queues() -> Any:
    """Return the module of message queues. Raises OSError if it is not installed."""
    try:
        return importlib.import_module("posix_ipc")
    except ImportError:
        raise OSError("message queues need posix_ipc: pip install 'ewe-server[queues]'") from None


def open_queue(name: str, **how: Any) -> Queue:
    """Open a queue as posix_ipc.MessageQueue() does, never to block, nor to be inherited. Raises OSError."""
    module = queues()
    try:
        queue = module.MessageQueue(name, **how)
    except (module.Error, OSError, ValueError) as reason:
        raise OSError(f"mq:{name[1:]}: {reason}") from None
    if "flags" in how:
        os.fchmod(queue.mqd, 0o622)  # the umask has removed bits; only the owner may read it
    queue.block = False
    os.set_inheritable(queue.mqd, False)
    return queue


def receive_message(queue: Queue) -> bytes:
    """Return the next message of a queue. Raises BlockingIOError if there is none."""
    try:
        return bytes(queue.receive()[0])
    except queues().BusyError:
        raise BlockingIOError from None


def send_message(descriptor: int, data: bytes) -> None:
    """Send a message by the descriptor of a queue, which may come from another process. Raises OSError.

    posix_ipc only sends by objects that have opened the queue by its name. BlockingIOError: the queue is full.
    """
    if mq_send(descriptor, data, len(data), 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def find_mq_send() -> Any:
    """Return the C function mq_send(), which older versions of glibc keep in librt."""
    for library in (None, "librt.so.1"):
        try:
            found = ctypes.CDLL(library, use_errno=True).mq_send
        except (OSError, AttributeError):
            continue
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint)
        return found
    return None


mq_send = find_mq_send()


def lock(descriptor: int) -> None:
    """Lock the demon's queue for as long as it is open. Raises BlockingIOError if another demon has it."""
    for _ in range(20):  # a gateway may just be looking: is_locked()
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
    raise BlockingIOError


def is_locked(descriptor: int) -> bool:
    """Return whether a demon holds the lock of its queue, and so still reads it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def write_all(write: Callable[[memoryview], int], descriptor: int, data: bytes, timeout_s: float) -> None:
    """Write all, and wait for room at a descriptor: at most `timeout_s` each time. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[write(view) :]
        except BlockingIOError:
            wait_for(descriptor, select.POLLOUT, timeout_s)


def wait_for(descriptor: int, events: int, timeout_s: float) -> None:
    """Wait until a descriptor is ready, or has ended. Raises TimeoutError."""
    poller = select.poll()
    poller.register(descriptor, events)
    if not poller.poll(timeout_s * 1000):
        raise TimeoutError(f"nothing happened for {timeout_s:g} s")
