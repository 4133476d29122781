"""Freshness: how long caches may keep responses (settings `expires` and `cache-control`).

    expires = "1h"
    expires = { "text/html" = "0s", "image/*" = "30d", default = "1h" }
    cache-control = "public, immutable"

`expires` writes Expires and Cache-Control: max-age, by the type of the response, as Apache's mod_expires does. The
time counts from the request. `cache-control` writes its text, to which a max-age from `expires` is added.

Both leave a response alone that has such fields already: a program knows better. Both are for good responses and
redirects (STATUSES); an error page must not stay in a cache. A 304 gets what the 200 would have (RFC 9110 section
15.4.5), its type taken from the path.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ewe.features.base import Middleware
from ewe.features.declaration import Feature, Key
from ewe.features.guards.headers import checked_value
from ewe.features.guards.tables import expected
from ewe.http.dates import http_date

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

STATUSES = frozenset({200, 201, 203, 204, 206, 301, 302, 303, 304, 307, 308})
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
LONGEST = 10 * UNITS["y"]
AGE = re.compile(r"([0-9]{1,9})([smhdwy])")
TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/(?:\*|[a-z0-9!#$&^_.+-]+)|default")
LONE_AGE = re.compile(r"max-age=[0-9]+")
HAS_AGE = re.compile(r"(?:\A|[\s,])(?:max-age|no-store)\b", re.IGNORECASE)
WHAT = (
    'a time such as "30s", "1h", "30d" or "1y", or { "text/html" = "0s", "image/*" = "30d", default = "1h" }'
)


class Expires(Middleware):
    """Say until when a response may be kept. ages: seconds by type, by "image/*", and for "default"."""

    def __init__(self, ages: Mapping[str, int]) -> None:
        self.ages = ages
        self.by_type = any(kind != "default" for kind in ages)

    @classmethod
    def from_table(cls, value: object, place: str) -> Expires:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        if isinstance(value, str):
            value = {"default": value}
        if not isinstance(value, Mapping) or not value:
            raise expected(place, value, WHAT)
        ages = {}
        for kind, age in value.items():
            match = AGE.fullmatch(age.strip()) if isinstance(age, str) else None
            seconds = int(match[1]) * UNITS[match[2]] if match else LONGEST + 1
            if TYPE.fullmatch(kind.lower()) is None or seconds > LONGEST:
                raise expected(place, {kind: age}, WHAT + "; at most 10y")
            ages[kind.lower()] = seconds
        return cls(ages)

    def age(self, request: Request, response: Response) -> int | None:
        """Return the seconds for which a response is fresh, by its type; None if no rule is for it."""
        kind = response.get("content-type")
        if kind is None and response.status == 304:
            from ewe.http.media_types import content_type

            kind = content_type(request.path.rpartition("/")[2])
        kind = (kind or "").partition(";")[0].strip().lower()
        for each in (kind, kind.partition("/")[0] + "/*", "default"):
            if each in self.ages:
                return self.ages[each]
        return None

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response with Expires and Cache-Control, unless it has one of them."""
        response = await self.inner.respond(request, io)
        if response is None:
            return None
        if response.status not in STATUSES or response.get("expires") or response.get("cache-control"):
            return response
        age = self.age(request, response) if self.by_type else self.ages["default"]
        if age is None:
            return response
        until = ("Expires", http_date(int(time.time()) + age))
        return response.with_fields((*response.fields, until, ("Cache-Control", f"max-age={age}")))


class CacheControl(Middleware):
    """Write Cache-Control."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.has_age = HAS_AGE.search(text) is not None

    @classmethod
    def from_table(cls, value: object, place: str) -> CacheControl:
        """Read the setting. place: how an error message begins. Raises ConfigError."""
        text = checked_value(value, place)
        if not text:
            raise expected(place, value, 'directives such as "no-cache" or "public, max-age=3600"')
        return cls(text)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response with Cache-Control, unless it has more than the max-age that Expires wrote."""
        response = await self.inner.respond(request, io)
        if response is None:
            return None
        if response.status not in STATUSES:
            return response
        own = response.get("cache-control")
        if own is not None and (LONE_AGE.fullmatch(own) is None or response.get("expires") is None):
            return response
        text = f"{self.text}, {own}" if own is not None and not self.has_age else self.text
        kept = (field for field in response.fields if field[0].lower() != "cache-control")
        return response.with_fields((*kept, ("Cache-Control", text)))


FEATURE = Feature(
    "freshness",
    keys={
        "expires": Key(
            "how long a response stays fresh, by its type", "a time, or a table of types", Expires.from_table
        ),
        "cache-control": Key("the field Cache-Control", "a text", CacheControl.from_table),
    },
    late=("ewe.http.media_types",),
)
