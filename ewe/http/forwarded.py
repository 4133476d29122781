"""What proxies say of a request's client: the X-Forwarded fields, and Forwarded (RFC 7239).

Each proxy on the way adds the address that it was asked from to the end of a list:

    client 203.0.113.9 ──▶ CDN 198.51.100.7 ──▶ nginx 10.0.0.2 ──▶ ewe
                              X-Forwarded-For:     X-Forwarded-For:
                              203.0.113.9          203.0.113.9, 198.51.100.7

A client can write the field, too. Only the part that trusted proxies have added means anything, and that part is
the end of the list. ewe therefore reads the list from its right end. It passes over the addresses of trusted
proxies, and takes the first address that is not trusted: the client's. Everything to the left of it is the
client's own text.

What can go wrong:

- A proxy adds X-Forwarded-For and passes a Forwarded field of the client on unchanged, or the reverse. If ewe read
  either field, the client could choose which one counts. The setting trusted-fields says which one ewe reads.
- A list ends in something that is not an address ("unknown", a text of the client). Then the proxy that has
  written it is the last host that ewe knows, and counts as the client.
- A client writes a Forwarded field that nobody can read to its end, such as an open quote. What the proxy has added
  behind it is lost, and the request is refused (400).
- A proxy passes the client's X-Forwarded-Proto on unchanged. ewe cannot see that: the proxy must set or remove it.

Nothing here knows which peer is connected: gateway/proxies.py asks only for requests of a trusted one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ewe.http.addresses import Networks, parse_ip
from ewe.http.fields import TOKEN
from ewe.http.status import HTTPError
from ewe.http.target import checked_host

# One forwarded-pair (RFC 7239 section 4): a token, "=", and a token or a quoted string; then ";" or the element's
# end. Colons and brackets belong into quoted strings, but some proxies forget the quotes.
PAIR = re.compile(rf'[ \t]*({TOKEN}+)=(?:"((?:[^"\\]|\\.)*)"|((?:{TOKEN}|[:\[\]])*))[ \t]*(;|,|$)')
NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::([0-9]{1,5}))?")
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https", "on": "https"}
FIELDS = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port")


class Hop(NamedTuple):
    """What one proxy says of who has asked it. node: address and perhaps port, as the field has them."""

    node: str = ""
    scheme: str = ""
    host: str = ""
    port: str = ""


class Origin(NamedTuple):
    """What trusted proxies say of a request's client; None or "" where they say nothing.

    client: (address, port), the port 0 if they do not say it. host: uri-host[:port], as the client sent it. port:
    the server's, as the client knows it.
    """

    client: tuple[str, int] | None
    scheme: str
    host: str
    port: int


def origin(hops: list[Hop], trusted: Networks) -> Origin:
    """Return what the rightmost hops say, up to the first that a trusted proxy did not write.

    Raises HTTPError(400) for a malformed host.
    """
    client = None
    said = hops[-1] if hops else Hop()
    for hop in reversed(hops):
        found = parse_node(hop.node)
        if found is None:
            break
        said, client = hop, found
        if client[0] not in trusted:
            break
    port = int(said.port) if said.port.isascii() and said.port.isdigit() and len(said.port) <= 5 else 0
    return Origin(
        client,
        SCHEMES.get(said.scheme.lower(), ""),
        checked_host(said.host) if said.host else "",
        port if port <= 65535 else 0,
    )


def parse_node(node: str) -> tuple[str, int] | None:
    """Return (address, port) of a hop: 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1]:80; None for others."""
    address = parse_ip(node)
    if address is not None:
        return str(address), 0
    match = NODE.fullmatch(node)
    address = None if match is None else parse_ip(match[1] or match[2])
    if match is None or address is None:
        return None
    port = int(match[3] or 0)
    return str(address), port if port <= 65535 else 0


def x_forwarded(addresses: str, schemes: str, hosts: str, ports: str) -> list[Hop]:
    """Return the hops that the X-Forwarded fields name, from left to right.

    Proxies that add to X-Forwarded-For may add to the other fields as well, or set them to one value. A list of the
    same length belongs to the hops one by one. Of another list only the last value counts, for every hop: the
    nearest proxy has set or added it.
    """
    nodes = split_list(addresses)
    count = max(len(nodes), 1)
    columns = []
    for text in (schemes, hosts, ports):
        values = split_list(text)
        columns.append(values if len(values) == count else values[-1:] * count or [""] * count)
    return [Hop(*row) for row in zip(nodes or [""], *columns, strict=True)]


def split_list(text: str) -> list[str]:
    """Return the elements of a comma-separated field, without the empty ones (RFC 9110 section 5.6.1)."""
    return [item for item in (part.strip(" \t") for part in text.split(",")) if item]


def forwarded(text: str) -> list[Hop]:
    """Return the hops of a Forwarded field, from left to right. Raises HTTPError(400) for a malformed field.

    The field is read from the left, where the client's own text stands. A quoted string that the client does not
    close reaches to the end, and so hides what the proxies have added. ewe would take the nearest proxy for the
    client then, and let the client pass wherever that proxy may. It therefore refuses the request.
    """
    hops: list[Hop] = []
    pairs: dict[str, str] = {}
    place = 0
    while (place := place if pairs else skipped(text, place)) < len(text):
        match = PAIR.match(text, place)
        if match is None:
            raise HTTPError(400, f"Forwarded is malformed: {text[place : place + 40]!r}")
        place = match.end()
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        if pairs.setdefault(match[1].lower(), value) != value:
            raise HTTPError(400, f"Forwarded has two values of {match[1]!r} for one proxy")
        if match[4] != ";":
            hops.append(Hop(pairs.get("for", ""), pairs.get("proto", ""), pairs.get("host", "")))
            pairs = {}
    return hops


def skipped(text: str, place: int) -> int:
    """Return where the next element of a list begins: some are empty (RFC 9110 section 5.6.1)."""
    while place < len(text) and text[place] in " \t,":
        place += 1
    return place
