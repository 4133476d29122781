"""The handlers of one [[site.location]], made of its keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ewe.config.feature_table import ANSWERS, GATEWAYS, feature
from ewe.config.messages import ConfigError, quoted
from ewe.config.settings import KEYS
from ewe.config.site_tables import parse_gateway
from ewe.features.base import First
from ewe.features.declaration import Runner
from ewe.features.files import static_files
from ewe.features.plan import Plan
from ewe.gateway.claims import Claims, with_languages
from ewe.gateway.shared_claims import PatternClaims, SharedClaims
from ewe.sites.match import Match
from ewe.sites.routes import Offer
from ewe.sites.rules import Alias, Programs, Redirect, Rewrite, Status, Try, true_path
from ewe.sites.templates import Template

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.base import Handler
    from ewe.features.static import Static
    from ewe.sites.routes import SiteRoutes

# Settings of a location that need no Plan: they change variables of programs, or the middlewares around them
NEED_NO_PLAN = frozenset({
    "env", "pass_authorization", "compress", "compress_types", "compress_min_size", "compress_codings",
})  # fmt: skip


class SiteParts(Protocol):
    """The site that a location is made for, as the location sees it (ewe.sites.build.SiteBuilder)."""

    config: Config
    tables: Sequence[LocationTable]
    plan: Plan
    routes: SiteRoutes
    offer: Offer

    def offer_of(self, plan: Plan) -> Offer:
        """Return the features of a document root."""

    def with_variables(self, handler: Handler, config: Config) -> Handler:
        """Return a handler whose programs get the variables of a location's settings."""


def location_of(
    site: SiteParts, table: LocationTable, config: Config, *, is_guarded: bool
) -> tuple[Match, Handler]:
    """Return the paths that a location covers, and its handler. Raises ConfigError, ValueError."""
    match = Match(table)
    return match, LocationBuilder(site, match, table, config, is_guarded).answers()


class LocationBuilder:
    """Makes the handlers of one location (ewe.features.plan.LocationPlan). Raises ConfigError, ValueError."""

    def __init__(
        self, site: SiteParts, match: Match, table: LocationTable, config: Config, is_guarded: bool
    ) -> None:
        """config: with the settings of the location. is_guarded: it asks for a log-in."""
        self.site, self.match, self.table = site, match, table
        self.plan = site.plan
        self.prefix = match.prefix
        self.values = table.values
        self.is_guarded = is_guarded
        if "index" in self.values:
            config = config.taking([("defaultindex", self.values["index"], table.at("index"), table.place)])
        self.config = config
        self.file = ""
        self.template: Template | None = None
        self.has_alias = "alias" in self.values
        self.own = self.plan  # or that of the location, if it has other settings
        if self.values.keys().isdisjoint(("redirect", "status", "rewrite")):
            self.static = self.aliased() if self.has_alias else self.static_of_root()

    @property
    def has_template(self) -> bool:
        """Whether the path of `alias` has variables, or names one file."""
        return self.template is not None

    def at(self, key: str) -> str:
        """Return how an error message about a key begins."""
        return self.table.at(key)

    def covers(self, path: str) -> bool:
        """Return whether the site asks this location for a path."""
        found = self.site.routes.find(path).match
        return found is not None and found.table is self.table

    def neighbours(self) -> Iterator[tuple[Config, tuple[str, ...]]]:
        """Yield the settings of each location of the site, with its index files."""
        for table in self.site.tables:
            yield self.site.config.taking(table.given), table.values.get("index", ())

    def answers(self) -> Handler:
        """Return the handler of the location."""
        values, pattern, match = self.values, self.match.pattern, self.match
        if "redirect" in values:
            template = Template(values["redirect"], self.at("redirect"), pattern)
            return Redirect(match, template, values.get("status", 302))
        if "status" in values:
            return Status(values["status"])
        if "rewrite" in values:
            return Rewrite(match, Template(values["rewrite"], self.at("rewrite"), pattern))
        for key, module in ANSWERS.items():
            if key in values:
                answer: Handler = feature(module).answer(self)
                return First([answer])
        handlers: list[Handler] = [self.tries(values["try"])] if "try" in values else []
        handlers += [self.site.with_variables(each, self.config) for each in self.programs()]
        return handlers[0] if len(handlers) == 1 and isinstance(handlers[0], Offer) else First(handlers)

    def programs(self) -> Iterator[Handler]:
        """Yield the gateway, the programs among the files, and the files."""
        values = self.values
        gateway = values.get("gateway", ("cgi",) if "programs" in values else ())
        if gateway:
            try:
                yield self.own_cache(self.program(gateway))
            except ConfigError:
                raise
            except ValueError as reason:  # of an address or an application
                raise ConfigError(f"{self.at('gateway')} {reason}") from None
            if "programs" not in values:
                return  # the gateway answers everything
        if self.has_alias:
            yield from self.of_files()
            yield Alias(self.match, self.static, self.template, f"alias = {values['alias']!r}")
        else:
            yield self.site.offer if self.own is self.plan else self.site.offer_of(self.own)

    def own_cache(self, handler: Handler) -> Handler:
        """Return a handler inside the middlewares that stand around each feature, with the location's settings."""
        return self.own.wrapped(handler, self.config)

    # Files

    def static_of_root(self) -> Static:
        """Return the files of a location without alias: the site's, or those of a plan with other settings."""
        config = self.config
        if "root" in self.values:
            root = self.directory("root")
            config = config.taking([("documentroot", root, self.table.at("root"), self.table.place)])
        own = {KEYS[key].name for key, *_ in self.table.given} - NEED_NO_PLAN
        if own or not self.values.keys().isdisjoint(("root", "index")):
            self.own = Plan(config, self.plan.server, self.plan)
        return self.own.static

    def directory(self, key: str) -> str:
        """Return the directory that a key names, without links. Raises ConfigError if there is none."""
        text = self.values[key]
        try:
            path, is_directory = true_path(text)
        except OSError as reason:
            raise ConfigError(f"{self.table.at(key)} {quoted(text)}: {reason.strerror}") from None
        if not is_directory:
            raise ConfigError(f"{self.table.at(key)} {quoted(text)} is not a directory")
        return path

    def aliased(self) -> Static:
        """Return the files of an alias. Sets file and template. Raises ConfigError."""
        text, label = self.values["alias"], self.table.at("alias")
        template = Template(text, label, self.match.pattern)
        directory = text
        if not template.constant:
            directory = template.parts[0][0].rpartition("/")[0] or "/"
        try:
            path, is_directory = true_path(directory)
        except OSError as reason:
            raise ConfigError(f"{label} {quoted(directory)}: {reason.strerror}") from None
        if not template.constant:
            rest = text[len(directory.rstrip("/")) :]
            self.template = Template(rest, label, self.match.pattern)
        elif not is_directory:
            if "gateway" not in self.values and os.access(path, os.X_OK):
                raise ConfigError(
                    f'{label} {quoted(text)} is a program: write gateway = "cgi" too, or its source is sent'
                )
            self.file = path
            path, name = os.path.split(path)
            self.template = Template("/" + name.replace("$", "$$"), label, None)
        elif self.match.kind != "prefix":
            raise ConfigError(
                f"{label} {quoted(text)} is a directory, and {self.table} does not say which of its files: "
                "write prefix, or a group such as $1"
            )
        prefix = "" if self.template is not None else self.prefix
        # An extension that the site has programs for is no file here either: page.PHP, or a link to a page.
        assert self.plan.server.claims is not None
        claims = SharedClaims.of(Claims(path, self.plan.static.claims.extensions), self.plan.server.claims)
        return static_files(self.config, path, prefix, claims)

    def static_for(self, path: str) -> Static:
        """Return the files in which `try` looks a path up: the alias's below the location, else the site's."""
        if self.has_alias and self.template is None and self.match.covers(path):
            return self.static
        return self.own.static

    def tries(self, given: tuple[str | int, ...]) -> Try:
        """Return the step of the key `try`."""
        label = self.table.at("try")
        templates = [Template(each, label, self.match.pattern) for each in given if isinstance(each, str)]
        status = given[-1] if isinstance(given[-1], int) else 0
        if not templates:
            raise ConfigError(f"{label} {status}: write status = {status}")
        return Try(self.match, templates, status, self.static_for)

    # Programs

    def of_files(self) -> Iterator[Handler]:
        """Yield the site's programs for files with an extension, for the files of an alias. Raises ValueError."""
        if self.template is not None:
            return
        for each in self.plan.features:
            for mount in each.files(self) if each.files is not None else ():
                yield mount.handler if mount.bare else self.own_cache(mount.handler)

    def program(self, gateway: tuple[str, ...]) -> Handler:
        """Return the handler of a gateway, and claim the files of its programs. Raises ConfigError, ValueError."""
        kind = parse_gateway(gateway[0])[0]
        made = feature(GATEWAYS[kind]).gateway(self, kind, tuple(parse_gateway(each)[1] for each in gateway))
        if not isinstance(made, Runner):
            handler: Handler = made
            return handler
        extensions: tuple[str, ...] = self.values.get("programs", ())
        files = bool(
            extensions
            or self.has_alias
            or "root" in self.values
            or self.match.kind != "prefix"
            or made.needs_files
        )
        if self.template is not None and not self.file:
            raise ConfigError(
                f"{self.at('alias')} {quoted(self.values['alias'])} has variables: programs need a prefix"
            )
        server, root = self.plan.server, self.plan.static.root
        if files:
            self.claim(extensions)
        elif self.prefix:  # the responder's sources may lie there
            server.claim(Claims(root, (), [root + self.prefix]))
        why = f"gateway = {', '.join(gateway)}"
        if extensions:
            why = f"programs = {', '.join(extensions)}, {why}"
        return Programs(
            self.static,
            self.match,
            made.run,
            why,
            extensions=extensions,
            file=self.file,
            needs_file=files,
            executable=made.executable,
        )

    def claim(self, extensions: tuple[str, ...]) -> None:
        """Protect the programs of this location on all sites: those with an extension, or all of them."""
        root, claim = self.static.root, self.plan.server.claim
        extensions = tuple(with_languages(extensions, self.config.languages))
        if self.file:
            claim(Claims(root, (), [self.file]))
        elif self.match.pattern is not None and not self.has_alias:
            if extensions:
                claim(Claims(root, extensions))
            else:
                claim(PatternClaims(root, self.match.pattern.pattern))
        else:
            below = root if self.has_alias else os.path.realpath(root + self.match.what)
            if not extensions and self.match.kind == "prefix" and below == root and not self.has_alias:
                claim(PatternClaims(root, ""))
            else:
                claim(Claims(below, extensions, () if extensions else [below]))
