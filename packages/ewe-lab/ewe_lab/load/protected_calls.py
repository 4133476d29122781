"""Calls of a library that must not reach the interpreter's heap: `python -m ewe_lab.load.protected_calls`.

The LibCGI paper (section 4.3) asks for a boundary between a server and a library in the same address space. This
module is the server: a Python process that closes its heap before it calls the library, and opens it afterwards.
`ewe_lab/stacks/sources/protection.c` is the other half. The module prints JSON: for each method the nanoseconds
of a call, and for each kind of damage what became of it.

    in place           nothing is closed
    protection keys    the pages of the heap have a key, and an instruction closes it for the calling thread
    mprotect           a system call closes each piece of the heap, for the whole process
    process            the library runs in a process, which has a copy of the heap

The heap is where CPython keeps its objects of up to 512 bytes: pymalloc's arenas. `protection.c` notes
each new arena. Of the arenas that are older, the pages with an object of the garbage collector are found by
the objects' addresses. Memory that malloc() gave stays open: the library and libc need the same malloc().

A kind of damage is done in a child process, since it may end that process. The answer is a word of OUTCOMES.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

CLOCK_ROUNDS = 5  # rounds of calls; each gives one figure
PAGE_BYTES = 4096
KEPT_OBJECTS = 10_000  # objects that make the interpreter ask for new arenas
OBJECT_BYTES = 200  # of each, so that it is pymalloc's
LARGE_BYTES = 4_000  # of an object that is malloc()'s
UNPROTECTED, KEYS, MPROTECT, PROCESS = "in place", "protection keys", "mprotect", "process"
METHODS = {UNPROTECTED: 0, KEYS: 1, MPROTECT: 2, PROCESS: 0}  # with the method of protection.c
STOPPED, NOT_STOPPED, ENDED = "stopped", "not stopped", "the server ended"
OUTCOMES = (STOPPED, NOT_STOPPED, ENDED)
DAMAGES = {  # kinds of damage by the library, and their numbers in protection.c
    "writes to an object": 1,
    "reads an object": 2,
    "read() into an object": 3,
    "writes malloc() memory": 4,
    "writes caller's stack": 5,
    "writes /proc/self/mem": 6,
    "reopens, then writes": 7,
    "unmaps a page": 8,
}
READ_DAMAGE, MALLOC_DAMAGE = "reads an object", "writes malloc() memory"
FRAME_CHANGED = 2  # the result of call_library() if the library wrote to its frame
CHILD_FAILED = 9  # exit status of a child that could not do its work
FIRST_BYTE = ord("s")  # of the objects that the library attacks
CPU_FLAGS = ("pku", "ospke")  # of a processor with protection keys, and of a system that uses them
NO_KEYS = (
    "no protection keys: /proc/cpuinfo names no {}. Needed: an Intel or AMD processor with them (Skylake-SP, "
    "Zen 3, or later), and a hypervisor that passes them on"
)
KEY_REFUSED = "no protection keys: pkey_alloc: {}. A container's filter of system calls may refuse it"
Range = tuple[int, int]  # the first address, and the first one behind it


def why_no_keys(cpuinfo: str) -> str:
    """Return the reason if the processor or the system has no protection keys, else ""."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    lacking = [flag for flag in CPU_FLAGS if flag not in line.split()]
    return NO_KEYS.format(lacking[0]) if lacking else ""


class ProtectedLibrary:
    """The compiled protection.c. Its functions close the interpreter's heap while they run.

    ctypes.PyDLL keeps the interpreter's lock (GIL) during a call, so no other thread touches the closed heap.
    """

    def __init__(self, path: str) -> None:
        """Load the library at `path`, and declare the types that ctypes does not assume: it assumes int."""
        self.functions = ctypes.PyDLL(path)
        self.functions.add_piece.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.functions.piece.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self.functions.piece.restype = ctypes.c_void_p
        self.functions.call_library.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self.functions.time_calls.restype = self.functions.time_exchanges.restype = ctypes.c_double

    def close_heap(self) -> None:
        """Tell protection.c which pages a call has to close. Raises OSError if no page can be closed."""
        if not self.functions.watch_arenas():
            raise OSError(0, "this interpreter has no arenas")
        self.targets = [bytes([FIRST_BYTE]) * OBJECT_BYTES for _ in range(KEPT_OBJECTS)]
        self.large = bytes([FIRST_BYTE]) * LARGE_BYTES
        for start, end in ranges_without(pages_of_objects(), [*self.closed_ranges(), *named_ranges()]):
            if not self.functions.add_piece(start, end - start):
                raise OSError(0, "the heap has too many pieces")

    def closed_ranges(self) -> Iterator[Range]:
        """Yield the ranges of addresses that are closed during a call."""
        end = ctypes.c_void_p()
        number = 0
        while start := self.functions.piece(number, ctypes.byref(end)):  # it also stores the end
            yield start, end.value or start
            number += 1

    def address_in_closed_memory(self) -> int:
        """Return the address of one of `targets` that lies in closed memory, for damage. Raises OSError.

        close_heap() has made the targets.
        """
        ranges = list(self.closed_ranges())
        for target in self.targets:
            address = address_of(target)
            if any(start <= address and address + OBJECT_BYTES <= end for start, end in ranges):
                return address
        raise OSError(0, "no object lies in the memory that is closed")

    def choose_method(self, method: str) -> None:
        """Choose the method of the next calls. Raises OSError if the heap cannot get a protection key."""
        if method == KEYS:
            if reason := why_no_keys(Path("/proc/cpuinfo").read_text(errors="replace")):
                raise OSError(errno.ENOTSUP, reason)
            if (key := self.functions.allocate_key()) < 0:
                raise OSError(-key, KEY_REFUSED.format(os.strerror(-key)))
        if status := self.functions.choose_method(METHODS[method]):
            raise OSError(status, f"pkey_mprotect: {os.strerror(status)}")

    def nanoseconds(self, method: str, count: int) -> list[float]:
        """Return the nanoseconds of a call, in each round of `count` calls. Raises OSError."""
        self.choose_method(method)
        measure = self.functions.time_exchanges if method == PROCESS else self.functions.time_calls
        _warm_up, *nanos = [measure(count) for _ in range(CLOCK_ROUNDS + 1)]
        if min(nanos) < 0:  # a failure: the negative number of the error
            error = int(-min(nanos))
            raise OSError(error, os.strerror(error))
        return nanos

    def do_damage(self, method: str, damage: str) -> str:
        """Let the library damage this process; return whether the method stopped it, as one of OUTCOMES.

        Raises OSError.
        """
        self.choose_method(method)
        target = address_of(self.large) if damage == MALLOC_DAMAGE else self.address_in_closed_memory()
        result = byte_of_answer = 0
        if method == PROCESS:
            run_in_child(lambda: self.call_library(damage, target))
        else:
            result = self.call_library(damage, target)
            byte_of_answer = self.functions.first_answered()
        was_changed = ctypes.string_at(target, 1)[0] != FIRST_BYTE
        was_read = damage == READ_DAMAGE and result == 0 and byte_of_answer == FIRST_BYTE
        return NOT_STOPPED if was_changed or was_read or result == FRAME_CHANGED else STOPPED

    def call_library(self, damage: str, target: int) -> int:
        """Call the library, with the heap closed by the chosen method; return its result, 0 for success."""
        result: int = self.functions.call_library(DAMAGES[damage], target)
        return result


def address_of(value: bytes) -> int:
    """Return the address of the first byte of the content of a bytes object.

    CPython: the object has a head, the content, and a zero byte; id() is the address of the head.
    """
    return id(value) + sys.getsizeof(value) - len(value) - 1


def pages_of_objects() -> Iterator[Range]:
    """Yield the ranges of pages with an object that the garbage collector knows; neighbours are one range."""
    pages = sorted({id(object_) // PAGE_BYTES for object_ in gc.get_objects()})
    first = last = -1  # of the range so far; -1: there is none yet
    for page in pages:
        if page != last + 1:  # a gap: the range before it is complete
            if first >= 0:
                yield first * PAGE_BYTES, (last + 1) * PAGE_BYTES
            first = page
        last = page
    if first >= 0:
        yield first * PAGE_BYTES, (last + 1) * PAGE_BYTES


def named_ranges() -> list[Range]:
    """Return the memory that is no arena: that of files, the stack, and malloc()'s heap."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        # proc(5): 7f12-7f34 rw-p 00000000 08:02 1234 name; an anonymous mapping has no name
        addresses, rights, *_, name = (line + " ").split(" ", 5)
        if name.strip() or rights != "rw-p":  # an arena is anonymous, and private memory to read and write
            start, end = (int(address, 16) for address in addresses.split("-"))
            found.append((start, end))
    return found


def ranges_without(ranges: Iterator[Range], others: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges that share no byte with the others."""
    for start, end in ranges:
        if all(end <= first or last <= start for first, last in others):
            yield start, end


def run_in_child(function: Callable[[], int]) -> int:
    """Call a function in a child process; return its result, the child's exit status; negative after a signal.

    CHILD_FAILED: the function raised an exception.
    """
    child = os.fork()
    if not child:
        try:
            os._exit(function())
        finally:  # only after an exception: os._exit() does not return
            os._exit(CHILD_FAILED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_damage(library: ProtectedLibrary, method: str, damage: str) -> str:
    """Do a kind of damage to a copy of this process, a child; return its outcome. Raises OSError."""
    status = run_in_child(lambda: OUTCOMES.index(library.do_damage(method, damage)))
    if status == CHILD_FAILED:
        raise OSError(0, f"{method}: the server could not be made")
    return OUTCOMES[status] if status >= 0 else ENDED


def main() -> None:
    """Measure all methods. A method that the system refuses has a text in place of figures."""
    path, counts = sys.argv[1], dict(zip(METHODS, map(int, sys.argv[2:]), strict=True))
    library = ProtectedLibrary(path)
    gc.disable()  # an arena that the collector empties would leave the list of pieces
    library.close_heap()
    library.functions.catch_faults()
    found: dict[str, dict[str, object] | str] = {}
    for method in METHODS:
        try:
            nanos = library.nanoseconds(method, counts[method])
            outcomes = {damage: try_damage(library, method, damage) for damage in DAMAGES}
            found[method] = {"nanos": nanos, "outcomes": outcomes}
        except OSError as reason:
            found[method] = reason.strerror or str(reason)
    ranges = list(library.closed_ranges())
    closed = sum(end - start for start, end in ranges)
    print(json.dumps({"methods": found, "pieces": len(ranges), "bytes": closed}))


if __name__ == "__main__":
    main()
