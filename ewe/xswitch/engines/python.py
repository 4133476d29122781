"""The Python engine of X-Switch: runs CGI scripts that do not know of it, one after another, in one interpreter.

It speaks the engine protocol (docs/write-an-engine.md): two lines come on the control socket, descriptor 3; the
request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start; after
the output a mark goes back over the control socket. Where a script leaves something behind that a fresh
process would not have (a thread, a child that runs), the engine ends instead, as a CGI script's process would.

What it keeps of one script for the next, and how it forgets the rest, is in python_state.py; a script's standard
streams are in python_streams.py. All three need nothing but Python's own library, so that any `python3` can run
them.
"""

import _thread
import atexit
import builtins
import ctypes
import os
import sys
import time
from array import array
from contextvars import Context
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from time import tzset
from types import ModuleType
from urllib.parse import unquote_to_bytes
from weakref import ref

import python_state as state
import python_streams as streams

__builtins__ = vars(state)["__builtins__"]  # a script may change its own
CONTROL, DATA, NOTHING, ERRORS = 3, 4, 5, 6  # descriptors of the engine's own; a script has 0, 1 and 2
FIRST_FREE = 7
OWN_FILES = {__file__, state.__file__, streams.__file__}
MARK = b"\4"

library = ctypes.CDLL(None)  # of C
ENVIRON = ctypes.c_void_p.in_dll(library, "environ")  # what child processes get
waitpid = library.waitpid
waitpid.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_int
strings = ctypes.c_char_p()
strings_address = ctypes.c_void_p.from_buffer(strings)
room = memoryview(bytearray(256 * 1024))  # for what comes on the control socket
environ, environb = os.environ, os.environb  # what a script finds there, whatever another has put there
zone = None, time.tzname, time.timezone  # the variable TZ as the C library knows it, and what follows from it


# The conversation with X-Switch


def main(lines=b""):
    """Answer requests until X-Switch closes the control socket. lines: of a request that has been read."""
    while lines := lines or receive_lines():
        if state.libraries_changed():
            start_anew(lines)
        command, variables, _ = lines.split(b"\n")
        script, *arguments = map(os.fsdecode, words(command))
        prepare(script, words(variables))
        status, marker = run(script, arguments)
        if not alone():
            sys.exit(status)
        state.collect(marker)
        streams.write_out()  # right before the mark: X-Switch then finds both at once
        library.fflush(None)  # what a library in C has said
        os.write(CONTROL, MARK + b"%d\n" % status)
        os.dup2(NOTHING, 1)  # what is said from now on is of no answer
        state.forget(FIRST_FREE)
        streams.keep()
        lines = b""


def receive_lines():
    """Return the two lines of the next request, b"" at the end."""
    lines = b""
    while lines.count(b"\n") < 2:
        length = os.readv(CONTROL, [room])
        if not length:
            return b""
        lines += room[:length]
    return lines


def words(line):
    """Return the words of a line."""
    if b"%" not in line:
        return line.split(b"\t")
    return [unquote_to_bytes(word) for word in line.split(b"\t")]


def settle():
    """Move our descriptors to where no script looks for them, and let no program inherit them."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for number, source in ((NOTHING, nothing), (DATA, 0), (ERRORS, 2)):
        os.dup2(source, number, inheritable=False)
    os.set_inheritable(CONTROL, False)
    os.closerange(FIRST_FREE, 1 << 20)


# Before a script: what a new process would have


def prepare(script, variables):
    """Give the process the environment, directory, descriptors and streams that a script expects."""
    set_c_environment(variables)
    environment = dict([variable.split(b"=", 1) for variable in variables])
    os.environ, os.environb = environ, environb
    set_zone(environ._data.get(b"TZ"), environment.get(b"TZ"))
    environ._data = environb._data = environment
    os.umask(0o022)
    directory = os.path.dirname(script)
    os.chdir(directory)
    os.dup2(NOTHING, 0)
    os.dup2(DATA, 1)
    os.dup2(ERRORS, 2)
    for ours in (DATA, ERRORS):
        os.set_blocking(ours, True)
    streams.prepare(DATA, int(environment.get(b"CONTENT_LENGTH") or 0))
    sys.path.insert(0, directory)
    if wsgiref := state.known_modules.get("wsgiref.handlers"):  # has the environment in which it was loaded
        wsgiref.BaseHandler.os_environ = wsgiref.read_environ()
    state.hide_modules(directory)


def set_c_environment(variables):
    """Give the C library its environment: pointers to NAME=value, each of them ended by a NUL, and a null."""
    global pointers  # kept as long as the C library has them, as is the text
    strings.value = b"\0".join(variables) + b"\0"
    lengths = [len(each) + 1 for each in variables]
    pointers = array("L", accumulate(lengths, initial=strings_address.value))
    pointers[-1] = 0
    ENVIRON.value = pointers.buffer_info()[0]


def set_zone(before, now):
    """Have the C library, and Python, look at the variable TZ again where this or the script before had its own.

    The C library looks at it by itself too, in strftime(3) and mktime(3), but not in localtime_r(3).
    """
    global zone
    if (before, time.tzname, time.timezone) != zone or now != before:
        tzset()
        zone = now, time.tzname, time.timezone


# The script


def run(script, arguments):
    """Run a script as `python3 script arguments` does; return its exit status, and a marker for collect()."""
    engine = os.getpid()
    module = ModuleType("__main__")
    variables = vars(module)
    variables["__loader__"] = loader = SourceFileLoader("__main__", script)
    if sys.version_info < (3, 14):
        variables["__annotations__"] = {}
    variables.update(__builtins__=builtins, __file__=script, __cached__=None)
    state.modules["__main__"] = module
    sys.argv = [script, *arguments]
    status = attempt(lambda: Context().run(exec, state.code_of(script), variables))
    state.untrace()
    if os.getpid() != engine or _thread._count():
        streams.write_out()
        sys.exit(status)  # a child that the script has forked, or threads that Python will wait for
    status = attempt(run_atexit) or status
    streams.write_out()  # also to something of the script's own, which needs what it has defined
    state.modules["__main__"] = state.known_modules["__main__"]
    if script in state.with_finalizers:
        return status, ref(loader)  # finalizers find what it has defined
    variables.clear()  # so that what it held is closed, and has said what it has to say
    return status, None


def attempt(step):
    """Take a step; return the exit status that Python gives a process that has done so."""
    try:
        step()
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as error:
        return report(error)
    return 0


def run_atexit():
    """Run what the script has registered to run at its end."""
    atexit._run_exitfuncs()


def exit_status(code):
    """Return the exit status that exit(code) gives a process."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -1 << 63 <= code < 1 << 63 else 0xFF
    try:
        sys.stderr.write(f"{code!s}\n")
    except Exception:
        pass  # Python says nothing either
    return 1


def report(error):
    """Have sys.excepthook report an error; return the exit status."""
    trace = without_ours(error.__traceback__)
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as fault:
        fault.__context__ = None
        for said, each in (("Error in sys.excepthook:", fault), ("\nOriginal exception was:", error)):
            print(said, file=sys.stderr)
            trace = without_ours(each.__traceback__)
            sys.__excepthook__(type(each), each.with_traceback(trace), trace)
    return 1


def without_ours(trace):
    """Return a traceback without the frames that are ours, or of imports, which Python does not show either."""
    shown = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in OWN_FILES and not file.startswith("<frozen importlib"):
            shown.append(trace)
        trace = trace.tb_next
    for each, following in zip(shown, [*shown[1:], None], strict=False):
        if each.tb_next is not following:
            each.tb_next = following
    return shown[0] if shown else None


def alone():
    """Have all processes that the script started ended? os.waitpid raises an exception to say so, which costs."""
    while (ended := waitpid(-1, None, os.WNOHANG)) > 0:
        pass
    return ended < 0


def start_anew(lines):
    """Replace this process by a fresh engine, which goes on with the request that was read."""
    file = os.memfd_create("lines", 0)
    os.write(file, lines)
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(DATA, 0)
    os.dup2(ERRORS, 2)
    os.set_inheritable(CONTROL, True)
    os.execve(sys.executable, [sys.executable, __file__, str(file)], ENVIRONMENT)


def serve():
    """Be an engine on the descriptors that X-Switch gives, after remember()."""
    global ENVIRONMENT
    ENVIRONMENT = dict(os.environb)
    state.remember_paths()
    lines = os.read(int(sys.argv[1]), 1 << 20) if __name__ == "__main__" and len(sys.argv) > 1 else b""
    settle()
    main(lines)


if __name__ == "__main__":
    state.remember()
    serve()
