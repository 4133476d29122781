"""LibCGI's shim, bound by ctypes: the functions and structures of ewe/libcgi/core.h.

With ctypes, ewe needs no compiled Python module, so its wheel contains no binary. Read next: libraries.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

from ewe import logger
from ewe.config.linux import needs_linux
from ewe.libcgi import build

BUFFER_BYTES = 256 * 1024  # of output in memory
DONE, FAULT, TIMEOUT, EXIT, GONE, BUSY, OUTPUT = range(7)  # enum libcgi_outcome
LINE_BYTES = 256  # of the text that explains the end of a call
NOT_BUILT_MESSAGE = (
    "LibCGI is not built: run `ewe --build-libcgi` (or `make libcgi`), which needs a C compiler"
)


class LibcgiCall(ctypes.Structure):
    """struct libcgi_call of core.h."""

    _fields_ = [
        ("variables", ctypes.c_char_p * 2),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("capacity", ctypes.c_size_t),
        ("flush", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("max_output", ctypes.c_uint64),
        ("used", ctypes.c_size_t),
        ("flushed", ctypes.c_uint64),
        ("failed", ctypes.c_int),
        ("outcome", ctypes.c_int),
        ("number", ctypes.c_int),
        ("address", ctypes.c_void_p),
        ("function", ctypes.c_char_p),
        ("place", ctypes.c_char * 96),
        ("remote_host", ctypes.c_char * 256),
    ]


class Info(ctypes.Structure):
    """struct libcgi_info of core.h."""

    _fields_ = [
        ("calls", ctypes.c_uint64),
        ("faults", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("longest", ctypes.c_uint64),
        ("inside", ctypes.c_int),
        ("reentrant", ctypes.c_int),
        ("retired", ctypes.c_int),
        ("unloaded", ctypes.c_int),
    ]


class NotBuilt(Exception):
    """The shim cannot be used. The text is one line."""


class Slot:
    """The structure of a call, and a buffer for its output. Only one call at a time may use a slot."""

    __slots__ = ("address", "buffer", "call")

    def __init__(self, flush: int, max_output: int) -> None:
        """flush: the address of the function that spools long output. max_output: bytes; 0: no limit."""
        self.buffer = mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.call = LibcgiCall(capacity=BUFFER_BYTES, flush=flush, max_output=max_output)
        self.call.output = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self.address = ctypes.addressof(self.call)


class Shim:
    """The functions of core.h, in this process."""

    def __init__(self) -> None:
        """Load the shim, and declare the C types of its functions to ctypes. Raises NotBuilt."""
        if reason := needs_linux("LibCGI", in_container="ewe --host 0.0.0.0 4000"):
            raise NotBuilt(reason)
        try:
            # `preloaded`: loaded while ewe was root, since the workers may not be able to read its directory.
            path = build.preloaded or build.shim_file()
        except OSError:  # this process may not read ewe's directory
            raise NotBuilt(NOT_BUILT_MESSAGE) from None
        if path != build.preloaded and not path.exists():
            raise NotBuilt(NOT_BUILT_MESSAGE)
        try:
            # RTLD_GLOBAL: libraries find lwrite() and similar functions in the shim.
            library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as reason:
            raise NotBuilt(f"LibCGI cannot be loaded: {reason}; remove {path} and build it again") from None
        pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
        library.libcgi_interpreter.argtypes = [pointer, pointer]
        # A call by PyDLL keeps the interpreter's lock. The shim releases the lock if the call takes long.
        with_lock = ctypes.PyDLL(str(path), handle=library._handle)
        python = ctypes.pythonapi
        library.libcgi_interpreter(
            ctypes.cast(python.PyEval_SaveThread, pointer), ctypes.cast(python.PyEval_RestoreThread, pointer)
        )
        self.quick = declare(
            with_lock.libcgi_quick_held, ctypes.c_long, pointer, pointer, text, text, pointer
        )
        self.load = declare(library.libcgi_load, pointer, text, text, number, text, size, pointer)
        self.release = declare(library.libcgi_release, None, pointer)
        self.retire = declare(library.libcgi_retire, None, pointer)
        self.describe = declare(library.libcgi_describe, None, pointer, pointer)
        self.explain = declare(library.libcgi_explain, None, pointer, text, size)
        self.map_input = declare(library.libcgi_map_input, pointer, number, size)
        self.unmap_input = declare(library.libcgi_unmap_input, None, pointer, size)
        self.spool = ctypes.cast(library.libcgi_spool, pointer).value or 0
        report = ctypes.CFUNCTYPE(None, text)
        self.report = report(self.log)  # C code calls it later, so it must not be garbage-collected
        library.libcgi_start.argtypes = [report]
        if failure := library.libcgi_start(self.report):
            raise NotBuilt(f"LibCGI cannot start: {os.strerror(failure)}")

    @staticmethod
    def log(line: bytes) -> None:
        """Log a failure in the unloading of a library."""
        logger.errors.error(line.decode(errors="backslashreplace"))

    def explanation(self, slot: Slot) -> str:
        """Return the reason for the end of a call, as text."""
        line = ctypes.create_string_buffer(LINE_BYTES)
        self.explain(slot.address, line, len(line))
        return line.value.decode(errors="backslashreplace")


def declare(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a C function with its types."""
    function.restype, function.argtypes = result, arguments
    found: Callable[..., Any] = function
    return found
