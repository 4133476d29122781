"""LibCGI: libraries in C that answer requests inside this process (Venkitachalam and Chiueh's paper, section 4).

CGI starts a program for each request; FastCGI asks a program that is running. LibCGI makes a function call:

    call() ─▶ known library? ─▶ libcgi_quick() in C, without the interpreter's lock ─▶ output ─▶ Response
                │ no, or the file has changed              │ a fault
                └─▶ libcgi_load()                          └─▶ 500, and the library is unloaded

The C side (ewe/libcgi) recovers from faults and separates threads; see guard.c and core.c there. shim.py binds it,
and output.py makes a response from the output of a library. This module adds the policy:

- **A changed file** is loaded beside the old library, which is unloaded when no thread executes it. ewe checks the
  file at most once a second (FILE_CHECK_S).
- **A library that faults** is unloaded, and loaded again for the next request. After MAX_FAULTS faults within
  FAULT_WINDOW_S, ewe does not load it for KEPT_OUT_S: 503 with Retry-After.
- **Output** is collected until the call has ended: up to BUFFER_BYTES in memory, more in a temporary file, at most
  libcgi-max-output. A slow client therefore never occupies a library, and a fault in the middle of the document is
  still answered with 500.
- **A body** is mapped into memory, not read: the kernel loads only the pages that the library uses.

A call takes a microsecond, so the time of all other steps matters. Two results are cached: the variables of a
request, and the parsed head, or for short output the whole Response, by the bytes of the output.

Possible failures: a library shares the memory of the server. If it writes to a wrong address without a fault, no
check notices it. docs/libcgi.md describes which libraries should run in a separate process.

Read next: output.py, shim.py; ewe/libcgi/core.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
from _thread import allocate_lock
from collections.abc import Callable
from time import monotonic

from ewe.features.libcgi.output import MAX_CACHED_BYTES, AnyOutput, CallOutput
from ewe.features.libcgi.shim import BUSY, DONE, GONE, Info, LibcgiCall, NotBuilt, Shim, Slot
from ewe.features.static import file_version
from ewe.gateway.spool import Spooled, write
from ewe.http.status import HTTPError

FILE_CHECK_S = 1.0  # seconds until a library's file is checked again
# A library with MAX_FAULTS faults within FAULT_WINDOW_S is not loaded for KEPT_OUT_S.
MAX_FAULTS = 3
FAULT_WINDOW_S = 10.0
KEPT_OUT_S = 10.0
MAX_LIMIT_MS = 2**31 - 1  # the largest int of C
REASON_BYTES = 256  # of the text with which the shim explains a failure
MAX_LOADS = 3  # attempts to get a library that no other call has just unloaded
AS_ROOT_MESSAGE = "root loads no libraries into the server: --user NAME runs it as somebody else (user)"


class Library:
    """A loaded library.

    handle: of libcgi_load() (core.h). name: of the file. fresh_until: the monotonic time after which the file is
    checked again. file_version: see the function.
    """

    __slots__ = ("file_version", "fresh_until", "handle", "name", "shim")

    def __init__(self, shim: Shim, handle: int, name: str, file_status: os.stat_result) -> None:
        """file_status: of the file when it was loaded."""
        self.shim = shim
        self.handle = handle
        self.name = name
        self.file_version = file_version(file_status)
        self.fresh_until = monotonic() + FILE_CHECK_S

    def __del__(self) -> None:
        # No call refers to this object any more, so no call uses the handle.
        self.shim.release(self.handle)

    def info(self) -> Info:
        """Return the statistics of the library."""
        info = Info()
        self.shim.describe(self.handle, ctypes.addressof(info))
        return info


def take_output_file(call: LibcgiCall) -> int:
    """Return the descriptor of the temporary file to which the shim has spooled output, -1 if there is none.

    The shim keeps the descriptor plus 1 in `context`: a null pointer says that there is no file.
    """
    descriptor = (call.context or 0) - 1
    call.context = None
    return descriptor


class LibraryState:
    """The state of one library file: its library while that is loaded, and its faults.

    A library that faults too often is kept out: Libraries does not load it before `kept_out_until`.
    """

    __slots__ = ("failure", "fault_times", "file_version", "kept_out_until", "library", "lock")

    def __init__(self) -> None:
        self.lock = allocate_lock()  # held while the library is loaded
        self.library: Library | None = None  # None: it is not loaded
        self.fault_times: list[float] = []  # monotonic times of the last faults and failed loads
        self.kept_out_until = 0.0  # the monotonic time before which the library is not loaded
        # file_version() of the file at its last fault or failed load: a changed file begins without faults
        self.file_version: tuple[int, ...] = ()
        self.failure = ""  # why the last load failed; "" if the last fault was that of a call


class Libraries:
    """The libraries of a process. The methods may block, and any thread may call them."""

    def __init__(
        self, directory: str, timeout_s: float, *, follows_links: bool, max_output_bytes: int = 0
    ) -> None:
        """directory: the directory of the libraries, without links. timeout_s: the time limit of one call.

        follows_links: symbolic links may lead out of the directory. max_output_bytes: of one call; 0: no limit.
        """
        # A library's path must begin with this, once symbolic links are resolved
        self.required_prefix = "" if follows_links else directory.rstrip("/") + "/"
        self.limit_ms = max(1, min(int(timeout_s * 1000), MAX_LIMIT_MS))
        self.max_output_bytes = max_output_bytes
        self.states_by_file: dict[str, LibraryState] = {}  # by the library's path
        self.slots: list[Slot] = []  # those that no call uses
        self.shim: Shim | None = None
        # The shim's function that makes a call; start() sets it
        self.quick: Callable[..., int] = NotImplemented
        self.lock = allocate_lock()

    def start(self) -> Shim:
        """Return the shim; load it first if necessary. Raises NotBuilt."""
        if self.shim is None:
            with self.lock:
                if self.shim is None:
                    shim = Shim()
                    # Another thread that sees a shim may call quick without the lock, so quick comes first
                    self.quick = shim.quick
                    self.shim = shim
        return self.shim

    def call(
        self, file: str, request_block: bytes, connection_block: bytes, body: Spooled | None = None
    ) -> AnyOutput:
        """Call a library for a request; return short output as bytes, other output as head and body, or as
        CallOutput.

        file: the library's path. request_block, connection_block: blocks of variables; the library sees both as one
        environment.
        Raises HTTPError: 500 if the call or the loading faults, 503 if the library is kept out or LibCGI is not
        built, 404 if the file does not exist any more.

        quick() is the function in C. It returns the length of the output in the slot's buffer, or -1: then the slot
        says what happened, and output() finds it out.
        """
        try:
            library = self.states_by_file[file].library
        except KeyError:  # the file was never loaded, or was not there
            library = None
        try:
            slot = self.slots.pop()
        except IndexError:  # all slots are in use
            slot = self.new_slot()
        try:
            # A library may write into its variables, as strtok() does. Other calls use the blocks: it gets copies.
            request_block += b"\0"
            connection_block += b"\0"
            if library is None or monotonic() > library.fresh_until:
                library = self.find_or_load(file)
            if body is None:  # written out twice: a separate function would cost every request one more call
                count = self.quick(library.handle, slot.address, request_block, connection_block, None)
                if 0 <= count <= MAX_CACHED_BYTES:  # almost always
                    return slot.buffer[:count]
                output = self.output(file, library, slot, count)
            else:
                output = self.output(
                    file, library, slot, self.with_body(library, slot, request_block, connection_block, body)
                )
            # `output` is None if the fault of another call has unloaded the library meanwhile: load it, and call
            # it again.
            for _ in range(MAX_LOADS):
                if output is not None:
                    return output
                library = self.find_or_load(file)
                if body is None:
                    count = self.quick(library.handle, slot.address, request_block, connection_block, None)
                else:
                    count = self.with_body(library, slot, request_block, connection_block, body)
                output = self.output(file, library, slot, count)
        finally:
            self.slots.append(slot)
        raise HTTPError(503, f"{os.path.basename(file)}: unloaded again and again", (("Retry-After", "1"),))

    def new_slot(self) -> Slot:
        """Return a new slot, whose long output the shim spools. Raises HTTPError(503) if LibCGI is not built."""
        try:
            return Slot(self.start().spool, self.max_output_bytes)
        except NotBuilt as reason:
            raise HTTPError(503, str(reason)) from None

    def output(self, file: str, library: Library, slot: Slot, count: int) -> AnyOutput | None:
        """Return the output of a call; None if the library had been unloaded. Raises HTTPError for a fault.

        count: bytes in the buffer, -1 if they are not the whole output.
        """
        if count < 0:
            return self.long_output_or_fault(file, library, slot)
        buffer = slot.buffer
        if count <= MAX_CACHED_BYTES:
            return buffer[:count]
        # A long body is no key of a cache: (head, body) lets output.py find the parsed head by the head alone. That
        # needs a short head without CR.
        end = buffer.find(b"\n\n", 0, MAX_CACHED_BYTES)
        if end > 0 and b"\r" not in (head := buffer[: end + 1]):
            return head, buffer[end + 2 : count]
        return CallOutput(buffer[:count])

    def call_with(self, file: str, request_block: bytes, connection_block: bytes, body: Spooled) -> AnyOutput:
        """Call a library for a request with a body, and close the body afterwards. See call()."""
        try:
            return self.call(file, request_block, connection_block, body)
        finally:
            body.close()

    def with_body(
        self, library: Library, slot: Slot, request_block: bytes, connection_block: bytes, body: Spooled
    ) -> int:
        """Make a call with the request's body mapped into memory; return the result of quick(): see call().

        slot, request_block, connection_block: as in call(). Raises HTTPError(503) if the body cannot be mapped.
        """
        shim = self.start()
        address = shim.map_input(body.descriptor, body.length)
        if not address:
            raise HTTPError(503, f"{library.name}: no memory for a body of {body.length} bytes")
        try:
            return self.quick(library.handle, slot.address, request_block, connection_block, address)
        finally:
            shim.unmap_input(address, body.length)

    def long_output_or_fault(self, file: str, library: Library, slot: Slot) -> CallOutput | None:
        """Return long output; None if the library had been unloaded. Raises HTTPError for a fault."""
        call = slot.call
        file_descriptor = take_output_file(call)
        try:
            if call.outcome == DONE and not call.failed:
                buffered = slot.buffer[: call.used]
                if file_descriptor < 0:
                    return CallOutput(buffered)
                os.lseek(file_descriptor, 0, os.SEEK_END)
                write(file_descriptor, buffered)
                output, file_descriptor = CallOutput(b"", file_descriptor), -1
                return output
        except OSError as reason:
            raise HTTPError(507, f"{library.name}: its output cannot be spooled: {reason.strerror}") from None
        finally:
            if file_descriptor >= 0:
                os.close(file_descriptor)
        if call.outcome == GONE:
            self.drop_unloaded(file, library)
            return None
        if call.outcome == BUSY:
            why = f"{library.name}: {self.start().explanation(slot)}"
            raise HTTPError(503, why, (("Retry-After", "1"),))
        if call.outcome == DONE:
            raise HTTPError(507, f"{library.name}: its output cannot be spooled (TMPDIR)")
        self.note_fault(file, library)
        raise HTTPError(500, f"{library.name}: {self.start().explanation(slot)}; it is unloaded")

    # Which libraries are loaded

    def find_or_load(self, file: str) -> Library:
        """Return the library of a file, loaded again if the file has changed. Raises HTTPError."""
        name = os.path.basename(file)
        with self.lock:
            state = self.states_by_file.setdefault(file, LibraryState())
        with state.lock:
            loaded = state.library
            now = monotonic()
            if loaded is not None and now <= loaded.fresh_until:
                return loaded  # another thread has just loaded it
            try:
                file_status = os.stat(file)
                if not os.path.realpath(file).startswith(self.required_prefix):
                    raise OSError(errno.ENOENT, "a symbolic link leads out of the directory (symlinks)")
            except OSError as reason:
                state.library = None
                with self.lock:
                    self.states_by_file.pop(file, None)
                raise HTTPError(404, f"{file}: {reason.strerror}") from None
            if loaded is not None and loaded.file_version == file_version(file_status):
                loaded.fresh_until = now + FILE_CHECK_S
                return loaded
            if state.file_version != file_version(file_status):
                state.fault_times.clear()
                state.failure, state.kept_out_until = "", 0.0
            elif now < state.kept_out_until:
                wait = (("Retry-After", str(max(1, round(state.kept_out_until - now)))),)
                raise HTTPError(503, f"{name}: kept out, {state.failure or 'it has faulted too often'}", wait)
            state.library = None
            loaded = None  # the old library is unloaded now, unless a thread executes it
            state.library = self.load(state, file, name, file_status)
            return state.library

    def load(self, state: LibraryState, file: str, name: str, file_status: os.stat_result) -> Library:
        """Load a library. Raises HTTPError."""
        if os.geteuid() == 0:
            raise HTTPError(403, f"{name}: {AS_ROOT_MESSAGE}")
        try:
            shim = self.start()
        except NotBuilt as reason:
            raise HTTPError(503, str(reason)) from None
        failure = ctypes.create_string_buffer(REASON_BYTES)
        call = LibcgiCall()  # for the call of initfunc(); `failure` has its reason in words
        handle = shim.load(
            os.fsencode(file), os.fsencode(name), self.limit_ms, failure, len(failure), ctypes.addressof(call)
        )
        if not handle:
            why = failure.value.decode(errors="backslashreplace")
            state.failure = f"it cannot be loaded: {why}"
            self.count_fault(state, file_version(file_status))
            raise HTTPError(500, f"{name} cannot be loaded: {why}")
        return Library(shim, handle, name, file_status)

    def count_fault(self, state: LibraryState, version: tuple[int, ...]) -> None:
        """Count a fault, or a failed load. After MAX_FAULTS within FAULT_WINDOW_S, the library is kept out.

        version: file_version() of the file that was loaded, or could not be loaded. Only faults of the same version
        count together: a call of the old library may fault after the new one was loaded.
        """
        now = monotonic()
        if state.file_version != version:
            state.file_version, state.fault_times, state.kept_out_until = version, [], 0.0
        recent = [each for each in state.fault_times if now - each < FAULT_WINDOW_S]
        state.fault_times = [*recent, now][-MAX_FAULTS:]
        if len(state.fault_times) == MAX_FAULTS:
            state.kept_out_until = now + KEPT_OUT_S

    def note_fault(self, file: str, library: Library) -> None:
        """Drop a library whose call has faulted. The shim does not call it any more."""
        state = self.states_by_file.get(file)
        if state is None:
            return
        with state.lock:
            if state.library is library:
                state.library = None
            state.failure = ""
            self.count_fault(state, library.file_version)

    def drop_unloaded(self, file: str, library: Library) -> None:
        """Drop a library that was unloaded after the fault of another call."""
        state = self.states_by_file.get(file)
        if state is not None:
            with state.lock:
                if state.library is library:
                    state.library = None

    def unload_malformed(self, file: str) -> None:
        """Unload a library whose head was malformed: paper, section 4.1."""
        state = self.states_by_file.get(file)
        if state is not None and (library := state.library) is not None:
            library.shim.retire(library.handle)
            self.note_fault(file, library)  # the next call loads the library again
