"""Reads the PROXY header at the start of a connection, before TLS and before the first request.

    proxy ──▶ PROXY TCP4 203.0.113.9 192.0.2.1 56324 443 ──▶ [TLS handshake] ──▶ requests
              read_proxy_header(): sets the stream's client and server

With the setting proxy-protocol every connection must begin with a header, and only a peer of trusted-proxies may
send one: the protocol forbids a server to guess (section 2). ewe closes any other connection, with a line in the
error log. The header must arrive within head-timeout seconds.

Read next: http/proxy_header.py, the grammar.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ewe import logger
from ewe.http.proxy_header import Malformed, parse
from ewe.streams.base import Timeout
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.http.addresses import Networks
    from ewe.streams.base import Stream


async def read_proxy_header(stream: Stream, trusted: Networks, seconds: float) -> bytes | None:
    """Read the header, set the stream's client, server and scheme; return the bytes that came after the header.

    trusted: the peers whose headers count. seconds: the time limit for the whole header. Return None if the caller
    must close the connection. Raises Disconnected.
    """
    peer = stream.client[0]
    if peer not in trusted:
        logger.errors.info(
            f"{peer}: closed, since its PROXY header would not be believed (add it to trusted-proxies, or switch"
            " proxy-protocol off)"
        )
        return None
    began = time.monotonic()
    data = await stream.next_request(seconds)
    if not data:  # a proxy's health check: it connects and sends nothing
        return None
    stream.set_deadline(max(began + seconds - time.monotonic(), 0.001))
    try:
        while (found := parse(data)) is None:
            more = await stream.receive()
            if not more:
                raise Malformed(f"the peer ended within it, after {data[:20]!r}")
            data += more
    except Malformed as reason:
        logger.errors.info(f"{peer}: closed, its PROXY header is malformed: {reason} (proxy-protocol)")
        return None
    except Timeout:
        count_timeout("head")
        logger.errors.info(f"{peer}: closed, its PROXY header did not come in {seconds:g} s (head-timeout)")
        return None
    if found.client is not None and found.server is not None:
        stream.peer = stream.client
        stream.client, stream.server = found.client, found.server
    if found.secure:
        stream.scheme = "https"
    return data[found.size :]
