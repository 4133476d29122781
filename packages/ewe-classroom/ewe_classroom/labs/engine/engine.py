"""A persistent engine: runs CGI scripts in Python for X-Switch, one after another, in one process.

    X-Switch ──control socket (3)──▶ file TAB argument ...      LF
                                     NAME=value TAB ...         LF     ─▶ run the script ─▶ EOT status LF, on 3
             ──data socket (0)─────▶ CONTENT_LENGTH bytes of the body
             ◀─data socket (1)────── the output of the script

Scripts are unmodified, and may rely on a separate process. The engine therefore undoes the changes of each script.
docs/xswitch-internals.md describes the protocol. Test the engine with: ewe-grade --lab engine engine.py
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

CONTROL = 3  # the descriptor of the control socket
# The engine copies the data socket to a descriptor from this number: far above those that a script's files get
MIN_DATA_DESCRIPTOR = 100
END_MARK = b"\x04%d\n"  # EOT, the exit status and LF
ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class SocketClosed(Exception):
    """X-Switch has closed a socket: the engine has to end."""


def words(line: bytes) -> list[bytes]:
    """Return the words of a line of the protocol."""
    # --- solution
    cut = line.rstrip(b"\n").split(b"\t")
    decoded = [ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), word) for word in cut]
    return decoded if line != b"\n" else []
    # --- starter
    # # %, TAB and LF within a word are written %25, %09 and %0A. How many words does an empty line have?
    # return line.rstrip(b"\n").split(b"\t")
    # --- end


def read_body(data: int, length: int) -> bytes:
    """Read exactly `length` bytes. No end of file follows, because the socket stays open. Raises SocketClosed."""
    # --- solution
    body = bytearray()
    while len(body) < length:
        piece = os.read(data, min(length - len(body), 1 << 20))
        if not piece:
            raise SocketClosed
        body += piece
    return bytes(body)
    # --- starter
    # # One read() may return only a part of the body. How do you notice that X-Switch has closed the socket?
    # return os.read(data, length) if length else b""
    # --- end


class Engine:
    """One engine. serve() answers requests until X-Switch closes the control socket."""

    def __init__(self) -> None:
        os.set_inheritable(CONTROL, False)  # programs that a script starts must not inherit it
        self.control = open(CONTROL, "rb", closefd=False)
        self.data = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, MIN_DATA_DESCRIPTOR)
        self.pid = os.getpid()
        sys.dont_write_bytecode = True  # a compiled copy would hide a change within one second
        # --- solution
        self.path = [
            directory for directory in sys.path if directory != os.path.dirname(os.path.abspath(__file__))
        ]
        self.modules = set(sys.modules)
        self.builtins = dict(vars(builtins))
        self.signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.descriptors = {0, 1, 2, CONTROL, self.data}
        # --- end

    def serve(self) -> None:
        """Answer one request after the other."""
        while command := self.control.readline():
            file, *arguments = words(command)
            # partition() returns name, "=" and value; [::2] takes the first and the third.
            environment = dict(word.partition(b"=")[::2] for word in words(self.control.readline()))
            body = read_body(self.data, int(environment.get(b"CONTENT_LENGTH") or 0))
            self.prepare(file, arguments, environment, body)
            status = self.run(os.fsdecode(file))
            self.clean_up(status)
            os.write(CONTROL, END_MARK % status)

    def prepare(
        self, file: bytes, arguments: list[bytes], environment: dict[bytes, bytes], body: bytes
    ) -> None:
        """Make the process look like a new process for this script."""
        # --- solution
        os.environb.clear()  # do not make a new dictionary: programs that the script starts would not inherit it
        os.environb.update(environment)
        self.directory = os.fsdecode(os.path.dirname(file))
        os.chdir(self.directory)
        os.umask(0o022)
        sys.argv[:] = map(os.fsdecode, [file, *arguments])
        sys.path[:] = [self.directory, *self.path]
        # Restore 0 and 1 first: an earlier script may have closed them, and a new file would then get the number.
        os.dup2(self.data, 0)
        os.dup2(self.data, 1)
        # A file in memory, which has an end, becomes the standard input.
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
        # # This sets environment and arguments. Which other state of the previous script does a script still find?
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
        # # A script sees the engine's variables here. How do you handle a script that raises or calls sys.exit(3)?
        # with open(file) as source:
        #     exec(source.read(), globals())
        # status = 0
        # --- end
        return status

    # --- solution
    def status_of(self, ended: SystemExit) -> int:
        """Return the exit status of a SystemExit. Print its text, if it has one."""
        if ended.code is None:
            return 0
        if isinstance(ended.code, int):
            return ended.code & 255
        print(ended.code, file=sys.stderr)
        return 1

    # --- end
    def clean_up(self, status: int) -> None:
        """Write the script's buffered output, then undo the script's changes."""
        # --- solution
        vars(builtins).update(self.builtins)
        for name in vars(builtins).keys() - self.builtins.keys():
            delattr(builtins, name)
        for stream in (sys.stdout, sys.__stdout__):  # often the same one
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue  # the script has closed or replaced the stream
        if os.getpid() != self.pid:
            os._exit(status)  # this is a child of the script: it must not become an engine
        if self.has_leftovers():
            # without an end mark, X-Switch waits until all copies of the data socket are closed
            os._exit(status)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number, handler in self.signals.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        # Forget the modules beside the script, and those without a file; keep those of Python's library.
        beside = self.directory + os.sep  # the script may have changed sys.path
        for name, module in list(sys.modules.items()):
            if name not in self.modules and (getattr(module, "__file__", None) or beside).startswith(beside):
                del sys.modules[name]
        sys.path_importer_cache.pop(self.directory, None)
        importlib.invalidate_caches()
        sys.modules["__main__"].__dict__.clear()
        sys.stderr = sys.__stderr__
        gc.collect()  # objects close their descriptors now, and not later, when the numbers belong to other files
        for entry in map(int, os.listdir("/proc/self/fd")):
            if entry not in self.descriptors:
                try:
                    os.close(entry)
                except OSError:
                    continue  # the directory that listdir() had open is closed already
        # --- starter
        # # Undo every change that a script can make in the process: first write a list.
        # sys.stdout.flush()
        # --- end

    # --- solution
    def has_leftovers(self) -> bool:
        """Return whether daemon threads or children of the script still run. Wait for its other threads to end."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        if len(os.listdir("/proc/self/task")) > 1:
            return True
        try:
            # Read the status of the children that have ended: a zombie would hide those that still run.
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                continue
            return True
        except ChildProcessError:  # there are no children
            return False

    # --- end


if __name__ == "__main__":
    try:
        Engine().serve()
    except SocketClosed:
        pass
