"""The head of a request that a proxy sends to the next server: made from a parsed Request, never copied.

Two servers in a row that read the same bytes differently can be made to see two requests where the other sees one
(request smuggling). ewe therefore writes a new head from what it has understood: method, target, fields, framing.
The next server sees no byte of the client's head that ewe's parser has not accepted as part of a name or a value.

    client's                              the next server's
    Host                                  Host: the same, or the next server's address
    X-Forwarded-*, Forwarded, X-Real-IP   dropped; written again, from what ewe knows of the client
    Connection, and what it names         dropped (RFC 9110 section 7.6.1)
    Expect                                dropped: ewe answers "100 Continue" itself
    Content-Length, Transfer-Encoding     written again, from the framing of the body that is sent
    names with "_"                        dropped: many programs take X_Forwarded_For for X-Forwarded-For
    Proxy                                 dropped: it would become HTTP_PROXY in a CGI program
    Via                                   "1.1 ewe" is added (RFC 9110 section 7.6.3)

A trusted proxy's X-Forwarded-For and Forwarded are continued: ewe adds that proxy's address.
"""

from __future__ import annotations

import functools

from ewe.http.addresses import parse_ip
from ewe.http.messages import Request
from ewe.http.response_head import HOP_BY_HOP, options_of
from ewe.http.target import ABSOLUTE, percent_encode, unescape

DROPPED = HOP_BY_HOP | {
    "content-length", "expect", "forwarded", "host", "max-forwards", "proxy", "proxy-authorization", "via",
    "x-real-ip",
}  # fmt: skip
PSEUDONYM = "ewe"  # in Via
MAX_NAME = 64  # characters; longer names of fields are not cached


def target_for(request: Request, prefix: str, replacement: str | None) -> str:
    """Return the target to ask the next server for.

    prefix: of the path, without a slash at its end. replacement: what takes its place, None to leave the path as it
    is. The path keeps the client's percent-encoding, unless it has dot segments or repeated slashes, or a rewrite
    has changed it: the next server must not see another path than the one by which ewe has chosen it.
    """
    if request.path == "*":
        return "*"
    raw = request.target
    if not raw.startswith("/"):
        match = ABSOLUTE.fullmatch(raw)
        raw = match[2] if match is not None else "/"
        raw = raw if raw.startswith("/") else "/" + raw
    path = raw.partition("?")[0]
    if "//" in path or "/." in path or (unescape(path) if "%" in path else path) != request.path:
        path = percent_encode(request.path)
    if replacement is not None:
        begin = prefix if path.startswith(prefix) else percent_encode(prefix)
        rest = path[len(begin) :] if path.startswith(begin) else percent_encode(request.path[len(prefix) :])
        path = replacement.rstrip("/") + rest if rest.startswith("/") else replacement
    return path if request.query is None else f"{path}?{request.query}"


def passed_fields(request: Request, *, hides_authorization: bool = False) -> list[str]:
    """Return the lines of the client's fields that go on to the next server, in the client's order."""
    dropped = DROPPED
    if "connection" in request.values:
        dropped |= options_of((request.values["connection"],))
    if hides_authorization:
        dropped |= {"authorization"}
    return [
        f"{(spelled if len(name) <= MAX_NAME else spelled.__wrapped__)(name)}: {value}\r\n"
        for name, value in request.fields
        if name not in dropped and "_" not in name and not name.startswith("x-forwarded-")
    ]


@functools.lru_cache(maxsize=1024)
def spelled(name: str) -> str:
    """Return the usual spelling of a field's name: Content-Type. Old programs look for it."""
    return "-".join([part.capitalize() for part in name.split("-")])


def forwarding_fields(request: Request, client: str, scheme: str, by: str, believed: str) -> list[str]:
    """Return the lines that tell the next server who the client is.

    client: the address that ewe knows. by: the peer; another address than the client only if it is a trusted proxy.
    believed: the field in which that proxy names the client, "x-forwarded" or "forwarded". It is continued; the
    other field is made from what ewe knows, since the proxy may have passed the client's own text on.
    """
    chain = forwarded = ""
    if by != client:
        chain = request.values.get("x-forwarded-for", "") if believed == "x-forwarded" else node(client)
        forwarded = (
            request.values.get("forwarded", "") if believed == "forwarded" else f"for={quoted_node(client)}"
        )
    lines = [f"X-Forwarded-For: {', '.join(filter(None, (chain, node(by))))}\r\n"]
    element = f"for={quoted_node(by)};proto={scheme}"
    if request.host:
        lines.append(f"X-Forwarded-Host: {request.host}\r\n")
        element += f';host="{request.host}"'
    lines.append(f"X-Forwarded-Proto: {scheme}\r\n")
    lines.append(f"Forwarded: {', '.join(filter(None, (forwarded, element)))}\r\n")
    return lines


def node(client: str) -> str:
    """Return how X-Forwarded-For names a client; "unknown" for one over a Unix socket."""
    address = parse_ip(client)
    return "unknown" if address is None else str(address)


def quoted_node(client: str) -> str:
    """Return how Forwarded names a client: RFC 7239 section 6."""
    address = parse_ip(client)
    if address is None:
        return "unknown"
    return f'"[{address}]"' if address.version == 6 else str(address)


def via(request: Request) -> str:
    """Return the line of Via: the client's, and this server."""
    before = request.values.get("via")
    own = f"{request.version[0]}.{request.version[1]} {PSEUDONYM}"
    return f"Via: {before}, {own}\r\n" if before else f"Via: {own}\r\n"


def passes_through_ewe(request: Request) -> int:
    """Return how many servers of this name have passed the request on already."""
    return sum(hop.split()[1:2] == [PSEUDONYM] for hop in request.values.get("via", "").split(","))
