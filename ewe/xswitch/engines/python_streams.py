"""Standard input, output and error of the Python engine (python.py), in the state that a new process has.

Making streams takes time. The next script gets the same ones if a script has left them unchanged.
"""

import io
import sys

from python_protocol import open_input
from python_state import flush

# The encoding and the buffer of a new interpreter's standard output
TEXT_SETTINGS = sys.stdout.encoding, sys.stdout.errors
CHUNK_BYTES = sys.stdout._CHUNK_SIZE
STREAM_NAMES = "<stdin>", "<stdout>", "<stderr>"
streams = {}  # descriptor -> its text layer


def prepare(length):
    """Make descriptor 0 a body of `length` bytes, and put new or unchanged streams into sys."""
    if length:
        open_input(length)
        streams.pop(0, None)
    sys.stdin = sys.__stdin__ = stream(0, *TEXT_SETTINGS)
    if length:
        del streams[0]  # its buffer may contain bytes of this body
    sys.stdout = sys.__stdout__ = stream(1, *TEXT_SETTINGS)
    sys.stderr = sys.__stderr__ = stream(
        2, "utf-8", "backslashreplace", line_buffering=True, write_through=True
    )


def stream(number, *text, **buffering):
    """Return the stream of descriptor 0, 1 or 2: the one of the script before, or a new one.

    text, buffering: arguments of io.TextIOWrapper, for a new one.
    """
    if number not in streams:
        binary = (
            io.BufferedWriter(io.FileIO(number, "w", closefd=False))
            if number
            else io.BufferedReader(StandardInput(number, closefd=False))
        )
        binary.raw.name = STREAM_NAMES[number]
        streams[number] = new_stream = Text(binary, *text, **buffering)
        new_stream.mode = "w" if number else "r"
        del new_stream.changed  # keep_unchanged() takes a stream with this attribute for a changed one
    return streams[number]


class ImmutableClass(type):
    """A class that no script can change, like the interpreter's own classes."""

    def __setattr__(cls, name, value):
        raise TypeError(f"cannot set {name!r} attribute of immutable type '_io.{cls.__qualname__}'")


class Text(io.TextIOWrapper, metaclass=ImmutableClass):
    """A standard stream, made as Python makes it. It shows whether a script has changed its settings."""

    __module__, __qualname__ = "_io", "TextIOWrapper"

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.changed = True

    def reconfigure(self, **changes):
        self.changed = True
        super().reconfigure(**changes)


class StandardInput(io.FileIO, metaclass=ImmutableClass):
    """Standard input. It shows whether a script has read from it."""

    __module__, __qualname__ = "_io", "FileIO"

    def readinto(self, buffer):
        self.used = True
        return super().readinto(buffer)

    def readall(self):
        self.used = True
        return super().readall()


def flush_output():
    """Flush the script's output: the engine's streams, and those that the script has put into sys."""
    for engine_stream in streams.values():
        flush(engine_stream)
    sys_variables = vars(sys)  # a script may have deleted some
    # Does the script have other streams than the engine's?
    if not sys_variables.get("stdout") is sys_variables.get("__stdout__") is streams.get(1) or (
        sys_variables.get("stderr") is not streams.get(2)
    ):
        for name in ("stdout", "__stdout__", "stderr"):
            flush(sys_variables.get(name))


def keep_unchanged():
    """Keep those standard streams for the next script that this one has left unchanged; drop the others."""
    for number, text in list(streams.items()):
        try:  # the text layer has a mode, the raw layer a name; an unchanged stream has no other attributes
            text.flush()
            is_unchanged = len(vars(text)) == 1 and not vars(text.buffer) and len(vars(text.buffer.raw)) == 1
        except Exception:  # the stream is closed, has lost its buffer, or its other end is closed
            is_unchanged = False
        if not is_unchanged or text._CHUNK_SIZE != CHUNK_BYTES:
            del streams[number]
