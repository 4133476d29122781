"""Facts that proxies send about a client: X-Forwarded fields, Forwarded, and the header of the PROXY protocol."""

from __future__ import annotations

import socket
import struct

import pytest

from ewe.http import proxy_header
from ewe.http.addresses import Networks, parse_ip
from ewe.http.forwarded import origin_of, parse_forwarded, parse_node, parse_x_forwarded
from ewe.http.proxy_header import SIGNATURE, Malformed, crc32c, parse
from ewe.http.status import HTTPError

TRUSTED = Networks(["10.0.0.0/8", "fd00::/8", "unix"])


def test_networks_hold_addresses_networks_and_unix() -> None:
    for inside in ("10.1.2.3", "fd00::1", "unix:", "::ffff:10.0.0.1", "fd12::1%eth0"):
        assert inside in TRUSTED
    for outside in ("11.0.0.1", "fe80::1", "", "unknown", "10.0.0", "10.0.0.1 ", "unix", "1" * 100):
        assert outside not in TRUSTED
    assert "unix:" not in Networks(["127.0.0.1"])
    mapped = Networks(["::ffff:192.0.2.1", "::ffff:10.1.0.0/112"])
    assert "192.0.2.1" in mapped and "10.1.2.3" in mapped and "10.2.0.0" not in mapped
    assert str(parse_ip("::ffff:192.0.2.1")) == "192.0.2.1"
    with pytest.raises(ValueError):
        Networks(["10.0.0.1/8"])


@pytest.mark.parametrize(
    ("field", "client"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9", "203.0.113.9"),  # the client has written what stands to the left
        ("6.6.6.6, 203.0.113.9, 10.0.0.7", "203.0.113.9"),
        ("203.0.113.9,10.0.0.7 ,\t10.0.0.8", "203.0.113.9"),
        ("10.0.0.7, 10.0.0.8", "10.0.0.7"),  # all are trusted: the first has asked
        ("6.6.6.6, unknown", None),  # the proxy does not know: the peer itself counts
        ("6.6.6.6, unknown, 10.0.0.7", "10.0.0.7"),
        ("6.6.6.6, 1.2.3.4.5", None),
        ("", None),
        (", ,", None),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("203.0.113.9; DROP", None),
        ("\u0663.0.113.9", None),
    ],
)
def test_the_rightmost_address_that_is_not_trusted_is_the_client(field: str, client: str | None) -> None:
    found = origin_of(parse_x_forwarded(field, "", "", ""), TRUSTED).client
    assert (found and found[0]) == client


def test_ports_of_nodes() -> None:
    assert parse_node("203.0.113.9:4711") == ("203.0.113.9", 4711)
    assert parse_node("[2001:db8::1]:80") == ("2001:db8::1", 80)
    assert parse_node("203.0.113.9:99999") == ("203.0.113.9", 0)
    assert parse_node("_hidden") is None


def test_scheme_host_and_port_belong_to_the_clients_hop() -> None:
    found = origin_of(
        parse_x_forwarded("6.6.6.6, 203.0.113.9, 10.0.0.7", "ftp, https, http", "evil, a.org, b.org", ""),
        TRUSTED,
    )
    assert found == (("203.0.113.9", 0), "https", "a.org", 0)
    # A list of another length: the nearest proxy has written its end.
    found = origin_of(
        parse_x_forwarded("203.0.113.9, 10.0.0.7", "http, x, https", "a.org:8443", "8443"), TRUSTED
    )
    assert found == (("203.0.113.9", 0), "https", "a.org:8443", 8443)
    assert origin_of(parse_x_forwarded("", "https", "", ""), TRUSTED) == (None, "https", "", 0)
    assert origin_of(parse_x_forwarded("", "gopher", "", "0x50"), TRUSTED) == (None, "", "", 0)
    with pytest.raises(HTTPError) as refused:
        origin_of(parse_x_forwarded("", "", "a.org/evil", ""), TRUSTED)
    assert refused.value.status == 400


def test_forwarded_of_rfc_7239() -> None:
    hops = parse_forwarded(
        'for=6.6.6.6, For="[2001:db8::1]:47";proto=https;host="a.org:8443", for=10.0.0.7;by=_x'
    )
    assert origin_of(hops, TRUSTED) == (("2001:db8::1", 47), "https", "a.org:8443", 0)
    # Elements may be empty: a client's field, with what the proxy has added.
    assert origin_of(parse_forwarded(" , ,for=203.0.113.9, "), TRUSTED).client == ("203.0.113.9", 0)
    assert origin_of(parse_forwarded('for=6.6.6.6, for="1.2.3.4\\""'), TRUSTED).client is None
    assert origin_of(parse_forwarded("for=unknown"), TRUSTED).client is None
    for end in (";", " ; "):  # section 4: a pair after ";" may be absent
        assert origin_of(parse_forwarded("for=6.6.6.6, for=203.0.113.9" + end), TRUSTED).client == (
            "203.0.113.9",
            0,
        )
    assert parse_forwarded("") == parse_forwarded(" ,\t") == []


@pytest.mark.parametrize(
    "field",
    [
        'for="6.6.6.6, for=203.0.113.9;proto=https',
        "for=1.1.1.1;for=2.2.2.2, for=203.0.113.9",
        "6.6.6.6, for=203.0.113.9",
        "for=a b, for=203.0.113.9",
        ";, for=203.0.113.9",
        "for=6.6.6.6;, for=203.0.113.9",
        "for=203.0.113.9;;",
    ],
)
def test_a_forwarded_field_that_a_client_has_spoilt(field: str) -> None:
    """The client's field must not hide the address that the proxy adds: the proxy would look like the client."""
    with pytest.raises(HTTPError) as refused:
        parse_forwarded(field)
    assert refused.value.status == 400


# The PROXY protocol


def second(command: int, family: int, addresses: bytes, values: bytes = b"") -> bytes:
    """Return a header of version 2."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(addresses + values)) + addresses + values


def value(kind: int, data: bytes) -> bytes:
    """Return one further value."""
    return struct.pack("!BH", kind, len(data)) + data


FOUR = socket.inet_aton("203.0.113.9") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 5000, 443)
SIX = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::9")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + struct.pack("!HH", 5000, 443)
)

GOOD = {
    b"PROXY TCP4 203.0.113.9 192.0.2.1 5000 443\r\n": (("203.0.113.9", 5000), ("192.0.2.1", 443), False),
    b"PROXY TCP6 2001:db8::9 2001:db8::1 0 65535\r\n": (("2001:db8::9", 0), ("2001:db8::1", 65535), False),
    b"PROXY TCP6 ::ffff:203.0.113.9 ::ffff:192.0.2.1 5 80\r\n": (("203.0.113.9", 5), ("192.0.2.1", 80), False),
    b"PROXY UNKNOWN\r\n": (None, None, False),
    b"PROXY UNKNOWN ff:ff 1 2 3\r\n": (None, None, False),
    second(0x21, 0x11, FOUR): (("203.0.113.9", 5000), ("192.0.2.1", 443), False),
    second(0x21, 0x21, SIX): (("2001:db8::9", 5000), ("2001:db8::1", 443), False),
    second(0x21, 0x11, FOUR, value(0xEE, b"x" * 300) + value(0x04, b"")): (
        ("203.0.113.9", 5000), ("192.0.2.1", 443), False,
    ),
    second(0x21, 0x11, FOUR, value(0x20, b"\1" + bytes(4))): (("203.0.113.9", 5000), ("192.0.2.1", 443), True),
    second(0x21, 0x11, FOUR, value(0x20, b"\0" + bytes(4))): (("203.0.113.9", 5000), ("192.0.2.1", 443), False),
    second(0x21, 0x11, FOUR, value(0x20, b"")): (("203.0.113.9", 5000), ("192.0.2.1", 443), False),
    second(0x20, 0x00, b""): (None, None, False),  # LOCAL
    second(0x20, 0x11, FOUR): (None, None, False),
    second(0x20, 0x7F, b"whatever it is"): (None, None, False),
    second(0x21, 0x00, b""): (None, None, False),
    second(0x21, 0x31, bytes(216)): (None, None, False),
}  # fmt: skip


@pytest.mark.parametrize("header", GOOD)
def test_good_headers_however_they_arrive(header: bytes) -> None:
    client, server, secure = GOOD[header]
    for end in range(len(header)):
        assert parse(header[:end]) is None
    assert parse(header) == parse(header + b"GET / HTTP/1.1\r\n") == (client, server, len(header), secure)


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"\r\n\r\nGET",
        b"proxy TCP4 203.0.113.9 192.0.2.1 5000 443\r\n",
        b"PROXY TCP4 203.0.113.9 192.0.2.1 5000 70000\r\n",
        b"PROXY TCP4 203.0.113.9 192.0.2.1 5000 0443\r\n",
        b"PROXY TCP4  203.0.113.9 192.0.2.1 5000 443\r\n",
        b"PROXY TCP4 203.0.113.9 192.0.2.1 5000 443 \r\n",
        b"PROXY TCP4 203.0.113.999 192.0.2.1 5000 443\r\n",
        b"PROXY TCP4 2001:db8::9 2001:db8::1 5000 443\r\n",
        b"PROXY TCP6 203.0.113.9 192.0.2.1 5000 443\r\n",
        b"PROXY TCP5 203.0.113.9 192.0.2.1 5000 443\r\n",
        b"PROXY UNKNOWN" + b" " * 100 + b"\r\n",
        second(0x11, 0x11, FOUR),
        second(0x22, 0x11, FOUR),
        second(0x21, 0x12, FOUR),  # datagrams
        second(0x21, 0x41, FOUR),
        second(0x21, 0x11, FOUR[:-1]),
        second(0x21, 0x11, FOUR, b"\4"),
        second(0x21, 0x11, FOUR, b"\4\0\5abcd"),
        second(0x21, 0x11, FOUR, value(0x03, b"abcd")),
        second(0x21, 0x11, FOUR, value(0x03, b"abc")),
        second(0x21, 0x11, FOUR, value(0xEE, bytes(5000))),
    ],
)
def test_malformed_headers(header: bytes) -> None:
    with pytest.raises(Malformed):
        for end in range(1, len(header) + 1):
            parse(header[:end])


def test_a_checksum_is_verified() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    blank = second(0x21, 0x11, FOUR, value(0x03, bytes(4)) + value(0x02, b"a.org"))
    good = blank.replace(value(0x03, bytes(4)), value(0x03, crc32c(blank).to_bytes(4, "big")))
    assert parse(good) is not None
    with pytest.raises(Malformed):
        parse(good[:-1] + b"x")


def test_no_header_waits_for_more_than_its_limit() -> None:
    with pytest.raises(Malformed):
        parse(b"PROXY " + b"x" * proxy_header.MAX_VERSION_1_BYTES)
