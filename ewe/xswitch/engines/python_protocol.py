"""The engine protocol (docs/xswitch-internals.md), for the engines in Python: python.py and run_cgi.py.

This file needs only Python's own library: any `python3` can run it.
"""

import _locale
import _signal
import os
from urllib.parse import unquote_to_bytes

# The engine's own descriptors; a script has 0, 1 and 2
CONTROL_DESCRIPTOR, DATA_DESCRIPTOR = 3, 4  # the sockets to X-Switch
NULL_DESCRIPTOR = 5  # /dev/null
ERRORS_DESCRIPTOR = 6  # standard error
HELPER_DESCRIPTOR = 7  # the socket to the process that forks for the engine (python_fork.py)
FIRST_UNUSED_DESCRIPTOR = 8
END_OF_DESCRIPTORS = 1 << 20  # above all numbers of descriptors: the kernel's default for fs.nr_open
MARK = b"\4"  # the first byte of the end mark
PIPE_BYTES = 64 * 1024  # bytes that a pipe holds: a body up to this size needs no file

LINE_BUFFER_BYTES = 256 * 1024  # more than the longest lines of a request

LOCALE_VARIABLES = b"LANG=", b"LC_ALL=", b"LC_CTYPE="
# The variable that Python sets if its environment has none of those: one of these names, if the system has it
own_locale = _locale.setlocale(_locale.LC_CTYPE)
ADDED_VARIABLES = [b"LC_CTYPE=" + own_locale.encode()] if own_locale in ("C.UTF-8", "C.utf8", "UTF-8") else []

line_buffer = memoryview(bytearray(LINE_BUFFER_BYTES))


def set_up_descriptors():
    """Move the engine's descriptors to numbers that no script uses, and let no program inherit them."""
    null = os.open("/dev/null", os.O_RDWR)
    duplicate_descriptor(null, NULL_DESCRIPTOR)
    duplicate_descriptor(0, DATA_DESCRIPTOR)
    duplicate_descriptor(2, ERRORS_DESCRIPTOR)
    duplicate_descriptor(null, HELPER_DESCRIPTOR)  # until there is a helper
    os.set_inheritable(CONTROL_DESCRIPTOR, False)
    os.closerange(FIRST_UNUSED_DESCRIPTOR, END_OF_DESCRIPTORS)


def duplicate_descriptor(source, number):
    """Make the descriptor `source` available as `number`, too. No program that is started inherits `number`."""
    if source == number:  # dup3(2) refuses it, and Python 3.15 calls dup3
        os.set_inheritable(number, False)
    else:
        os.dup2(source, number, inheritable=False)


def set_blocking():
    """Make the data socket and standard error block again: a program may have changed that for all later ones."""
    for descriptor in (DATA_DESCRIPTOR, ERRORS_DESCRIPTOR):
        os.set_blocking(descriptor, True)


def receive_lines():
    """Read the two lines of the next request from the control socket; b"" if X-Switch has closed it."""
    lines = b""
    while lines.count(b"\n") < 2:
        try:
            length = os.readv(CONTROL_DESCRIPTOR, [line_buffer])
        except ConnectionResetError:  # the other end was closed before it had read everything
            return b""
        if not length:
            return b""
        lines += line_buffer[:length]
    return lines


def decoded_words(line):
    """Return the words of a line of the engine protocol: tabs separate them, and each is percent-decoded."""
    if b"%" not in line:
        return line.split(b"\t")
    return [unquote_to_bytes(word) for word in line.split(b"\t")]


def script_variables(line):
    """Return the environment of a script, NAME=value: that of its request, and the variable that Python adds.

    Without a locale in its environment, `python3 script` sets LC_CTYPE, for its child processes, too (PEP 538).
    """
    variables = decoded_words(line)
    may_have_locale = b"LANG=" in line or b"LC_" in line
    if may_have_locale and any(variable.startswith(LOCALE_VARIABLES) for variable in variables):
        return variables
    return variables + ADDED_VARIABLES


def open_input(length):
    """Make the request's body standard input.

    The data socket stays open after the body. The body is therefore copied to a pipe or a file, which has an end: a
    script and its children may read to the end. length: of the body, in bytes.

    Raises OSError if there is no room for the body. Its rest is then still in the data socket: the engine must end.
    """
    if length <= PIPE_BYTES:
        source, sink = os.pipe()
    else:
        source = sink = temporary_file()
    pieces = b""
    while length:
        piece = os.read(DATA_DESCRIPTOR, min(length, PIPE_BYTES))
        if not piece:
            os._exit(0)  # the sender has closed its end
        length -= len(piece)
        pieces += piece
        if length and source != sink:
            continue  # a pipe gets all at once: small pieces would fill each of its pages only in part
        while pieces:
            pieces = pieces[os.write(sink, pieces) :]  # write(2) accepts a part if the disk is almost full
    if source == sink:
        os.lseek(source, 0, os.SEEK_SET)  # the script reads the file from its beginning
    else:
        os.close(sink)  # so that the pipe has an end
    os.dup2(source, 0)
    os.close(source)


def temporary_file():
    """Return the descriptor of a file without a name: in /tmp, or in memory if /tmp allows none."""
    try:
        return os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return os.memfd_create("body")


def write_end_mark(status):
    """Write the end mark: the answer is complete. status: the script's exit status."""
    os.write(CONTROL_DESCRIPTOR, MARK + b"%d\n" % status)


def end_by_signal(number):
    """End this process by the signal `number`, by which the script's process has ended."""
    if _signal.getsignal(number) == _signal.SIG_IGN:
        _signal.signal(number, _signal.SIG_DFL)  # an ignored signal would not end the process
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # as a shell reports a process that a signal has ended
