r"""The parser: from the bytes of a head to a Request.

    GET /a%20b?c=1 HTTP/1.1\r\n     request line: method, target, version     RFC 9112 section 3
    Host: ewe.example\r\n           field lines: name, value                  RFC 9112 section 5
    Accept: text/html\r\n
    \r\n                            the empty line that ends the head

parse_request() takes a whole head. One pattern checks the request line, one pattern checks each field line, and
splits it. Four files have the rules of the parts: lines.py (the request line), fields.py (names and values),
target.py (path, query and Host), framing.py (the end of the body).

**Strict parsing.** If the RFC leaves a choice about framing, the target or Host, ewe makes the strict choice. If
two servers in a chain read the same bytes differently, an attacker can hide one request inside another (request
smuggling, RFC 9112 sections 11.1 and 11.2). To prevent this, ewe refuses every ambiguous head with 400: a bare line
feed, a folded field, a space before the colon, two Host fields.

A head that does not match the patterns has a fault. check_head() (lines.py) looks for the first one. It also
checks a head of which only a part has arrived, so a fault leads to the same error, in whichever pieces it arrives.

Read next: messages.py (Request, Response); chunked.py.
"""

from __future__ import annotations

from ewe.http.fields import parse_fields
from ewe.http.framing import allows_keep_alive, body_length
from ewe.http.limits import RequestLimits
from ewe.http.lines import check_head, parse_request_line
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.http.target import parse_host, parse_target


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
