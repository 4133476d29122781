"""Calls of functions that have no points: builtin functions, and those of libraries.

instrument.py turns `f(x)` into `_ewe_call(1, f)(x)`. callee() returns the function itself if its steps are seen: it
has points, or it is one of the explorer's. It returns any other function with a step around it:

    setattr(a, "x", 1)         a write of `a.x`, as `a.x = 1`
    add = items.append         later, add(1) is a call of items.append(1)
    list.append(items, 1)      the same
    json.dumps(table)          a step that uses everything below `table` (reach.py)
    random.random()            a step that changes the generator, which is a hidden object
    os.remove(path)            unknown: the report says that the explorer does not see the effects of os.remove()

One call is one step. That is true of a function in C that calls no function of the program. The steps of a function
in Python, or between two calls of a key function, are not seen: this is noted if another lane uses the same object.

PURE_MODULES lists the modules whose functions change only what they are given. The effects of all others are
unknown, and a program that calls them while several threads exist gets no claim about all schedules.

Read next: points.py; reach.py.
"""

from __future__ import annotations

import functools
import io
import random
import sys
from collections.abc import Callable
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from ewe_explore import points
from ewe_explore.points import (
    SOURCE_POINTS,
    FoundAccess,
    SourcePoint,
    access_to_parts,
    attribute_access,
    record,
)
from ewe_explore.reach import (
    AT_NAME,
    CONTAINERS,
    IMMUTABLE_TYPES,
    has_points,
    is_on_replacements,
    is_own_class,
    is_stand_in,
    reached,
)
from ewe_explore.scheduler import PartUse, Run, active_run, base_name

CALL_NAME = "_ewe_call"
# Builtin functions that use no object which can change, or only call methods of the program
PURE_BUILTINS = frozenset((
    abs, bin, callable, chr, divmod, hex, id, isinstance, issubclass, oct, ord, pow, round, super, type,
    object, property, staticmethod, classmethod, range, slice, int, float, complex,
))  # fmt: skip
# They use the frame of their caller, so they must be called by the program itself
FRAME_FUNCTIONS = frozenset((dir, eval, exec, globals, locals, vars, breakpoint))
# Methods of containers that do not change the container
READING_METHODS = frozenset((
    "copy", "count", "get", "index", "items", "keys", "values", "issubset", "issuperset", "isdisjoint", "union",
    "difference", "intersection", "symmetric_difference", "most_common", "elements", "total",
    "__contains__", "__eq__", "__ge__", "__getitem__", "__gt__", "__iter__", "__le__", "__len__", "__lt__",
    "__ne__", "__repr__", "__str__",
))  # fmt: skip
# Methods of containers that go through their arguments
METHODS_OF_ITEMS = frozenset((
    "difference", "difference_update", "extend", "extendleft", "fromkeys", "intersection", "intersection_update",
    "isdisjoint", "issubset", "issuperset", "subtract", "symmetric_difference", "symmetric_difference_update",
    "union", "update",
))  # fmt: skip
# Modules whose functions only read their arguments
READING_MODULES = frozenset((
    "builtins", "cmath", "copy", "dataclasses", "json", "json.decoder", "json.encoder", "_json", "math", "pprint",
    "reprlib", "statistics", "_statistics", "string", "struct", "_struct", "textwrap",
))  # fmt: skip
WRITING_NAMES = frozenset(
    ("dump", "load", "pack_into", "pp", "pprint")
)  # functions of these modules that change one
# Modules whose functions use only what they are given, and have no other effect
PURE_MODULES = READING_MODULES | frozenset((
    "_abc", "_bisect", "_collections", "_collections_abc", "_datetime", "_decimal", "_functools", "_hashlib",
    "_heapq", "_io", "_operator", "_random", "_sre", "_string", "_thread", "abc", "array", "base64", "binascii",
    "bisect", "collections", "collections.abc", "contextlib", "datetime", "decimal", "difflib", "enum", "fractions",
    "functools", "hashlib", "heapq", "html", "io", "itertools", "numbers", "operator", "random", "re", "secrets",
    "sys", "threading", "time", "types", "typing", "unicodedata", "urllib.parse", "uuid", "zlib",
))  # fmt: skip
# Modules whose classes do nothing else than to make an object
CLASS_MODULES = PURE_MODULES | frozenset(
    ("ipaddress", "pathlib", "string.templatelib", "weakref", "zoneinfo")
)
# Functions of these modules that reach files or streams of the process, or change the meaning of other calls
IMPURE_NAMES = frozenset((
    "FileIO", "open", "open_code", "redirect_stderr", "redirect_stdout", "chdir", "setrecursionlimit",
    "setswitchinterval", "settrace", "setprofile", "_getframe", "_current_frames", "register",
))  # fmt: skip
# Methods of a socket without a point, and whether they change the socket
METHODS_OF_SOCKETS = {
    "fileno": False, "getblocking": False, "getpeername": False, "getsockname": False, "gettimeout": False,
    "detach": True, "setblocking": True, "settimeout": True,
}  # fmt: skip
PURE_PATH_FUNCTIONS = frozenset((
    "basename", "commonpath", "dirname", "fspath", "isabs", "join", "normpath", "split", "splitext", "cpu_count",
    "getpid", "strerror",
))  # fmt: skip
PATH_MODULES = frozenset(("posix", "posixpath", "os", "genericpath"))


def callee(number: int, function: Any) -> Any:
    """Return the function of a call; with a step around it if it has no points.

    number: of the point of the call in SOURCE_POINTS.
    """
    run = active_run()
    if run is None or run.inside_invariant:
        return function
    point = SOURCE_POINTS[number]
    if isinstance(function, MethodType) and is_stand_in(function.__self__):
        name = function.__name__
        if name in METHODS_OF_SOCKETS and function.__module__ == f"{__package__}.network":
            record(run, point, lambda: FoundAccess(function.__self__, None, writes=METHODS_OF_SOCKETS[name]))
        return function
    if isinstance(function, BuiltinFunctionType | type) and function in PURE_BUILTINS:
        return function
    if isinstance(function, BuiltinFunctionType) and function in FRAME_FUNCTIONS:
        return frame_function(run, point, function)
    owner = function.__self__ if isinstance(function, BuiltinFunctionType) else None
    # The point of `items.append(1)` has recorded the step, but not that of `box.add(1)`, which calls items.append
    is_recorded = point.kind == "method" and isinstance(owner, CONTAINERS) and owner is run.current.receiver
    if (is_recorded and function.__name__ not in METHODS_OF_ITEMS) or needs_no_step(function, run):
        return function
    if not callable(function):  # the call fails
        return function
    return CallWithStep(point, function, is_recorded)


def with_step(function: Any, file: str, line: int) -> Any:
    """Return a function that the explorer calls for the program, such as the target of a thread.

    It gets a step around it if its own steps are not seen. file, line: of the program, for this step.
    """
    run = active_run()
    if run is None or needs_no_step(function, run):
        return function
    name = str(getattr(function, "__name__", "a function"))
    point = SourcePoint(file, line, kind="function", text=f"{name}(…)", name=name, writes=True, verb="calls")
    return CallWithStep(point, function)


def needs_no_step(function: Any, run: Run) -> bool:
    """Return whether a call needs no separate step: the steps of the function are seen, since it has points."""
    if isinstance(function, FunctionType):
        module = str(function.__globals__.get("__name__"))
        wrapped = getattr(function, "__wrapped__", None)
        if module == "contextlib" and isinstance(wrapped, FunctionType):
            return needs_no_step(wrapped, run)  # it makes an object that runs the steps of a generator
        # A library on the replacements may call a function that it gets
        return not is_on_replacements(module) and has_points(function, run)
    if isinstance(function, MethodType):
        return needs_no_step(function.__func__, run)
    if isinstance(function, type):
        return class_needs_no_step(function, run)
    if isinstance(function, functools.partial):
        return needs_no_step(function.func, run)
    call = getattr_static(type(function), "__call__", None)
    return isinstance(call, FunctionType) and has_points(call, run)


def class_needs_no_step(kind: type, run: Run) -> bool:
    """Return whether a call of a class needs no step: no other lane can observe that the object is made."""
    if issubclass(kind, BaseException) or getattr(kind, "is_stand_in", False) is True:
        return True
    # A class such as Stack(list) goes through its argument. What a dataclass stores is not shared yet
    create: Any = kind.__dict__.get("__init__", getattr(kind, "__init__", None))
    is_simple = isinstance(create, FunctionType) or getattr(create, "__objclass__", None) is object
    return is_own_class(kind, run) and is_simple


def frame_function(run: Run, point: SourcePoint, function: Any) -> Any:
    """Return a builtin function that uses the frame of its caller. Note the dictionary that it returns.

    vars() gets a replacement, since its result depends on its argument.
    """
    frame = sys._getframe(2)
    if function is dir:
        run.note_unseen("the names that dir() reads", point.file, point.line)
    if function in (eval, exec, breakpoint):  # code without points: other threads may call it later
        run.note_unseen(f"the accesses within {point.text}", point.file, point.line, always=True)
    if function is globals or (function in (locals, vars) and frame.f_locals is frame.f_globals):
        run.note_alias(frame.f_globals, f"the accesses through {point.name}()")
    if function is not vars:
        return function

    def program_vars(*values: Any) -> Any:
        """Implement vars(): without an argument, it is locals()."""
        if not values:
            return sys._getframe(1).f_locals
        points.note_dict(run, point, values[0])
        return vars(*values)

    return program_vars


class CallWithStep:
    """A function without points, with a step around its call."""

    def __init__(self, point: SourcePoint, function: Any, is_recorded: bool = False) -> None:
        """is_recorded: a point of the method's object has recorded the call as a step."""
        self.point = point
        self.function = function
        self.is_recorded = is_recorded

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        run = active_run()
        if run is not None and not run.inside_invariant:
            module = module_of(self.function)
            is_python = isinstance(self.function, FunctionType | MethodType)
            if is_python or is_on_replacements(module):  # it may call an argument later
                args = tuple(self.callback(each) for each in args)
                named = {key: self.callback(each) for key, each in named.items()}
            self.record_call(run, module, args, named)
        return self.function(*args, **named)

    def callback(self, argument: Any) -> Any:
        """Return an argument, with a step around it if it is the method of a container, such as items.append."""
        is_method = isinstance(argument, BuiltinFunctionType) and isinstance(argument.__self__, CONTAINERS)
        return with_step(argument, self.point.file, self.point.line) if is_method else argument

    def record_call(self, run: Run, module: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Record the step of the call, or note what the explorer does not see of it. module: of the function."""
        point = self.point
        if module == "importlib":  # it finds the real module, which has no points
            run.note_unseen(f"the modules that {point.text} imports", point.file, point.line, always=True)
        if module == "selectors" and isinstance(self.function, MethodType):
            # A selector has no lock, and its dictionaries have no points: each call of a method is one step
            selector = self.function.__self__
            record(run, point, lambda: FoundAccess(selector, None, writes=True))
        elif self.is_recorded:
            note_items(run, self.function, [*args, *named.values()])
        elif not is_on_replacements(module) and not run.is_alone():
            note_call(run, point, self.function, args, named)
        elif self.function is getattr and args[1:2] == ("__dict__",):
            points.note_dict(run, point, args[0])


def note_call(
    run: Run, point: SourcePoint, function: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Record the step of a call, or note that its effects are unknown. Other lanes may run before it."""
    if isinstance(function, functools.partial):
        note_call(run, point, function.func, (*function.args, *args), {**function.keywords, **named})
        return
    name = str(getattr(function, "__name__", type(function).__name__))
    owner = receiver(function, args)
    if attribute_call(run, point, function, name, owner, args) is not None:
        record(run, point, lambda: attribute_call(run, point, function, name, owner, args))
        return
    values = [*args, *named.values()] if owner is None else [owner, *args, *named.values()]
    if not is_constructor_of_object(function, name):
        record(run, point, lambda: call_access(run, point, function, name, owner, values))
    if not isinstance(function, functools._lru_cache_wrapper) and not is_pure(function, name, run):
        run.note_unseen(f"the effects of {point.name}()", point.file, point.line)


def call_access(
    run: Run, point: SourcePoint, function: Any, name: str, owner: Any, values: list[Any]
) -> FoundAccess | None:
    """Return what a call uses: all within its arguments and the object of the method. values: these objects."""
    is_cache = isinstance(function, functools._lru_cache_wrapper)
    found = reached(values, run, with_attributes=True)
    parts = [PartUse(function, "[]", writes=True)] if is_cache else found.parts
    text = f"{point.name}()"
    if found.is_cut:
        run.note_unseen(f"all that {text} uses", point.file, point.line)
    if not parts:
        return None
    access = access_to_parts(parts, changes_arguments(function, name, owner))
    if is_cache or has_inner_steps(function, owner, values, run):
        access.unseen = f"the steps within {text}"
    elif found.calls_program:
        access.unseen = f"the accesses of {text} between two calls of a function"
    return access


def has_inner_steps(function: Any, owner: Any, values: list[Any], run: Run) -> bool:
    """Return whether a call is a function in Python, which may lose its turn between two accesses.

    Numbers of a random generator are not exact anyway: the explorer starts each run with the same seed.
    """
    is_python = isinstance(function, FunctionType | MethodType)
    arguments = [each for each in values if each is not owner]
    return is_python and (not isinstance(owner, random.Random) or bool(reached(arguments, run).parts))


def is_constructor_of_object(function: Any, name: str) -> bool:
    """Return whether a function is object.__init__(), which super().__init__() calls, or that of an exception."""
    kind = getattr(function, "__objclass__", None)
    return (
        name == "__init__" and isinstance(kind, type) and (kind is object or issubclass(kind, BaseException))
    )


def receiver(function: Any, args: tuple[Any, ...]) -> Any:
    """Return the object of a method call; None for a function. list.append(items, 1) has it as an argument."""
    if isinstance(function, MethodDescriptorType | WrapperDescriptorType | ClassMethodDescriptorType):
        return args[0] if args else None
    owner = getattr(function, "__self__", None)
    return None if isinstance(owner, ModuleType) else owner


def attribute_call(
    run: Run, point: SourcePoint, function: Any, name: str, owner: Any, args: tuple[Any, ...]
) -> FoundAccess | None:
    """Return the access of setattr(), getattr() and the like; None for other calls, and with wrong arguments."""
    by_method = {"__setattr__": True, "__delattr__": True, "__getattribute__": False}
    by_function: dict[Any, bool] = {setattr: True, delattr: True, getattr: False, hasattr: False}
    is_method = isinstance(function, MethodWrapperType | WrapperDescriptorType) and name in by_method
    if is_method:
        writes = by_method[name]
        rest = args[1:] if isinstance(function, WrapperDescriptorType) else args
        target = owner
    elif isinstance(function, BuiltinFunctionType) and function in by_function and args:
        writes = by_function[function]
        target, rest = args[0], args[1:]
    else:
        return None
    if not rest or not isinstance(rest[0], str):
        return None
    return attribute_access(run, point, target, rest[0], writes=writes)


def note_items(run: Run, method: Any, arguments: list[Any]) -> None:
    """Note a method such as extend() if its argument runs code of the program, between two of its items.

    method: of a container. A point has recorded the call as the last step of the lane.
    """
    last = run.current.last_step
    if last is None or last.target is not method.__self__ or last.unseen:
        return
    if reached(arguments, run).calls_program:
        last.unseen = f"the accesses of {last.name} between two items ({base_name(last.file)}:{last.line})"


def changes_arguments(function: Any, name: str, owner: Any) -> bool:
    """Return whether a call may change the objects that it uses."""
    # None is immutable, too, but stands for a function: operator.setitem() changes its argument
    if owner is not None and isinstance(owner, IMMUTABLE_TYPES) and not isinstance(owner, type):
        return False  # such as str.join()
    if owner is not None and not isinstance(owner, type):
        return name not in READING_METHODS or not isinstance(owner, CONTAINERS)
    if isinstance(function, type):
        return module_of(function) not in PURE_MODULES
    return module_of(function) not in READING_MODULES or name in WRITING_NAMES


def module_of(function: Any) -> str:
    """Return the name of the module that defines a function, or the class of a method; "" if it is unknown."""
    if isinstance(function, MethodType):
        return module_of(function.__func__)
    if isinstance(function, FunctionType):
        return str(function.__globals__.get("__name__"))
    kind = getattr(function, "__objclass__", None)  # of list.append, and of a method of super()
    owner = getattr(function, "__self__", None)
    if kind is None and isinstance(owner, ModuleType):
        return owner.__name__
    if kind is None and owner is not None:
        classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
        kind = next((each for each in classes if function.__name__ in vars(each)), type(owner))
    return str(getattr(kind or function, "__module__", ""))


def is_open_file(value: Any) -> bool:
    """Return whether an object reads or writes a file of the system, and not memory or a socket of the explorer."""
    if not isinstance(value, io.IOBase):
        return False
    buffer = getattr(value, "buffer", value)  # of a text
    return isinstance(getattr(buffer, "raw", buffer), io.FileIO)


def is_pure(function: Any, name: str, run: Run) -> bool:
    """Return whether a call has no other effect than on the objects that it uses."""
    if isinstance(function, type):
        return function.__module__ in CLASS_MODULES or is_own_class(function, run)
    module = module_of(function)
    owner = getattr(function, "__self__", None)
    if is_open_file(owner):  # another object may have the same file
        return owner is sys.stdout or owner is sys.stderr
    if module in PATH_MODULES:
        return name in PURE_PATH_FUNCTIONS
    file = function.__code__.co_filename if isinstance(function, FunctionType | MethodType) else ""
    # The modules of Python that are frozen have such a name, too: <frozen abc>
    is_generated = file.startswith("<") and not file.startswith("<frozen ")
    return is_generated or (module in PURE_MODULES and name not in IMPURE_NAMES)


# The functions that the changed source calls, by their names there
CALLED: dict[str, Callable[..., Any]] = {
    AT_NAME: points.at,
    points.HOLD_NAME: points.hold,
    points.EACH_NAME: points.stepped,
    points.ITEMS_NAME: points.items,
    CALL_NAME: callee,
}
