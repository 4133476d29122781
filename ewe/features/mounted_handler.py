"""Checks of a mounted feature's response, before any other handler of ewe sees it.

ewe's own features are typed and tested. A mounted one is the work of other people, and may return anything:

    handler.respond() ──▶ checked() ──▶ a Response that can be sent
                              └───────▶ TypeError, ValueError: the client gets a 500, and the log names the fault

**Framing is the server's matter.** The length of the body, and the connection, decide how a client finds the end of
a response (ewe.response_writer). Two answers to this question in one head are an attack's way to split a response
(RFC 9112 sections 6.3 and 11.1). The fields by which a feature speaks about framing are dropped or compared:

- Content-Length equal to the length of the body is sent once. Another value is a fault of the feature. If the
  length is unknown, the field tells it. The response to HEAD may have no body and the length of that to GET
  (RFC 9110 section 8.6). A response without content has no such field (204, 304).
- Transfer-Encoding, Connection and the others of FIELDS_OF_SERVER are dropped, as those of a CGI program are
  (RFC 3875 section 6.3).

A middleware is mounted, too. The responses of its inner handlers pass these checks a second time, unchanged.

Read next: mounted.py; ewe.http.messages (Response).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ewe.features.base import Middleware, Reroute, explained
from ewe.http.messages import CLOSED, Response, Source, body_size
from ewe.http.status import BODILESS_STATUSES, HTTPError
from ewe.registry import in_words

if TYPE_CHECKING:
    from ewe.features.base import Explanation, Handler
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

# Fields of one connection (RFC 9110 section 7.6.1), and those that ewe.response_writer writes
FIELDS_OF_SERVER = frozenset({
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "date",
    "server",
})  # fmt: skip
REASON = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # reason-phrase: RFC 9112 section 4
NUMBER = re.compile(r"[0-9]{1,18}")
PAIRS = (tuple, list)


def checked(found: object, request: Request, feature: str) -> Response | None:
    """Return what a feature has returned, without the fields that only the server sets.

    feature: its name, for messages. Raises TypeError for an object that is no response, and ValueError for a
    response that contradicts itself.
    """
    if found is None:
        return None
    if not isinstance(found, Response):
        kind = type(found).__name__
        raise TypeError(f"respond() of {feature} has returned {kind}; it must return a Response or None")
    # A local redirect is never sent, and neither are the status and the fields of a raw response.
    if found.target is not None or (isinstance(found.body, Source) and found.body.raw):
        return found
    try:
        return framed(found, request)
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"the response of {feature}: {reason}") from None


def framed(response: Response, request: Request) -> Response:
    """Return a response whose length and fields agree with its body. Raises TypeError, ValueError."""
    # A feature may have assigned anything to the attributes.
    status: Any = response.status
    reason: Any = response.reason
    length: Any = response.length
    body = response.body
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise ValueError(f"the status is {status!r}; it must be a number from 200 to 599")
    if not isinstance(reason, str) or REASON.fullmatch(reason) is None:
        raise ValueError(f"the reason {reason!r} cannot stand in a response")
    if body is CLOSED:
        raise ValueError("a response with files or with a Source was sent before")
    size, bodiless = body_size(body), request.method == "HEAD" or status in BODILESS_STATUSES
    if length is not None and (not isinstance(length, int) or length < 0):
        raise ValueError(f"the length of the body is {length!r}")
    if not bodiless and not isinstance(body, Source) and length != size:
        raise ValueError(f"its length is {length}, but the body has {size} bytes")
    if status == 205 and size and not bodiless:
        raise ValueError("a 205 has no content (RFC 9110 section 15.3.6)")
    fields, lengths = fields_of_feature(response)
    if lengths:
        announced = announced_length(lengths)
        if length is None or (bodiless and not size):
            length = announced
        elif announced != length and status not in BODILESS_STATUSES:
            raise ValueError(f"Content-Length is {announced}, but the body has {length} bytes")
    if len(fields) == len(response.fields):
        return response
    own = response.with_fields(fields)
    own.length = length
    if isinstance(body, Source) and body.length is None:
        body.length = length  # the content cache must not keep a shorter body
    return own


def fields_of_feature(response: Response) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the fields of a response that only the feature sets, and the values of Content-Length.

    Raises TypeError for an object that is no field.
    """
    fields: list[tuple[str, str]] = []
    lengths: list[str] = []
    given: Any = response.fields
    for field in given:
        if not isinstance(field, PAIRS) or len(field) != 2:
            raise TypeError(f"the field {field!r} is no pair of a name and a value")
        name, value = field
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"the field {field!r} is no pair of texts")
        lower = name.lower()
        if lower == "content-length":
            lengths.append(value.strip())
        elif lower not in FIELDS_OF_SERVER:
            fields.append((name, value))
    return fields, lengths


def announced_length(values: list[str]) -> int:
    """Return the one number that all values of Content-Length are. Raises ValueError."""
    if any(NUMBER.fullmatch(value) is None for value in values):
        raise ValueError(f"Content-Length is {', '.join(values)!r}")
    numbers = {int(value) for value in values}
    if len(numbers) > 1:
        raise ValueError(f"Content-Length stands there with different values: {', '.join(values)}")
    return numbers.pop()


class ExplainError(ValueError):
    """The explain() of a mounted feature has failed. The text is one line that names the feature."""


class Mounted:
    """A handler below one path. Mounted at /hello it answers for /hello and /hello/there, not for /hellos.

    The handler may be that of other people: its responses are checked, and a fault of its explain() is one line.
    """

    def __init__(self, handler: Handler, path: str, name: str = "") -> None:
        """name: of the feature, for messages; "": the name of the handler's class."""
        self.handler = handler
        self.path = path.rstrip("/")
        self.name = name or type(handler).__name__

    def around(self, inner: Handler) -> Mounted:
        """Return the same for a middleware with its inner handler."""
        assert isinstance(self.handler, Middleware)
        return Mounted(self.handler.around(inner=inner, site=inner), self.path, self.name)

    def covers(self, path: str) -> bool:
        """Return whether a path is this handler's path, or below it."""
        return path == self.path or path.startswith(self.path + "/")

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the handler's response, if the path is below its own; else None.

        Raises the handler's exceptions; TypeError and ValueError for a response that cannot be sent.
        """
        if not self.covers(request.path):
            return None
        found = await self.handler.respond(request, io)
        try:
            return checked(found, request, self.name)
        except (TypeError, ValueError):
            if isinstance(found, Response):
                await found.close()
            raise

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines of the handler, if the path is below its own. Raises ExplainError."""
        if not self.covers(request.path):
            return False
        if isinstance(self.handler, Middleware) and type(self.handler).explain is Middleware.explain:
            yield f"  decides   {type(self.handler).__name__}: may answer instead, or change the answer (mount)"
        lines = explained(self.handler, request, io)
        while True:
            try:
                line: Any = next(lines)
            except StopIteration as end:
                return bool(end.value)
            except (HTTPError, Reroute, ExplainError):
                raise
            except (Exception, SystemExit) as reason:
                fault = f"its explain() fails: {in_words(reason)}"
                raise ExplainError(f"feature {self.name!r}: {fault} (mount)") from None
            if not isinstance(line, str):
                fault = f"its explain() yields {type(line).__name__}, and not text"
                raise ExplainError(f"feature {self.name!r}: {fault} (mount)")
            yield line
