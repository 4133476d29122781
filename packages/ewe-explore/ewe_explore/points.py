"""The points of a running program: what a changed source calls before an access (instrument.py).

Read next: scheduler.py, which records the steps.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static
from types import FrameType, FunctionType, ModuleType
from typing import Any

from ewe_explore.scheduler import ACTIVE_RUNS, Run, Step

AT_NAME = "_ewe_at"
HOLD_NAME = "_ewe_hold"
EACH_NAME = "_ewe_each"
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


class Variable:
    """A variable of a function or a module that several functions use. frame: the frame of its last access."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frame: FrameType | None = None


@dataclass(slots=True)
class SourcePoint:
    """A place in the source with a point. kind: attribute, item, content, call, name.

    name: of the attribute, the method or the variable; "[]" for the contents of a container.
    is_second: this is the second point of an access; HOLD_NAME or the first point has stored the object.
    stores_object: store the object for the second point.
    """

    file: str
    line: int
    kind: str
    text: str
    name: str
    writes: bool
    verb: str
    variable: Variable | None = None
    is_second: bool = False
    stores_object: bool = False


SOURCE_POINTS: list[SourcePoint] = []  # by the number that each call of _ewe_at() has


def at(number: int, value: Any = None) -> Any:
    """Implement a point: record the access that follows, and return `value`.

    number: of the point in SOURCE_POINTS. value: the object of the access; for a name, the value to store, or None.
    """
    if not ACTIVE_RUNS:
        return value
    run = ACTIVE_RUNS[-1]
    if run.inside_invariant or not run.current.has_points:
        return value
    source_point = SOURCE_POINTS[number]
    kind = source_point.kind
    target = value
    attribute: str | None = None
    if source_point.is_second:  # the first point has put the object on the stack `pending`
        pending = run.current.pending
        if all(second != number for second, _ in pending):
            return value  # the first point stored no object; the others on the stack belong to other accesses
        while pending[-1][0] != number:
            pending.pop()  # of an access that an exception has ended before its second point
        target = pending.pop()[1]
    if kind == "name":
        target = source_point.variable
        attribute = source_point.name
        if run.detailed and source_point.variable is not None:
            # The caller is the changed program, or stepped() in place of it
            frame = sys._getframe(1)
            source_point.variable.frame = frame.f_back if frame.f_code is stepped.__code__ else frame
    elif isinstance(target, IMMUTABLE_TYPES) or getattr(type(target), "is_stand_in", False) is True:
        if kind != "attribute" or not is_attribute_of_program(target, source_point.name, run):
            return value  # the object cannot change, or its own methods have points
        attribute = source_point.name
    elif kind == "attribute":
        attribute = source_point.name
    else:
        if kind != "item" and not isinstance(target, CONTAINERS):  # any object may have items: __getitem__()
            return value  # no container, so its contents cannot change
        attribute = "[]"
    run.point(
        Step(
            run.current.number,
            "write" if source_point.writes else "read",
            source_point.verb,
            source_point.text,
            target=target,
            attribute=attribute,
            writes=source_point.writes,
            file=source_point.file,
            line=source_point.line,
        )
    )
    if source_point.stores_object:
        run.current.pending.append((number + 1, target))
    return value


def is_attribute_of_program(target: Any, name: str, run: Run) -> bool:
    """Return whether the program has defined an attribute of an immutable object or of a stand-in.

    True for a variable of a class or of a module of the student; also for an attribute that the program has added
    to a stand-in, such as `self.count` in a subclass of threading.Thread. This attribute may have the name of a
    method of the stand-in, such as `self.step`.
    """
    if isinstance(target, IMMUTABLE_TYPES):
        return isinstance(target, type) or is_own_module(target, run)
    stand_ins = [each for each in type(target).__mro__ if each.__module__.startswith(f"{__package__}.")]
    if not any(name in names_of_stand_in(each) for each in stand_ins):
        return True
    is_method = any(isinstance(vars(each).get(name), FunctionType) for each in stand_ins)
    return is_method and not callable(getattr_static(target, name, None))


@cache
def names_of_stand_in(stand_in: type) -> frozenset[str]:
    """Return the attributes of a class of the explorer, and those that a new object of it has."""
    names = set(vars(stand_in))
    for create in (vars(stand_in).get("__init__"), vars(stand_in).get("_init")):  # a queue has both
        if isinstance(create, FunctionType):
            stored = (each for each in dis.get_instructions(create) if each.opname == "STORE_ATTR")
            names.update(str(each.argval) for each in stored)
    return frozenset(names)


def is_own_module(target: Any, run: Run) -> bool:
    """Return whether an object is a module of the student: its variables are shared as `module.name`, too."""
    return isinstance(target, ModuleType) and str(vars(target).get("__file__")).startswith(run.options.user)


def hold(number: int, value: Any) -> Any:
    """Store the object of a call until its arguments are known; return the object."""
    run = ACTIVE_RUNS[-1] if ACTIVE_RUNS else None
    # Elsewhere at() makes no point, so it would not take the object from the stack again
    if run is not None and not run.inside_invariant and run.current.has_points:
        run.current.pending.append((number + 1, value))
    return value


def stepped(number: int, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a `for` whose variable is shared, each after a point: the loop assigns it next."""
    for value in values:
        at(number)
        yield value


# The functions that the changed source calls, by their names there
CALLED = {AT_NAME: at, HOLD_NAME: hold, EACH_NAME: stepped}
