"""Reads the PROXY header with which a connection begins, before TLS and before the first request.

    proxy ──▶ PROXY TCP4 203.0.113.9 192.0.2.1 56324 443 ──▶ [TLS handshake] ──▶ requests
              announced(): sets the stream's client and server

With the setting proxy-protocol every connection must begin with a header, and only a peer of trusted-proxies may
send one: the protocol forbids a server to guess (section 2). A connection that does neither is closed, with a
line in the error log. The header has head-timeout seconds to come.

Read next: http/proxy_header.py, the grammar.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ewe import logger
from ewe.http.proxy_header import Malformed, parse
from ewe.streams.base import Timeout

if TYPE_CHECKING:
    from ewe.http.addresses import Networks
    from ewe.streams.base import Stream


async def announced(stream: Stream, trusted: Networks, seconds: float) -> bytes | None:
    """Read the header, set the stream's client, server and scheme; return the bytes that have come after it.

    None: the connection is to be closed. Raises Disconnected.
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
    if not data:  # a proxy that only looks whether the server listens
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
        logger.errors.info(f"{peer}: closed, its PROXY header did not come in {seconds:g} s (head-timeout)")
        return None
    if found.client is not None and found.server is not None:
        stream.peer = stream.client
        stream.client, stream.server = found.client, found.server
    if found.secure:
        stream.scheme = "https"
    return data[found.size :]
