"""The objects that one action of a program may use: those within its values.

`a == b` reads the lists within `a`, `json.dumps(table)` reads everything below `table`, and `next(numbers)` reads
the list that the iterator `numbers` goes through. reached() finds these objects, so that a step names all of them:
a step of another lane then conflicts with it, wherever the object lies.

The objects of the program's own classes are not searched, since their methods have points. There are two
exceptions: a call of a library may read attributes (copy.copy(), operator.attrgetter()), and so do the methods that
dataclasses generate, and the patterns of `match`, which have no points. They read attributes in __slots__ and the
variables of the classes, too, and see which attributes there are: the part "[]" of an object stands for that.

No code of the program runs here: its classes may override __iter__(), keys() or __getattr__().

Read next: points.py and calls.py.
"""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    TracebackType,
)
from typing import Any

from ewe_explore.scheduler import PACKAGE_DIRECTORY, SAMPLES_DIRECTORY, PartUse, Run

CONTAINERS = (list, dict, set, deque, bytearray, OrderedDict, defaultdict, Counter)
IMMUTABLE_TYPES = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    tuple,
    frozenset,
    range,
    slice,
    type(None),
    ModuleType,
    type,
)
# The explorer loads the source of these packages on its replacements: only locks and queues are steps there
PACKAGES_ON_REPLACEMENTS = ("concurrent.", "sched", "selectors", "socketserver", "ewe.")
PLAIN_TYPES = frozenset((int, str, float, bool, bytes, type(None)))
MAX_OBJECTS = 1000  # the most objects to look at for one step
# Their contents are code, or no state that a program can compare
SKIPPED_TYPES = (ModuleType, type, CodeType, FrameType, TracebackType, BaseException)
# An element of a container is not called; a function that an iterator such as map() has is
CALLABLE_TYPES = (FunctionType, MethodType, BuiltinFunctionType, MethodWrapperType)
GENERATED_METHODS = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__", "__str__")
# Modules whose objects never change
IMMUTABLE_MODULES = frozenset(("datetime", "decimal", "fractions", "ipaddress", "re", "uuid", "zoneinfo"))
# Base classes in these modules keep no state in an object
STATELESS_MODULES = frozenset(("abc", "enum", "typing"))
AT_NAME = "_ewe_at"  # the builtin name of a point; a module that has it runs on the explorer's replacements


@dataclass
class Reached:
    """The parts of objects that an action may use, each with whether the action changes it for sure.

    calls_program: the action may call functions of the program between two of its accesses. is_cut: there are more
    objects than MAX_OBJECTS.
    """

    parts: list[PartUse] = field(default_factory=list)
    calls_program: bool = False
    is_cut: bool = False


def is_stand_in(target: Any) -> bool:
    """Return whether an object is one of the explorer's primitives: their methods have their own points."""
    return getattr(type(target), "is_stand_in", False) is True


def is_own_class(kind: type, run: Run) -> bool:
    """Return whether the program defines a class, in a module with points."""
    return kind.__module__ in run.own_modules


def is_object_of_program(value: Any, run: Run) -> bool:
    """Return whether an object has a class of the program: a tuple of such a class has attributes that change."""
    return not isinstance(value, type | ModuleType) and is_own_class(type(value), run)


def is_on_replacements(module: str) -> bool:
    """Return whether the explorer loads a module of a library on its replacements."""
    return module.startswith(PACKAGES_ON_REPLACEMENTS)


def has_points(function: FunctionType, run: Run) -> bool:
    """Return whether the steps of a function are seen: it has points, or it is the explorer's or on its modules."""
    file = function.__code__.co_filename
    if file.startswith(PACKAGE_DIRECTORY) and not file.startswith(SAMPLES_DIRECTORY):
        return True
    builtin_names = function.__globals__.get("__builtins__")
    is_loaded_by_explorer = isinstance(builtin_names, dict) and AT_NAME in builtin_names
    # Code that a library has generated for a class of the program has no file
    return is_loaded_by_explorer and not file.startswith("<")


def has_generated_methods(kind: type, run: Run) -> bool:
    """Return whether a class has one of GENERATED_METHODS without points, as a dataclass of the program has."""
    for name in GENERATED_METHODS:
        for each in kind.__mro__:
            if name in vars(each):
                method = vars(each)[name]
                if isinstance(method, FunctionType) and not has_points(method, run):
                    return True
                break
    return False


def has_library_part(kind: type, run: Run) -> bool:
    """Return whether a class inherits from a class without points. The methods of that class use its attributes.

    Stand-ins, classes of modules on the replacements, and classes without state do not count.
    """
    return any(
        each is not object
        and not is_own_class(each, run)
        and each.__module__ not in STATELESS_MODULES
        and not is_on_replacements(each.__module__)
        and not getattr(each, "is_stand_in", False)
        for each in kind.__mro__
    )


def attributes(target: Any) -> dict[str, Any]:
    """Return the attributes of an object that has a __dict__; {} for others."""
    try:
        found = object.__getattribute__(target, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def elements(container: Any) -> list[Any]:
    """Return the elements of a container, the keys and the values of a dict, without the program's own methods."""
    if isinstance(container, dict):
        return [*dict.keys(container), *dict.values(container)]
    for kind in (list, tuple, set, frozenset, deque):
        if isinstance(container, kind):
            return list(kind.__iter__(container))  # type: ignore[arg-type] # the loop has tested the type
    return []


def parts_of_class(value: Any, kind: type, run: Run) -> tuple[list[PartUse], list[Any]]:
    """Return what an object has by the program's classes: the parts, and the values within them.

    They are the object's attributes in __slots__, and the variables of the classes, which an object without such an
    attribute has, too. The part "[]" of a class is the set of its variables.
    """
    parts: list[PartUse] = []
    values: list[Any] = []
    for each in kind.__mro__:
        if not is_own_class(each, run):
            continue
        parts.append(PartUse(each, "[]", writes=False))
        for name, variable in vars(each).items():
            if isinstance(variable, MemberDescriptorType):
                parts.append(PartUse(value, name, writes=False))
                with suppress(AttributeError):  # it has no value yet
                    values.append(variable.__get__(value, kind))
            elif not name.startswith("__") and not hasattr(type(variable), "__get__"):
                parts.append(PartUse(each, name, writes=False))
                values.append(variable)
    return parts, values


def reached(
    values: Iterable[Any], run: Run, *, with_attributes: bool = False, is_deep: bool = True
) -> Reached:
    """Return the objects within values that can change.

    with_attributes: also search the attributes of objects of the program's own classes. is_deep: also search the
    elements of containers.
    """
    found = Reached()
    waiting = list(values)
    seen: dict[int, Any] = {}
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind in PLAIN_TYPES or id(each) in seen:
            continue
        if len(seen) >= MAX_OBJECTS:
            found.is_cut = True
            break
        seen[id(each)] = each
        inside = look_into(each, found, run, with_attributes)
        if is_deep or not isinstance(each, (tuple, frozenset, *CONTAINERS)):
            waiting += inside
    return found


def look_into(value: Any, found: Reached, run: Run, with_attributes: bool) -> list[Any]:
    """Add the parts of one object to `found`; return the objects within it."""
    if isinstance(value, FunctionType):
        found.calls_program = found.calls_program or has_points(value, run)
        return []
    if isinstance(value, MethodType):
        inner = value.__func__
        if isinstance(inner, FunctionType) and has_points(inner, run):
            found.calls_program = True
            return []
        return [inner, value.__self__]
    if isinstance(value, BuiltinFunctionType | MethodWrapperType):
        owner = value.__self__
        if isinstance(owner, CONTAINERS):  # a stored method such as items.append, which the action may call
            found.calls_program = True
            found.parts.append(PartUse(owner, "[]", writes=True))
        return [] if owner is None or isinstance(owner, ModuleType | type) else [owner]
    if isinstance(value, GeneratorType | CoroutineType):
        found.calls_program = True
        found.parts.append(PartUse(value, "[]", writes=True))
        return []
    if is_object_of_program(value, run) and isinstance(value, IMMUTABLE_TYPES):
        inside = look_into_instance(value, found, run, with_attributes)
        return inside + [each for each in elements(value) if not isinstance(each, CALLABLE_TYPES)]
    if isinstance(value, tuple | frozenset):
        return [each for each in elements(value) if not isinstance(each, CALLABLE_TYPES)]
    if isinstance(value, (*IMMUTABLE_TYPES, *SKIPPED_TYPES)) or is_stand_in(value):
        return []
    if type(value).__module__ in IMMUTABLE_MODULES:
        return []
    if isinstance(value, CONTAINERS):
        found.parts.append(PartUse(value, "[]", writes=False))
        return [each for each in elements(value) if not isinstance(each, CALLABLE_TYPES)]
    return look_into_instance(value, found, run, with_attributes)


def look_into_instance(value: Any, found: Reached, run: Run, with_attributes: bool) -> list[Any]:
    """Add the parts of an object of any other class to `found`; return the objects within it."""
    kind = type(value)
    inside = attributes(value)
    is_searched = with_attributes or has_generated_methods(kind, run) or has_library_part(kind, run)
    if is_own_class(kind, run) and not is_searched:
        return []
    found.parts.append(PartUse(value, "[]", isinstance(value, Iterator)))  # to read an iterator changes it
    found.parts += [PartUse(value, name, writes=False) for name in inside]
    of_class, class_values = parts_of_class(value, kind, run)
    found.parts += of_class
    if inside or is_own_class(kind, run):
        return [*inside.values(), *class_values]
    found_inside = [each for each in gc.get_referents(value) if each is not kind]
    if isinstance(value, zip | map):  # they keep their iterators in a tuple
        return [each for inner in found_inside for each in (inner if isinstance(inner, tuple) else (inner,))]
    return found_inside
