"""Mounted features: those of other packages, and your own, each below a path (setting `mount`). They come first.

A mounted class has a handler and nothing else. A mounted Feature may also have the parts `protected`, `needs` and
`notes`. The feature `mount` passes these on, as if they were its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import parse_mount
from ewe.features.applications import sources_of_applications
from ewe.features.base import Middleware, Mount, ProtectedSource
from ewe.features.declaration import (
    Feature,
    Mounted,
    UnknownFeature,
    in_one_line,
    make,
    module_and_name,
    named,
)
from ewe.features.mounted_settings import MOUNT, SETTINGS
from ewe.registry import in_words

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import Plan


def declared(config: Config) -> Iterator[tuple[str, Feature]]:
    """Yield the name and the declaration of each mounted feature that has one. Raises UnknownFeature."""
    for _, name in map(parse_mount, config[MOUNT]):
        feature = named(name)
        if isinstance(feature, Feature):
            yield name, feature


def yielded(name: str, feature: Feature, part: str, *arguments: object) -> list[Any]:
    """Return all that one function of a Feature (its declaration) yields; [] if it does not have this function.

    part: "protected", "needs" or "notes". arguments: of the function. Raises UnknownFeature if it fails.
    """
    function = getattr(feature, part)
    try:
        return list(function(*arguments)) if function is not None else []
    except ValueError as reason:  # the feature's own message
        raise UnknownFeature(in_one_line(name, reason)) from None
    except (Exception, SystemExit) as reason:  # a user's function may raise any exception
        raise UnknownFeature(f"feature {name!r}: its {part}= fails: {in_words(reason)} (mount)") from None


@contextmanager
def with_line(config: Config) -> Iterator[None]:
    """Add the file and the line of the setting to an UnknownFeature."""
    try:
        yield
    except UnknownFeature as reason:
        origin = config.origin("mount")
        if config.file is None or not origin.startswith(config.file):
            raise
        raise UnknownFeature(f"{origin}: {reason}") from None


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the source directories of the mounted features, and the sources that their declarations name.

    Raises UnknownFeature. Only CGI protects executables, since ewe protects those of one directory.
    """
    with with_line(plan.config):
        yield from sources_of_applications(
            module_and_name(name) for _, name in map(parse_mount, plan.config[MOUNT])
        )
        for name, feature in declared(plan.config):
            for source in yielded(name, feature, "protected", plan, root):
                if not isinstance(source, ProtectedSource) or source.executables:
                    fault = "its protected= must yield a ProtectedSource without executables"
                    raise UnknownFeature(in_one_line(name, fault))
                yield source


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the features in the order of the setting. Raises UnknownFeature, ValueError.

    A middleware is put around all handlers after it (ewe.sites.routes.FeatureChain), outside of the content cache.
    Each [[site]] may mount features, so their needs are asked here, where each site is built.
    """
    with with_line(plan.config):
        for name, feature in declared(plan.config):
            for reason in yielded(name, feature, "needs", plan.config):  # the first one is enough
                raise UnknownFeature(in_one_line(name, reason))
        for path, name in map(parse_mount, plan.config[MOUNT]):
            handler = make(name, plan.config, path)
            mounted = Mounted(handler, path, name)
            yield Mount(path.rstrip("/") or "/", mounted, bare=isinstance(handler, Middleware))


def notes(config: Config) -> Iterator[str]:
    """Yield the notes of the mounted features, and the reason if the notes of one cannot be had."""
    try:
        features = list(declared(config))
    except UnknownFeature:  # the site is not made either: that failure has the reason
        return
    for name, feature in features:
        try:
            yield from (in_one_line(name, line) for line in yielded(name, feature, "notes", config))
        except ValueError as reason:
            yield str(reason)


FEATURE = Feature(
    "mount", settings=SETTINGS, protected=protected, mounts=mounts, notes=notes, imports_later=True
)
