"""A WSGI application in the server's process that asks the demon: what a page of a course would do.

Environment: LAB_DEMON is the demon's address, LAB_STATEMENT the statement. Each thread keeps its connection.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ewe.database.client import Client
from ewe.database.protocol import ClientRequest, DatabaseError

DEMON, STATEMENT = "LAB_DEMON", "LAB_STATEMENT"
DATABASE = "log"
STATUS = {503: "503 Service Unavailable", 504: "504 Gateway Timeout"}

kept = threading.local()


def application(
    environ: Mapping[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """Answer with the statement's result as a table."""
    try:
        if not hasattr(kept, "client"):
            kept.client = Client(os.environ[DEMON])
        page = b"".join(kept.client.ask(ClientRequest(DATABASE, os.environ[STATEMENT])))
    except DatabaseError as reason:
        if hasattr(kept, "client"):
            kept.client.socket.close()
            del kept.client  # the rest of an answer may still come over it
        page, status = f"{reason}\n".encode(), STATUS.get(reason.status, "500 Internal Server Error")
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(page)))])
        return [page]
    head = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(page)))]
    start_response("200 OK", head)
    return [page]
