"""The head of a request that a proxy sends to the upstream. It is made from a parsed Request, and never copied.

ewe writes a new head from the parsed parts: method, target, fields, framing. The upstream gets only those bytes of
the client's head that ewe's parser has accepted, so that both read the same request (request smuggling, parser.py).

    the client's head                     the upstream's head
    Host                                  Host: the same, or the upstream's address
    X-Forwarded-*, Forwarded, X-Real-IP   dropped; the first two are written again, with the client's address
    Connection, and the fields it names   dropped (RFC 9110 section 7.6.1)
    Expect                                dropped: ewe answers "100 Continue" itself
    Content-Length, Transfer-Encoding     written again, from the framing of the body that is sent
    names with "_"                        dropped: many programs take X_Forwarded_For for X-Forwarded-For
    Proxy                                 dropped: it would become HTTP_PROXY in a CGI program
    Via                                   "1.1 ewe" is added (RFC 9110 section 7.6.3)

If the request comes from a trusted proxy, ewe continues its X-Forwarded-For or Forwarded: it adds the address of
that proxy to the list.
"""

from __future__ import annotations

import functools

from ewe.http.addresses import parse_ip
from ewe.http.messages import Request
from ewe.http.response_head import HOP_BY_HOP, options_of
from ewe.http.target import ABSOLUTE, percent_decode, percent_encode

DROPPED = HOP_BY_HOP | {
    "content-length", "expect", "forwarded", "host", "max-forwards", "proxy", "proxy-authorization", "via",
    "x-real-ip",
}  # fmt: skip
PSEUDONYM = "ewe"  # the name of this server in Via
MAX_CACHED_FIELD_NAME_CHARS = 64  # characters; longer field names are not cached


def target_for(request: Request, prefix: str, replacement: str | None) -> str:
    """Return the target of the request to the upstream.

    prefix: the beginning of the path, without a slash at its end. replacement: the new beginning; None leaves the
    path unchanged. The path keeps the client's percent-encoding, unless it has dot segments or repeated slashes, or
    a rewrite has changed it. Then request.path is encoded again: the upstream must see the same path by which ewe
    has chosen the upstream.
    """
    if request.path == "*":
        return "*"
    raw = request.target
    if not raw.startswith("/"):
        match = ABSOLUTE.fullmatch(raw)
        raw = match[2] if match is not None else "/"
        raw = raw if raw.startswith("/") else "/" + raw
    path = raw.partition("?")[0]
    if (percent_decode(path) if "%" in path else path) != request.path:
        path = percent_encode(request.path)
    if replacement is not None:
        begin = prefix if path.startswith(prefix) else percent_encode(prefix)
        rest = path[len(begin) :] if path.startswith(begin) else percent_encode(request.path[len(prefix) :])
        path = replacement.rstrip("/") + rest if rest.startswith("/") else replacement
    return path if request.query is None else f"{path}?{request.query}"


def passed_fields(request: Request, *, hides_authorization: bool = False) -> list[str]:
    """Return the lines of the client's fields that are passed on to the upstream, in the client's order."""
    dropped = DROPPED
    if "connection" in request.values:
        dropped |= options_of((request.values["connection"],))
    if hides_authorization:
        dropped |= {"authorization"}
    lines: list[str] = []
    for name, value in request.fields:
        if name in dropped or "_" in name or name.startswith("x-forwarded-"):
            continue
        # A long name goes past the cache of lru_cache (__wrapped__): clients choose the names.
        spell = usual_spelling if len(name) <= MAX_CACHED_FIELD_NAME_CHARS else usual_spelling.__wrapped__
        lines.append(f"{spell(name)}: {value}\r\n")
    return lines


@functools.lru_cache(maxsize=1024)
def usual_spelling(name: str) -> str:
    """Return the usual spelling of a field's name, such as Content-Type. Old programs expect it."""
    return "-".join([part.capitalize() for part in name.split("-")])


def forwarding_fields(request: Request, client: str, scheme: str, peer: str, trusted_field: str) -> list[str]:
    """Return the lines that tell the upstream the client's address, the host and the scheme.

    client: the client's address. peer: the address of the connection's other end; it differs from `client` only if
    the peer is a trusted proxy. trusted_field: the field in which that proxy names the client, "x-forwarded" or
    "forwarded". That field is continued. The other field is written from `client`, since the proxy may have passed
    the client's own text on.
    """
    # The values of the two fields so far, to which this server adds the peer
    x_forwarded_for = forwarded = ""
    if peer != client and trusted_field == "x-forwarded":
        x_forwarded_for = request.values.get("x-forwarded-for", "")
        forwarded = f"for={quoted_node(client)}"
    elif peer != client:
        x_forwarded_for = forwarded_for_node(client)
        forwarded = request.values.get("forwarded", "")
    lines = [f"X-Forwarded-For: {', '.join(filter(None, (x_forwarded_for, forwarded_for_node(peer))))}\r\n"]
    element = f"for={quoted_node(peer)};proto={scheme}"
    if request.host:
        lines.append(f"X-Forwarded-Host: {request.host}\r\n")
        element += f';host="{request.host}"'
    lines.append(f"X-Forwarded-Proto: {scheme}\r\n")
    lines.append(f"Forwarded: {', '.join(filter(None, (forwarded, element)))}\r\n")
    return lines


def forwarded_for_node(client: str) -> str:
    """Return the text for a client in X-Forwarded-For; "unknown" for a client of a Unix socket."""
    address = parse_ip(client)
    return "unknown" if address is None else str(address)


def quoted_node(client: str) -> str:
    """Return the text for a client in Forwarded: RFC 7239 section 6."""
    address = parse_ip(client)
    if address is None:
        return "unknown"
    return f'"[{address}]"' if address.version == 6 else str(address)


def via_line(request: Request) -> str:
    """Return the Via line: the value in the request, with this server added."""
    before = request.values.get("via")
    own = f"{request.version[0]}.{request.version[1]} {PSEUDONYM}"
    return f"Via: {before}, {own}\r\n" if before else f"Via: {own}\r\n"


def passes_through_ewe(request: Request) -> int:
    """Return how many servers named PSEUDONYM have passed the request on already."""
    return sum(hop.split()[1:2] == [PSEUDONYM] for hop in request.values.get("via", "").split(","))
