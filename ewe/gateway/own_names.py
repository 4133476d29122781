"""DNS rebinding: a stranger's page must not read pages that a server on loopback shows to this machine alone.

A browser lets the scripts of a page read resources of the page's own origin: scheme, name and port. The owner of
a name decides which address it has, and may change that at any moment:

    1. a visitor opens http://evil.example:4000/ (the name has the stranger's address)
    2. the stranger's name server now says: evil.example is 127.0.0.1
    3. the page asks for http://evil.example:4000/-/databases/, and the browser connects to ewe on this machine

The browser takes the answer for one of evil.example's, and hands it to the page. No password, address or Origin
distinguishes this request from the visitor's own. Only the Host field does: it has the stranger's name. Therefore a
page that reveals or changes something without a password answers a connection over loopback only if Host is

- an IP address: a browser connects to an address without asking a name server;
- localhost or a name below it, which browsers do not look up either (RFC 6761 section 6.3);
- a name of a [[site]]: the administrator has chosen it.

Read next: docs/security.md, for the limits of this protection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.setting_types import is_local
from ewe.http.addresses import UNIX_CLIENT, parse_ip
from ewe.http.error_pages import error_page
from ewe.http.virtual_hosts import name_of, wildcards_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

TEXT = "This server does not show this page under this name. On its own machine, localhost is a name of it."


def misdirected_response(request: Request, io: Stream, names: Collection[str]) -> Response | None:
    """Return the 421 for a request over loopback if its Host is no name of this server; None for any other request.

    names: those of all sites. A browser cannot reach a Unix socket, so requests over one may have any Host.
    """
    # Behind a proxy, io.server and io.client come from the proxy's headers (Stream). Here the addresses of the
    # connection itself decide.
    server = io.server if io.endpoints is None else io.endpoints.server
    if not is_local(server[0]) or (io.peer or io.client)[0] == UNIX_CLIENT:
        return None
    return foreign_host_response(request, names)


def foreign_host_response(request: Request, names: Collection[str]) -> Response | None:
    """Return the 421 for a request if its Host is no name of this server; None for any other request.

    The Host field itself counts. A page's script can set X-Forwarded-Host, as a trusted proxy on this machine
    would, but no script can set Host.
    """
    host = request.values.get("host", "")
    if is_own(host, names):
        return None
    cause = (
        f"Host {host[:80]!r} is no name of this server, so a page of another site may have sent the visitor (DNS"
        " rebinding): ask for localhost, or write the name into the names of a [[site]]"
    )
    return error_page(421, cause, text=TEXT)


def is_own(host: str, names: Collection[str]) -> bool:
    """Return whether a Host field is an IP address, a name of this machine, or one of these names.

    names: in lower case, also "*.example.org". No browser leaves Host out, so a request without one is not refused.

    >>> is_own("[::1]:4000", ()), is_own("shop.localhost:4000", ()), is_own("evil.example", ())
    (True, True, False)
    """
    name = name_of(host)
    if not name or name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    return parse_ip(name.strip("[]")) is not None or any(each in names for each in wildcards_for(name))
