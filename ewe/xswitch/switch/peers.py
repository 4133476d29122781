"""Other X-Switches: the engines there that run scripts for this one, and the acceptor of those that ask this one.

far engines    far_engine.py: [engines.NAME] with `address`. The name of a file decides whether its requests go
               there
the acceptor   tls_acceptor.py: `listen` with tls:HOST:PORT. Requests come in as from a web server
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ewe.xswitch.certificates import Contexts, contexts
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.setting_types import OVER_TLS
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.far_engine import FarEngine
from ewe.xswitch.switch.identify import MAX_PATH_BYTES
from ewe.xswitch.switch.tls_acceptor import TlsAcceptor


class Peers:
    """The far engines and the acceptor. Keeps both up to date with the settings."""

    def __init__(self, context: Context, connected: Callable[[socket.socket], None]) -> None:
        """connected: called with the connection of another X-Switch that has shown a trusted certificate."""
        self.context = context
        self.connected = connected
        self.certificates: tuple[str, ...] = ()
        self.acceptor: TlsAcceptor | None = None  # of the tls: addresses; None without TLS
        self.engines: dict[str, FarEngine] = context.scheduler.far_engines
        self.former_engines: list[FarEngine] = []  # of former settings; they still run requests
        self.change_settings(context.settings)

    def change_settings(self, settings: Settings) -> None:
        """Use other settings, and renewed certificates. Running requests go on."""
        tls = contexts(settings)
        far_kinds = {name: kind for name, kind in settings.engines.items() if kind.address}
        for name, engine in list(self.engines.items()):
            if engine.kind != far_kinds.get(name):
                del self.engines[name]
                engine.close()
                self.former_engines.append(engine)
        if tls is None:
            return
        if self.certificates != settings.certificates:
            self.certificates = settings.certificates
            self.use_certificate(tls)
        for name, kind in far_kinds.items():
            if name not in self.engines:
                self.engines[name] = FarEngine(self.context, kind, tls.client)

    def use_certificate(self, tls: Contexts) -> None:
        """Use a certificate for new connections, in both directions."""
        for engine in self.engines.values():
            engine.use_certificate(tls.client)
        if self.acceptor is None:
            self.acceptor = TlsAcceptor(self.context.loop, self.context.log, tls.server, self.connected)
        self.acceptor.context = tls.server

    def receiver_at(self, address: str) -> Callable[[socket.socket], None]:
        """Return the function that gets each connection accepted at an address of `listen`."""
        return self.accepted if address.startswith(OVER_TLS) else self.connected

    def accepted(self, sock: socket.socket) -> None:
        """Begin the handshake of a connection at a tls: address."""
        assert self.acceptor is not None  # the supervisor does not start without certificates
        self.acceptor.accepted(sock)

    def far_kind_of(self, file: str, params: dict[bytes, bytes]) -> EngineKind | None:
        """Return the kind of a script that runs on another machine, None for a script of this one.

        The file is not here, so only its name can tell: the table [directories], or its extension. A name that no
        file can have names no kind: a client could choose one with thousands of directories.
        """
        if not 0 < len(file) < MAX_PATH_BYTES:
            return None
        settings = self.context.settings
        if named := params.get(b"XSWITCH_ENGINE"):
            kind = settings.engines.get(named.decode("latin-1"))
        else:
            kind = settings.kind_for(file, interpreter="")
        return kind if kind is not None and kind.address else None

    def tick(self, now: float) -> None:
        """Enforce the deadlines of handshakes, and of requests to far engines.

        Also forget the far engines of former settings that have no connection any more. now: the monotonic time.
        """
        if self.acceptor is not None:
            self.acceptor.tick(now)
        for engine in (*self.engines.values(), *self.former_engines):
            engine.tick(now)
        self.former_engines = [engine for engine in self.former_engines if engine.connections]

    def fail(self, cause: str) -> None:
        """End all requests on other machines, and all handshakes."""
        if self.acceptor is not None:
            self.acceptor.close()
        for engine in (*self.engines.values(), *self.former_engines):
            engine.fail(cause)

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Return the states of the other machines, for the status."""
        return [engine.describe(now) for engine in self.engines.values()]
