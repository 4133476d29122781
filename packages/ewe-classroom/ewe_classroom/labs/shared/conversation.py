"""One conversation: read a request, answer it, until the client has had enough.

    bytes of the client ─▶ split_head() ─▶ head ─▶ response_to() ─▶ bytes of the response, and whether to go on

split_head() and response_to() know no socket, so every server of the course uses them as they are. converse() is
the loop around them for a server whose recv() blocks. HTTP/1.1: RFC 9110 (meaning) and RFC 9112 (bytes).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from urllib.parse import unquote

MAX_HEAD = 16 * 1024  # bytes of a request's head; a longer one is refused
SILENCE = 10.0  # seconds that a client may send nothing, or take nothing
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Head Too Large"}


class BadRequest(Exception):
    """The request cannot be answered with a file. status: of the response."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def split_head(buffer: bytes) -> tuple[bytes | None, bytes]:
    """Return the first head in the buffer without its empty line, and the bytes after it.

    The head is None if it is not whole yet. Raises BadRequest(431) for a head that is too long.
    """
    # --- solution
    head, found, rest = buffer.partition(b"\r\n\r\n")
    if len(head) > MAX_HEAD:
        raise BadRequest(431)
    return (head, rest) if found else (None, buffer)
    # --- starter
    # # The head ends with an empty line: b"\r\n\r\n". A client may send it in any number of pieces, and it may send
    # # the next request at once. This starter believes that the buffer holds exactly one request.
    # return buffer, b""
    # --- end


def parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the method, the path and the header fields (names in lower case). Raises BadRequest(400)."""
    # --- solution
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[1].startswith("/") or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(400)
    fields = {"version": words[2]}
    for line in lines[1:]:
        name, found, value = line.partition(":")
        if not found or not name or name != name.strip():
            raise BadRequest(400)
        fields[name.lower()] = value.strip()
    return words[0], words[1].partition("?")[0], fields
    # --- starter
    # # The first line has a method, a target and a version; each further line is "Name: value".
    # return "GET", head.decode("latin-1").split(" ")[1], {"version": "HTTP/1.0"}
    # --- end


def find(root: str, path: str) -> bytes:
    """Return the bytes of the file that a path names below the directory `root`. Raises BadRequest(404)."""
    # --- solution
    root = os.path.realpath(root)
    try:
        file = os.path.realpath(root + unquote(path))
        if os.path.isdir(file):
            file = os.path.join(file, "index.html")
        if not file.startswith(root + os.sep):
            raise BadRequest(404)
        with open(file, "rb") as found:
            return found.read()
    except (OSError, ValueError):
        raise BadRequest(404) from None
    # --- starter
    # # What does this do for the path "/../secret.txt"? And for a file that is not there?
    # with open(root + unquote(path), "rb") as found:
    #     return found.read()
    # --- end


def response_to(head: bytes, root: str) -> tuple[bytes, bool]:
    """Return the whole response to a request's head, and whether the connection stays open after it."""
    # --- solution
    try:
        method, path, fields = parse(head)
        keeps_open = fields["version"] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
        if method not in ("GET", "HEAD"):
            raise BadRequest(405)
        return encode(200, find(root, path), keeps_open, method == "HEAD"), keeps_open
    except BadRequest as refused:
        return refusal(refused.status), False
    # --- starter
    # # Answer what parse() and find() cannot: BadRequest has the status. And does this keep the connection open?
    # method, path, fields = parse(head)
    # return encode(200, find(root, path), False, False), False
    # --- end


def encode(status: int, body: bytes, keeps_open: bool, is_head: bool) -> bytes:
    """Return a response as bytes. is_head: the request was HEAD, so the body is not sent."""
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(body)}\r\n"
    head += f"Connection: {'keep-alive' if keeps_open else 'close'}\r\n\r\n"
    return head.encode() + (b"" if is_head else body)


def refusal(status: int) -> bytes:
    """Return the response that refuses a request."""
    return encode(status, f"{status} {REASONS[status]}\n".encode(), False, False)


def converse(connection: socket.socket, root: str) -> None:
    """Answer the requests of one connection until it ends. The caller closes it."""
    connection.settimeout(SILENCE)
    buffer = b""
    # --- solution
    try:
        while True:
            head, buffer = split_head(buffer)
            while head is None:
                data = connection.recv(65536)
                if not data:
                    return
                head, buffer = split_head(buffer + data)
            response, keeps_open = response_to(head, root)
            connection.sendall(response)
            if not keeps_open:
                return
    except BadRequest as refused:
        connection.sendall(refusal(refused.status))
    except OSError:
        return  # the client has left, or is silent
    # --- starter
    # # One recv() is not one request, a client may leave at any byte, and it may ask more than once.
    # buffer = connection.recv(65536)
    # head, buffer = split_head(buffer)
    # response, keeps_open = response_to(head, root)
    # connection.sendall(response)
    # --- end


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine."""
    return socket.create_server(("127.0.0.1", port), backlog=128)


def main(serve: Callable[[socket.socket, str, int], None]) -> None:
    """Run a server: program PORT DIRECTORY [WORKERS]."""
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {sys.argv[0]} PORT DIRECTORY [WORKERS]")
    workers = int(sys.argv[3]) if len(sys.argv) == 4 else 4
    with listen(int(sys.argv[1])) as listener:
        serve(listener, sys.argv[2], workers)
