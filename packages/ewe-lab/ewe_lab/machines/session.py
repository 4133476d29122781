"""A conversation with an agent on another machine, through ssh or, for this machine, through pipes.

    with Session(SshHost("lab7"), ssh=("ssh",)) as session:
        session.begin({"role": "reader", "port": 80})
        session.ask("r")

The lab trusts nothing that a machine sends: a line, the noise before the first message and standard error have a
greatest length, and every wait has a deadline. Text of another machine is printed without control characters. A
host is a word of a restricted alphabet that does not begin with `-`, so it cannot become an option of ssh.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ewe_lab.bench.processes import (
    LabError,
    bounded_file,
    end_session,
    find_tool,
    last_line,
    output_text,
)

CONNECT_S = 15.0  # seconds until an agent has answered first
ANSWER_S = 5.0  # seconds that an agent may take for an answer
END_S = 5.0  # seconds that ssh may take to end when its input has ended
NOISE_BYTES = 65536  # that a login shell may print before the agent's first message
LINE_BYTES = 65536  # the longest message
SHOWN_CHARACTERS = 200  # characters of another machine's text that are shown
SIGN_OF_LIFE_S = 1.0  # seconds between two lines that tell an agent that the lab is still there
CLOCK_TRIES = 5
MAX_CLOCK_S = 1e11  # seconds since 1970, some 3,000 years: a greater time is no clock
MARK = b"@ewe-lab "
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
HOST = re.compile(rf"(?:({NAME})@)?({NAME}|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
FORWARDED = re.compile(r"Allocated port (\d+) for remote forward")
# A separate connection, which asks nothing, leaves no master behind and notices a dead network.
SSH_OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=8", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ControlMaster=no",
    "ControlPath=none", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "RequestTTY=no",
    "LogLevel=INFO", "ExitOnForwardFailure=yes",
)  # fmt: skip
ADVICE = (
    ("Permission denied", "let this account in by a key: ssh-copy-id"),
    ("Host key verification failed", "connect once by hand, and check and accept its key"),
    ("forwarding failed", "its sshd must allow TCP forwarding, which carries locust's messages"),
)


@dataclass(frozen=True)
class SshHost:
    """A machine as ssh names it. name: "" for this machine. port: 0 for the one that ssh's settings say."""

    name: str
    user: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"{self.user}@{self.name}" if self.user else self.name or "this machine"


def parse_host(text: str) -> SshHost:
    """Return the host that `[USER@]NAME[:PORT]` names, with an IPv6 address in brackets. Raises LabError."""
    found = HOST.fullmatch(text)
    if found is None or int(found[3] or 1) not in range(1, 65536):
        raise LabError(f"{printable(text)!r} is not a host for ssh: write [USER@]NAME[:PORT]")
    return SshHost(found[2].strip("[]"), found[1] or "", int(found[3] or 0))


def printable(text: str) -> str:
    """Return text of another machine for a line of ours: no control characters, which a terminal would obey.

    A long text is cut.
    """
    cleaned = "".join(character if character.isprintable() else "?" for character in text.strip())
    return cleaned if len(cleaned) <= SHOWN_CHARACTERS else cleaned[:SHOWN_CHARACTERS] + "…"


def ssh_command(host: SshHost, ssh: Sequence[str], forward: int, command: str) -> list[str]:
    """Return the command line of ssh. forward: a port of this machine that the other one reaches, 0 for none."""
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    if host.port:
        options += ["-p", str(host.port)]
    if host.user:
        options += ["-l", host.user]
    if forward:
        options += ["-R", f"127.0.0.1:0:127.0.0.1:{forward}"]
    return [*ssh, "-T", *options, "--", host.name, command]


class ClockOffset(NamedTuple):
    """The seconds by which another clock is ahead of ours, and by how many seconds that may be wrong."""

    ahead_s: float
    error_s: float


class Session:
    """A conversation with an agent, from its start to its end.

    host: the machine of the agent. ssh: the first words of the command. python: the program that runs the agent
    there. forward: a port of this machine that the agent's machine shall reach, 0 for none. Raises LabError if ssh
    does not start. The other methods raise it for an agent that is silent, has ended, or sends no message.
    """

    def __init__(
        self, host: SshHost, *, ssh: Sequence[str] = ("ssh",), python: str = "python3", forward: int = 0
    ) -> None:
        self.host = host
        self.forward = forward
        self.data = b""  # received, and not yet part of a message
        self.noise = 0  # bytes before the first message
        self.has_message = False  # whether a message has come
        program = Path(__file__).with_name("agent.py").read_bytes()
        # Python reads the program from its standard input: no file is left on the other machine
        loader = f"import sys;exec(sys.stdin.buffer.read({len(program)}).decode())"
        if host.name:
            if not find_tool(ssh[0]):
                raise LabError(f"{ssh[0]} missing: apt install openssh-client")
            command = ssh_command(host, ssh, forward, f"exec {shlex.quote(python)} -uc '{loader}'")
        else:
            command = [sys.executable, "-uc", loader]
        # ssh also writes here what the other machine writes to standard error
        self.errors = bounded_file()
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                start_new_session=True,
            )  # fmt: skip
        except OSError as reason:
            self.errors.close()
            raise LabError(f"{ssh[0]} does not start: {reason.strerror}") from None
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.input, False)  # so that send() never waits longer than its deadline
        self.program = program

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the agent's input, which ends the agent, and wait for ssh.

        If ssh does not end within END_S, kill it with the programs that it has started, such as a ProxyCommand.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        for file in (self.process.stdin, self.process.stdout):
            try:
                file.close()
            except OSError:
                pass
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            end_session(self.process.pid)
            self.process.wait()
        self.errors.close()

    def begin(self, order: dict[str, Any], archive: bytes = b"") -> dict[str, Any]:
        """Send the program and its order; return the first message. Raises LabError.

        archive: a zip file with the modules of a load. The order gets the port at which the agent reaches
        `forward`.
        """
        deadline = time.monotonic() + CONNECT_S
        self.send(self.program, deadline)
        if self.forward:  # on this machine, without ssh, the port itself can be reached
            order["load"]["port"] = self.wait_for_forwarded_port(deadline) if self.host.name else self.forward
        self.send(json.dumps(order).encode() + b"\n" + archive, deadline)
        return self.receive(deadline)

    def error_text(self) -> str:
        """Return the first 64 KB of standard error."""
        return output_text(self.errors)

    def wait_for_forwarded_port(self, deadline: float) -> int:
        """Wait until ssh says which port of the other machine leads to `forward`; return it. Raises LabError."""
        while (found := FORWARDED.search(self.error_text())) is None:
            if self.process.poll() is not None:
                raise self.ended_error()
            if time.monotonic() > deadline:
                raise LabError(f"{self.host}: ssh did not connect within {CONNECT_S:.0f} s")
            time.sleep(0.02)
        return int(found[1])

    def send(self, data: bytes, deadline: float) -> None:
        """Send bytes until a time of time.monotonic(). Raises LabError."""
        unsent = memoryview(data)
        while unsent:
            if not select.select([], [self.input], [], max(deadline - time.monotonic(), 0))[1]:
                raise LabError(f"{self.host} takes no more data")
            try:
                unsent = unsent[os.write(self.input, unsent) :]
            except BlockingIOError:  # less room than select() promised
                continue
            except OSError:
                raise self.ended_error() from None

    def ask(self, word: str) -> dict[str, Any]:
        """Send a line and return the answer. word: `r` for the resources, `c` for the clock. Raises LabError."""
        deadline = time.monotonic() + ANSWER_S
        self.send(word.encode() + b"\n", deadline)
        return self.receive(deadline)

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message, until a time of time.monotonic(). Lines of a login shell before it are skipped.

        Raises LabError, also if the message is the agent's own error, {"failed": TEXT}.
        """
        while True:
            line, newline, rest = self.data.partition(b"\n")
            if not newline:
                if len(line) > LINE_BYTES:
                    raise self.garbage_error(line)
                self.read_more(deadline)
                continue
            self.data = rest
            if (found := self.message(line)) is not None:
                return found

    def read_more(self, deadline: float) -> None:
        """Wait for more bytes of the agent, and add them to `data`. Raises LabError."""
        if not select.select([self.output], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise LabError(f"{self.host} did not answer in time")
        piece = os.read(self.output, 65536)
        if not piece:
            raise self.ended_error()
        self.data += piece

    def message(self, line: bytes) -> dict[str, Any] | None:
        """Return the message in a line; None for noise of a login shell before the first. Raises LabError."""
        if not line.startswith(MARK):
            self.noise += len(line) + 1
            if self.has_message or self.noise > NOISE_BYTES:
                raise self.garbage_error(line)
            return None
        try:
            found = json.loads(line[len(MARK) :])
        except (ValueError, RecursionError):
            raise self.garbage_error(line) from None
        if not isinstance(found, dict):
            raise self.garbage_error(line)
        self.has_message = True
        if "failed" in found:
            raise LabError(f"{self.host}: {printable(str(found['failed']))}")
        return found

    def garbage_error(self, line: bytes) -> LabError:
        """Return the error for bytes that are no message."""
        return LabError(
            f"{self.host} sent {printable(line[:60].decode(errors='replace'))!r}, and no message of the lab's"
            " agent: its account's shell must be quiet without a terminal"
        )

    def ended_error(self) -> LabError:
        """Return the error for a conversation that has ended: ssh's own words, and advice."""
        program = "ssh" if self.host.name else "the agent"
        try:
            # Once the process has ended, its errors are complete
            end = f"{program} ended with status {self.process.wait(END_S)}"
        except subprocess.TimeoutExpired:
            end = f"{program} closed its output, and did not end within {END_S:g} s"
        lines = [line for line in self.error_text().splitlines() if not FORWARDED.search(line)]
        message = last_line("\n".join(lines)) if lines else end
        advice = next((f" ({advice})" for words, advice in ADVICE if words in message), "")
        return LabError(f"{self.host}: {printable(message)}{advice}")

    def clock_offset(self) -> ClockOffset:
        """Compare the other clock with ours; return the offset.

        The answer was written somewhere between our sending and its arrival: half the shortest of CLOCK_TRIES
        round trips is the error, as in NTP (RFC 5905 section 8). Raises LabError.
        """
        trips = []
        for _ in range(CLOCK_TRIES):
            sent = time.time()
            answer = self.ask("c").get("clock")
            received = time.time()
            if not isinstance(answer, int | float) or not 0 <= answer < MAX_CLOCK_S:
                raise LabError(f"{self.host} has no clock to read")
            # Our time at the moment of the answer was about the middle of the trip
            trips.append((received - sent, answer - (sent + received) / 2))
        shortest_trip, offset = min(trips)
        return ClockOffset(offset, shortest_trip / 2)
