"""Responders: what a program answers that waits behind a socket: php-fpm, X-Switch, uWSGI.

    respond: find the script -> spool the body -> connect -> codec, both ways -> read the head, as of a program

The body is spooled first, so that no slow client holds a responder; then both directions go at once, for a
responder may answer before it has read all. Each protocol has a codec, the class Requester in one file: records.py
for FastCGI, scgi.py, uwsgi.py. The head is ewe.gateway.cgi's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.gateway import records as fastcgi
from ewe.gateway.cgi import GatewaySource, of_connection, of_request, response
from ewe.gateway.connections import Connections
from ewe.gateway.programs import ErrorLog
from ewe.gateway.records import Ended, Errors, FastCGIError, Output
from ewe.gateway.scripts import Script
from ewe.gateway.spool import EMPTY, Spooled, spooled
from ewe.gateway.upstream import Place, Upstream
from ewe.http.messages import NO_BODY, Request, Response
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.affinity import Affinity
    from ewe.http.limits import Limits
    from ewe.streams.base import Stream

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # methods without effects: RFC 9110 section 9.2.1
PIECE = 32 * 1024  # bytes of a body made into records at once
NOTHING = memoryview(b"")
COMPLETE = Ended(0, fastcgi.REQUEST_COMPLETE)
# Without REDIRECT_STATUS php-cgi thinks that it was called from outside.
NOT_OUTSIDE = ((b"REDIRECT_STATUS", b"200"),)

NOT_KNOWN: tuple[object, bytes] = (None, b"")


async def ask(
    connections: Connections,
    request: Request,
    io: Stream,
    script: Script,
    root: str,
    config: Config,
    limits: Limits,
    affinity: Affinity | None = None,
) -> Response:
    """Return a responder's answer. affinity: the cookie that leads a client to the same address again.

    Raises HTTPError: 502, 503, 504, and what reading the body raises.
    """
    body = EMPTY if request.body is NO_BODY else await spooled(request.body, config.spool)
    params = parameters(connections, request, io, script, body.length, root, NOT_OUTSIDE)
    source = ResponderSource(connections, request, io, params, body, script.name, config.program_timeout)
    if affinity is not None:
        source.preferred = affinity.preferred(request)
    try:
        await source.begin()
        found = await response(request, script, source, limits)
        if affinity is not None and source.place not in (None, affinity.preferred(request)):
            found.fields += (affinity.field(source.place, io.scheme),)
        return found
    except BaseException:
        source.end()
        raise


def parameters(
    connections: Connections,
    request: Request,
    io: Stream,
    script: Script,
    length: int,
    root: str,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """Return the meta-variables of a request, encoded; `more` are added. Raises HTTPError(431).

    Clients repeat their heads, and equal heads without a body share one Request. What does not depend on the
    client's connection is therefore remembered by the Request.
    """
    codec = connections.codec
    key = (script.file, script.name, script.path_info, io.server, io.scheme, root, more, io.variables)
    known, encoded = connections.known.get(request, NOT_KNOWN)
    if known != key:
        found = of_request(request, io, script, length, root)
        encoded = codec.encode_request(found | dict(more), length)
        connections.known[request] = (key, encoded)
    used, connection = io.params
    if used is not codec:
        connection = codec.encode_pairs(of_connection(io).items())
        io.params = (codec, connection)
    return encoded + connection


class ResponderSource(GatewaySource):
    """What a responder answers to one request. timeout: how long it may do nothing, in seconds."""

    # Most requests leave these as they are.
    arrived = b""
    heard = False  # anything at all
    answered = False  # output has come
    refused = False  # unread, by this address
    refused_by: frozenset[Place] = frozenset()
    preferred: Place | None = None  # the place to ask first
    place: Place | None = None  # that is asked
    status: int | None = None
    upstream: Upstream | None = None
    errors: ErrorLog | None = None

    def __init__(
        self,
        connections: Connections,
        request: Request,
        io: Stream,
        params: bytes,
        body: Spooled,
        name: str,
        timeout: float,
    ) -> None:
        super().__init__(name)
        self.connections = connections
        self.io = io
        self.safe = not body.length and request.method in SAFE
        self.params = params
        self.body = body
        self.timeout = timeout

    async def begin(self, new: bool = False) -> None:
        """Begin the request on a kept connection, unless it must be `new`, or on a new one. Raises HTTPError."""
        upstream = await self.connections.open(self.io, self.refused_by, new, self.preferred)
        self.upstream = upstream
        self.place = upstream.place
        self.written_before = upstream.written
        self.fresh = not upstream.written
        self.requester = self.connections.codec()
        self.offset = 0
        # The head and the first of the body leave in one system call where they are short.
        data = self.requester.begin_with(self.params, self.connections.keeps) + self.next_input()
        try:
            sent = upstream.send(data)
        except OSError:
            sent = 0  # receive() meets the same error, and decides what it means
        self.outgoing = NOTHING if sent == len(data) else memoryview(data)[sent:]

    async def receive(self) -> bytes:
        if self.left_over:
            return self.take_left_over()
        while not self.arrived and not self.finished:
            assert self.upstream is not None
            try:
                if self.outgoing or not self.input_over:
                    self.fill()
                    self.outgoing, data = await self.upstream.exchange(self.outgoing, self.timeout)
                else:
                    data = await self.upstream.receive(self.timeout)
            except Timeout:
                raise HTTPError(
                    504, f"{self.name}: silent for {self.timeout:g} s (program-timeout)"
                ) from None
            except OSError:
                await self.lost()
                continue
            if data:
                self.heard = True
                self.take(data)
                if self.refused:
                    await self.go_elsewhere()
            elif data is not None:
                await self.closed()
        arrived, self.arrived = self.arrived, b""
        return arrived

    def fill(self) -> None:
        """Have something to send, while there is something left of the body."""
        if not self.outgoing and not self.input_over:
            self.outgoing = memoryview(self.next_input())

    def next_input(self) -> bytes:
        """Return the records of the next piece of the body, with the end of it if it is the last."""
        data = b""
        if self.offset < self.body.length:
            data = os.pread(self.body.descriptor, PIECE, self.offset)
            self.offset += len(data)
        self.input_over = not data or self.offset == self.body.length
        records = self.requester.input(data) if data else b""
        return records + self.requester.input(b"") if self.input_over else records

    def take(self, data: bytes) -> None:
        """Take records. Raises HTTPError(502)."""
        if (output := self.requester.whole_output(data)) is not None:
            self.arrived = output
            self.over(COMPLETE)
            return
        try:
            events = self.requester.feed(data)
        except FastCGIError as reason:
            raise HTTPError(502, f"{self.name}: {reason}") from None
        for event in events:
            if isinstance(event, Output):
                self.answered = True
                self.arrived += event.data
            elif isinstance(event, Errors):
                self.errors = self.errors or ErrorLog(self.name)
                self.errors.take(event.data)
            else:
                self.over(event)

    def over(self, event: Ended) -> None:
        """The request has ended; the connection is free for another if all was sent."""
        if event.protocol_status == fastcgi.OVERLOADED and not self.answered:
            self.refused = True
            return
        if event.protocol_status != fastcgi.REQUEST_COMPLETE:
            raise HTTPError(502, f"{self.name}: the responder refuses it (status {event.protocol_status})")
        self.finished = True
        self.status = event.app_status
        if self.upstream is not None and self.input_over and not self.outgoing:
            self.connections.release(self.upstream, reusable=True)
            self.upstream = None
        self.end()

    async def closed(self) -> None:
        """The responder has closed the connection: the end of the answer, if the protocol has it so."""
        if self.answered and self.requester.ends_with_close:
            self.over(Ended(0, fastcgi.REQUEST_COMPLETE))
        else:
            await self.lost()

    async def lost(self) -> None:
        """Begin again on a new connection if the kept one has ended and that is safe. Raises HTTPError.

        A responder may close an idle connection just as a request begins on it. But it may also have taken the
        request, run it, and died: a request with effects would then have them twice (RFC 9110 section 9.2.2).
        ewe therefore sends a request again only if it is safe, or if nothing of it could be written.
        """
        assert self.upstream is not None
        untouched = self.upstream.written == self.written_before
        if self.heard or self.fresh or not (untouched or self.safe):
            raise HTTPError(502, f"{self.name}: the responder closed the connection within the answer")
        await self.begin_again()

    async def go_elsewhere(self) -> None:
        """Begin again at another address: this one has refused the request unread. Raises HTTPError(503)."""
        assert self.upstream is not None
        self.refused = self.heard = False
        self.refused_by |= {self.upstream.place}
        await self.begin_again()

    async def begin_again(self) -> None:
        """Give the connection up, and begin the request on a new one. Raises HTTPError."""
        assert self.upstream is not None
        upstream, self.upstream = self.upstream, None
        self.connections.release(upstream)
        await self.begin(new=True)

    def how_it_ended(self) -> str:
        if self.requester.ends_with_close:
            return "it closed the connection"
        return f"application status {self.status}"

    def end(self) -> None:
        """Let go of what is held; a responder that still works sees the connection close."""
        if self.upstream is not None:
            self.connections.release(self.upstream)
            self.upstream = None
        if self.errors is not None:
            self.errors.end()
            self.errors = None
        self.body.close()
