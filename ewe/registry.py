"""Finding a class by its name. Concurrency models and features are found alike:

- ewe's own stand in a table, name -> "module:Class" (ewe.processors.base, ewe.features.base);
- another package registers a class by an entry point, in the group `ewe.processors` or `ewe.features`;
- "module:Class" names a class directly. The module may be a file in the current directory.
"""

from __future__ import annotations

from typing import Any


def load(where: str) -> Any:
    """Import what "module:Class" names. Raises ImportError, AttributeError."""
    import sys
    from importlib import import_module

    module, _, attribute = where.partition(":")
    if "" not in sys.path and not module.startswith("ewe."):
        sys.path.insert(0, "")
    return getattr(import_module(module), attribute)


def entry_points(group: str) -> dict[str, Any]:
    """Return what other packages register in a group: name -> entry point."""
    from importlib.metadata import entry_points as registered

    return {entry.name: entry for entry in registered(group=group)}
