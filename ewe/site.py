"""The site: all that one server offers, as a conversation and the server see it. The same under every model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssl import SSLContext

    from ewe.config.settings import Config
    from ewe.features.base import Handler
    from ewe.features.plan import Plan, Starts
    from ewe.gateway.proxies import TrustedProxies
    from ewe.http.limits import Limits
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

IDLE_SOCKET = 75.0  # seconds that a connection may be idle where it costs only a socket
IDLE_WORKER = 5.0  # seconds where it occupies a process or a thread


class Site:
    """A tree of handlers, with what a conversation needs to know before it asks the tree.

    root: the handler where the tree begins; respond is its method. limits: of a request's head. heads: heads seen
    before, which ewe.conversation fills. idle: seconds that a connection may be idle. tls: None for a server
    without a certificate. plain_at: the addresses of a server with TLS that speak without it, as pairs of address
    and port. proxies: those that may say who a client is. imported: the applications that are imported before the
    first request. plan: of a server without [[site]]. built: each [[site]] of another.
    """

    respond: Callable[[Request, Stream], Awaitable[Response]]

    def __init__(self, config: Config, limits: Limits, root: Handler) -> None:
        self.config = config
        self.limits = limits
        self.root = root
        self.persistent = config.persistent
        self.heads: dict[bytes, Request] = {}
        self.idle = IDLE_SOCKET
        self.tls: SSLContext | None = None
        self.plain_at: Container[tuple[str, int]] | None = None
        self.proxies: TrustedProxies | None = None
        self.imported: list[Starts] = []
        self.plan: Plan | None = None
        self.built: Sequence[Any] = ()

    def import_applications(self) -> None:
        """Import the applications, in a worker that has just started. Raises ValueError, in one line."""
        for each in self.imported:
            each.load()

    @property
    def applications(self) -> list[Any]:
        """The applications that are started before the first connection: those of ASGI."""
        return [found for each in self.imported if (found := each.started) is not None]

    @property
    def application_names(self) -> list[str]:
        """The names of all applications, each once: module:app."""
        return list(dict.fromkeys(each.name for each in self.imported))
