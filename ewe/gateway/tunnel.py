"""Tunnels: bytes both ways, once a client and the upstream have switched to another protocol.

    client: GET /chat, Upgrade: websocket ──▶ ewe ──▶ upstream
                                          ◀── 101 Switching Protocols
            bytes ◀─────────────────────────────────▶ bytes         until one side ends, or both are silent

ewe does not interpret the bytes: they are WebSocket (RFC 6455) or any other protocol that proxy-upgrade names. A
Tunnel is the body of the response 101. receive() returns the upstream's bytes, which the conversation sends to the
client, and passes the client's bytes on meanwhile. Back-pressure goes both ways: a side that does not read stops
the other.

A tunnel occupies the same resources as a conversation under its model: a socket and a coroutine with asyncio and
the pool, a thread, or a process. prefork therefore has room for as many tunnels as it has workers, and serial for
one.

Possible failures: both sides send without reading, and each waits for the other. Then the write-timeout ends the
tunnel. A stop of the server waits `grace` for tunnels, as for downloads, and then aborts them. Bytes that a client
sends together with its request, before the 101, are lost: RFC 6455 section 4.1 tells the client to wait.

Source: RFC 9110 section 7.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.http.messages import Source
from ewe.streams.base import Timeout

if TYPE_CHECKING:
    from ewe.gateway.connections import Connections
    from ewe.gateway.upstream import Upstream
    from ewe.streams.base import Stream

NOTHING = memoryview(b"")


class Tunnel(Source):
    """The upstream's bytes, after `first_bytes`. idle_s: how long both sides may be silent."""

    raw = True
    bounds_client_time = True  # a tunnel may last for days, and only `idle_s` and write-timeout bound it

    def __init__(
        self,
        connections: Connections,
        upstream: Upstream,
        io: Stream,
        first_bytes: bytes,
        name: str,
        idle_s: float,
    ) -> None:
        self.connections = connections
        self.upstream: Upstream | None = upstream
        self.io = io
        self.first_bytes = first_bytes
        self.name = name
        self.idle_s = idle_s
        self.outgoing = NOTHING
        self.client_ended = False

    async def receive(self) -> bytes:
        """Return the upstream's next bytes; b"" once it has ended, is lost, or both sides were silent."""
        if self.first_bytes:
            first, self.first_bytes = self.first_bytes, b""
            return first
        upstream = self.upstream
        assert upstream is not None
        try:
            while True:
                data = await self.pass_on(upstream)
                if data is not None:
                    return data
        except (Timeout, OSError):
            return b""

    async def pass_on(self, upstream: Upstream) -> bytes | None:
        """Send the client's next bytes to the upstream, or return the upstream's. Raises as Upstream.receive()."""
        if self.outgoing:
            self.outgoing, data = await upstream.exchange(self.outgoing, self.idle_s)
            return data
        if self.client_ended:
            return await upstream.receive(self.idle_s)
        if await self.io.either(upstream.descriptor, self.idle_s):
            self.io.set_deadline(self.idle_s)
            self.outgoing = memoryview(await self.io.receive())
            if not self.outgoing:
                self.client_ended = True
                upstream.end_sending()
                return None
            try:
                self.outgoing = self.outgoing[upstream.send(self.outgoing) :]
            except OSError:
                pass  # the upstream has ended: first the client gets its last bytes
        return upstream.receive_now()

    async def close(self) -> None:
        """Close the connection to the upstream, which cannot carry another request."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            self.connections.release(upstream)
