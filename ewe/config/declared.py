"""Which files of features declare settings. Each has a tuple SETTINGS, and imports nothing but ewe.config.

The files are named by strings: this room lies below the features and knows none of them. They are imported with
ewe.config.settings, so before any feature, and every process that ewe forks has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ewe.config.setting import Setting

MODULES = ("ewe.features.browser.settings",)


def declared() -> Iterator[Setting[Any]]:
    """Return the settings that features declare."""
    for name in MODULES:
        yield from import_module(name).SETTINGS
