"""A world: the modules that a program under the scheduler imports.

The student's files are read again for each run, so that no run leaves anything to the next. They get their own
__import__, and with it other modules where a thread could wait:

    import threading, queue, time, socket, select  ──▶  stand-ins of the explorer
    import pool                (a file beside it)  ──▶  read, instrumented, executed for this run
    import concurrent.futures, selectors           ──▶  the standard library's source over the stand-ins
    import ewe.processors.base                     ──▶  ewe's source over the stand-ins
    import json                                    ──▶  the real one

Nothing of this reaches the interpreter that runs the explorer: the real `threading` stays as it is, and other
threads of the process (those of a test runner, for example) are never under the scheduler.

What can go wrong: a module of the standard library that waits by itself, such as subprocess or multiprocessing,
gets the real calls, and a lane that waits there stops the run. The watchdog of scheduler.py reports the line.

Read next: instrument.py; harness.py, which runs a model of ewe in such a world.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ewe_explore import instrument, network, primitives, queues, threads
from ewe_explore.scheduler import ACTIVE, Step, place, show

# Packages whose source runs over the stand-ins. Their modules are loaded once for each world, those that keep
# threads for each run.
HOSTED = ("concurrent", "selectors", "socketserver", "sched", "ewe")
EACH_RUN = "concurrent"
# Modules that change nothing under the scheduler: the real ones are shared.
SHARED = ("ewe_explore", "ewe.http", "ewe.config", "ewe.registry")


def stand_in(name: str, real: ModuleType, **others: Any) -> ModuleType:
    """Return a module with the names of a real one, some of them replaced."""
    module = ModuleType(name)
    module.__dict__.update({key: value for key, value in vars(real).items() if not key.startswith("__")})
    module.__dict__.update(others)
    return module


def stand_ins() -> dict[str, ModuleType]:
    """Return the modules of the explorer, by the names under which programs import them."""
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
        ),
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


class World:
    """Loads programs. directories: where the student's files are. instrumented: packages of ewe that get points."""

    def __init__(self, directories: Sequence[Path], instrumented: Sequence[str] = ()) -> None:
        self.directories = [directory.resolve() for directory in directories]
        self.instrumented = tuple(instrumented)
        self.stand_ins = stand_ins()
        self.kept: dict[str, ModuleType] = {}  # of hosted packages
        self.fresh: dict[str, ModuleType] = {}  # of the student, for this run
        self.codes: dict[tuple[str, int, int], CodeType] = {}
        self.at_exit: list[Any] = []  # what this run has registered for the end of the program
        self.stand_ins["threading"].__dict__["_register_atexit"] = self.register_at_exit
        self.placed: list[str] = []  # names in sys.modules that this run has placed there
        self.builtins = dict(vars(builtins))
        self.builtins.update(
            {
                "__import__": self.import_module,
                "print": record_print,
                "input": no_input,
                instrument.AT: instrument.at,
                instrument.HOLD: instrument.hold,
            }
        )

    def begin(self) -> None:
        """Forget the student's modules of the last run."""
        self.end()
        self.fresh = {}
        self.at_exit = []

    def end(self) -> None:
        """Remove the names that this run has placed in sys.modules."""
        while self.placed:
            sys.modules.pop(self.placed.pop(), None)

    def register_at_exit(self, function: Any, *args: Any, **named: Any) -> None:
        """Be threading._register_atexit(): thread pools end their threads so."""
        self.at_exit.append(lambda: function(*args, **named))

    def leave(self) -> None:
        """Do what the program has registered for its end."""
        while self.at_exit:
            self.at_exit.pop()()

    def run_file(self, path: Path, name: str) -> ModuleType:
        """Execute a file of the student as a module."""
        return self.execute(name, path.resolve(), self.fresh, points=True)

    def execute(
        self, name: str, path: Path, modules: dict[str, ModuleType], points: bool, package: bool = False
    ) -> ModuleType:
        """Execute a source file as the module `name`."""
        module = ModuleType(name)
        module.__file__ = str(path)
        module.__package__ = name if package else name.rpartition(".")[0]
        if package:
            module.__path__ = [str(path.parent)]
        module.__dict__["__builtins__"] = self.builtins
        modules[name] = module
        if name not in sys.modules:  # dataclasses look for a class's module there
            sys.modules[name] = module
            self.placed.append(name)
        try:
            exec(self.code(path, points), module.__dict__)
        except BaseException:
            modules.pop(name, None)
            if name in self.placed:
                self.placed.remove(name)
                sys.modules.pop(name, None)
            raise
        return module

    def code(self, path: Path, points: bool) -> CodeType:
        """Return the code of a file, with or without points; each version of a file is compiled once."""
        facts = path.stat()
        key = (f"{path}:{points}", facts.st_mtime_ns, facts.st_size)
        if key not in self.codes:
            source = importlib.util.decode_source(path.read_bytes())
            if points:
                self.codes[key] = instrument.compiled(source, str(path))
            else:
                self.codes[key] = compile(source, str(path), "exec", dont_inherit=True)
        return self.codes[key]

    # Imports

    def import_module(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Be __import__ for the program."""
        whole = name
        if level:
            package = str((globals or {}).get("__package__") or "")
            base = package.rsplit(".", level - 1)[0]
            whole = f"{base}.{name}" if name else base
        module = self.find(whole)
        if module is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            for each in fromlist:
                whole_name = f"{whole}.{each}"
                if hasattr(module, "__path__") and (
                    not hasattr(module, each) or whole_name in self.stand_ins
                ):
                    self.find(whole_name)
            return module
        return self.find(whole.partition(".")[0]) if level == 0 else module

    def find(self, name: str) -> ModuleType | None:
        """Return a module that is not the real one; None if the real one is meant."""
        if name in self.stand_ins:
            self.attach(name, self.stand_ins[name])
            return self.stand_ins[name]
        for modules in (self.fresh, self.kept):
            if name in modules:
                return modules[name]
        top = name.partition(".")[0]
        parent = name.rpartition(".")[0]
        if any(name == each or name.startswith(each + ".") for each in SHARED):
            module = importlib.import_module(name)
            self.attach(name, module)
            return module
        if top in HOSTED:
            if parent:
                self.find(parent)
            spec = importlib.machinery.PathFinder.find_spec(name, self.places(parent))
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                return None
            points = name.startswith(self.instrumented) if self.instrumented else False
            package = spec.submodule_search_locations is not None
            modules = self.fresh if top == EACH_RUN else self.kept
            module = self.execute(name, Path(spec.origin), modules, points, package)
            self.attach(name, module)
            return module
        found = self.file_of(name)
        if found is None:
            return None
        if parent:
            self.find(parent)
        module = self.execute(name, found, self.fresh, True, found.name == "__init__.py")
        self.attach(name, module)
        return module

    def places(self, package: str) -> list[str] | None:
        """Return where the modules of a package are; None is the whole path."""
        module = self.fresh.get(package) or self.kept.get(package)
        return list(module.__path__) if module is not None else None

    def attach(self, name: str, module: ModuleType) -> None:
        """Make a module an attribute of its package."""
        parent, _, last = name.rpartition(".")
        for modules in (self.fresh, self.kept):
            if parent in modules:
                setattr(modules[parent], last, module)

    def file_of(self, name: str) -> Path | None:
        """Return the student's file of a module, if there is one."""
        parts = name.split(".")
        for directory in self.directories:
            path = directory.joinpath(*parts)
            for found in (path.with_suffix(".py"), path / "__init__.py"):
                if found.is_file():
                    return found
        return None


def record_print(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, **_: Any
) -> None:
    """Be print() for the program: the text becomes a step and is shown in the timeline."""
    if file is not None and file not in (sys.stdout, sys.stderr):
        print(*values, sep=sep, end=end, file=file)
        return
    if not ACTIVE or ACTIVE[-1].over or ACTIVE[-1].inside_invariant:
        return
    run = ACTIVE[-1]
    text = (" " if sep is None else sep).join(map(str, values))
    where = place()
    run.point(
        Step(run.current.number, "print", "prints", show(text), None, None, False, *where), decides=False
    )


def no_fork() -> int:
    """Be os.fork() for the program."""
    raise RuntimeError("os.fork() cannot be explored: the scheduler knows threads, not processes")


def no_input(_prompt: str = "") -> str:
    """Be input() for the program."""
    raise RuntimeError("input() cannot be explored: give the scenario its values")
