"""Finding a class by its name. Concurrency models and features are found alike:

- ewe's own stand in a table, name -> "module:Class" (ewe.processors.base, ewe.features.base);
- another package registers a class by an entry point, in the group `ewe.processors` or `ewe.features`;
- "module:Class" names a class directly. The module may be a file in the current directory.
"""

from __future__ import annotations

from typing import Any


def load(where: str) -> Any:
    """Import what "module:Class" names. Raises ImportError, AttributeError."""
    from importlib import import_module

    module, _, attribute = where.partition(":")
    if not module.startswith("ewe."):
        look_here()
    return getattr(import_module(module), attribute)


def look_here() -> None:
    """Have Python look for modules in the current directory."""
    import sys

    if "" not in sys.path:
        sys.path.insert(0, "")


def directories_of(where: str) -> list[str]:
    """Return where the source of "module:name" lies: the directory of its outermost package or module, and those of
    the packages in it. [] for a module that is not found. Nothing is imported.
    """
    import os
    from importlib.util import find_spec

    look_here()
    top, *packages = where.partition(":")[0].split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return []
    places = spec and (spec.submodule_search_locations or [spec.origin or ""])
    found: list[str] = []
    for place in places or ():
        if os.path.exists(place):
            at = os.path.abspath(place)
            found.append(os.path.dirname(at))
            for name in ("", *packages):
                at = os.path.join(at, name) if name else at
                found += [at] if os.path.isdir(at) else []
    return found


def load_application(where: str, setting: str) -> Any:
    """Import an application, "module:name": an object, or with "()" at the end what a function returns.

    Without a name it is called `application`. Raises ValueError: one line that says what failed, in which line of
    which file. setting: the one to name there.
    """
    module, _, name = where.partition(":")
    name = name or "application"
    try:
        first, *rest = name.removesuffix("()").split(".")
        found = load(f"{module}:{first}")
        for attribute in rest:
            found = getattr(found, attribute)
        found = found() if name.endswith("()") else found
    except (Exception, SystemExit) as reason:
        raise ValueError(
            f"application {where!r} cannot be imported: {in_words(reason)} ({setting})"
        ) from None
    if not callable(found):
        raise ValueError(f"application {where!r} is not callable, but {type(found).__name__} ({setting})")
    return found


def in_words(reason: BaseException) -> str:
    """Return in one line what an import has raised, and in which line of which file."""
    return " ".join(f"{type(reason).__name__}: {reason}".split()) + place(reason)


def place(reason: BaseException) -> str:
    """Return the line that raised an exception, in words; "" if the line is of the import system or of ewe.

    The line of a syntax error is not that of the module which imports the faulty one.
    """
    import traceback

    if isinstance(reason, SyntaxError) and reason.filename:
        return f", in {reason.filename} line {reason.lineno}"
    last = traceback.extract_tb(reason.__traceback__)[-1]
    ours = last.filename.startswith("<frozen") or last.filename == __file__
    return "" if ours else f", in {last.filename} line {last.lineno}"


def entry_points(group: str) -> dict[str, Any]:
    """Return what other packages register in a group: name -> entry point."""
    from importlib.metadata import entry_points as registered

    return {entry.name: entry for entry in registered(group=group)}
