"""A program: a file with a scenario and its assertions.

A file of a student is one of these:

    def scenario(): ...            the explorer runs it: it starts threads, and asserts conditions at the end
    def check(result): ...         called when all threads have ended, with the result of scenario()
    def scenario_two_workers(): ...    a file may have several scenarios: each is explored separately

The explorer runs a file without a scenario as a program (`__name__` is "__main__"). In tests and notebooks, a
scenario is any function (explore()). The explorer reads its module again from the file for each run, like the
student's other modules.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ewe_explore.modules import World
from ewe_explore.points import forget_frames
from ewe_explore.scheduler import Options, ProgramError, Run


class ExploredProgram:
    """A scenario of a file. unseen: accesses that are no steps in any run of it; the report names the first."""

    unseen: tuple[str, ...] = ()

    def __init__(
        self,
        path: Path,
        scenario: str = "",
        options: Options | None = None,
        instrumented: tuple[str, ...] = (),
        function: Callable[[], Any] | None = None,
    ) -> None:
        self.path = path.resolve()
        self.scenario = scenario
        self.function = function
        self.world = World([self.path.parent], instrumented)
        self.options = options or Options()
        self.options.own_directories = (str(self.path.parent) + "/",)

    def arguments(self) -> list[str]:
        """Return the options of the command that name this program."""
        return [] if self.scenario in ("", "scenario") else ["--scenario", self.scenario]

    def start(self, run: Run) -> None:
        """Execute the program once, under the scheduler of a run."""
        self.world.begin()
        run.own_modules = self.world.own_modules
        try:
            run.execute(lambda: self.main(run))
        finally:
            self.world.end()
            if run.detailed:
                forget_frames()

    def main(self, run: Run) -> Any:
        """Run as lane 0: import the file, call the scenario, wait for the threads, and call check()."""
        if self.function is not None:
            return self.function()
        if not self.scenario:
            self.world.run_file(self.path, "__main__")
            self.world.leave()
            return None
        module = self.world.run_file(self.path, self.path.stem)
        result = getattr(module, self.scenario)()
        check = getattr(module, "check", None)
        self.world.leave()  # thread pools end their threads here; join_all() would wait for them without end
        if check is not None:
            self.join_all(run)
            check(*([result] if inspect.signature(check).parameters else []))
        return result

    def join_all(self, run: Run) -> None:
        """Wait for every thread that is not a daemon, as the interpreter does at its end."""
        for lane in list(run.lanes[1:]):
            if not lane.daemon and lane.thread is not None and not lane.has_ended:
                lane.thread.join()


def scenarios(path: Path) -> list[str]:
    """Return the names of the scenarios in a file, in the order of the file. Raises ProgramError.

    A scenario is a function at the top of the file, named `scenario` or `scenario_...`. A function that needs
    values for its parameters is none, and neither is a coroutine function. A file with only such ones is refused:
    its author wants them to be explored.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ProgramError(f"cannot read {path}: there is no such file") from None
    except IsADirectoryError:
        raise ProgramError(f"{path} is a directory; name a file with a scenario") from None
    except OSError as reason:
        raise ProgramError(f"cannot read {path}: {reason.strerror}") from None
    except SyntaxError as reason:
        where = f"{path}:{reason.lineno}" if reason.lineno else f"{path}"
        raise ProgramError(f"{where}: {reason.msg}") from None
    except ValueError as reason:  # NUL bytes
        raise ProgramError(f"{path}: {reason}") from None
    except (RecursionError, MemoryError):
        raise ProgramError(f"{path}: an expression is nested too deeply") from None
    named = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.name == "scenario" or node.name.startswith("scenario_"))
    ]
    faults = {node.name: why_no_scenario(node) for node in named}
    if named and all(faults.values()):
        first = named[0]
        raise ProgramError(f"{path}:{first.lineno}: {first.name}() {faults[first.name]}")
    return [name for name, fault in faults.items() if not fault]


def why_no_scenario(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return why the explorer cannot call a function, "" if it can."""
    if isinstance(node, ast.AsyncFunctionDef):
        return "is a coroutine function: write a scenario with `def`"
    given = node.args
    needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    if needed or any(default is None for default in given.kw_defaults):
        return "has parameters, for which the explorer has no values"
    return ""


def of_function(function: Callable[[], Any], options: Options | None = None) -> ExploredProgram:
    """Return the program of a function at the top of a file. Raises ProgramError for other functions."""
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    if file is None or not Path(file).is_file():
        raise ProgramError(f"{function!r} has no source file, so the explorer cannot see its steps")
    name = getattr(function, "__qualname__", "")
    if not name.isidentifier():
        raise ProgramError(
            f"{name or function!r} is not a function of a module; define the scenario at the top of a file"
        )
    return ExploredProgram(Path(file), name, options)
