"""A persistent engine: runs CGI scripts in Python for X-Switch, one after another, in one process.

    X-Switch ──control socket (3)──▶ file TAB argument ...      LF
                                     NAME=value TAB ...         LF     ─▶ run the script ─▶ EOT status LF, on 3
             ──data socket (0)─────▶ CONTENT_LENGTH bytes of the body
             ◀─data socket (1)────── all that the script writes

The script is unmodified: it believes that it has a process to itself. What it changes is put back afterwards.
The protocol is in docs/write-an-engine.md. Test it with: ewe-grade --lab engine engine.py
"""

from __future__ import annotations

import builtins
import fcntl
import gc
import importlib
import io
import os
import re
import signal
import sys
import threading
import traceback
import types

CONTROL = 3
HIGH = 100  # the engine's copy of the data socket has a number from here on
ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class Leave(Exception):
    """X-Switch does not wait any more: the engine ends."""


def words(line: bytes) -> list[bytes]:
    """Return the words of a line of the protocol."""
    # --- solution
    cut = line.rstrip(b"\n").split(b"\t")
    decoded = [ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), word) for word in cut]
    return decoded if line != b"\n" else []
    # --- starter
    # # %, TAB and LF within a word are written %25, %09 and %0A. And what does a line without words mean?
    # return line.rstrip(b"\n").split(b"\t")
    # --- end


def read_body(data: int, length: int) -> bytes:
    """Read exactly so many bytes: no end of file follows them, since the socket stays open. Raises Leave."""
    # --- solution
    body = bytearray()
    while len(body) < length:
        piece = os.read(data, min(length - len(body), 1 << 20))
        if not piece:
            raise Leave
        body += piece
    return bytes(body)
    # --- starter
    # # One read() returns what is there, which may be less. And what if X-Switch has left?
    # return os.read(data, length) if length else b""
    # --- end


class Engine:
    """One engine. serve() answers requests until X-Switch closes the control socket."""

    def __init__(self) -> None:
        os.set_inheritable(CONTROL, False)  # programs that a script starts do not get it
        self.control = open(CONTROL, "rb", closefd=False)
        self.data = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, HIGH)
        self.pid = os.getpid()
        sys.dont_write_bytecode = True  # a compiled copy would hide a change within one second
        # --- solution
        self.path = [place for place in sys.path if place != os.path.dirname(os.path.abspath(__file__))]
        self.modules = set(sys.modules)
        self.builtins = dict(vars(builtins))
        self.signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.descriptors = {0, 1, 2, CONTROL, self.data}
        # --- end

    def serve(self) -> None:
        """Answer one request after the other."""
        while command := self.control.readline():
            file, *arguments = words(command)
            environment = dict(word.partition(b"=")[::2] for word in words(self.control.readline()))
            body = read_body(self.data, int(environment.get(b"CONTENT_LENGTH") or 0))
            self.prepare(file, arguments, environment, body)
            status = self.run(os.fsdecode(file))
            self.clean_up(status)
            os.write(CONTROL, b"\x04%d\n" % status)

    def prepare(
        self, file: bytes, arguments: list[bytes], environment: dict[bytes, bytes], body: bytes
    ) -> None:
        """Make the process look like a new one that was started for this script."""
        # --- solution
        os.environb.clear()  # environb, and not a new dictionary: programs that the script starts inherit it, too
        os.environb.update(environment)
        directory = os.path.dirname(file)
        os.chdir(directory)
        os.umask(0o022)
        sys.argv[:] = map(os.fsdecode, [file, *arguments])
        sys.path[:] = [os.fsdecode(directory), *self.path]
        # The script before may have closed 0 or 1: then a new file would get that number.
        os.dup2(self.data, 0)
        os.dup2(self.data, 1)
        standard_input = os.memfd_create("body")
        with open(standard_input, "wb", closefd=False) as writer:
            writer.write(body)
        os.lseek(standard_input, 0, os.SEEK_SET)
        os.dup2(standard_input, 0)
        os.close(standard_input)
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(open(0, "rb", closefd=False), "utf-8", "surrogateescape")
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(
            open(1, "wb", closefd=False), "utf-8", "surrogateescape"
        )
        # --- starter
        # # Environment and arguments. What else does a script find as the one before has left it?
        # os.environb.update(environment)
        # sys.argv[:] = map(os.fsdecode, [file, *arguments])
        # sys.stdin = io.TextIOWrapper(io.BytesIO(body))
        # --- end

    def run(self, file: str) -> int:
        """Run a script as the program __main__; return its exit status."""
        # --- solution
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=file, __builtins__=builtins)
        sys.modules["__main__"] = main
        status = 0
        try:
            with open(file, "rb") as source:
                text = source.read()
            exec(compile(text, file, "exec", dont_inherit=True), main.__dict__)
        except SystemExit as ended:
            status = self.status_of(ended)
        except BaseException:
            traceback.print_exc()
            status = 1
        # --- starter
        # # Whose variables does a script see here, and what if it raises, or calls sys.exit(3)?
        # with open(file) as source:
        #     exec(source.read(), globals())
        # status = 0
        # --- end
        return status

    # --- solution
    def status_of(self, ended: SystemExit) -> int:
        """Return the exit status that sys.exit() has asked for."""
        if ended.code is None:
            return 0
        if isinstance(ended.code, int):
            return ended.code & 255
        print(ended.code, file=sys.stderr)
        return 1

    # --- end
    def clean_up(self, status: int) -> None:
        """Write out what the script has left in its buffers, then undo what it has changed."""
        # --- solution
        vars(builtins).update(self.builtins)
        for name in vars(builtins).keys() - self.builtins.keys():
            delattr(builtins, name)
        for stream in {sys.stdout, sys.__stdout__}:
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue  # the script has closed it, or put something else in its place
        if os.getpid() != self.pid:
            os._exit(status)  # a child of the script has come to the end: it must not become an engine
        if self.has_leftovers():
            os._exit(status)  # no mark: X-Switch waits until all copies of the data socket are closed
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number, handler in self.signals.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        beside = sys.path[0] + os.sep
        for name, module in list(sys.modules.items()):
            if name not in self.modules and (getattr(module, "__file__", None) or beside).startswith(beside):
                del sys.modules[name]
        sys.path_importer_cache.pop(sys.path[0], None)
        importlib.invalidate_caches()
        sys.modules["__main__"].__dict__.clear()
        sys.stderr = sys.__stderr__
        gc.collect()  # objects that own descriptors close them now, and not when the numbers mean other files
        for entry in map(int, os.listdir("/proc/self/fd")):
            if entry not in self.descriptors:
                try:
                    os.close(entry)
                except OSError:
                    continue  # the directory that listdir() had open
        # --- starter
        # # Undo everything that a script can change in the process: make a list first.
        # sys.stdout.flush()
        # --- end

    # --- solution
    def has_leftovers(self) -> bool:
        """Return whether threads or children of the script still run. Wait for what a process would wait for."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        if len(os.listdir("/proc/self/task")) > 1:
            return True
        try:
            return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    # --- end


if __name__ == "__main__":
    try:
        Engine().serve()
    except Leave:
        pass
