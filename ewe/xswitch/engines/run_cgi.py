"""The engine "cgi" of X-Switch: runs each program in a new process, as a web server without engines does.

`[directories] "/x" = "cgi"` names it for what no engine can run faithfully. A program of any language is started
by its own first line, as its owner. It finds a process and an interpreter that no program has used before.
"""

import _signal
import os
import sys

from python_protocol import (
    DATA,
    ERRORS,
    NOTHING,
    end_by,
    mark,
    open_input,
    receive_lines,
    set_blocking,
    settle,
    words,
)

CANNOT_START = 126  # exit status of a program that cannot be executed, as in a shell
ADVICE = {
    PermissionError: "is it executable (chmod +x), and its interpreter, too?",
    FileNotFoundError: "is its interpreter there, the one after #! in its first line?",
    OSError: "its first line must be #! and an interpreter, as #!/usr/bin/env python3",
}
# Python ignores these; a program that it starts would, too.
IGNORED = [number for number in _signal.valid_signals() if _signal.getsignal(number) == _signal.SIG_IGN]


def main():
    """Answer requests until X-Switch closes the control socket."""
    while lines := receive_lines():
        command, variables, _ = lines.split(b"\n")
        environment = dict([variable.split(b"=", 1) for variable in words(variables)])
        os.dup2(NOTHING, 0)
        set_blocking()
        if length := int(environment.get(b"CONTENT_LENGTH") or 0):
            open_input(length)
        child = os.fork()
        if not child:
            execute(words(command), environment)
        while os.WIFSTOPPED(state := os.waitpid(child, 0)[1]):  # it has made this process its tracer
            os.kill(child, _signal.SIGKILL)
        status = os.waitstatus_to_exitcode(state)
        if status < 0:
            end_by(-status)  # so that nothing passes for a whole answer
        if not alone():
            sys.exit(status)
        mark(status)


def execute(command, environment):
    """Become a program."""
    try:
        for number in IGNORED:
            _signal.signal(number, _signal.SIG_DFL)
        os.dup2(DATA, 1)
        os.dup2(ERRORS, 2)
        os.umask(0o022)
        os.chdir(os.path.dirname(command[0]))
        os.execve(command[0], command, environment)
    except OSError as reason:
        advice = ADVICE.get(type(reason), ADVICE[OSError])
        os.write(2, f"{os.fsdecode(command[0])}: {reason.strerror}: {advice}\n".encode(errors="replace"))
    finally:
        os._exit(CANNOT_START)


def alone():
    """Have all processes that the program started ended? They become children of this one."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


if __name__ == "__main__":
    settle()
    main()
