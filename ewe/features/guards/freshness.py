"""Freshness: how long caches may keep responses (settings `expires` and `cache-control`).

    expires = "1h"
    expires = { "text/html" = "0s", "image/*" = "30d", default = "1h" }
    cache-control = "public, immutable"

`expires` writes Expires and Cache-Control: max-age, by the type of the response, as Apache's mod_expires does. The
time counts from the request. `cache-control` writes its text, to which a max-age from `expires` is added.

Neither changes a response that has such fields already: its program knows better. Neither changes an error page,
which must not stay in a cache (STATUSES). A 304 gets the fields of the 200 (RFC 9110 section 15.4.5); its path
gives the type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ewe.config.setting_types import Kind
from ewe.config.table_kinds import TableKind
from ewe.features.declaration import Feature, StepKey
from ewe.features.field_filter import FieldFilter
from ewe.features.guards.headers import VALUE
from ewe.http.dates import http_date

if TYPE_CHECKING:
    from ewe.features.field_filter import Fields
    from ewe.http.messages import Request, Response

STATUSES = frozenset({200, 201, 203, 204, 206, 301, 302, 303, 304, 307, 308})
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
MAX_LIFETIME_S = 10 * UNITS["y"]
LIFETIME = re.compile(r"([0-9]{1,9})([smhdwy])")
TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/(?:\*|[a-z0-9!#$&^_.+-]+)|default")
LONE_MAX_AGE = re.compile(r"max-age=[0-9]+")  # as Expires writes it
HAS_LIFETIME = re.compile(r"(?:\A|[\s,])(?:max-age|no-store)\b", re.IGNORECASE)


def _lifetime(raw: object) -> int:
    """Return the seconds of a time such as 30d. Raises ValueError."""
    match = LIFETIME.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None or (seconds := int(match[1]) * UNITS[match[2]]) > MAX_LIFETIME_S:
        raise ValueError(raw)
    return seconds


def _type(raw: object) -> str:
    """Return a media type, a range such as image/*, or default, in lower case. Raises ValueError."""
    if not isinstance(raw, str) or TYPE.fullmatch(raw.lower()) is None:
        raise ValueError(raw)
    return raw.lower()


TIME = Kind("TIME", 'a time such as "30s", "1h", "30d" or "1y", at most 10y', _lifetime)
LIFETIMES = TableKind(
    f'{TIME.expected}, or {{ "text/html" = "0s", "image/*" = "30d", default = "1h" }}',
    others=(Kind("TYPE", 'a type such as "text/html" or "image/*", or default', _type), TIME),
    least=1,
    short=lambda raw: {"default": raw} if isinstance(raw, str) else raw,
)


def _directives(raw: object) -> str:
    """Return the text of Cache-Control, a value of a field that is not empty. Raises ValueError."""
    if not (text := VALUE.read(raw)):
        raise ValueError(raw)
    return text


DIRECTIVES = Kind(
    "TEXT",
    'directives such as "no-cache" or "public, max-age=3600": a text in one line, without spaces at its ends',
    _directives,
)


class Expires(FieldFilter):
    """Writes how long a response may be kept. lifetimes: seconds by type, by "image/*", and for "default"."""

    dated = True

    def __init__(self, lifetimes: Mapping[str, int]) -> None:
        self.lifetimes = lifetimes
        self.by_type = any(kind != "default" for kind in lifetimes)

    def lifetime(self, request: Request, response: Response) -> int | None:
        """Return the seconds for which a response is fresh, by its type; None if no rule is for it."""
        kind = response.get("content-type")
        if kind is None and response.status == 304:
            from ewe.http.media_types import content_type

            kind = content_type(request.path.rpartition("/")[2])
        kind = (kind or "").partition(";")[0].strip().lower()  # without parameters such as charset
        for each in (kind, kind.partition("/")[0] + "/*", "default"):
            if each in self.lifetimes:
                return self.lifetimes[each]
        return None

    def changed_fields(self, request: Request, response: Response, now: int) -> Fields | None:
        """Return the fields with Expires and Cache-Control; None if the response has one of them."""
        if response.status not in STATUSES or response.get("expires") or response.get("cache-control"):
            return None
        lifetime = self.lifetime(request, response) if self.by_type else self.lifetimes["default"]
        if lifetime is None:
            return None
        until = ("Expires", http_date(now + lifetime))
        return (*response.fields, until, ("Cache-Control", f"max-age={lifetime}"))


class CacheControl(FieldFilter):
    """Writes Cache-Control."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.has_lifetime = HAS_LIFETIME.search(text) is not None

    def changed_fields(self, request: Request, response: Response, now: int) -> Fields | None:
        """Return the fields with Cache-Control; None if the response has more than the max-age of Expires."""
        if response.status not in STATUSES:
            return None
        own = [value for name, value in response.fields if name.lower() == "cache-control"]
        if own and (own[1:] or LONE_MAX_AGE.fullmatch(own[0]) is None or response.get("expires") is None):
            return None
        text = f"{self.text}, {own[0]}" if own and not self.has_lifetime else self.text
        kept = (field for field in response.fields if field[0].lower() != "cache-control")
        return (*kept, ("Cache-Control", text))


FEATURE = Feature(
    "freshness",
    keys={
        "expires": StepKey(LIFETIMES, "how long a response stays fresh, by its type", Expires),
        "cache-control": StepKey(DIRECTIVES, "the field Cache-Control", CacheControl),
    },
    late=("ewe.http.media_types",),
)
