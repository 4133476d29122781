"""Servers that send without an end: the grader takes 32 MB, says so, and writes reports that a browser can open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest
from classroom_server import GRADER, PYTHON

from ewe_classroom.grader.formats import MAX_FILE_BYTES

FLOOD = r"""
import os, socket, sys, threading
head = {"body": b"HTTP/1.1 200 OK\r\n\r\n", "head": b"HTTP/1.1 200 \0\xff\x1b[2J"}[sys.argv[2]]
block = bytes(range(256)).replace(b"\n", b"") * 4096
def serve(connection):
    try:
        connection.recv(4096)
        os.write(2, block[:4000])
        connection.sendall(head)
        while True:
            connection.sendall(block)
    except OSError:
        connection.close()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""


@pytest.mark.starts_processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kind", "says"),
    [("body", "more than 32 MB on one connection"), ("head", "a head of more than 256 KB")],
)
def test_a_server_that_sends_without_an_end(tmp_path: Path, kind: str, says: str) -> None:
    server = tmp_path / "flood.py"
    server.write_text(FLOOD)
    files = {name: tmp_path / name for name in ("html", "json", "gradescope", "junit")}
    code = (
        # Not getrusage(): its maximum begins with the memory of the process that forked this one
        "import sys; from ewe_classroom.grader.cli import main; status = main(); "
        "about = open('/proc/self/status').read(); "
        "print(about.partition('VmHWM:')[2].split()[0], file=sys.stderr); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, *GRADER[3:], "--only", "answers"]
    command += [f"--{name}={file}" for name, file in files.items()]
    command += ["--command", f"{PYTHON} -S {quote(str(server))} {{port}} {kind}"]
    done = subprocess.run(command, capture_output=True, timeout=170)
    assert done.returncode == 1, done.stdout + done.stderr
    assert int(done.stderr.split()[-1]) < 300_000  # KB
    found = {verdict["name"]: verdict for verdict in json.loads(files["json"].read_text())["verdicts"]}
    assert found["answers"]["status"] == "failed" and says in found["answers"]["did"]
    for file in files.values():
        assert 0 < file.stat().st_size <= MAX_FILE_BYTES
    assert b"\x1b" not in files["html"].read_bytes() + files["junit"].read_bytes()
