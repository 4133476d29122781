"""httpx for tests: clients that load no certificates.

httpx reads the system's certificates for each new client, which takes as long as thirty requests to a local server.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import httpx

PATIENCE_S = 60  # a server on a busy machine answers within this time, or never
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Client(httpx.Client):
    """A client of a server without TLS."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"verify": NO_CERTIFICATES, "timeout": PATIENCE_S, **more})


get = partial(httpx.get, verify=NO_CERTIFICATES, timeout=PATIENCE_S)
head = partial(httpx.head, verify=NO_CERTIFICATES, timeout=PATIENCE_S)
post = partial(httpx.post, verify=NO_CERTIFICATES, timeout=PATIENCE_S)
stream = partial(httpx.stream, verify=NO_CERTIFICATES, timeout=PATIENCE_S)
