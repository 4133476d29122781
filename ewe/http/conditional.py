"""Conditional requests: RFC 9110 section 13."""

from __future__ import annotations

import re

from ewe.bounded import BoundedDict
from ewe.http.dates import parse_date
from ewe.http.messages import Request

# entity-tag = [ "W/" ] DQUOTE *etagc DQUOTE: section 8.8.3
TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
TAGS = re.compile(rf"[ \t,]*{TAG.pattern}(?:[ \t]*,[ \t,]*{TAG.pattern})*[ \t,]*")


# The same pages are asked for with the same dates again and again.
PARSED_DATES: BoundedDict[str, float | None] = BoundedDict(256)


def entity_tags(value: str) -> list[str]:
    """Return the entity tags of If-Match or If-None-Match: ["*"] for the star.

    A malformed list counts as empty. Then If-Match is false, so nothing is changed, and If-None-Match is true, so
    the client gets the whole file.
    """
    if value == "*":
        return ["*"]
    return TAG.findall(value) if TAGS.fullmatch(value) else []


def status_by_conditions(request: Request, etag: str, modified: float | None) -> int | None:
    """Return the status 304 or 412, or None if the file is to be sent: section 13.2.2, steps 1 to 4.

    For GET and HEAD of an existing file. etag: a strong entity tag, with its quotes. modified: whole seconds since
    1970; None for a page without a date. Then the conditions with dates are ignored (sections 13.1.3, 13.1.4).
    """
    get = request.values.get
    if (value := get("if-match")) is not None:
        matching = entity_tags(value)
        if matching != ["*"] and etag not in matching:  # strong comparison: a weak tag never matches
            return 412
    elif modified is not None and (date := get("if-unmodified-since")) and is_later(modified, date):
        return 412
    if (value := get("if-none-match")) is not None:
        differing = entity_tags(value)
        if differing == ["*"] or etag in (tag.removeprefix("W/") for tag in differing):  # weak comparison
            return 304
    elif modified is not None and (date := get("if-modified-since")) and is_later(modified, date) is False:
        return 304
    return None


def is_later(modified: float, date: str) -> bool | None:
    """Return whether a time is later than that of a date field; None if the field is malformed."""
    if len(date) > 40:  # the longest form has 33 characters
        return None
    try:
        since = PARSED_DATES[date]
    except KeyError:
        since = PARSED_DATES[date] = parse_date(date)
    return None if since is None else modified > since


def range_applies(request: Request, etag: str, modified: float, now: float) -> bool:
    """Return whether Range applies in spite of If-Range: section 13.1.5, and step 5 of section 13.2.2.

    A date is a strong validator only if it is more than a second before `now` (section 8.8.2.2).
    """
    validator = request.values.get("if-range")
    if validator is None:
        return True
    if '"' in validator:
        return validator == etag
    return parse_date(validator) == modified and modified < now - 1
