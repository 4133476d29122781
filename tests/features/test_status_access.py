"""Who sees the status: no proxy, path, method or cache shows it to a client that status-allow does not name."""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path

import pytest
from support.server import Server, Start, free_port, write_program
from support.wire import read_all

from ewe.scoreboard import FEATURE_NAMES, OTHER, STATUSES

STATUS = ("--status", "/ewe-status")
FOR = b"X-Forwarded-For: 192.0.2.1\r\n"


def ask(server: Server, path: str = "/ewe-status?json", fields: bytes = b"", method: str = "GET") -> bytes:
    """Return the response to a request for localhost."""
    line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
    return server.ask(line + fields + b"Connection: close\r\n\r\n")


def code(response: bytes) -> int:
    """Return the status of a response."""
    assert response.startswith(b"HTTP/1.1 "), response
    return int(response[9:12])


def test_trust_in_one_proxy_is_none_in_another(start: Start, way_to_wait: str) -> None:
    """The proxy at 127.0.0.1 is not the trusted one, so its clients' addresses are unknown."""
    server = start(way_to_wait, *STATUS, "--trusted-proxies", "10.0.0.2")
    assert code(ask(server, fields=FOR)) == 403
    assert code(ask(server, fields=b"Via: 1.1 x\r\n")) == 403
    assert code(ask(server)) == 200  # a client on this machine


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("x-forwarded", b"Via: 1.1 x\r\n"),
        ("x-forwarded", b"X-Forwarded-For: unknown\r\n"),
        ("x-forwarded", b"Forwarded: for=127.0.0.1\r\n"),
        ("forwarded", b"Forwarded: for=unknown\r\n"),
        ("forwarded", b"Forwarded: for=_hidden\r\n"),
        ("forwarded", FOR),
    ],
)
def test_a_trusted_proxy_that_does_not_name_its_client(start: Start, kind: str, field: bytes) -> None:
    """The address of the proxy, which is this machine, is not the client's."""
    server = start("thread", *STATUS, "--trusted-proxies", "127.0.0.1", "--trusted-fields", kind)
    assert code(ask(server, fields=field)) == 403
    named = b"Forwarded: for=127.0.0.1\r\n" if kind == "forwarded" else b"X-Forwarded-For: 127.0.0.1\r\n"
    assert code(ask(server, fields=named)) == 200


def test_the_client_of_the_proxy_protocol(start: Start, way_to_wait: str) -> None:
    server = start(way_to_wait, *STATUS, "--proxy-protocol", "--trusted-proxies", "127.0.0.1")
    request = b"GET /ewe-status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    for client, status in ((b"203.0.113.9", 403), (b"127.0.0.5", 200)):
        header = b"PROXY TCP4 %b 127.0.0.7 5000 443\r\n" % client
        assert code(server.ask(header + request + b"\r\n")) == status
        assert code(server.ask(header + request + b"X-Forwarded-For: 127.0.0.1\r\n\r\n")) == status
    unnamed = b"PROXY UNKNOWN\r\n" + request
    assert code(server.ask(unnamed + FOR + b"\r\n")) == 403


@pytest.mark.parametrize(
    "trusted", [(), ("--trusted-proxies", "10.0.0.2"), ("--trusted-proxies", "127.0.0.1")]
)
def test_a_location_that_passes_requests_to_this_server(start: Start, trusted: tuple[str, ...]) -> None:
    """The second connection comes from this machine, and the client from elsewhere: 127.0.0.1 stands for it."""
    port = free_port()
    passed = ("--bind", f"127.0.0.1:{port}", "--proxy", f"/p/=http://127.0.0.1:{port}/")
    server = start("thread", *STATUS, *passed, *trusted)
    assert code(ask(server)) == 200
    fields = FOR if "127.0.0.1" in trusted else b""  # the client, as another trusted proxy names it
    for path in ("/p/ewe-status", "/p/ewe-status/metrics", "/p/./ewe-status?json", "/p//ewe-status"):
        assert code(ask(server, path, fields)) in (403, 404), path


def test_a_unix_socket_is_not_this_machine(start: Start, site: Path) -> None:
    for at, (options, status) in enumerate((((), 403), (("--status-allow", "unix"), 200))):
        path = site / f"socket{at}"
        start("thread", *STATUS, *options, "--bind", "127.0.0.1:0", "--bind", f"unix:{path}")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(str(path))
            sock.sendall(b"GET /ewe-status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert code(read_all(sock)) == status


SPELLINGS = (
    "/ewe-status", "/%65we-status", "//ewe-status", "/x/../ewe-status", "/./ewe-status", "/ewe-status/./metrics",
    "/ewe-status/x/../metrics", "/ewe-status//metrics", "http://localhost/ewe-status", "http://x/ewe-status?json",
)  # fmt: skip
OTHERS = (
    "/ewe-status/", "/ewe-status/.", "/ewe-status/..", "/ewe-status;x", "/ewe-status.", "/EWE-STATUS",
    "/ewe-status%20", "/ewe-status%00", "/ewe-status%2Fmetrics", "/ewe-status/metrics/", "/%2565we-status",
)  # fmt: skip


def test_every_spelling_of_the_path_meets_the_same_check(start: Start, way_to_wait: str) -> None:
    open_one = start(way_to_wait, *STATUS)
    closed = start(way_to_wait, *STATUS, "--status-allow", "192.0.2.0/24")
    for path in SPELLINGS:
        assert code(ask(open_one, path)) == 200, path
        assert code(ask(closed, path)) == 403, path
    for path in OTHERS:
        for server in (open_one, closed):
            answer = ask(server, path)
            assert b"uptime" not in answer and (code(answer) in (400, 404) or b"welcome" in answer), path


def test_the_host_field_counts_and_not_the_target(start: Start) -> None:
    server = start("thread", *STATUS)
    line = b"GET http://localhost/ewe-status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert code(server.ask(line)) == 421
    assert code(ask(server, fields=b"X-Forwarded-Host: localhost\r\n")) == 403


def test_methods_conditions_and_ranges(start: Start) -> None:
    server = start("thread", *STATUS)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"):
        answer = ask(server, method=method, fields=b"Content-Length: 0\r\n")
        assert code(answer) == 405 and b"Allow: GET, HEAD\r\n" in answer, method
    head, _, body = ask(server, method="HEAD").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"no-store" in head and not body
    for field in (
        b"If-None-Match: *",
        b"If-Modified-Since: Sat, 01 Jan 2050 00:00:00 GMT",
        b"Range: bytes=0-1",
    ):
        head, _, body = ask(server, fields=field + b"\r\n").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and json.loads(body), field
        assert b"ETag" not in head and b"Last-Modified" not in head


def test_no_cache_keeps_it_and_compression_keeps_the_numbers(start: Start) -> None:
    """A content cache keeps no answer: each request is counted in the next one."""
    server = start("thread", *STATUS, "--content-cache", "1m", "--compress", "all")
    found = []
    for _ in range(3):
        head, _, body = ask(server, fields=b"Accept-Encoding: gzip\r\n").partition(b"\r\n\r\n")
        assert b"no-store" in head
        body = gzip.decompress(body) if b"Content-Encoding: gzip" in head else body
        found.append(json.loads(body)["requests"])
    assert found == [0, 1, 2]


def test_no_client_and_no_program_makes_a_new_label(start: Start) -> None:
    """A series of Prometheus costs memory for months, so clients must not be able to make one."""
    server = start("thread", *STATUS)
    write_program(
        server.cgi / "s.sh", '#!/bin/sh\nprintf "Status: $QUERY_STRING\\nContent-Type: text/plain\\n\\n"\n'
    )
    for status in ("299", "418", "555", "599", "600", "99", "2000", 'x"y'):
        ask(server, f"/cgi-bin/s.sh?{status}")
    for at in range(50):
        ask(server, f'/path{at}?{{"a"}}')
        ask(server, f"/{at}", method=f"M{at}")
    page = ask(server, "/ewe-status/metrics").decode()
    labels = set(re.findall(r'^ewe_requests_total{feature="(.*)",status="(.*)"} \d+$', page, re.MULTILINE))
    assert {feature for feature, _ in labels} <= set(FEATURE_NAMES)
    assert {status for _, status in labels} <= {str(status) for status in STATUSES if status} | {OTHER}
    assert ("cgi", OTHER) in labels and "path1" not in page and "M1" not in page
