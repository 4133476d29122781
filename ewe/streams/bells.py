"""Bells: how one conversation wakes another, under every model. A queue needs it (gateway/connections.py).

    conversation A                               conversation B
    bell = stream.bell()
    queue.append(bell)
    await bell.heard(seconds) ─▶ pauses, or waits
                                                 queue.popleft().ring()
    True ◀───────────────────── goes on

How to wait is the model's decision, as with pollers. A BlockingBell is an eventfd(2), for which its thread waits
with poll(2). An EventBell has the loop resume the conversation. A PoolBell parks the conversation. If it held its
worker, the workers of a pool could all wait for a conversation that needs a worker itself.

Every bell watches the client too: heard() raises Disconnected when the client has left, or when it closed its
sending side more than HALF_CLOSED seconds ago.

What can go wrong: a bell is rung after its conversation has stopped waiting, and an eventfd's number belongs to
another file by then. Who rings must know that the bell is still waited for; who stops waiting says so first.

Read next: BlockingBell in blocking.py, EventBell in event.py, PoolBell in pool.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Bell(Protocol):
    """Wakes one conversation, once."""

    def ring(self) -> None:
        """Wake the conversation that waits in heard(), or will; any conversation of the process may call this."""
        ...

    async def heard(self, seconds: float) -> bool:
        """Wait until the bell rings; return False after `seconds`. Raises Disconnected."""
        ...

    def close(self) -> None:
        """Give back what the bell holds. It must not be rung any more."""
        ...


class ParkedBell(Bell, Protocol):
    """A bell that queues a parked conversation, so that any worker resumes it."""

    def events(self) -> int:
        """Return the epoll(7) events of the client for which the conversation is resumed."""
        ...

    def park(self, resume: Callable[[], None], watch: Callable[[Any], None]) -> None:
        """Note that the conversation is parked: the bell calls resume() when it rings, at once if it has rung.

        watch: has epoll watch one more descriptor, for a bell that such a descriptor rings (streams/parking.py).
        """
        ...
