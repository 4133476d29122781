"""Caching: which responses a shared cache may keep, for how long, and for whom. RFC 9111. No I/O, no clock.

    directives()    what a Cache-Control says
    lifetime()      for how many seconds a response is fresh: section 4.2.1
    may_store()     whether it may be kept at all: section 3
    selecting()     the request fields by which one URL has several responses: Vary, section 4.1
    unkeyed()       the request fields that forbid to keep the response: a program may choose by them

ewe.features.content_cache keeps responses by these rules. Where RFC 9111 leaves a choice, the careful one is taken:

- Only explicit lifetimes count. A response without Cache-Control or Expires is never kept (section 4.2.2 would
  allow a guess).
- A response to a request with Cookie or Authorization is kept, and given to such a request, only if it says
  `public` or `s-maxage` (section 3.5 demands this of Authorization alone).
- A response with Set-Cookie is never kept.
- A copy must be what a request without any other field would have got. A request with a field that is neither
  part of the key, nor named by Vary, nor one of NEUTRAL therefore leaves nothing behind. A stranger could otherwise
  plant a page for everybody (cache poisoning). NEUTRAL says what is allowed, because no list has all fields that
  programs obey.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ewe.http.dates import parse_date
from ewe.http.messages import Request, Response, Source

# One directive: a name, perhaps = and a token or a quoted string (section 5.2)
DIRECTIVE = re.compile(
    r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"((?:[^"\\]|\\.)*)"|([^\s,;"]*)))?[ \t]*(?=,|\Z)'
)
# Statuses that say something about a resource, and not about one moment or one client
STATUSES = frozenset({200, 203, 300, 301, 302, 307, 308, 404, 410})
MAX_SECONDS = 1 << 31  # section 1.2.2
MAX_VARY = 8  # fields; more would make a copy for nearly every client
# Fields that browsers, feed readers and robots send by themselves: without them in the list, hardly a request would
# leave a copy. A program that chooses by one of them must name it in Vary.
NEUTRAL = frozenset({
    "accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "connection",
    "content-length", "dnt", "from", "host", "if-match", "if-modified-since", "if-none-match", "if-range",
    "if-unmodified-since", "keep-alive", "pragma", "priority", "proxy-connection", "range", "referer", "sec-ch-ua",
    "sec-ch-ua-mobile", "sec-ch-ua-platform", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site",
    "sec-fetch-storage-access", "sec-fetch-user", "sec-gpc", "te", "upgrade-insecure-requests", "user-agent",
})  # fmt: skip
# Fields that trusted proxies add: the client's address, which programs know anyway, and numbers for their logs
OF_PROXY = frozenset({
    "cdn-loop", "traceparent", "tracestate", "via", "x-amzn-trace-id", "x-correlation-id", "x-forwarded-for",
    "x-real-ip", "x-request-id",
})  # fmt: skip
# A proxy writes these fields for the next server itself, so their values in the client's request select nothing.
OF_CONNECTION = frozenset({"connection", "forwarded", "x-forwarded-for", "x-real-ip"})
# Options of Connection that name no field of the key. A proxy drops each field that Connection names, and the next
# server then answers another request than the one by which a copy would be found (RFC 9110 section 7.6.1).
OPTIONS = frozenset({"close", "keep-alive", "te", ""})
SAYS_SCHEME = re.compile(r'proto="?([a-z]*)')


def directives(value: str | None) -> dict[str, str]:
    """Return the directives of a Cache-Control, in lower case, with their arguments, "" for none.

    What is malformed is skipped up to the next comma. Of equal directives with different arguments the smaller
    number counts: section 4.2.1 leaves the choice, and prefers a stale response to a wrong one.
    """
    found: dict[str, str] = {}
    place = 0
    value = value or ""
    while place < len(value):
        if value[place] in " \t,":
            place += 1
            continue
        match = DIRECTIVE.match(value, place)
        if match is None:
            place = value.find(",", place) + 1 or len(value)
            continue
        place = match.end() + 1
        name = match[1].lower()
        argument = match[2] if match[2] is not None else match[3] or ""
        if name in found and seconds(found[name]) <= seconds(argument):
            continue
        found[name] = argument
    return found


def seconds(argument: str | None) -> int:
    """Return a number of seconds; 0 for one that is malformed, as section 4.2.1 advises: the response is stale."""
    if argument is None or not (argument.isascii() and argument.isdigit()):
        return 0
    return min(int(argument[:12]), MAX_SECONDS)


def lifetime(told: Mapping[str, str], response: Response, now: float) -> int | None:
    """Return the seconds for which a response is fresh in a shared cache; None if it does not say (section 4.2.1).

    told: its directives. now: seconds since 1970; a program's response has no Date.
    """
    if "no-cache" in told:
        return 0
    for name in ("s-maxage", "max-age"):
        if name in told:
            return seconds(told[name])
    expires = response.get("expires")
    if expires is None:
        return None
    until = parse_date(expires)
    return 0 if until is None else max(0, min(int(until - now), MAX_SECONDS))


def is_shared(told: Mapping[str, str]) -> bool:
    """Return whether a response says that it is for everybody, also if its request had Cookie or Authorization."""
    return "public" in told or "s-maxage" in told


def is_personal(request: Request, variables: Mapping[bytes, bytes]) -> bool:
    """Return whether a request, or what a guard has said of it, says who asks."""
    values = request.values
    return "cookie" in values or "authorization" in values or b"REMOTE_USER" in variables


def selecting(response: Response) -> tuple[str, ...] | None:
    """Return the request fields that Vary names, in lower case and in order; None for `*` or too many."""
    names: set[str] = set()
    for own, value in response.fields:
        if own.lower() == "vary":
            names.update(each.strip(" \t").lower() for each in value.split(","))
    names.discard("")
    return None if "*" in names or len(names) > MAX_VARY else tuple(sorted(names))


def selected(names: Iterable[str], request: Request) -> tuple[str | None, ...]:
    """Return the values by which a response was selected: equal fields select equal responses (section 4.1)."""
    return tuple(request.values.get(name) for name in names)


def may_store(request: Request, response: Response, told: Mapping[str, str], *, personal: bool) -> bool:
    """Return whether a response to GET may be kept: section 3. told: its directives."""
    if (
        response.status not in STATUSES
        or "no-store" in told
        or "private" in told
        or response.target is not None
    ):
        return False
    if "no-store" in directives(request.values.get("cache-control")):
        return False
    if personal and not is_shared(told):
        return False
    body = response.body
    if type(body) is tuple or (isinstance(body, Source) and body.raw):
        return False
    names = {own.lower() for own, _ in response.fields}
    if "set-cookie" in names or "content-range" in names:
        return False
    varying = selecting(response)
    return varying is not None and OF_CONNECTION.isdisjoint(varying)


def unkeyed(request: Request, scheme: str, port: int, trusted: bool) -> frozenset[str]:
    """Return the fields of a request that are no part of a key, and by which a program may choose its response.

    The response may be kept only if Vary names all of them. "connection" is among them if that field names another
    one than those that concern the connection, "host" if it has capital letters: a program may send such a visitor
    elsewhere, and the key has small letters only. A program's word that its response is for everybody (is_shared)
    counts for Authorization (section 3.5), not for Cookie.

    trusted: a proxy in front has sent the request, and ewe has made its client, host, scheme and port of that
    proxy's fields. The fields are allowed as long as they say nothing else than the key.
    """
    values = request.values
    found = values.keys() - NEUTRAL
    found.discard("authorization")
    if request.host != request.host.lower():
        found.add("host")
    if trusted:
        found -= OF_PROXY
        said = values.get("forwarded", "").lower()
        if "host=" not in said and set(SAYS_SCHEME.findall(said)) <= {scheme}:
            found.discard("forwarded")
        for name, value in (("host", request.host), ("proto", scheme), ("port", str(port))):
            if values.get(f"x-forwarded-{name}") == value:
                found.discard(f"x-forwarded-{name}")
    if "connection" in values:
        options = {option.strip(" \t").lower() for option in values["connection"].split(",")}
        if not options <= OPTIONS:
            found.add("connection")
    return frozenset(found)
