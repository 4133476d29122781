"""The plan of a site: its features share its settings, its files and each other while the site is made.

A Plan belongs to one document root: that of the server, of a [[site]], or of a location with other settings. A
LocationPlan belongs to one [[site.location]], as its features see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ewe.config.feature_table import features
from ewe.features.base import Claim, Handler, Mount
from ewe.features.files import static_files
from ewe.gateway.claims import Claims, is_in, with_languages
from ewe.gateway.true_names import real_path
from ewe.http.limits import Limits
from ewe.registry import directories_of

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.static import Static
    from ewe.gateway.proxies import TrustedProxies
    from ewe.gateway.shared_claims import PatternClaims


class Starts(Protocol):
    """An application that is imported and started before the first request.

    name: module:app.
    """

    name: str

    @property
    def started(self) -> Any:
        """The application to start before the first connection; None if there is nothing to start."""

    def load(self) -> None:
        """Import the application. Raises ValueError, in one line."""


class HasProxies(Protocol):
    """All sites of a server, as a middleware around them sees them (ewe.site.Site)."""

    config: Config
    proxies: TrustedProxies | None


class Server:
    """A server while its sites are made: they share it.

    limits: of the heads of requests. claims: those of all sites; None if there is one site without tables.
    applications: those of all sites. many_calls, many_processes: several threads of a process, or several
    processes, may call an application at once. imports: import applications now; if not, each worker imports them.
    checks: middlewares around each site; a feature of one site adds a check that all sites need then.
    """

    def __init__(
        self,
        config: Config,
        claims: list[Claims | PatternClaims] | None = None,
        *,
        many_calls: bool = False,
        many_processes: bool = False,
        imports: bool = True,
    ) -> None:
        self.limits = Limits(
            config.max_target, config.max_head, config.max_field, config.max_fields, config.max_body
        )
        self.claims = claims
        self.applications: list[Starts] = []
        self.checks: list[Callable[[Any], Handler]] = []
        self.many_calls, self.many_processes, self.imports = many_calls, many_processes, imports

    def start(self, application: Starts) -> None:
        """Have an application imported before the first request. Raises ValueError if it cannot be imported now."""
        self.applications.append(application)
        if self.imports:
            application.load()

    def check(self, made: Callable[[Any], Handler]) -> None:
        """Put a middleware around each site, once."""
        if made not in self.checks:
            self.checks.append(made)

    def checked(self, handler: Handler) -> Handler:
        """Return a site's handler inside the checks that features of any site want around each of them."""
        for check in self.checks:
            handler = check(handler)
        return handler

    def claim(self, claims: Claims | PatternClaims) -> None:
        """Protect the sources of one location on all sites."""
        assert self.claims is not None
        self.claims.append(claims)


class Plan:
    """The features of one document root. parent: the plan of the site, if this one is a location's."""

    def __init__(self, config: Config, server: Server, parent: Plan | None = None) -> None:
        """Raises ValueError for settings that a feature cannot use, in one line."""
        self.config = config
        self.server = server
        self.limits = server.limits
        self.parent = parent
        self.shared: dict[object, Any] = {}
        self.features = list(features(config))
        self.objects = {
            feature.name: feature.provide(self) for feature in self.features if feature.provide is not None
        }
        self.claims = self.claimed()
        self.static = static_files(config, claims=self.claims)
        self.own: dict[str, list[Mount]] = {}
        self.mounts = list(self.mounted())

    def provided(self, name: str) -> Any:
        """Return the object that a feature provides; None if its settings do not switch it on."""
        return self.objects.get(name)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what `make` has returned for an equal key before."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def wrapped(self, handler: Handler, config: Config | None = None) -> Handler:
        """Return a handler inside the middlewares that stand around each feature.

        config: of a location that has other settings than this plan.
        """
        for feature in self.features if config is None else features(config):
            if feature.wrap is not None:
                handler = feature.wrap(self, config or self.config, handler)
        return handler

    def mounted(self) -> Iterator[Mount]:
        """Yield the handlers in the order in which they are asked, each in its middlewares."""
        last: list[Mount] = []
        for feature in self.features:
            if feature.mounts is None:
                continue
            if feature.once and self.parent is not None:
                found = self.parent.own.get(feature.name, [])
            else:
                found = list(feature.mounts(self))
            self.own[feature.name] = found
            for mount in found:
                made = mount if mount.bare else mount._replace(handler=self.wrapped(mount.handler))
                if mount.last:
                    last.append(made)
                else:
                    yield made
        yield from last

    def claimed(self) -> Claims:
        """Return which files of the document root are sources, and therefore never sent."""
        config = self.config
        root = real_path(config.documentroot)
        claims = [
            claim
            for feature in self.features
            if feature.claims is not None
            for claim in feature.claims(self, root)
        ]
        directories = [each.directory for each in claims if each.directory]
        # `ewe .` may serve the directory that has its settings. No client may read the settings or a private key.
        directories += [
            os.path.abspath(file)
            for file in (config.file, config.tls_key or config.tls_cert)
            if file and self.shows(file, root)
        ]
        found = Claims(
            root,
            with_languages([each.extension for each in claims if each.extension], config.languages),
            directories,
            next((each.executables for each in claims if each.executables), ""),
            [each.sources for each in claims if each.sources],
        )
        if self.server.claims is None:
            return found
        from ewe.gateway.shared_claims import SharedClaims

        return SharedClaims.of(found, self.server.claims)

    def shows(self, file: str, root: str) -> bool:
        """Return whether a file that is no document could be sent from a document root."""
        return self.config.symlinks == "follow" or is_in(os.path.realpath(file), root)


def claims_of_applications(names: Iterable[str]) -> Iterator[Claim]:
    """Yield the directories of the sources of applications in Python: module:name."""
    for name in names:
        for directory in directories_of(name):
            yield Claim(sources=directory)


class LocationPlan(Protocol):
    """A location, as the feature sees it that answers for it (ewe.sites.locations).

    config: with the settings of the location. plan: of the site. table: as it stands in the settings. prefix: of
    the location, without a slash at its end. static: the files of the location. file: the one program that `alias`
    names. has_alias: the location names a directory. has_template: the path of `alias` has variables, or
    names one file.
    """

    config: Config
    plan: Plan
    table: LocationTable
    prefix: str
    static: Static
    file: str
    has_alias: bool
    has_template: bool

    def at(self, key: str) -> str:
        """Return how an error message about a key begins."""

    def claim(self, extensions: tuple[str, ...]) -> None:
        """Protect the programs of this location on all sites: those with an extension, or all of them."""

    def covers(self, path: str) -> bool:
        """Return whether the site asks this location for a path."""

    @property
    def is_guarded(self) -> bool:
        """Whether a log-in is asked for before the location answers."""

    def neighbours(self) -> Iterable[tuple[Config, tuple[str, ...]]]:
        """Yield the settings of each location of the site, with its index files."""
