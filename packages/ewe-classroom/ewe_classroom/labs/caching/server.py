"""A server that answers 304 if the client has the current version. Run it with: python3 server.py PORT DIRECTORY

each connection has a thread ─▶ split_head(), parse() ─▶ Files.get() ─▶ outcome() ─▶ 200, 304, 404 or 412
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from urllib.parse import unquote

from conditional import date, outcome
from conversation import SILENCE_S, BadRequest, listen, parse, refusal, split_head
from files import Files

REASONS = {200: "OK", 304: "Not Modified", 412: "Precondition Failed"}
ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor or thread is free


def locate(root: str, path: str) -> str:
    """Return the file of a URL path. Raises BadRequest(404) for a file outside the directory."""
    root = os.path.realpath(root)
    try:
        file = os.path.realpath(root + unquote(path))
    except ValueError:
        raise BadRequest(404) from None
    if not file.startswith(root + os.sep):
        raise BadRequest(404)
    return file


def response_to(head: bytes, root: str, files: Files) -> tuple[bytes, bool]:
    """Return the whole response to a request's head, and whether the connection stays open after it."""
    try:
        method, path, fields = parse(head)
        keeps_open = fields["version"] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
        if method not in ("GET", "HEAD"):
            raise BadRequest(405)
        try:
            file = files.get(locate(root, path))
        except (OSError, ValueError):
            raise BadRequest(404) from None
    except BadRequest as refused:
        return refusal(refused.status, head.startswith(b"HEAD ")), False
    status = outcome(fields, file.etag, file.changed)
    # --- solution
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"ETag: {file.etag}",
        f"Last-Modified: {date(file.changed)}",
    ]
    body = file.body if status == 200 else b""
    if status != 304:  # a 304 has no body
        lines.append(f"Content-Length: {len(body)}")
    if method == "HEAD":
        body = b""
    # --- starter
    # # Which of these fields does a 304 need, too? How does the response to HEAD differ?
    # lines = [f"HTTP/1.1 {status} {REASONS[status]}"]
    # body = b""
    # if status == 200:
    #     lines += [f"ETag: {file.etag}", f"Last-Modified: {date(file.changed)}"]
    #     body = file.body
    # lines.append(f"Content-Length: {len(body)}")
    # --- end
    lines.append(f"Connection: {'keep-alive' if keeps_open else 'close'}")
    return "\r\n".join([*lines, "", ""]).encode() + body, keeps_open


def converse(connection: socket.socket, root: str, files: Files) -> None:
    """Answer the requests of one connection until it ends; close it."""
    connection.settimeout(SILENCE_S)
    buffer = b""
    with connection:
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
                response, keeps_open = response_to(head, root, files)
                connection.sendall(response)
                if not keeps_open:
                    return
        except OSError:
            return  # the client has disconnected, or is silent; sending the refusal may fail, too


def main() -> None:
    """Accept connections, and start a thread for each."""
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} PORT DIRECTORY")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    files = Files()
    with listen(int(sys.argv[1])) as listener:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(ACCEPT_PAUSE_S)
                continue
            try:
                threading.Thread(target=converse, args=(connection, sys.argv[2], files), daemon=True).start()
            except RuntimeError:  # the limit of threads is reached
                connection.close()
                time.sleep(ACCEPT_PAUSE_S)


if __name__ == "__main__":
    main()
