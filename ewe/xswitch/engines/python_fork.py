"""A new process for each request: the Python engine (python.py) forks, and its child runs the script.

The process that forks never runs a script, and imports nothing for one. Its child sees an interpreter that has just
started: the modules that the engine needs for itself are hidden. With `isolation = "fork"` the engine forks. With
"auto" the engine runs some scripts itself, and has a helper that forks for the others:

    X-Switch ──lines──▶ engine ──lines──▶ helper ──forks──▶ child: runs the script on descriptors 0, 1 and 2
             ◀──mark───        ◀──mark───        ◀──ends───

The helper is forked from an engine that has not run a script yet. It speaks the engine protocol with the engine. It
ends as an engine does: when a script leaves a process behind, or when a signal has ended the script.
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
from python_protocol import (
    CONTROL_DESCRIPTOR,
    END_OF_DESCRIPTORS,
    FIRST_UNUSED_DESCRIPTOR,
    HELPER_DESCRIPTOR,
    NULL_DESCRIPTOR,
    decoded_words,
    receive_lines,
)

__builtins__ = vars(code)["__builtins__"]
PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, KILL = 36, 1, 9  # <sys/prctl.h>, <signal.h>
MARK_BYTES = 64  # more than an end mark has
MAX_CHILDREN_BYTES = 64 * 1024  # more than the pids of all children of an engine need

library = ctypes.CDLL(None)
waitpid = library.waitpid
waitpid.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_int
helpers = set()  # the pid of the helper; empty if there is none


def serve(answer, rehearse, run_zygote=None, lines=b""):
    """Answer each request in a child, until X-Switch closes the control socket. Raises SystemExit.

    answer: runs a script, and ends the process. rehearse: does the same without a script (python_spare.py).
    run_zygote: loads modules and serves, in a new process; None: no module is loaded beforehand.
    lines: of a request that was read already; b"" if there is none.

    The process that forks does as much as possible before the fork: a child pays for each page of memory that it
    changes.
    """
    os.dup2(NULL_DESCRIPTOR, 0)
    os.dup2(protocol.DATA_DESCRIPTOR, 1)
    os.dup2(protocol.ERRORS_DESCRIPTOR, 2)
    streams.prepare(0)
    gc.freeze()

    def run_child(lines, profile=None):
        """Answer a request in this new child, and end it."""
        spare.begin_child()
        answer(lines, profile)

    try:
        while lines := lines or receive_lines():
            command, _, _ = lines.partition(b"\n")
            script, *arguments = map(os.fsdecode, decoded_words(command))
            profile = preload.profile_with_zygote(script, lines, arguments) if run_zygote else None
            status = ask_process(profile.zygote_socket, lines, profile.zygote_pid) if profile else None
            answered_here = status is None  # no zygote has answered
            if answered_here:
                profile = preload.profile_for_report(script, arguments, lines) if run_zygote else None
                status = answer_in_child(run_child, script, lines, profile)
            if status < 0:
                protocol.end_by_signal(-status)  # an incomplete answer must not look complete
            if not child_pids() <= engine_children() and not script_processes_have_ended():
                sys.exit(status)  # the script has left a process behind: end, as a CGI script's process would
            protocol.write_end_mark(status)
            # The request is answered. What follows prepares the next one.
            if run_zygote:
                preload.read_report(profile)
                if profile := preload.profile_needing_zygote(script):
                    start_zygote(profile, run_zygote)
            if answered_here:
                compile_beforehand(script)
                spare.prepare(run_child, rehearse)
            lines = b""
    finally:
        spare.end_all()


def answer_in_child(run_child, script, lines, profile):
    """Answer a request in a child: in the pre-forked one, if there is one and no import profile is needed.

    Return the exit status, below 0 if a signal has ended the child.
    """
    status = None if profile else spare.answer(lines)
    if status is not None:
        return status
    compile_beforehand(script)
    child = os.fork()
    if not child:
        run_child(lines, profile)
    return spare.wait_for_script(child)


def compile_beforehand(script):
    """Compile a script, so that no later child needs to: the code stays in the cache."""
    try:
        code.cached_code_of(script)
    except Exception:
        pass  # the child will report the error


def ask_process(descriptor, lines, pid):
    """Make the helper or a zygote answer a request; return the script's exit status.

    If that process ends instead, forget it, and return its own exit status. Return None if it ended before it took
    the request: another process may then get the request. A status below 0 is minus the number of a signal.

    descriptor: of the socket to the process. lines: the request, in bytes. pid: of the process.
    """
    unsent_lines, mark = lines, b""
    try:
        while unsent_lines:
            unsent_lines = unsent_lines[os.write(descriptor, unsent_lines) :]  # write(2) may accept a part
        while not mark.endswith(b"\n"):
            piece = os.read(descriptor, MARK_BYTES)
            if not piece:
                break
            mark += piece
    except OSError:
        pass
    if mark.endswith(b"\n"):  # the end mark is MARK, the status in digits, and a line feed
        return int(mark.removeprefix(protocol.MARK))
    # First close the socket to a zygote: one that still waits for lines ends then
    helpers.discard(pid)
    preload.note_reaped(pid)
    try:
        _, wait_status = os.waitpid(pid, 0)
        status = os.waitstatus_to_exitcode(wait_status)
    except ChildProcessError:
        status = -KILL  # the process was reaped elsewhere: its status is not known
    return None if unsent_lines else status


def script_processes_have_ended():
    """Reap ended children. Return whether all processes that a script started have ended.

    waitpid() of C is used here: that of Python raises an exception if there is no child, which takes longer.
    """
    while (ended_pid := waitpid(-1, None, os.WNOHANG)) > 0:
        # Perhaps the helper, a zygote or the spare: another process may have its pid from now on
        helpers.discard(ended_pid)
        preload.note_reaped(ended_pid)
        spare.note_reaped(ended_pid)
    # -1: no child is left. 0: all children that are left still run
    return ended_pid < 0 or child_pids() <= engine_children()


def engine_children():
    """Return the pids of the children that the engine itself has started."""
    return helpers.union(preload.zygote_pids(), spare.own_children)


def child_pids():
    """Return the pids of the children of this process."""
    file = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    pids = os.read(file, MAX_CHILDREN_BYTES)
    os.close(file)
    return set(map(int, pids.split()))


# The engine's end of its helper


def ask_helper(lines, serve_as_helper):
    """Make the helper answer a request; return the script's exit status. Raises SystemExit.

    serve_as_helper: called once in the helper, to serve.
    """
    if not helpers:
        start_helper(serve_as_helper)
    (pid,) = helpers  # there is at most one
    status = ask_process(HELPER_DESCRIPTOR, lines, pid)
    if status is None:
        return ask_helper(lines, serve_as_helper)  # a new one: this one ended before it took the request
    if status < 0:  # a signal has ended the helper: end by the same one
        protocol.end_by_signal(-status)
    if not script_processes_have_ended():  # the helper has ended, and has left a process of its script
        sys.exit(status)
    return status


def start_helper(serve_as_helper):
    """Fork the helper, which calls serve_as_helper(); afterwards HELPER_DESCRIPTOR is the socket to it."""
    pid, helper_socket = start_server_process(serve_as_helper)
    protocol.duplicate_descriptor(helper_socket, HELPER_DESCRIPTOR)
    os.close(helper_socket)
    helpers.add(pid)


def start_zygote(profile, run_zygote):
    """Fork the zygote of a script; if no process can be made, the script has none for now."""
    try:
        profile.zygote_pid, profile.zygote_socket = start_server_process(lambda: run_zygote(profile))
    except OSError:
        pass


def start_server_process(run_child):
    """Fork a helper or a zygote; return its pid, and the socket over which it gets requests of this process.

    run_child: the function that the new process runs to its end. A SystemExit from it ends the new process with
    that status. Raises OSError.
    """
    parent = os.getpid()
    # detach(): only the descriptors are needed, and must stay open without their Python objects
    parent_socket, child_socket = (end.detach() for end in socket.socketpair())
    try:
        pid = os.fork()
    except OSError:
        os.close(parent_socket)
        os.close(child_socket)
        raise
    if pid:
        os.close(child_socket)
        return pid, parent_socket
    protocol.duplicate_descriptor(child_socket, CONTROL_DESCRIPTOR)
    os.closerange(FIRST_UNUSED_DESCRIPTOR, END_OF_DESCRIPTORS)
    # Processes that a script leaves behind become children of the new process: script_processes_have_ended()
    library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library.prctl(PR_SET_PDEATHSIG, KILL, 0, 0, 0)
    if os.getppid() == parent:  # else the parent ended before the signal was set
        try:
            helpers.clear()
            preload.profiles.clear()
            spare.become_forking_process()
            run_child()
        except Exception:
            # The new process cannot fork, for example. The body may still be in the data socket, and the next
            # script would read it as its own. The engine must therefore end, too: it ends by the signal by which
            # its helper or zygote has ended.
            sys.excepthook(*sys.exc_info())
            protocol.end_by_signal(KILL)
    os._exit(0)


def end_helper():
    """End the helper, by closing the socket to it. It must not be running a script."""
    os.dup2(NULL_DESCRIPTOR, HELPER_DESCRIPTOR)  # dup2(2) closes the socket
    while helpers:
        os.waitpid(helpers.pop(), 0)
