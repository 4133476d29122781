"""Databases: statements that features have run by a database demon, ewe-dbd.

    feature ── ask(request, io) ──▶ Result ── connection, kept ──▶ ewe-dbd ──▶ database
            ◀── receive(): pieces of the result as they come ────────┘

A feature asks while it answers a client. The wait for the demon is the wait of a gateway for its responder: the
connections are those of connections.py, kept for the next statement, and each waits with the poller of the client's
stream. The same lines therefore run under every model. A client that leaves ends its statement: the connection
closes, and the demon cancels what runs for it.

The first piece is fetched before the feature makes its response. A statement that the database refuses is therefore
an error page, and not half a page.

What can go wrong: the demon was restarted, and a kept connection has ended. If nothing of an answer has come, a
statement that only reads is sent again, once, over a new connection. One that writes might run twice, so it is not.

Read next: ewe/database/protocol.py, the messages; ewe/database/demon.py, the other end.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ewe.config.setting_types import parse_database
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    Decoder,
    ProtocolError,
    Value,
    decode_response,
    encode_request,
)
from ewe.gateway.connections import RETRY, Connections
from ewe.http.messages import Source
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.upstream import Upstream
    from ewe.streams.base import Stream

RETRIED_IN = 5.0  # seconds for which an address of the demon is left out, if there are several


class Table(NamedTuple):
    """A whole result. cut: the database has more rows than were asked for."""

    columns: list[str]
    rows: list[list[Value]]
    cut: bool


class Databases:
    """The databases that a site's features may ask. names: those of the setting `database`, in its order.

    Raises ValueError for settings that contradict each other, or an address that is unknown.
    """

    def __init__(self, config: Config) -> None:
        given = [parse_database(each) for each in config.database]
        self.names = tuple(name for name, _, _ in given)
        self.key = config.dbd_key or ""
        self.silence = config.program_timeout
        self.connections: Connections | None = None
        if config.dbd is not None:
            try:
                self.connections = Connections([config.dbd], keeps=True, retry=RETRIED_IN)
            except ValueError as reason:
                raise ValueError(f"{reason} (dbd)") from None
        for name, _, place in given:
            if not place and config.dbd is None:
                raise ValueError(f"database {name}: where is it? Write {name}=FILE, or name its demon (dbd)")

    async def ask(self, request: ClientRequest, io: Stream, *, writes: bool = False) -> Result:
        """Return the result of a statement, once its first piece has come. It is a Source, to be closed.

        writes: the statement may change the database, so it must not be sent twice. Raises DatabaseError,
        Disconnected if the client has left.
        """
        if self.connections is None:
            raise DatabaseError("UNAVAILABLE", "no demon is named (dbd)")
        try:
            frame = encode_request(replace(request, key=self.key))
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None
        result = Result(self.connections, io, frame, self.silence, writes)
        try:
            await result.begin()
        except BaseException:
            await result.close()
            raise
        return result

    async def rows(self, request: ClientRequest, io: Stream, *, writes: bool = False) -> Table:
        """Return a whole result, at most request.rows of it. Raises as ask().

        The result is in memory, so ask for no more rows than a page shows.
        """
        most = request.rows
        asked = replace(request, layout="ROWS", rows=None if most is None else most + 1)
        result = await self.ask(asked, io, writes=writes)
        data = bytearray()
        try:
            while piece := await result.next():
                data += piece
        finally:
            await result.close()
        # All lines as one JSON text: to decode each by itself takes five times as long
        columns, *rows = json.loads(b"[%b]" % b",".join(data.splitlines()), object_hook=from_json)
        cut = most is not None and len(rows) > most
        return Table(columns, rows[:most], cut)


class Result(Source):
    """The result of one statement, piece by piece."""

    def __init__(
        self, connections: Connections, io: Stream, frame: bytes, silence: float, writes: bool
    ) -> None:
        """frame: the request. silence: how long the demon may send nothing, in seconds."""
        self.connections = connections
        self.io = io
        self.frame = frame
        self.silence = silence
        self.writes = writes
        self.decoder = Decoder()
        self.upstream: Upstream | None = None
        self.piece = b""
        self.more = True

    async def begin(self) -> None:
        """Send the request, and fetch the first piece. Raises DatabaseError, Disconnected."""
        try:
            self.piece = await self.first(new=False)
        except ConnectionError:
            if self.writes:
                raise DatabaseError("UNAVAILABLE", "the demon closed the connection; did it run?") from None
            try:
                self.piece = await self.first(new=True)
            except ConnectionError:
                raise DatabaseError("UNAVAILABLE", "the demon closed the connection") from None

    async def first(self, new: bool) -> bytes:
        """Return the first piece. Raises ConnectionError if the connection ends first, and as begin()."""
        self.drop()
        self.decoder = Decoder()
        try:
            upstream = self.upstream = await self.connections.open(self.io, new=new)
        except HTTPError as error:
            raise DatabaseError("UNAVAILABLE", error.cause) from None
        outgoing = memoryview(self.frame)
        try:
            outgoing = outgoing[upstream.send(outgoing) :]
            while outgoing:
                outgoing, data = await upstream.exchange(outgoing, self.silence)
                if data is not None:
                    self.feed(data)
        except Timeout:
            raise DatabaseError("TIMEOUT", f"the demon takes nothing for {self.silence:g} s") from None
        except OSError as reason:
            raise ConnectionError(reason.strerror) from None
        return await self.fetch()

    async def receive(self) -> bytes:
        """Return the next piece, b"" at the end. Raises HTTPError, and as Source."""
        try:
            return await self.next()
        except DatabaseError as error:
            raise http_error(error) from None

    async def next(self) -> bytes:
        """Return the next piece, b"" at the end. Raises DatabaseError: the result is not whole."""
        piece, self.piece = self.piece, b""
        while not piece and self.more:
            try:
                piece = await self.fetch()
            except ConnectionError:
                raise DatabaseError("UNAVAILABLE", "the demon closed the connection") from None
        return piece

    async def fetch(self) -> bytes:
        """Return the fragment of the next response. Raises DatabaseError, ConnectionError, Disconnected."""
        upstream = self.upstream
        assert upstream is not None
        try:
            while (fields := self.decoder.frame()) is None:
                self.feed(await upstream.receive(self.silence))
            response = decode_response(fields)
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None
        except Timeout:
            raise DatabaseError("TIMEOUT", f"the demon is silent for {self.silence:g} s") from None
        except OSError as reason:
            raise ConnectionError(reason.strerror) from None
        self.more = response.more
        if not self.more:
            self.connections.release(upstream, reusable=True)
            self.upstream = None
        if response.error is not None:
            raise response.error
        return response.fragment

    def feed(self, data: bytes) -> None:
        """Take bytes from the demon. Raises ConnectionError at the end of the connection, ProtocolError."""
        if not data:
            raise ConnectionError("the connection has ended")
        self.decoder.feed(data)

    def drop(self) -> None:
        """Close the connection, if the result is not at its end: the demon then cancels the statement."""
        if self.upstream is not None:
            self.connections.release(self.upstream)
            self.upstream = None

    async def close(self) -> None:
        self.drop()


def from_json(found: dict[str, str]) -> Value:
    """Return a value that JSON has no form for, from the form that the layout ROWS gives it."""
    ((kind, text),) = found.items()
    return b64decode(text) if kind == "base64" else float(text)


def http_error(error: DatabaseError) -> HTTPError:
    """Return the error for the client of a feature; the database's words go to the log only."""
    return HTTPError(error.status, f"{error.kind}: {error}", RETRY if error.status == 503 else ())
