"""A pre-forked child, the *spare* of a process that forks (python_fork.py): it is forked before its request comes.

Forking an interpreter and ending it takes longer than most scripts, and neither depends on the request. The
process that forks does both while it has nothing else to do:

    the process that forks                     the spare
    prepare(): fork ─────────────────────────▶ closes descriptors, rehearses, waits
    answer(): the request's lines ───pipe────▶ TAKEN: runs the script
                                               closes all descriptors; DONE and the status in shared memory
    returns the status  ◀──────SIGSTOP──────── stops
    (the mark goes to X-Switch)
    prepare(): SIGKILL ──────────────────────▶ ends

**It is exact.** A spare is forked from a process that never runs a script, as every child is; it only waits longer.
The spare looks at the script's file, and at all else that a request depends on, once the request has come. The
rehearsal runs an empty script, through the same functions as the real one. It changes only the memory pages: a
forked process gets a private copy of a page at its first write, and some 200 such pages take half a millisecond.

**When has a script ended?** When none of its effects can be seen any more: its output is written, its descriptors
are closed (so its locks are free and its pipes have an end), and no thread and no child of it runs. Only its memory
is left. The kernel takes a third of a millisecond to free that. The child therefore stops itself at this moment and
is killed later. A script may stop itself, too, so only the shared memory says that it is done. If a thread or a
child still runs, the process continues to its end as `python3` does.

A spare that waits long ends, to free its memory. If it ends before it takes a request, the process that forks makes
another child.
"""

import _signal
import ctypes
import mmap
import os
from posix import _exit, closerange, getpid, kill, stat  # a script cannot replace these names here

import python_code as code
from python_protocol import CONTROL_DESCRIPTOR, END_OF_DESCRIPTORS, FIRST_UNUSED_DESCRIPTOR, receive_lines

__builtins__ = vars(code)["__builtins__"]
# The two bytes of `progress_memory`: how far the newest child is, and the exit status of its script
PROGRESS, STATUS = range(2)
WAITS, TAKEN, DONE = range(3)  # values of PROGRESS
WNOHANG, SIGSTOP, SIGKILL = os.WNOHANG, _signal.SIGSTOP, _signal.SIGKILL
IDLE_SECONDS = 30  # that a spare waits for a request
LINKS_OF_ONE_THREAD = 3  # links to /proc/self/task: its own two, and one for each thread

progress_memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the children
spare_pid = 0  # the pid of the spare; 0 if there is none
request_pipe = 0  # the pipe through which the spare gets its request
stopped_child = 0  # the pid of the child that has stopped at its script's end; 0 if there is none
own_children = set()  # pids of the spare, and of stopped or killed children that are not reaped yet
own_pid = 0  # in a child: its pid
waitpid = ctypes.CDLL(None).waitpid  # raises no exceptions
waitpid.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_int


# In the process that forks


def prepare(run_request, rehearse):
    """Fork a spare if there is none. Kill the child that has stopped at its script's end, and reap ended children.

    run_request: runs a request's script, in the spare. rehearse: runs an empty script.
    """
    global spare_pid, request_pipe
    kill_stopped_child()
    if spare_pid:
        return
    read_end, request_pipe = os.pipe()
    try:
        spare_pid = os.fork()
    except OSError:
        os.close(request_pipe)
    else:
        if not spare_pid:
            run_request(wait_for_request(read_end, rehearse))  # ends this process
        own_children.add(spare_pid)
    os.close(read_end)
    for child in own_children - {spare_pid}:
        reaped_pid, _ = os.waitpid(child, os.WNOHANG)  # 0 if the child has not ended
        if reaped_pid:
            note_reaped(child)


def answer(lines):
    """Make the spare answer a request; return its exit status as wait_for_script() does.

    Return None if there is no spare, or if the spare ended before it took the request: another child may get it.
    """
    global spare_pid
    if not spare_pid:
        return None
    progress_memory[PROGRESS] = WAITS
    child, spare_pid = spare_pid, 0
    own_children.discard(child)  # from now on it runs a script
    try:
        while lines:
            lines = lines[os.write(request_pipe, lines) :]  # write(2) may accept a part
    except OSError:
        pass  # the spare has ended
    os.close(request_pipe)
    status = wait_for_script(child)
    # The spare has not taken the request if it still WAITS; wait_for_script() sets WAITS again if it was DONE.
    return None if progress_memory[PROGRESS] == WAITS and child != stopped_child else status


def wait_for_script(child):
    """Wait until a child has ended, or has stopped at its script's end (DONE).

    Return the exit status of its script, or minus the number of the signal that has ended the child.
    """
    global stopped_child
    while True:
        _, wait_status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(wait_status):
            return os.waitstatus_to_exitcode(wait_status)
        if progress_memory[PROGRESS] == DONE:  # else the script itself has stopped the process: wait on
            progress_memory[PROGRESS] = WAITS
            stopped_child = child
            own_children.add(child)
            return progress_memory[STATUS]


def kill_stopped_child():
    """Kill the child that has stopped at its script's end, if there is one. It is reaped later."""
    global stopped_child
    if stopped_child:
        os.kill(stopped_child, SIGKILL)
        stopped_child = 0


def note_reaped(pid):
    """Forget a child of this module that has ended and was reaped; the pids of other children have no effect."""
    global spare_pid, stopped_child
    own_children.discard(pid)
    if pid == spare_pid:
        os.close(request_pipe)
        spare_pid = 0
    if pid == stopped_child:
        stopped_child = 0


def end_all():
    """End the spare, and wait until it and the children that were stopped or killed before it have ended."""
    kill_stopped_child()
    if spare_pid:
        os.kill(spare_pid, SIGKILL)
    for child in list(own_children):
        os.waitpid(child, 0)
        note_reaped(child)


def become_forking_process():
    """Make this new process one that forks: it gets a `progress_memory` that only its own children share."""
    global progress_memory
    progress_memory = mmap.mmap(-1, mmap.PAGESIZE)
    forget_children()


# In the child


def wait_for_request(read_end, rehearse):
    """Rehearse, then wait for a request; return its lines. read_end: of the pipe from the process that forks."""
    os.dup2(read_end, CONTROL_DESCRIPTOR)  # receive_lines() reads from it
    os.closerange(FIRST_UNUSED_DESCRIPTOR, END_OF_DESCRIPTORS)
    rehearse()
    _signal.alarm(IDLE_SECONDS)  # SIGALRM ends a spare that waits for longer
    lines = receive_lines()
    if not lines:
        os._exit(0)  # the process that forks has closed the pipe
    _signal.alarm(0)
    return lines


def begin_child():
    """Note in this child that it has taken a request. The parent must not give that request to another child."""
    global own_pid
    forget_children()
    own_pid = os.getpid()
    progress_memory[PROGRESS] = TAKEN


def forget_children():
    """Forget the children: a process that was just forked has none."""
    global spare_pid, stopped_child
    spare_pid = stopped_child = 0
    own_children.clear()


def end_process(status):
    """End this process, with the exit status of its script.

    If no thread and no child of the script runs any more, only stop the process: the parent kills it later.
    """
    while (ended_pid := waitpid(-1, None, WNOHANG)) > 0:
        pass  # reap all children that have ended
    has_children = ended_pid == 0  # -1: no child is left
    try:
        has_one_thread = stat("/proc/self/task").st_nlink == LINKS_OF_ONE_THREAD
        # Another pid: this process is a child of the script
        nothing_else_runs = not has_children and getpid() == own_pid and has_one_thread
    except OSError:
        nothing_else_runs = False
    if nothing_else_runs:
        closerange(0, END_OF_DESCRIPTORS)
        progress_memory[STATUS] = status & 0xFF  # the kernel, too, keeps 8 bits of an exit status
        progress_memory[PROGRESS] = DONE
        kill(own_pid, SIGSTOP)
    _exit(status)
