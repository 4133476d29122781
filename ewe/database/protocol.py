"""The protocol between a gateway and the database daemon: messages in frames, no I/O.

A gateway that connects to its database for each request spends more time on the connection than on the query. The
daemon keeps connections open, and a gateway sends it the statement. Source: "Performance of RDBMS-WWW Interfaces
under Heavy Workload", section 3.2, which gives this grammar:

    ClientRequest    = DatabaseName SQLStatement [ClientIdentifier] ResultsLayout
    ServerResponse   = ResponseFragment ContinueFlow
    ContinueFlow     = "YES" / "NO"

The paper does not say how a field ends. Here a message is a *frame*, and each field has a letter and a length:

    frame = length (4 bytes, big-endian, of all its fields)  field field ...
    field = letter (1 byte)  length (4 bytes)  content

    gateway ──▶ daemon   D log  S SELECT ... WHERE status = :status  P status NUL i200  L TABLE
    daemon ──▶ gateway   R <table>...<tr>...   C YES
    daemon ──▶ gateway   R ...</table>         C NO

A result of a million rows is a sequence of responses. Each fits into one frame, so neither end keeps more than one
of them in memory. `ContinueFlow` says whether another follows. The paper introduced it for message queues: their
messages have at most 8,192 bytes.

The paper does not have these fields:

    P  a parameter, so that no gateway needs to paste a visitor's text into a statement
    N  T  limits for the rows of the result, and for the time of the statement
    O  the word READ: the statement may only read, even if the gateway may change the database
    K  the key that a daemon asks for on TCP. It stands after the database, before the long fields: the daemon need
       not read a long request of a peer without a key
    E  an error in place of a result

A receiver refuses an unknown letter, because it cannot tell whether the field may be ignored.

A peer may send anything. FrameDecoder therefore checks the length of a frame before its bytes arrive. Every error
is a ProtocolError. After it the connection must be closed, because the beginning of the next frame is unknown.

Read next: daemon.py and client.py, the two ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ewe.config.messages import Failure

MAX_FRAME_BYTES = 1 << 20  # of one frame without its length: the largest statement with its parameters
MAX_INTEGER_DIGITS = 19  # digits of the largest number of 64 bits
MAX_FRAME_FIELDS = 4096  # the number of fields in one frame: a database takes no more parameters
MAX_QUOTED_CHARS = 40  # of a peer's text that an error quotes
MAX_ERROR_CHARS = 2000  # of an error: a database may quote a name of 1 MB
FRAGMENT_BYTES = 32 * 1024  # of a ResponseFragment that the daemon sends
LAYOUTS = ("TABLE", "PRE", "OPTION", "JSON", "CSV", "XML", "ROWS")

# A client identifier of ewe is one number: ewe's pid, then the number of the client's connection
PID_BITS, NUMBER_BITS = 32, 32

# The letters of the fields: D database, K key, S statement, L layout, P parameter, I client identifier, N rows,
# T time limit, O read only; R fragment, C ContinueFlow, E error
LENGTH = struct.Struct(">I")
FIELD_HEAD = struct.Struct(">cI")
Field = tuple[bytes, bytes]  # letter, content

# Types of a parameter, and of a value in a result, that every database of ewe has
Value = None | int | float | str | bytes
Parameters = Sequence[Value] | Mapping[str, Value]

# Why there is no result. The number is the HTTP status with which a gateway should answer.
ERRORS = {
    "MESSAGE": 500,  # the message breaks the protocol, or names something that does not exist
    "FORBIDDEN": 403,  # this peer may not use this database, or not for writing
    "STATEMENT": 500,  # the database refuses the statement
    "TIMEOUT": 504,  # the statement ran longer than the limit, and was cancelled
    "TOO MANY ROWS": 500,  # the result has more rows than the daemon allows, and the request set no lower limit
    "UNAVAILABLE": 503,  # the database does not answer, or the daemon is overloaded
}


class ProtocolError(Exception):
    """The peer breaks the protocol, or exceeds a limit. The text is one line. The connection must be closed."""


class DatabaseError(Failure):
    """There is no result. kind: one of ERRORS. The text is one line, for the log, of MAX_ERROR_CHARS at most."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(" ".join(text.split())[:MAX_ERROR_CHARS])
        self.kind = kind

    @property
    def status(self) -> int:
        """The HTTP status for the client of the gateway."""
        return ERRORS[self.kind]


@dataclass(frozen=True)
class ClientRequest:
    """The request of a gateway.

    client: the gateway's process id, or the connection that ewe answers (client_identifier).
    parameters: bound to the statement by position or by name.
    rows: the largest number of rows. time_limit: seconds. None: the daemon's limit, which neither can raise.
    read_only: the statement must not change the database, even if this gateway may. A visitor may have written it.
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
    """One part of a result. more: another follows (ContinueFlow). error: the result ends here, incomplete."""

    fragment: bytes
    more: bool
    error: DatabaseError | None = field(default=None, compare=False)


def error_response(error: DatabaseError) -> ServerResponse:
    """Return the response that ends a result with an error."""
    return ServerResponse(b"", more=False, error=error)


def client_identifier(connection: str) -> int | None:
    """Return the client identifier of a request: the name of ewe's connection, PID.NUMBER, as one number."""
    process, _, number = connection.partition(".")
    return int(process) << NUMBER_BITS | int(number) if number else None


def connection_of(client: int | None) -> str:
    """Return the name of ewe's connection in a client identifier; "" if another gateway asks."""
    process, number = divmod(client or 0, 1 << NUMBER_BITS)
    return f"{process}.{number}" if 0 < process < 1 << PID_BITS else ""


# ---------------------------------------------------------------------------------------------------------
# Messages to bytes


def frame(fields: Iterable[Field]) -> bytes:
    """Return a frame with these fields. Raises ProtocolError if it is too long."""
    content = b"".join(FIELD_HEAD.pack(letter, len(text)) + text for letter, text in fields)
    if len(content) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {len(content)} bytes: at most {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(content)) + content


def encode_request(request: ClientRequest) -> bytes:
    """Return a ClientRequest as a frame. Raises ProtocolError if a frame cannot carry it."""
    fields = [(b"D", utf8(request.database))]
    if request.key:
        fields.append((b"K", utf8(request.key)))
    fields += [(b"S", utf8(request.statement)), (b"L", utf8(request.layout))]
    fields += [(b"P", content) for content in encode_parameters(request.parameters)]
    numbers = ((b"I", request.client), (b"N", request.rows), (b"T", request.time_limit))
    # %a writes a number as repr() does, without rounding it
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
    """Yield a field's content for each parameter: name ("" by position), NUL, a letter for the type, value."""
    named = parameters.items() if isinstance(parameters, Mapping) else (("", value) for value in parameters)
    for name, value in named:
        if "\0" in name:
            raise ProtocolError(f"the name of a parameter contains NUL: {name!r}")
        yield utf8(name) + b"\0" + encode_value(value)


def encode_value(value: Value) -> bytes:
    """Return a letter for the type, and the value. Raises ProtocolError for a type that no database takes."""
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d" % value
        case float():
            return b"f%a" % value  # %a writes a number as repr() does, without rounding it
        case str():
            return b"t" + utf8(value)
        case bytes():
            return b"b" + value
    raise ProtocolError(f"a parameter cannot be a {type(value).__name__}")


def utf8(text: str) -> bytes:
    """Return a text as UTF-8. Raises ProtocolError for a single surrogate (U+D800 to U+DFFF)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"not a text that UTF-8 can encode: {text[:MAX_QUOTED_CHARS]!r}") from None


# ---------------------------------------------------------------------------------------------------------
# Bytes to messages


class FrameDecoder:
    """Collects bytes in pieces of any size, and yields the fields of each complete frame."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        """limit: the bytes of the largest frame."""
        self.limit = limit
        self.data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived. Raises ProtocolError as soon as a frame is known to be too long."""
        self.data += data
        self.first_frame_length()

    def first_frame_length(self) -> int | None:
        """Return the length of the first frame, None while it is unknown. Raises ProtocolError."""
        if len(self.data) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self.data)
        if length > self.limit:
            raise ProtocolError(f"a frame of {length} bytes: at most {self.limit}")
        return int(length)

    def next_frame(self) -> list[Field] | None:
        """Return the fields of the next frame, None if it is not complete yet. Raises ProtocolError."""
        length = self.first_frame_length()
        if length is None or len(self.data) < LENGTH.size + length:
            return None
        content = bytes(self.data[LENGTH.size : LENGTH.size + length])
        del self.data[: LENGTH.size + length]
        return split_frame(content)


def database_and_key(data: bytes | bytearray) -> tuple[str, str]:
    """Return the database and the key of a frame that is still arriving; "" for each that is not complete yet.

    They are the fields D and K, which must come before all others. The daemon can thus check the key before it
    reads a long request. data: of the frame, with its length.
    """
    contents: dict[bytes, bytes] = {}  # letter of a field -> its content
    position = LENGTH.size
    while len(contents) < 2 and len(data) - position >= FIELD_HEAD.size:
        letter, length = FIELD_HEAD.unpack_from(data, position)
        position += FIELD_HEAD.size
        if letter not in b"DK" or length > len(data) - position:
            break  # another field, or the content is not complete
        contents[letter] = bytes(data[position : position + length])
        position += length
    try:
        return contents.get(b"D", b"").decode(), contents.get(b"K", b"").decode()
    except UnicodeDecodeError:
        return "", ""


def split_frame(content: bytes) -> list[Field]:
    """Return the fields of a frame. Raises ProtocolError."""
    fields: list[Field] = []
    position = 0
    while position < len(content):
        if len(content) - position < FIELD_HEAD.size:
            raise ProtocolError("the frame ends within a field")
        letter, length = FIELD_HEAD.unpack_from(content, position)
        position += FIELD_HEAD.size
        if length > len(content) - position:
            raise ProtocolError(f"field {letter!r} is longer than its frame")
        if len(fields) == MAX_FRAME_FIELDS:
            raise ProtocolError(f"more than {MAX_FRAME_FIELDS} fields")
        fields.append((letter, content[position : position + length]))
        position += length
    return fields


def decode_request(fields: Iterable[Field]) -> ClientRequest:
    """Return the ClientRequest in a frame's fields. Raises ProtocolError."""
    fields_by_letter, parameters = fields_and_parameters(fields, allowed_letters=b"DSLINTKO")
    try:
        layout = text_of(fields_by_letter.get(b"L", b"TABLE"))
        if layout not in LAYOUTS:
            raise ProtocolError(f"unknown layout {layout[:MAX_QUOTED_CHARS]!r}: use {', '.join(LAYOUTS)}")
        if fields_by_letter.get(b"O", b"READ") != b"READ":
            raise ProtocolError("field b'O' is not READ")
        return ClientRequest(
            database=text_of(fields_by_letter[b"D"]),
            statement=text_of(fields_by_letter[b"S"]),
            layout=layout,
            parameters=decode_parameters(parameters),
            client=number_of(fields_by_letter[b"I"]) if b"I" in fields_by_letter else None,
            rows=number_of(fields_by_letter[b"N"]) if b"N" in fields_by_letter else None,
            time_limit=seconds_of(fields_by_letter[b"T"]) if b"T" in fields_by_letter else None,
            key=text_of(fields_by_letter.get(b"K", b"")),
            read_only=b"O" in fields_by_letter,
        )
    except KeyError as missing:
        [letter] = missing.args
        raise ProtocolError(f"the request has no field {letter!r}") from None


def decode_response(fields: Iterable[Field]) -> ServerResponse:
    """Return the ServerResponse in a frame's fields. Raises ProtocolError."""
    fields_by_letter, parameters = fields_and_parameters(fields, allowed_letters=b"RCE")
    if parameters or fields_by_letter.get(b"C") not in (b"YES", b"NO"):
        raise ProtocolError("a response needs ContinueFlow, YES or NO, and has no parameters")
    error = None
    if b"E" in fields_by_letter:
        kind, _, text = text_of(fields_by_letter[b"E"]).partition("\0")
        if kind not in ERRORS:
            raise ProtocolError(f"unknown kind of error {kind[:MAX_QUOTED_CHARS]!r}")
        error = DatabaseError(kind, text)
    return ServerResponse(fields_by_letter.get(b"R", b""), fields_by_letter[b"C"] == b"YES", error)


def fields_and_parameters(
    fields: Iterable[Field], allowed_letters: bytes
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the fields that may occur once, by letter, and the contents of the parameters. Raises ProtocolError.

    allowed_letters: of the fields that may occur once.
    """
    fields_by_letter: dict[bytes, bytes] = {}
    parameters = []
    for letter, content in fields:
        if letter == b"P":
            parameters.append(content)
        elif letter not in allowed_letters:
            raise ProtocolError(f"unknown field {letter!r}")
        elif letter in fields_by_letter:
            raise ProtocolError(f"field {letter!r} comes twice")
        else:
            fields_by_letter[letter] = content
    return fields_by_letter, parameters


def decode_parameters(contents: Sequence[bytes]) -> Parameters:
    """Return the parameters: all by position, or all by name. Raises ProtocolError."""
    named: dict[str, Value] = {}
    positions: list[Value] = []
    for content in contents:
        name, nul, value = content.partition(b"\0")
        if not nul:
            raise ProtocolError("a parameter without NUL after its name")
        if not name:
            positions.append(decode_value(value))
        elif (key := text_of(name)) in named:
            raise ProtocolError(f"parameter {key[:MAX_QUOTED_CHARS]!r} comes twice")
        else:
            named[key] = decode_value(value)
    if named and positions:
        raise ProtocolError("parameters by position and by name in one request")
    return named or positions


def decode_value(content: bytes) -> Value:
    """Return the value that a type letter and the bytes after it encode. Raises ProtocolError."""
    letter, encoded = content[:1], content[1:]
    match letter:
        case b"n" if not encoded:
            return None
        case b"i":
            return number_of(encoded, signed=True)
        case b"f":
            return float_of(encoded)
        case b"t":
            return text_of(encoded)
        case b"b":
            return encoded
    raise ProtocolError(f"not a value of a known type: {content[:MAX_QUOTED_CHARS]!r}")


def text_of(content: bytes) -> str:
    """Return a field's text. Raises ProtocolError if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"not UTF-8: {content[:MAX_QUOTED_CHARS]!r}") from None


def number_of(content: bytes, *, signed: bool = False) -> int:
    """Return a field's whole number, of at most 64 bits as in every database. Raises ProtocolError."""
    digits = content.removeprefix(b"-") if signed else content
    is_short = digits.isdigit() and len(digits) <= MAX_INTEGER_DIGITS
    if not is_short or not -(1 << 63) <= int(content) < 1 << 63:
        kind = "a whole number" if signed else "a whole number from 0"
        raise ProtocolError(f"not {kind}, of at most 64 bits: {content[:MAX_QUOTED_CHARS]!r}")
    return int(content)


def float_of(content: bytes) -> float:
    """Return a field's floating-point number. Raises ProtocolError."""
    try:
        return float(text_of(content))
    except ValueError:
        raise ProtocolError(f"not a number: {content[:MAX_QUOTED_CHARS]!r}") from None


def seconds_of(content: bytes) -> float:
    """Return a field's time in seconds, above 0. Raises ProtocolError."""
    seconds = float_of(content)
    if not 0 < seconds < float("inf"):
        raise ProtocolError(f"not a number of seconds above 0: {content[:MAX_QUOTED_CHARS]!r}")
    return seconds
