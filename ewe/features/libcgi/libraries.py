"""LibCGI: libraries in C that answer requests inside this process (Venkitachalam and Chiueh's paper, section 4).

CGI starts a program for a request; FastCGI asks a program that waits. LibCGI makes a function call:

    call() ─▶ known library? ─▶ libcgi_quick() in C, without the interpreter's lock ─▶ output ─▶ Response
                │ no, or the file has changed              │ a fault
                └─▶ libcgi_load()                          └─▶ 500, and the library is unloaded

The C side (ewe/libcgi) recovers from faults and keeps threads apart; see guard.c and core.c there. shim.py
binds it, and output.py makes a response of what a library writes. What this module adds is policy:

- **A changed file** is loaded beside the old library, which is unloaded when no thread is inside it. ewe looks at
  the file at most once a second (FRESH).
- **A library that faults** is unloaded, and loaded again for the next request. After FAULTS faults within WINDOW
  seconds it is kept out for OUT seconds: 503 with Retry-After.
- **Output** is collected until the call has ended: up to BUFFER bytes in memory, more in a temporary file, at most
  libcgi-max-output. A slow client thus never holds a library, and a fault within the document is still answered
  with 500.
- **A body** is mapped into memory, not read: the kernel brings in only the pages that the library touches.

A call costs a microsecond, so everything around it counts. Two things are remembered: the variables of a
request, and the parsed head, or for short output the whole Response, with the bytes that it came from.

What can go wrong: a library shares our memory. Nothing notices a stray write that does not fault; docs/libcgi.md
says what to run in a separate process.

Read next: output.py, shim.py; ewe/libcgi/core.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
from _thread import allocate_lock
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from ewe.features.libcgi.output import SHORT_OUTPUT, AnyOutput, Output
from ewe.features.libcgi.shim import BUSY, DONE, GONE, Call, Info, NotBuilt, Shim, Slot
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.gateway.spool import Spooled

FRESH = 1.0  # seconds for which a library's file is not checked again
FAULTS, WINDOW, OUT = 3, 10.0, 10.0  # faults, seconds, seconds
TRIES = 3  # to find a library that no other call has just unloaded
AS_ROOT = "root loads no libraries into the server: --user NAME runs it as somebody else (user)"


class Library:
    """A loaded library. handle: of core.h. name: of its file. fresh_until: when the file is looked at again."""

    __slots__ = ("fresh_until", "handle", "identity", "name", "shim")

    def __init__(self, shim: Shim, handle: int, name: str, about: os.stat_result) -> None:
        self.shim = shim
        self.handle = handle
        self.name = name
        self.identity = identity(about)
        self.fresh_until = monotonic() + FRESH

    def __del__(self) -> None:
        # No call holds this object any more, so none has the handle.
        self.shim.release(self.handle)

    def info(self) -> Info:
        """Return what the library has done so far."""
        info = Info()
        self.shim.describe(self.handle, ctypes.addressof(info))
        return info


def identity(about: os.stat_result) -> tuple[int, ...]:
    """Return what tells one state of a file from another."""
    return (about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino)


class Entry:
    """What is known of one file: its library while it is loaded, and when it faulted."""

    __slots__ = ("failure", "faulted", "identity", "library", "lock", "out_until")

    def __init__(self) -> None:
        self.lock = allocate_lock()  # held while the library is loaded
        self.library: Library | None = None
        self.faulted: list[float] = []  # on time.monotonic(), the last ones
        self.out_until = 0.0
        self.identity: tuple[int, ...] = ()  # of the file that faulted, or could not be loaded
        self.failure = ""  # why it could not be loaded


class Libraries:
    """The libraries of a process. The methods may block, and any thread may call them."""

    def __init__(self, directory: str, timeout: float, *, follows: bool, max_output: int = 0) -> None:
        """directory: of the libraries, without links. timeout: how long one call may take, in seconds.

        follows: symbolic links may lead out of the directory. max_output: bytes that a call may write, 0: no limit.
        """
        self.inside = "" if follows else directory.rstrip("/") + "/"
        self.limit_ms = max(1, min(int(timeout * 1000), 2**31 - 1))
        self.max_output = max_output
        self.entries: dict[str, Entry] = {}
        self.slots: list[Slot] = []
        self.shim: Shim | None = None
        self.quick: Callable[..., int] = NotImplemented
        self.lock = allocate_lock()

    def start(self) -> Shim:
        """Return the shim, loaded if it was not. Raises NotBuilt."""
        if self.shim is None:
            with self.lock:
                if self.shim is None:
                    shim = Shim()
                    self.quick = shim.quick
                    self.shim = shim
        return self.shim

    def call(self, file: str, first: bytes, second: bytes, body: Spooled | None = None) -> AnyOutput:
        """Have a library answer a request; return its output: short as bytes, else its head and its body.

        file: the library's. first, second: blocks of variables. Raises HTTPError: 500 if the call or the loading
        faults, 503 if the library is kept out or LibCGI is not built, 404 if the file has gone.
        """
        try:
            library = self.entries[file].library
            slot = self.slots.pop()
        except KeyError:
            library, slot = None, self.slot()
        except IndexError:
            slot = self.slot()
        try:
            if library is None or monotonic() > library.fresh_until:
                library = self.look(file)
            if body is None:
                count = self.quick(library.handle, slot.address, first, second, None)
                if 0 <= count <= SHORT_OUTPUT:  # almost always
                    return slot.buffer[:count]
                output = self.output(file, library, slot, count)
            else:
                output = self.output(file, library, slot, self.with_body(library, slot, first, second, body))
            for _ in range(TRIES):
                if output is not None:
                    return output
                library = self.look(file)
                if body is None:
                    count = self.quick(library.handle, slot.address, first, second, None)
                else:
                    count = self.with_body(library, slot, first, second, body)
                output = self.output(file, library, slot, count)
        finally:
            self.slots.append(slot)
        raise HTTPError(503, f"{os.path.basename(file)}: unloaded again and again", (("Retry-After", "1"),))

    def slot(self) -> Slot:
        """Return a slot that no call uses. Raises HTTPError(503)."""
        try:
            return Slot(self.start().spool, self.max_output)
        except NotBuilt as reason:
            raise HTTPError(503, str(reason)) from None

    def output(self, file: str, library: Library, slot: Slot, count: int) -> AnyOutput | None:
        """Return the output of a call; None if the library had been unloaded. Raises HTTPError for a fault.

        count: bytes in the buffer, -1 if they are not the whole output.
        """
        if count < 0:
            return self.examine(file, library, slot)
        buffer = slot.buffer
        if count <= SHORT_OUTPUT:
            return buffer[:count]
        end = buffer.find(b"\n\n", 0, SHORT_OUTPUT)
        if end > 0 and b"\r" not in (head := buffer[: end + 1]):
            return head, buffer[end + 2 : count]
        return Output(buffer[:count])

    def call_with(self, file: str, first: bytes, second: bytes, body: Spooled) -> AnyOutput:
        """Do what call() does, and close the body."""
        try:
            return self.call(file, first, second, body)
        finally:
            body.close()

    def with_body(self, library: Library, slot: Slot, first: bytes, second: bytes, body: Spooled) -> int:
        """Make a call with the request's body in memory."""
        shim = self.start()
        place = shim.map_input(body.descriptor, body.length)
        if not place:
            raise HTTPError(503, f"{library.name}: no memory for a body of {body.length} bytes")
        try:
            return self.quick(library.handle, slot.address, first, second, place)
        finally:
            shim.unmap_input(place, body.length)

    def examine(self, file: str, library: Library, slot: Slot) -> Output | None:
        """Return long output; None if the library had been unloaded. Raises HTTPError for a fault."""
        call = slot.call
        output = None
        if call.context:
            output = Output(b"", call.context - 1)
            call.context = None
        try:
            if call.outcome == DONE and not call.failed:
                if output is None:
                    return Output(slot.buffer[: call.used])
                os.lseek(output.file, 0, os.SEEK_END)
                view = memoryview(slot.buffer)[: call.used]
                try:
                    while view:
                        view = view[os.write(output.file, view) :]
                finally:
                    view.release()
                found = Output(b"", output.file)
                output.file = -1
                output = None
                return found
        except OSError as reason:
            raise HTTPError(507, f"{library.name}: its output cannot be spooled: {reason.strerror}") from None
        finally:
            if output is not None:
                output.close()
        if call.outcome == GONE:
            self.forget(file, library)
            return None
        if call.outcome == BUSY:
            why = f"{library.name}: {self.start().explanation(slot)}"
            raise HTTPError(503, why, (("Retry-After", "1"),))
        if call.outcome == DONE:
            raise HTTPError(507, f"{library.name}: its output cannot be spooled (TMPDIR)")
        self.faulted(file, library)
        raise HTTPError(500, f"{library.name}: {self.start().explanation(slot)}; it is unloaded")

    # Which libraries are loaded

    def look(self, file: str) -> Library:
        """Return the library of a file, loaded again if the file has changed. Raises HTTPError."""
        name = os.path.basename(file)
        with self.lock:
            entry = self.entries.setdefault(file, Entry())
        with entry.lock:
            known = entry.library
            now = monotonic()
            if known is not None and now <= known.fresh_until:
                return known  # another thread has just loaded it
            try:
                about = os.stat(file)
                if not os.path.realpath(file).startswith(self.inside):
                    raise OSError(errno.ENOENT, "a symbolic link leads out of the directory (symlinks)")
            except OSError as reason:
                entry.library = None
                with self.lock:
                    self.entries.pop(file, None)
                raise HTTPError(404, f"{file}: {reason.strerror}") from None
            if known is not None and known.identity == identity(about):
                known.fresh_until = now + FRESH
                return known
            if entry.identity != identity(about):
                entry.faulted.clear()
                entry.failure, entry.out_until = "", 0.0
            elif now < entry.out_until:
                wait = (("Retry-After", str(max(1, round(entry.out_until - now)))),)
                raise HTTPError(503, f"{name}: kept out, {entry.failure or 'it has faulted too often'}", wait)
            entry.library = None
            known = None  # the old one is unloaded now, unless a thread is inside
            entry.library = self.load(entry, file, name, about)
            return entry.library

    def load(self, entry: Entry, file: str, name: str, about: os.stat_result) -> Library:
        """Load a library. Raises HTTPError."""
        if os.geteuid() == 0:
            raise HTTPError(403, f"{name}: {AS_ROOT}")
        try:
            shim = self.start()
        except NotBuilt as reason:
            raise HTTPError(503, str(reason)) from None
        failure = ctypes.create_string_buffer(256)
        call = Call()
        handle = shim.load(
            os.fsencode(file), os.fsencode(name), self.limit_ms, failure, len(failure), ctypes.addressof(call)
        )
        if not handle:
            why = failure.value.decode(errors="backslashreplace")
            self.count_fault(entry, about)
            raise HTTPError(500, f"{name} cannot be loaded: {why}")
        return Library(shim, handle, name, about)

    def count_fault(self, entry: Entry, about: os.stat_result | None) -> None:
        """Note a fault; after too many the library is kept out."""
        now = monotonic()
        if about is not None:
            entry.identity = identity(about)
        entry.faulted = [*(each for each in entry.faulted if now - each < WINDOW), now][-FAULTS:]
        if len(entry.faulted) == FAULTS:
            entry.out_until = now + OUT

    def faulted(self, file: str, library: Library) -> None:
        """Forget a library whose call has faulted; the shim calls it no more."""
        entry = self.entries.get(file)
        if entry is None:
            return
        with entry.lock:
            if entry.library is library:
                entry.library = None
            entry.identity = library.identity
            self.count_fault(entry, None)

    def forget(self, file: str, library: Library) -> None:
        """Forget a library that another call's fault has unloaded."""
        entry = self.entries.get(file)
        if entry is not None:
            with entry.lock:
                if entry.library is library:
                    entry.library = None

    def malformed(self, file: str) -> None:
        """Unload a library whose head was malformed: paper, section 4.1."""
        entry = self.entries.get(file)
        if entry is not None and (library := entry.library) is not None:
            library.shim.retire(library.handle)
            self.faulted(file, library)


# ---------------------------------------------------------------------------------------------------------
# The answer
