"""A world: the modules that a program under the scheduler imports.

The explorer reads the student's files again for each run, so that no run affects the next one. The files get a
separate __import__, which replaces the modules in which a thread could wait:

    import threading, queue, time, socket, select  ──▶  replacements by the explorer
    import pool             (another of its files) ──▶  read, instrumented and executed for this run
    import concurrent.futures, selectors           ──▶  the standard library's source on the replacements
    import ewe.processors.base                     ──▶  ewe's source on the replacements
    import json                                    ──▶  the real module

The interpreter of the explorer does not change: the real `threading` stays the same, and other threads of the
process (those of a test runner, for example) are never under the scheduler. The one exception is start() of
multiprocessing, which lanes cannot call (refuse_multiprocessing()).

Possible failures: a module of the standard library that makes blocking calls itself, such as subprocess or
multiprocessing, uses the real calls. A lane that blocks there stops the run; the watchdog of scheduler.py reports
the line.

Read next: instrument.py; harness.py, which runs a model of ewe in such a world.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import importlib.machinery
import importlib.util
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ewe_explore import calls, instrument, network, primitives, queues, threads
from ewe_explore.names import forget_old_version
from ewe_explore.scheduler import ProgramError, Step, active_run, line_of_program, short_value

# The source of these packages runs on the replacements. A world loads their modules once; it loads the modules of
# RELOADED_EACH_RUN, which keep threads, again for each run.
RELOADED_MODULES = ("concurrent", "selectors", "socketserver", "sched", "ewe")
RELOADED_EACH_RUN = "concurrent"
# These modules need no replacement: all worlds share the real ones.
SHARED_MODULES = ("ewe_explore", "ewe.http", "ewe.config", "ewe.registry")


def stand_in(name: str, real: ModuleType, **others: Any) -> ModuleType:
    """Return a copy of a real module in which `others` replace some names."""
    module = ModuleType(name)  # it has its own __name__, __spec__ and other such names
    module.__dict__.update({key: value for key, value in vars(real).items() if not key.startswith("__")})
    module.__dict__.update(others)
    return module


def stand_ins() -> dict[str, ModuleType]:
    """Return the replacements, by the names under which programs import them."""
    import _thread

    return {
        "threading": stand_in(
            "threading",
            threading,
            Lock=primitives.Lock,
            RLock=primitives.RLock,
            Condition=primitives.Condition,
            Semaphore=primitives.Semaphore,
            BoundedSemaphore=primitives.BoundedSemaphore,
            Event=primitives.Event,
            Barrier=primitives.Barrier,
            Thread=threads.Thread,
            Timer=threads.Timer,
            current_thread=threads.current_thread,
            currentThread=threads.current_thread,
            main_thread=threads.main_thread,
            enumerate=threads.enumerate_threads,
            active_count=lambda: len(threads.enumerate_threads()),
            get_ident=threads.get_ident,
            get_native_id=threads.get_ident,
            stack_size=threads.stack_size,
            settrace=threads.nothing,
            setprofile=threads.nothing,
        ),
        "_thread": stand_in(
            "_thread",
            _thread,
            allocate_lock=primitives.Lock,
            LockType=primitives.Lock,
            RLock=primitives.RLock,
            get_ident=threads.get_ident,
            get_native_id=threads.get_ident,
            start_new_thread=threads.start_new_thread,
            exit=threads.exit_thread,
            stack_size=threads.stack_size,
        ),
        "queue": stand_in(
            "queue",
            queue,
            Queue=queues.Queue,
            LifoQueue=queues.LifoQueue,
            PriorityQueue=queues.PriorityQueue,
            SimpleQueue=queues.SimpleQueue,
        ),
        "time": stand_in(
            "time",
            time,
            sleep=queues.sleep,
            monotonic=queues.monotonic,
            perf_counter=queues.monotonic,
            time=queues.wall_clock,
            monotonic_ns=queues.in_ns(queues.monotonic),
            perf_counter_ns=queues.in_ns(queues.monotonic),
            time_ns=queues.in_ns(queues.wall_clock),
            localtime=queues.local_time(time.localtime),
            gmtime=queues.local_time(time.gmtime),
            ctime=queues.local_time(time.ctime),
            strftime=queues.strftime,
        ),
        "datetime": stand_in("datetime", datetime, date=queues.VirtualDate, datetime=queues.VirtualDatetime),
        "os": stand_in("os", os, fork=no_fork, forkpty=no_fork, register_at_fork=threads.nothing),
        "socket": stand_in(
            "socket",
            socket,
            socket=network.Socket,
            SocketType=network.Socket,
            socketpair=network.socketpair,
            create_connection=network.create_connection,
            create_server=network.create_server,
        ),
        "select": stand_in(
            "select",
            select,
            select=network.select_call,
            poll=network.Poll,
            epoll=network.Epoll,
        ),
    }


class CodeOfFile(NamedTuple):
    """The code of a file. tests_locks, tests_ends: see instrument.py; False for a file without points."""

    code: CodeType
    tests_locks: bool = False
    tests_ends: bool = False


class FileVersion(NamedTuple):
    """A version of a file, whose code is compiled once. has_points: the code with points."""

    path: Path
    has_points: bool
    mtime_ns: int
    size_bytes: int


class World:
    """Loads programs. directories: of the student's files. instrumented: packages of ewe that get points."""

    def __init__(self, directories: Sequence[Path], instrumented: Sequence[str] = ()) -> None:
        self.directories = [directory.resolve() for directory in directories]
        self.instrumented = tuple(instrumented)
        self.stand_ins = stand_ins()
        self.kept: dict[str, ModuleType] = {}  # modules of RELOADED_MODULES, for all runs
        # The student's modules, and those of RELOADED_EACH_RUN, for this run
        self.fresh: dict[str, ModuleType] = {}
        self.codes: dict[FileVersion, CodeOfFile] = {}
        self.own_modules: set[str] = set()  # names of the modules with points, of all runs
        self.at_exit: list[Any] = []  # functions that this run has registered for the program's end
        self.stand_ins["threading"].__dict__["_register_atexit"] = self.register_at_exit
        self.placed: list[str] = []  # names that this run has added to sys.modules
        # The builtin names of each module that execute() runs. calls.CALLED: the functions that a point calls
        self.builtins = dict(vars(builtins))
        self.builtins.update(
            {
                "__import__": self.import_module,
                "print": record_print,
                "input": no_input,
                **calls.CALLED,
            }
        )

    def begin(self) -> None:
        """Forget the student's modules of the last run."""
        self.end()
        self.fresh = {}
        self.at_exit = []

    def end(self) -> None:
        """Remove the names that this run has added to sys.modules."""
        while self.placed:
            sys.modules.pop(self.placed.pop(), None)

    def register_at_exit(self, function: Any, *args: Any, **named: Any) -> None:
        """Replace threading._register_atexit(), by which thread pools end their threads."""
        self.at_exit.append(lambda: function(*args, **named))

    def leave(self) -> None:
        """Call the functions that the program has registered for its end, the last one first, as Python does."""
        while self.at_exit:
            self.at_exit.pop()()

    def run_file(self, path: Path, name: str) -> ModuleType:
        """Execute a file of the student as a module."""
        return self.execute(name, path.resolve(), self.fresh, points=True)

    def execute(
        self, name: str, path: Path, modules: dict[str, ModuleType], *, points: bool, package: bool = False
    ) -> ModuleType:
        """Execute a source file as the module `name`; return the module, which is also added to `modules`.

        points: instrument the source. package: the file is the __init__.py of a package.
        """
        module = ModuleType(name)
        module.__file__ = str(path)
        module.__package__ = name if package else name.rpartition(".")[0]
        if package:
            module.__path__ = [str(path.parent)]
        module.__dict__["__builtins__"] = self.builtins
        modules[name] = module  # before its code runs, which may import it in a circle
        if name not in sys.modules:  # dataclasses search for the module of a class there
            sys.modules[name] = module
            self.placed.append(name)
        try:
            file = self.code(path, points)
            if (run := active_run()) is not None:
                run.releases_decide |= file.tests_locks
                run.ends_decide |= file.tests_ends
            if points:
                self.own_modules.add(name)
            with as_one_step(name):
                exec(file.code, module.__dict__)
        except BaseException:
            modules.pop(name, None)
            if name in self.placed:
                self.placed.remove(name)
                sys.modules.pop(name, None)
            raise
        return module

    def code(self, path: Path, points: bool) -> CodeOfFile:
        """Return the code of a file, with or without points. Compile each version of a file once."""
        status = path.stat()
        version = FileVersion(path, points, status.st_mtime_ns, status.st_size)
        if version not in self.codes:
            source = importlib.util.decode_source(path.read_bytes())
            forget_old_version(str(path))  # of its lines, which the texts of a report show
            if points:
                try:
                    code = instrument.compiled(source, str(path))
                except RecursionError:
                    raise ProgramError(f"{path}: an expression is nested too deeply") from None
                self.codes[version] = CodeOfFile(
                    code, instrument.tests_locks(source), instrument.tests_ends(source)
                )
            else:
                self.codes[version] = CodeOfFile(compile(source, str(path), "exec", dont_inherit=True))
        return self.codes[version]

    # Imports

    def import_module(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Implement __import__ for the program.

        As Python's own, it returns `a` for `import a.b`, and `a.b` for `from a.b import c`. level: the number of
        dots of a relative import; globals: of the module that imports.
        """
        whole = name
        if level:
            package = str((globals or {}).get("__package__") or "")
            base = package.rsplit(".", level - 1)[0]  # one dot is the package itself
            whole = f"{base}.{name}" if name else base
        module = self.find(whole)
        if module is None:
            imported = builtins.__import__(name, globals, locals, fromlist or (), level)
            refuse_multiprocessing()
            # `import os.path` binds the name `os`: to the replacement, not to the real module
            is_package_bound = not fromlist and level == 0
            return self.stand_ins.get(name.partition(".")[0], imported) if is_package_bound else imported
        if fromlist:
            for each in fromlist:  # a name that the package does not define is a module of it
                whole_name = f"{whole}.{each}"
                if hasattr(module, "__path__") and (
                    not hasattr(module, each) or whole_name in self.stand_ins
                ):
                    self.find(whole_name)
            return module
        return self.find(whole.partition(".")[0]) if level == 0 else module

    def find(self, name: str) -> ModuleType | None:
        """Return the program's own version of a module; None if the program uses the real module."""
        if name in self.stand_ins:
            self.attach(name, self.stand_ins[name])
            return self.stand_ins[name]
        for modules in (self.fresh, self.kept):
            if name in modules:
                return modules[name]
        top = name.partition(".")[0]
        parent = name.rpartition(".")[0]
        if any(name == each or name.startswith(each + ".") for each in SHARED_MODULES):
            module = importlib.import_module(name)
            self.attach(name, module)
            return module
        if top in RELOADED_MODULES:
            if parent:
                self.find(parent)  # a package is imported before its modules, and its path finds them
            spec = importlib.machinery.PathFinder.find_spec(name, self.search_path(parent))
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                return None  # it has no source that could run on the replacements
            points = name.startswith(self.instrumented) if self.instrumented else False
            package = spec.submodule_search_locations is not None
            modules = self.fresh if top == RELOADED_EACH_RUN else self.kept
            module = self.execute(name, Path(spec.origin), modules, points=points, package=package)
            self.attach(name, module)
            return module
        found = self.file_of(name)
        if found is None:
            return None
        if parent:
            self.find(parent)
        is_package = found.name == "__init__.py"
        module = self.execute(name, found, self.fresh, points=True, package=is_package)
        self.attach(name, module)
        return module

    def search_path(self, package: str) -> list[str] | None:
        """Return the directories of a package's modules; None means sys.path."""
        module = self.fresh.get(package) or self.kept.get(package)
        return list(module.__path__) if module is not None else None

    def attach(self, name: str, module: ModuleType) -> None:
        """Make a module an attribute of its package."""
        parent, _, last = name.rpartition(".")
        for modules in (self.fresh, self.kept):
            if parent in modules:
                setattr(modules[parent], last, module)

    def file_of(self, name: str) -> Path | None:
        """Return the student's file with a module, or None."""
        parts = name.split(".")
        for directory in self.directories:
            path = directory.joinpath(*parts)
            for found in (path.with_suffix(".py"), path / "__init__.py"):
                if found.is_file():
                    return found
        return None


@contextmanager
def as_one_step(name: str) -> Iterator[None]:
    """Make the code of a module one step if other lanes may run: an import keeps them away until its end."""
    run = active_run()
    if run is None or run.is_alone():
        yield
        return
    run.note_unseen(f"the accesses within the import of {name}", *line_of_program())
    lane = run.current
    before, lane.is_importing = lane.is_importing, True
    try:
        yield
    finally:
        lane.is_importing = before


def record_print(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
) -> None:
    """Implement print() for the program.

    A text for the terminal is not printed: it becomes a step of the timeline, and is no decision. Other files get
    their text. Nothing is printed inside an invariant, which is checked at each step, or while the lanes end.
    """
    run = active_run()
    if file is not None and file not in (sys.stdout, sys.stderr):
        if run is not None:
            run.note_unseen("the file of print()", *line_of_program())
        print(*values, sep=sep, end=end, file=file, flush=flush)
        return
    if run is None or run.over or run.inside_invariant:
        return
    text = (" " if sep is None else sep).join(map(str, values))
    file_name, line = line_of_program()
    run.point(
        Step(
            run.current.number,
            "print",
            "prints",
            short_value(text),
            target=None,
            attribute=None,
            writes=False,
            file=file_name,
            line=line,
        ),
        decides=False,
    )


def no_fork() -> int:
    """Implement os.fork() for the program: refuse it."""
    raise RuntimeError("os.fork() cannot be explored: the scheduler controls threads, not processes")


def refuse_multiprocessing() -> None:
    """Refuse each start() of multiprocessing within a lane, if a module has imported multiprocessing.

    Pools, managers and ProcessPoolExecutor start their processes by it, too. A process that is forked has the lanes
    of the explorer, and none of them runs.
    """
    if "multiprocessing" not in sys.modules:
        return
    from multiprocessing.dummy import DummyProcess
    from multiprocessing.process import BaseProcess

    refuse_in_lanes(
        BaseProcess,
        "a process of multiprocessing cannot be explored: the scheduler controls threads, not processes",
    )
    refuse_in_lanes(
        DummyProcess,
        "a thread of multiprocessing cannot be explored: the scheduler controls the threads of threading; "
        "concurrent.futures.ThreadPoolExecutor uses those",
    )


def refuse_in_lanes(kind: Any, refusal: str) -> None:
    """Make start() of a class raise RuntimeError in the lane that runs. Other threads may start processes."""
    start = kind.start
    if hasattr(start, "__wrapped__"):  # it is done
        return

    @functools.wraps(start)
    def start_outside_of_lanes(process: Any) -> None:
        run = active_run()
        if run is not None and run.current.ident == threading.get_ident():
            raise RuntimeError(refusal)
        start(process)

    kind.start = start_outside_of_lanes


def no_input(_prompt: str = "") -> str:
    """Implement input() for the program: refuse it."""
    raise RuntimeError("input() cannot be explored: write the values into the scenario")
