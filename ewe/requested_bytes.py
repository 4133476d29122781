"""The size of the file that a request asks for, before a worker takes the request (setting `schedule`)."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ewe.http.lines import check_partial_head
from ewe.http.parser import parse_request
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.site import Site


def requested_bytes(site: Site, head: bytes, checked: int) -> tuple[int | None, int]:
    """Return the size in bytes of the file that a head asks for, and the new value of `checked`.

    The size is None while the head is incomplete. It is 0 if the length of the response is not known in advance (a
    program, a proxy), if the response has no body, and if the request will be refused. It is a bound, and no
    promise: a range is shorter, and a handler may send another file.

    head: the bytes that have arrived. checked: the offset of the line that the next check begins with, as the last
    call for the same head has returned it; 0 at first.
    """
    empty_line = head.startswith(b"\r\n")  # may precede a request line (RFC 9112 section 2.2)
    if empty_line:
        head = head[2:]
    request = site.heads.get(head)
    if request is None:
        end = head.find(b"\r\n\r\n")
        try:
            if end < 0:
                return None, check_partial_head(head, site.limits, checked)
            request = parse_request(head[: end + 4], site.limits)
        except HTTPError:
            return 0, 0
    return (file_bytes(site, request.path) if request.method == "GET" else 0), 0


def file_bytes(site: Site, path: str) -> int:
    """Return the size of the regular file below the document root, or of a directory's index; 0 if there is none.

    Symbolic links are followed wherever they lead, because the size decides only the order of the requests.
    """
    name = str(site.config.documentroot) + path
    if path.endswith("/"):
        name += next(iter(site.config.defaultindex), "")
    try:
        about = os.stat(name)
    except (OSError, ValueError):
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0
