"""What one exchange says or does leaves nothing for the next: random connections against single requests.

Programs get variables of a guard, of `env`, and of an error page. The stream holds them while one request is
answered. Each request of a long connection has to get what the same request gets alone, and the same line in the
access log. Its client may be another each time, since a trusted proxy says who it is.
"""

from __future__ import annotations

import random
import socket
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.server import Server, Start, wait_until, write_program
from support.wire import read_response, request_of

SETTINGS = """
trusted-proxies = ["127.0.0.1"]
program-timeout = "0.2s"
log-format = "%a|%u|%r|%>s"

[[site]]
error-pages = { 403 = "/page", 404 = "/page", 500 = "/page?st=500", 504 = "/page" }

[[site.location]]
prefix = "/members/"
auth = { realm = "Members", command = ["/bin/sh", "-c", "read name; [ $name != eve ]"] }
alias = "programs"
gateway = "cgi"
env = { PLACE = "members" }

[[site.location]]
prefix = "/denied"
deny = ["198.51.100.2"]
pass-authorization = true
env = { PLACE = "denied" }
alias = "programs"
gateway = "cgi"

[[site.location]]
prefix = "/moved/"
auth = { realm = "Members", command = ["/bin/sh", "-c", "read name; [ $name != eve ]"] }
rewrite = "/found/$rest"

[[site.location]]
prefix = "/found/"
try = ["/nothing$rest", "/shown/$rest"]

[[site.location]]
prefix = "/loop"
rewrite = "/loop/$rest"
env = { PLACE = "loop" }

[[site.location]]
prefix = "/"
alias = "programs"
gateway = "cgi"
"""
PROGRAM = """#!/bin/sh
case "$QUERY_STRING" in
sleep) sleep 3 ;;
crash) exit 1 ;;
to=*) printf 'Location: %s\\n\\n' "${QUERY_STRING#to=}"; exit ;;
st=*) printf 'Status: %s X\\n' "${QUERY_STRING#st=}" ;;
esac
printf 'Content-Type: text/plain\\n\\n'
printf '%s|' "$REMOTE_ADDR" "$REMOTE_USER" "$AUTH_TYPE" "$HTTP_AUTHORIZATION" "$PLACE"
printf '%s|' "$REDIRECT_STATUS" "$REDIRECT_URL" "$REQUEST_URI" "$REQUEST_METHOD"
"""
TARGETS = (
    "/page", "/members/page", "/members/page?to=/page", "/denied/page", "/moved/page", "/moved/page?crash", "/loop",
    "/none", "/members/none", "/page?crash", "/members/page?to=/denied/page", "/page?to=/loop", "/a%2Fb",
    "/page?st=404", "/denied/none",
)  # fmt: skip


def some_request(pick: random.Random, *, slow: bool) -> bytes:
    """Return a request; a slow one may wait for its program's timeout."""
    target = pick.choice(("/page?sleep", "/members/page?sleep") if slow else TARGETS)
    fields = [f"X-Forwarded-For: 198.51.100.{pick.choice((1, 2))}"]
    if pick.random() < 0.6:
        said = pick.choice(("ada:a", "bob:b", "eve:e")).encode()
        fields.append(f"Authorization: Basic {b64encode(said).decode()}")
    body = b"x" * pick.choice((0, 0, 0, 5))
    if body:
        return request_of(f"POST {target}", *fields, f"Content-Length: {len(body)}", body=body)
    return request_of(f"GET {target}", *fields)


def answers(server: Server, requests: list[bytes], *, leaves: bool = False) -> list[tuple[int, bytes]]:
    """Return the answers to requests on one connection. leaves: the client goes away after the last one."""
    with server.connect() as sock:
        found = []
        for request in requests:
            sock.sendall(request)
            status, fields, body = read_response(sock)
            found.append((status, body))
            if fields.get("connection") == "close":
                return found
        if leaves:
            sock.sendall(request_of("GET /members/page?sleep", "Authorization: Basic YWRhOmE="))
            sock.shutdown(socket.SHUT_RDWR)
        return found


def test_exchanges_leave_nothing_behind(start: Start, tmp_path: Path, model: str) -> None:
    write_program(tmp_path / "programs" / "page", PROGRAM)
    (tmp_path / "ewe.toml").write_text(SETTINGS)
    server = start(model, "--config", "ewe.toml", "--access-log", "access.log")
    pick = random.Random(22)
    requests = [some_request(pick, slow=False) for _ in range(30)] + [
        some_request(pick, slow=True) for _ in range(2)
    ]
    alone = {request: answers(server, [request])[0] for request in requests}
    log = tmp_path / "access.log"
    wait_until(lambda: len(log.read_text().splitlines()) == len(requests), 10)  # written after the answer
    lines = set(log.read_text().splitlines())
    connections = [[pick.choice(requests) for _ in range(8)] for _ in range(6)]
    with ThreadPoolExecutor(3) as pool:
        all_found = list(pool.map(lambda each: answers(server, each, leaves=True), connections))
    for asked, found in zip(connections, all_found, strict=True):
        for request, answer in zip(asked, found, strict=False):  # some answers end the connection
            assert answer == alone[request], request
    assert server.stop() == 0
    # Without the last exchange of each connection, because its client has left
    found_lines = [line for line in log.read_text().splitlines() if line.startswith("198.")]
    assert set(found_lines) <= lines and len(found_lines) > len(requests)
    assert "Traceback" not in server.log()
