"""Conditional requests: which version the client has, and whether that is still the one on the disk.

    ETag of the file, its time of change   ─┐
    If-Match, If-Unmodified-Since          ─┼─▶ outcome() ─▶ 200 send it, 304 you have it, 412 not the one you mean
    If-None-Match, If-Modified-Since       ─┘

RFC 9110: section 8.8 (validators), section 13 (conditions), section 5.6.7 (dates). No socket, no file.
"""

from __future__ import annotations

import calendar
import re
import time
from email.utils import formatdate

# One tag: "W/" if it is weak, then anything but a quotation mark between two of them. A comma may be inside.
TAG = re.compile(r'(?:W/)?"[^"]*"')
FORMS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")


def etag_of(changed_ns: int, size: int) -> str:
    """Return a tag for a version of a file, with its quotation marks."""
    # --- solution
    return f'"{changed_ns:x}-{size:x}"'
    # --- starter
    # # Two changes in one second must give two tags.
    # return f'"{changed_ns // 10**9:x}"'
    # --- end


def date(seconds: int) -> str:
    """Return a time as Last-Modified carries it."""
    return formatdate(seconds, usegmt=True)


def parse_date(text: str) -> int | None:
    """Return the time that a date of any of HTTP's three forms names, in seconds since 1970; None if it is none."""
    # --- solution
    for form in FORMS:
        try:
            return calendar.timegm(time.strptime(text, form))
        except ValueError:
            continue
    return None
    # --- starter
    # # FORMS has all three. time.strptime() reads one form, and calendar.timegm() counts seconds in UTC.
    # return None
    # --- end


def tags(value: str) -> list[str]:
    """Return the tags of a list such as: "a", W/"b, c" (with their quotation marks)."""
    # --- solution
    return TAG.findall(value)
    # --- starter
    # # What does this make of a tag with a comma in it?
    # return value.split(", ")
    # --- end


def outcome(fields: dict[str, str], etag: str, changed: int) -> int:
    """Return 200, 304 or 412 for a GET or HEAD of a file that exists. RFC 9110 section 13.2.2.

    fields: of the request, names in lower case. changed: when the file was changed, in whole seconds since 1970.
    """
    # --- solution
    if (wanted := fields.get("if-match")) is not None:
        if wanted != "*" and etag not in tags(wanted):  # strong: W/"a" is not "a"
            return 412
    elif (since := parse_date(fields.get("if-unmodified-since", ""))) is not None and changed > since:
        return 412
    if (known := fields.get("if-none-match")) is not None:
        without_w = [tag.removeprefix("W/") for tag in tags(known)]  # weak comparison
        same = known == "*" or etag in without_w
        return 304 if same else 200
    if (since := parse_date(fields.get("if-modified-since", ""))) is not None and changed <= since:
        return 304
    return 200
    # --- starter
    # # The server of 2006 did not read these fields at all. This is the first repair that comes to mind, and it
    # # is wrong twice: find a date for which it answers 304 although the file has changed since. Then mend it,
    # # and read the other three fields.
    # since = fields.get("if-modified-since")
    # if since is not None and date(changed) <= since:
    #     return 304
    # return 200
    # --- end
