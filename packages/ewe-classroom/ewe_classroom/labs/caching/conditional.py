"""Conditional requests: does the client have the current version of a file?

    ETag of the file, its time of change   ─┐
    If-Match, If-Unmodified-Since          ─┼─▶ outcome() ─▶ 200: send the file, 304: unchanged, 412: other version
    If-None-Match, If-Modified-Since       ─┘

RFC 9110: section 8.8 (validators), section 13 (conditions), section 5.6.7 (dates). This file uses no socket and no
file.
"""

from __future__ import annotations

import calendar
import re
import time
from email.utils import formatdate

# One tag: "W/" if it is weak, then text in quotation marks. The text may contain a comma.
TAG = re.compile(r'(?:W/)?"[^"]*"')
DATE_FORMATS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")


def etag_of(changed_ns: int, size: int) -> str:
    """Return the tag of a version of a file, with quotation marks."""
    # --- solution
    return f'"{changed_ns:x}-{size:x}"'
    # --- starter
    # # Two changes in one second must give two tags.
    # return f'"{changed_ns // 10**9:x}"'
    # --- end


def date(seconds: int) -> str:
    """Return a time in the format of Last-Modified."""
    return formatdate(seconds, usegmt=True)


def parse_date(text: str) -> int | None:
    """Return the time of a date in one of HTTP's three formats, in seconds since 1970; None for other texts."""
    # --- solution
    for date_format in DATE_FORMATS:
        try:
            return calendar.timegm(time.strptime(text, date_format))
        except ValueError:
            continue
    return None
    # --- starter
    # # DATE_FORMATS has all three. time.strptime() parses one format; calendar.timegm() gives seconds in UTC.
    # return None
    # --- end


def tags(value: str) -> list[str]:
    """Return the tags of a list such as: "a", W/"b, c" (with their quotation marks)."""
    # --- solution
    return TAG.findall(value)
    # --- starter
    # # How does this code split a tag with a comma in it?
    # return value.split(", ")
    # --- end


def outcome(fields: dict[str, str], etag: str, changed: int) -> int:
    """Return 200, 304 or 412 for a GET or HEAD of a file that exists. RFC 9110 section 13.2.2.

    fields: of the request, names in lower case. changed: the file's modification time, in whole seconds since 1970.
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
    # # The server of 2006 did not read these fields at all. This is an obvious repair, and it is wrong: find a date
    # # for which it answers 304 although the file has changed since. Then correct it, and read the other three
    # # fields.
    # since = fields.get("if-modified-since")
    # if since is not None and date(changed) <= since:
    #     return 304
    # return 200
    # --- end
