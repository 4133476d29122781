"""The plan of a site: while the site is built, its features share the settings, the files and their own objects.

A Plan belongs to one document root: that of the server, of a [[site]], or of a location with its own settings. A
LocationPlan is the view that features have of one [[site.location]].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ewe.config.feature_table import features
from ewe.features.base import Handler, Mount
from ewe.features.files import static_files
from ewe.gateway.protected_sources import ProtectedSources, is_in, with_languages
from ewe.gateway.true_names import real_path
from ewe.http.limits import RequestLimits

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.static import Static
    from ewe.gateway.proxies import TrustedProxies
    from ewe.gateway.shared_protection import ProtectedPattern


class StartableApplication(Protocol):
    """An application that is imported and started before the first request.

    name: module:app.
    """

    name: str

    @property
    def started(self) -> Any:
        """The application to start before the first connection; None if there is nothing to start."""

    def load(self) -> None:
        """Import the application. Raises ValueError with a text of one line."""


class HasProxies(Protocol):
    """The part of ewe.site.Site that a middleware around all sites uses."""

    config: Config
    proxies: TrustedProxies | None


class ServerPlan:
    """The objects that all sites of a server share while they are built.

    limits: the limits of requests. protected_on_all_sites: the protected sources of all sites; None for a server
    without tables. applications: the applications of all sites. multithread, multiprocess: several threads of
    a process, or several processes, may call an application at once (PEP 3333). imports: import applications now;
    otherwise each worker imports them. site_middlewares: the makers of middlewares around each site; a feature of
    one site may add one for all sites.
    """

    def __init__(
        self,
        config: Config,
        protected_on_all_sites: list[ProtectedSources | ProtectedPattern] | None = None,
        *,
        multithread: bool = False,
        multiprocess: bool = False,
        imports: bool = True,
    ) -> None:
        self.limits = RequestLimits(
            config.max_target, config.max_head, config.max_field, config.max_fields, config.max_body
        )
        self.protected_on_all_sites = protected_on_all_sites
        self.applications: list[StartableApplication] = []
        self.site_middlewares: list[Callable[[Any], Handler]] = []
        self.multithread, self.multiprocess, self.imports = multithread, multiprocess, imports

    def add_application(self, application: StartableApplication) -> None:
        """Add an application. Import it if the server does that now (`imports`). Raises ValueError if it fails."""
        self.applications.append(application)
        if self.imports:
            application.load()

    def add_site_middleware(self, make: Callable[[Any], Handler]) -> None:
        """Add the maker of a middleware around each site, unless it is there already."""
        if make not in self.site_middlewares:
            self.site_middlewares.append(make)

    def in_site_middlewares(self, handler: Handler) -> Handler:
        """Wrap the handler of a site in the middlewares around each site."""
        for make in self.site_middlewares:
            handler = make(handler)
        return handler

    def protect(self, sources: ProtectedSources | ProtectedPattern) -> None:
        """Protect the sources of one location, on all sites."""
        assert self.protected_on_all_sites is not None
        self.protected_on_all_sites.append(sources)


class Plan:
    """The features of one document root."""

    def __init__(self, config: Config, server: ServerPlan, parent: Plan | None = None) -> None:
        """parent: the site's plan, for the plan of a location; else None.

        Raises ValueError, with a text of one line, for settings that a feature cannot use.
        """
        self.config = config
        self.server = server
        self.limits = server.limits
        self.parent = parent
        # Returns the location of a path, once the routes of the site are there (ewe.sites.build).
        self.locate: Callable[[str], object] | None = None
        self.shared_objects: dict[object, Any] = {}  # by the keys of shared()
        self.features = list(features(config))
        self.objects = {
            feature.name: feature.provide(self) for feature in self.features if feature.provide is not None
        }
        self.protected = self.protected_sources()
        self.static = static_files(config, protected=self.protected)
        self.mounts_of: dict[str, list[Mount]] = {}  # by the name of the feature that has yielded them
        self.mounts = list(self.mounted())

    def provided(self, name: str) -> Any:
        """Return the object that a feature provides; None if the settings do not switch the feature on.

        name: of the feature; of a mounted one it is "module:NAME".
        """
        return self.objects.get(name)

    def location(self, path: str) -> object:
        """Return the location of the site that answers for a path. Raises HTTPError(414)."""
        top = self if self.parent is None else self.parent
        return top.locate(path) if top.locate is not None else None

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the object for a key, which all features of this plan share. `make` makes it at the first call."""
        if key not in self.shared_objects:
            self.shared_objects[key] = make()
        return self.shared_objects[key]

    def noted(self, handler: Handler) -> Handler:
        """Return a handler in the middleware that notes its feature, for the status and the trace."""
        for feature in self.features:
            if feature.answered_by is not None:
                handler = feature.answered_by(handler)
        return handler

    def wrapped(self, handler: Handler, config: Config | None = None) -> Handler:
        """Return a handler in the middlewares around each feature.

        config: the settings of a location; None: those of this plan.
        """
        handler = self.noted(handler)
        for feature in self.features if config is None else features(config):
            if feature.wrap is not None:
                handler = feature.wrap(self, config or self.config, handler)
        return handler

    def mounted(self) -> Iterator[Mount]:
        """Yield the handlers in the order in which they are called, each in its middlewares."""
        last: list[Mount] = []
        for feature in self.features:
            if feature.mounts is None:
                continue
            if feature.shares_mounts and self.parent is not None:
                found = self.parent.mounts_of.get(feature.name, [])
            else:
                found = list(feature.mounts(self))
            self.mounts_of[feature.name] = found
            for mount in found:
                made = mount if mount.bare else mount._replace(handler=self.wrapped(mount.handler))
                if mount.last:
                    last.append(made)
                else:
                    yield made
        yield from last

    def protected_sources(self) -> ProtectedSources:
        """Return the protected sources of the document root: what the features declare, the settings and the key.

        If the server has several sites, the result also asks those of all other sites, and they ask this one.
        """
        config = self.config
        root = real_path(config.documentroot)
        protected = [
            source
            for feature in self.features
            if feature.protected is not None
            for source in feature.protected(self, root)
        ]
        directories = [each.directory for each in protected if each.directory]
        # `ewe .` may serve the directory with its own settings. No client may read the settings or a private key.
        directories += [
            os.path.abspath(file)
            for file in (config.file, config.tls_key or config.tls_cert)
            if file and self.shows(file, root)
        ]
        found = ProtectedSources(
            root,
            with_languages([each.extension for each in protected if each.extension], config.languages),
            directories,
            next((each.executables for each in protected if each.executables), ""),
            [each.sources for each in protected if each.sources],
        )
        if self.server.protected_on_all_sites is None:  # this is the only site
            return found
        from ewe.gateway.shared_protection import SharedProtection

        return SharedProtection.of(found, self.server.protected_on_all_sites)

    def shows(self, file: str, root: str) -> bool:
        """Return whether a file, such as the settings file, could be sent from a document root."""
        return self.config.symlinks == "follow" or is_in(os.path.realpath(file), root)


class LocationPlan(Protocol):
    """The view that a feature has of a location for which it answers (ewe.sites.locations).

    config: includes the settings of the location. plan: the plan of the site. table: the location's table in the
    settings. prefix: the prefix of the location, without a slash at its end. static: the files of the location.
    file: the only program, if `alias` names one. has_alias: the location has the key `alias`. has_template: the
    path of `alias` has variables, or names one file.
    """

    config: Config
    plan: Plan
    table: LocationTable
    prefix: str
    static: Static
    file: str
    has_alias: bool
    has_template: bool

    def label_of(self, key: str) -> str:
        """Return the beginning of error messages about a key."""

    def protect(self, extensions: tuple[str, ...]) -> None:
        """Protect the programs of this location on all sites: files with an extension, or all files."""

    def covers(self, path: str) -> bool:
        """Return whether this location is the one that answers for a path."""

    @property
    def is_guarded(self) -> bool:
        """Whether the location asks for a log-in before it answers."""

    def settings_of_locations(self) -> Iterable[tuple[Config, tuple[str, ...]]]:
        """Yield (settings, index files) of each location of the site, this one included."""
