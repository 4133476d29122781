"""The Python engine of X-Switch: runs CGI scripts that do not know of it, one after another, in one interpreter.

It speaks the engine protocol (docs/write-an-engine.md): two lines come on the control socket, descriptor 3; the
request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start; after
the output a mark goes back over the control socket. Where a script leaves something behind that a fresh
process would not have (a thread, a child that runs), the engine ends instead, as a CGI script's process would.

What it keeps of one script for the next, and how it forgets the rest, is in python_state.py; a script's standard
streams are in python_streams.py. All three need nothing but Python's own library, so that any `python3` can run
them.
"""
# ruff: noqa: E402

import sys

FRESH = {*sys.modules}  # modules of an interpreter that has just started; a warm parent knows more of them

import _thread
import atexit
import builtins
import ctypes
import gc
import marshal
import os
import time
from array import array
from contextvars import Context
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from time import tzset
from types import ModuleType
from weakref import ref

import python_code as code
import python_fork as fork
import python_isolation as isolation
import python_preload as preload
import python_protocol as protocol
import python_spare as spare
import python_state as state
import python_streams as streams
import python_zygote as zygote
from python_protocol import CONTROL, DATA, ERRORS, FIRST_FREE, NOTHING, receive_lines, words

__builtins__ = vars(state)["__builtins__"]  # a script may change its own
OWN_FILES = {__file__, *(each.__file__ for each in (code, fork, preload, spare, state, streams))}

library = ctypes.CDLL(None)  # of C
ENVIRON = ctypes.c_void_p.in_dll(library, "environ")  # what child processes get
strings = ctypes.c_char_p()
strings_address = ctypes.c_void_p.from_buffer(strings)
environ, environb = os.environ, os.environb  # a script finds these, even if another one has replaced them
REHEARSAL = compile("print('', end='', flush=True)", "", "exec")
at_work = ""  # the script that runs, or that ran last
zone = None, time.tzname, time.timezone  # the variable TZ as the C library knows it, and what follows from it


# The conversation with X-Switch


def main(lines=b""):
    """Answer requests until X-Switch closes the control socket. lines: of a request that has been read."""
    used = False  # has a script run in this process?
    while lines := lines or receive_lines():
        if state.libraries_changed():
            start_anew(lines)
        command, variables, _ = lines.split(b"\n")
        script, *arguments = map(os.fsdecode, words(command))
        if MODE == "auto" and isolation.forks(script, state):
            if used and not fork.helpers:
                start_anew(lines)
            protocol.mark(fork.pass_on(lines, help_out))
            lines = b""
            continue
        used = True
        prepare(script, words(variables))
        if MODE == "none":
            state.hide_modules(os.path.dirname(script))
        status, marker = run(script, arguments)
        if not fork.alone():
            sys.exit(status)
        state.collect(marker)
        streams.write_out()  # right before the mark: X-Switch then finds both at once
        library.fflush(None)  # what a library in C has said
        protocol.mark(status)
        os.dup2(NOTHING, 1)  # what is said from now on is of no answer
        if MODE == "auto" and isolation.spoiled(script, state):
            isolation.condemn(script)
            start_anew()
        state.forget(FIRST_FREE)
        streams.keep()
        lines = b""


# A script in a separate process (python_fork.py)


def help_out():
    """Be the process that forks for an engine."""
    code.fresh.clear()
    state.leave_only(FRESH)
    fork.serve(answer, rehearse, be_zygote)


def answer(lines, lesson=None, shelf=None):
    """Run a script in this process, which is new, and end it. lesson: to be written. shelf: of loaded modules."""
    script, *arguments = prepare_for(lines)
    os.closerange(CONTROL, 1 << 20)
    if shelf:
        sys.meta_path.insert(0, shelf)
    if lesson:
        environment = dict(environ._data)
        preload.follow_imports()
    status, marker = run(script, arguments)
    if lesson:
        try:
            preload.report(lesson, FRESH, environment)
        except Exception:
            pass  # the script has changed what we look with
    state.finish(marker)
    streams.write_out()
    library.fflush(None)
    spare.stop(status)


def rehearse():
    """Do what answer() does, with an empty script (python_spare.py)."""
    prepare_for(b"/rehearsal\targument\nNAME=value\tOTHER=a%20b\n")
    del sys.path[0]
    attempt(lambda: Context().run(exec, REHEARSAL, {"__name__": "__main__", "__builtins__": builtins}))
    streams.write_out()
    state.finish(None)
    library.fflush(None)
    gc.enable()


def be_zygote(lesson):
    """Load the modules that a script needs, then fork for its requests."""
    sys.argv = [*prepare_for(lesson.lines, body=False)]
    shelf = zygote.load(lesson, FRESH)
    state.leave_only(FRESH)
    for kept, items in state.LISTS:
        kept[:] = items
    sys.path_importer_cache.clear()  # a directory of the script's may have others in it at the next request
    os.write(CONTROL, b"!")
    fork.serve(lambda lines, _: answer(lines, shelf=shelf), rehearse)


# Before a script: what a new process would have


def prepare_for(lines, body=True):
    """Prepare the process for a request; return its script and arguments. body: may the script read one?"""
    command, variables, _ = lines.split(b"\n")
    script, *arguments = map(os.fsdecode, words(command))
    given = words(variables)
    prepare(script, given if body else [each for each in given if not each.startswith(b"CONTENT_LENGTH=")])
    return script, *arguments


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
    protocol.set_blocking()
    streams.prepare(int(environment.get(b"CONTENT_LENGTH") or 0))
    sys.path.insert(0, directory)
    if wsgiref := state.known_modules.get("wsgiref.handlers"):  # has the environment in which it was loaded
        wsgiref.BaseHandler.os_environ = wsgiref.read_environ()


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
    global at_work
    engine = os.getpid()
    at_work = script
    module = ModuleType("__main__")
    variables = vars(module)
    variables["__loader__"] = loader = SourceFileLoader("__main__", script)
    if sys.version_info < (3, 14):
        variables["__annotations__"] = {}
    variables.update(__builtins__=builtins, __file__=script, __cached__=None)
    state.modules["__main__"] = module
    sys.argv = [script, *arguments]
    status = attempt(lambda: Context().run(exec, code.code_of(script), variables))
    state.untrace()
    if os.getpid() != engine or _thread._count():
        streams.write_out()
        sys.exit(status)  # a child that the script has forked, or threads that Python will wait for
    status = attempt(run_atexit) or status
    streams.write_out()  # also to something of the script's own, which needs what it has defined
    state.modules["__main__"] = state.known_modules["__main__"]
    if script in code.with_finalizers:
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
    if isinstance(error, ModuleNotFoundError):
        advise(at_work)
    return 1


def advise(script):
    """Tell why a module is missing that a virtual environment has: this engine does not see the script's.

    The first line of the script names the environment's Python (#!/srv/shop/venv/bin/python), but the engine's own
    Python runs it.
    """
    try:
        with open(script, "rb") as file:
            line = file.readline(4096)
        named = os.fsdecode(line[2:].split()[0]) if line.startswith(b"#!") else ""
        directory = os.path.dirname(os.path.dirname(named))
        if os.path.exists(f"{directory}/pyvenv.cfg") and not os.path.samefile(directory, sys.prefix):
            print(
                f"{script}: its first line names {named}, and {sys.executable} runs it, which does not see the"
                f" modules of {directory}: name {named} as the command of an engine (tables [engines] and"
                " [directories] in X-Switch's settings)",
                file=sys.stderr,
            )
    except Exception:
        pass  # the file has changed meanwhile, or the script has replaced what is used here


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


def start_anew(lines=b""):
    """Replace this process by a fresh engine, which goes on with the request that was read, if there is one."""
    fork.end_helper()
    for number, source in ((0, DATA), (1, NOTHING), (2, ERRORS)):
        os.dup2(source, number)
    file = os.memfd_create("lines", 0)
    with open(file, "wb", closefd=False) as memory:
        marshal.dump((lines, isolation.forked), memory)
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(CONTROL, True)
    os.execve(sys.executable, [sys.executable, __file__, str(file)], ENVIRONMENT)


def serve():
    """Be an engine on the descriptors that X-Switch gives, after remember()."""
    global ENVIRONMENT, MODE
    ENVIRONMENT = dict(os.environb)
    MODE = os.environ.get("XSWITCH_ISOLATION", "auto")
    state.remember_paths()
    lines = b""
    if __name__ == "__main__" and len(sys.argv) > 1:
        with open(int(sys.argv[1]), "rb") as memory:
            lines, known = marshal.load(memory)
        isolation.forked.update(known)
    protocol.settle()
    if MODE == "fork":
        state.leave_only(FRESH)
        fork.serve(answer, rehearse, be_zygote, lines)
    else:
        main(lines)


if __name__ == "__main__":
    state.remember()
    serve()
