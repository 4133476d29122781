"""Features of other packages and of your own, each below a path (setting `mount`): they are asked first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe.config.setting_types import parse_mount
from ewe.features.base import Claim, Middleware, Mount, Mounted
from ewe.features.declaration import Feature, make
from ewe.features.plan import claims_of_applications

if TYPE_CHECKING:
    from ewe.features.plan import Plan


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the directories of the features' sources."""
    return claims_of_applications(name for _, name in map(parse_mount, plan.config.mount) if ":" in name)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the features in the order of the setting. Raises UnknownFeature, ValueError.

    A middleware holds all that would be asked after it (ewe.sites.routes.Offer), and stands outside of the cache.
    """
    for path, name in map(parse_mount, plan.config.mount):
        handler = make(name, plan.config, path)
        yield Mount(path, Mounted(handler, path), bare=isinstance(handler, Middleware))


FEATURE = Feature("mount", settings=("mount",), claims=claims, mounts=mounts)
