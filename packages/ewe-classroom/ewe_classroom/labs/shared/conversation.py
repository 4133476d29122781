"""One conversation: read a request, send a response, and repeat this until the connection ends.

    bytes of the client ─▶ split_head() ─▶ head ─▶ response_to() ─▶ bytes of the response, and whether to go on

split_head() and response_to() use no socket, so every server of the course can use them. converse() is the loop
around them for servers with blocking sockets. RFC 9110 defines the meaning of HTTP/1.1, and RFC 9112 its bytes.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from urllib.parse import unquote

MAX_HEAD_BYTES = 16 * 1024  # bytes of a request's head; the server refuses a longer head
SILENCE_S = 10.0  # a client that sends or receives nothing for so many seconds is disconnected
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Head Too Large"}


class BadRequest(Exception):
    """The response to the request is an error. status: the status of the response."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def split_head(buffer: bytes) -> tuple[bytes | None, bytes]:
    """Return the first head in the buffer without its empty line, and the bytes after it.

    The head is None if it is still incomplete. Raises BadRequest(431) for a head that is too long.
    """
    # --- solution
    head, found, rest = buffer.partition(b"\r\n\r\n")
    if len(head) > MAX_HEAD_BYTES:
        raise BadRequest(431)
    return (head, rest) if found else (None, buffer)
    # --- starter
    # # The head ends with an empty line: b"\r\n\r\n". A client may send the head in any number of pieces, and may
    # # send the next request with it. This starter assumes that the buffer contains exactly one request.
    # return buffer, b""
    # --- end


def parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the method, the path and the header fields (names in lower case). Raises BadRequest(400).

    fields["version"] is the version of the request line: "HTTP/1.1" or "HTTP/1.0".
    """
    # --- solution
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[1].startswith("/") or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(400)
    fields = {}
    for line in lines[1:]:
        name, found, value = line.partition(":")
        if not found or not name or name != name.strip():
            raise BadRequest(400)
        fields[name.lower()] = value.strip(" \t")  # strip() alone removes half of "à" in UTF-8, too
    fields["version"] = words[2]  # after the loop: a field of this name must not replace it
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
            file = os.path.realpath(os.path.join(file, "index.html"))
        if not file.startswith(root + os.sep):
            raise BadRequest(404)
        with open(file, "rb") as found:
            return found.read()
    except (OSError, ValueError):
        raise BadRequest(404) from None
    # --- starter
    # # Which file does this read for the path "/../secret.txt"? How does it handle a missing file?
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
        body = find(root, path)
        return encode(200, body, keeps_open=keeps_open, is_head=method == "HEAD"), keeps_open
    except BadRequest as refused:
        return refusal(refused.status, head.startswith(b"HEAD ")), False
    # --- starter
    # # Catch BadRequest, which has the status of the response. Does this code ever keep the connection open?
    # method, path, fields = parse(head)
    # return encode(200, find(root, path), keeps_open=False, is_head=False), False
    # --- end


def encode(status: int, body: bytes, *, keeps_open: bool, is_head: bool) -> bytes:
    """Return a response as bytes. is_head: leave out the body, because the method was HEAD."""
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(body)}\r\n"
    head += f"Connection: {'keep-alive' if keeps_open else 'close'}\r\n\r\n"
    return head.encode() + (b"" if is_head else body)


def refusal(status: int, is_head: bool = False) -> bytes:
    """Return the response that refuses a request, as bytes. It announces the close of the connection.

    is_head: as in encode().
    """
    return encode(status, f"{status} {REASONS[status]}\n".encode(), keeps_open=False, is_head=is_head)


def converse(connection: socket.socket, root: str) -> None:
    """Answer the requests of one connection until it ends. The caller closes it."""
    connection.settimeout(SILENCE_S)
    buffer = b""
    # --- solution
    try:
        while True:
            try:
                head, buffer = split_head(buffer)
                while head is None:
                    data = connection.recv(65536)
                    if not data:
                        return
                    head, buffer = split_head(buffer + data)
            except BadRequest as refused:
                connection.sendall(refusal(refused.status))
                return
            response, keeps_open = response_to(head, root)
            connection.sendall(response)
            if not keeps_open:
                return
    except OSError:
        return  # the client has disconnected, or is silent; sending the refusal may fail, too
    # --- starter
    # # One recv() is not one request. A client may disconnect after any byte, and may send several requests.
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
