"""The handlers of one [[site.location]], built from its keys.

LocationBuilder looks at the keys of the location in this order:

    redirect, status, rewrite    one rule of rules.py answers; the location has no files
    a key of ANSWERS             the handler of the feature that has declared this key answers
    try                          a rule that chooses a path, before the handlers below answer
    gateway                      a program or an upstream: for every request, or with `programs` for these files
    alias                        the files of another directory
    root, or none of these       the features and the files of a document root (FeatureChain)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ewe.config.feature_table import ANSWERS, FILTERS, GATEWAYS, GUARDS, feature
from ewe.config.messages import ConfigError, quoted
from ewe.config.setting import SourcedValue
from ewe.config.settings import KEYS
from ewe.config.site_tables import parse_gateway
from ewe.features.base import First
from ewe.features.declaration import Runner
from ewe.features.files import static_files
from ewe.features.plan import Plan
from ewe.gateway.protected_sources import ProtectedSources, with_languages
from ewe.gateway.shared_protection import ProtectedPattern, SharedProtection
from ewe.sites.match import Match
from ewe.sites.routes import FeatureChain
from ewe.sites.rules import Alias, FixedStatus, Programs, Redirect, Rewrite, Try, true_path
from ewe.sites.templates import Template, URLTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.base import Handler
    from ewe.features.static import Static
    from ewe.sites.routes import SiteRoutes

# Settings of a location that change only the variables of programs
OF_VARIABLES = frozenset({"env", "pass_authorization"})


class SiteParts(Protocol):
    """The parts of a SiteBuilder (ewe.sites.build) that a location uses."""

    config: Config
    tables: Sequence[LocationTable]
    plan: Plan
    routes: SiteRoutes
    feature_chain: FeatureChain

    def feature_chain_of(self, plan: Plan) -> FeatureChain: ...

    def with_variables(self, handler: Handler, config: Config) -> Handler: ...


def settings_of_middlewares() -> set[str]:
    """Return the names of the settings of all features that make a middleware of a location from its settings."""
    modules = {each.module for each in (*GUARDS, *FILTERS) if each.setting}
    return {setting.name for module in modules for setting in feature(module).settings}


class AliasFiles(NamedTuple):
    """The files that `alias` names. directory: without symbolic links. file: the only file; "": there are several.

    template: makes the path of a file below the directory; None: the request's path without the prefix is used.
    """

    directory: str
    template: Template | None = None
    file: str = ""


class LocationBuilder:
    """Makes the handlers of one location (ewe.features.plan.LocationPlan). Raises ConfigError, ValueError."""

    def __init__(self, site: SiteParts, table: LocationTable, config: Config, *, is_guarded: bool) -> None:
        """config: includes the settings of the location. is_guarded: the location asks for a log-in."""
        self.site, self.table = site, table
        self.match = Match(table)  # the paths that the location covers
        self.plan = site.plan
        self.prefix = self.match.prefix
        self.values = table.values
        self.is_guarded = is_guarded
        if "index" in self.values:
            index = SourcedValue("defaultindex", self.values["index"], table.label_of("index"), table.origin)
            config = config.with_values([index])
        self.config = config
        self.file = ""
        self.template: Template | None = None
        self.has_alias = "alias" in self.values
        self.location_plan = self.plan  # the site's plan; make_plan() may replace it
        if self.values.keys().isdisjoint(("redirect", "status", "rewrite")):
            if self.has_alias:
                alias = self.read_alias()
                self.file, self.template, self.static = alias.file, alias.template, self.static_of(alias)
            else:
                self.location_plan = self.make_plan()
                self.static = self.location_plan.static

    @property
    def has_template(self) -> bool:
        """Whether the path of `alias` has variables, or names one file."""
        return self.template is not None

    def label_of(self, key: str) -> str:
        """Return the beginning of error messages about a key."""
        return self.table.label_of(key)

    def covers(self, path: str) -> bool:
        """Return whether this location is the one that answers for a path."""
        found = self.site.routes.find(path).match
        return found is not None and found.table is self.table

    def settings_of_locations(self) -> Iterator[tuple[Config, tuple[str, ...]]]:
        """Yield (settings, index files) of each location of the site, this one included."""
        for table in self.site.tables:
            yield self.site.config.with_values(table.own_settings), table.values.get("index", ())

    def handler(self) -> Handler:
        """Return the handler of the location."""
        values, pattern, match = self.values, self.match.pattern, self.match
        if "redirect" in values:
            template = URLTemplate(values["redirect"], self.label_of("redirect"), pattern)
            return Redirect(match, template, values.get("status", 302))
        if "status" in values:
            return FixedStatus(values["status"])
        if "rewrite" in values:
            return Rewrite(match, Template(values["rewrite"], self.label_of("rewrite"), pattern))
        for key, declared in ANSWERS.items():
            if key in values:
                return First([self.plan.noted(feature(declared.module).answer(self))])
        handlers: list[Handler] = [self.try_handler(values["try"])] if "try" in values else []
        handlers += [self.site.with_variables(each, self.config) for each in self.program_handlers()]
        return (
            handlers[0] if len(handlers) == 1 and isinstance(handlers[0], FeatureChain) else First(handlers)
        )

    def program_handlers(self) -> Iterator[Handler]:
        """Yield the gateway, the programs among the files, and the files."""
        values = self.values
        gateway = values.get("gateway", ("cgi",) if "programs" in values else ())
        if gateway:
            try:
                yield self.in_middlewares(self.gateway_handler(gateway))
            except ConfigError:
                raise
            except ValueError as reason:  # of an address or an application
                raise ConfigError(f"{self.label_of('gateway')} {reason}") from None
            if "programs" not in values:
                return  # the gateway answers every request
        if self.has_alias:
            yield from self.handlers_by_extension()
            yield Alias(self.match, self.static, self.template, f"alias = {values['alias']!r}")
        else:
            plan = self.location_plan
            yield self.site.feature_chain if plan is self.plan else self.site.feature_chain_of(plan)

    def in_middlewares(self, handler: Handler) -> Handler:
        """Wrap a handler in the middlewares around each feature, with the location's settings."""
        return self.location_plan.wrapped(handler, self.config)

    # Files

    def make_plan(self) -> Plan:
        """Return the plan of a location without `alias`: a new one if the location has its own settings."""
        config = self.config
        if "root" in self.values:
            path = self.directory("root")
            root = SourcedValue("documentroot", path, self.table.label_of("root"), self.table.origin)
            config = config.with_values([root])
        names = {KEYS[each.key].name for each in self.table.own_settings} - OF_VARIABLES
        if names:
            # A middleware stands around the handlers of a plan, so its settings need no separate plan.
            names -= settings_of_middlewares()
        if names or not self.values.keys().isdisjoint(("root", "index")):
            return Plan(config, self.plan.server, self.plan)
        return self.plan

    def directory(self, key: str) -> str:
        """Return the real path of the directory that a key names. Raises ConfigError if it does not exist."""
        text, label = self.values[key], self.table.label_of(key)
        path, is_directory = self.existing_path(text, label)
        if not is_directory:
            raise ConfigError(f"{label} {quoted(text)} is not a directory")
        return path

    def read_alias(self) -> AliasFiles:
        """Return the files that the key `alias` names. Raises ConfigError."""
        text, label = self.values["alias"], self.table.label_of("alias")
        template = Template(text, label, self.match.pattern)
        before, _ = template.parts[0]  # the text before the first variable, in which "$$" has become "$"
        if template.constant:
            return self.read_constant_alias(before, text, label)
        # The directory ends at the last slash before the first variable: /srv/data of /srv/data/a$1.txt
        above, slash, _ = before.rpartition("/")
        directory, _ = self.existing_path((above or "/") if slash else ".", label)
        below = text.removeprefix(above.replace("$", "$$"))
        return AliasFiles(directory, Template(below, label, self.match.pattern))

    def static_of(self, alias: AliasFiles) -> Static:
        """Return the handler for the files of `alias`."""
        # If the site runs files with an extension as programs, they are not sent here either: page.PHP, or a
        # symbolic link to such a file.
        assert self.plan.server.protected_on_all_sites is not None
        protected = SharedProtection.of(
            ProtectedSources(alias.directory, self.plan.static.protected.extensions),
            self.plan.server.protected_on_all_sites,
        )
        prefix = "" if alias.template is not None else self.prefix
        static = static_files(self.config, alias.directory, prefix, protected)
        static.has_urls = alias.template is None
        return static

    def existing_path(self, path: str, label: str) -> tuple[str, bool]:
        """Return a path without symbolic links, and whether it is a directory.

        label: the beginning of an error message. Raises ConfigError if the path does not exist.
        """
        try:
            return true_path(path)
        except OSError as reason:
            raise ConfigError(f"{label} {quoted(path)}: {reason.strerror}") from None

    def read_constant_alias(self, path: str, text: str, label: str) -> AliasFiles:
        """Return the files of an `alias` without variables: a directory, or one file. Raises ConfigError.

        path: the value of the key, in which "$$" has become "$". text: the value. label: the beginning of messages.
        """
        path, is_directory = self.existing_path(path, label)
        if is_directory:
            if self.match.kind != "prefix":
                raise ConfigError(
                    f"{label} {quoted(text)} is a directory, and {self.table} does not say which of its files: "
                    "write prefix, or a group such as $1"
                )
            return AliasFiles(path)
        if "gateway" not in self.values and os.access(path, os.X_OK):
            raise ConfigError(
                f'{label} {quoted(text)} is a program: write gateway = "cgi" too, or its source is sent'
            )
        directory, name = os.path.split(path)
        return AliasFiles(directory, Template("/" + name.replace("$", "$$"), label, None), path)

    def static_for(self, path: str) -> Static:
        """Return the files in which `try` looks for a path: of `alias` below the location, else of the site."""
        if self.has_alias and self.template is None and self.match.covers(path):
            return self.static
        return self.location_plan.static

    def try_handler(self, paths: tuple[str | int, ...]) -> Try:
        """Return the step of the key `try`. paths: the last may be a status instead. Raises ConfigError."""
        label = self.table.label_of("try")
        templates = [Template(each, label, self.match.pattern) for each in paths if isinstance(each, str)]
        status = paths[-1] if isinstance(paths[-1], int) else 0
        if not templates:
            raise ConfigError(f"{label} {status}: write status = {status}")
        return Try(self.match, templates, status, self.static_for)

    # Programs

    def handlers_by_extension(self) -> Iterator[Handler]:
        """Yield the handlers that run files with certain extensions below `alias`. Raises ValueError.

        Without a directory (`alias` with a variable, or of one file) there are none.
        """
        if self.template is not None:
            return
        for declared in self.plan.features:
            for mount in declared.files(self) if declared.files is not None else ():
                wrap = self.plan.noted if mount.bare else self.in_middlewares
                yield wrap(mount.handler)

    def gateway_handler(self, gateway: tuple[str, ...]) -> Handler:
        """Return the handler of a gateway; protect its programs' sources. Raises ConfigError, ValueError."""
        gateways = [parse_gateway(each) for each in gateway]
        kind = gateways[0].kind
        made = feature(GATEWAYS[kind].module).gateway(self, kind, tuple(each.target for each in gateways))
        if not isinstance(made, Runner):
            handler: Handler = made
            return handler
        extensions: tuple[str, ...] = self.values.get("programs", ())
        needs_files = bool(
            extensions
            or self.has_alias
            or "root" in self.values
            or self.match.kind != "prefix"
            or made.needs_files
        )
        if self.template is not None and not self.file:
            raise ConfigError(
                f"{self.label_of('alias')} {quoted(self.values['alias'])} has variables: programs need a prefix"
            )
        server, root = self.plan.server, self.plan.static.root
        if needs_files:
            self.protect(extensions)
        elif self.prefix:  # the upstream's sources may be there
            server.protect(ProtectedSources(root, directories=[root + self.prefix]))
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
            needs_file=needs_files,
            executable=made.executable,
        )

    def protect(self, extensions: tuple[str, ...]) -> None:
        """Protect the sources of this location's programs: no site then sends them as files.

        extensions: the files with one of them are programs; (): all files of the location are.
        """
        root = self.static.root
        extensions = tuple(with_languages(extensions, self.config.languages))
        self.plan.server.protect(self.sources_below(root, extensions))

    def sources_below(self, root: str, extensions: tuple[str, ...]) -> ProtectedSources | ProtectedPattern:
        """Return the sources of this location's programs. root: the document root. extensions: as for protect()."""
        if self.file:  # `alias` names one file
            return ProtectedSources(root, directories=[self.file])
        if self.has_alias:
            return ProtectedSources(root, extensions, directories=() if extensions else [root])
        if self.match.pattern is not None:  # the files whose path matches may be anywhere below the root
            if extensions:
                return ProtectedSources(root, extensions)
            return ProtectedPattern(root, self.match.pattern.pattern)
        below = os.path.realpath(root + self.match.match_value)
        if not extensions and self.match.kind == "prefix" and below == root:
            # Every file below the root is a program. The empty pattern matches all of them, but no directory.
            return ProtectedPattern(root, "")
        return ProtectedSources(below, extensions, directories=() if extensions else [below])
