"""What a location's table leads to: its leads, in their order, and the claims of its programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, quoted
from ewe.config.setting_types import parse_origin
from ewe.config.settings import KEYS
from ewe.config.site_tables import parse_gateway
from ewe.features.files import static_files
from ewe.gateway.claims import Claims, with_languages
from ewe.registry import directories_of
from ewe.sites.claims import PatternClaims, SharedClaims
from ewe.sites.leads import Alias, Programs, Redirect, Rewrite, Status, Try, true_path
from ewe.sites.part import Part
from ewe.sites.templates import Template

if TYPE_CHECKING:
    import re

    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.base import Feature
    from ewe.features.static import Static
    from ewe.gateway.scripts import Script
    from ewe.http.messages import Request, Response
    from ewe.sites.leads import Lead, Runner
    from ewe.sites.location import Location
    from ewe.streams.base import Stream

    Found = re.Match[str] | None

# Settings of a location that need no Part: they change what programs are told, or what finishers do
NEED_NO_PART = frozenset({
    "env", "pass_authorization", "compress", "compress_types", "compress_min_size", "compress_codings",
})  # fmt: skip
CODECS = {
    "fastcgi": "ewe.gateway.records:Requester",
    "scgi": "ewe.gateway.scgi:Requester",
    "uwsgi": "ewe.gateway.uwsgi:Requester",
}


class Asked:
    """A feature, or all features of a site, as a lead."""

    def __init__(self, feature: Feature, why: str) -> None:
        self.feature = feature
        self.why = why

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Response | None:
        return await self.feature.respond(request, io)


class Offered:
    """What a site offers without its locations, as a feature."""

    def __init__(self, part: Part) -> None:
        self.part = part

    async def respond(self, request: Request, io: Stream) -> Response | None:
        return await self.part.offer(request, io)


def leads_of(site: Part, location: Location, config: Config) -> list[Lead]:
    """Return the leads of a location, in the order in which they are asked. config: of the location.

    Raises ConfigError, and ValueError for what features say of their settings.
    """
    table = location.table
    if table is None:
        return [Asked(Offered(site), "the site's own features")]
    values = table.values
    pattern = location.pattern
    if "redirect" in values:
        template = Template(values["redirect"], table.at("redirect"), pattern)
        return [Redirect(template, values.get("status", 302))]
    if "status" in values:
        return [Status(values["status"])]
    if "rewrite" in values:
        return [Rewrite(Template(values["rewrite"], table.at("rewrite"), pattern))]
    return [*Builder(site, location, table, config).leads()]


class Builder:
    """Makes the leads of one location that answers itself. Raises ConfigError, ValueError."""

    def __init__(self, site: Part, location: Location, table: LocationTable, config: Config) -> None:
        self.site, self.location, self.table = site, location, table
        self.values = table.values
        if "index" in self.values:
            config = config.taking([("defaultindex", self.values["index"], table.at("index"), table.place)])
        self.config = config
        self.file = ""  # that an alias names
        self.template: Template | None = None
        self.part: Part = site
        self.alias = "alias" in self.values
        self.static = self.aliased() if self.alias else self.static_of_root()

    def leads(self) -> list[Lead]:
        """Return the leads."""
        found: list[Lead] = []
        values = self.values
        if "webdav" in values:
            return [self.webdav()]
        if "try" in values:
            found.append(self.tries(values["try"]))
        gateway = values.get("gateway", ("cgi",) if "programs" in values else ())
        if gateway:
            try:
                found.append(self.cached(self.program(*parse_gateway(gateway[0]), gateway)))
            except ConfigError:
                raise
            except ValueError as reason:  # what a feature says of an address or an application
                raise ConfigError(f"{self.table.at('gateway')} {reason}") from None
            if "programs" not in values:
                return found  # the gateway answers everything
        if self.alias:
            found += self.of_site()
            found.append(Alias(self.static, self.template, f"alias = {values['alias']!r}"))
        else:
            why = f"root = {values['root']!r}" if "root" in values else "the site's own features"
            found.append(Asked(Offered(self.part), why))
        return found

    def cached(self, lead: Lead) -> Lead:
        """Return a lead to programs with the content cache, if the location has one."""
        cache = self.part.content_cache
        if self.config.content_cache != self.part.config.content_cache:
            cache = self.part.cache_of(self.config)
        if cache is None:
            return lead
        from ewe.features.content_cache import CachedLead

        return CachedLead(lead, cache)

    # Files

    def static_of_root(self) -> Static:
        """Return the files of a location without alias: the site's, or a part's with other settings."""
        config = self.config
        if "root" in self.values:
            root = self.directory("root")
            config = config.taking([("documentroot", root, self.table.at("root"), self.table.place)])
        own = {KEYS[key].name for key, *_ in self.table.given} - NEED_NO_PART
        if own or not self.values.keys().isdisjoint(("root", "index")):
            self.part = Part(config, self.site.together, self.site, **self.site.how)
        return self.part.static

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
        template = Template(text, label, self.location.pattern)
        directory = text
        if not template.constant:
            directory = template.parts[0][0].rpartition("/")[0] or "/"
        try:
            path, is_directory = true_path(directory)
        except OSError as reason:
            raise ConfigError(f"{label} {quoted(directory)}: {reason.strerror}") from None
        if not template.constant:
            rest = text[len(directory.rstrip("/")) :]
            self.template = Template(rest, label, self.location.pattern)
        elif not is_directory:
            if "gateway" not in self.values and os.access(path, os.X_OK):
                raise ConfigError(
                    f'{label} {quoted(text)} is a program: write gateway = "cgi" too, or its source is sent'
                )
            self.file = path
            path, name = os.path.split(path)
            self.template = Template("/" + name.replace("$", "$$"), label, None)
        elif self.location.kind != "prefix":
            raise ConfigError(
                f"{label} {quoted(text)} is a directory, and {self.table} does not say which of its files: "
                "write prefix, or a group such as $1"
            )
        prefix = "" if self.template is not None else self.location.prefix
        # An extension that the site has programs for is no file here either: page.PHP, or a link to a page.
        claims = SharedClaims.of(Claims(path, self.site.static.claims.extensions), self.site.together)
        return static_files(self.config, path, prefix, claims)

    def static_for(self, path: str) -> Static:
        """Return the files in which `try` looks a path up: the alias's below the location, else the site's."""
        if self.alias and self.template is None and self.location.covers(path):
            return self.static
        return self.part.static

    def tries(self, given: tuple[str | int, ...]) -> Try:
        """Return the step of the key `try`."""
        label = self.table.at("try")
        templates = [Template(each, label, self.location.pattern) for each in given if isinstance(each, str)]
        status = given[-1] if isinstance(given[-1], int) else 0
        if not templates:
            raise ConfigError(f"{label} {status}: write status = {status}")
        return Try(templates, status, self.static_for)

    def of_site(self) -> list[Lead]:
        """Return what the site has for files with an extension, for the files of an alias."""
        config, static, site = self.config, self.static, self.site
        found: list[Lead] = []
        if self.template is not None:
            return found
        if config.fastcgi or config.scgi or config.uwsgi:
            from ewe.features.fastcgi import features

            found += [
                self.cached(Asked(each, f"the site's responder for {each.where}"))
                for each in features(config, static, site.limits)
                if each.where[0] == "."
            ]
        if site.switch is not None:
            from ewe.features.pages import SitePages

            pages = SitePages(site.switch, static.root, config.defaultindex, static.prefix)
            found.append(Asked(pages, "X-Switch's pages"))
        return found

    def webdav(self) -> Lead:
        """Return the files of a location that clients may write."""
        from ewe.features.webdav.feature import WebDAV

        if self.template is not None:
            raise ConfigError(
                f"{self.table.at('alias')} {quoted(self.values['alias'])}: webdav needs a directory"
            )
        static, options = self.static, self.values["webdav"]
        tables = self.site.tables
        configs = [self.config, *(self.site.config.taking(each.given) for each in tables)]
        feature = WebDAV(
            self.config,
            static.root,
            static.prefix,
            static.claims,
            lambda path: self.site.location_of(path) is self.location,
            self.location.prefix,
            options,
            {language.lower() for config in configs for language in config.languages},
            {name for config in configs for name in config.defaultindex}.union(
                *(each.values.get("index", ()) for each in tables)
            ),
            "auth" in self.location.decides,
        )
        return Asked(feature, f"webdav, {'clients may write' if options['write'] else 'read only'}")

    # Programs

    def program(self, kind: str, address: str, gateway: tuple[str, ...]) -> Lead:
        """Return what runs the programs of a location, and claim their files."""
        why = f"gateway = {', '.join(gateway)}"
        config = self.config
        if kind in ("wsgi", "asgi"):
            return Asked(self.application(kind, address), why)
        if kind in ("http", "https"):
            return Asked(self.proxy(gateway), why)
        if kind == "libcgi":
            return Asked(self.libraries(), why)
        extensions: tuple[str, ...] = self.values.get("programs", ())
        files = bool(extensions or self.alias or "root" in self.values or self.location.kind != "prefix")
        files = files or kind in ("cgi", "xswitch")
        if self.template is not None and not self.file:
            raise ConfigError(
                f"{self.table.at('alias')} {quoted(self.values['alias'])} has variables: programs need a prefix"
            )
        if files:
            self.claim(extensions)
        elif self.location.prefix:  # what lies there may be the sources of what the responder runs
            directory = self.site.static.root + self.location.prefix
            self.site.together.append(Claims(self.site.static.root, (), [directory]))
        if extensions:
            why = f"programs = {', '.join(extensions)}, {why}"
        run: Runner
        if kind == "cgi":
            from ewe.features.cgi import CGI

            run = CGI(config, self.site.static, self.site.limits, self.site.switch).run
        elif kind == "xswitch":
            run = self.on_switch()
        else:
            run = self.responder(kind, [parse_gateway(each)[1] for each in gateway])
        return Programs(
            self.static,
            self.location.prefix,
            run,
            why,
            extensions=extensions,
            file=self.file,
            needs_file=files,
            executable=kind == "cgi",
        )

    def claim(self, extensions: tuple[str, ...]) -> None:
        """See that no site sends the programs of this location as files."""
        root, together = self.static.root, self.site.together
        extensions = tuple(with_languages(extensions, self.config.languages))
        if self.file:
            together.append(Claims(root, (), [self.file]))
        elif self.location.pattern is not None and not self.alias:
            if extensions:
                together.append(Claims(root, extensions))
            else:
                together.append(PatternClaims(root, self.location.pattern.pattern))
        else:
            below = root if self.alias else os.path.realpath(root + self.location.what)
            if not extensions and self.location.kind == "prefix" and below == root and not self.alias:
                together.append(PatternClaims(root, ""))
            else:
                together.append(Claims(below, extensions, () if extensions else [below]))

    def libraries(self) -> Feature:
        """Return what calls the libraries of the alias's directory. Raises ConfigError."""
        if not self.alias or self.template is not None or "programs" in self.values:
            raise ConfigError(
                f"{self.table.at('gateway')} libcgi needs a prefix and an alias, the directory of the libraries"
            )
        self.claim(())
        directory, prefix, root = self.static.root, self.location.prefix, self.site.static.root
        if self.config.libcgi_isolation == "process" and self.site.switch is not None:
            from ewe.features.libcgi_process import LibCGIProcess

            return LibCGIProcess(self.config, self.site.switch, root, directory, prefix)
        from ewe.features.libcgi import LibCGI

        return LibCGI(self.config, root, self.site.limits, directory, prefix)

    def on_switch(self) -> Runner:
        """Return what runs scripts on X-Switch. Raises ConfigError."""
        switch = self.site.switch
        if switch is None:
            raise ConfigError(
                f"{self.table.at('gateway')} xswitch needs an X-Switch: --xswitch, or the model -x"
            )
        root = self.static.root

        async def run(script: Script, request: Request, io: Stream) -> Response | None:
            answer: Response = await switch.run(script, request, io, root)
            return answer

        return run

    def responder(self, kind: str, addresses: list[str]) -> Runner:
        """Return what asks a responder: FastCGI, SCGI or uwsgi. Raises ValueError."""
        from ewe.features.fastcgi import connections_of
        from ewe.gateway.affinity import Affinity
        from ewe.gateway.responder import ask
        from ewe.registry import load

        config, limits, root = self.config, self.site.limits, self.site.static.root
        connections = connections_of(config, addresses, "gateway", load(CODECS[kind]))
        affinity = None
        if config.fastcgi_affinity is not None and len(connections.places) > 1:
            affinity = Affinity(config.fastcgi_affinity, self.location.what, connections.places)

        async def run(script: Script, request: Request, io: Stream) -> Response | None:
            return await ask(connections, request, io, script, root, config, limits, affinity)

        return run

    def proxy(self, urls: tuple[str, ...]) -> Feature:
        """Return what passes requests to another HTTP server. Raises ConfigError, ValueError."""
        from ewe.features.proxy import Proxy

        for url in urls:
            try:
                parse_origin(url)
            except ValueError:
                expected = "http://HOST:PORT or http://unix:PATH"
                raise ConfigError(f"{self.table.at('gateway')} {quoted(url)}: expected {expected}") from None
        self.site.limits.encoded_slashes = True
        return Proxy(self.location.prefix, urls, self.config, "gateway")

    def application(self, kind: str, name: str) -> Feature:
        """Return a WSGI or an ASGI application below the location's prefix. Raises ValueError."""
        prefix = self.location.prefix or "/"
        self.site.together.append(Claims("/", sources=directories_of(name)))
        if kind == "wsgi":
            return self.site.wsgi_application(self.config, prefix, name)
        return self.site.asgi_application(self.config, prefix, name)
