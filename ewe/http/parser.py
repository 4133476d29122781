r"""The parser: from the bytes of a head to a Request.

    GET /a%20b?c=1 HTTP/1.1\r\n     request line: method, target, version     RFC 9112 section 3
    Host: ewe.example\r\n           field lines: name, value                  RFC 9112 section 5
    Accept: text/html\r\n
    \r\n                            the empty line that ends the head

parse_request() takes a whole head. One pattern checks the request line, one pattern checks all field lines, then
both are split. The code is short, and fast, since patterns run in C. Three files check the meaning of the parts:
target.py (path, query and Host), framing.py (the end of the body), fields.py (names and values).

**Strict parsing.** If the RFC leaves a choice about framing, the target or Host, ewe makes the strict choice. If
two servers in a chain read the same bytes differently, an attacker can hide one request inside another (request
smuggling, RFC 9112 sections 11.1 and 11.2). To prevent this, ewe refuses every ambiguous head with 400: a bare line
feed, a folded field, a space before the colon, two Host fields.

**The same result, in whichever pieces the bytes arrive.** A head comes in pieces of any size. If a head can no
longer become valid, check_partial_head() refuses it without waiting for its end: a client that speaks TLS, or
HTTP/0.9, gets an answer at once. It reads the bytes in order, and the first byte that cannot be part of a valid
head decides (lines.py). A complete head that does not match the patterns is read in the same way, so it gets the
same status and the same message.

Read next: messages.py (Request, Response), target.py, framing.py. Chunked bodies are in chunked.py.
"""

from __future__ import annotations

import re

from ewe.http.fields import TOKEN, parse_fields
from ewe.http.framing import allows_keep_alive, body_length
from ewe.http.limits import RequestLimits
from ewe.http.lines import BEGUN_FIELD_LINE, beginning, line_is_complete
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.http.target import parse_host, parse_target

# request-line = method SP request-target SP HTTP-version: RFC 9112 section 3
MAX_METHOD_CHARS = 32  # characters; the longest registered method, UPDATEREDIRECTREF, has 17
REQUEST_LINE = re.compile(rf"({TOKEN}{{1,{MAX_METHOD_CHARS}}}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
# The beginning of a valid request line
BEGUN_REQUEST_LINE = re.compile(rf"(?:({TOKEN}+)(?: (?:([\x21-\x7e]+)(?: [HTTP/0-9.]{{0,8}})?)?)?)?\r?")


def parse_request(head: bytes, limits: RequestLimits) -> Request:
    """Parse a head, from the request line to the empty line, with all CRLFs, and return the request.

    Raises HTTPError: 400 for malformed syntax, framing or Host; 414 and 431 above a limit; 417 for an expectation
    other than 100-continue; 413 for a declared body above the limit; 501 for CONNECT or an unknown coding; 505 for
    an unknown version. If a head has several faults, the first that check_head() finds decides.
    """
    text = head.decode("latin-1")
    line, _, rest = text.partition("\r\n")
    try:
        method, target, version = parse_request_line(line, limits)
        fields = parse_fields(rest[:-2], limits)  # without the empty line
    except HTTPError:
        check_head(head, limits)  # raises the first fault, which may be another one
        raise
    if len(head) > limits.max_head:
        check_head(head, limits)  # raises 414 or 431
    request = Request(method, target, version, fields)
    values = request.values
    request.host = parse_host(values.get("host"), fields, version)
    parse_target(request, limits.encoded_slashes)
    request.length = body_length(values, fields, version, limits)
    request.keep_alive = allows_keep_alive(values.get("connection"), version)
    expectation = values.get("expect")
    if expectation is not None and version == (1, 1):  # RFC 9110 section 10.1.1
        if expectation.lower() != "100-continue":
            raise HTTPError(417, f"expectation {expectation[:40]!r} is unknown")
        request.expects = request.length != 0
    return request


def parse_request_line(line: str, limits: RequestLimits) -> tuple[str, str, tuple[int, int]]:
    """Return method, target and version. A minor version above 1 counts as 1 (RFC 9110 section 2.5).

    Raises HTTPError: 400, 414, 505. If the line has several faults, check_head() finds the first.
    """
    match = REQUEST_LINE.fullmatch(line)
    if match is None:
        raise HTTPError(400, f"the request line is malformed: {line[:80]!r}")
    method, target, major, minor = match.groups()
    if len(target) > limits.max_target:
        raise HTTPError(414, f"the target has more than {limits.max_target} bytes (max-target)")
    if major != "1":
        raise HTTPError(505, f"HTTP/{major}.{minor} is not spoken here")
    return method, target, (1, 0) if minor == "0" else (1, 1)


def check_head(arrived: bytes, limits: RequestLimits, start: int = 0) -> int:
    """Check a head, or the part that has arrived, from the line at `start` on.

    Return the offset of the last line. The first byte that cannot be part of a valid head decides; the bytes after
    it have no effect. Raises HTTPError: 400, 414, 431, 501 for a long method, 505.
    """
    text = arrived[start : limits.max_head + 1].decode("latin-1")
    number = arrived.count(b"\n", 0, start)  # 0: the request line
    begins = 0
    while begins < len(text):
        begun = (BEGUN_FIELD_LINE if number else BEGUN_REQUEST_LINE).match(text, begins)
        assert begun is not None  # the patterns also match an empty text
        end = begun.end()
        if number:
            check_field_size(begun[0], number, limits, start + begins)
        else:
            check_request_sizes(begun, limits)
        what = "a field line" if number else "the request line"
        if not line_is_complete(text, begins, end, what, start):
            break
        line = text[begins : end - 1]
        try:
            if not number:
                parse_request_line(line, limits)
            elif line and ":" not in line:
                raise HTTPError(400, f"a field line is malformed: {line[:80]!r}")
        except HTTPError as error:
            error.offset = start + end
            raise
        if not line:
            break
        begins = end + 1
        number += 1
    if len(arrived) > limits.max_head:
        raise HTTPError(
            431, f"the head has more than {limits.max_head} bytes (max-head)", offset=limits.max_head
        )
    return start + begins


def check_request_sizes(begun: re.Match[str], limits: RequestLimits) -> None:
    """Raise HTTPError if the method or the target of a request line, or of its beginning, is too long."""
    method, target = begun.groups(default="")
    if len(method) > MAX_METHOD_CHARS:
        cause = f"method {method[:MAX_METHOD_CHARS]!r} goes on; the limit is {MAX_METHOD_CHARS} characters"
        raise HTTPError(501, cause, offset=MAX_METHOD_CHARS)
    if len(target) > limits.max_target:
        cause = f"the target has more than {limits.max_target} bytes (max-target)"
        raise HTTPError(414, cause, offset=begun.start(2) + limits.max_target)


def check_field_size(begun: str, number: int, limits: RequestLimits, offset: int) -> None:
    """Raise HTTPError(431) if a field line, or its beginning, is too long, or exceeds max_fields.

    offset: the offset of the line in the head.
    """
    size = len(begun.rstrip("\r"))
    if size and number > limits.max_fields:
        cause = f"there are more than {limits.max_fields} field lines (max-fields)"
        raise HTTPError(431, cause, offset=offset)
    if size > limits.max_field:
        cause = (
            f"field {begun[: min(40, limits.max_field)]!r} has more than {limits.max_field} bytes (max-field)"
        )
        raise HTTPError(431, cause, offset=offset + limits.max_field)


def check_partial_head(arrived: bytes, limits: RequestLimits, checked: int = 0) -> int:
    """Check the part of a head that has arrived; raise HTTPError if it can no longer become a valid head.

    checked: the result of the previous call, so that a complete line is checked only once; 0 in the first call.
    Returns the offset of the last line. Raises the errors of check_head().
    """
    longest = min(limits.max_field if checked else limits.max_target, limits.max_head - checked)
    return check_head(beginning(arrived, checked, longest), limits, checked)
