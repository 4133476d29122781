"""Filters of fields: middlewares that only change the fields of responses, as `headers` and `expires` do.

    request ─▶ Expires ─▶ Headers ─▶ the handler that answers
    client  ◀─ Expires ◀─ Headers ◀─┘ a cached file: the same Response for many requests

A cached response (StorableResponse) is one object for many requests, so a filter changes it once. The result is
kept beside the response, with its encoded head, and a later request costs one lookup in each filter.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ewe.features.base import Middleware
from ewe.http.messages import StorableResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

    Fields = Sequence[tuple[str, str]]

FILTERED_BYTES = 1024  # bytes of memory for a cached response with other fields, without its body


class FieldFilter(Middleware):
    """A middleware that only changes the fields of responses. A subclass has the method changed_fields().

    For a cached response, the fields must depend only on the response and, in a `dated` filter, on the second.
    """

    dated = False  # the fields contain the present time, or a time that is counted from it

    def changed_fields(self, request: Request, response: Response, now: int) -> Fields | None:
        """Return all fields that the response is to have; None to leave it unchanged.

        now: the time.time() of a dated filter, without its fraction; 0 for any other filter.
        """
        raise NotImplementedError

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the response of the inner handler with other fields. Raises the inner handler's exceptions."""
        response = await self.inner.respond(request, io)
        if response is None:
            return None
        now = int(time.time()) if self.dated else 0
        if isinstance(response, StorableResponse):
            try:
                second, found = response.filtered[self]
                if second == now:
                    return found
            except KeyError:
                pass
        fields = self.changed_fields(request, response, now)
        if fields is None:
            return response
        if isinstance(response, StorableResponse):
            return self.kept(response, fields, now)
        return response.with_fields(fields)

    def kept(self, response: StorableResponse, fields: Fields, now: int) -> StorableResponse:
        """Return a cached response with other fields, and keep the result beside it if the cache has room.

        now: as in changed_fields(). The result shares the body with the response.
        """
        # Of the same class: a cached file stays a file, for the compression around this filter.
        found = type(response)(
            response.status, fields, response.body, reason=response.reason, cause=response.cause
        )
        # The result of a dated filter is replaced each second. Its room, and the room of the filter around this
        # one, are therefore taken only once, with the first result.
        found.prepare_variants(has_room if self.dated else response.take_room)
        if self in response.filtered or response.take_room(FILTERED_BYTES if self.dated else 0):
            response.filtered[self] = now, found
        return found


def has_room(size: int) -> bool:
    """Return True, as take_room() of a response whose room is taken already."""
    return True
