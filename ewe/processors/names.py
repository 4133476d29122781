"""The names of the concurrency models, and the search for a model's class by its name.

ewe's own models stand in the table PROCESSORS. Other packages register models as entry points (group
"ewe.processors"). A name of the form "module:Class" names a class directly. A module is imported only when its
model is chosen, so a server loads one model.

Read next: base.py, the class that each model derives from.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ewe.registry import entry_points, in_words, load

T = TypeVar("T")

PROCESSORS = {  # name: "module:Class"
    "serial": "ewe.processors.serial:Serial",
    "fork": "ewe.processors.fork:Fork",
    "prefork": "ewe.processors.prefork:Prefork",
    "thread": "ewe.processors.thread:Thread",
    "pool": "ewe.processors.pool:Pool",
    "asyncio": "ewe.processors.event:Event",
    "xswitch": "ewe.processors.xswitch:XSwitch",
}
FLAGS = {"-n": "serial", "-f": "fork", "-t": "thread", "-p": "pool", "-a": "asyncio", "-x": "xswitch"}
SYNONYMS = {"none": "serial", "event": "asyncio"}  # the EWE of 2006 called the serial model "none"
GROUP = "ewe.processors"  # the entry-point group in which other packages register their models


class UnknownModel(ValueError):
    """No model has this name, or its class cannot be loaded. The text is one line."""


def names() -> list[str]:
    """Return the names of all models, including those that other packages register."""
    return [*PROCESSORS, *entry_points(GROUP)]


def find_class(name: str, base: type[T]) -> type[T]:
    """Return the class of a model, a subclass of `base`. Raises UnknownModel.

    name: the name of a model, or "module:Class".
    """
    name = SYNONYMS.get(name, name)
    where = PROCESSORS.get(name) or (name if ":" in name else "")
    if not where and name not in names():
        raise UnknownModel(f"model {name!r} is unknown; there are {', '.join(names())}")
    try:
        found: Any = load(where) if where else entry_points(GROUP)[name].load()
    except (Exception, SystemExit) as reason:  # the import of a user's module may raise any exception
        raise UnknownModel(f"model {name!r} cannot be loaded: {in_words(reason)}") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UnknownModel(f"model {name!r} is not a subclass of ewe.processors.base.Processor")
    return found
