"""The PROXY protocol: a header at the start of a connection that a proxy has made for a client.

A proxy that only forwards TCP does not parse HTTP, and cannot add a field. It writes one header before the client's
bytes:

    version 1, text     PROXY TCP4 203.0.113.9 192.0.2.1 56324 443\\r\\n          at most 107 bytes
    version 2, binary   12 bytes of signature, version and command, family,
                        length, addresses, then further values (TLV)

Both contain the client's address, and the address to which the client has connected. With LOCAL (version 2) and
UNKNOWN (version 1) no addresses count: the proxy checks the health of the server. Then the connection's own
addresses are used. ewe reads two of the further values: it verifies the checksum, if there is one, and PP2_TYPE_SSL
shows that the client uses TLS to the proxy. Other values are skipped.

Source: "The PROXY protocol, versions 1 & 2", HAProxy, https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
Read next: gateway/proxy_protocol.py, which reads the header from a stream.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple

from ewe.http.addresses import unmapped_address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"  # version 2, section 2.2
FIRST = b"PROXY "  # version 1, section 2.1
MAX_VERSION_1_BYTES = 107  # bytes of version 1 with its CRLF
MAX_VERSION_2_BYTES = 4096  # bytes of version 2 after its first 16: addresses and further values
PORT = r"(0|[1-9][0-9]{0,4})"
LINE = re.compile(rf"PROXY (TCP4|TCP6) ([0-9A-Fa-f:.]{{2,39}}) ([0-9A-Fa-f:.]{{2,39}}) {PORT} {PORT}")
UNKNOWN = re.compile(r"PROXY UNKNOWN(?: [\x20-\x7e]*)?")
FIXED = Struct("!12sBBH")
PORTS = Struct("!HH")
VALUE = Struct("!BH")
LOCAL, PROXY = 0x20, 0x21  # version 2 and the command
UNSPECIFIED, TCP4, TCP6, UNIX_STREAM = 0x00, 0x11, 0x21, 0x31
ADDRESSES = {UNSPECIFIED: 0, TCP4: 12, TCP6: 36, UNIX_STREAM: 216}  # bytes
CHECKSUM, SSL = 0x03, 0x20  # types of further values
CRC32C = 0x82F63B78  # the polynomial, its bits reversed
CLIENT_SSL = 0x01  # bit of SSL's first byte: the client has connected over TLS


class Malformed(ValueError):
    """The bytes are not a PROXY header. The text is one line."""


class ProxyHeader(NamedTuple):
    """The contents of a header. client, server: (address, port), or None. size: the header's length in bytes.

    secure: the client uses TLS to the proxy.
    """

    client: tuple[str, int] | None
    server: tuple[str, int] | None
    size: int
    secure: bool = False


def parse(data: bytes) -> ProxyHeader | None:
    """Parse the header in all bytes that have arrived; return None if it is incomplete. Raises Malformed."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return parse_version_2(data)
    if data[: len(FIRST)] == FIRST[: len(data)]:
        return parse_version_1(data)
    raise Malformed(f"no PROXY header, but {data[:20]!r}")


def parse_version_1(data: bytes) -> ProxyHeader | None:
    """Parse a header of version 1; return None if it is incomplete. Raises Malformed."""
    end = data.find(b"\r\n", 0, MAX_VERSION_1_BYTES)
    if end < 0:
        if len(data) >= MAX_VERSION_1_BYTES:
            raise Malformed(f"a PROXY line has more than {MAX_VERSION_1_BYTES} bytes")
        return None
    line = data[:end].decode("latin-1")
    if UNKNOWN.fullmatch(line):
        return ProxyHeader(None, None, end + 2)
    match = LINE.fullmatch(line)
    if match is None or int(match[4]) > 65535 or int(match[5]) > 65535:
        raise Malformed(f"malformed: {line!r}")
    try:
        source, target = ip_address(match[2]), ip_address(match[3])
    except ValueError:
        raise Malformed(f"malformed: {line!r}") from None
    if {source.version, target.version} != {int(match[1].removeprefix("TCP"))}:
        raise Malformed(f"malformed: {line!r}")
    return ProxyHeader(
        (str(unmapped_address(source)), int(match[4])),
        (str(unmapped_address(target)), int(match[5])),
        end + 2,
    )


def parse_version_2(data: bytes) -> ProxyHeader | None:
    """Parse a header of version 2; return None if it is incomplete. Raises Malformed."""
    if len(data) < FIXED.size:
        return None
    _, command, family, length = FIXED.unpack_from(data)
    if command not in (LOCAL, PROXY):
        raise Malformed(f"version and command {command:#04x} are unknown")
    if length > MAX_VERSION_2_BYTES:
        raise Malformed(f"it has {length} bytes; the limit is {MAX_VERSION_2_BYTES}")
    size = FIXED.size + length
    if len(data) < size:
        return None
    addresses = ADDRESSES.get(family)
    if command == LOCAL:  # the receiver must ignore the addresses; only the checksum is read
        values = read_values(data, FIXED.size + (addresses or 0), size) if addresses is not None else {}
        verify_checksum(data[:size], values)
        return ProxyHeader(None, None, size)
    if addresses is None:
        raise Malformed(f"address family and protocol {family:#04x} are not those of a connection")
    if addresses > length:
        raise Malformed(f"{length} bytes are too few for its addresses")
    values = read_values(data, FIXED.size + addresses, size)
    verify_checksum(data[:size], values)
    begin, end = values.get(SSL, (0, 0))
    secure = begin < end and bool(data[begin] & CLIENT_SSL)
    if family not in (TCP4, TCP6):
        return ProxyHeader(None, None, size, secure)
    width = 4 if family == TCP4 else 16
    begin = FIXED.size
    source, target = data[begin : begin + width], data[begin + width : begin + 2 * width]
    source_port, target_port = PORTS.unpack_from(data, begin + 2 * width)
    client, server = str(unmapped_address(ip_address(source))), str(unmapped_address(ip_address(target)))
    return ProxyHeader((client, source_port), (server, target_port), size, secure)


def read_values(data: bytes, begin: int, end: int) -> dict[int, tuple[int, int]]:
    """Return type -> (begin, end) of the further values. Raises Malformed if one exceeds the header."""
    found: dict[int, tuple[int, int]] = {}
    while begin < end:
        if end - begin < VALUE.size:
            raise Malformed("a further value (TLV) is cut")
        kind, length = VALUE.unpack_from(data, begin)
        begin += VALUE.size
        if length > end - begin:
            raise Malformed("a further value (TLV) is cut")
        found[kind] = (begin, begin + length)
        begin += length
    return found


def verify_checksum(header: bytes, values: dict[int, tuple[int, int]]) -> None:
    """Verify the checksum, if there is one: the CRC32c of the header with zeros in the checksum's place.

    Raises Malformed.
    """
    if (span := values.get(CHECKSUM)) is None:
        return
    begin, end = span
    if end - begin != 4 or crc32c(header[:begin] + bytes(4) + header[end:]) != int.from_bytes(
        header[begin:end], "big"
    ):
        raise Malformed("its checksum is wrong")


def crc32c(data: bytes) -> int:
    """Return the CRC32c of `data` (RFC 3720 appendix B.4). It is computed bit by bit, since a header is short."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (CRC32C if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF
