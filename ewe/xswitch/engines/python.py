"""The Python engine of X-Switch: runs CGI scripts that do not know of it, one after another, in one interpreter.

It speaks the engine protocol (docs/write-an-engine.md): two lines come on the control socket, descriptor 3; the
request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start; after
the output a mark goes back over the control socket. Where a script leaves something behind that a fresh
process would not have (a thread, a child that runs), the engine ends instead, as a CGI script's process would.

This file needs nothing but Python's own library, so that any `python3` can run it.
"""

import _locale
import _signal
import atexit
import builtins
import ctypes
import gc
import io
import os
import sys
import traceback
import warnings
from contextvars import Context
from importlib import machinery
from types import ModuleType
from urllib.parse import unquote_to_bytes

CONTROL, DATA, NOTHING, ERRORS = 3, 4, 5, 6  # descriptors of the engine's own; a script has 0, 1 and 2
FIRST_FREE = 7
MARK = b"\4"
PIPE = 64 * 1024  # bytes that a pipe holds: a body up to this size needs no file
MAX_CODES = 500  # files whose compiled code is kept

c_library = ctypes.CDLL(None)
codes = {}  # file -> (its signature, its code)
known_modules = set()  # names of those that stay
looked = 0.0  # when they were last compared, on the clock of os.times()
signatures = {}  # file of an installed module -> (time, size, inode) when it was loaded


# The conversation with X-Switch


def main(lines=b""):
    """Answer requests until X-Switch closes the control socket. lines: of a request that has been read."""
    while lines := lines or receive_lines():
        if libraries_changed():
            start_anew(lines)
        command, variables = (
            [unquote_to_bytes(word) if b"%" in word else word for word in line.split(b"\t")]
            for line in lines.split(b"\n")[:2]
        )
        environment = dict(variable.split(b"=", 1) for variable in variables)
        script, *arguments = map(os.fsdecode, command)
        prepare(script, environment)
        status = run(script, arguments)
        if not alone():
            sys.exit(status)
        os.write(CONTROL, MARK + b"%d\n" % status)
        forget()
        lines = b""


def receive_lines():
    """Return the two lines of the next request, b"" at the end."""
    lines = b""
    while lines.count(b"\n") < 2:
        piece = os.read(CONTROL, 256 * 1024)
        if not piece:
            return b""
        lines += piece
    return lines


def settle():
    """Move our descriptors to where no script looks for them, and let no program inherit them."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for number, source in ((NOTHING, nothing), (DATA, 0), (ERRORS, 2)):
        os.dup2(source, number, inheritable=False)
    os.set_inheritable(CONTROL, False)
    os.closerange(FIRST_FREE, 1 << 20)


# Before a script: what a new process would have


def prepare(script, environment):
    """Give the process the environment, directory, descriptors and streams that a script expects."""
    c_library.clearenv()
    for name, value in environment.items():
        os.putenv(name, value)
    os.environ._data.clear()
    os.environ._data.update(environment)
    os.umask(0o022)
    os.chdir(os.path.dirname(script))
    open_input(int(environment.get(b"CONTENT_LENGTH") or 0))
    os.dup2(DATA, 1)
    os.dup2(ERRORS, 2)
    sys.stdin = sys.__stdin__ = text(io.BufferedReader(io.FileIO(0, "r", closefd=False)))
    sys.stdout = sys.__stdout__ = text(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = sys.__stderr__ = text_errors()
    sys.path.insert(0, os.path.dirname(script))


def text(binary):
    """Return the text layer that Python gives standard input and output."""
    return io.TextIOWrapper(binary, *TEXT)


def text_errors():
    """Return the text layer that Python gives standard error."""
    binary = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    return io.TextIOWrapper(binary, "utf-8", "backslashreplace", line_buffering=True, write_through=True)


def open_input(length):
    """Make the request's body standard input, with an end, so that a script and its children may read to it."""
    if not length:
        os.dup2(NOTHING, 0)
        return
    if length <= PIPE:
        source, sink = os.pipe()
    else:
        source = sink = temporary_file()
    while length:
        piece = os.read(DATA, min(length, PIPE))
        if not piece:
            os._exit(0)  # whoever sent it has gone
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


# The script


def run(script, arguments):
    """Run a script as `python3 script arguments` does; return its exit status."""
    engine = os.getpid()
    module = ModuleType("__main__")
    vars(module).update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv = [script, *arguments]
    status = attempt(lambda: Context().run(exec, code_of(script), vars(module)))
    if os.getpid() != engine or has_threads():
        sys.exit(status)  # a child that the script has forked, or threads that Python will wait for
    status = attempt(run_atexit) or status
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        flush(stream)
    vars(module).clear()  # so that what it held is closed, and has said what it has to say
    flush(sys.stdout)
    return status


def attempt(step):
    """Take a step; return the exit status that Python gives a process that has done so."""
    try:
        step()
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as error:
        report(error)
        return 1
    return 0


def run_atexit():
    """Run what the script has registered to run at its end."""
    atexit._run_exitfuncs()
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()


def exit_status(code):
    """Return the exit status that exit(code) gives a process."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def report(error):
    """Have sys.excepthook report an error, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except BaseException:
        traceback.print_exc()


def signature(file):
    """Return what changes when a file does."""
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size, status.st_ino


def code_of(file):
    """Return the compiled code of a file; it is compiled once for each change."""
    now = signature(file)
    known, code = codes.get(file, (None, None))
    if known != now:
        with open(file, "rb") as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
        if len(codes) >= MAX_CODES:
            codes.clear()
        codes[file] = (now, code)
    return code


# Modules: those that are installed stay; those beside the scripts are as new for each request


class Loader(machinery.SourceFileLoader):
    """Loads a module of the user's own; its code is kept as that of a script is."""

    def get_code(self, fullname):
        return code_of(self.path)


def find_own(directory):
    """Return the finder for a directory of modules of the user's own; sys.path_hooks calls this."""
    if is_library(os.path.join(directory, "")):
        raise ImportError
    return machinery.FileFinder(
        directory,
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (Loader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def is_library(file):
    """Is this a file of an installed module?"""
    return file.startswith(LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file


def sort_modules():
    """Drop the modules of the user's own; note the files of those that are new and stay."""
    fresh = [
        (name, getattr(sys.modules[name], "__file__", None)) for name in sys.modules.keys() - known_modules
    ]
    for name, file in fresh:
        if file is not None and not is_library(file):
            del sys.modules[name]
            continue
        known_modules.add(name)
        if file is not None and "-packages/" in file:
            signatures[file] = signature(file)
    if any(name in sys.modules for name, _ in fresh):
        gc.collect()
        gc.freeze()  # no collection looks through what stays


def libraries_changed():
    """Has an installed module changed since it was loaded? Looks once a second."""
    global looked
    now = os.times().elapsed
    if not signatures or now - looked < 1:
        return False
    looked = now
    try:
        return any(signature(file) != known for file, known in signatures.items())
    except OSError:
        return True


def start_anew(lines):
    """Replace this process by a fresh engine, which goes on with the request that was read."""
    file = os.memfd_create("lines", 0)
    os.write(file, lines)
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(DATA, 0)
    os.dup2(ERRORS, 2)
    os.set_inheritable(CONTROL, True)
    os.execve(sys.executable, [sys.executable, __file__, str(file)], ENVIRONMENT)


# After a script: what it has changed is as it was


def flush(stream):
    """Write out what a stream holds, if it is open and somebody reads."""
    try:
        stream.flush()
    except Exception:
        pass  # it may be anything that the script has put there


def has_threads():
    """Do threads run that the script has started?"""
    return "threading" in sys.modules and sys.modules["threading"].active_count() > 1


def alone():
    """Have all processes that the script started ended?"""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def forget():
    """Undo what the script has done to the interpreter, once its answer is under way."""
    for module, names in KEPT:
        if vars(module).keys() != names.keys():
            for name in vars(module).keys() - names.keys():
                delattr(module, name)
        vars(module).update(names)
    sys.setrecursionlimit(RECURSION)
    for kept, items in LISTS:
        kept[:] = items
    for name, reset in RESETS.items():
        if name in sys.modules:
            reset(sys.modules[name])
    if len(sys.modules) != len(known_modules) or next(reversed(sys.modules)) not in known_modules:
        sort_modules()
    gc.enable()
    for each in (
        gc.get_objects()
    ):  # a file in a cycle: its descriptor may be collected first, then it could not write
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            flush(each)
    gc.collect()
    os.closerange(FIRST_FREE, 1 << 20)


def reset_signals(module):
    for number, handler in SIGNALS.items():
        if _signal.getsignal(number) is not handler:
            _signal.signal(number, handler)
    module.alarm(0)
    module.pthread_sigmask(module.SIG_SETMASK, ())


def reset_logging(module):
    module.disable(module.NOTSET)
    for logger in (module.root, *module.root.manager.loggerDict.values()):
        if isinstance(logger, module.Logger):
            logger.handlers[:] = [each for each in logger.handlers if isinstance(each, module.NullHandler)]
            logger.setLevel(module.WARNING if logger is module.root else module.NOTSET)
            logger.disabled = False


def reset_locale(module):
    if _locale.setlocale(_locale.LC_ALL) != LOCALE:
        _locale.setlocale(_locale.LC_ALL, LOCALE)


# What to do about a module where a script has imported it
RESETS = {
    "signal": reset_signals,
    "locale": reset_locale,
    "logging": reset_logging,
    "random": lambda module: module.seed(),
    "socket": lambda module: module.setdefaulttimeout(None),
    "warnings": lambda module: module.filters.__setitem__(slice(None), FILTERS),
}


def remember():
    """Note how the interpreter is before any script has run."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path and path != here]
    sys.path_hooks.insert(0, find_own)
    known_modules.update(sys.modules)
    global LIBRARIES, TEXT, LOCALE, SIGNALS, FILTERS, KEPT, RECURSION
    RECURSION = sys.getrecursionlimit()
    LIBRARIES = tuple(os.path.join(path, "") for path in sys.path)
    TEXT = sys.stdout.encoding, sys.stdout.errors
    LOCALE = _locale.setlocale(_locale.LC_ALL)
    SIGNALS = {number: _signal.getsignal(number) for number in _signal.valid_signals()}
    FILTERS = warnings.filters[:]
    KEPT = [(module, dict(vars(module))) for module in (sys, builtins)]
    gc.collect()
    gc.freeze()


def serve():
    """Be an engine on the descriptors that X-Switch gives, after remember()."""
    global ENVIRONMENT, LISTS
    ENVIRONMENT = dict(os.environb)
    LISTS = [(kept, kept[:]) for kept in (sys.path, sys.meta_path, sys.path_hooks)]
    lines = os.read(int(sys.argv[1]), 1 << 20) if __name__ == "__main__" and len(sys.argv) > 1 else b""
    settle()
    main(lines)


if __name__ == "__main__":
    remember()
    serve()
