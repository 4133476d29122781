"""The site: the interface between a conversation and the features of one server, the same under every model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssl import SSLContext

    from ewe.config.settings import Config
    from ewe.features.base import Handler
    from ewe.features.plan import Plan, StartableApplication
    from ewe.gateway.proxies import TrustedProxies
    from ewe.http.limits import RequestLimits
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

IDLE_SOCKET_S = 75.0  # seconds that a connection may be idle where it costs only a socket
IDLE_WORKER_S = 5.0  # seconds where it occupies a process or a thread


class Site:
    """A tree of handlers, and the settings that a conversation needs before it calls the tree.

    root: the root of the tree; `respond` is its method. limits: the limits of a request. heads: head -> Request, a
    cache that ewe.conversation fills. idle_s: the longest idle time of a connection. tls: None for a server
    without a certificate. plain_at: the (address, port) pairs at which a server with TLS uses none. proxies: the
    trusted proxies, which may name the client. imported: the applications to import before the first request. plan:
    the features of a server without [[site]]. built: each [[site]] of another server.
    """

    respond: Callable[[Request, Stream], Awaitable[Response]]

    def __init__(self, config: Config, limits: RequestLimits, root: Handler) -> None:
        self.config = config
        self.limits = limits
        self.root = root
        self.persistent = config.persistent
        self.heads: dict[bytes, Request] = {}
        self.idle_s = IDLE_SOCKET_S
        self.tls: SSLContext | None = None
        self.plain_at: Container[tuple[str, int]] | None = None
        self.proxies: TrustedProxies | None = None
        self.imported: list[StartableApplication] = []
        self.plan: Plan | None = None
        self.built: Sequence[Any] = ()

    def import_applications(self) -> None:
        """Import the applications, in a worker that has just started. Raises ValueError with a text of one line."""
        for each in self.imported:
            each.load()

    @property
    def applications(self) -> list[Any]:
        """The ASGI applications, which are started before the first connection."""
        return [found for each in self.imported if (found := each.started) is not None]

    @property
    def application_names(self) -> list[str]:
        """The names of all applications, each once: module:app."""
        return list(dict.fromkeys(each.name for each in self.imported))
