"""The head of a response: X-Switch's own error pages, and the field by which ewe recognizes them.

The field `X-Switch` marks a response that X-Switch has made. When ewe reads `X-Switch: no-engine`, it may run the
script itself; at `X-Switch: refused` it may show its own page. An engine must never send this field: with it, a
script could make ewe run it as the server's user, without limits. X-Switch therefore withholds the head of an
engine's response until it is complete, and removes the field. Another X-Switch has done the same, so its own
refusals keep the field. No I/O.
"""

from __future__ import annotations

import re

from ewe.http.status import REASONS

NO_ENGINE, REFUSED = "no-engine", "refused"  # the two values of the field
OWN_FIELD = b"x-switch"
HEAD_END = re.compile(rb"(?:\A|\n)\r?\n")
MAX_HEAD_BYTES = 64 * 1024  # that are withheld at most; an answer with a longer head is refused
RETRY_AFTER_SECONDS = 5


class LongHead(Exception):
    """The head of a response is not complete within MAX_HEAD_BYTES."""


def without_own_field(
    withheld: bytes, data: bytes, is_last: bool = False, is_far: bool = False
) -> bytes | None:
    """Return a response's beginning without fields X-Switch; None while its head is not complete. Raises LongHead.

    withheld: the bytes withheld before. data: the bytes that have come now. is_last: no more bytes will come.
    is_far: the response is that of another X-Switch. The field by which that refuses a request stays, for ewe.
    """
    search_from = max(len(withheld) - 2, 0)  # the empty line at the end may begin in the withheld bytes
    data = withheld + data
    match = HEAD_END.search(data, search_from)
    if match is None and not is_last:
        if len(data) > MAX_HEAD_BYTES:  # to send a part of the head would let a field X-Switch follow it
            raise LongHead
        return None
    head = data[: match.end()] if match is not None else data
    if OWN_FIELD not in head.lower():
        return data
    lines = [line for line in head.split(b"\n") if not is_own_field(line) or (is_far and is_refusal(line))]
    return b"\n".join(lines) + data[len(head) :]


def is_own_field(line: bytes) -> bool:
    """Return whether a line of a head is the field X-Switch."""
    return line.partition(b":")[0].strip().lower() == OWN_FIELD


def is_refusal(line: bytes) -> bool:
    """Return whether the field X-Switch says that X-Switch has refused the request."""
    return line.partition(b":")[2].strip() == REFUSED.encode()


def error_page(status: int, field_value: str = REFUSED) -> bytes:
    """Return a response of X-Switch itself. It has no details: those are for the log.

    field_value: of the field X-Switch, REFUSED or NO_ENGINE.
    """
    reason = REASONS[status]
    retry = f"Retry-After: {RETRY_AFTER_SECONDS}\r\n" if status == 503 else ""
    text = f"{status} {reason}\n"
    return (
        f"Status: {status} {reason}\r\nX-Switch: {field_value}\r\n{retry}"
        f"Content-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    ).encode()
