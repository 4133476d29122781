"""Spawn: start a program with posix_spawn(3), while the other threads of this process continue.

Starting a program costs about half a millisecond in any case: the kernel makes a process, replaces its
memory by the program's, and maps the program's libraries. Until the program has replaced the memory, the thread
that starts it waits (vfork). The ways to start a program differ in the *other* threads:

    subprocess.Popen     holds the interpreter's lock (GIL): no thread runs Python until the program has started
    posix_spawn, ctypes  the lock is free: on two cores, two threads start two programs at once

ctypes releases the lock around each call of a C function, so this module calls the C library directly. Popen also
does more work in Python. The new process gets:

- standard input, output and error, and no other descriptor. Most of ewe's descriptors close by themselves (PEP
  446), but a descriptor that ewe has inherited does not, such as a listening socket of systemd
- its own process group, so that Ctrl-C in the server's terminal does not reach it, and killpg(2) reaches all of it
- the default action for SIGPIPE and SIGXFSZ, as programs expect; Python ignores both

Possible failures: Python does not know the sizes of the C library's structures. The buffers here are larger than
any of them. A C library may lack posix_spawn_file_actions_addclosefrom_np (glibc before 2.34): then subprocess
starts the program.

Read next: programs.py, which reads what the program writes.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping, Sequence

SET_GROUP, SET_DEFAULT_SIGNALS = 0x02, 0x04  # POSIX_SPAWN_SETPGROUP, POSIX_SPAWN_SETSIGDEF of <spawn.h>
STRUCTURE_BYTES = 1024  # more than posix_spawnattr_t, posix_spawn_file_actions_t or sigset_t need
PATHS = ctypes.c_char_p
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def start_by_subprocess(
    command: Sequence[str | bytes],
    environment: Mapping[bytes, bytes],
    directory: str,
    descriptors: tuple[int, int, int],
) -> int:
    """Start a program as Spawner.start() does, but with subprocess."""
    import subprocess

    stdin, stdout, stderr = descriptors
    process = subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=directory, env=environment, process_group=0
    )
    process.returncode = 0  # otherwise subprocess would wait for the process once this object is deleted
    return process.pid


class Spawner:
    """The C library's posix_spawn, prepared. Raises AttributeError if the library lacks a function."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self.spawn = libc.posix_spawn
        self.init_actions = libc.posix_spawn_file_actions_init
        self.add_dup2 = libc.posix_spawn_file_actions_adddup2
        self.add_chdir = libc.posix_spawn_file_actions_addchdir_np
        self.add_closefrom = libc.posix_spawn_file_actions_addclosefrom_np
        self.destroy_actions = libc.posix_spawn_file_actions_destroy
        self.attributes = ctypes.create_string_buffer(STRUCTURE_BYTES)
        signals = ctypes.create_string_buffer(STRUCTURE_BYTES)
        libc.sigemptyset(signals)
        for number in IGNORED_BY_PYTHON:
            libc.sigaddset(signals, number)
        libc.posix_spawnattr_init(self.attributes)
        libc.posix_spawnattr_setsigdefault(self.attributes, signals)
        libc.posix_spawnattr_setpgroup(self.attributes, 0)
        libc.posix_spawnattr_setflags(self.attributes, ctypes.c_short(SET_GROUP | SET_DEFAULT_SIGNALS))

    def start(
        self,
        command: Sequence[str | bytes],
        environment: Mapping[bytes, bytes],
        directory: str,
        descriptors: tuple[int, int, int],
    ) -> int:
        """Start a program; return its process id, which the caller must wait for. Raises OSError, ValueError.

        command: the program's absolute path, and its arguments. directory: its working directory. descriptors: they
        become its standard input, output and error. ValueError: a text has a NUL.
        """
        arguments = [os.fsencode(each) for each in command]
        variables = [name + b"=" + value for name, value in environment.items()]
        where = os.fsencode(directory)
        if b"\0" in b"".join((*arguments, *variables, where)):
            raise ValueError("embedded null byte")
        actions = ctypes.create_string_buffer(STRUCTURE_BYTES)
        pid = ctypes.c_int()
        self.init_actions(actions)
        try:
            self.add_chdir(actions, where)
            for number, descriptor in enumerate(descriptors):
                self.add_dup2(actions, descriptor, number)
            self.add_closefrom(actions, 3)
            error = self.spawn(
                ctypes.byref(pid),
                arguments[0],
                actions,
                self.attributes,
                (PATHS * (len(arguments) + 1))(*arguments),
                (PATHS * (len(variables) + 1))(*variables),
            )
        finally:
            self.destroy_actions(actions)
        if error:
            raise OSError(error, os.strerror(error), command[0])
        return pid.value


def spawner() -> Spawner | None:
    """Return a Spawner; None if the C library lacks a function."""
    try:
        return Spawner()
    except AttributeError:
        return None


SPAWNER = spawner()
# The way that this system's C library allows
start = SPAWNER.start if SPAWNER is not None else start_by_subprocess
