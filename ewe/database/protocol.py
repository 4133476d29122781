"""The protocol between a gateway and the database demon: messages in frames, no I/O.

A gateway that connects to its database for each request pays for the connection more than for the query. The demon
holds connections that stay open, and a gateway sends it the statement. Source: "Performance of RDBMS-WWW Interfaces
under Heavy Workload", section 3.2, which gives this grammar:

    ClientRequest    = DatabaseName SQLStatement [ClientIdentifier] ResultsLayout
    ServerResponse   = ResponseFragment ContinueFlow
    ContinueFlow     = "YES" / "NO"

The paper does not say how a field ends. Here a message is a *frame*, and each field has a letter and a length:

    frame = length (4 bytes, big-endian, of what follows)  field field ...
    field = letter (1 byte)  length (4 bytes)  content

    gateway ──▶ demon   D log  S SELECT ... WHERE status = :status  P status NUL i200  L TABLE
    demon ──▶ gateway   R <table>...<tr>...   C YES
    demon ──▶ gateway   R ...</table>         C NO

A result of a million rows is a sequence of responses. Each fits into one frame, so neither end keeps more than one
of them in memory; `ContinueFlow` says whether another follows. The paper introduced it for message queues, whose
messages have at most 8,192 bytes.

Beyond the paper there are parameters (P), so that no gateway pastes a visitor's text into a statement, limits for
rows (N) and time (T), the word READ (O) for a statement that may only read, also where the database may be changed,
the key (K) that a demon asks for on TCP, and an error (E) in place of a result. The key stands behind the database,
so that the demon need not take a long request from a peer without a key. A receiver refuses a letter that it does
not know: it cannot tell whether the field may be ignored.

A peer may send anything. Decoder therefore checks the length of a frame before its bytes arrive, and every error is
a ProtocolError, after which the connection must be closed, because the next frame's beginning is unknown.

Read next: demon.py for the one end, client.py for the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ewe.config.messages import Failure

MAX_FRAME = 1 << 20  # bytes of one frame without its length: the largest statement with its parameters
MAX_FIELDS = 4096  # of one frame: a database takes no more parameters
FRAGMENT = 32 * 1024  # bytes of a ResponseFragment of ours
LAYOUTS = ("TABLE", "PRE", "OPTION", "JSON", "CSV", "XML", "ROWS")

LENGTH = struct.Struct(">I")
FIELD = struct.Struct(">cI")

# What a parameter or a value of a result can be in every database that ewe knows
Value = None | int | float | str | bytes
Parameters = Sequence[Value] | Mapping[str, Value]

# Why there is no result. The HTTP status that a gateway should answer with stands beside it.
ERRORS = {
    "MESSAGE": 500,  # the message breaks the protocol, or asks for what does not exist
    "FORBIDDEN": 403,  # this peer may not use this database, or not for writing
    "STATEMENT": 500,  # the database refuses the statement
    "TIMEOUT": 504,  # the statement ran longer than the limit, and was cancelled
    "TOO MANY ROWS": 500,  # and `rows_cut` was not asked for
    "UNAVAILABLE": 503,  # the database does not answer, or the demon has too much to do
}


class ProtocolError(Exception):
    """The peer breaks the protocol, or exceeds a limit. The text is one line. The connection must be closed."""


class DatabaseError(Failure):
    """There is no result. kind: one of ERRORS. The text is one line, for the log."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(" ".join(text.split()))
        self.kind = kind

    @property
    def status(self) -> int:
        """The HTTP status for the client of the gateway."""
        return ERRORS[self.kind]


@dataclass(frozen=True)
class ClientRequest:
    """What a gateway asks for.

    client: the gateway's process id, for the log. parameters: bound to the statement by position or by name.
    rows: the largest number of rows; time_limit: in seconds; None: the demon's own limit. Neither can raise it.
    read_only: the statement must not change the database, even if this gateway may: a visitor wrote it.
    """

    database: str
    statement: str
    layout: str = "TABLE"
    parameters: Parameters = ()
    client: int | None = None
    rows: int | None = None
    time_limit: float | None = None
    key: str = ""
    read_only: bool = False


@dataclass(frozen=True)
class ServerResponse:
    """One part of a result. more: another follows (ContinueFlow). error: the result ends here, and is not whole."""

    fragment: bytes
    more: bool
    error: DatabaseError | None = field(default=None, compare=False)


# ---------------------------------------------------------------------------------------------------------
# Messages to bytes


def frame(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a frame with these fields: (letter, content). Raises ProtocolError if it is too long."""
    content = b"".join(FIELD.pack(letter, len(text)) + text for letter, text in fields)
    if len(content) > MAX_FRAME:
        raise ProtocolError(f"a message of {len(content)} bytes: at most {MAX_FRAME}")
    return LENGTH.pack(len(content)) + content


def encode_request(request: ClientRequest) -> bytes:
    """Return a ClientRequest as a frame. Raises ProtocolError for what a frame cannot hold."""
    fields = [(b"D", encoded(request.database))]
    if request.key:
        fields.append((b"K", encoded(request.key)))
    fields += [(b"S", encoded(request.statement)), (b"L", encoded(request.layout))]
    fields += [(b"P", each) for each in encode_parameters(request.parameters)]
    numbers = ((b"I", request.client), (b"N", request.rows), (b"T", request.time_limit))
    fields += [(letter, b"%a" % number) for letter, number in numbers if number is not None]
    if request.read_only:
        fields.append((b"O", b"READ"))
    return frame(fields)


def encode_response(response: ServerResponse) -> bytes:
    """Return a ServerResponse as a frame."""
    fields = [(b"R", response.fragment), (b"C", b"YES" if response.more else b"NO")]
    if response.error is not None:
        fields.append((b"E", f"{response.error.kind}\0{response.error}".encode("utf-8", "backslashreplace")))
    return frame(fields)


def encode_parameters(parameters: Parameters) -> Iterator[bytes]:
    """Yield a field's content for each parameter: name (none by position), NUL, a letter for the type, value."""
    named = parameters.items() if isinstance(parameters, Mapping) else (("", each) for each in parameters)
    for name, value in named:
        if "\0" in name:
            raise ProtocolError(f"the name of a parameter holds NUL: {name!r}")
        yield encoded(name) + b"\0" + encode_value(value)


def encode_value(value: Value) -> bytes:
    """Return a letter for the type, and the value. Raises ProtocolError for a type that no database takes."""
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d" % value
        case float():
            return b"f%a" % value
        case str():
            return b"t" + encoded(value)
        case bytes():
            return b"b" + value
    raise ProtocolError(f"a parameter cannot be a {type(value).__name__}")


def encoded(text: str) -> bytes:
    """Return a text as UTF-8. Raises ProtocolError for a half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"no text: {text[:40]!r}") from None


# ---------------------------------------------------------------------------------------------------------
# Bytes to messages


class Decoder:
    """Collects bytes, however they are cut, and yields the fields of each whole frame."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        """limit: the bytes of the largest frame."""
        self.limit = limit
        self.data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what has arrived. Raises ProtocolError as soon as a frame is known to be too long."""
        self.data += data
        self.length()

    def length(self) -> int | None:
        """Return the length of the first frame, None while it is unknown. Raises ProtocolError."""
        if len(self.data) < LENGTH.size:
            return None
        length: int = LENGTH.unpack_from(self.data)[0]
        if length > self.limit:
            raise ProtocolError(f"a frame of {length} bytes: at most {self.limit}")
        return length

    def frame(self) -> list[tuple[bytes, bytes]] | None:
        """Return the fields of the next frame, None if it is not whole yet. Raises ProtocolError."""
        length = self.length()
        if length is None or len(self.data) < LENGTH.size + length:
            return None
        content = bytes(self.data[LENGTH.size : LENGTH.size + length])
        del self.data[: LENGTH.size + length]
        return fields_of(content)


def leading_fields(data: bytes | bytearray) -> tuple[str, str]:
    """Return database and key of a frame that is not whole yet; "" unless they are its first fields, and whole."""
    found: dict[bytes, bytes] = {}
    at = LENGTH.size
    while len(found) < 2 and len(data) - at >= FIELD.size:
        letter, length = FIELD.unpack_from(data, at)
        at += FIELD.size
        if letter not in b"DK" or length > len(data) - at:
            break
        found[letter] = bytes(data[at : at + length])
        at += length
    try:
        return found.get(b"D", b"").decode(), found.get(b"K", b"").decode()
    except UnicodeDecodeError:
        return "", ""


def fields_of(content: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of a frame: (letter, content). Raises ProtocolError."""
    fields: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(content):
        if len(content) - at < FIELD.size:
            raise ProtocolError("the frame ends within a field")
        letter, length = FIELD.unpack_from(content, at)
        at += FIELD.size
        if length > len(content) - at:
            raise ProtocolError(f"field {letter!r} is longer than its frame")
        if len(fields) == MAX_FIELDS:
            raise ProtocolError(f"more than {MAX_FIELDS} fields")
        fields.append((letter, content[at : at + length]))
        at += length
    return fields


def decode_request(fields: Iterable[tuple[bytes, bytes]]) -> ClientRequest:
    """Return the ClientRequest that a frame's fields make. Raises ProtocolError."""
    single, parameters = split(fields, b"DSLINTKO")
    try:
        layout = text_of(single.get(b"L", b"TABLE"))
        if layout not in LAYOUTS:
            raise ProtocolError(f"no layout {layout[:40]!r}: {', '.join(LAYOUTS)}")
        if single.get(b"O", b"READ") != b"READ":
            raise ProtocolError("field b'O' is not READ")
        return ClientRequest(
            database=text_of(single[b"D"]),
            statement=text_of(single[b"S"]),
            layout=layout,
            parameters=decode_parameters(parameters),
            client=number_of(single[b"I"]) if b"I" in single else None,
            rows=number_of(single[b"N"]) if b"N" in single else None,
            time_limit=seconds_of(single[b"T"]) if b"T" in single else None,
            key=text_of(single.get(b"K", b"")),
            read_only=b"O" in single,
        )
    except KeyError as missing:
        raise ProtocolError(f"the request has no field {missing.args[0]!r}") from None


def decode_response(fields: Iterable[tuple[bytes, bytes]]) -> ServerResponse:
    """Return the ServerResponse that a frame's fields make. Raises ProtocolError."""
    single, parameters = split(fields, b"RCE")
    if parameters or single.get(b"C") not in (b"YES", b"NO"):
        raise ProtocolError("a response needs ContinueFlow, YES or NO, and has no parameters")
    error = None
    if b"E" in single:
        kind, _, text = text_of(single[b"E"]).partition("\0")
        if kind not in ERRORS:
            raise ProtocolError(f"no error {kind[:40]!r}")
        error = DatabaseError(kind, text)
    return ServerResponse(single.get(b"R", b""), single[b"C"] == b"YES", error)


def split(fields: Iterable[tuple[bytes, bytes]], known: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the fields that may come once, by letter, and the parameters. Raises ProtocolError."""
    single: dict[bytes, bytes] = {}
    parameters = []
    for letter, content in fields:
        if letter == b"P":
            parameters.append(content)
        elif letter not in known:
            raise ProtocolError(f"no field {letter!r}")
        elif letter in single:
            raise ProtocolError(f"field {letter!r} comes twice")
        else:
            single[letter] = content
    return single, parameters


def decode_parameters(contents: Sequence[bytes]) -> Parameters:
    """Return the parameters: all by position, or all by name. Raises ProtocolError."""
    named: dict[str, Value] = {}
    positions: list[Value] = []
    for content in contents:
        name, found, value = content.partition(b"\0")
        if not found:
            raise ProtocolError("a parameter without NUL after its name")
        if not name:
            positions.append(decode_value(value))
        elif (key := text_of(name)) in named:
            raise ProtocolError(f"parameter {key[:40]!r} comes twice")
        else:
            named[key] = decode_value(value)
    if named and positions:
        raise ProtocolError("parameters by position and by name in one request")
    return named or positions


def decode_value(content: bytes) -> Value:
    """Return the value of a letter for the type and what follows it. Raises ProtocolError."""
    letter, rest = content[:1], content[1:]
    match letter:
        case b"n" if not rest:
            return None
        case b"i":
            return number_of(rest, signed=True)
        case b"f":
            return float_of(rest)
        case b"t":
            return text_of(rest)
        case b"b":
            return rest
    raise ProtocolError(f"no value: {content[:40]!r}")


def text_of(content: bytes) -> str:
    """Return a field's text. Raises ProtocolError if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"not UTF-8: {content[:40]!r}") from None


def number_of(content: bytes, *, signed: bool = False) -> int:
    """Return a field's whole number, of at most 64 bits as in every database. Raises ProtocolError."""
    digits = content.removeprefix(b"-") if signed else content
    number = int(content) if digits.isdigit() and len(digits) < 20 else 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise ProtocolError(f"no number: {content[:40]!r}")
    return number


def float_of(content: bytes) -> float:
    """Return a field's floating-point number. Raises ProtocolError."""
    try:
        return float(text_of(content))
    except ValueError:
        raise ProtocolError(f"no number: {content[:40]!r}") from None


def seconds_of(content: bytes) -> float:
    """Return a field's time in seconds, above 0. Raises ProtocolError."""
    seconds = float_of(content)
    if not 0 < seconds < float("inf"):
        raise ProtocolError(f"no time: {content[:40]!r}")
    return seconds
