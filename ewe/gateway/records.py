"""FastCGI 1.0: records, name-value pairs, and one connection as each of its two ends sees it. No I/O.

Source: "FastCGI Specification", Open Market 1996, named by its section numbers below. The web server is the
`Requester`, the application the `Responder`. A connection carries one request at a time, as with every known web
server (section 5.1 would allow more). It may carry another request after that.

The parts of a request and of its response are streams. A stream is cut into records of one type. An empty record
ends it:

    web server                                application
    BEGIN_REQUEST: role, flag KEEP_CONN ───▶
    PARAMS ...: name-value pairs ──────────▶
    STDIN ...: the request's body ─────────▶
                                       ◀──── STDOUT ...: as a CGI program writes
                                       ◀──── STDERR ...: lines for the error log
                                       ◀──── END_REQUEST: status of application and protocol
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

VERSION = 1

# Types of records, section 8
BEGIN_REQUEST = 1
ABORT_REQUEST = 2
END_REQUEST = 3
PARAMS = 4
STDIN = 5
STDOUT = 6
STDERR = 7
DATA = 8
GET_VALUES = 9
GET_VALUES_RESULT = 10
UNKNOWN_TYPE = 11

RESPONDER, AUTHORIZER = 1, 2  # the roles that ewe knows; 3 is a filter
KEEP_CONN = 1  # the flag

# How a request ended, section 5.5
REQUEST_COMPLETE = 0
CANT_MPX_CONN = 1
OVERLOADED = 2
UNKNOWN_ROLE = 3

# Bytes of the content of a full record that ewe sends: the greatest multiple of eight, which needs no padding
FULL_RECORD_BYTES = 65528
MAX_ID = 255  # of a request of this server; the first is 1, which every application understands
MAX_PARAMS_BYTES = 256 * 1024  # of a request's name-value pairs, encoded

HEADER = struct.Struct(">BBHHBx")  # version, type, request id, content length, padding length
BEGIN_BODY = struct.Struct(">HB5x")  # role, flags
END_BODY = struct.Struct(">IB3x")  # application's status, protocol's status
LONG = struct.Struct(">I")
PADDING = tuple(bytes(count) for count in range(8))
SHORT = tuple(bytes((length,)) for length in range(128))  # lengths in pairs
# The answers to GET_VALUES, section 4.1: no limit that a web server must respect, and no multiplexing.
VALUES = {b"FCGI_MAX_CONNS": b"1024", b"FCGI_MAX_REQS": b"1024", b"FCGI_MPXS_CONNS": b"0"}


class FastCGIError(Exception):
    """The peer breaks the protocol or exceeds a limit; the text is one line. The connection must be closed."""


# One record: its type, the id of the request (0: the connection's management), its content
Record = tuple[int, int, bytes]


# ---------------------------------------------------------------------------------------------------------
# Records and pairs


def record(kind: int, request_id: int, content: bytes = b"") -> bytes:
    """Return one record, padded to a multiple of eight bytes. content: at most 65,535 bytes; b"" ends a stream."""
    length = len(content)
    padding = -length & 7
    return HEADER.pack(VERSION, kind, request_id, length, padding) + content + PADDING[padding]


def stream_records(kind: int, request_id: int, data: bytes) -> bytes:
    """Return data as the records of a stream; none for b"": an empty record would end the stream.

    kind: the type of the records, such as STDIN.
    """
    if 0 < len(data) <= FULL_RECORD_BYTES:
        return record(kind, request_id, data)
    return b"".join(
        record(kind, request_id, data[at : at + FULL_RECORD_BYTES])
        for at in range(0, len(data), FULL_RECORD_BYTES)
    )


def encode_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode name-value pairs: a length below 128 in one byte, else in four. Section 3.4."""
    parts: list[bytes] = []
    for name, value in pairs:
        name_length, value_length = len(name), len(value)
        if name_length < 128 and value_length < 128:
            parts += (SHORT[name_length], SHORT[value_length], name, value)
        else:
            parts += (encoded_length(name_length), encoded_length(value_length), name, value)
    return b"".join(parts)


def encoded_length(length: int) -> bytes:
    """Return a length in the encoding of a name-value pair: section 3.4."""
    return SHORT[length] if length < 128 else LONG.pack(length | 0x80000000)


def decode_pairs(data: bytes) -> dict[bytes, bytes]:
    """Decode name-value pairs; if a name comes twice, its last value counts.

    Raises FastCGIError if a length points beyond the end.
    """
    pairs = {}
    at = 0
    end = len(data)
    try:
        while at < end:
            name_length, value_length = data[at], data[at + 1]
            if name_length < 128 and value_length < 128:
                at += 2
            else:
                name_length, at = decode_length(data, at)
                value_length, at = decode_length(data, at)
            value_at = at + name_length
            name = data[at:value_at]
            at = value_at + value_length
            pairs[name] = data[value_at:at]
    except (IndexError, struct.error):
        at = end + 1
    if at > end:
        raise FastCGIError("a name-value pair goes beyond the end of its stream")
    return pairs


def decode_length(data: bytes, at: int) -> tuple[int, int]:
    """Return the length encoded at an offset, and the offset after it. Raises IndexError, struct.error."""
    length = data[at]
    if length < 128:
        return length, at + 1
    return LONG.unpack_from(data, at)[0] & 0x7FFFFFFF, at + 4


class RecordDecoder:
    """Turns bytes into records; an incomplete record, 64 KB at most, waits for the next feed()."""

    buffer = b""

    def feed(self, data: bytes) -> list[Record]:
        """Return the records that are now complete. Raises FastCGIError for another version of the protocol."""
        data = self.buffer + data if self.buffer else data
        records = []
        at = 0
        end = len(data)
        while end - at >= HEADER.size:
            version, kind, request_id, length, padding = HEADER.unpack_from(data, at)
            if version != VERSION:
                raise FastCGIError(f"a record of version {version}, not {VERSION}: this is not FastCGI 1.0")
            content_at = at + HEADER.size
            next_at = content_at + length + padding
            if next_at > end:
                break
            records.append((kind, request_id, data[content_at : content_at + length]))
            at = next_at
        # A peer of another protocol may send less than a header, and then wait.
        if end > at and data[at] != VERSION:
            raise FastCGIError(f"a record of version {data[at]}, not {VERSION}: this is not FastCGI 1.0")
        self.buffer = data[at:]
        return records


# ---------------------------------------------------------------------------------------------------------
# The application's end


class Began(NamedTuple):
    """A request has begun: all its parameters have come, and its input follows."""

    params: dict[bytes, bytes]
    keep: bool  # the connection stays open after it


class Input(NamedTuple):
    """The next bytes of a request's body; b"" is its end."""

    data: bytes


class Aborted(NamedTuple):
    """The web server no longer wants the response; the application must still end the request."""


class Responder:
    """The application's end of one connection.

    feed() turns bytes into events. take_reply() returns the bytes that must be sent at once: answers to management
    records, and refusals. output(), errors() and end() return the records of a response.
    """

    def __init__(self, max_params: int = MAX_PARAMS_BYTES, role: int = RESPONDER) -> None:
        """role: of this application; it refuses requests for another role."""
        self.max_params = max_params
        self.role = role
        self.decoder = RecordDecoder()
        self.reply = b""
        self.id = 0  # of the request that runs, 0 if none does
        self.keep = False
        self.params: list[bytes] | None = None  # pieces of the parameters; None: none are expected now
        self.params_length = 0
        self.input_open = False  # a request runs, and its STDIN has not ended

    def feed(self, data: bytes) -> list[Began | Input | Aborted]:
        """Return the events in these bytes. Raises FastCGIError.

        Records that are no event change this object, or add an answer to `reply`.
        """
        events: list[Began | Input | Aborted] = []
        for kind, request_id, content in self.decoder.feed(data):
            if request_id == 0:  # a management record concerns the connection, and no request
                self.manage(kind, content)
            elif kind == BEGIN_REQUEST:
                self.begin(request_id, content)
            elif request_id != self.id:
                continue  # a record of a request that was refused or has ended: ignored, section 3.3
            elif kind == PARAMS:
                if self.add_params(content):
                    events.append(self.began())
            elif kind == STDIN:
                self.check_input()
                self.input_open = bool(content)
                events.append(Input(content))
            elif kind == ABORT_REQUEST:
                events.append(Aborted())
            elif kind != DATA:  # a record of the role "filter", which ewe does not have
                raise FastCGIError(f"a record of type {kind} from a web server")
        return events

    def begin(self, request_id: int, content: bytes) -> None:
        """Begin a request, or refuse it by a record in `reply`. Raises FastCGIError for a malformed record."""
        if len(content) != BEGIN_BODY.size:
            raise FastCGIError(f"BEGIN_REQUEST has {len(content)} bytes, not {BEGIN_BODY.size}")
        role, flags = BEGIN_BODY.unpack(content)
        if request_id == self.id:
            raise FastCGIError(f"request {request_id} began twice")
        if self.id:
            self.reply += end_record(request_id, 0, CANT_MPX_CONN)
        elif role != self.role:
            self.reply += end_record(request_id, 0, UNKNOWN_ROLE)
        else:
            self.id = request_id
            self.keep = bool(flags & KEEP_CONN)
            self.params = []
            self.params_length = 0
            self.input_open = True

    def add_params(self, content: bytes) -> bool:
        """Collect a piece of the parameters; return whether it was the last, empty one. Raises FastCGIError."""
        if self.params is None:
            raise FastCGIError("PARAMS after their end")
        if not content:
            return True
        self.params_length += len(content)
        if self.params_length > self.max_params:
            raise FastCGIError(f"a request's parameters exceed {self.max_params} bytes")
        self.params.append(content)
        return False

    def began(self) -> Began:
        """Return the event of a request whose parameters are complete."""
        params = decode_pairs(b"".join(self.params or ()))
        self.params = None
        return Began(params, self.keep)

    def check_input(self) -> None:
        """Raise FastCGIError if STDIN comes before the end of the parameters, or after its own end."""
        if self.params is not None:  # add_params() still collects them
            raise FastCGIError("STDIN before the parameters")
        if not self.input_open:
            raise FastCGIError("STDIN after its end")

    def manage(self, kind: int, content: bytes) -> None:
        """Add the answer to a management record to `reply`: section 4. Raises FastCGIError for malformed pairs.

        The web server may ask for limits of the application (GET_VALUES). A record of any other type is answered as
        unknown: section 4.2.
        """
        if kind == GET_VALUES:
            known = [(name, VALUES[name]) for name in decode_pairs(content) if name in VALUES]
            self.reply += record(GET_VALUES_RESULT, 0, encode_pairs(known))
        else:
            reserved = bytes(7)
            self.reply += record(UNKNOWN_TYPE, 0, bytes((kind,)) + reserved)

    def take_reply(self) -> bytes:
        """Return the bytes that must be sent at once; forget them."""
        reply, self.reply = self.reply, b""
        return reply

    def output(self, data: bytes) -> bytes:
        """Return the records of more output; none for b""."""
        return stream_records(STDOUT, self.id, data)

    def errors(self, data: bytes) -> bytes:
        """Return the records of more standard error; none for b""."""
        return stream_records(STDERR, self.id, data)

    def end(self, app_status: int = 0) -> bytes:
        """Return the records that end the output and the request; the connection is then free for the next one.

        app_status: the exit status that a CGI program would have (section 5.5); 0: no error.
        """
        data = end_records(self.id, app_status)
        self.id = 0
        self.params = None
        return data


@functools.lru_cache(maxsize=256)
def end_records(request_id: int, app_status: int) -> bytes:
    """Return the records that end a request's output and the request."""
    return empty_record(STDOUT, request_id) + end_record(request_id, app_status, REQUEST_COMPLETE)


def end_record(request_id: int, app_status: int, protocol_status: int) -> bytes:
    """Return the END_REQUEST record of a request."""
    return record(END_REQUEST, request_id, END_BODY.pack(app_status & 0xFFFFFFFF, protocol_status))


# ---------------------------------------------------------------------------------------------------------
# The web server's end


class Output(NamedTuple):
    """The next bytes of the response."""

    data: bytes


class Errors(NamedTuple):
    """The next bytes of the application's standard error."""

    data: bytes


class Ended(NamedTuple):
    """The end of the request. protocol_status: REQUEST_COMPLETE, or why the application refused the request."""

    app_status: int
    protocol_status: int


@functools.lru_cache(maxsize=512)
def begin_record(request_id: int, role: int, keep: bool) -> bytes:
    """Return the BEGIN_REQUEST record of a request."""
    return record(BEGIN_REQUEST, request_id, BEGIN_BODY.pack(role, KEEP_CONN if keep else 0))


@functools.lru_cache(maxsize=1024)
def empty_record(kind: int, request_id: int) -> bytes:
    """Return the record that ends a stream."""
    return record(kind, request_id)


@functools.lru_cache(maxsize=256)
def good_ends(request_id: int) -> tuple[bytes, bytes]:
    """Return the byte strings that can follow the last output of a request that ends well."""
    end = end_record(request_id, 0, REQUEST_COMPLETE)
    return end, empty_record(STDOUT, request_id) + end


class Requester:
    """The web server's end of one connection. After Ended it may begin() the next request if it asked to keep."""

    ends_with_close = False  # END_REQUEST ends the answer, not the close of the connection
    role = RESPONDER

    @staticmethod
    def encode_request(variables: Mapping[bytes, bytes], length: int) -> bytes:
        """Return a request's variables, encoded; length: of its body (not needed: FastCGI marks the body's end)."""
        return encode_pairs(variables.items())

    encode_pairs = staticmethod(encode_pairs)

    id = 0
    running = False

    def __init__(self) -> None:
        self.decoder = RecordDecoder()

    def begin(self, params: Iterable[tuple[bytes, bytes]], keep: bool = False) -> bytes:
        """Return the records that begin a request: role, flag and all parameters."""
        return self.begin_with(encode_pairs(params), keep)

    def begin_with(self, pairs: bytes, keep: bool) -> bytes:
        """Return the records that begin a request.

        pairs: its parameters, as encode_pairs() encodes them. keep: the application keeps the connection open after
        the request (the flag FCGI_KEEP_CONN).
        """
        # One request at a time, but each with another id: feed() refuses a late record of an earlier request.
        self.id = self.id % MAX_ID + 1
        self.running = True
        begin = begin_record(self.id, self.role, keep)
        return b"".join((begin, stream_records(PARAMS, self.id, pairs), empty_record(PARAMS, self.id)))

    def input(self, data: bytes) -> bytes:
        """Return the records of more of the body; b"" ends it."""
        return stream_records(STDIN, self.id, data) if data else empty_record(STDIN, self.id)

    def abort(self) -> bytes:
        """Return the record that aborts the request: its response is no longer wanted."""
        return record(ABORT_REQUEST, self.id)

    def take_whole_output(self, data: bytes) -> bytes | None:
        """Return the whole output if these bytes are one record of it and the request's end; otherwise None.

        The end must be that of an application without an error (good_ends()). Then the request runs no longer. Most
        answers are short and match this fast path. For all others nothing changes, and feed() must decode the
        bytes.
        """
        if len(data) < HEADER.size or self.decoder.buffer or not self.running:
            return None
        version, kind, request_id, length, padding = HEADER.unpack_from(data)
        if version != VERSION or kind != STDOUT or request_id != self.id or not length:
            return None
        end = HEADER.size + length
        if data[end + padding :] not in good_ends(request_id):
            return None
        self.running = False
        return data[HEADER.size : end]

    def feed(self, data: bytes) -> list[Output | Errors | Ended]:
        """Return the events in these bytes. Raises FastCGIError."""
        events: list[Output | Errors | Ended] = []
        for kind, request_id, content in self.decoder.feed(data):
            # Request id 0 marks a management record (section 4): it answers a question about the application as a
            # whole. This requester asks none, and a record that nobody asked for harms no request.
            if request_id == 0 and kind in (GET_VALUES_RESULT, UNKNOWN_TYPE):
                continue
            if request_id != self.id or not self.running:
                raise FastCGIError(f"a record of type {kind} for request {request_id}, which does not run")
            if kind == STDOUT:
                if content:
                    events.append(Output(content))
            elif kind == STDERR:
                if content:
                    events.append(Errors(content))
            elif kind == END_REQUEST:
                if len(content) != END_BODY.size:
                    raise FastCGIError(f"END_REQUEST has {len(content)} bytes, not {END_BODY.size}")
                self.running = False
                events.append(Ended(*END_BODY.unpack(content)))
            else:
                raise FastCGIError(f"a record of type {kind} from an application")
        return events


class AuthorizerRequester(Requester):
    """The web server's end of a connection to an authorizer, which gets no body: section 6.3."""

    role = AUTHORIZER

    def input(self, data: bytes) -> bytes:
        """Return b"": an authorizer has no STDIN."""
        return b""
