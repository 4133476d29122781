"""Status codes: their reason phrases, the codes without a body, and the exception with a status code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

REASONS = {
    100: "Continue", 101: "Switching Protocols", 200: "OK", 201: "Created", 202: "Accepted",
    204: "No Content", 205: "Reset Content", 206: "Partial Content", 207: "Multi-Status",
    301: "Moved Permanently", 302: "Found", 303: "See Other", 304: "Not Modified",
    307: "Temporary Redirect", 308: "Permanent Redirect",
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 406: "Not Acceptable", 408: "Request Timeout", 409: "Conflict",
    410: "Gone", 411: "Length Required", 412: "Precondition Failed", 413: "Content Too Large",
    414: "URI Too Long", 415: "Unsupported Media Type", 416: "Range Not Satisfiable",
    417: "Expectation Failed", 421: "Misdirected Request", 422: "Unprocessable Content",
    426: "Upgrade Required", 428: "Precondition Required", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
    505: "HTTP Version Not Supported", 507: "Insufficient Storage",
}  # fmt: skip
BODILESS_STATUSES = frozenset({204, 304})  # RFC 9110 sections 15.3.5 and 15.4.5


class HTTPError(Exception):
    """The request is answered with an error page.

    status: 400 to 599. cause: one line for the error log; the client never sees it. fields: further fields of the
    response, such as Allow. offset: the offset in the head of the byte that caused the error, None if the whole
    head did. If the head or the body could not be read, the connection closes after the response.
    """

    def __init__(
        self, status: int, cause: str, fields: Iterable[tuple[str, str]] = (), offset: int | None = None
    ) -> None:
        """Raises ValueError for a status that is no error."""
        given: Any = status  # a feature may give anything
        if not isinstance(given, int) or not 400 <= given <= 599:
            raise ValueError(f"the status of an HTTPError is {given!r}")
        super().__init__(status, cause)
        self.status = status
        self.cause = cause
        self.fields = tuple(fields)
        self.offset = offset
