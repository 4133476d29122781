"""The limits on the size of a request."""

from __future__ import annotations


class RequestLimits:
    """The limits of a request, in bytes; max_fields is a count. Config has settings of the same names.

    encoded_slashes: a path may contain %2F. Only a site that checks such paths itself sets this
    (ewe.features.encoded_slashes).
    """

    def __init__(
        self,
        max_target: int = 8 * 1024,
        max_head: int = 32 * 1024,
        max_field: int = 16 * 1024,
        max_fields: int = 100,
        max_body: int = 2 * 1024**3,
    ) -> None:
        self.max_target = max_target
        self.max_head = max_head
        self.max_field = max_field
        self.max_fields = max_fields
        self.max_body = max_body
        self.encoded_slashes = False
