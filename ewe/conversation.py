"""The conversation: requests in, responses out, over any stream. The one place that speaks HTTP to a client.

A client opens a connection and sends a request; the server answers; both may go on for hours on the same
connection. One such connection, from its first byte to its last, is a *conversation*, and one request with
its response is an *exchange*:

    client                                          server, converse()
    ------                                          ------------------
    GET /a.html HTTP/1.1 ...          ──head──▶     next_request(), read_request()
                                                    answer(): the site's features make a Response
                                      ◀─head──      send_response()
                                      ◀─body──
                                                    end_exchange(): keep the connection, or close it?
    POST /cgi-bin/form.py HTTP/1.1    ──head──▶
    Expect: 100-continue                            a feature asks for the body ...
                                      ◀─100───      ... so the client is told to send it (ewe.body)
    name=Ada                          ──body──▶
                                      ◀─head──
                                      ◀─body──

Nothing here knows which concurrency model runs it. The stream decides what `await` means: over a blocking
socket nothing ever pauses, over an event loop every wait pauses (ewe.streams.base).

**Keep-alive.** HTTP/1.1 keeps a connection open for the next request unless client or server says
`Connection: close`; HTTP/1.0 closes it unless the client asks for `keep-alive` (RFC 9112 section 9.3). The
server, too, has reasons to close: may_keep_alive() lists them. A client may send its next requests
before it has the first response (pipelining): the bytes that follow a request are `pending`, and the loop
starts with them instead of waiting.

**Where a request ends** has to be known before the next one can be read. A feature need not read its request's
body, so end_exchange() reads a short remainder and drops it. The connection closes if the remainder is long (to
read it costs too much), or if the head was refused (of most refused heads nobody knows where the request ends).

**Lingering.** If the server closed a connection while the client still sends, the kernel would answer those
bytes with a reset, and the client could lose a response that it has not read yet. The server therefore first ends
only its side, reads for a moment what still comes, then closes: Stream.linger(), RFC 9112 section 9.6.

**What ends a conversation**: the client closes or is silent between requests (b""), leaves during an exchange
(Disconnected), sends too slowly (408), or reads too slowly (Timeout); a stop of the server; one of the reasons in
may_keep_alive(); a body that is not read to its end; a response whose end only the close can mark. What goes wrong
before the response begins becomes a status, in answer() or refuse(). Once the response has begun, no other status
can be sent: the connection is cut (ewe.response_writer).

Read next: ewe.response_writer (how a response is sent), ewe.http.parser (what a head may be), ewe.site (which
feature answers), ewe.streams.base (what a stream promises).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ewe import logger
from ewe.body import Body
from ewe.http.error_pages import error_page
from ewe.http.messages import MAX_REMEMBERED, NO_BODY, Request, Response
from ewe.http.parser import check_partial_head, parse_request
from ewe.http.status import HTTPError
from ewe.response_writer import fault, log, send_response
from ewe.streams.base import SHARE, Disconnected, Stream, Timeout
from ewe.streams.descriptors import EXHAUSTED

if TYPE_CHECKING:
    from ewe.site import Site

# Browsers and load generators repeat themselves, so a site remembers heads, byte for byte, with their Request.
# Only short heads of requests without a body are remembered. When there are too many, all are forgotten at once.
MAX_HEADS = 1024
LONG_SECONDS = 0.002  # an exchange that takes longer is work enough for one turn, however little it sends
# For the access log alone, as nginx writes it: the client left before its response began.
CLIENT_LEFT = Response(499)


async def converse(stream: Stream, site: Site, pending: bytes = b"") -> None:
    """Hold one client's conversation: read requests and answer them, until either side closes.

    pending: bytes of the first request that have been read already.
    """
    try:
        pending = pending or await stream.next_request(site.config.head_timeout)
        while pending:
            began = time.perf_counter()
            request, pending = recall(site, pending) or await read_request(stream, site, pending)
            response = await answer(stream, site, request, began)
            keep_alive = may_keep_alive(stream, site, request)
            keep_alive = await send_response(stream, request, response, keep_alive, began)
            # After most requests nothing is left to read or to end, and the call is saved.
            if pending or not keep_alive or request.body is not NO_BODY:
                keep_alive, pending = await end_exchange(stream, request, pending, keep_alive, began)
            if not keep_alive:
                return
            pending = pending or await stream.next_request(site.idle)
    except RefusedHead as refused:
        await refuse(stream, refused, began)
    except (Timeout, Disconnected):
        return  # The client has left, reads too slowly, or its response was cut: nothing more can be sent.


def may_keep_alive(stream: Stream, site: Site, request: Request) -> bool:
    """May the connection stay open after this request? Its response may still say otherwise.

    Not if the client or the settings forbid it, if this process retires, stops, or has new settings (stopping), if
    this was the last request that a connection may make (setting `requests`), or if too much of the request's body
    is unread.
    """
    return (
        request.keep_alive
        and site.persistent
        and not stream.stopping
        and stream.requests != site.config.requests
        and (request.body is NO_BODY or request.body.may_be_skipped())
    )


async def end_exchange(
    stream: Stream, request: Request, pending: bytes, keep_alive: bool, began: float
) -> tuple[bool, bytes]:
    """Leave the stream where the next request begins, or end it.

    pending: the bytes after the request's head, if it has no body. Returns whether the connection is kept, and
    what has arrived of the next request.
    """
    body = request.body
    if body is not NO_BODY:
        if keep_alive:
            keep_alive = await body.skip()
        pending = body.pending
    if keep_alive:
        if pending and time.perf_counter() - began > LONG_SECONDS:
            await stream.share(SHARE)
    elif pending or not body.finished:
        await stream.linger()
    return keep_alive, pending


async def converse_announced(stream: Stream, site: Site) -> None:
    """Hold a conversation that begins with a header of the PROXY protocol."""
    from ewe.gateway.proxy_protocol import announced

    assert site.proxies is not None
    try:
        pending = await announced(stream, site.proxies.networks, site.config.head_timeout)
    except Disconnected:
        return
    if pending is not None:
        await (converse if site.tls is None else converse_securely)(stream, site, pending)


async def converse_securely(stream: Stream, site: Site, pending: bytes = b"") -> None:
    """Hold a conversation over TLS. pending: bytes of the handshake that have been read already."""
    from ewe.streams.tls import SecureStream

    assert site.tls is not None
    if site.plain_at is not None:
        server = stream.server if stream.connected is None else stream.connected.server
        if server in site.plain_at:
            await converse(stream, site, pending)
            return
    secure = SecureStream(stream, site.tls)
    if pending:
        secure.take(pending)
    try:
        agreed = await secure.handshake(site.config.tls_timeout)
    except (Timeout, Disconnected):
        return
    if agreed:
        await converse(secure, site)
        await secure.goodbye()


def recall(site: Site, pending: bytes) -> tuple[Request, bytes] | None:
    """Return the request if the pending bytes are exactly one head that this site remembers."""
    # Hashing many pipelined requests costs more than parsing one head.
    if len(pending) <= MAX_REMEMBERED:
        # Not get(): on a Python without the GIL it takes a lock that all threads share.
        try:
            return site.heads[pending], b""
        except KeyError:
            pass
    return None


async def read_request(stream: Stream, site: Site, pending: bytes) -> tuple[Request, bytes]:
    """Return the request that begins with the pending bytes, and the bytes after its head if it has no body.

    The bytes after the head of a request with a body are in its Body. Raises RefusedHead, Disconnected.
    """
    head = b""
    try:
        head, pending = await read_head(stream, site, pending)
        request = site.heads.get(head) or parse_request(head, site.limits)
        if stream.scheme != "https" and request.target[:6].lower() == "https:":  # RFC 9110 section 7.4
            raise HTTPError(421, "an https URL over a connection that is not secured")
    except HTTPError as error:
        raise RefusedHead(error, head) from None
    if request.length == 0:
        remember(site, head, request)
        return request, pending
    request.body = Body(stream, request, pending, site.limits, site.config.body_timeout)
    return request, b""


def remember(site: Site, head: bytes, request: Request) -> None:
    """Remember what a head means. Two exchanges may then share the Request, which is never changed.

    An https URL is not remembered: whether it is refused depends on the connection.
    """
    if len(head) <= MAX_REMEMBERED and request.target[:6].lower() != "https:":
        if len(site.heads) >= MAX_HEADS:
            site.heads.clear()
        site.heads[head] = request


async def read_head(stream: Stream, site: Site, pending: bytes) -> tuple[bytes, bytes]:
    """Return a head, its empty line included, and the bytes after it.

    Raises RefusedHead: 408 when the head is not complete in time (head-timeout), 400 when the client ends
    within it, and as check_partial_head(). Raises Disconnected if the client ends before the head begins.
    """
    timeout = site.config.head_timeout
    timed = False
    checked = 0
    pending, skipped = without_empty_line(pending)
    try:
        while (end := pending.find(b"\r\n\r\n")) < 0:
            checked = check_partial_head(pending, site.limits, checked)
            if not timed:  # The deadline is for the whole head, however many pieces it comes in.
                stream.set_deadline(timeout)
                timed = True
            data = await stream.receive()
            if not data:
                if not pending:
                    raise Disconnected
                raise HTTPError(400, "the client ended within a head")
            pending += data
            if not skipped and not checked:
                pending, skipped = without_empty_line(pending)
    except Timeout:
        late = HTTPError(408, f"the head did not come in {timeout:g} s (head-timeout)")
        raise RefusedHead(late, pending) from None
    except HTTPError as error:
        raise RefusedHead(error, pending) from None
    return pending[: end + 4], pending[end + 4 :]


def without_empty_line(pending: bytes) -> tuple[bytes, bool]:
    """Drop the empty line that may precede a request line (RFC 9112 section 2.2); return whether there was one."""
    return pending.removeprefix(b"\r\n"), pending.startswith(b"\r\n")


class RefusedHead(Exception):
    """A head that ewe refuses before any feature sees its request. head: what has arrived of it.

    It is malformed or too long, comes too slowly, or asks for what ewe does not do: a body past max-body (413), a
    method that is too long (501), an encoded slash (404). Of most of them nobody knows where the request ends. The
    connection therefore closes after each of them.
    """

    def __init__(self, error: HTTPError, head: bytes) -> None:
        super().__init__(error, head)
        self.error = error
        self.head = head


async def answer(stream: Stream, site: Site, request: Request, began: float) -> Response:
    """Return the site's response; what a feature raises becomes a status here, and only here.

    Raises Timeout or Disconnected if the client left meanwhile. The access log then has the request with
    status 499, because a program may have run for it all the same.
    """
    response: Response
    try:
        if request.length is None:
            if stream.connected is not None:  # the client of the request before may be another
                stream.client = stream.connected.client
            await request.body.look_ahead()
        response = await site.respond(request, stream)
    except HTTPError as error:
        response = error_page(error.status, error.cause, error.fields)
    except (Timeout, Disconnected):
        if logger.access.enabled:
            log(stream, request, CLIENT_LEFT, 0, began, "X")
        raise
    except OSError as reason:
        if reason.errno in EXHAUSTED:
            response = error_page(503, f"{reason.strerror}", (("Retry-After", "1"),))
        else:
            response = fault(stream, request)
    except Exception:
        response = fault(stream, request)
    stream.requests += 1
    return response


async def refuse(stream: Stream, refused: RefusedHead, began: float) -> None:
    """Answer a request whose head was refused, and end the connection."""
    error = refused.error
    head = refused.head
    if stream.connected is not None:  # the client of the request before is not this one's
        stream.client = stream.connected.client
    if error.place is not None:
        # Cut after the byte at fault, so that the log line does not depend on how many bytes had arrived.
        head = head[: error.place + 1]
    line = head[:200].partition(b"\r\n")[0].decode("latin-1")
    request = Request("HEAD" if line.startswith("HEAD ") else "", "", (1, 1))
    request.line = line
    response = error_page(error.status, error.cause, error.fields)
    try:
        await send_response(stream, request, response, False, began)
        await stream.linger()
    except (Timeout, Disconnected):
        return  # The client did not wait for the answer.


def busy() -> bytes:
    """Return the whole response to a connection that the server has no room for."""
    page = error_page(503, "", (("Retry-After", "1"),))
    assert isinstance(page.body, bytes)
    return page.encoded() + b"Connection: close\r\n\r\n" + page.body


BUSY = busy()
