"""Virtual sites: which site a request is for, and the order in which it meets the parts of a location.

    Sites.respond     the site: by the name in Host and the server's address (ewe.http.virtual_hosts)
    VirtualSite       the location: the first in the file that covers the path; the last one covers every path
      1. deciders     methods, allow and deny, requests-per-second, auth: each may answer instead
      2. leads        status, redirect or rewrite; try; programs and gateway; alias or root; the site's features
      3. finishers    error-pages, headers, expires, cache-control, limit-rate

A rewrite, a hit of `try` under another path and a local redirect of a program begin again at the site's first
location, MAX_REDIRECTS times at most. Only the last location's finishers see the response, and every location's
deciders see the request. A step of a [[site]] counts for each of its locations that has no such step.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, cast

from ewe.config.messages import ConfigError
from ewe.config.setting_types import parse_address, parse_variable
from ewe.config.site_tables import DECIDERS, FINISHERS, SiteTable
from ewe.gateway.claims import Claims
from ewe.http.error_pages import error_page
from ewe.http.messages import Request, Response, with_exactly
from ewe.http.status import HTTPError
from ewe.http.virtual_hosts import Host, VirtualHosts, hears
from ewe.site import MAX_REDIRECTS, Site, moved
from ewe.sites.build import Asked, Offered, leads_of
from ewe.sites.claims import PatternClaims
from ewe.sites.error_pages import ErrorPages
from ewe.sites.location import Decider, Location, deciders_of, finishers_of
from ewe.sites.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from ssl import SSLContext

    from ewe.config.settings import Config
    from ewe.config.site_tables import LocationTable
    from ewe.features.compression import Compression
    from ewe.streams.base import Stream

IMPLICIT = SiteTable("the settings", {})  # the one site of settings without tables


class VirtualSite(Part):
    """One [[site]]."""

    def __init__(
        self, config: Config, table: SiteTable, together: list[Claims | PatternClaims], **how: bool
    ) -> None:
        """Make the locations of a table. config: with the site's settings. Raises ValueError, in one line."""
        super().__init__(config, together, None, **how)
        self.table = table
        self.tables = table.locations
        self.compresses = False
        self.shared: dict[str, Any] = {}  # the steps, by their places
        self.locations = [self.location(each) for each in table.locations]
        self.locations.append(self.location(None))

    def location(self, table: LocationTable | None) -> Location:
        """Return a location; of table None: the last one, which covers every path."""
        location = Location(table)
        given = {**self.table.steps, **(table.steps if table is not None else {})}
        places = {key: f"{self.table.places.get(key, self.table.place)}: {key} =" for key in self.table.steps}
        if table is not None:
            places |= {key: table.at(key) for key in table.steps}
        location.deciders = deciders_of(given, places, self.shared)
        location.decides = [key for keys in DECIDERS for key in keys if key in given]
        location.finishes = [key for keys in FINISHERS for key in keys if key in given]
        location.finishers = finishers_of(given, places, self.shared)
        for finisher in location.finishers:
            if isinstance(finisher, ErrorPages):
                finisher.site = self
        config = self.config.taking(table.given) if table is not None else self.config
        if config.compress != "off":
            # First the body is complete, then compressed; what follows changes fields, or counts what is sent.
            after = sum(isinstance(each, ErrorPages) for each in location.finishers)
            location.finishers.insert(after, self.compression_of(config))
            self.compresses = True
        names = (parse_variable(each) for each in (*self.config.env, *config.env))
        location.variables = {name.encode(): value.encode() for name, value in names}
        location.passes_authorization = config.pass_authorization
        location.leads = leads_of(self, location, config)
        steps = (location.deciders, location.finishers, location.variables, location.passes_authorization)
        lead = location.leads[0]
        if (
            not any(steps)
            and self.guard is None
            and isinstance(lead, Asked)
            and isinstance(lead.feature, Offered)
        ):
            location.offers = lead.feature.part
        return location

    def compression_of(self, config: Config) -> Compression:
        """Return what compresses for a location: the site's, if the location has the same settings."""
        from ewe.features.compression import Compression

        names = ("compress", "compress_types", "compress_min_size", "compress_codings")
        if self.compression is not None and all(
            getattr(config, name) == getattr(self.config, name) for name in names
        ):
            return self.compression
        return Compression(config)

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response of the location that covers the request's path. Raises HTTPError."""
        if self.compresses and request.conditional:
            from ewe.features.compression import plain_tags

            request = plain_tags(request)
        location, found = self.find(request.path)
        if location.offers is not None:
            response = await Site.respond(location.offers, request, io)
            if response.target is None:
                return response
            request = moved(request, response.target, request.redirects + 1)
        tried: Location | None = None
        counted: set[Decider] = set()
        try:
            for _ in range(MAX_REDIRECTS + 1):
                location, found = self.find(request.path)
                outcome: Request | Response = request
                if self.guard is not None:
                    outcome = await self.guard.decide(request, io)
                if isinstance(outcome, Request):
                    outcome = await self.ask(location, found, outcome, io, tried, counted)
                if isinstance(outcome, Request):
                    request, tried = outcome, location
                elif outcome.target is not None:
                    request, tried = moved(request, outcome.target, request.redirects + 1), None
                else:
                    return await self.finished(location, request, outcome, io)
            raise HTTPError(500, f"more than {MAX_REDIRECTS} rewrites, the last to {request.path!r}")
        except HTTPError as error:
            if not location.finishers:
                raise
            response = error_page(error.status, error.cause, error.fields)
            return await self.finished(location, request, response, io)

    def find(self, path: str) -> tuple[Location, re.Match[str] | None]:
        """Return the first location that covers a path, and the match of its pattern."""
        for location in self.locations:
            if found := location.covers(path):
                return location, found if isinstance(found, re.Match) else None
        raise AssertionError("the last location covers every path")

    def location_of(self, path: str) -> Location:
        """Return the first location that covers a path."""
        return self.find(path)[0]

    def proxy_at(self, path: str) -> object | None:
        """Return the location whose proxy answers for a path, with that proxy; None if others may answer."""
        from ewe.features.proxy import Proxy

        location = self.location_of(path)
        lead = getattr(location.leads[0], "inner", location.leads[0])  # inside the content cache
        if self.guard is not None or not isinstance(lead, Asked):
            return None
        if isinstance(lead.feature, Offered):
            proxy = Site.proxy_at(lead.feature.part, path)
            return proxy and (location, proxy)
        return location if isinstance(lead.feature, Proxy) else None

    async def ask(
        self,
        location: Location,
        found: re.Match[str] | None,
        request: Request,
        io: Stream,
        tried: Location | None = None,
        counted: set[Decider] | None = None,
    ) -> Request | Response:
        """Return a location's answer, or the request to look up instead.

        tried: the location whose `try` gave the request's path, and does not look again. counted: the deciders that
        have counted this request; None: ask none.
        """
        if counted is not None:
            for decider in location.deciders:
                if decider.counts:
                    if decider in counted:
                        continue
                    counted.add(decider)
                decision = await decider.decide(request, io)
                if isinstance(decision, Response):
                    return decision
                request = decision
        said = request.variables
        request = location.with_variables(request)
        rest = location.rest(request.path)
        for lead in location.leads:
            if location is tried and lead.why.startswith("try:"):
                continue
            outcome = await lead.lead(request, rest, found, io)
            if isinstance(outcome, Request):
                # Another path: its location has its own `env`, and says itself who gets Authorization.
                outcome = with_exactly(outcome, said)
            if outcome is not None:
                return outcome
        return error_page(404, "there is no such file")

    async def finished(
        self, location: Location, request: Request, response: Response, io: Stream
    ) -> Response:
        """Return the response after a location's finishers."""
        for finisher in location.finishers:
            response = await finisher.finish(request, response, io)
        return response

    async def inside(self, request: Request, io: Stream) -> Response:
        """Answer without deciders and finishers: for the pages of errors. Raises HTTPError."""
        tried: Location | None = None
        for _ in range(MAX_REDIRECTS + 1):
            location, found = self.find(request.path)
            outcome = await self.ask(location, found, request, io, tried)
            if isinstance(outcome, Response):
                return outcome
            request, tried = outcome, location
        raise HTTPError(500, f"more than {MAX_REDIRECTS} rewrites, the last to {request.path!r}")


class Sites(Site):
    """All sites of a server. To a conversation it is one."""

    def __init__(self, config: Config, **how: bool) -> None:
        """Make each [[site]] of a configuration. Raises ValueError, in one line."""
        together: list[Claims | PatternClaims] = []
        made: list[tuple[Host, VirtualSite]] = []
        tables = config.sites or (IMPLICIT,)
        secured = Certificates()
        for table, own in zip(tables, config.each_site(), strict=True):
            context = secured.context_of(own, table)
            own = own.replace("its context is made", tls="off", tls_cert=None)
            site = VirtualSite(own, table, together, **how)
            site.tls = context
            made.append((Host(table.names, tuple(parse_address(each)[1:] for each in table.listen)), site))
        together.append(Claims("/", (), [*secrets_of(config)]))
        hosts = VirtualHosts(made)
        sites = [site for _, site in made]
        self.__dict__.update(sites[0].__dict__)  # limits and deadlines, which are the server's
        self.config = config
        self.hosts = hosts
        self.sites = sites
        self.wsgi = [each for site in sites for each in site.wsgi]
        self.asgi = [each for site in sites for each in site.asgi]
        self.limits.encoded_slashes = any(site.limits.encoded_slashes for site in sites)
        if self.limits.encoded_slashes:
            from ewe.features.encoded_slashes import site_with_encoded_slashes

            self.__dict__["respond"] = site_with_encoded_slashes(self.site_of, self.respond)
        self.tls = secured.context(made, hosts)
        if self.tls is not None and any(site.tls is None for site in sites):
            self.plain_at = PlainAddresses(hosts)

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the response of the site that the request is for. Raises HTTPError."""
        return await self.site_of(request, io).respond(request, io)

    def site_of(self, request: Request, io: Stream) -> VirtualSite:
        """Return the site that a request is for."""
        server = io.server if io.connected is None else io.connected.server  # behind a proxy: this server's
        return self.hosts.choose(request.host, server)


def secrets_of(config: Config) -> Iterator[str]:
    """Yield the files of the settings, which no site sends: the settings themselves, keys, and passwords."""
    files: list[object] = [config.file]
    for table, own in zip(config.sites, config.each_site(), strict=False):
        files += [own.tls_cert, own.tls_key]
        steps = [table.steps, *(location.steps for location in table.locations)]
        files += [each["auth"].get("file", "") for each in steps if isinstance(each.get("auth"), dict)]
    yield from (os.path.abspath(each) for each in files if each and isinstance(each, str))


class PlainAddresses:
    """The server's addresses whose sites have no certificate."""

    def __init__(self, hosts: VirtualHosts[VirtualSite]) -> None:
        self.hosts = hosts

    def __contains__(self, server: object) -> bool:
        return self.hosts.choose("", cast("tuple[str, int]", server)).tls is None


class Certificates:
    """The TLS contexts of all sites. Sites with the same certificate share one."""

    def __init__(self) -> None:
        self.known: dict[tuple[str | None, ...], SSLContext] = {}

    def context_of(self, config: Config, table: SiteTable) -> SSLContext | None:
        """Return the context of a site, None if it has no certificate. Raises ConfigError."""
        if config.tls != "self" and config.tls_cert is None:
            return None
        from ewe.streams.tls import server_context

        key = (config.tls, config.tls_cert, config.tls_key)
        if key not in self.known:
            try:
                self.known[key] = server_context(config.tls_cert, config.tls_key)
            except ValueError as reason:
                raise ConfigError(f"{table.place}: {reason}") from None
        return self.known[key]

    def context(
        self, made: Sequence[tuple[Host, VirtualSite]], hosts: VirtualHosts[VirtualSite]
    ) -> SSLContext | None:
        """Return the context with which every handshake begins. Raises ConfigError.

        Two sites at the same address must both have a certificate or both have none: nothing tells which of them a
        client wants before its first byte has come.
        """
        for at, (host, site) in enumerate(made):
            for other, there in made[:at]:
                if (site.tls is None) != (there.tls is None) and overlap(host, other):
                    without, has = (site, there) if site.tls is None else (there, site)
                    raise ConfigError(
                        f"{without.table.place}: this site has no certificate (tls-cert), and that of"
                        f" {has.table.place} at the same address has one: give both one, or different addresses"
                        " (listen)"
                    )
        if not self.known:
            return None
        first = next(site.tls for _, site in made if site.tls is not None)
        if len(self.known) == 1:
            return first
        from ewe.streams.tls import by_name

        def choose(name: str, server: tuple[str, int]) -> SSLContext:
            return hosts.choose(name, server).tls or first

        return by_name(choose, first)


def overlap(one: Host, other: Host) -> bool:
    """Return whether two sites have an address of the server in common."""
    return (
        not one.listen
        or not other.listen
        or any(hears(one, address) or hears(other, each) for address in other.listen for each in one.listen)
    )
