"""The conversation: read requests and send responses, over any stream. Only this module speaks HTTP with clients.

A client opens a connection and sends a request, and the server answers. Both may continue for hours on the same
connection. The whole dialogue on one connection is a *conversation*, and one request with its response is an
*exchange*:

    client                                          server, converse()
    ------                                          ------------------
    GET /a.html HTTP/1.1 ...          ──head──▶     next_request(), read_request()
                                                    answer(): the site's features make a Response
                                      ◀─head──      send_response()
                                      ◀─body──
                                                    end_exchange(): keep the connection, or close it?
    POST /cgi-bin/form.py HTTP/1.1    ──head──▶
    Expect: 100-continue                            a feature asks for the body ...
                                      ◀─100───      ... and the server asks the client to send it (ewe.body)
    name=Ada                          ──body──▶
                                      ◀─head──
                                      ◀─body──

This module does not know which concurrency model runs it. The stream decides whether an `await` pauses: over a
blocking socket it never does, over an event loop every wait does (ewe.streams.base).

**Keep-alive.** HTTP/1.1 keeps a connection open for the next request, unless the client or the server sends
`Connection: close`. HTTP/1.0 closes it, unless the client asks for `keep-alive` (RFC 9112 section 9.3). The server
may have other reasons to close: may_keep_alive() lists them. A client may send its next requests before it has the
first response (pipelining). The bytes after a request are `pending`: the loop begins with them.

**The end of a request** must be known before the next request can be read. A feature may leave the body of its
request unread, so end_exchange() reads and drops a short rest. The connection closes if the rest is long, since
reading it would cost too much. It also closes after a refused head, whose end is usually unknown.

**Lingering close.** If the server closed a connection while the client still sends, the kernel would answer those
bytes with a reset, and the client could lose a response that it has not read yet. If bytes have arrived before the
close, or must still come, the server therefore first closes only its own side, then reads and drops the client's
bytes for a moment, then closes the connection: Stream.linger(), RFC 9112 section 9.6. Bytes that arrive after an
ordinary close still lead to a reset.

**The end of a conversation.** The client closes, or is silent, between two requests (b""). It leaves during an
exchange (Disconnected), sends too slowly (408), or reads too slowly (Timeout). The server stops. may_keep_alive()
returns False. A body is not read to its end. Or only the close can mark the end of a response. A failure before the
response begins becomes a status, in answer() or refuse(). After the response has begun, no other status can be
sent: the connection is aborted (ewe.response_writer).

Read next: ewe.response_writer, which sends a response; ewe.http.parser, the syntax of a head; ewe.site, the
features; ewe.streams.base, the promises of a stream.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ewe import logger
from ewe.body import Body
from ewe.http.error_pages import error_page
from ewe.http.fields import fields_of_head
from ewe.http.lines import check_partial_head
from ewe.http.messages import MAX_CACHED_HEAD_CHARS, NO_BODY, Request, Response
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError
from ewe.response_writer import ends_conversation, fault_response, log_exchange, send_response
from ewe.streams.base import TURN_BYTES, Disconnected, Stream, Timeout
from ewe.streams.descriptors import EXHAUSTED
from ewe.timeouts import count_partial_head

if TYPE_CHECKING:
    from ewe.site import Site

# Browsers and load generators send the same heads again and again, so a site caches heads, byte for byte, with
# their Requests. It caches only short heads of requests without a body. A full cache drops all its entries.
MAX_HEADS = 1024
TURN_S = 0.002  # exchanges that take this time together count as TURN_BYTES, even if they send little
MAX_LOGGED_LINE_BYTES = 200  # of the request line of a refused head
# Only for the access log, with nginx's status: the client left before its response began.
CLIENT_LEFT = Response(499)


async def converse(stream: Stream, site: Site, pending: bytes = b"") -> None:
    """Run one client's conversation: read requests and answer them, until either side closes.

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
            # After most requests end_exchange() has nothing to do, so the call is saved.
            if pending or not keep_alive or request.body is not NO_BODY:
                keep_alive, pending = await end_exchange(stream, request, pending, keep_alive, began)
            if not keep_alive:
                return
            pending = pending or await stream.next_request(site.idle_s)
    except RefusedHead as refused:
        await refuse(stream, refused, began)
    except (Timeout, Disconnected):
        return  # the client has left, reads too slowly, or its response was aborted: no more bytes can be sent


def may_keep_alive(stream: Stream, site: Site, request: Request) -> bool:
    """Return whether the connection may stay open after this request. The response may still close it.

    Return False if the client or the settings forbid keep-alive; if this process retires, stops, or has new
    settings (stopping); if this was the last request that a connection may send (setting `requests`); or if too
    much of the request's body is unread.
    """
    return (
        request.keep_alive
        and site.persistent
        and not stream.stopping
        and stream.requests != site.config.requests  # 0, no limit, never equals a count of 1 or more
        and (request.body is NO_BODY or request.body.may_be_skipped())
    )


async def end_exchange(
    stream: Stream, request: Request, pending: bytes, keep_alive: bool, began: float
) -> tuple[bool, bytes]:
    """Read to the beginning of the next request, or let the client read the response before the close.

    pending: the bytes after the request's head, if it has no body. began: the time.perf_counter() at which the
    exchange began. Returns whether the connection is kept, and the bytes of the next request that have arrived.

    Raises Disconnected.
    """
    body = request.body
    if body is not NO_BODY:
        if keep_alive:
            keep_alive = await body.skip()
        pending = body.pending
    if keep_alive:
        if pending:
            # The next request is here already, so this conversation does not wait: share() lets others run.
            await stream.share(int((time.perf_counter() - began) / TURN_S * TURN_BYTES))
    elif (
        pending
        or not body.finished
        # Has the next request arrived before the close? A client that has asked for the close sends none. Over TLS
        # it may have sent close_notify.
        or ((request.keep_alive or stream.scheme == "https") and stream.has_unread_bytes())
    ):
        await stream.linger()
    return keep_alive, pending


async def converse_behind_proxy(stream: Stream, site: Site) -> None:
    """Read the PROXY header, in which a proxy tells the client's address, and run the conversation after it."""
    from ewe.gateway.proxy_protocol import read_proxy_header

    assert site.proxies is not None
    listens_at = stream.server
    try:
        pending = await read_proxy_header(stream, site.proxies.networks, site.config.head_timeout)
    except Disconnected:
        return
    if pending is None:  # the header is refused, or a proxy only checked that the server lives
        return
    if site.tls is None:
        await converse(stream, site, pending)
    else:
        await converse_securely(stream, site, pending, listens_at)


async def converse_securely(
    stream: Stream, site: Site, pending: bytes = b"", listens_at: tuple[str, int] | None = None
) -> None:
    """Run a conversation over TLS, or without it where the sites at this address have no certificate.

    pending: bytes that have been read already. listens_at: the (address, port) of the listening socket; None:
    stream.server, which a PROXY header replaces.
    """
    from ewe.streams.tls import SecureStream

    assert site.tls is not None
    listens_at = listens_at or stream.server
    if site.plain_at is not None and listens_at in site.plain_at:
        await converse(stream, site, pending)
        return
    secure = SecureStream(stream, site.tls, listens_at)
    if pending:
        secure.keep_encrypted(pending)
    try:
        agreed = await secure.handshake(site.config.tls_timeout)
    except (Timeout, Disconnected):
        return
    if agreed:
        await converse(secure, site)
        await secure.send_close_notify()


def recall(site: Site, pending: bytes) -> tuple[Request, bytes] | None:
    """Return the request if the pending bytes are exactly one head in the site's cache; else None."""
    # Hashing many pipelined requests costs more than parsing one head.
    if len(pending) <= MAX_CACHED_HEAD_CHARS:
        # get() is not used: on a Python without the GIL it takes a lock that all threads share.
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
        end = pending.find(b"\r\n\r\n") + 4
        # Almost every head is complete, and begins with its request line: then there is nothing to wait for.
        if end > 4 and pending[:1] != b"\r":
            head, pending = pending[:end], pending[end:]
        else:
            head, pending = await read_head(stream, site, pending)
        request = site.heads.get(head) or parse_request(head, site.limits)
        is_https = request.target[0] in "hH" and request.target[:6].lower() == "https:"
        if is_https and stream.scheme != "https":  # RFC 9110 section 7.4
            raise HTTPError(421, "an https URL over a connection that is not secured")
    except HTTPError as error:
        raise RefusedHead(error, head, fields_of_head(head, site.limits)) from None
    if request.length == 0:
        # An https URL is not cached: some connections refuse it, and others do not.
        if not is_https and len(head) <= MAX_CACHED_HEAD_CHARS:
            if len(site.heads) >= MAX_HEADS:
                site.heads.clear()
            site.heads[head] = request
        return request, pending
    request.body = Body(stream, request, pending, site.limits, site.config.body_timeout)
    return request, b""


async def read_head(stream: Stream, site: Site, pending: bytes) -> tuple[bytes, bytes]:
    """Return a head with its empty line, and the bytes after it.

    Raises RefusedHead: 408 if the head is not complete in time (head-timeout), 400 if the client closes its side
    within the head, and the errors of check_partial_head(). Raises Disconnected if the client closes its side
    before the head.
    """
    timeout = site.config.head_timeout
    timed = False
    checked = 0
    pending, skipped = without_empty_line(pending)
    try:
        while (end := pending.find(b"\r\n\r\n")) < 0:
            checked = check_partial_head(pending, site.limits, checked)
            if not timed:  # the deadline is for the whole head, and not for each piece
                stream.set_deadline(timeout)
                timed = True
                count_partial_head(1)
            data = await stream.receive()
            if not data:
                if not pending:
                    raise Disconnected
                raise HTTPError(400, "the client ended within a head")
            pending += data
            if not skipped and not checked:  # CR and LF may come separately
                pending, skipped = without_empty_line(pending)
    except Timeout:
        late = HTTPError(408, f"the head did not come in {timeout:g} s (head-timeout)")
        raise RefusedHead(late, pending) from None
    except HTTPError as error:
        raise RefusedHead(error, pending) from None
    finally:
        if timed:
            count_partial_head(-1)
    return pending[: end + 4], pending[end + 4 :]


def without_empty_line(pending: bytes) -> tuple[bytes, bool]:
    """Drop the empty line that may precede a request line (RFC 9112 section 2.2); return whether there was one."""
    return pending.removeprefix(b"\r\n"), pending.startswith(b"\r\n")


class RefusedHead(Exception):
    """ewe refuses a head before a feature gets its request. head: its bytes that have come. fields: for the log.

    The head is malformed, too long or too slow, or ewe does not support the request: a body above max-body (413), a
    method that is too long (501), an encoded slash (404). The end of such a request is usually unknown, so the
    connection closes after each of them.
    """

    def __init__(self, error: HTTPError, head: bytes, fields: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(error, head)
        self.error = error
        self.head = head
        self.fields = fields


async def answer(stream: Stream, site: Site, request: Request, began: float) -> Response:
    """Return the site's response. Only this function turns the exceptions of features into a status.

    Raises Disconnected if the client leaves meanwhile. The access log then records the request with the status 499,
    because a program may have run for it. Each other exception is a fault of the feature, also SystemExit, and a
    Timeout of its io.call(). KeyboardInterrupt is one, too: a server that serves has handlers for its signals.
    """
    response: Response
    try:
        if request.length is None:
            if stream.endpoints is not None:  # a proxy's previous request may have named another client
                stream.client = stream.endpoints.client
            await request.body.look_ahead()
        response = await site.respond(request, stream)
    except HTTPError as error:
        response = error_page(error.status, error.cause, error.fields)
    except OSError as reason:
        if reason.errno in EXHAUSTED:
            response = error_page(503, f"{reason.strerror}", (("Retry-After", "1"),))
        else:
            response = fault_response(stream, request)
    except BaseException as reason:
        if ends_conversation(stream, reason):
            if logger.access.enabled:
                log_exchange(stream, request, CLIENT_LEFT, 0, began, logger.ABORTED)
            raise
        response = fault_response(stream, request)
    stream.requests += 1
    return response


async def refuse(stream: Stream, refused: RefusedHead, began: float) -> None:
    """Answer a request whose head was refused, and end the connection. began: as in end_exchange()."""
    error = refused.error
    head = refused.head
    if stream.endpoints is not None:  # a trusted proxy may have named another client in its previous request
        stream.client = stream.endpoints.client
    if error.offset is not None:
        # Keep only the bytes up to the faulty one, so that the log line does not depend on how many have arrived.
        head = head[: error.offset + 1]
    line = head[:MAX_LOGGED_LINE_BYTES].partition(b"\r\n")[0].decode("latin-1")
    request = Request("HEAD" if line.startswith("HEAD ") else "", "", (1, 1), refused.fields)
    request.line = line
    response = error_page(error.status, error.cause, error.fields)
    try:
        await send_response(stream, request, response, keep_alive=False, began=began)
        await stream.linger()
    except (Timeout, Disconnected):
        return  # the client did not wait for the response


def busy_response() -> bytes:
    """Return the whole response for a connection that exceeds a limit of the server."""
    page = error_page(503, "", (("Retry-After", "1"),))
    assert isinstance(page.body, bytes)
    return page.encoded() + b"Connection: close\r\n\r\n" + page.body


BUSY = busy_response()
