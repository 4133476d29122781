"""The rate of requests: how many a client may send in a second (setting `requests-per-second`).

    requests-per-second = 10                        # and ten at once
    requests-per-second = { rate = 0.5, burst = 20 }

A client may send `burst` requests at once, then `rate` a second. A request above that gets 429 and Retry-After (RFC
6585 section 4), and does not count. A client is an IPv4 address or an IPv6 /64. All processes of the server count
together; gateway/shared_table.py says how, and what happens when there are more clients than slots.

What can go wrong: behind one address there may be a whole school. Choose a burst for all of them.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ewe.features.base import Middleware
from ewe.features.declaration import Feature, Key
from ewe.features.guards.client import client_of, who
from ewe.features.guards.tables import expected, number, table
from ewe.gateway.shared_table import Rate, SharedTable
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

LOWEST, HIGHEST = 0.001, 1e6  # requests a second
WHAT = "a number above 0, or { rate = 10, burst = 20 }"


class RequestRate(Middleware):
    """Refuse a client's requests above a rate."""

    def __init__(self, rate: float, burst: float) -> None:
        """rate: requests a second. burst: at once. Raises OSError if the system gives no shared memory."""
        self.rate = Rate(rate, burst, SharedTable())
        self.words = f"{rate:g} a second, {burst:g} at once"

    @classmethod
    def from_table(cls, value: object, place: str) -> RequestRate:
        """Read the setting. place: how an error message begins. Raises ConfigError, OSError."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = {"rate": value}
        given = table(value, place, ("rate", "burst"), WHAT)
        if "rate" not in given:
            raise expected(place, value, WHAT)
        rate = number(
            given["rate"], f"{place} rate", LOWEST, HIGHEST, "a number of requests a second above 0"
        )
        burst = number(given.get("burst", max(rate, 1)), f"{place} burst", 1, HIGHEST, "a number from 1")
        return cls(rate, burst)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Answer a client below the rate. Raises HTTPError(429).

        A request counts once, also if a rewrite leads it to a location with the same rate.
        """
        if self.rate not in io.counted:
            wait = self.rate.take(who(client_of(request, io)))
            if wait:
                raise too_many(wait, f"more than {self.words} (requests-per-second)")
            io.counted = (*io.counted, self.rate)
        return await self.inner.respond(request, io)


def too_many(wait: float, cause: str) -> HTTPError:
    """Return the 429 for a client that may come again in so many seconds."""
    return HTTPError(429, cause, (("Retry-After", str(max(ceil(wait), 1))),))


MEANING = "how many requests a second one client may make; above it 429"
FEATURE = Feature(
    "request-rate",
    keys={"requests-per-second": Key(MEANING, "a number, or a table", RequestRate.from_table)},
)
