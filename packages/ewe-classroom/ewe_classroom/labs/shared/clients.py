"""Clients for first_test.py: they start your server, send requests, and say which step fails.

    @step("Two clients at once.")
    def two(server):
        with server.connect() as client: ...

run() runs the steps in their order, with a new server for each. It stops at the first step that fails.
"""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESPONSE_TIMEOUT_S = 5  # seconds that one response may take; a server drops a silent client after 10
PAUSE_S = 0.02  # seconds between two looks at a process
BODY = "hello, world\n"  # the content of hello.txt
GET = "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
GET_AND_CLOSE = "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HALF = "GET /hello.txt HTTP/1.1\r\nHost: local"
REST = "host\r\nConnection: close\r\n\r\n"
steps = []  # of step(): title, function, max_descriptors, variables of the server's environment


class Failed(Exception):
    """A step has failed. The text names the fault."""


def step(title, max_descriptors=0, **environment):
    """Make a function a step. max_descriptors: how many the server may have open; 0: the usual number."""

    def keep(function):
        steps.append((title, function, max_descriptors, environment))
        return function

    return keep


def run(prepare=None):
    """Run all steps; end the program with status 1 at the first that fails. prepare(directory) adds files."""
    for number, (title, function, max_descriptors, environment) in enumerate(steps, 1):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "hello.txt").write_text(BODY)
            if prepare:
                prepare(Path(directory))
            try:
                with Server(directory, max_descriptors, environment) as server:
                    function(server)
            except Failed as failure:
                sys.exit(f"✗ {number}. {title}\n  {failure}")
        print(f"✓ {number}. {title}", flush=True)
    print("All steps pass. Next: ewe-grade, as README.md says.")


class Server:
    """Your server, on a free port of this machine. It serves a directory with hello.txt."""

    def __init__(self, directory, max_descriptors, environment):
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        words = [sys.executable, "server.py", str(self.port), directory, "4"]
        if os.path.exists("model.py"):
            words = [sys.executable, "-m", "ewe", "--model", "model:Mine", str(self.port), directory]
        limits = (max_descriptors, max_descriptors)
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            words,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that killpg() ends the children of the server, too
            env={**os.environ, **environment},
            preexec_fn=lambda: max_descriptors and resource.setrlimit(resource.RLIMIT_NOFILE, limits),
        )

    def __enter__(self):
        """Wait until the server listens. /proc tells it: a connection would be a client."""
        wanted = f"0100007F:{self.port:04X} 00000000:0000 0A"
        deadline = time.monotonic() + RESPONSE_TIMEOUT_S
        while wanted not in Path("/proc/net/tcp").read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise Failed(f"the server does not listen on its port; it prints:\n{self.printed()}")
            time.sleep(PAUSE_S)
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()

    def printed(self):
        self.output.seek(0)
        return self.output.read()[-2000:]

    def connect(self):
        return Client(self)

    def zombies(self):
        """Return how many ended children the server has not reaped."""
        count = 0
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # this process has ended in between
                continue
            count += state == "Z" and int(parent) == self.process.pid
        return count


class Client:
    """One connection to the server."""

    def __init__(self, server):
        self.server, self.received = server, b""
        self.socket = socket.socket()
        self.socket.settimeout(RESPONSE_TIMEOUT_S)
        try:
            self.socket.connect(("127.0.0.1", server.port))
        except OSError as reason:
            raise Failed(f"The server takes no connection: it has ended.\n  ({reason})") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, text):
        try:
            self.socket.sendall(text.encode())
        except OSError:
            pass  # the server has closed the connection; the next receive() says so

    def expect(self, text, failure):
        """Receive until `text` has come; raise Failed with the sentence `failure` if it does not come."""
        while text.encode() not in self.received:
            self.receive(failure)
        self.received = self.received.partition(text.encode())[2]

    def expect_end(self, failure):
        """Receive until the server closes the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except OSError as reason:
            raise Failed(f"{failure}\n  ({reason})") from None

    def receive(self, failure):
        try:
            data = self.socket.recv(65536)
        except OSError as reason:
            raise Failed(f"{failure}\n  ({reason}{self.shown()})") from None
        if not data:
            raise Failed(f"{failure}\n  (the server has closed the connection{self.shown()})")
        self.received += data

    def shown(self):
        """Return the end of what the client has received, and of what the server has printed."""
        text = f"; the client has received {self.received[-200:]!r}" if self.received else ""
        printed = self.server.printed().strip()
        return text + (f"; the server prints:\n{printed}" if printed else "")
