"""The stream of the scheduled pool: it knows the size of the file that its client asks for.

Read next: processors/scheduled_pool.py.
"""

from __future__ import annotations

import math

from ewe.streams.pool import PoolStream


class ScheduledStream(PoolStream):
    """A pool's stream that knows the size of the file that its client asks for.

    file_bytes: that size; 0 if it is not known. is_new_request: the queue has not counted its head yet.
    head_checked: see requested_bytes(). head_until: the time.monotonic() at which an incomplete head is late.
    """

    file_bytes = head_checked = 0
    is_new_request = False
    head_until = math.inf

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline of receive() to `seconds` from now, but not later than `head_until`."""
        super().set_deadline(seconds)
        self.expires = min(self.expires, self.head_until)

    def rank(self, schedule: str) -> tuple[int, bool]:
        """Return the size by which the queue orders this conversation, and whether it may be dropped."""
        is_new_request, self.is_new_request = self.is_new_request, False
        return self.unsent if schedule == "srpt" and not is_new_request else self.file_bytes, is_new_request
