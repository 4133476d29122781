"""Responders: the answers of programs that wait behind a socket: php-fpm, X-Switch, uWSGI.

    respond: find the script -> spool the body -> connect -> codec, both ways -> read the head, as of a CGI program

The body is spooled first, so that no slow client occupies a responder. Then both directions go at once, because a
responder may answer before it has read the whole body. Each protocol has a codec, the class Requester in one file:
records.py for FastCGI, scgi.py, uwsgi.py. The head of the answer is parsed by ewe.gateway.cgi.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.gateway import records as fastcgi
from ewe.gateway.cgi import GatewaySource, connection_variables, request_variables, response
from ewe.gateway.connections import Connections
from ewe.gateway.programs import StderrLog
from ewe.gateway.records import Ended, Errors, FastCGIError, Output
from ewe.gateway.scripts import Script
from ewe.gateway.spool import EMPTY, Spooled, spooled
from ewe.gateway.upstream import Upstream, UpstreamAddress
from ewe.http.messages import NO_BODY, Request, Response
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.affinity import Affinity
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # methods without effects: RFC 9110 section 9.2.1
PIECE_BYTES = 32 * 1024  # of a body, made into records at once
NOTHING = memoryview(b"")
COMPLETE = Ended(0, fastcgi.REQUEST_COMPLETE)
# Without this variable php-cgi assumes that a client calls it directly, and refuses to run.
CALLED_BY_SERVER = ((b"REDIRECT_STATUS", b"200"),)
NOT_CACHED: tuple[object, bytes] = (None, b"")  # in place of an entry of params_of_requests


async def ask(
    connections: Connections,
    request: Request,
    io: Stream,
    script: Script,
    root: str,
    config: Config,
    limits: RequestLimits,
    affinity: Affinity | None = None,
) -> Response:
    """Return a responder's answer. root: the document root, for the variables.

    affinity: the cookie that leads a client to the same address again; None: any address answers. Raises HTTPError:
    502, 503, 504, 431 for variables that the protocol cannot carry, and the errors of reading the body.
    """
    body = EMPTY if request.body is NO_BODY else await spooled(request.body, config.spool)
    try:
        params = parameters(connections, request, io, script, body.length, root, CALLED_BY_SERVER)
    except BaseException:
        body.close()
        raise
    source = ResponderSource(connections, request, io, params, body, script.name, config.program_timeout)
    if affinity is not None:
        source.preferred = affinity.preferred(request)
    try:
        await source.begin()
        answer = await response(request, script, source, limits)
        if affinity is not None and source.address not in (None, source.preferred):
            answer.fields += (affinity.field(source.address, io.scheme),)
        return answer
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

    length: of the request's body, in bytes. root: the document root.

    Clients repeat their heads, and equal heads without a body share one Request. Variables that do not depend on
    the client's connection are therefore encoded once for each Request.
    """
    codec = connections.codec
    key = (script.file, script.name, script.path_info, io.server, io.scheme, root, more, io.variables)
    cached_key, encoded = connections.params_of_requests.get(request, NOT_CACHED)
    if cached_key != key:
        variables = request_variables(request, io, script, length, root)
        encoded = codec.encode_request(variables | dict(more), length)
        connections.params_of_requests[request] = (key, encoded)
    params_codec, connection = io.gateway_params  # the connection's variables, once encoded for a codec
    if params_codec is not codec:
        connection = codec.encode_pairs(connection_variables(io).items())
        io.gateway_params = (codec, connection)
    return encoded + connection


class ResponderSource(GatewaySource):
    """A responder's answer to one request, as the body of the response: begin() first, then receive() until b"".

    is_first_request: of the connection. written_before: the bytes that the connection has sent for earlier ones.
    outgoing: the bytes of the request that are to be sent next. offset: the bytes of the body that were read for
    them. body_over: the whole body was read.
    """

    # Defaults of the class: most requests never change them.
    output_buffer = b""  # output that receive() has not returned yet
    has_received = False  # any byte has come
    has_output = False  # output has come
    was_refused = False  # this address refused the request unread
    refused_by: frozenset[UpstreamAddress] = frozenset()  # the addresses that have refused it
    preferred: UpstreamAddress | None = None  # the address to ask first
    address: UpstreamAddress | None = None  # the address in use
    status: int | None = None
    upstream: Upstream | None = None
    stderr_log: StderrLog | None = None

    def __init__(
        self,
        connections: Connections,
        request: Request,
        io: Stream,
        params: bytes,
        body: Spooled,
        name: str,
        timeout_s: float,
    ) -> None:
        """params: the request's variables, encoded by parameters(). body: the request's; end() closes it.

        name: of the script, for messages. timeout_s: how long the responder may send and read nothing.
        """
        super().__init__(name)
        self.connections = connections
        self.io = io
        # The request may be sent a second time if its connection is lost (repeat_or_raise()).
        self.is_repeatable = not body.length and request.method in SAFE
        self.params = params
        self.body = body
        self.timeout_s = timeout_s

    async def begin(self, must_be_new: bool = False) -> None:
        """Take a kept connection, unless it must be new, or a new one, and send the beginning of the request.

        Raises HTTPError.
        """
        upstream = await self.connections.open(self.io, self.refused_by, must_be_new, self.preferred)
        self.upstream = upstream
        self.address = upstream.address
        self.written_before = upstream.written_bytes
        self.is_first_request = not upstream.written_bytes
        # One Requester for all requests of a connection: it gives each of them another id. A record that comes
        # after the end of its request is then never taken for the answer to the next client.
        upstream.requester = upstream.requester or self.connections.codec()
        self.requester = upstream.requester
        self.offset = 0
        # Head and first piece of the body leave in one system call if they are short.
        data = self.requester.begin_with(self.params, self.connections.keeps) + self.next_input()
        try:
            sent = upstream.send(data)
        except OSError:
            sent = 0  # receive() meets the end of the connection, and handles it
        self.outgoing = NOTHING if sent == len(data) else memoryview(data)[sent:]

    async def receive(self) -> bytes:
        """Return the next output of the responder; send the rest of the request meanwhile. b"" at the end.

        Raises HTTPError(504) if the responder is silent for too long.
        """
        if self.body_start:
            return self.take_body_start()
        while not self.output_buffer and not self.finished:
            assert self.upstream is not None
            try:
                if not self.outgoing and not self.body_over:
                    self.outgoing = memoryview(self.next_input())
                if self.outgoing:
                    self.outgoing, data = await self.upstream.exchange(self.outgoing, self.timeout_s)
                else:
                    data = await self.upstream.receive(self.timeout_s)
            except Timeout:
                count_timeout("program")
                raise HTTPError(
                    504, f"{self.name}: silent for {self.timeout_s:g} s (program-timeout)"
                ) from None
            except OSError:
                await self.repeat_or_raise()
                continue
            if data:
                self.has_received = True
                self.handle_data(data)
                if self.was_refused:
                    await self.try_other_address()
            elif data is not None:
                await self.handle_close()
        output, self.output_buffer = self.output_buffer, b""
        return output

    def next_input(self) -> bytes:
        """Return the records of the next piece of the body; if it is the last, with the record of the end."""
        data = b""
        if self.offset < self.body.length:
            data = os.pread(self.body.descriptor, PIECE_BYTES, self.offset)
            self.offset += len(data)
        self.body_over = not data or self.offset == self.body.length
        records = self.requester.input(data) if data else b""
        return records + self.requester.input(b"") if self.body_over else records

    def handle_data(self, data: bytes) -> None:
        """Handle bytes of the answer. Raises HTTPError(502)."""
        # Most answers are one record of output and the end, in one piece
        if (output := self.requester.take_whole_output(data)) is not None:
            self.output_buffer = output
            self.end_response(COMPLETE)
            return
        try:
            events = self.requester.feed(data)
        except FastCGIError as reason:
            raise HTTPError(502, f"{self.name}: {reason}") from None
        for event in events:
            if isinstance(event, Output):
                self.has_output = True
                self.output_buffer += event.data
            elif isinstance(event, Errors):
                self.stderr_log = self.stderr_log or StderrLog(self.name)
                self.stderr_log.take(event.data)
            else:
                self.end_response(event)

    def end_response(self, event: Ended) -> None:
        """Handle the end of the request, as the responder reports it.

        The connection is kept for another request if all bytes of this request were sent; otherwise it is closed.
        Raises HTTPError(502) if the responder refuses the request.
        """
        if event.protocol_status == fastcgi.OVERLOADED and not self.has_output:
            self.was_refused = True  # receive() then asks another address
            return
        if event.protocol_status != fastcgi.REQUEST_COMPLETE:
            raise HTTPError(502, f"{self.name}: the responder refuses it (status {event.protocol_status})")
        self.finished = True
        self.status = event.app_status
        if self.upstream is not None and self.body_over and not self.outgoing:
            # Bytes in the buffer have come after the end, and belong to no request. Close such a connection.
            reusable = self.connections.keeps and not self.requester.decoder.buffer
            self.connections.release(self.upstream, reusable=reusable)
            self.upstream = None
        self.end()

    async def handle_close(self) -> None:
        """Handle a closed connection: the end of the answer, if the protocol defines it so; else a lost request."""
        if self.has_output and self.requester.ends_with_close:
            self.end_response(Ended(0, fastcgi.REQUEST_COMPLETE))
        else:
            await self.repeat_or_raise()

    async def repeat_or_raise(self) -> None:
        """Begin again on a new connection if the kept one has ended and a repeat is safe. Raises HTTPError.

        A responder may close an idle connection just as a request begins on it. But it may also have accepted the
        request, run it, and died: a request with effects would then have them twice (RFC 9110 section 9.2.2).
        ewe therefore sends a request again only if it is safe, or if no byte of it could be written.
        """
        assert self.upstream is not None
        is_unsent = self.upstream.written_bytes == self.written_before
        if self.has_received or self.is_first_request or not (is_unsent or self.is_repeatable):
            how = "within the answer" if self.has_received else "without an answer"
            raise HTTPError(502, f"{self.name}: the responder closed the connection {how}")
        await self.begin_again()

    async def try_other_address(self) -> None:
        """Begin again at another address: this one has refused the request unread. Raises HTTPError(503)."""
        assert self.upstream is not None
        self.was_refused = self.has_received = False
        self.refused_by |= {self.upstream.address}
        await self.begin_again()

    async def begin_again(self) -> None:
        """Release the connection, and begin the request on a new one. Raises HTTPError."""
        assert self.upstream is not None
        upstream, self.upstream = self.upstream, None
        self.connections.release(upstream)
        await self.begin(must_be_new=True)

    def how_it_ended(self) -> str:
        """Return how the application has ended the request, for a message."""
        if self.requester.ends_with_close:
            return "it closed the connection"
        return f"application status {self.status}"

    def end(self) -> None:
        """Release connection, error log and body. A responder that still works sees the connection close."""
        if self.upstream is not None:
            self.connections.release(self.upstream)
            self.upstream = None
        if self.stderr_log is not None:
            self.stderr_log.end()
            self.stderr_log = None
        self.body.close()
