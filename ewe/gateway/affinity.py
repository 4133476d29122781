"""Affinity: a client goes again to the responder address that answered it before.

A responder that keeps a user's data in its memory (a session, a cache, an open transaction) needs the
user's next request, too. If the responder runs at several addresses, taking them in turn leads elsewhere. ewe
tells the client in a cookie which address has answered:

    request without cookie ──▶ in turn: 10.0.0.2:9000 ──▶ answer + Set-Cookie: NAME=2
    request, NAME=2        ──▶ 10.0.0.2:9000, if it is not left out; it waits there for room
    10.0.0.2:9000 is dead  ──▶ in turn: 10.0.0.3:9000 ──▶ answer + Set-Cookie: NAME=3

The value is the position of the address in the settings. It says nothing about the address itself. It means the
same after a restart of ewe, and to another ewe with the same settings.

Possible failures:

- A client sends a value that ewe has not set. If an address has this number, the request goes there, as it could
  in turn. Any other value counts as no cookie.
- Two responders use the same name. Their cookies have different paths; browsers send the longest path first
  (RFC 6265 section 5.4), and the first one counts. A responder for an extension, or for a pattern, has no path, so
  its cookie has them in its name.
- A request that must go elsewhere, because the responder has refused it or is dead, moves the client there.

Source: the "session affinity" of FastCGI, in "Performance of RDBMS-WWW Interfaces under Heavy Workload", sections
2.5 and 3.4. Read next: connections.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ewe.gateway.upstream import UpstreamAddress
    from ewe.http.messages import Request


class Affinity:
    """The cookie of one responder.

    name: the setting. where: the path, the extension or the pattern of the paths that the responder answers. The
    characters that a cookie may not contain are percent-encoded; a browser compares its path with an encoded one.
    """

    def __init__(self, name: str, where: str, addresses: Sequence[UpstreamAddress]) -> None:
        self.name = name if where.startswith("/") else name + quote(where, safe="")
        self.path = percent_encode(where) if where.startswith("/") else "/"
        self.addresses = addresses

    @classmethod
    def of(cls, name: str | None, where: str, addresses: Sequence[UpstreamAddress]) -> Affinity | None:
        """Return the cookie; None if the setting names none, or if there is one address only."""
        return None if name is None or len(addresses) < 2 else cls(name, where, addresses)

    def preferred(self, request: Request) -> UpstreamAddress | None:
        """Return the address that the client's cookie names; None if it names none."""
        for pair in request.values.get("cookie", "").split(";"):
            name, _, value = pair.strip(" ").partition("=")
            if name == self.name and value.isascii() and value.isdigit() and len(value) < 6:
                number = int(value)
                return self.addresses[number - 1] if 0 < number <= len(self.addresses) else None
        return None

    def field(self, address: UpstreamAddress, scheme: str) -> tuple[str, str]:
        """Return the field that tells the client which address has answered."""
        secure = "; Secure" if scheme == "https" else ""
        value = f"{self.name}={self.addresses.index(address) + 1}"
        return "Set-Cookie", f"{value}; Path={self.path}; HttpOnly; SameSite=Lax{secure}"
