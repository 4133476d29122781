"""The rate of requests: how many a client may send in a second (setting `requests-per-second`).

    requests-per-second = 10                        # and ten at once
    requests-per-second = { rate = 0.5, burst = 20 }

A client may send `burst` requests at once, then `rate` a second. A request above that gets 429 and Retry-After (RFC
6585 section 4), and does not count. A client is an IPv4 address or an IPv6 /64. All processes of the server count
together; gateway/shared_table.py says how, also for more clients than slots.

Possible failures: behind one address there may be a whole school. Choose a burst for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from ewe.config.setting import Key
from ewe.config.setting_types import number
from ewe.config.table_kinds import TableKind
from ewe.features.base import Middleware
from ewe.features.declaration import Feature, StepKey
from ewe.features.guards.client import client_key, client_of
from ewe.gateway.shared_table import Rate, SharedTable
from ewe.http.status import HTTPError

if TYPE_CHECKING:
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

MIN_RATE, MAX_RATE = 0.001, 1e6  # requests a second
RATE = TableKind(
    "a number above 0, or { rate = 10, burst = 20 }",
    {
        "rate": Key(
            number(MIN_RATE, MAX_RATE, "a number of requests a second above 0"), "requests a second, above 0"
        ),
        "burst": Key(
            number(1, MAX_RATE, "a number from 1"),
            "requests at once; if it is absent: `rate`, and at least 1",
        ),
    },
    needs=("rate",),
    short=lambda raw: {"rate": raw} if isinstance(raw, int | float) else raw,
)


class RequestRate(Middleware):
    """Refuses a client's requests above a rate."""

    def __init__(self, table: Mapping[str, float]) -> None:
        """table: as RATE has read it. Raises OSError if the system gives no shared memory."""
        rate = table["rate"]
        burst = table.get("burst", max(rate, 1))
        self.rate = Rate(rate, burst, SharedTable())
        self.description = f"{rate:g} a second, {burst:g} at once"

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response for a client below the rate. Raises HTTPError(429).

        A request counts once, also if a rewrite leads it to a location with the same rate.
        """
        if self.rate not in io.counted_by:
            wait = self.rate.take(client_key(client_of(io)))
            if wait:
                raise too_many(wait, f"more than {self.description} (requests-per-second)")
            io.counted_by = (*io.counted_by, self.rate)
        return await self.inner.respond(request, io)


def too_many(wait_s: float, cause: str) -> HTTPError:
    """Return the 429 for a client that may come again after `wait_s`."""
    return HTTPError(429, cause, (("Retry-After", str(max(ceil(wait_s), 1))),))


MEANING = "how many requests a second one client may make; above it 429"
FEATURE = Feature(
    "request-rate",
    keys={"requests-per-second": StepKey(RATE, MEANING, RequestRate)},
)
