"""Mounted features: those of other packages, and your own, each below a path (setting `mount`). They come first.

A mounted class has a handler and nothing else. A mounted Feature may have most parts of a declaration
(PARTS_OF_MOUNTED). The feature table then yields it beside ewe's own features, and the server asks all of them in
the same way:

    mount = "/hello=hello:FEATURE"
              │        └─▶ declares() ─▶ feature_table.features() ─▶ settings, needs, programs, protected, ...
              └─ the path ─▶ mounts() ─▶ FEATURE.make(config, path) ─▶ the handler below the path

One thing differs. A function of another package may raise any exception, and yield anything. The server gets it
in a Part, which makes one line of each fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ewe.config.messages import nearest, quoted
from ewe.config.setting_types import parse_mount
from ewe.config.settings import KEYS
from ewe.features.applications import sources_of_applications
from ewe.features.base import Middleware, Mount, ProtectedSource
from ewe.features.declaration import (
    Feature,
    Mounted,
    NeededDirectory,
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
    from ewe.gateway.kept_programs import KeptProgram

# The parts that are functions, and the objects that such a function yields; "": it yields none
FUNCTIONS = {
    "protected": "a ProtectedSource without executables",
    "mounts": "a Mount with a handler",
    "programs": "a function that makes a KeptProgram",
    "fixed": "the name of a setting",
    "directories": "a NeededDirectory",
    "needs": "a text",
    "notes": "a text",
    "start_warnings": "a text",
    "provide": "",
    "answers_all": "",
    "ends_processes": "",
    "measures": "",
}
LINES = ("needs", "notes", "start_warnings")


class Part:
    """A function of the declaration of a mounted feature. Its only exception is UnknownFeature, with one line.

    name: of the feature, as the setting names it. origin: the file and line of the setting, with a colon, or "".
    """

    def __init__(self, part: str, function: Callable[..., Any], name: str, origin: str) -> None:
        self.part, self.function, self.name, self.origin = part, function, name, origin

    def __call__(self, *arguments: Any) -> Any:
        """Return the result of the function; a list if it yields objects. Raises UnknownFeature."""
        try:
            found = self.function(*arguments)
            if not FUNCTIONS.get(self.part):
                return found
            is_one = isinstance(found, str) or not isinstance(found, Iterable)
            return [self.checked(each) for each in ((found,) if is_one else found)]
        except UnknownFeature:
            raise
        except ValueError as reason:  # the feature's own message
            raise UnknownFeature(self.origin + in_one_line(self.name, reason)) from None
        except (Exception, SystemExit) as reason:  # a user's function may raise any exception
            fault = f"its {self.part}= fails: {in_words(reason)}"
            raise UnknownFeature(f"{self.origin}feature {self.name!r}: {fault} (mount)") from None

    def checked(self, found: Any) -> Any:
        """Return an object that the function has yielded. Raises UnknownFeature for one of another kind."""
        if self.part in LINES and isinstance(found, str):
            return (self.origin if self.part == "needs" else "") + in_one_line(self.name, found)
        if (
            self.part == "mounts"
            and isinstance(found, Mount)
            and callable(getattr(found.handler, "respond", None))
        ):
            return with_checks(found, self.name)
        if self.part == "programs" and callable(found):
            return Maker("maker in programs", found, self.name, self.origin)
        is_right = {
            "protected": isinstance(found, ProtectedSource) and not found.executables,
            "fixed": isinstance(found, str),
            "directories": isinstance(found, NeededDirectory),
        }
        if is_right.get(self.part):
            return self.with_known_setting(found)
        raise self.error(f"its {self.part}= must yield {FUNCTIONS[self.part]}, not {type(found).__name__}")

    def with_known_setting(self, found: Any) -> Any:
        """Return an object with the exact name or key of the setting that it names. Raises UnknownFeature."""
        if self.part not in ("fixed", "directories"):
            return found
        key = str(getattr(found, "setting", found)).replace("_", "-")
        if (setting := KEYS.get(key)) is None:
            raise self.error(f"its {self.part}= names an unknown setting {quoted(key)}{nearest(key, KEYS)}")
        return setting.name if self.part == "fixed" else found._replace(setting=setting.key)

    def error(self, fault: str) -> UnknownFeature:
        """Return the error for a fault of the function."""
        return UnknownFeature(self.origin + in_one_line(self.name, fault))


class Maker(Part):
    """A ProgramMaker of a mounted feature."""

    def __call__(self, *arguments: Any) -> KeptProgram:
        """Return the program. Raises UnknownFeature."""
        from ewe.gateway.kept_programs import KeptProgram

        found = super().__call__(*arguments)
        if not isinstance(found, KeptProgram):
            raise self.error(f"its {self.part}= must return a KeptProgram, not {type(found).__name__}")
        return found


def with_checks(mount: Mount, name: str) -> Mount:
    """Return a mount whose handler is checked as one of `make` (Mounted). name: of the feature."""
    handler = mount.handler
    mounted = handler if isinstance(handler, Mounted) else Mounted(handler, mount.path, name)
    is_bare = mount.bare or isinstance(mounted.handler, Middleware)
    return mount._replace(path=mount.path.rstrip("/") or "/", handler=mounted, bare=is_bare)


def declares(config: Config) -> Iterator[Feature]:
    """Yield each declaration that the setting names, on the server and on its sites, once. Raises UnknownFeature.

    Its functions are Parts, and its name is "module:NAME", which no feature of ewe has.
    """
    found: dict[str, Feature] = {}
    for site_config in config.each_site():
        origin = origin_of(site_config)
        for _, name in map(parse_mount, site_config[MOUNT]):
            with with_line(site_config):
                feature = named(name)
            full_name = module_and_name(name)
            if isinstance(feature, Feature) and full_name not in found:
                found[full_name] = with_parts(feature, full_name, name, origin)
    yield from found.values()


def with_parts(feature: Feature, full_name: str, name: str, origin: str) -> Feature:
    """Return a declaration with another name, and with Parts as its functions. name, origin: see Part."""
    parts: dict[str, Any] = {
        part: Part(part, function, name, origin)
        for part in FUNCTIONS
        if (function := getattr(feature, part)) is not None
    }

    def preload() -> None:
        for module in feature.late:
            import_module(module)
        if feature.preload is not None:
            feature.preload()

    parts["preload"] = Part("late= or preload", preload, name, origin)
    return feature._replace(name=full_name, **parts)


def origin_of(config: Config) -> str:
    """Return the file and the line of the setting, with a colon; "" if it does not stand in a file."""
    origin = config.origin("mount")
    return f"{origin}: " if config.file is not None and origin.startswith(config.file) else ""


@contextmanager
def with_line(config: Config) -> Iterator[None]:
    """Add the file and the line of the setting to an UnknownFeature."""
    try:
        yield
    except UnknownFeature as reason:
        raise UnknownFeature(f"{origin_of(config)}{reason}") from None


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the source directories of the mounted features."""
    yield from sources_of_applications(
        module_and_name(name) for _, name in map(parse_mount, plan.config[MOUNT])
    )


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the features in the order of the setting. Raises UnknownFeature, ValueError.

    A middleware is put around all handlers after it (ewe.sites.routes.FeatureChain), outside of the content cache.
    """
    for path, name in map(parse_mount, plan.config[MOUNT]):
        with with_line(plan.config):
            handler = make(name, plan.config, path)
        mounted = Mounted(handler, path, name)
        yield Mount(path.rstrip("/") or "/", mounted, bare=isinstance(handler, Middleware))


FEATURE = Feature(
    "mount", settings=SETTINGS, protected=protected, mounts=mounts, imports_later=True, declares=declares
)
