"""Methods: which methods a location answers (setting `methods`).

    methods = ["GET", "POST"]          # HEAD comes with GET

Any other method is refused with 405 and a field Allow. A method that neither the list nor any RFC on HTTP names
keeps its 501 (RFC 9110 sections 15.5.6 and 15.6.2).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ewe.config.messages import Reason, quoted
from ewe.config.setting_types import list_of
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, StepKey
from ewe.http.fields import TOKEN
from ewe.http.messages import METHODS
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

METHOD = re.compile(rf"{TOKEN}{{1,32}}")


def _method(raw: object) -> str:
    """Return a method that a setting may name. Raises ValueError."""
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    # Methods are case-sensitive (RFC 9110 section 9.1), so "get" would allow nothing.
    if METHOD.fullmatch(raw) is None or raw != raw.upper():
        raise Reason(f"{quoted(raw)} is not a method in capitals, such as GET")
    if raw in ("CONNECT", "TRACE"):
        raise Reason(f"not {raw}: ewe answers no CONNECT, and no TRACE to a program")
    return raw


METHODS_ALLOWED = list_of("METHODS", 'a list of methods such as ["GET", "POST"]', _method, lone=True, least=1)


class Methods(Middleware):
    """Refuses all methods except those of a list."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """names: the methods in the setting. GET allows HEAD, too."""
        with_head = (each for name in names for each in ((name, "HEAD") if name == "GET" else (name,)))
        self.allowed = tuple(dict.fromkeys(with_head))  # each only once
        self.allowed_text = ", ".join(self.allowed)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response. Raises HTTPError: 405, or 501 for a method that no RFC defines."""
        if request.method in self.allowed:
            return await self.inner.respond(request, io)
        if request.method not in METHODS:
            raise HTTPError(501, f"method {request.method!r} (methods)")
        cause = f"{request.method} is not among {self.allowed_text} (methods)"
        raise HTTPError(405, cause, (("Allow", self.allowed_text),))


MEANING = "the methods that are allowed; others are 405"
FEATURE = Feature("methods", keys={"methods": StepKey(METHODS_ALLOWED, MEANING, Methods)})
