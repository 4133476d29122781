"""Conditional requests: RFC 9110 section 13."""

from __future__ import annotations

import re

from ewe.http.dates import parse_date
from ewe.http.messages import Request

# entity-tag = [ "W/" ] DQUOTE *etagc DQUOTE: section 8.8.3
TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
TAGS = re.compile(rf"[ \t,]*{TAG.pattern}(?:[ \t]*,[ \t,]*{TAG.pattern})*[ \t,]*")


def tags(value: str | None) -> list[str] | None:
    """Return the entity tags of If-Match or If-None-Match: ["*"] for the star, None without the field.

    A malformed list counts as empty: then If-Match fails and If-None-Match holds, the safe side of each.
    """
    if value is None:
        return None
    if value == "*":
        return ["*"]
    return TAG.findall(value) if TAGS.fullmatch(value) else []


def outcome(request: Request, etag: str, modified: float | None) -> int | None:
    """Return 304 or 412, or None to go on: section 13.2.2, steps 1 to 4. For GET and HEAD of an existing file.

    etag: strong, with its quotes. modified: whole seconds since 1970; None for a page without a date, for which the
    two conditions with dates are ignored (sections 13.1.3 and 13.1.4).
    """
    get = request.values.get
    matching = tags(get("if-match"))
    if matching is not None:
        if matching != ["*"] and etag not in matching:  # strong comparison: a weak tag never equals
            return 412
    elif modified is not None and is_later(modified, get("if-unmodified-since")):
        return 412
    differing = tags(get("if-none-match"))
    if differing is not None:
        if differing == ["*"] or etag in (tag.removeprefix("W/") for tag in differing):  # weak comparison
            return 304
    elif modified is not None and is_later(modified, get("if-modified-since")) is False:
        return 304
    return None


def is_later(modified: float, date: str | None) -> bool | None:
    """Return whether a time is later than a date field; None without the field, or if it has no date."""
    since = parse_date(date or "")
    return None if since is None else modified > since


def range_applies(request: Request, etag: str, modified: float, now: float) -> bool:
    """Return whether If-Range lets Range apply: section 13.1.5, and step 5 of 13.2.2.

    A date is a strong validator only when it is at least a second older than now (section 8.8.2.2).
    """
    validator = request.values.get("if-range")
    if validator is None:
        return True
    if '"' in validator:
        return validator == etag
    return parse_date(validator) == modified and modified < now - 1
