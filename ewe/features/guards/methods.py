"""Methods: which methods a location answers (setting `methods`).

    methods = ["GET", "POST"]          # HEAD comes with GET

Any other method is refused with 405 and a field Allow. A method that neither the list nor any RFC on HTTP names
keeps its 501 (RFC 9110 sections 15.5.6 and 15.6.2).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ewe.features.base import Middleware
from ewe.features.declaration import Feature, Key
from ewe.features.guards.tables import expected, texts
from ewe.http.fields import TOKEN
from ewe.http.messages import METHODS
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

METHOD = re.compile(rf"{TOKEN}{{1,32}}")
WHAT = 'a list of methods such as ["GET", "POST"]'


class Methods(Middleware):
    """Let some methods pass."""

    def __init__(self, names: tuple[str, ...]) -> None:
        with_head = dict.fromkeys(
            each for name in names for each in ((name, "HEAD") if name == "GET" else (name,))
        )
        self.names = frozenset(with_head)
        self.allow = ("Allow", ", ".join(with_head))

    @classmethod
    def from_table(cls, value: object, place: str) -> Methods:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        names = texts(value, place, WHAT)
        for name in names:
            # Methods are case-sensitive (RFC 9110 section 9.1), so "get" would allow nothing.
            if METHOD.fullmatch(name) is None or name != name.upper():
                raise expected(place, name, "a method in capitals, such as GET")
            if name in ("CONNECT", "TRACE"):
                raise expected(
                    place, name, "another method: ewe answers no CONNECT, and no TRACE to a program"
                )
        return cls(names)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer a method of the list. Raises HTTPError: 405, or 501 for a method that is not known at all."""
        if request.method in self.names:
            return await self.inner.respond(request, io)
        if request.method not in METHODS:
            raise HTTPError(501, f"method {request.method!r} (methods)")
        raise HTTPError(405, f"{request.method} is not among {self.allow[1]} (methods)", (self.allow,))


MEANING = "the methods that are allowed; others are 405"
FEATURE = Feature("methods", keys={"methods": Key(MEANING, 'a list: ["GET", "POST"]', Methods.from_table)})
