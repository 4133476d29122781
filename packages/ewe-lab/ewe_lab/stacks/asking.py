"""A WSGI application that sends a statement to the database daemon, as a page of a course would.

Environment: LAB_DAEMON is the daemon's address, LAB_STATEMENT the statement. Each thread keeps its connection.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest, DatabaseError

DAEMON, STATEMENT = "LAB_DAEMON", "LAB_STATEMENT"
DATABASE = "log"
STATUS = {503: "503 Service Unavailable", 504: "504 Gateway Timeout"}

kept = threading.local()


def application(
    environ: Mapping[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """Answer with the statement's result as a table, or with the daemon's error as text."""
    try:
        if not hasattr(kept, "client"):  # the first request of this thread
            kept.client = Client(os.environ[DAEMON])
        page = b"".join(kept.client.ask(ClientRequest(DATABASE, os.environ[STATEMENT])))
    except DatabaseError as reason:
        if hasattr(kept, "client"):
            kept.client.socket.close()
            del kept.client  # the rest of an answer may still come over this connection
        page, status = f"{reason}\n".encode(), STATUS.get(reason.status, "500 Internal Server Error")
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(page)))])
        return [page]
    head = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(page)))]
    start_response("200 OK", head)
    return [page]
