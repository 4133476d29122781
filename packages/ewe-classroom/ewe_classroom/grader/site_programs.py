"""The CGI programs of the site: shell scripts below cgi-bin, and the gates at which some of them wait.

A gate is a FIFO. A program that opens a FIFO for reading waits until another process opens it for writing:

    the server ─▶ program ─▶ open(gate-1, reading) waits        the grader ─▶ open(gate-1, writing): it goes on

The grader opens the FIFO with O_NONBLOCK. If no program waits at the gate, open() fails with ENXIO, so the grader
also learns whether the server has started the program. No program sleeps: on a busy machine, a test with a sleep
would look too early.

The programs use /bin/sh and cat instead of Python, because the server's account may not be able to read the
grader's Python, and because a shell starts in a millisecond.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

# A line of shell that prints the head of a program's output
PRINT_HEAD = "printf 'Content-Type: text/plain\\r\\n\\r\\n'\n"
GATE_COUNT = 8
# The grader never opens the first two: the programs that wait there do not end in time.
GATES = ("never", "child", *(f"gate-{number}" for number in range(1, GATE_COUNT + 1)))
EARLY_BYTES = 262144  # bytes that `talks-first` writes before it reads: four times the capacity of a pipe
PROGRAM_SOURCE_TEXT = b"this is the source of a program\n"
# No path of a request has this text, since a 404 may quote the path.
OUTSIDE_TEXT = "this program lies outside cgi-bin"

PROGRAMS = {
    "hello": PRINT_HEAD + "echo 'Hello from a program.'\n",
    # The environment from the server; `env` would also print the variables that the shell has added.
    "environment": PRINT_HEAD + "cat /proc/$$/environ\n",
    "echo": PRINT_HEAD + "exec cat\n",
    "talks-first": PRINT_HEAD + f"head -c {EARLY_BYTES} /dev/zero\nexec cat\n",
    "reads-nothing": PRINT_HEAD + "echo done\n",
    "closes-input": "exec 0<&-\n" + PRINT_HEAD + "echo done\n",
    "status": "printf 'Status: 418 Short and stout\\r\\nContent-Type: text/x-tea\\r\\n'\n"
    "printf 'X-Two: 2\\r\\n\\r\\n'\necho tea\n",
    "line-feeds": "printf 'Content-Type: text/x-lf\\n\\n'\necho lf\n",
    "moved": "printf 'Location: http://example.com/there\\r\\n\\r\\n'\n",
    "elsewhere": "printf 'Location: /folder/deep.txt\\r\\n\\r\\n'\n",
    "says-nothing": "exit 0\n",
    "has-no-head": "echo 'this is no head'\necho 'and this is no body'\n",
    "ends-in-head": "printf 'Content-Type: text/plain\\r\\n'\n",
    "bad-status": "printf 'Status: fine\\r\\nContent-Type: text/plain\\r\\n\\r\\n'\necho body\n",
    "is-killed": "kill -9 $$\n",
    # Print two lines for each descriptor: its number and its target.
    "descriptors": PRINT_HEAD + "cd /proc/$$/fd || exit\n"
    'for each in *; do echo "$each"; readlink "$each" || echo -; done\n',
}


def gate_of(root: Path, name: str) -> Path:
    """Return the FIFO of a gate. root: the document root; the FIFOs lie outside of it, so no server sends them."""
    return root.parent / "gates" / name


def waiting_programs(root: Path) -> dict[str, str]:
    """Return the programs that wait at a gate: name -> text, which contains paths of this site."""

    def wait(name: str) -> str:
        return f"read line < '{gate_of(root, name)}'\n"

    programs = {
        f"gate-{n}": f"{wait(f'gate-{n}')}{PRINT_HEAD}echo 'gate {n} was opened'\n"
        for n in range(1, GATE_COUNT + 1)
    }
    # Programs that do not end in time: the grader never opens these gates. The first two have a child that waits.
    child = f"( {wait('child').strip()} ) &\n"
    programs["waits"] = f"{child}{wait('never')}"
    programs["ignores-term"] = f"trap '' TERM\n{child}{wait('never')}"
    # This program closes its output, and then does not end.
    programs["closes-output"] = f"{PRINT_HEAD}echo done\nexec 1>&- 2>&-\n{wait('never')}"
    return programs


def write(root: Path) -> None:
    """Write the programs and the gates of a site. The modes let the server's account run and open them."""
    gates = root.parent / "gates"
    programs = root / "cgi-bin"
    for directory in (gates, programs):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
    for name in GATES:
        if not (gates / name).exists():
            os.mkfifo(gates / name)
            (gates / name).chmod(0o666)
    for name, text in (PROGRAMS | waiting_programs(root)).items():
        (programs / name).write_text("#!/bin/sh\n" + text)
        (programs / name).chmod(0o755)
    (programs / "not-executable").write_bytes(b"#!/bin/sh\n# " + PROGRAM_SOURCE_TEXT)
    (programs / "not-executable").chmod(0o644)
    # A program that no URL may reach: it lies beside the document root.
    outside = root.parent / "outside"
    outside.write_text(f"#!/bin/sh\n{PRINT_HEAD}echo '{OUTSIDE_TEXT}'\n")
    outside.chmod(0o755)


def open_gate(root: Path, name: str) -> bool:
    """Let the program that waits at a gate go on; return False if no program waits there.

    The name may come from a replay file. A name that is no gate could name any file, into which this would write.
    """
    if name not in GATES:
        return False
    try:
        descriptor = os.open(gate_of(root, name), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    try:
        os.write(descriptor, b"go\n")
    except BrokenPipeError:  # the server has ended the program after open()
        return False
    except BlockingIOError:  # another process has filled the FIFO: the program has bytes to read, and goes on
        pass
    finally:
        os.close(descriptor)
    return True
