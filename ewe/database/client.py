"""A gateway's end: ask a database demon, and take the result as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from ewe.database.dialing import connected
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    Decoder,
    ProtocolError,
    decode_response,
    encode_request,
)

RECEIVE = 64 * 1024


class Client:
    """A connection to a demon. It may carry any number of requests, one after the other.

    with Client("unix:/run/ewe-dbd.sock") as demon:
        for piece in demon.ask(ClientRequest("log", "SELECT ...", "TABLE")): ...
    """

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        """Connect. address: see transports.py. Raises DatabaseError("UNAVAILABLE"), ValueError."""
        self.decoder = Decoder()
        try:
            self.socket = connected(address, timeout_s)
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
        """Yield the parts of a result. Raises DatabaseError, after some parts if the result is not whole."""
        try:
            try:
                self.socket.sendall(encode_request(request))
            except ConnectionError:
                pass  # it may have said why before it closed the connection
            while True:
                fields = self.decoder.frame()
                while fields is None:
                    data = self.socket.recv(RECEIVE)
                    if not data:
                        raise DatabaseError("UNAVAILABLE", "the demon has closed the connection")
                    self.decoder.feed(data)
                    fields = self.decoder.frame()
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
