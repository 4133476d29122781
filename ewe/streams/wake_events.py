"""Wake events, by which one conversation wakes another, under every model. gateway/connections.py queues them.

A WakeEvent is an event that can be set once: set() sets it, and `await wait()` waits for it.

    conversation A                               conversation B
    event = stream.wake_event()
    queue.append(event)
    await event.wait(seconds) ─▶ pauses, or waits
                                                 queue.popleft().set()
    True ◀───────────────────── goes on

The model decides how a conversation waits, as with pollers. A BlockingWakeEvent is an eventfd(2); its thread waits
for it with poll(2). A LoopWakeEvent has the loop resume the conversation. A PoolWakeEvent parks the conversation.
If the conversation kept its worker instead, all workers of a pool could wait for a conversation that needs a worker
itself.

Every WakeEvent watches the client too: wait() raises Disconnected when the client has left, or when the client
closed its sending side more than HALF_CLOSED_S ago.

Possible failures: a conversation calls set() on a WakeEvent after the other one has stopped waiting. The number of
its eventfd may belong to another file by then. A caller of set() must therefore know that the other conversation
still waits, and a conversation that stops waiting must first remove its WakeEvent from the queue.

Read next: BlockingWakeEvent in blocking.py, LoopWakeEvent in event_poller.py, PoolWakeEvent in pool.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class WakeEvent(Protocol):
    """An event that wakes one conversation, once."""

    def set(self) -> None:
        """Set the event, so that wait() returns. Any conversation of the process may call this."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Wait until the event is set; return False after `seconds`. Raises Disconnected."""
        ...

    def close(self) -> None:
        """Close the event's descriptors. set() must not be called any more."""
        ...


class ParkedWakeEvent(WakeEvent, Protocol):
    """An event that queues a parked conversation, so that any worker can resume it.

    client_events: the epoll(7) events of the client's socket that resume the conversation, too.
    """

    client_events: int

    def park(self, resume: Callable[[], None], watch: Callable[[Any], None]) -> None:
        """Note that the conversation is parked: set() then calls resume(). If the event is set, call resume() now.

        resume: queues the conversation. watch: a function that takes this event, and has epoll watch one more
        descriptor for it. When that is ready, the event is set (streams/parking.py).
        """
        ...
