"""A gateway's end: ask a database daemon, and read the result as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from ewe.database.dialing import connect_to_daemon
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    ProtocolError,
    decode_response,
    encode_request,
)

RECEIVE_BYTES = 64 * 1024  # bytes that one call reads at most


class Client:
    """A connection to a daemon. It may carry any number of requests, one after the other.

    with Client("unix:/run/ewe-dbd.sock") as daemon:
        for piece in daemon.ask(ClientRequest("log", "SELECT ...", "TABLE")): ...
    """

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        """Connect. Raises DatabaseError("UNAVAILABLE"); ValueError for a malformed address.

        address: see transports.py. timeout_s: to connect, and later for each call that sends or receives.
        """
        self.decoder = FrameDecoder()
        try:
            self.socket = connect_to_daemon(address, timeout_s)
        except OSError as reason:
            raise DatabaseError("UNAVAILABLE", f"{address}: {reason.strerror or reason}") from None

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
        try:
            try:
                self.socket.sendall(encode_request(request))
            except ConnectionError:
                pass  # the daemon may have sent the reason before it closed the connection
            while True:
                fields = self.decoder.next_frame()
                while fields is None:
                    data = self.socket.recv(RECEIVE_BYTES)
                    if not data:
                        raise DatabaseError("UNAVAILABLE", "the daemon has closed the connection")
                    self.decoder.feed(data)
                    fields = self.decoder.next_frame()
                response = decode_response(fields)
                if response.error is not None:
                    raise response.error
                yield response.fragment
                if not response.more:
                    return
        except OSError as reason:
            raise DatabaseError("UNAVAILABLE", str(reason.strerror or reason)) from None
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None
