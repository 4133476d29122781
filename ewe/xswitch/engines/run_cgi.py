"""The engine "cgi" of X-Switch: runs each program in a new process, as a web server without engines does.

`[directories] "/x" = "cgi"` names this engine for programs that no other engine can run faithfully. Each program is
started by its own first line, in any language, as its owner. It gets a process and an interpreter that no program
has used before.
"""

import _signal
import os
import resource
import sys

from python_protocol import (
    DATA_DESCRIPTOR,
    ERRORS_DESCRIPTOR,
    NULL_DESCRIPTOR,
    decoded_words,
    end_by_signal,
    open_input,
    receive_lines,
    set_blocking,
    set_up_descriptors,
    write_end_mark,
)

CANNOT_START = 126  # exit status of a program that cannot be executed, as in a shell
ADVICE = {
    PermissionError: "is it executable (chmod +x), and its interpreter, too?",
    FileNotFoundError: "is its interpreter there, the one after #! in its first line?",
    OSError: "its first line must be #! and an interpreter, as #!/usr/bin/env python3",
}
# Python ignores these signals; a program that it starts would ignore them, too.
IGNORED_SIGNALS = {
    number for number in _signal.valid_signals() if _signal.getsignal(number) == _signal.SIG_IGN
}
if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
    # With `file-size`, a program's write fails with EFBIG. The default action would end the program
    IGNORED_SIGNALS.discard(_signal.SIGXFSZ)


def main():
    """Answer requests until X-Switch closes the control socket."""
    os.dup2(NULL_DESCRIPTOR, 0)  # no body, unless open_input() opens one
    while lines := receive_lines():
        command, variables, _ = lines.split(b"\n")  # two lines, and nothing after the last line break
        environment = dict([variable.split(b"=", 1) for variable in decoded_words(variables)])
        set_blocking()
        if length := int(environment.get(b"CONTENT_LENGTH") or 0):
            open_input(length)
        child = os.fork()
        if not child:
            execute(decoded_words(command), environment)
        os.dup2(NULL_DESCRIPTOR, 0)  # an idle engine keeps no file with a body
        _, wait_status = os.waitpid(child, 0)
        # A child that has made this process its tracer (ptrace(2)) stops instead of ending.
        while os.WIFSTOPPED(wait_status):
            os.kill(child, _signal.SIGKILL)
            _, wait_status = os.waitpid(child, 0)
        status = os.waitstatus_to_exitcode(wait_status)
        if status < 0:
            end_by_signal(-status)  # an incomplete answer must not look complete
        if not all_have_ended():
            sys.exit(status)  # X-Switch ends the processes that the program has left behind
        write_end_mark(status)


def execute(command, environment):
    """Replace this process by a program. command: its path and arguments. environment: name -> value."""
    program = command[0]
    try:
        for number in IGNORED_SIGNALS:
            _signal.signal(number, _signal.SIG_DFL)
        os.dup2(DATA_DESCRIPTOR, 1)
        os.dup2(ERRORS_DESCRIPTOR, 2)
        os.umask(0o022)
        os.chdir(os.path.dirname(program))
        os.execve(program, command, environment)
    except OSError as reason:
        advice = ADVICE.get(type(reason), ADVICE[OSError])
        os.write(2, f"{os.fsdecode(program)}: {reason.strerror}: {advice}\n".encode(errors="replace"))
    finally:
        os._exit(CANNOT_START)


def all_have_ended():
    """Reap ended children. Return whether all processes that the program started have ended.

    They become children of this process when their parent ends: it is a subreaper (prctl(2)).
    """
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:  # [0]: the pid of an ended child; 0 if all children still run
            pass
    except ChildProcessError:
        return True
    return False


if __name__ == "__main__":
    set_up_descriptors()
    main()
