"""Matching: the paths that a location covers, given by a prefix, a whole path, or a regular expression."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ewe.config.patterns import longest_text
from ewe.config.site_tables import is_below
from ewe.http.status import HTTPError
from ewe.sites.templates import values_of

if TYPE_CHECKING:
    from ewe.config.site_tables import LocationTable
    from ewe.http.messages import Request
    from ewe.streams.base import Stream


class Match:
    """The paths of one location.

    kind: prefix, path or pattern. match_value: the value of that key in the settings. longest: the most characters
    of a path that ewe compares with the pattern. prefix: the prefix without a slash at its end; "" for the other
    kinds.
    """

    def __init__(self, table: LocationTable) -> None:
        self.table = table
        self.kind = table.match_key
        self.match_value = table.match_value
        self.pattern = re.compile(self.match_value, re.DOTALL) if self.kind == "pattern" else None
        self.longest = longest_text(self.match_value) if self.kind == "pattern" else 0
        self.prefix = self.match_value.rstrip("/") if self.kind == "prefix" else ""

    def covers(self, path: str) -> bool:
        """Return whether this location covers a path. Raises HTTPError(414) for a path too long for the pattern."""
        if self.pattern is not None:
            if len(path) > self.longest:  # skipping the location could skip its guard
                raise HTTPError(414, f"a path of {len(path)} characters at {self.table}")
            return self.pattern.search(path) is not None
        if self.kind == "path":
            return path == self.match_value
        return is_below(path, self.match_value)

    def rest(self, path: str) -> str:
        """Return the part of a path after the prefix."""
        return path[len(self.prefix) :] if self.kind == "prefix" else ""

    def values_of(self, request: Request, io: Stream) -> dict[str, str]:
        """Return the variables for a template: those of the request, and the groups of the pattern."""
        found = self.pattern.search(request.path) if self.pattern is not None else None
        return values_of(request, self.rest(request.path), found, io)
