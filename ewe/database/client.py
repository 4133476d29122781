"""A gateway's end: ask a database daemon, and read the result as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from ewe.database.dialing import connect_to_daemon
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    ProtocolError,
    ServerResponse,
    decode_response,
    encode_request,
)

RECEIVE_BYTES = 64 * 1024  # bytes that one call reads at most


class Client:
    """A connection to a daemon. It may carry any number of requests, one after the other.

    with Client("unix:/run/ewe-dbd.sock") as daemon:
        for piece in daemon.ask(ClientRequest("log", "SELECT ...", "TABLE")): ...

    If a result is not read to its end, or if other bytes have come behind it, the next ask() connects again.
    """

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        """Connect. Raises DatabaseError("UNAVAILABLE"); ValueError for a malformed address.

        address: see transports.py. timeout_s: to connect, and later for each call that sends or receives.
        """
        self.address = address
        self.timeout_s = timeout_s
        self.connect()

    def connect(self) -> None:
        """Make a new connection. Raises as __init__()."""
        try:
            self.socket = connect_to_daemon(self.address, self.timeout_s)
        except OSError as reason:
            raise DatabaseError("UNAVAILABLE", f"{self.address}: {reason.strerror or reason}") from None
        self.decoder = FrameDecoder()
        self.in_result = False  # a result has begun, and has not been read to its end

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def ask(self, request: ClientRequest) -> Iterator[bytes]:
        """Send a request, and yield the parts of its result as they come.

        Raises DatabaseError: after some parts, if the result is not complete.
        """
        # The rest of the last result, or bytes behind it, would be read as the beginning of this one
        if self.in_result or self.decoder.data:
            self.close()
            self.connect()
        decoder = self.decoder
        try:
            frame = encode_request(request)
            self.in_result = True
            try:
                self.socket.sendall(frame)
            except ConnectionError:
                pass  # the daemon may have sent the reason before it closed the connection
            more = True
            while more:
                if self.decoder is not decoder:
                    raise DatabaseError("UNAVAILABLE", "another request has ended this result")
                response = self.next_response()
                self.in_result = more = response.more and response.error is None
                if response.error is not None:
                    raise response.error
                yield response.fragment
        except OSError as reason:
            raise DatabaseError("UNAVAILABLE", str(reason.strerror or reason)) from None
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None

    def next_response(self) -> ServerResponse:
        """Wait for the next part of the result. Raises DatabaseError at the end of the connection, OSError,
        ProtocolError.
        """
        while (fields := self.decoder.next_frame()) is None:
            if not (data := self.socket.recv(RECEIVE_BYTES)):
                raise DatabaseError("UNAVAILABLE", "the daemon has closed the connection")
            self.decoder.feed(data)
        return decode_response(fields)
