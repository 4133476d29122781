"""Engines of X-Switch that are wrong in one way each. `python engine_mutants.py NAME`.

They derive from the solution of the lab: what each breaks is one thing that the solution puts back.
"""

import io
import os
import signal
import sys
import types
from pathlib import Path

from registry import Mutant

# matrix.py writes the solution beside a copy of this file: the grader hides the labs from each program, and the
# Python of an account without rights may be without the classroom.
COPY = Path(__file__).with_name("engine.py")
LAB = COPY if COPY.exists() else Path(__file__).resolve().parents[2] / "ewe_classroom/labs/engine/engine.py"
ZOO = {}


def solution():
    """Return the module of the lab's solution."""
    text = LAB.read_text()
    if LAB != COPY:
        sys.path.insert(0, str(LAB.parents[3]))
        from ewe_classroom.course.one_source import solution as solved

        sys.path.pop(0)
        text = solved(text)
    module = types.ModuleType("engine")
    module.__file__ = str(LAB)
    exec(compile(text, str(LAB), "exec"), module.__dict__)
    return module


lab = solution()


def mutant(check, says):
    """Return a decorator that registers a class in ZOO (registry.py)."""

    def add(kind):
        ZOO[kind.__name__] = Mutant(kind, check, "engine", says)
        return kind

    return add


@mutant("engine-answers", "decoded wrong")
class DecodesNothing(lab.Engine):
    """Takes the words of a request as they are."""

    def __init__(self):
        super().__init__()
        lab.words = lambda line: line.rstrip(b"\n").split(b"\t")


@mutant("engine-persistent", "forks for each request")
class Forks(lab.Engine):
    """Forks for each request."""

    def run(self, file):
        sys.modules["__main__"] = types.ModuleType("__main__")
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = super().run(file)
        sys.stdout.flush()
        os._exit(status)


@mutant("engine-environment", "not in its request, in os.environ")
class KeepsEnvironment(lab.Engine):
    """Leaves the variables of one request to the next one."""

    def prepare(self, file, arguments, environment, body):
        super().prepare(file, arguments, dict(os.environb) | environment, body)


@mutant("engine-environment", "in a program that it starts")
class NewDictionary(lab.Engine):
    """Puts a new dictionary in the place of os.environ."""

    def prepare(self, file, arguments, environment, body):
        before = dict(os.environb)
        super().prepare(file, arguments, environment, body)
        self.real, new = os.environ, dict(os.environ)
        os.environb.clear()
        os.environb.update(before)
        os.environ = new  # noqa: B003

    def clean_up(self, status):
        os.environ = self.real  # noqa: B003
        super().clean_up(status)


@mutant("engine-directory", "not set for each request")
class StaysThere(lab.Engine):
    """Does not go to the script's directory."""

    def prepare(self, file, arguments, environment, body):
        here = os.getcwd()
        super().prepare(file, arguments, environment, body)
        os.chdir(here)


@mutant("engine-globals", "variables of the earlier script")
class OneNamespace(lab.Engine):
    """Runs all scripts in one namespace."""

    shared = {"__name__": "__main__"}

    def run(self, file):
        self.shared["__file__"] = file
        with open(file) as source:
            exec(compile(source.read(), file, "exec"), self.shared)
        return 0


@mutant("engine-globals", "put builtins back")
class KeepsBuiltins(lab.Engine):
    """Does not put builtins back."""

    def clean_up(self, status):
        self.builtins = dict(vars(lab.builtins)) | {"len": len}
        super().clean_up(status)


@mutant("engine-modules", "stays in sys.modules")
class KeepsModules(lab.Engine):
    """Keeps the modules that a script has imported."""

    def clean_up(self, status):
        kept = dict(sys.modules)
        super().clean_up(status)
        sys.modules.update(kept)


@mutant("engine-output", "not flushed before the end mark")
class FlushesLate(lab.Engine):
    """Writes the rest of the output when the next request has come."""

    late = None

    def prepare(self, *request):
        if self.late:
            self.late.flush()
        super().prepare(*request)

    def clean_up(self, status):
        self.late = sys.stdout
        sys.stdout = sys.__stdout__ = io.StringIO()
        super().clean_up(status)


@mutant("engine-output", "which the script has replaced")
class FlushesOne(lab.Engine):
    """Flushes sys.stdout alone, which may be another object now."""

    def clean_up(self, status):
        self.unflushed, sys.__stdout__ = sys.__stdout__, sys.stdout
        super().clean_up(status)


@mutant("engine-input", "never wrote its end mark|part of its body")
class LeavesBody(lab.Engine):
    """Gives the data socket to the script as standard input."""

    def __init__(self):
        super().__init__()
        lab.read_body = lambda data, length: b""

    def prepare(self, *request):
        super().prepare(*request)
        os.dup2(self.data, 0)


@mutant("engine-umask", "umask of the process stays")
class KeepsUmask(lab.Engine):
    """Does not set the umask."""

    def prepare(self, *request):
        mask = os.umask(0)
        super().prepare(*request)
        os.umask(mask)


@mutant("engine-signals", "signals stay")
class KeepsHandlers(lab.Engine):
    """Leaves the handlers of a script in place."""

    def __init__(self):
        super().__init__()
        self.signals = {}


@mutant("engine-signals", "found alarm")
class KeepsAlarm(lab.Engine):
    """Leaves the alarm of a script running."""

    def clean_up(self, status):
        timer = signal.getitimer(signal.ITIMER_REAL)
        super().clean_up(status)
        signal.setitimer(signal.ITIMER_REAL, *timer)


class All:
    def __contains__(self, item):
        return True


@mutant("engine-descriptors", "files of a script stay open")
class KeepsFiles(lab.Engine):
    """Leaves the files of a script open."""

    def __init__(self):
        super().__init__()
        self.descriptors = All()


@mutant("engine-descriptors", "is inherited")
class LendsControl(lab.Engine):
    """Lets programs inherit the control socket."""

    def __init__(self):
        super().__init__()
        os.set_inheritable(lab.CONTROL, True)


@mutant("engine-errors", "live on")
class DiesOfErrors(lab.Engine):
    """Lets an exception of a script end the engine."""

    def run(self, file):
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        main.__file__ = file
        with open(file) as source:
            exec(compile(source.read(), file, "exec"), main.__dict__)
        return 0


@mutant("engine-errors", "the error is swallowed")
class Swallows(lab.Engine):
    """Gives a status and says nothing."""

    def run(self, file):
        sys.stderr = io.StringIO()
        return super().run(file)


@mutant("engine-leftovers", "second engine|where its mark should be|as a second")
class SecondEngine(lab.Engine):
    """Lets the child of a script go on in the engine's loop."""

    def clean_up(self, status):
        self.pid = os.getpid()
        super().clean_up(status)


@mutant("engine-leftovers", "a thread of the script runs on")
class KeepsThreads(lab.Engine):
    """Goes on beside the threads of a script."""

    def has_leftovers(self):
        return False


@mutant("engine-ends", "the engine goes on")
class Stays(lab.Engine):
    """Does not end when X-Switch has left."""

    def serve(self):
        super().serve()
        signal.pause()


if __name__ == "__main__":
    kind = ZOO[sys.argv[1]].kind if sys.argv[1] in ZOO else lab.Engine
    try:
        kind().serve()
    except lab.SocketClosed:
        pass
