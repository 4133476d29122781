"""Transports: the ways to carry the protocol's frames between a gateway and the daemon.

The paper compares message queues, sockets and named pipes (section 3.2). Here all four carry a connection: bytes in
order in both directions, and an end that the other side notices. protocol.py cuts the bytes into frames, and is the
same for all. The transports differ in how a connection begins, and in how the daemon learns the account at the
other end:

    unix:PATH    connect()                                  the kernel tells its uid (SO_PEERCRED)
    HOST:PORT    connect()                                  no proof, so the daemon asks for a key
    fifo:PATH    two pipes, and a note through a third      the owner of the pipes
    mq:NAME      two queues, and a token                    the owner of the queue for replies

**Named pipes.** If several programs read one pipe, any of them could get a reply. Each gateway therefore makes two
pipes for itself. PATH is a directory with mode 1733: every account may make a file in it, but only the daemon's may
list the files. The gateway announces its pipes by a note in a third pipe, which all gateways write to (NOTE_PIPE).

    gateway                                      PATH/                     daemon
    mkfifo, twice, with a random name            ID.request  ID.reply
    writes "\\nID\\n"        ────────────────────▶ NOTE_PIPE                 opens both, checks the owner,
    reads "\\n"            ◀────────────────────  ID.reply                  removes the names
    writes frames          ────────────────────▶ (ID.request)
    reads frames           ◀────────────────────  (ID.reply)               either side ends: the other reads the end

Notes of several gateways do not mix: the kernel writes less than PIPE_BUF bytes in one piece (pipe(7)). The line
feed before an ID ends a note that another account has left incomplete. The pipes are writable by every account,
because the daemon may have another account than the gateway. Their names are secret: 32 random digits in a
directory that no other account can list. They are removed before the first frame.

**Message queues.** A message has at most 8,192 bytes. The daemon reads one queue, NAME, to which every account may
write. A gateway makes NAME.ID for its replies. The names of queues are public. The daemon therefore does not
believe what a message says about its sender before the sender has shown that it can read the queue it names:

    gateway ── O ID secret pid ──▶ NAME          ID's owner is the account
            ◀── secret token ────── NAME.ID      only the owner can read it
            ── D token data ──────▶ NAME         the token identifies the writer
            ◀── secret data ─────── NAME.ID      the secret proves that the daemon writes

A queue has no end that its reader could notice. The daemon therefore watches the process `pid` by a descriptor
(pidfd_open(2)), and a gateway checks whether the daemon still has its lock (flock(2)) on NAME.

Read next: acceptors.py, the daemon's side; dialing.py, the gateway's.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import math
import os
import re
import secrets
import select
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import parse_address

if TYPE_CHECKING:
    Queue = Any  # posix_ipc.MessageQueue, which has no types

MAX_MESSAGE_BYTES = 8192  # of a message, the default limit of Linux
LOCK_ATTEMPTS, RETRY_LOCK_S = 20, 0.01  # attempts to lock a queue, and seconds between them
# The first byte of a message to the daemon: it opens a connection, has data for one, or closes one
OPENS, HAS_DATA, CLOSES = b"O", b"D", b"C"
ID_CHARS = 32  # in the ID of a pipe or queue
SECRET_BYTES = 16  # of a token, and of a gateway's secret
PAYLOAD = MAX_MESSAGE_BYTES - SECRET_BYTES - 1  # bytes of a message that carry data
QUEUED_REQUESTS = 10  # messages that the daemon's queue can hold, the default limit of Linux
# Messages that a queue for replies can hold. They are few, since all queues of an account together may take 800 KB
# (RLIMIT_MSGQUEUE)
QUEUED_REPLIES = 2
NOTE_PIPE = "demon"  # the name of the pipe for notes, in the paper's spelling, which existing gateways use
ADDRESS = "unix:PATH, HOST:PORT, fifo:PATH or mq:NAME"


def parse_transport(text: str) -> tuple[str, str, int]:
    """Parse an address as parse_address() does, and also ("fifo", path, 0) and ("mq", name, 0). Raises ValueError.

    >>> parse_transport("mq:ewe")
    ('mq', '/ewe', 0)
    """
    kind, colon, name = text.partition(":")
    if kind == "fifo" and colon:
        if not name or not name.isprintable():
            raise ValueError(text)
        return "fifo", name, 0
    if kind == "mq" and colon:
        if re.fullmatch(r"/?[\w.-]{1,200}", name, re.ASCII) is None or name.strip("/.") == "":
            raise ValueError(text)
        return "mq", "/" + name.removeprefix("/"), 0
    return parse_address(text)


def new_id() -> str:
    """Return a name for pipes or queues that cannot be guessed."""
    return secrets.token_hex(ID_CHARS // 2)


def remove_file(path: str) -> None:
    """Remove a file, if it is there and may be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors; -1 stands for one that is not open."""
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def posix_ipc_module() -> Any:
    """Return the module of message queues. Raises OSError if it is not installed."""
    try:
        return importlib.import_module("posix_ipc")
    except ImportError:
        raise OSError("message queues need posix_ipc: pip install 'ewe-server[queues]'") from None


def open_queue(name: str, **arguments: Any) -> Queue:
    """Open a queue, or make one, as posix_ipc.MessageQueue() does. Raises OSError.

    arguments: those of MessageQueue(). With flags=O_CREX, MessageQueue() makes a new queue, or fails if the name
    exists. The queue does not block, and programs that this process starts do not inherit it.
    """
    module = posix_ipc_module()
    try:
        queue = module.MessageQueue(name, **arguments)
    except (module.Error, OSError, ValueError) as reason:
        raise OSError(f"mq:{name.removeprefix('/')}: {reason}") from None
    if "flags" in arguments:  # the queue is new
        # Every account may write to it, and only its owner may read it. The umask may have removed bits.
        os.fchmod(queue.mqd, 0o622)
    queue.block = False
    os.set_inheritable(queue.mqd, False)
    return queue


def remove_queue(name: str) -> None:
    """Remove the name of a queue, if it is there."""
    module = posix_ipc_module()
    try:
        module.unlink_message_queue(name)
    except module.Error:
        pass


def receive_message(queue: Queue) -> bytes:
    """Return the next message of a queue. Raises BlockingIOError if there is none."""
    try:
        message, _priority = queue.receive()
        return bytes(message)
    except posix_ipc_module().BusyError:
        raise BlockingIOError from None


def send_message(descriptor: int, data: bytes) -> None:
    """Send a message to the queue of a descriptor. Raises OSError; BlockingIOError if the queue is full.

    The descriptor may come from another process. posix_ipc cannot use it: its objects open a queue by name.
    """
    if mq_send(descriptor, data, len(data), 0) != 0:  # the last argument is the priority
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def find_mq_send() -> Any:
    """Return the C function mq_send(), which older versions of glibc keep in librt; None if the system has none."""
    for library in (None, "librt.so.1"):
        try:
            function = ctypes.CDLL(library, use_errno=True).mq_send
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint)
        return function
    return None


mq_send = find_mq_send()


def lock(descriptor: int) -> None:
    """Lock the daemon's queue until it is closed. Raises BlockingIOError if another daemon has the lock."""
    for _ in range(LOCK_ATTEMPTS):  # a gateway may just be checking the lock: is_locked()
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(RETRY_LOCK_S)
    raise BlockingIOError


def is_locked(descriptor: int) -> bool:
    """Return whether a daemon has the lock of its queue, and thus still reads it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def write_all(
    write: Callable[[memoryview], int],
    descriptor: int,
    data: bytes,
    timeout_s: float,
    deadline: float = math.inf,
) -> None:
    """Write all bytes. Wait for room at a descriptor, at most `timeout_s` each time. Raises OSError.

    deadline: the time.monotonic() after which the function waits no longer.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[write(view) :]
        except BlockingIOError:
            wait_for(descriptor, select.POLLOUT, min(timeout_s, max(deadline - time.monotonic(), 0.0)))


def wait_for(descriptor: int, events: int, timeout_s: float) -> None:
    """Wait until a descriptor is ready, or has ended. Raises TimeoutError."""
    poller = select.poll()
    poller.register(descriptor, events)
    if not poller.poll(timeout_s * 1000):
        raise TimeoutError(f"nothing happened for {timeout_s:g} s")
