"""Databases: features send statements to a database daemon, ewe-dbd.

    feature ── ask(request, io) ──▶ ResultSource ── connection, kept ──▶ ewe-dbd ──▶ database
            ◀── receive(): pieces of the result as they come ────────┘

A feature sends a statement while it answers a client. It waits for the daemon like a gateway for its upstream: the
connections are those of connections.py, they are kept for the next statement, and each wait uses the poller of the
client's stream. The same code therefore runs under every model. If the client leaves, the connection closes, and
the daemon cancels the statement.

The first piece is fetched before the feature makes its response. If the database refuses a statement, the client
therefore gets an error page, and not half a page.

Possible failures: the daemon was restarted, and a kept connection has ended. If no part of the answer has come, a
statement that only reads is sent once more, over a new connection. A statement that writes is not sent again, since
it could run twice.

Read next: ewe/database/protocol.py, the messages; ewe/database/daemon.py, the other end.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ewe.config.setting_types import parse_database
from ewe.database.protocol import (
    ClientRequest,
    DatabaseError,
    FrameDecoder,
    ProtocolError,
    Value,
    client_identifier,
    decode_response,
    encode_request,
)
from ewe.features.database_settings import DATABASE, DBD, DBD_KEY
from ewe.features.declaration import MeasureError
from ewe.gateway.connections import RETRY, Connections
from ewe.http.messages import Source
from ewe.http.status import HTTPError
from ewe.streams.base import Timeout
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.upstream import Upstream
    from ewe.http.messages import Request
    from ewe.streams.base import Stream
    from ewe.trace import Trace

# The numbers of the daemon besides its connections; waiting: statements in the queue; running: in a database
NUMBERS = ("gateways", "waiting", "running", "served", "refused")
STATUS_REQUEST = ClientRequest("", "")  # without a database: the daemon answers with its status
RETRY_ADDRESS_S = 5.0  # seconds without an address of the daemon after a failure, if there are several
MAX_RESULT_BYTES = 16 << 20  # of a whole result in memory; its Python objects take several times as much


class ResultTable(NamedTuple):
    """A whole result. has_more: the database has more rows than the limit."""

    columns: list[str]
    rows: list[list[Value]]
    has_more: bool


class Databases:
    """The databases that a site's features may use. names: the names in the setting `database`, in its order."""

    def __init__(self, config: Config) -> None:
        """Read the settings of databases.

        Raises ValueError, which names the setting, for contradictory settings and for an invalid address.
        """
        databases = [parse_database(each) for each in config[DATABASE]]
        self.names = tuple(name for name, _, _ in databases)
        self.daemon_key = config[DBD_KEY] or ""
        self.silence_timeout_s = config.program_timeout
        self.connections: Connections | None = None
        self.trace: Trace | None = None
        if config.trace is not None:
            from ewe.trace import trace_at

            self.trace = trace_at(config.trace)
        daemon = config[DBD]
        if daemon is not None:
            try:
                self.connections = Connections([daemon], keeps=True, retry_s=RETRY_ADDRESS_S)
            except ValueError as reason:
                raise ValueError(f"{reason} (dbd)") from None
        for name, _, source in databases:
            if not source and daemon is None:
                raise ValueError(f"database {name} has no file: write {name}=FILE, or name its daemon (dbd)")

    async def ask(self, request: ClientRequest, io: Stream, *, writes: bool = False) -> ResultSource:
        """Send a statement, wait for the first piece, and return the result. The caller closes this Source.

        writes: the statement may change the database, so it must not be sent twice. Raises DatabaseError;
        Disconnected if the client has left.
        """
        if self.connections is None:
            raise DatabaseError("UNAVAILABLE", "no daemon is named (dbd)")
        try:
            if self.trace is not None:  # so that the trace of the daemon can name the connection that asks
                request = replace(request, client=client_identifier(self.trace.worker.connection))
            frame = encode_request(replace(request, key=self.daemon_key))
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None
        result = ResultSource(self.connections, io, frame, self.silence_timeout_s, writes)
        try:
            await result.begin()
        except BaseException:
            await result.close()
            raise
        return result

    async def rows(self, request: ClientRequest, io: Stream, *, writes: bool = False) -> ResultTable:
        """Return a whole result, at most request.rows rows. Raises the exceptions of ask().

        The result is in memory. One of more than MAX_RESULT_BYTES is the error TOO MANY ROWS.
        """
        limit = request.rows
        row_request = replace(request, layout="ROWS", rows=None if limit is None else limit + 1)
        result = await self.ask(row_request, io, writes=writes)
        data = bytearray()
        try:
            while piece := await result.next():
                data += piece
                if len(data) > MAX_RESULT_BYTES:
                    raise DatabaseError(
                        "TOO MANY ROWS", f"the rows have more than {MAX_RESULT_BYTES >> 20} MB"
                    )
        finally:
            await result.close()
        # All lines are decoded as one JSON text: decoding each line takes five times as long.
        columns, *rows = json.loads(b"[%b]" % b",".join(data.splitlines()), object_hook=from_json)
        has_more = limit is not None and len(rows) > limit
        return ResultTable(columns, rows[:limit], has_more)


class ResultSource(Source):
    """The result of one statement, piece by piece."""

    def __init__(
        self, connections: Connections, io: Stream, frame: bytes, silence_timeout_s: float, writes: bool
    ) -> None:
        """frame: the request. silence_timeout_s: the seconds for which the daemon may send nothing."""
        self.connections = connections
        self.io = io
        self.frame = frame
        self.silence_timeout_s = silence_timeout_s
        self.writes = writes
        self.decoder = FrameDecoder()
        self.upstream: Upstream | None = None
        self.piece = b""
        self.has_more_pieces = True

    async def begin(self) -> None:
        """Send the request, and fetch the first piece. Raises DatabaseError, Disconnected.

        A kept connection may have ended meanwhile: a request that writes nothing is then sent once more.
        """
        try:
            self.piece = await self.first_piece(new=False)
        except ConnectionError:
            if self.writes:
                raise DatabaseError(
                    "UNAVAILABLE", "the daemon closed the connection; the statement may have run"
                ) from None
            try:
                self.piece = await self.first_piece(new=True)
            except ConnectionError:
                raise DatabaseError("UNAVAILABLE", "the daemon closed the connection") from None

    async def first_piece(self, new: bool) -> bytes:
        """Send the request and return the first piece. Raises ConnectionError if the connection ends first.

        Also raises the exceptions of begin(). new: over a new connection, not over one that is kept open.
        """
        self.close_connection()
        self.decoder = FrameDecoder()
        try:
            upstream = self.upstream = await self.connections.open(self.io, must_be_new=new)
        except HTTPError as error:
            raise DatabaseError("UNAVAILABLE", error.cause) from None
        try:
            sent = upstream.send(self.frame)
        except OSError:
            sent = 0  # fetch() reads the reason that the daemon may have sent before
        outgoing = memoryview(self.frame)[sent:]
        data: bytes | None = None
        try:
            while outgoing and data != b"":
                outgoing, data = await upstream.exchange(outgoing, self.silence_timeout_s)
                self.decoder.feed(data or b"")
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None
        except Timeout:
            count_timeout("upstream")
            raise DatabaseError(
                "TIMEOUT", f"the daemon takes nothing for {self.silence_timeout_s:g} s"
            ) from None
        except OSError as reason:
            raise ConnectionError(reason.strerror) from None
        return await self.fetch()

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end. Raises HTTPError, and the exceptions of a Source."""
        try:
            return await self.next()
        except DatabaseError as error:
            raise http_error(error) from None

    async def next(self) -> bytes:
        """Return the next piece; b"" at the end. Raises DatabaseError if the result is incomplete."""
        piece, self.piece = self.piece, b""
        while not piece and self.has_more_pieces:
            try:
                piece = await self.fetch()
            except ConnectionError:
                raise DatabaseError("UNAVAILABLE", "the daemon closed the connection") from None
        return piece

    async def fetch(self) -> bytes:
        """Return the daemon's next piece of the result: one response of the protocol carries one piece.

        After the last response, give the connection back to `connections`, which keeps it for another statement.
        Raises DatabaseError, Disconnected; ConnectionError if the connection ends before the response.
        """
        upstream = self.upstream
        assert upstream is not None
        try:
            while (fields := self.decoder.next_frame()) is None:
                if not (data := await upstream.receive(self.silence_timeout_s)):
                    raise ConnectionError("the connection has ended")
                self.decoder.feed(data)
            response = decode_response(fields)
        except ProtocolError as error:
            raise DatabaseError("MESSAGE", str(error)) from None
        except Timeout:
            count_timeout("upstream")
            raise DatabaseError("TIMEOUT", f"the daemon is silent for {self.silence_timeout_s:g} s") from None
        except OSError as reason:
            raise ConnectionError(reason.strerror) from None
        self.has_more_pieces = response.more
        if not self.has_more_pieces:
            # Bytes after the last response belong to no request: close such a connection
            self.connections.release(upstream, reusable=not self.decoder.data)
            self.upstream = None
        if response.error is not None:
            raise response.error
        return response.fragment

    def close_connection(self) -> None:
        """Close the connection if the result is incomplete. The daemon then cancels the statement."""
        if self.upstream is not None:
            self.connections.release(self.upstream)
            self.upstream = None

    async def close(self) -> None:
        self.close_connection()


class DatabaseNumbers:
    """The daemon's numbers for the status."""

    name = "database"
    title = "Database daemon"

    def __init__(self, address: str) -> None:
        """Raises ValueError for an invalid address."""
        self.address = address
        self.connections = Connections([address], keeps=True)

    async def numbers(self, request: Request, io: Stream, seconds: float) -> dict[str, Any]:
        """Ask the daemon for its status. Raises MeasureError."""
        self.connections.connect_timeout_s = seconds
        result = ResultSource(self.connections, io, encode_request(STATUS_REQUEST), seconds, writes=False)
        data = b""
        try:
            await result.begin()
            while piece := await result.next():
                data += piece
            numbers = json.loads(data)
            return {
                "connections": Counter(numbers["connections"]),
                **{name: int(numbers[name]) for name in NUMBERS},
            }
        except DatabaseError as error:
            raise MeasureError(str(error)) from None
        except (ValueError, KeyError, TypeError):
            raise MeasureError(f"{self.address} does not tell its numbers") from None
        finally:
            await result.close()


def from_json(encoded: dict[str, str]) -> Value:
    """Return a value that JSON cannot represent, from its form in the layout ROWS: an object with one entry.

    Raises ValueError, TypeError, AttributeError for another form.
    """
    [(kind, text)] = encoded.items()
    return b64decode(text) if kind == "base64" else float(text)


def http_error(error: DatabaseError) -> HTTPError:
    """Return the HTTPError for the client. The database's message goes only to the log."""
    return HTTPError(error.status, f"{error.kind}: {error}", RETRY if error.status == 503 else ())
