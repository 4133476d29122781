"""The client's address in the fields that proxies add: the X-Forwarded fields, and Forwarded (RFC 7239).

Each proxy adds the address of the peer that sent it the request to the end of a list:

    client 203.0.113.9 ──▶ CDN 198.51.100.7 ──▶ nginx 10.0.0.2 ──▶ ewe
                              X-Forwarded-For:     X-Forwarded-For:
                              203.0.113.9          203.0.113.9, 198.51.100.7

A client can send these fields, too. Only the part that trusted proxies have added can be trusted, and that part is
the end of the list. ewe therefore reads the list from its right end. It skips the addresses of trusted proxies, and
takes the first address that is not trusted: this is the client. The client may have written everything to the left
of it.

Possible failures, and where each is prevented:

- A proxy adds X-Forwarded-For, and passes the client's Forwarded field on unchanged, or the reverse. If ewe read
  both fields, the client could choose which one counts. The setting trusted-fields selects one of them.
- An element is not an address ("unknown", or a text of the client). Then the proxy that has added this element is
  the last known host, and counts as the client (origin).
- A client sends a malformed Forwarded field, such as one with an open quote. The element that the proxy has added
  behind it cannot be read, and the request is refused with 400 (forwarded).
- A proxy passes the client's X-Forwarded-Proto on unchanged. ewe cannot notice it: the proxy must set or remove the
  field.

This module does not know the peer of a connection. gateway/proxies.py calls it only for requests of a trusted peer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ewe.http.addresses import Networks, parse_ip
from ewe.http.fields import TOKEN
from ewe.http.status import HTTPError
from ewe.http.target import checked_host

# One forwarded-pair (RFC 7239 section 4): a token, "=", and a token or a quoted string; then ";" or the end of the
# element. The last element may end in ";". Colons and brackets must be in quoted strings, but some proxies forget
# the quotes.
PAIR = re.compile(
    rf'[ \t]*({TOKEN}+)=(?:"((?:[^"\\]|\\.)*)"|((?:{TOKEN}|[:\[\]])*))[ \t]*+(?:;?[ \t]*$|([;,]))'
)
NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::([0-9]{1,5}))?")
MAX_PORT = 65535
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https", "on": "https"}
X_FORWARDED_FIELDS = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port")


class Hop(NamedTuple):
    """The facts that one proxy adds about its client. node: the address, perhaps with a port, as in the field."""

    node: str = ""
    scheme: str = ""
    host: str = ""
    port: str = ""


class Origin(NamedTuple):
    """The client of a request, by the fields of trusted proxies; None, "" or 0 for a missing fact.

    client: (address, port); the port is 0 if it is unknown. host: uri-host[:port], as the client sent it. port:
    the server's port, as the client sees it.
    """

    client: tuple[str, int] | None
    scheme: str
    host: str
    port: int


def origin_of(hops: list[Hop], trusted: Networks) -> Origin:
    """Return the client, by the hops from the right end up to the first whose node is not a trusted proxy.

    Raises HTTPError(400) for a malformed host.
    """
    client = None
    # The hop nearest to the client that a trusted proxy has reported. Its scheme and host are the client's.
    reported = hops[-1] if hops else Hop()
    for hop in reversed(hops):
        node = parse_node(hop.node)
        if node is None:  # such as "unknown": no host beyond it can be trusted
            break
        reported, client = hop, node
        address, _ = client
        if address not in trusted:
            break
    text = reported.port
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return Origin(
        client,
        SCHEMES.get(reported.scheme.lower(), ""),
        checked_host(reported.host) if reported.host else "",
        port if port <= MAX_PORT else 0,
    )


def parse_node(node: str) -> tuple[str, int] | None:
    """Return (address, port) of a hop's node, or None for another text.

    A node is an address with or without a port: 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1]:80.
    """
    address = parse_ip(node)
    if address is not None:
        return str(address), 0
    match = NODE.fullmatch(node)
    address = None if match is None else parse_ip(match[1] or match[2])
    if match is None or address is None:
        return None
    port = int(match[3] or 0)
    return str(address), port if port <= MAX_PORT else 0


def parse_x_forwarded(addresses: str, schemes: str, hosts: str, ports: str) -> list[Hop]:
    """Return the hops in the X-Forwarded fields, from left to right.

    Some proxies add to the other fields as they add to X-Forwarded-For; others set them to one value. If a list is
    as long as that of the addresses, its elements belong to the hops one by one. Otherwise only its last value
    counts, for every hop, since the nearest proxy has written it.
    """
    nodes = split_list(addresses)
    count = max(len(nodes), 1)
    columns = []
    for text in (schemes, hosts, ports):
        values = split_list(text) or [""]
        columns.append(values if len(values) == count else values[-1:] * count)
    return [Hop(*row) for row in zip(nodes or [""], *columns, strict=True)]


def split_list(text: str) -> list[str]:
    """Return the elements of a comma-separated field, without the empty ones (RFC 9110 section 5.6.1)."""
    return [item for item in (part.strip(" \t") for part in text.split(",")) if item]


def parse_forwarded(text: str) -> list[Hop]:
    """Return the hops of a Forwarded field, from left to right. Raises HTTPError(400) for a malformed field.

    The field is parsed from the left, and its left part may be the client's own text. If the client opens a quoted
    string and does not close it, the string hides the elements that the proxies have added. ewe would then take the
    nearest proxy for the client, and give the client that proxy's rights. It therefore refuses the request.
    """
    hops: list[Hop] = []
    pairs: dict[str, str] = {}
    position = skip_empty_elements(text, 0)
    while position < len(text):
        match = PAIR.match(text, position)
        if match is None:
            raise HTTPError(400, f"Forwarded is malformed: {text[position : position + 40]!r}")
        position = match.end()
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        if pairs.setdefault(match[1].lower(), value) != value:
            raise HTTPError(400, f"Forwarded has two values of {match[1]!r} for one proxy")
        if match[4] != ";":
            hops.append(Hop(pairs.get("for", ""), pairs.get("proto", ""), pairs.get("host", "")))
            pairs = {}
            position = skip_empty_elements(text, position)
    return hops


def skip_empty_elements(text: str, position: int) -> int:
    """Return the offset of the next element, after empty elements (RFC 9110 section 5.6.1)."""
    while position < len(text) and text[position] in " \t,":
        position += 1
    return position
