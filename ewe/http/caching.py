"""Caching: which responses a shared cache may store, for how long, and for which requests. RFC 9111. No I/O.

ewe.features.content_cache stores responses by these rules. Where RFC 9111 leaves a choice, ewe makes the safe one:

- Only explicit lifetimes count. A response without Cache-Control or Expires is never stored (section 4.2.2 would
  allow a guess).
- A response to a request with Cookie or Authorization is stored, and reused for such a request, only if it has the
  directive `public` or `s-maxage` (section 3.5 demands this only for Authorization).
- A response with Set-Cookie is never stored.
- A stored response must not depend on a request field that the cache ignores. Otherwise an attacker could send such
  a field, and all later visitors would get the attacker's page (cache poisoning). A response is therefore not
  stored if its request has a field that is not part of the key, not named by Vary, and not in NEUTRAL. NEUTRAL
  lists the allowed fields, because a list of all fields that programs use would never be complete.
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
# Statuses that describe a resource, and not one moment or one client
STORABLE_STATUSES = frozenset({200, 203, 300, 301, 302, 307, 308, 404, 410})
MAX_SECONDS = 1 << 31  # section 1.2.2
MAX_VARY = 8  # fields; with more, the cache would store a copy for nearly every client
# Fields that browsers, feed readers and robots send with every request. Without this list, almost no response could
# be stored. A program that chooses its response by one of these fields must name it in Vary.
NEUTRAL = frozenset({
    "accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "connection",
    "content-length", "dnt", "from", "host", "if-match", "if-modified-since", "if-none-match", "if-range",
    "if-unmodified-since", "keep-alive", "pragma", "priority", "proxy-connection", "range", "referer", "sec-ch-ua",
    "sec-ch-ua-mobile", "sec-ch-ua-platform", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site",
    "sec-fetch-storage-access", "sec-fetch-user", "sec-gpc", "te", "upgrade-insecure-requests", "user-agent",
})  # fmt: skip
# The variables by which a guard or an authorizer identifies the visitor. They are not part of the key of a copy.
OF_VISITOR = frozenset({b"REMOTE_USER", b"AUTH_TYPE", b"HTTP_AUTHORIZATION"})
# Fields that trusted proxies add: the client's address, which programs know anyway, and identifiers for their logs
ADDED_BY_PROXY = frozenset({
    "cdn-loop", "traceparent", "tracestate", "via", "x-amzn-trace-id", "x-correlation-id", "x-forwarded-for",
    "x-real-ip", "x-request-id",
})  # fmt: skip
# A proxy writes these fields for the upstream itself, so their values in the client's request select no response.
WRITTEN_BY_PROXY = frozenset({"connection", "forwarded", "x-forwarded-for", "x-real-ip"})
# Options of Connection that name no field of the key. A proxy drops each field that Connection names. The upstream
# would then answer a request that differs from the cache's key (RFC 9110 section 7.6.1).
OPTIONS = frozenset({"close", "keep-alive", "te", ""})
FORWARDED_SCHEME = re.compile(r'proto="?([a-z]*)')


def directives(value: str | None) -> dict[str, str]:
    """Return the directives of a Cache-Control field, in lower case, each with its argument ("" if it has none).

    A malformed directive is skipped up to the next comma. If a directive occurs twice, the smaller number counts:
    section 4.2.1 leaves the choice, and prefers a stale response to a wrong one.
    """
    found: dict[str, str] = {}
    position = 0
    value = value or ""
    while position < len(value):
        if value[position] in " \t,":
            position += 1
            continue
        match = DIRECTIVE.match(value, position)
        if match is None:
            position = value.find(",", position) + 1 or len(value)
            continue
        position = match.end() + 1
        name = match[1].lower()
        argument = match[2] if match[2] is not None else match[3] or ""
        if name in found and delta_seconds(found[name]) <= delta_seconds(argument):
            continue
        found[name] = argument
    return found


def delta_seconds(argument: str | None) -> int:
    """Return the argument as a number of seconds; 0 (stale) if it is malformed, as section 4.2.1 advises."""
    if argument is None or not (argument.isascii() and argument.isdigit()):
        return 0
    return min(int(argument[:12]), MAX_SECONDS)


def freshness_lifetime(cache_control: Mapping[str, str], response: Response, now: float) -> int | None:
    """Return the seconds for which a response is fresh in a shared cache (section 4.2.1); None if unknown.

    cache_control: the directives of the response. now: seconds since 1970; they replace Date,
    which a program does not send.
    """
    if "no-cache" in cache_control:
        return 0
    for name in ("s-maxage", "max-age"):
        if name in cache_control:
            return delta_seconds(cache_control[name])
    expires = response.get("expires")
    if expires is None:
        return None
    until = parse_date(expires)
    return 0 if until is None else max(0, min(int(until - now), MAX_SECONDS))


def is_shared(cache_control: Mapping[str, str]) -> bool:
    """Return whether a response may be reused for all clients, even if its request had Cookie or Authorization.

    cache_control: the directives of the response.
    """
    return "public" in cache_control or "s-maxage" in cache_control


def is_personal(request: Request, variables: Mapping[bytes, bytes]) -> bool:
    """Return whether a request identifies its user: by Cookie, by Authorization, or by a variable of a guard."""
    values = request.values
    if "cookie" in values or "authorization" in values:
        return True
    return bool(variables) and not OF_VISITOR.isdisjoint(variables)


def fields_in_vary(response: Response) -> tuple[str, ...] | None:
    """Return the request fields that Vary names, in lower case and in order; None for `*` or too many."""
    names: set[str] = set()
    for field_name, value in response.fields:
        if field_name.lower() == "vary":
            names.update(each.strip(" \t").lower() for each in value.split(","))
    names.discard("")
    return None if "*" in names or len(names) > MAX_VARY else tuple(sorted(names))


def selecting_values(names: Iterable[str], request: Request) -> tuple[str | None, ...]:
    """Return the values of the request fields `names`, which select the response (section 4.1)."""
    return tuple(request.values.get(name) for name in names)


def may_store(
    request: Request, response: Response, cache_control: Mapping[str, str], *, personal: bool
) -> bool:
    """Return whether a response to GET may be stored: section 3.

    cache_control: the directives of the response. personal: is_personal() of the request.
    """
    if (
        response.status not in STORABLE_STATUSES
        or "no-store" in cache_control
        or "private" in cache_control
        or response.target is not None
    ):
        return False
    if "no-store" in directives(request.values.get("cache-control")):
        return False
    if personal and not is_shared(cache_control):
        return False
    body = response.body
    if type(body) is tuple or (isinstance(body, Source) and body.raw):
        return False
    names = {field_name.lower() for field_name, _ in response.fields}
    if "set-cookie" in names or "content-range" in names:
        return False
    varying = fields_in_vary(response)
    return varying is not None and WRITTEN_BY_PROXY.isdisjoint(varying)


def unkeyed_fields(request: Request, scheme: str, port: int, trusted: bool) -> frozenset[str]:
    """Return the fields of a request that are not part of the key, and by which a program may choose its response.

    The response may be stored only if Vary names all of them. "connection" is one of them if its options are not
    all in OPTIONS. "host" is one of them if the host has capital letters: the key has only small letters, and a
    program may redirect such a client to another host. "authorization" is never one of them, since section 3.5 lets
    the response decide (is_shared); "cookie" always is.

    trusted: a trusted proxy has sent the request, and ewe has taken the client, host, scheme and port from the
    proxy's fields. These fields are allowed as long as their values agree with the key.
    """
    values = request.values
    unkeyed = values.keys() - NEUTRAL
    unkeyed.discard("authorization")  # is_personal() looks at this field
    if request.host != request.host.lower():
        unkeyed.add("host")
    if trusted:
        unkeyed -= ADDED_BY_PROXY
        forwarded = values.get("forwarded", "").lower()
        if "host=" not in forwarded and set(FORWARDED_SCHEME.findall(forwarded)) <= {scheme}:
            unkeyed.discard("forwarded")
        for name, value in (("host", request.host), ("proto", scheme), ("port", str(port))):
            if values.get(f"x-forwarded-{name}") == value:
                unkeyed.discard(f"x-forwarded-{name}")
    if "connection" in values:
        options = {option.strip(" \t").lower() for option in values["connection"].split(",")}
        if not options <= OPTIONS:
            unkeyed.add("connection")
    return frozenset(unkeyed)
