"""A child that is forked before its request comes: the *spare* of a process that forks (python_fork.py).

To fork an interpreter, and to end it, takes longer than most scripts, and neither depends on the request. The
process that forks does both while it has nothing else to do:

    the process that forks                     the spare
    prepare(): fork ─────────────────────────▶ closes descriptors, rehearses, waits
    answer(): the request's lines ───pipe────▶ TAKEN: runs the script
                                               closes all descriptors; DONE and the status in shared memory
    returns the status  ◀──────SIGSTOP──────── stops
    (the mark goes to X-Switch)
    prepare(): SIGKILL ──────────────────────▶ ends

**It is exact.** A spare is forked from a process that never runs a script, as every child is; it only waits
longer. The script's file, and all else that a request depends on, is looked at once the request has come. The
rehearsal runs an empty script, through the functions that the real one goes through. It changes nothing but where
memory is: a forked process gets a private copy of a page at its first write, and some 200 such pages take half a
millisecond.

**When has a script ended?** When nothing of it can be seen any more: its output is written, its descriptors are
closed (so its locks are free and its pipes have an end), and no thread and no child of it runs. What is left is
memory. The kernel takes a third of a millisecond to free it, so the child stops itself at this moment and is
killed later. A script may stop itself, too, so only the shared memory says that it is done. Where a thread or a
child still runs, the process goes on to its end as `python3` does.

A spare that waits long ends, to give its memory back. If it has ended before it took a request, the process that
forks makes another child.
"""

import _signal
import ctypes
import mmap
import os
from posix import _exit, closerange, getpid, kill, stat  # which no script can replace here

import python_code as code
from python_protocol import CONTROL, FIRST_FREE, receive_lines

__builtins__ = vars(code)["__builtins__"]
WAITS, TAKEN, DONE = range(3)
WNOHANG, SIGSTOP, SIGKILL = os.WNOHANG, _signal.SIGSTOP, _signal.SIGKILL
IDLE_SECONDS = 30  # that a spare waits for a request
ALONE = 3  # links to /proc/self/task: its own two, and one for each thread

memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared: how far the newest child is, and its status
spare = sink = 0  # its pid, and the pipe to it
done = 0  # pid of the child that has stopped at its script's end
ours = set()  # pids of the spare, and of children that are ending
myself = 0  # in a child: its pid
waitpid = ctypes.CDLL(None).waitpid  # raises nothing
waitpid.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_int


# In the process that forks


def prepare(be, rehearse):
    """Fork a spare if there is none; end the child before it.

    be: runs a request's script, in the spare. rehearse: runs an empty one.
    """
    global spare, sink
    end_done()
    if spare:
        return
    source, sink = os.pipe()
    try:
        spare = os.fork()
    except OSError:
        os.close(sink)
    else:
        if not spare:
            be(wait(source, rehearse))
        ours.add(spare)
    os.close(source)
    for child in ours - {spare}:
        if os.waitpid(child, os.WNOHANG)[0]:
            has_ended(child)


def answer(lines):
    """Have the spare answer a request; return its exit status as status_of() does, None if there is no spare."""
    global spare
    if not spare:
        return None
    memory[0] = WAITS
    child, spare = spare, 0
    ours.discard(child)
    try:
        while lines:
            lines = lines[os.write(sink, lines) :]
    except OSError:
        pass  # it has ended
    os.close(sink)
    status = status_of(child)
    return None if memory[0] == WAITS and child != done else status


def status_of(child):
    """Wait until a child is done; return its exit status, below 0 where a signal has ended it."""
    global done
    while True:
        _, state = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(state):
            return os.waitstatus_to_exitcode(state)
        if memory[0] == DONE:
            memory[0] = WAITS
            done = child
            ours.add(child)
            return memory[1]


def end_done():
    """End the child that has stopped. It is reaped later."""
    global done
    if done:
        os.kill(done, SIGKILL)
        done = 0


def has_ended(pid):
    """Note that a child was reaped."""
    global spare, done
    ours.discard(pid)
    if pid == spare:
        os.close(sink)
        spare = 0
    if pid == done:
        done = 0


def end():
    """End the spare, and wait until all children of ours have ended."""
    end_done()
    if spare:
        os.kill(spare, SIGKILL)
    for child in list(ours):
        os.waitpid(child, 0)
        has_ended(child)


def begin_again():
    """Be another process that forks, with memory that it shares with its own children alone."""
    global memory
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    forget_children()


# In the child


def wait(source, rehearse):
    """Be the spare; return the lines of its request."""
    os.dup2(source, CONTROL)
    os.closerange(FIRST_FREE, 1 << 20)
    rehearse()
    _signal.alarm(IDLE_SECONDS)
    lines = receive_lines()
    if not lines:
        os._exit(0)
    _signal.alarm(0)
    return lines


def begin():
    """Be the child that runs the script."""
    global myself
    forget_children()
    myself = os.getpid()
    memory[0] = TAKEN


def forget_children():
    """Have no children, as a process that was just forked."""
    global spare, done
    spare = done = 0
    ours.clear()


def stop(status):
    """End this process. If nothing of the script can be seen any more, stop, for the parent to do so later."""
    while (ended := waitpid(-1, None, WNOHANG)) > 0:
        pass
    try:
        alone = ended < 0 and getpid() == myself and stat("/proc/self/task").st_nlink == ALONE
    except OSError:
        alone = False
    if alone:
        closerange(0, 1 << 20)
        memory[1] = status & 0xFF
        memory[0] = DONE
        kill(myself, SIGSTOP)
    _exit(status)
