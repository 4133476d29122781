"""A FastCGI client with a blocking socket: for `ewe-xswitch status`, for measurements, for the tests.

One connection, one request at a time:

    with FastCGIClient("unix:/run/xswitch.sock", timeout_s=5) as client:
        print(client.ask({b"SCRIPT_FILENAME": b"/srv/hello.py", b"REQUEST_METHOD": b"GET"}))
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from ewe.config.setting_types import parse_address
from ewe.gateway.records import REQUEST_COMPLETE, Ended, Errors, Output, Requester

RECEIVE_BYTES = 64 * 1024  # of one recv(2)


class Response(NamedTuple):
    """A response. errors: standard error. complete: False if the connection was closed before the end, or
    if the server has refused the request (a protocol status other than 0).
    """

    output: bytes
    errors: bytes
    complete: bool


class FastCGIClient:
    """One connection. address: unix:PATH or HOST:PORT. timeout_s: of each call of the socket."""

    def __init__(self, address: str, timeout_s: float) -> None:
        """Connect. Raises OSError; ValueError for a malformed address."""
        if address.startswith("unix:"):
            self.sock = socket.socket(socket.AF_UNIX)
            try:
                self.sock.settimeout(timeout_s)
                self.sock.connect(address.removeprefix("unix:"))
            except OSError:
                self.sock.close()
                raise
        else:
            _, host, port = parse_address(address)
            self.sock = socket.create_connection((host, port), timeout_s)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requester = Requester()

    def __enter__(self) -> FastCGIClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def send(self, params: Mapping[bytes, bytes], body: bytes | None = b"", keep: bool = False) -> None:
        """Send a request. body: None sends none of it yet. keep: the connection stays open after the response."""
        # input(b"") is the empty record that ends the body
        data = self.requester.begin(params.items(), keep)
        if body is not None:
            data += (self.requester.input(body) if body else b"") + self.requester.input(b"")
        self.sock.sendall(data)

    def receive(self) -> Response:
        """Return the response, an incomplete one if the connection ends early. Raises OSError, FastCGIError."""
        output: list[bytes] = []
        errors = b""
        is_complete = False
        while self.requester.running:
            try:
                piece = self.sock.recv(RECEIVE_BYTES)
            except ConnectionResetError:
                piece = b""
            if not piece:
                break
            for event in self.requester.feed(piece):
                if isinstance(event, Output):
                    output.append(event.data)
                elif isinstance(event, Errors):
                    errors += event.data
                else:
                    assert isinstance(event, Ended)
                    is_complete = event.protocol_status == REQUEST_COMPLETE
        return Response(b"".join(output), errors, is_complete)

    def ask(self, params: Mapping[bytes, bytes], body: bytes = b"") -> bytes:
        """Send a request and return the response's output, without standard error. Raises OSError, FastCGIError.

        ConnectionError: the response is incomplete.
        """
        self.send(params, body)
        response = self.receive()
        if not response.complete:
            raise ConnectionError("the FastCGI server has not completed its response")
        return response.output
