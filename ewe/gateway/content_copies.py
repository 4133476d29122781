"""Copies of responses in the content cache: their age, their lifetime, and the response that a client gets.

A Copy is a stored response of RFC 9111. Its age decides how it may be used:

    age_s 0 ────────────────▶ lifetime_s ───────────────▶ lifetime_s + grace_s ────▶
          fresh: is_fresh()    stale: the program is       stale: the program
          no program runs      asked; the copy may         has to answer
                               replace its error
"""

from __future__ import annotations

import time
from itertools import chain

from ewe.http import conditional
from ewe.http.caching import (
    delta_seconds,
    directives,
    fields_in_vary,
    freshness_lifetime,
    is_shared,
    may_store,
    selecting_values,
)
from ewe.http.dates import parse_date
from ewe.http.messages import CONDITIONS, Request, Response, StorableResponse, with_fields

COPY_OVERHEAD_BYTES = 2048  # bytes that a copy takes besides its body and its fields
# Fields of a 304: RFC 9110 section 15.4.5
OF_304 = frozenset({"etag", "cache-control", "content-location", "expires", "vary", "last-modified"})
STRICT = frozenset({"must-revalidate", "proxy-revalidate", "s-maxage", "no-cache"})  # RFC 9111 section 4.2.4
# A 304 has no body, so it cannot change these fields of the copy.
NOT_OF_304 = frozenset({"content-encoding", "content-range", "content-type", "content-length"})
# Scheme, host, the server's address and the target; then the path after a rewrite, the feature, variables, the
# version of HTTP
URL = tuple[str, str, tuple[str, int], str]
Key = tuple[URL, str, str | None, int, tuple[tuple[bytes, bytes], ...], tuple[int, int]]


class Copy:
    """One kept response."""

    def __init__(
        self,
        key: Key,
        request: Request,
        response: Response,
        body: bytes,
        names: tuple[str, ...],
        cache_control: dict[str, str],
        received_at: float | None = None,
    ) -> None:
        """request, response: those that made the copy. body: of the response, whole. names: the fields in its Vary.

        cache_control: the directives of the response. received_at: the time.monotonic() at which its head came, if
        a client has taken the body since; None: now.
        """
        self.key = key
        self.status, self.reason, self.body = response.status, response.reason, body
        self.vary_names, self.vary_values = names, selecting_values(names, request)
        now = time.monotonic()
        self.made_at = now if received_at is None else received_at
        self.room_left_bytes = len(body)  # for compressed bodies: take_room()
        self.fields = tuple(
            field for field in response.fields if field[0].lower() not in ("age", "cache-status")
        )
        # Bytes of memory. A client chooses the target, which the key has whole and in two parts, and the values of
        # Vary's fields. The body counts twice: take_room() gives as many bytes to compressed bodies.
        target = request.target
        texts = (target, target, *(value or "" for value in self.vary_values), *chain(*self.fields))
        self.cost = COPY_OVERHEAD_BYTES + 2 * len(body) + sum(map(len, texts))
        self.earlier_age_s = delta_seconds(response.get("age"))  # of the response when it came here
        # The lifetime begins at made_at, as the age does. Expires is a date, and counts from that time.
        self.lifetime_s = freshness_lifetime(cache_control, response, time.time() - (now - self.made_at)) or 0
        self.shared = is_shared(cache_control)  # personal requests may get the copy, too
        strict = not STRICT.isdisjoint(cache_control)
        # After its lifetime, the copy replaces an error of the program for so long: RFC 5861 section 4
        self.grace_s = 0 if strict else delta_seconds(cache_control.get("stale-if-error"))
        self.etag = response.get("etag") or ""
        self.last_modified = parse_date(response.get("last-modified") or "")
        # The Age and the Cache-Status of the response that respond() has made last, and that response
        self.last_response: tuple[str, StorableResponse] | None = None

    def age_s(self) -> int:
        """Return how old the response is, in seconds: section 4.2.3."""
        return self.earlier_age_s + int(time.monotonic() - self.made_at)

    def may_replace_error(self, status: int) -> bool:
        """Return whether this copy may be sent in place of a program's error (RFC 5861 section 4).

        status: of the program's response.
        """
        return status >= 500 and self.age_s() - self.lifetime_s < self.grace_s

    def freshened(self, request: Request, response: Response, *, personal: bool) -> Copy | None:
        """Return a new copy with the fields of a 304, which replace those of the same names (section 4.3.4).

        None if the 304 forbids keeping the response. personal: the request identifies its user.
        """
        replaced = {name.lower() for name, _ in response.fields} - NOT_OF_304
        fields = [field for field in self.fields if field[0].lower() not in replaced]
        fields += [field for field in response.fields if field[0].lower() in replaced]
        whole = Response(self.status, fields, self.body, reason=self.reason)
        cache_control = directives_of(whole)
        if not may_store(request, whole, cache_control, personal=personal):
            return None
        # The body was chosen by the fields of the first Vary, and the 304 may name others: section 4.1.
        names = {*self.vary_names, *(fields_in_vary(whole) or ())}
        return Copy(self.key, request, whole, self.body, tuple(sorted(names)), cache_control)

    def respond(self, request: Request, status: str = "") -> Response:
        """Return the response for a client; a 304 if the client has the copy already.

        status: for Cache-Status; "": the copy is fresh, and its remaining lifetime is the status.
        """
        age_s = self.age_s()
        age, status = str(age_s), status or f"ewe; hit; ttl={self.lifetime_s - age_s}"
        more = (("Age", age), ("Cache-Status", status))
        if request.conditional and self.status == 200:
            modified = float("inf") if self.last_modified is None else self.last_modified
            if conditional.status_by_conditions(request, self.etag.removeprefix("W/"), modified) == 304:
                return Response(304, (*(field for field in self.fields if field[0].lower() in OF_304), *more))
        age_and_status = age + status
        last = self.last_response  # once: another thread may replace it
        if last is not None and last[0] == age_and_status:
            return last[1]
        response = StorableResponse(self.status, (*self.fields, *more), self.body, reason=self.reason)
        response.prepare_variants(self.take_room)
        self.room_left_bytes = len(self.body)
        self.last_response = age_and_status, response
        return response

    def take_room(self, size: int) -> bool:
        """Take room for a compressed body beside this one; return whether there was enough. Otherwise take none.

        size: bytes of the compressed body. All of them together may be as long as the body of the copy: its cost
        counts that body twice.
        """
        if size > self.room_left_bytes:
            return False
        self.room_left_bytes -= size
        return True


def directives_of(response: Response) -> dict[str, str]:
    """Return the Cache-Control directives of a response."""
    return directives(
        ", ".join(value for field_name, value in response.fields if field_name.lower() == "cache-control")
    )


def is_fresh(copy: Copy, request_directives: dict[str, str]) -> bool:
    """Return whether a copy may be used without asking the program. request_directives: section 5.2.1."""
    age_s = copy.age_s()
    if "no-cache" in request_directives or (
        "max-age" in request_directives and age_s > delta_seconds(request_directives["max-age"])
    ):
        return False
    return age_s + delta_seconds(request_directives.get("min-fresh")) < copy.lifetime_s


def validation_request(request: Request, copy: Copy) -> Request:
    """Return the request that asks whether a copy is still valid: section 4.3.1."""
    fields = [field for field in request.fields if field[0] not in CONDITIONS]
    if copy.etag:
        fields.append(("if-none-match", copy.etag))
    modified = next((value for name, value in copy.fields if name.lower() == "last-modified"), None)
    if modified is not None:
        fields.append(("if-modified-since", modified))
    return with_fields(request, tuple(fields))
