"""The points of a running program: what a changed source calls before an access (instrument.py).

at() gets the object of an access, and finds out which parts of which objects the access uses. Most accesses use
one part: `self.n` uses the attribute `n` of one object. Some use more. A class variable that is read through an
instance is a variable of the class, too; `a == b` also reads the lists within `a` and `b` (reach.py). The step has
all of them, because the search switches lanes only where two lanes use the same part (search.py).

An access whose parts are unknown is noted in Run.unseen: the report then does not claim that it saw all schedules.

Read next: calls.py, which finds out what a call uses; scheduler.py, which records the steps.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MappingView
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from ewe_explore.reach import (
    CONTAINERS,
    IMMUTABLE_TYPES,
    PLAIN_TYPES,
    attributes,
    elements,
    has_library_part,
    is_object_of_program,
    is_on_replacements,
    is_own_class,
    is_stand_in,
    reached,
)
from ewe_explore.scheduler import Lane, PartUse, PendingAccess, Run, Step, active_run, base_name

# The names of hold(), stepped() and items() in the changed source
HOLD_NAME = "_ewe_hold"
EACH_NAME = "_ewe_each"
ITEMS_NAME = "_ewe_items"
SHALLOW_VERBS = ("tests", "goes through", "unpacks")  # they read a container, but nothing within its elements
COMPARING_METHODS = frozenset(("count", "index", "remove", "sort"))  # of containers: they read the elements
# Attributes that change the meaning of other accesses
UNSEEN_ATTRIBUTES = frozenset(("__class__", "__bases__", "__code__", "__defaults__", "__kwdefaults__"))
PROPERTIES_OF_THREADS = ("name", "daemon")  # that another thread may change before the start
# Values of a class or a module that are called without a step: replaces_method() notes a change of them
FUNCTION_TYPES = (
    FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, staticmethod, classmethod, type,
)  # fmt: skip
HEAP_TYPE = 1 << 9  # in the flags of a class: attributes can be added to it


class Variable:
    """A variable of a function or a module that several functions use. frame: the frame of its last access."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frame: FrameType | None = None


@dataclass(slots=True)
class SourcePoint:
    """A place in the source with a point.

    kind: attribute, item, content, display (a tuple or a list with its values), call (the object of a method call),
    method or function (a call, for calls.py), match, name, late (a variable that is assigned once, while other
    functions may read it).
    name: of the attribute, the method or the variable; "[]" for the contents of a container.
    is_second: this is the second point of an access; HOLD_NAME or the first point has stored the object.
    stores_object: store the object for the second point. unseen: what the explorer cannot see of this access if
    lanes share its object.
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
    unseen: str = ""
    is_lazy: bool = False  # the items are read later, as those of a generator expression
    is_deep: bool = False  # the access also reads the containers within the container
    in_comparison: bool = False  # within a method such as __eq__(), which an access to a container may call


@dataclass
class ModuleNames:
    """The variables of a file that have points, by their names; and all names that its functions read."""

    variables: dict[str, Variable]
    read_inside: set[str]


class ClassFacts(NamedTuple):
    """Facts about a class. classes: those that have variables which an access to an attribute may read."""

    classes: tuple[type, ...]
    has_library_part: bool
    cached_properties: frozenset[str]


@dataclass
class FoundAccess:
    """What an access uses now.

    target, attribute: as in PartUse. writes: None if the SourcePoint says whether it changes the object.
    """

    target: Any
    attribute: str | None
    other_uses: list[PartUse] = field(default_factory=list)
    unseen: str = ""
    writes: bool | None = None


SOURCE_POINTS: list[SourcePoint] = []  # by the number that each call of _ewe_at() has
MODULE_NAMES: dict[str, ModuleNames] = {}  # by file


def at(number: int, value: Any = None) -> Any:
    """Implement a point: record the access that follows, and return `value`.

    number: of the point in SOURCE_POINTS. value: the object of the access; for a name, the value to store, or None.
    """
    run = active_run()
    if run is None or run.inside_invariant:
        return value
    source_point = SOURCE_POINTS[number]
    target = value
    changed: Any = None
    if source_point.is_second:
        pending = take_pending(run.current, number)
        if pending is None:
            return value
        target, changed = pending.target, pending.changed
    elif source_point.kind == "call":
        run.current.receiver = value
    if source_point.kind == "name" and run.detailed and source_point.variable is not None:
        # The caller is the changed program, or stepped() in place of it
        frame = sys._getframe(1)
        source_point.variable.frame = frame.f_back if frame.f_code is stepped.__code__ else frame
    if source_point.in_comparison:
        note_comparison(run, sys._getframe(1))

    def find_access() -> FoundAccess | None:
        """Return what the access uses now."""
        access = access_of(run, source_point, target)
        if access is not None and changed is not None:  # `a.b += c` changes the container `a.b` in place
            access.other_uses += [part._replace(writes=True) for part in reached([changed], run).parts]
        return access

    if record(run, source_point, find_access) and source_point.stores_object:
        stored = target if source_point.kind == "item" else stored_value(target, source_point.name)
        run.current.pending.append(PendingAccess(number + 1, target, changed=stored))
    return value


def take_pending(lane: Lane, number: int) -> PendingAccess | None:
    """Return the access whose second point has this number, from the stack Lane.pending.

    None if its first point has stored no object. An access above it on the stack was ended by an exception, before
    its second point.
    """
    pending = lane.pending
    if all(each.second_point != number for each in pending):
        return None
    while pending[-1].second_point != number:
        pending.pop()
    return pending.pop()


def forget_frames() -> None:
    """Forget the frames of a detailed run: they would keep its objects, and have the values of that run."""
    for names in MODULE_NAMES.values():
        for variable in names.variables.values():
            variable.frame = None


def record(run: Run, source_point: SourcePoint, find_access: Callable[[], FoundAccess | None]) -> bool:
    """Record an access as the next step; return whether it is one. Other lanes may run before it.

    find_access: returns what the access uses, None if it is no step. It is called again if other lanes have run,
    since they may have put other objects into a container.
    """
    access = None if run.current.is_importing else find_access()
    if access is None:
        return False
    where = f"({base_name(source_point.file)}:{source_point.line})"
    writes = source_point.writes if access.writes is None else access.writes
    unseen = access.unseen or source_point.unseen
    step = Step(
        run.current.number,
        "write" if writes else "read",
        source_point.verb,
        source_point.text,
        target=access.target,
        attribute=access.attribute,
        writes=writes,
        file=source_point.file,
        line=source_point.line,
        other_uses=tuple(access.other_uses),
        unseen=f"{unseen} {where}" if unseen else "",
    )
    note_uses_of_aliases(run, step)
    if not run.current.has_points:
        run.accesses_in_queues.setdefault((step.key(), step.lane, step.writes), step)
        return False
    run.point(step)
    if step.index < len(run.steps) - 1 and (access := find_access()) is not None:
        first = PartUse(access.target, access.attribute, writes)
        step.other_uses = (*step.other_uses, first, *access.other_uses)
        note_uses_of_aliases(run, step)
    return True


def note_uses_of_aliases(run: Run, step: Step) -> None:
    """Note the objects of Run.note_alias() that a step uses."""
    if run.aliases:
        for each in (step.target, *(use.target for use in step.other_uses)):
            if id(each) in run.aliases:
                _, text = run.aliases[id(each)]
                run.note_unseen(text, step.file, step.line)


def note_comparison(run: Run, frame: FrameType) -> None:
    """Note that an access to a container has called a method of the program, such as __eq__(), which makes steps.

    The container is used again after these steps, without a point. frame: of the method.
    """
    last, caller = run.current.last_step, frame.f_back
    if caller is not None and caller.f_code.co_qualname == "CallWithStep.__call__":
        caller = caller.f_back
    if last is None or caller is None or last.attribute != "[]" or last.unseen:
        return
    if (caller.f_code.co_filename, caller.f_lineno) == (last.file, last.line):
        last.unseen = (
            f"the accesses of {last.name} after {frame.f_code.co_name}() ({base_name(last.file)}:{last.line})"
        )


def access_of(run: Run, point: SourcePoint, target: Any) -> FoundAccess | None:
    """Return what an access uses; None if it is no step, because no other lane can observe it."""
    if point.kind == "name":
        return FoundAccess(point.variable, point.name)
    if point.kind == "late":
        run.note_unseen(f"the accesses to {point.name} before this assignment", point.file, point.line)
        return None
    if isinstance(target, super):
        target = getattr(target, "__self__", None)
    if point.kind == "attribute":
        return attribute_access(run, point, target, point.name, writes=point.writes)
    if point.kind == "call" and not isinstance(target, CONTAINERS):
        return callable_access(run, point, target)
    if is_stand_in(target):
        return None  # its own methods have points
    if point.kind == "item":  # any object may have items: __getitem__()
        is_plain = isinstance(target, CONTAINERS) or is_own_class(type(target), run)
        if isinstance(target, IMMUTABLE_TYPES) or is_plain:
            return None if isinstance(target, IMMUTABLE_TYPES) else FoundAccess(target, "[]")
        return contents(run, point, target, deep=True)  # a view has the items of another object
    if point.kind == "call":
        return contents(run, point, target, deep=point.name in COMPARING_METHODS)
    if point.kind == "match":
        found = contents(run, point, target, deep=True, with_attributes=True)
        if found is not None:
            found.unseen = "the tests within the patterns of match"
        return found
    return contents(run, point, target, deep=point.is_deep)


def contents(
    run: Run, point: SourcePoint, target: Any, deep: bool, with_attributes: bool = False
) -> FoundAccess | None:
    """Return the access to the contents of an object; None if they cannot change.

    deep: the access also reads the contents of its elements.
    """
    if type(target) in PLAIN_TYPES or (isinstance(target, IMMUTABLE_TYPES) and not deep):
        return None
    is_display = point.kind == "display"  # a new list, which no other lane knows; its values may be shared
    if isinstance(target, CONTAINERS):
        reads_elements = deep and not all(type(each) in PLAIN_TYPES for each in elements(target))
        if not is_display and not reads_elements:
            return FoundAccess(target, "[]")
    elif not deep and is_own_class(type(target), run) and not has_library_part(type(target), run):
        return None  # its own methods have points
    found = reached([target], run, with_attributes=with_attributes, is_deep=deep)
    parts = [each for each in found.parts if not (is_display and each.target is target)]
    if not parts:
        return None
    access = access_to_parts(parts, point.writes)
    if found.is_cut:
        run.note_unseen(f"all that {point.text} contains", point.file, point.line)
    if found.calls_program and not isinstance(target, GeneratorType):
        access.unseen = f"the accesses of {point.text} between two calls of a function"
    return access


def access_to_parts(parts: list[PartUse], writes: bool) -> FoundAccess:
    """Return the access that uses these parts, at least one. writes: it may change each of them."""
    first, *others = [part._replace(writes=True) for part in parts] if writes else parts
    return FoundAccess(first.target, first.attribute, others, writes=first.writes)


def attribute_access(
    run: Run, point: SourcePoint, target: Any, name: str, *, writes: bool
) -> FoundAccess | None:
    """Return what an access to an attribute uses; None if no other lane can observe it."""
    if isinstance(target, IMMUTABLE_TYPES) or is_stand_in(target):
        if not is_attribute_of_program(target, name, run):
            return inner_access(run, point, target, name, writes=writes)
        if isinstance(target, ModuleType):
            return module_access(run, point, target, name, writes=writes)
    if name == "__dict__":
        note_dict(run, point, target)
    if writes and (name in UNSEEN_ATTRIBUTES or replaces_method(target, name)):
        run.note_unseen(f"the use of {point.text} by other threads", point.file, point.line)
    facts = facts_of(type(target), run)
    own_classes = facts_of(target, run).classes if isinstance(target, type) else ()
    of_classes = [
        PartUse(each, name, writes=False) for each in (*own_classes, *facts.classes) if each is not target
    ]
    access = FoundAccess(target, name, of_classes, writes=writes)
    if writes and adds_or_removes(point, target, name):
        access.other_uses.append(PartUse(target, "[]", writes))  # copy.copy() reads all attributes
    if not isinstance(target, type) and facts.has_library_part:
        access.other_uses.append(PartUse(target, "[]", writes))  # its methods without points use it
    if not writes and name in facts.cached_properties:
        access.writes = True
        access.unseen = f"that {point.text} stores its value"
    return access


def adds_or_removes(point: SourcePoint, target: Any, name: str) -> bool:
    """Return whether a write of an attribute changes which attributes an object has, and not only a value.

    A call may be delattr() or setattr(). A slot and a property are there already: their class has them.
    """
    if point.verb in ("deletes", "calls"):
        return True
    if isinstance(target, type):
        return name not in vars(target)
    return name not in attributes(target) and not hasattr(type(class_value(type(target), name)), "__set__")


def facts_of(kind: type, run: Run) -> ClassFacts:
    """Return the facts about a class, which are the same in the whole run."""
    found: ClassFacts | None = run.class_facts.get(kind)
    if found is None:
        found = run.class_facts[kind] = ClassFacts(
            tuple(each for each in kind.__mro__ if each.__flags__ & HEAP_TYPE),
            has_library_part(kind, run),
            frozenset(
                name
                for each in kind.__mro__
                for name, value in vars(each).items()
                if isinstance(value, cached_property)
            ),
        )
    return found


def class_value(kind: type, name: str) -> Any:
    """Return the variable of a class, as Python finds it for an object of the class; None if there is none."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


def stored_value(target: Any, name: str) -> Any:
    """Return the value of an attribute, without code of the program; None if it has none, or a property has it."""
    inside = attributes(target)
    found = inside[name] if name in inside else class_value(type(target), name)
    if isinstance(target, type):
        found = class_value(target, name)
    if isinstance(found, MemberDescriptorType):  # of __slots__
        with suppress(AttributeError):
            return found.__get__(target, type(target))
    return None if hasattr(type(found), "__get__") else found


def note_dict(run: Run, point: SourcePoint, target: Any) -> None:
    """Note that the program gets the dictionary with the attributes of an object: its items are the attributes."""
    found = attributes(target)
    text = f"the accesses through {point.text}"
    if isinstance(target, type):  # a view, a new object each time
        run.note_unseen(text, point.file, point.line)
    else:
        run.note_alias(found, text)


def inner_access(run: Run, point: SourcePoint, target: Any, name: str, *, writes: bool) -> FoundAccess | None:
    """Return the access to an attribute that is not of the program: of a stand-in, or of another module."""
    if isinstance(target, IMMUTABLE_TYPES):
        if writes and isinstance(target, ModuleType):
            run.note_unseen(f"the use of {point.text}", point.file, point.line)
        return None
    if name not in attributes(target):  # a method or a property, which has its own points
        has_started = getattr(target, "explored_lane", None) is not None
        # The name of a thread that runs, or the number that a thread gets at its start
        if (writes and has_started) or (name in ("ident", "native_id") and not has_started):
            run.note_unseen(f"the use of {point.text}", point.file, point.line)
        return FoundAccess(target, name, writes=writes) if name in PROPERTIES_OF_THREADS else None
    if writes:
        run.note_unseen(f"the use of {point.text}", point.file, point.line)
    value = attributes(target)[name]
    if isinstance(value, CONTAINERS):
        run.note_alias(value, f"the accesses through {point.text}")
    return None if callable(value) else FoundAccess(target, None, writes=writes)


def module_access(
    run: Run, point: SourcePoint, target: ModuleType, name: str, *, writes: bool
) -> FoundAccess:
    """Return the access to a variable of a module of the student, as `module.name`."""
    names = MODULE_NAMES.get(str(vars(target).get("__file__")))
    if names is not None and name in names.variables:
        return FoundAccess(names.variables[name], name, writes=writes)
    if writes and ((names is not None and name in names.read_inside) or replaces_method(target, name)):
        run.note_unseen(f"the use of {point.text} within its module", point.file, point.line)
    return FoundAccess(target, name, writes=writes)


def callable_access(run: Run, point: SourcePoint, target: Any) -> FoundAccess | None:
    """Return the read of an attribute that is called, as `self.callback()`; None for a method of its class.

    A method of a class is no step: replaces_method() notes a change of it.
    """
    if isinstance(target, type | ModuleType):
        holder = vars(target) if isinstance(target, ModuleType) else {}
        found = class_value(target, point.name) if isinstance(target, type) else holder.get(point.name)
        is_function = isinstance(found, FUNCTION_TYPES)
        if isinstance(target, ModuleType) and is_own_module(target, run):
            names = MODULE_NAMES.get(str(vars(target)["__file__"]))
            is_variable = names is not None and point.name in names.variables
            return (
                module_access(run, point, target, point.name, writes=False)
                if is_variable or not is_function
                else None
            )
        is_own = isinstance(target, type) and is_own_class(target, run)
        return (
            attribute_access(run, point, target, point.name, writes=False)
            if is_own and not is_function
            else None
        )
    if isinstance(target, IMMUTABLE_TYPES) and not is_object_of_program(target, run):
        return None
    if point.name not in attributes(target):
        found = class_value(type(target), point.name)
        is_variable = found is None or isinstance(
            found, MemberDescriptorType
        )  # none yet, or one in __slots__
        if not (is_variable and is_own_class(type(target), run)):
            return None
    return attribute_access(run, point, target, point.name, writes=False)


def replaces_method(target: Any, name: str) -> bool:
    """Return whether a write of an attribute replaces a method of the program: its calls are no steps."""
    is_holder = isinstance(target, type | ModuleType)
    if isinstance(target, ModuleType):
        found = vars(target).get(name)
    else:
        found = class_value(target if isinstance(target, type) else type(target), name)
    if is_holder and isinstance(found, property):
        return True
    function = getattr(found, "__func__", found)  # of a staticmethod or a classmethod
    is_function = isinstance(function, FunctionType) or (is_holder and isinstance(function, type))
    module = str(getattr(function, "__module__", ""))
    return is_function and not module.startswith(f"{__package__}.") and not is_on_replacements(module)


def is_attribute_of_program(target: Any, name: str, run: Run) -> bool:
    """Return whether the program has defined an attribute of an immutable object or of a stand-in.

    True for a variable of a class or of a module of the student, and for an object of a class such as
    `class Name(str)`; also for an attribute that the program has added
    to a stand-in, such as `self.count` in a subclass of threading.Thread. This attribute may have the name of a
    method of the stand-in, such as `self.step`.
    """
    if isinstance(target, IMMUTABLE_TYPES):
        return isinstance(target, type) or is_own_module(target, run) or is_object_of_program(target, run)
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
    return isinstance(target, ModuleType) and str(vars(target).get("__file__")).startswith(
        run.options.own_directories
    )


def hold(number: int, value: Any) -> Any:
    """Store the object of a call until its arguments are known; return the object."""
    run = active_run()
    # Elsewhere at() makes no point, so it would not take the object from the stack again
    if run is not None and not run.inside_invariant:
        run.current.pending.append(PendingAccess(number + 1, value, changed=None))
        run.current.receiver = value
    return value


def stepped(number: int, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a `for` whose variable is shared, each after a point: the loop assigns it next."""
    for value in values:
        at(number)
        yield value


class Items:
    """The items of a container in a loop, each after a point: another lane may change the container between two.

    The point before the loop stands for the first item of a list. The iterator of a dict or a set reads the size
    of its container first, and another lane may change it before the first item.
    """

    def __init__(self, number: int, values: Iterable[Any]) -> None:
        self.number = number
        self.values = values
        self.iterator = iter(values)
        reads_size = isinstance(values, (dict, set, deque, MappingView))
        self.is_first = not reads_size and not SOURCE_POINTS[number].is_lazy

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        if not self.is_first:
            at(self.number, self.values)
        self.is_first = False
        return next(self.iterator)


def items(number: int, values: Iterable[Any]) -> Iterable[Any]:
    """Return the values of a loop, each after a point if the object that has them can change."""
    run = active_run()
    if run is None or is_stand_in(values):
        return values
    if isinstance(values, IMMUTABLE_TYPES) and not SOURCE_POINTS[number].is_deep:
        return values
    # An object of the program has points in its own methods
    is_own = is_own_class(type(values), run)
    return values if is_own and not isinstance(values, CONTAINERS) else Items(number, values)
