"""The registry: find a class by its name. Concurrency models and features use the same three ways:

- ewe's own classes are in a table, name -> "module:Class" (ewe.processors.names, ewe.config.feature_table);
- another package registers a class by an entry point, in the group `ewe.processors` or `ewe.features`;
- "module:Class" names a class directly. The module may be a file in the current directory.
"""

from __future__ import annotations

from typing import Any


def load(where: str) -> Any:
    """Import the object that "module:Class" names.

    Raises AttributeError, ImportError (also if the module ends Python), and each exception that the module raises.
    """
    from importlib import import_module

    module, _, attribute = where.partition(":")
    if not module.startswith("ewe."):
        look_here()
    try:
        return getattr(import_module(module), attribute)
    except SystemExit as reason:  # such as sys.exit(main()) at its end
        raise ImportError(f"SystemExit: {reason}").with_traceback(reason.__traceback__) from None


def look_here() -> None:
    """Make Python look for modules in the current directory, too."""
    import sys

    if "" not in sys.path:
        sys.path.insert(0, "")


def directories_of(where: str) -> list[str]:
    """Return the directories with the source of "module:name"; [] if the module is not found. Import nothing.

    They are the directory that contains the outermost package or module, and the directory of each package.
    The server sends no source from them.
    """
    import os
    from importlib.util import find_spec

    look_here()
    top, *packages = where.partition(":")[0].split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return []
    # A namespace package has several directories. A single module has only its file.
    locations = spec and (spec.submodule_search_locations or [spec.origin or ""])
    found: list[str] = []
    for location in locations or ():
        if os.path.exists(location):
            at = os.path.abspath(location)
            found.append(os.path.dirname(at))
            for name in ("", *packages):
                at = os.path.join(at, name) if name else at
                found += [at] if os.path.isdir(at) else []
    return found


def load_application(where: str, setting: str) -> Any:
    """Import an application, "module:name": an object, or, with "()" at the end, the result of a function.

    The default name is `application`. Raises ValueError with one line: the failure, its file and line, and
    `setting`, the name of the setting.
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
    """Return one line with the exception of an import, and with the file and line that raised it."""
    return " ".join(f"{type(reason).__name__}: {reason}".split()) + location_of_fault(reason)


def location_of_fault(reason: BaseException) -> str:
    """Return the file and line that raised an exception, as text; "" for a line of the import system or of ewe.

    For a syntax error this is the faulty line, not that of the module which imports the faulty module.
    """
    import traceback

    if isinstance(reason, SyntaxError) and reason.filename:
        return f", in {reason.filename} line {reason.lineno}"
    last = traceback.extract_tb(reason.__traceback__)[-1]
    ours = last.filename.startswith("<frozen") or last.filename == __file__
    return "" if ours else f", in {last.filename} line {last.lineno}"


def entry_points(group: str) -> dict[str, Any]:
    """Return name -> entry point of a group, which other packages have registered."""
    from importlib.metadata import entry_points as registered

    return {entry.name: entry for entry in registered(group=group)}
