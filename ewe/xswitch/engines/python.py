"""The Python engine of X-Switch: runs unmodified CGI scripts, one after another, in one interpreter.

It speaks the engine protocol (docs/xswitch-internals.md). Two lines come on the control socket, descriptor 3. The
request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start. After the
output a mark goes back over the control socket. A script may leave something behind that a fresh process would not
have, such as a thread or a running child. Then the engine ends instead, as a CGI script's process would.

python_state.py keeps some modules of one script for the next, and resets everything else. python_streams.py has a
script's standard streams. The engine needs only Python's own library: any `python3` can run it.
"""
# ruff: noqa: E402

import sys

# Names of the modules of an interpreter that has just started. A preloaded parent adds more of them
START_MODULES = {*sys.modules}

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
from python_protocol import (
    CONTROL_DESCRIPTOR,
    DATA_DESCRIPTOR,
    END_OF_DESCRIPTORS,
    ERRORS_DESCRIPTOR,
    FIRST_UNUSED_DESCRIPTOR,
    NULL_DESCRIPTOR,
    decoded_words,
    receive_lines,
    script_variables,
)

__builtins__ = vars(state)["__builtins__"]  # a script may change its builtins
# Tracebacks do not show the frames of these files
OWN_FILES = {__file__, *(module.__file__ for module in (code, fork, preload, spare, state, streams))}

c_library = ctypes.CDLL(None)  # the C library
ENVIRON = ctypes.c_void_p.in_dll(c_library, "environ")  # the environment that child processes inherit
# The pointer to the texts of set_c_environment(), and the same pointer as a number
strings = ctypes.c_char_p()
strings_address = ctypes.c_void_p.from_buffer(strings)
# Each script gets these, even if an earlier one has replaced them
environ, environb = os.environ, os.environb
MAX_FIRST_LINE_BYTES = 4096
REHEARSAL = compile("print('', end='', flush=True)", "", "exec")
current_script = ""  # the script that runs, or that ran last
# The variable TZ when the engine last called tzset(), and the values of `time` after that call
last_tzset = None, time.tzname, time.timezone


# The conversation with X-Switch


def main(lines=b""):
    """Answer requests until X-Switch closes the control socket. lines: of a request that was read already."""
    has_run_script = False  # whether a script has run in this process
    while lines := lines or receive_lines():
        if state.libraries_changed():
            replace_process(lines)
        command, variables, _ = lines.split(b"\n")
        script, *arguments = map(os.fsdecode, decoded_words(command))
        if ISOLATION == "auto" and isolation.needs_fork(script, state):
            # The helper must be forked from a process that has run no script
            if has_run_script and not fork.helpers:
                replace_process(lines)
            protocol.write_end_mark(fork.ask_helper(lines, serve_as_helper))
            lines = b""
            continue
        has_run_script = True
        prepare(script, script_variables(variables))
        if ISOLATION == "none":
            state.hide_shadowed_modules(os.path.dirname(script))
        status, marker = run_script(script, arguments)
        if not fork.script_processes_have_ended():
            sys.exit(status)  # as a CGI script's process would; X-Switch ends the processes that are left
        state.collect_garbage(marker)
        streams.flush_output()  # right before the mark: X-Switch then finds both at once
        c_library.fflush(None)  # also the output of libraries in C
        protocol.write_end_mark(status)
        os.dup2(NULL_DESCRIPTOR, 0)  # an idle engine keeps no file with a body
        os.dup2(NULL_DESCRIPTOR, 1)  # later output belongs to no answer
        if ISOLATION == "auto" and isolation.has_left_changes(script, state):
            isolation.always_fork(script)
            replace_process()
        state.undo_changes(FIRST_UNUSED_DESCRIPTOR)
        streams.keep_unchanged()
        lines = b""


# A script in a separate process (python_fork.py)


def serve_as_helper():
    """Run the helper process that forks for an engine."""
    code.request_signatures.clear()
    state.unload_all_but(START_MODULES)
    fork.serve(answer, rehearse, run_zygote)


def answer(lines, profile=None, store=None):
    """Run a script in this new process, and end it.

    lines: of the request. profile: the ImportProfile for which this run must write a report, or
    None. store: the ModuleStore of a zygote, or None.
    """
    try:
        script, *arguments = prepare_for(lines)
    except Exception:  # no room for the body, or no way into the directory
        sys.excepthook(*sys.exc_info())
        if preload.environment_of(lines).get(b"CONTENT_LENGTH") not in (None, b"", b"0"):
            # The body may still be in the data socket, and the next script would read it as its own. This signal
            # ends the engine, too.
            protocol.end_by_signal(fork.KILL)
        os._exit(1)
    os.closerange(CONTROL_DESCRIPTOR, END_OF_DESCRIPTORS)
    if store:
        sys.meta_path.insert(0, store)
    if profile:
        environment_before = dict(environ._data)
        preload.follow_imports()
    status, marker = run_script(script, arguments)
    if profile:
        try:
            preload.write_run_report(profile, START_MODULES, environment_before)
        except Exception:
            pass  # the script has changed the functions that write_run_report() uses
    state.release_objects(marker)
    streams.flush_output()
    c_library.fflush(None)
    spare.end_process(status)


def rehearse():
    """Call the functions that answer() calls, with an empty script: a spare has its memory pages then.

    python_spare.py explains the gain. The last lines undo the effects of the rehearsal.
    """
    prepare_for(b"/rehearsal\targument\nNAME=value\tOTHER=a%20b\n")
    del sys.path[0]  # prepare() has inserted the directory of the script
    status_after(lambda: Context().run(exec, REHEARSAL, {"__name__": "__main__", "__builtins__": builtins}))
    streams.flush_output()
    state.release_objects(None)
    c_library.fflush(None)
    gc.enable()


def run_zygote(profile):
    """Be the zygote of a script: load the modules that it needs, then fork for each of its requests.

    A child finds sys.modules and the search paths as in a new interpreter. Its script imports the loaded modules
    from the store. profile: the ImportProfile of the script.
    """
    sys.argv = [*prepare_for(profile.request_lines, has_body=False)]
    store = zygote.load(profile, START_MODULES)
    state.unload_all_but(START_MODULES)
    for path_list, items_before in state.PATH_LISTS:  # sys.path, and the lists of import hooks
        path_list[:] = items_before
    sys.path_importer_cache.clear()  # the script's directory may have other files at the next request
    os.write(CONTROL_DESCRIPTOR, preload.READY)  # the process that has forked this one may now send requests
    fork.serve(lambda lines, no_profile: answer(lines, store=store), rehearse)


# Before a script: prepare the state of a new process


def prepare_for(lines, has_body=True):
    """Prepare the process for a request; return its script and arguments. has_body: the script may read one."""
    command, variables, _ = lines.split(b"\n")
    script, *arguments = map(os.fsdecode, decoded_words(command))
    assignments = script_variables(variables)
    if not has_body:
        assignments = [each for each in assignments if not each.startswith(b"CONTENT_LENGTH=")]
    prepare(script, assignments)
    return script, *arguments


def prepare(script, variables):
    """Set up the environment, directory, descriptors and streams that a script expects.

    variables: NAME=value, in bytes.
    """
    set_c_environment(variables)
    environment = dict([variable.split(b"=", 1) for variable in variables])
    os.environ, os.environb = environ, environb
    set_time_zone(environ._data.get(b"TZ"), environment.get(b"TZ"))
    environ._data = environb._data = environment
    os.umask(0o022)
    directory = os.path.dirname(script)
    os.chdir(directory)
    os.dup2(NULL_DESCRIPTOR, 0)
    os.dup2(DATA_DESCRIPTOR, 1)
    os.dup2(ERRORS_DESCRIPTOR, 2)
    protocol.set_blocking()
    streams.prepare(int(environment.get(b"CONTENT_LENGTH") or 0))
    sys.path.insert(0, directory)
    if wsgiref := state.known_modules.get("wsgiref.handlers"):  # it keeps the environment of its import
        wsgiref.BaseHandler.os_environ = wsgiref.read_environ()


def set_c_environment(variables):
    """Give the C library its environment (environ(7)): pointers to the texts NAME=value, and a null pointer.

    variables: NAME=value, in bytes. In memory, a NUL ends each text.
    """
    # The C library uses the pointers and the text until the next request: both must stay alive
    global pointers
    strings.value = b"\0".join(variables) + b"\0"
    lengths = [len(variable) + 1 for variable in variables]  # + 1: the NUL
    # Each variable begins where the one before ends; the last pointer, behind all of them, becomes the null
    pointers = array("L", accumulate(lengths, initial=strings_address.value))
    pointers[-1] = 0
    address, _length = pointers.buffer_info()
    ENVIRON.value = address


def set_time_zone(last_zone, zone):
    """Call tzset() if the next script has another TZ, or if the last script has set TZ or called tzset().

    Otherwise localtime_r(3) would use the time zone of the last script: it does not read TZ itself. strftime(3) and
    mktime(3) do.

    last_zone: the variable TZ at the end of the last script. zone: the variable TZ of the next script. Both are
    None if the variable is not set.
    """
    global last_tzset
    if (last_zone, time.tzname, time.timezone) != last_tzset or zone != last_zone:
        tzset()
        last_tzset = zone, time.tzname, time.timezone


# The script


def run_script(script, arguments):
    """Run a script as `python3 script arguments` does.

    Return its exit status, and a marker for collect_garbage(): a weak reference to an object in its variables if
    the script defines a finalizer, else None.
    """
    global current_script
    engine = os.getpid()
    current_script = script
    module = ModuleType("__main__")
    variables = vars(module)
    variables["__loader__"] = loader = SourceFileLoader("__main__", script)
    if sys.version_info < (3, 14):
        variables["__annotations__"] = {}
    variables.update(__builtins__=builtins, __file__=script, __cached__=None)
    state.modules["__main__"] = module
    sys.argv = [script, *arguments]
    status = status_after(lambda: Context().run(exec, code.cached_code_of(script), variables))
    state.remove_tracers()
    if os.getpid() != engine or _thread._count():
        streams.flush_output()
        # This process is a child of the script; or threads of the script run, for whose end Python will wait
        sys.exit(status)
    status = status_after(run_atexit) or status
    streams.flush_output()  # also to a stream of the script's own, which needs the script's variables
    state.modules["__main__"] = state.known_modules["__main__"]
    if script in code.scripts_with_finalizers:
        return status, ref(loader)  # finalizers need the script's variables
    variables.clear()  # closes the objects of the script, which may still write output
    return status, None


def status_after(step):
    """Call a function; return the exit status that Python gives a process after it."""
    try:
        step()
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as error:
        return report_exception(error)
    return 0


def run_atexit():
    """Run the functions that the script has registered with atexit."""
    atexit._run_exitfuncs()


def exit_status(code):
    """Return the exit status that exit(code) gives a process. Write a code that is a text to standard error."""
    if code is None:
        return 0
    if isinstance(code, int):
        # The kernel keeps 8 bits of a status. Python makes -1 of a number that does not fit into a C long
        return code & 0xFF if -1 << 63 <= code < 1 << 63 else 0xFF
    try:
        sys.stderr.write(f"{code!s}\n")
    except Exception:
        pass  # Python is silent in this case, too
    return 1


def report_exception(error):
    """Report an exception that the script did not catch, by sys.excepthook; return the exit status.

    The script may have replaced sys.excepthook. If that function fails, report both exceptions, as Python does.
    """
    trace = without_engine_frames(error.__traceback__)
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as fault:
        # The context is `error`, whose own report follows: do not report it twice
        fault.__context__ = None
        for heading, shown in (("Error in sys.excepthook:", fault), ("\nOriginal exception was:", error)):
            write_error_line(heading)
            trace = without_engine_frames(shown.__traceback__)
            sys.__excepthook__(type(shown), shown.with_traceback(trace), trace)
    if isinstance(error, ModuleNotFoundError):
        advise_about_environment(current_script)
    return 1


def write_error_line(text):
    """Write a line to standard error; do nothing if the script has closed or removed sys.stderr.

    Not print(): if sys.stderr is None, print() writes to standard output, and the client would read the line.
    """
    try:
        sys.stderr.write(f"{text}\n")
    except Exception:
        pass


def advise_about_environment(script):
    """Explain that a module is missing because this engine does not use the script's virtual environment.

    The first line of the script names the environment's Python (#!/srv/shop/venv/bin/python), but the engine runs
    the script with its own Python.
    """
    try:
        with open(script, "rb") as file:
            line = file.readline(MAX_FIRST_LINE_BYTES)
        interpreter = os.fsdecode(line.removeprefix(b"#!").split()[0]) if line.startswith(b"#!") else ""
        directory = os.path.dirname(os.path.dirname(interpreter))  # two above: venv of venv/bin/python
        if os.path.exists(f"{directory}/pyvenv.cfg") and not os.path.samefile(directory, sys.prefix):
            write_error_line(
                f"{script}: its first line names {interpreter}, and {sys.executable} runs it, which does not see"
                f" the modules of {directory}: name {interpreter} as the command of an engine (tables [engines] and"
                " [directories] in X-Switch's settings)"
            )
    except Exception:
        pass  # the file has changed meanwhile, or the script has replaced functions that are used here


def without_engine_frames(trace):
    """Return a traceback without the frames of the engine and of the import system. Python shows neither."""
    entries = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in OWN_FILES and not file.startswith("<frozen importlib"):
            entries.append(trace)
        trace = trace.tb_next
    # Link each entry to the next one that is shown
    for entry, following in zip(entries, [*entries[1:], None], strict=False):
        if entry.tb_next is not following:
            entry.tb_next = following
    return entries[0] if entries else None


def replace_process(lines=b""):
    """Replace this process by a fresh engine, by execve(2): it answers the request that was read, if there is one.

    A file in memory passes the lines of that request, and the harmful scripts, to serve() of the new engine.
    """
    fork.end_helper()
    # The descriptors that set_up_descriptors() expects
    for number, source in ((0, DATA_DESCRIPTOR), (1, NULL_DESCRIPTOR), (2, ERRORS_DESCRIPTOR)):
        os.dup2(source, number)
    file = os.memfd_create("lines", 0)  # 0: execve(2) does not close it
    with open(file, "wb", closefd=False) as memory:
        marshal.dump((lines, isolation.harmful_scripts), memory)
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(CONTROL_DESCRIPTOR, True)
    os.execve(sys.executable, [sys.executable, __file__, str(file)], ENVIRONMENT)


def serve():
    """Run an engine on the descriptors that X-Switch gives, after note_initial_state()."""
    global ENVIRONMENT, ISOLATION
    ENVIRONMENT = dict(os.environb)
    ISOLATION = os.environ.get("XSWITCH_ISOLATION", "auto")
    state.note_search_paths()
    lines = b""
    if __name__ == "__main__" and len(sys.argv) > 1:  # replace_process() has left a file
        with open(int(sys.argv[1]), "rb") as memory:
            lines, harmful_scripts = marshal.load(memory)
        isolation.harmful_scripts.update(harmful_scripts)
    protocol.set_up_descriptors()
    if ISOLATION == "fork":
        state.unload_all_but(START_MODULES)
        fork.serve(answer, rehearse, run_zygote, lines)
    else:
        main(lines)


if __name__ == "__main__":
    state.note_initial_state()
    serve()
