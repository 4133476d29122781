"""A location: which paths it covers, and the steps that its requests take.

The steps are objects, made once from the location's table, each only where its key is given:

    deciders    in the order of DECIDERS (ewe.config.site_tables): each passes the request on, or answers
    leads       status, redirect, rewrite; try; programs and gateway; alias, or the site's own features
    finishers   in the order of FINISHERS: each changes the response
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ewe.config.messages import ConfigError
from ewe.config.patterns import longest_text
from ewe.config.site_tables import DECIDERS, FINISHERS, is_below
from ewe.http.messages import NO_BODY, with_variables
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ewe.config.site_tables import LocationTable
    from ewe.http.messages import Request, Response
    from ewe.site import Site
    from ewe.sites.leads import Lead
    from ewe.streams.base import Stream

MAX_KNOWN = 1024  # requests whose copy with variables is remembered


class Decider(Protocol):
    """A step before the answer.

    counts: it is asked once for each request of a client, also if a rewrite leads to a location that has it again.
    """

    counts: bool

    async def decide(self, request: Request, io: Stream) -> Request | Response:
        """Return the request to let it pass, possibly with more variables, or an answer. Raises HTTPError."""
        ...


class Finisher(Protocol):
    """A step after the answer."""

    async def finish(self, request: Request, response: Response, io: Stream) -> Response:
        """Return the response, or a changed copy of it."""
        ...


class Location:
    """One location of a site. The last of a site covers every path, and has no table."""

    def __init__(self, table: LocationTable | None) -> None:
        self.table = table
        self.kind = table.kind if table is not None else "every path"
        self.what = table.what if table is not None else ""
        self.pattern = re.compile(self.what, re.DOTALL) if self.kind == "pattern" else None
        self.longest = longest_text(self.what) if self.kind == "pattern" else 0
        self.prefix = self.what.rstrip("/") if self.kind == "prefix" else ""
        self.deciders: list[Decider] = []
        self.finishers: list[Finisher] = []
        self.leads: list[Lead] = []
        self.decides: list[str] = []  # the keys of deciders and finishers, for `ewe --explain`
        self.finishes: list[str] = []
        self.variables: dict[bytes, bytes] = {}
        self.passes_authorization = False
        # The site whose features answer, if the location has no other step: respond() then takes a short cut
        self.offers: Site | None = None
        # Equal requests without a body share one Request, and so its copy with variables.
        self.known: dict[Request, Request] = {}

    def covers(self, path: str) -> bool | re.Match[str]:
        """Return whether this location is for a path; the match, if it has a pattern."""
        if self.pattern is not None:
            if len(path) > self.longest:  # to pass by the location could pass by its guard
                raise HTTPError(414, f"a path of {len(path)} characters at {self.table}")
            return self.pattern.search(path) or False
        if self.kind == "path":
            return path == self.what
        return self.table is None or is_below(path, self.what)

    def rest(self, path: str) -> str:
        """Return what follows the prefix in a path."""
        return path[len(self.prefix) :] if self.kind == "prefix" else ""

    def with_variables(self, request: Request) -> Request:
        """Return the request with the variables that programs get: `env`, and Authorization if it is passed."""
        authorization = request.values.get("authorization") if self.passes_authorization else None
        if not self.variables and authorization is None:
            return request
        keeps = request.body is NO_BODY and authorization is None and not request.variables
        if keeps and (known := self.known.get(request)) is not None:
            return known
        more = self.variables
        if authorization is not None:
            more = more | {b"HTTP_AUTHORIZATION": authorization.encode("latin-1", "replace")}
        other = with_variables(request, more)
        if request.variables:  # what a decider says is stronger
            other.variables = more | request.variables
        if keeps:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            self.known[request] = other
        return other


def steps_of(
    registry: Mapping[tuple[str, ...], str],
    given: Mapping[str, Any],
    places: Mapping[str, str],
    shared: dict[str, Any],
) -> Iterator[Any]:
    """Yield the steps that tables give, in the registry's order. places: how an error of each key begins.

    shared: the steps that were made, by the place of their first key. A step of a [[site]] is one object in all of
    the site's locations, so that it counts the requests to all of them together. Raises ConfigError.
    """
    for keys, where in registry.items():
        values = {key: given[key] for key in keys if key in given}
        if not values:
            continue
        first = next(iter(values))
        place = places[first]
        if place in shared:
            yield shared[place]
            continue
        module, _, name = where.partition(":")
        maker = getattr(import_module(module), name)
        try:
            shared[place] = maker.from_table(values if len(keys) > 1 else values[first], place)
        except ConfigError:
            raise
        except ValueError as reason:
            raise ConfigError(f"{place} {reason}") from None
        except OSError as reason:
            raise ConfigError(f"{place} {reason.strerror}") from None
        yield shared[place]


def deciders_of(given: Mapping[str, Any], places: Mapping[str, str], shared: dict[str, Any]) -> list[Decider]:
    """Return the deciders that tables give. Raises ConfigError."""
    return list(steps_of(DECIDERS, given, places, shared))


def finishers_of(
    given: Mapping[str, Any], places: Mapping[str, str], shared: dict[str, Any]
) -> list[Finisher]:
    """Return the finishers that tables give. Raises ConfigError."""
    return list(steps_of(FINISHERS, given, places, shared))
