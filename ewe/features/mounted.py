"""Mounted features: those of other packages, and your own, each below a path (setting `mount`). They come first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe.config.setting_types import parse_mount
from ewe.features.base import Middleware, Mount, Mounted, ProtectedSource
from ewe.features.declaration import Feature, make
from ewe.features.plan import sources_of_applications

if TYPE_CHECKING:
    from ewe.features.plan import Plan


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the source directories of the mounted features."""
    return sources_of_applications(name for _, name in map(parse_mount, plan.config.mount) if ":" in name)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the features in the order of the setting. Raises UnknownFeature, ValueError.

    A middleware is put around all handlers after it (ewe.sites.routes.Offer), and is not inside the content cache.
    """
    for path, name in map(parse_mount, plan.config.mount):
        handler = make(name, plan.config, path)
        yield Mount(path, Mounted(handler, path), bare=isinstance(handler, Middleware))


FEATURE = Feature("mount", settings=("mount",), protected=protected, mounts=mounts)
