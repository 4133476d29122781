"""A new process for each request: the Python engine (python.py) forks, and its child runs the script.

The process that forks never runs a script, and imports nothing for one. Its child finds an interpreter that has
just started: the modules that the engine needs for itself are out of sight. With `isolation = "fork"` the engine
forks. With "auto" the engine runs some scripts itself, and has a helper that forks for the others:

    X-Switch ──lines──▶ engine ──lines──▶ helper ──forks──▶ child: runs the script on descriptors 0, 1 and 2
             ◀──mark───        ◀──mark───        ◀──ends───

The helper is forked from an engine that has run no script yet. It speaks the engine protocol with the engine, and
ends as an engine does: when a script leaves a process behind, or a signal has ended it.
"""

import ctypes
import gc
import os
import socket
import sys

import python_code as code
import python_preload as preload
import python_protocol as protocol
import python_spare as spare
import python_streams as streams
from python_protocol import CONTROL, FIRST_FREE, HELPER, NOTHING, receive_lines, words

__builtins__ = vars(code)["__builtins__"]
SUBREAPER, DEATH_SIGNAL, KILL = 36, 1, 9  # <sys/prctl.h>

library = ctypes.CDLL(None)
waitpid = library.waitpid
waitpid.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_int
helpers = set()  # pids of children that are ours


def serve(answer, rehearse, be_zygote=None, lines=b""):
    """Answer each request in a child. Raises SystemExit.

    answer: runs a script, and ends the process. rehearse: does the same without a script (python_spare.py).
    be_zygote: loads modules and serves, in a new process; None: no module is loaded beforehand. All that can be
    made before the fork is: a child pays for each page of memory in which it changes something.
    """
    os.dup2(NOTHING, 0)
    os.dup2(protocol.DATA, 1)
    os.dup2(protocol.ERRORS, 2)
    streams.prepare(0)
    gc.freeze()

    def be(lines, lesson=None):
        spare.begin()
        answer(lines, lesson)

    try:
        while lines := lines or receive_lines():
            script, *arguments = map(os.fsdecode, words(lines.partition(b"\n")[0]))
            lesson = preload.zygote_for(script, lines, arguments) if be_zygote else None
            status = ask(lesson.socket, lines, lesson.zygote) if lesson else None
            here = status is None
            if here:
                lesson = preload.lesson_of(script, arguments, lines) if be_zygote else None
                status = fork(be, script, lines, lesson)
            if status < 0:
                protocol.end_by(-status)
            if not children() <= ours() and not alone():
                sys.exit(status)
            protocol.mark(status)
            if be_zygote:
                preload.take_up(lesson)
                if lesson := preload.to_prepare(script):
                    start_zygote(lesson, be_zygote)
            if here:
                compile_beforehand(script)
                spare.prepare(be, rehearse)
            lines = b""
    finally:
        spare.end()


def fork(be, script, lines, lesson):
    """Answer a request in a child, the spare if there is one and nothing to learn.

    Return the exit status, below 0 where a signal has ended the child.
    """
    status = None if lesson else spare.answer(lines)
    if status is not None:
        return status
    compile_beforehand(script)
    child = os.fork()
    if not child:
        be(lines, lesson)
    return spare.status_of(child)


def compile_beforehand(script):
    """Compile a script, for all children to come."""
    try:
        code.code_of(script)
    except Exception:
        pass  # a child will say so


def ask(descriptor, lines, pid):
    """Have another process answer a request; return the script's exit status, or that of the process if it ends.

    Return None where it has ended before it took the request.
    """
    said = b""
    try:
        while lines:
            lines = lines[os.write(descriptor, lines) :]
        while not said.endswith(b"\n"):
            piece = os.read(descriptor, 64)
            if not piece:
                break
            said += piece
    except OSError:
        pass
    if said.endswith(b"\n"):
        return int(said[1:])
    helpers.discard(pid)
    preload.has_ended(pid)
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return -KILL
    return None if lines else status


def alone():
    """Have all processes that a script started ended? os.waitpid raises an exception to say so, which costs."""
    while (ended := waitpid(-1, None, os.WNOHANG)) > 0:
        helpers.discard(ended)
        spare.has_ended(ended)
    return ended < 0 or children() <= ours()


def ours():
    """Return the pids of the children that are no script's."""
    return helpers.union(preload.zygotes(), spare.ours)


def children():
    """Return the pids of the children of this process."""
    file = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    said = os.read(file, 1 << 16)
    os.close(file)
    return set(map(int, said.split()))


# The engine's end of its helper


def pass_on(lines, help_out):
    """Have the helper answer a request; return the script's exit status. Raises SystemExit.

    help_out: called in the helper, once, to serve.
    """
    if not helpers:
        start_helper(help_out)
    (pid,) = helpers
    status = ask(HELPER, lines, pid)
    if status is None:
        return pass_on(lines, help_out)
    if status < 0:
        protocol.end_by(-status)
    if not alone():
        sys.exit(status)
    return status


def start_helper(help_out):
    """Fork the helper."""
    pid, ours = start(help_out)
    protocol.put(ours, HELPER)
    os.close(ours)
    helpers.add(pid)


def start_zygote(lesson, be_zygote):
    """Fork the zygote of a script."""
    lesson.zygote, lesson.socket = start(lambda: be_zygote(lesson))


def start(be):
    """Fork a process that answers requests for us; return its pid, and the socket to it. be: what it does."""
    parent = os.getpid()
    ours, its = (each.detach() for each in socket.socketpair())
    pid = os.fork()
    if pid:
        os.close(its)
        return pid, ours
    protocol.put(its, CONTROL)
    os.closerange(FIRST_FREE, 1 << 20)
    library.prctl(SUBREAPER, 1, 0, 0, 0)
    library.prctl(DEATH_SIGNAL, KILL, 0, 0, 0)
    if os.getppid() == parent:
        helpers.clear()
        preload.lessons.clear()
        spare.begin_again()
        be()
    os._exit(0)


def end_helper():
    """End the helper, which runs no script now."""
    os.dup2(NOTHING, HELPER)
    while helpers:
        os.waitpid(helpers.pop(), 0)
