"""The engine protocol (docs/write-an-engine.md) as the engines in Python speak it: python.py and run_cgi.py.

It needs nothing but Python's own library, so that any `python3` can run it.
"""

import _signal
import os
from urllib.parse import unquote_to_bytes

# Descriptors of the engine's own; a script has 0, 1 and 2. HELPER leads to the process that forks for the engine
CONTROL, DATA, NOTHING, ERRORS, HELPER = 3, 4, 5, 6, 7
FIRST_FREE = 8
MARK = b"\4"
PIPE = 64 * 1024  # bytes that a pipe holds: a body up to this size needs no file

room = memoryview(bytearray(256 * 1024))  # for the lines of a request


def settle():
    """Move our descriptors to where no script looks for them, and let no program inherit them."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for number, source in ((NOTHING, nothing), (DATA, 0), (ERRORS, 2), (HELPER, nothing)):
        put(source, number)
    os.set_inheritable(CONTROL, False)
    os.closerange(FIRST_FREE, 1 << 20)


def put(source, number):
    """Make a descriptor available under a number that no program inherits."""
    if source == number:  # dup3(2) refuses it, and Python 3.15 calls dup3
        os.set_inheritable(number, False)
    else:
        os.dup2(source, number, inheritable=False)


def set_blocking():
    """Have the data socket and standard error block again: a program may have changed that, for all that follow."""
    for descriptor in (DATA, ERRORS):
        os.set_blocking(descriptor, True)


def receive_lines():
    """Return the two lines of the next request, b"" at the end."""
    lines = b""
    while lines.count(b"\n") < 2:
        try:
            length = os.readv(CONTROL, [room])
        except ConnectionResetError:  # the other end has gone without reading all
            return b""
        if not length:
            return b""
        lines += room[:length]
    return lines


def words(line):
    """Return the words of a line."""
    if b"%" not in line:
        return line.split(b"\t")
    return [unquote_to_bytes(word) for word in line.split(b"\t")]


def open_input(length):
    """Make the request's body standard input, with an end, so that a script and its children may read to it."""
    if length <= PIPE:
        source, sink = os.pipe()
    else:
        source = sink = temporary_file()
    while length:
        piece = os.read(DATA, min(length, PIPE))
        if not piece:
            os._exit(0)  # the sender has gone
        length -= os.write(sink, piece)
    if source == sink:
        os.lseek(source, 0, os.SEEK_SET)
    else:
        os.close(sink)
    os.dup2(source, 0)
    os.close(source)


def temporary_file():
    """Return a file without a name."""
    try:
        return os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return os.memfd_create("body")


def mark(status):
    """Say that the answer is whole. status: the script's exit status."""
    os.write(CONTROL, MARK + b"%d\n" % status)


def end_by(number):
    """End by a signal, as a script's process has."""
    if _signal.getsignal(number) == _signal.SIG_IGN:
        _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
