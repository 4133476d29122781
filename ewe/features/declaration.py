"""The declaration of a feature: the handlers and facts that its module offers to the builder of a site.

The last lines of such a module are FEATURE = Feature(...). Everything that the server knows of the feature stands
there: its settings, the sources that it protects, where it answers, and its needs before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ewe.registry import entry_points, in_words, load

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.base import Claim, Handler, Middleware, Mount
    from ewe.features.plan import HasProxies, LocationPlan, Plan
    from ewe.gateway.scripts import Script
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

GROUP = "ewe.features"  # the entry-point group in which other packages name theirs


class Key(NamedTuple):
    """A key of [[site]] and [[site.location]] that puts a middleware around the answer of a location.

    meaning, takes: what the key does and the values that it takes, for docs/settings.md. make: return the
    middleware for a value; its second argument is how an error message begins. It raises ConfigError, ValueError,
    OSError.
    """

    meaning: str
    takes: str
    make: Callable[[Any, str], Middleware]


class Run(Protocol):
    """Runs a script."""

    async def __call__(self, script: Script, request: Request, io: Stream) -> Response | None:
        """Return the script's answer. Raises HTTPError."""
        ...


class Runner(NamedTuple):
    """A gateway that runs scripts, each a file or a name that the location finds (ewe.sites.rules.Programs).

    needs_files: the scripts are files of this machine. executable: each must have its execute bit.
    """

    run: Run
    needs_files: bool = False
    executable: bool = False


class Feature:
    """The declaration of a feature. All parts but the name may be absent.

    settings: the names of the settings that concern this feature alone.
    provide: return an object that other features use, by the name of this one (Plan.provided).
    claims: yield the sources to protect; the second argument is the document root, without links.
    mounts: yield the handlers of a site, in the order in which they are asked.
    once: a site and its locations share the mounts, because they hold an application.
    wrap: return a handler inside a middleware; it is called for each handler that mounts() has yielded.
    files: yield the handlers for the files of a location's directory (`alias`).
    around: return the middleware around all that a location answers, from its settings.
    server: return the middleware around all sites.
    keys: keys of [[site]] and [[site.location]], each with its middleware.
    gateway: return the handler, or the Runner, for the key `gateway` of a location, of the kind that is named.
    answer: return the handler for a key of a location that names it by itself.
    make: return the handler for a path that the setting `mount` names.
    ends_processes: return whether a request may end its process, so that a supervisor has to start another.
    needs: yield why the server cannot start. notes: yield more lines for `ewe --check-config`.
    late: modules that a request may import; a server that gives up root imports them before.
    """

    def __init__(
        self,
        name: str,
        *,
        settings: Iterable[str] = (),
        provide: Callable[[Plan], Any] | None = None,
        claims: Callable[[Plan, str], Iterable[Claim]] | None = None,
        mounts: Callable[[Plan], Iterable[Mount]] | None = None,
        once: bool = False,
        wrap: Callable[[Plan, Config, Handler], Handler] | None = None,
        files: Callable[[LocationPlan], Iterable[Mount]] | None = None,
        around: Callable[[Plan, Config], Middleware] | None = None,
        server: Callable[[HasProxies], Middleware] | None = None,
        keys: Mapping[str, Key] | None = None,
        gateway: Callable[[LocationPlan, str, tuple[str, ...]], Handler | Runner] | None = None,
        answer: Callable[[LocationPlan], Handler] | None = None,
        make: Callable[[Config, str], Handler] | None = None,
        ends_processes: Callable[[Config], bool] | None = None,
        needs: Callable[[Config], Iterable[str]] | None = None,
        notes: Callable[[Config], Iterable[str]] | None = None,
        late: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.settings = tuple(settings)
        self.provide, self.claims, self.mounts, self.once, self.wrap = provide, claims, mounts, once, wrap
        self.files, self.around, self.server = files, around, server
        self.keys = keys or {}
        self.gateway, self.answer, self.make = gateway, answer, make
        self.ends_processes, self.needs, self.notes = ends_processes, needs, notes
        self.late = tuple(late)


class UnknownFeature(ValueError):
    """There is no such feature; the text is one line."""


def make(name: str, config: Config, path: str) -> Handler:
    """Return the handler that the setting `mount` names: module:Class, or the name that a package registered.

    A class is called with config and path. The name of a Feature stands for its `make`. path: where it is mounted.
    Raises UnknownFeature, and ValueError for settings that the feature cannot use.
    """
    try:
        found = load(name) if ":" in name else entry_points(GROUP)[name].load()
    except KeyError:
        known = ", ".join(entry_points(GROUP)) or "none"
        raise UnknownFeature(
            f"feature {name!r} is unknown; registered by packages: {known}; a class of your own is {name}:CLASS"
            " (mount)"
        ) from None
    except Exception as reason:  # of a module that may be anybody's
        raise UnknownFeature(f"feature {name!r} cannot be loaded: {in_words(reason)} (mount)") from None
    if isinstance(found, Feature):
        if found.make is None:
            raise UnknownFeature(f"feature {name!r} has no make=, which makes the handler for a path (mount)")
        found = found.make
    elif not (isinstance(found, type) and callable(getattr(found, "respond", None))):
        raise UnknownFeature(f"feature {name!r} is not a class with a method respond() (mount)")
    try:
        made: Handler = found(config, path)
    except ValueError:  # what the feature itself says of the settings
        raise
    except Exception as reason:
        raise UnknownFeature(
            f"feature {name!r} cannot be made from (config, path): {in_words(reason)} (mount)"
        ) from None
    if not callable(getattr(made, "respond", None)):
        raise UnknownFeature(
            f"feature {name!r} has made an object without respond(), of type {type(made).__name__} (mount)"
        )
    return made
