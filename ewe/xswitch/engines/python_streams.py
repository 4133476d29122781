"""Standard input, output and error of the Python engine (python.py), as a script finds them in a new process.

They are kept for the next script where one has left them as they were, since making them takes time.
"""

import io
import sys

from python_protocol import open_input
from python_state import flush

TEXT = sys.stdout.encoding, sys.stdout.errors
CHUNK = sys.stdout._CHUNK_SIZE
NAMES = "<stdin>", "<stdout>", "<stderr>"
streams = {}  # descriptor -> its text layer


def prepare(length):
    """Make descriptor 0 a body of so many bytes, and put streams into sys."""
    if length:
        open_input(length)
        streams.pop(0, None)
    sys.stdin = sys.__stdin__ = stream(0, *TEXT)
    if length:
        del streams[0]  # it may have read ahead
    sys.stdout = sys.__stdout__ = stream(1, *TEXT)
    sys.stderr = sys.__stderr__ = stream(
        2, "utf-8", "backslashreplace", line_buffering=True, write_through=True
    )


def stream(number, *text, **buffering):
    """Return standard input, output or error: that of the script before, where it is kept."""
    if number not in streams:
        binary = (
            io.BufferedWriter(io.FileIO(number, "w", closefd=False))
            if number
            else io.BufferedReader(Input(number, closefd=False))
        )
        binary.raw.name = NAMES[number]
        streams[number] = made = Text(binary, *text, **buffering)
        made.mode = "w" if number else "r"
        del made.changed
    return streams[number]


class Sealed(type):
    """A class that no script can change, as those of the interpreter."""

    def __setattr__(cls, name, value):
        raise TypeError(f"cannot set {name!r} attribute of immutable type '_io.{cls.__qualname__}'")


class Text(io.TextIOWrapper, metaclass=Sealed):
    """A stream as Python makes the standard ones, which shows whether a script has changed how it works."""

    __module__, __qualname__ = "_io", "TextIOWrapper"

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.changed = True

    def reconfigure(self, **changes):
        self.changed = True
        super().reconfigure(**changes)


class Input(io.FileIO, metaclass=Sealed):
    """Standard input, which shows whether a script has read of it."""

    __module__, __qualname__ = "_io", "FileIO"

    def readinto(self, buffer):
        self.used = True
        return super().readinto(buffer)

    def readall(self):
        self.used = True
        return super().readall()


def write_out():
    """Write out what the script has said."""
    for each in streams.values():
        flush(each)
    theirs = vars(sys)  # a script may have deleted some
    if not theirs.get("stdout") is theirs.get("__stdout__") is streams.get(1) or (
        theirs.get("stderr") is not streams.get(2)
    ):
        for name in ("stdout", "__stdout__", "stderr"):
            flush(theirs.get(name))


def keep():
    """Keep standard input, output and error for the next script, where this one has left them as they were."""
    for number, each in list(streams.items()):
        try:  # a mode and a name are all that they have been given
            each.flush()
            as_it_was = len(vars(each)) == 1 and not vars(each.buffer) and len(vars(each.buffer.raw)) == 1
        except Exception:  # it is closed, has lost its buffer, or nobody reads
            as_it_was = False
        if not as_it_was or each._CHUNK_SIZE != CHUNK:
            del streams[number]
