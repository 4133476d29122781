"""HTTP dates: format and parse them. RFC 9110 section 5.6.7."""

from __future__ import annotations

import re
import time

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTH = "(?P<month>" + "|".join(MONTHS) + ")"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
DATES = (
    re.compile(rf"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),  # IMF-fixdate
    re.compile(rf"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),  # RFC 850
    re.compile(rf"{_DAY} {_MONTH} (?P<day>[0-9 ][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),  # asctime
)
DAYS_BEFORE_1970 = 719_162  # from the first day of the year 1
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999, since 1970


def with_four_digits(seconds: float) -> float:
    """Return a time, or the nearest one whose year has four digits: 1 to 9999.

    An account can give a file any time, and time.gmtime() fails for a time far beyond the calendar.
    """
    return min(max(seconds, FIRST_SECOND), LAST_SECOND)


def http_date(seconds: float) -> str:
    """Return an IMF-fixdate, such as "Sun, 06 Nov 1994 08:49:37 GMT"."""
    if not FIRST_SECOND <= seconds <= LAST_SECOND:  # the comparison costs less than the call
        seconds = with_four_digits(seconds)
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime(seconds)
    return f"{DAYS[weekday]}, {day:02} {MONTHS[month - 1]} {year:04} {hour:02}:{minute:02}:{second:02} GMT"


def parse_date(text: str) -> float | None:
    """Return the seconds since 1970 of an HTTP-date in any of its three forms; None for any other text."""
    for form in DATES:
        if match := form.fullmatch(text):
            year = int(match["year"])
            if len(match["year"]) == 2:  # RFC 850: the latest such year, at most 50 years from now
                year += (time.gmtime().tm_year + 50 - year) // 100 * 100
            return seconds_since_1970(
                year, MONTHS.index(match["month"]) + 1, int(match["day"]),
                int(match["hour"]), int(match["minute"]), int(match["second"]),
            )  # fmt: skip
    return None


def seconds_since_1970(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Return the seconds since 1970 of a date in the Gregorian calendar; None if the date does not exist."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (year >= 1 and 1 <= day <= lengths[month - 1] and hour < 24 and minute < 60 and second <= 60):
        return None
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 + sum(lengths[: month - 1]) + day - 1
    return (days - DAYS_BEFORE_1970) * 86400.0 + hour * 3600 + minute * 60 + second
