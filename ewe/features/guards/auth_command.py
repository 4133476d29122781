"""A program that decides whether a name and a password are right (setting `auth`, key `command`).

    auth = { realm = "Members", command = ["/usr/local/bin/check-ldap", "--group", "staff"] }

The program gets two lines on standard input, the name and the password, both UTF-8. Other users of the machine can
read the arguments of a process, and perhaps its environment, so neither holds a password. The exit status decides:

    0        right
    1        wrong
    other    the program has failed: the client gets 500, and the error log the status

Its standard output is dropped; its standard error goes to ewe's error log. A program that takes longer than
`timeout` is killed (504). Its environment has PATH, REMOTE_ADDR, REQUEST_METHOD and REQUEST_URI.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ewe.config.defaults import SEARCH_PATH
from ewe.features.guards.client import client_of
from ewe.gateway import programs
from ewe.gateway.scripts import Script
from ewe.gateway.spool import memory_file, write
from ewe.http.status import HTTPError
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

RIGHT, WRONG = 0, 1  # exit statuses


class PasswordCommand:
    """Asks a program whether a password is right."""

    def __init__(self, command: tuple[str, ...], timeout_s: float) -> None:
        """command: an absolute path, and arguments. timeout_s: how long the program may take."""
        self.command = command
        self.timeout_s = timeout_s
        programs.import_before_fork()

    async def check(self, request: Request, io: Stream, name: bytes, password: bytes) -> bool:
        """Return whether the password is right. Raises HTTPError (500, 502, 504), OSError, Disconnected."""
        environment = {
            b"PATH": os.environb.get(b"PATH", SEARCH_PATH.encode()),
            b"REMOTE_ADDR": client_of(io).encode("latin-1", "replace"),
            b"REQUEST_METHOD": request.method.encode("latin-1"),
            b"REQUEST_URI": request.target.encode("latin-1"),
        }
        file = self.command[0]
        label = f"auth: {file}"
        script = Script(file=file, name=label, path_info="")
        # Not a pipe: a write to a full pipe waits, and a large max-field allows a password that fills one.
        stdin = memory_file("ewe-password")
        try:
            write(stdin, b"%b\n%b\n" % (name, password))
            os.lseek(stdin, 0, os.SEEK_SET)
            program = programs.start(io, self.command, environment, "/", stdin, script, self.timeout_s)
        except OSError as reason:
            if reason.errno in EXHAUSTED:
                raise
            raise HTTPError(500, f"{label}: {reason.strerror}") from None
        finally:
            os.close(stdin)
        program.exit_timeout_s = self.timeout_s
        late = HTTPError(504, f"{label}: took longer than {self.timeout_s:g} s (timeout)")
        deadline = time.monotonic() + self.timeout_s
        try:
            while await program.receive():  # its output is dropped
                if time.monotonic() > deadline:
                    raise late
        except HTTPError as error:
            raise late if error.status == 504 else error from None
        finally:
            if program.status is None:
                program.end()
        if program.status not in (RIGHT, WRONG):
            if time.monotonic() > deadline:
                raise late
            raise HTTPError(500, f"{label}: {program.how_it_ended()}; 0 means right, 1 means wrong")
        return program.status == RIGHT
