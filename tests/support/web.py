"""httpx for tests: clients that load no certificates.

httpx reads the system's certificates for each new client, which takes as long as thirty requests to a local server.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import httpx

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Client(httpx.Client):
    """A client of a server without TLS."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"verify": NO_CERTIFICATES, "timeout": 20, **more})


get = partial(httpx.get, verify=NO_CERTIFICATES, timeout=20)
head = partial(httpx.head, verify=NO_CERTIFICATES, timeout=20)
post = partial(httpx.post, verify=NO_CERTIFICATES, timeout=20)
stream = partial(httpx.stream, verify=NO_CERTIFICATES)
