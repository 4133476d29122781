"""Header fields of responses: set, add, remove (setting `headers`).

    headers = { set = { X-Frame-Options = "DENY" }, add = { Vary = "Cookie" }, remove = ["X-Powered-By"] }

`remove` drops every field of a name, `set` replaces them by one, `add` leaves those that are there. They hold for
every response of the location, error pages and redirects included (nginx's `always`): a policy that an error page
lacks is a hole.

A value is a fixed text, checked when the settings are read: nothing that a client sends gets into it, and no line
end. The fields that frame a response, and Date and Server, are written by ewe alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, quoted
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, Key
from ewe.features.guards.tables import expected, table, texts
from ewe.http.fields import TOKEN

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

NAME = re.compile(rf"{TOKEN}{{1,256}}")
VALUE = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
OURS = frozenset({
    "connection", "content-length", "date", "keep-alive", "proxy-connection", "server", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
WHAT = '{ set = { NAME = "value" }, add = { ... }, remove = ["NAME"] }'

Fields = tuple[tuple[str, str], ...]


class Headers(Middleware):
    """Change the fields of every response."""

    def __init__(self, dropped: Iterable[str], added: Fields) -> None:
        """dropped: names in lower case, those that are set included. added: the fields that are set or added."""
        self.dropped = frozenset(dropped)
        self.added = added

    @classmethod
    def from_table(cls, value: object, place: str) -> Headers:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        given = table(value, place, ("set", "add", "remove"), WHAT)
        removed = texts_or_none(given.get("remove"), f"{place} remove =")
        dropped = [checked_name(name, f"{place} remove =").lower() for name in removed]
        replaced = fields(given.get("set", {}), f"{place} set =")
        added = fields(given.get("add", {}), f"{place} add =")
        return cls((*dropped, *(name.lower() for name, _ in replaced)), (*replaced, *added))

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response with other fields."""
        response = await self.inner.respond(request, io)
        if response is None:
            return None
        fields = []
        for field in response.fields:  # a comprehension would be a call more for each response
            if field[0].lower() not in self.dropped:
                fields.append(field)
        return response.with_fields((*fields, *self.added))


def texts_or_none(value: object, place: str) -> tuple[str, ...]:
    """Return a list of names, empty if there is none. Raises ConfigError."""
    return () if value is None else texts(value, place, 'a list of field names such as ["X-Powered-By"]')


def fields(value: object, place: str) -> Fields:
    """Return the fields of a table. A list of texts is several fields of one name. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise expected(place, value, '{ NAME = "value" }')
    found = []
    for name, its in value.items():
        for text in its if isinstance(its, list) else [its]:
            found.append((checked_name(name, place), checked_value(text, f"{place} {name} =")))
    return tuple(found)


def checked_name(name: str, place: str) -> str:
    """Return the name of a field that a setting may change. Raises ConfigError."""
    if NAME.fullmatch(name) is None:
        raise expected(place, name, "the name of a field, such as X-Frame-Options")
    if name.lower() in OURS:
        raise ConfigError(f"{place} {quoted(name)}: ewe itself writes this field, and no setting changes it")
    return name


def checked_value(text: object, place: str) -> str:
    """Return the value of a field, as Latin-1 characters of its bytes. Raises ConfigError."""
    what = "a text in one line, without spaces at its ends"
    if not isinstance(text, str):
        raise expected(place, text, what)
    try:
        value = text.encode().decode("latin-1")
    except UnicodeEncodeError:
        raise expected(place, text, what) from None
    if VALUE.fullmatch(value) is None:
        raise expected(place, text, what)
    return value


FEATURE = Feature(
    "headers",
    keys={
        "headers": Key(
            "fields of the response",
            '{ set = { NAME = "value" }, add = { ... }, remove = ["NAME"] }',
            Headers.from_table,
        )
    },
)
