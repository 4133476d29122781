"""How a conversation of the event model waits for something else than its client.

    EventPoller     for descriptors: a program's pipes, an upstream's socket     a Poller (poller.py)
    LoopWakeEvent   for another conversation of this loop                        a WakeEvent (wake_events.py)

Both pause the conversation with EventStream.wait(). EventStream notices when the client leaves, and then throws
Disconnected into the conversation. Each wait ends at the latest after HALF_CLOSED_S, and then checks whether the
client has closed its sending side too long ago.

Possible failures: the loop did not run for a while, and then calls its timers before it looks at descriptors. A
wait that is about to fail therefore looks at the descriptors itself (is_ready_now).

Read next: watcher.py, which goes on watching an upstream's socket between two waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from select import POLLIN, POLLOUT, poll
from typing import Any, Protocol

from ewe.streams.base import Disconnected, Timeout, Want
from ewe.streams.descriptor_set import HAS_EPOLL
from ewe.streams.poller import HALF_CLOSED_S
from ewe.streams.watcher import WATCHERS, Watcher, watcher_of


class PausingStream(Protocol):
    """The part of an EventStream (event.py, which imports this module) that its pollers and wake events use."""

    loop: Any
    clock: Any
    client_ended: bool
    client_ended_at: float
    want: Want | None
    watcher: Watcher | None

    async def wait(self, want: Want, seconds: float) -> None: ...

    async def share(self, size: int) -> None: ...

    def resume_if_waiting_for(self, want: Want) -> None: ...

    def step(self) -> None: ...


class EventPoller:
    """A Poller that uses the event loop's readers and writers. EventStream notices when the client leaves."""

    def __init__(self, stream: PausingStream) -> None:
        self.stream = stream

    async def wait(
        self,
        descriptors: Sequence[int],
        since: float,
        seconds: float,
        writable: int = -1,
    ) -> list[int]:
        """Pause until a descriptor can be read, or `writable` can be written. See Poller.wait()."""
        stream, loop = self.stream, self.stream.loop
        ready: list[int] = []

        def is_ready(descriptor: int) -> None:
            ready.append(descriptor)
            stream.resume_if_waiting_for(Want.PROGRAM)

        expires = stream.clock.now + seconds
        try:
            for descriptor in descriptors:
                loop.add_reader(descriptor, is_ready, descriptor)
            if writable >= 0:
                loop.add_writer(writable, is_ready, writable)
            while not ready:
                now = stream.clock.now
                gone = stream.client_ended and now > max(since, stream.client_ended_at) + HALF_CLOSED_S
                if gone or now > expires:
                    ready += filter(is_ready_now, descriptors)
                    if writable >= 0 and is_ready_now(writable, POLLOUT):
                        ready.append(writable)
                    if gone and not ready:
                        raise Disconnected
                    break
                try:
                    await stream.wait(Want.PROGRAM, min(expires - now, HALF_CLOSED_S))
                except Timeout:
                    continue
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)
                # Without epoll, readable() needs the loop's one reader of a descriptor: add_reader() replaced it.
                if not HAS_EPOLL and (watcher := stream.watcher or WATCHERS.get(loop)) is not None:
                    watcher.watch_again(descriptor)
            if writable >= 0:
                loop.remove_writer(writable)
        return ready

    async def readable(self, descriptor: int, since: float, seconds: float) -> bool:
        """Pause until a descriptor can be read; return False after `seconds`.

        The Watcher still watches the descriptor after the wait, so the next wait for it makes no system call.
        since: the time.monotonic() at which the program or upstream last sent bytes. Raises Disconnected as wait()
        does.
        """
        stream = self.stream
        watcher = stream.watcher or self.watcher()
        if descriptor not in watcher.waiting:
            watcher.watch(descriptor)
        watcher.waiting[descriptor] = stream
        expires = stream.clock.now + seconds
        try:
            while True:
                now = stream.clock.now
                gone = stream.client_ended and now > max(since, stream.client_ended_at) + HALF_CLOSED_S
                if gone or now > expires:
                    if (found := is_ready_now(descriptor)) or not gone:
                        return found
                    raise Disconnected
                try:
                    await stream.wait(Want.PROGRAM, min(expires - now, HALF_CLOSED_S))
                except Timeout:
                    continue
                return True
        finally:
            # The Watcher still watches the descriptor, but no conversation waits for it. If the entry is absent,
            # forget() has removed it: do not add it again.
            if descriptor in watcher.waiting:
                watcher.waiting[descriptor] = None

    async def either(self, descriptor: int, seconds: float) -> None:
        """Pause until the client has sent bytes or closed its sending side, or until the descriptor can be read.

        Raises Timeout after `seconds`, unless the descriptor can be read then; Disconnected if the connection is
        lost.
        """
        stream = self.stream
        watcher = stream.watcher or self.watcher()
        if descriptor not in watcher.waiting:
            watcher.watch(descriptor)
        watcher.waiting[descriptor] = stream
        try:
            await stream.wait(Want.EITHER, seconds)
        except Timeout:
            if not is_ready_now(descriptor):
                raise
        finally:  # as in readable()
            if descriptor in watcher.waiting:
                watcher.waiting[descriptor] = None

    async def share(self, size: int) -> None:
        """Count `size` bytes of work for the stream, which lets other conversations run after TURN_BYTES."""
        await self.stream.share(size)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor that is about to be closed."""
        # This stream has no watcher if another conversation has made the loop watch the descriptor.
        watcher = self.stream.watcher or WATCHERS.get(self.stream.loop)
        if watcher is not None:
            watcher.forget(descriptor)

    def watcher(self) -> Watcher:
        """Return the loop's watcher; the stream remembers it."""
        watcher = self.stream.watcher = watcher_of(self.stream.loop)
        return watcher

    def after(self, seconds: float, exit_descriptor: int, function: Callable[[], None]) -> None:
        """Have the loop call `function` after `seconds`, also if the program has exited before."""
        self.stream.loop.call_later(seconds, function)


def is_ready_now(descriptor: int, events: int = POLLIN) -> bool:
    """Return whether a descriptor can be read now (POLLOUT: written), or its other end is closed."""
    watched = poll()
    watched.register(descriptor, events)
    return bool(watched.poll(0))


class LoopWakeEvent:
    """A WakeEvent for an event loop: set() resumes the conversation in the loop's next round, not at once."""

    def __init__(self, stream: PausingStream) -> None:
        self.stream = stream
        self.is_set = False

    def set(self) -> None:
        """Resume the conversation in the loop's next round. Only the loop's thread may call this."""
        self.is_set = True
        self.stream.loop.call_soon(self.stream.resume_if_waiting_for, Want.WAKE_EVENT)

    async def wait(self, seconds: float) -> bool:
        """Pause until set() is called; return False after `seconds`. Raises Disconnected."""
        stream = self.stream
        began = stream.clock.now
        while not self.is_set:
            now = stream.clock.now
            if stream.client_ended and now > max(began, stream.client_ended_at) + HALF_CLOSED_S:
                raise Disconnected
            if now > began + seconds:
                return False
            try:
                await stream.wait(Want.WAKE_EVENT, min(began + seconds - now, HALF_CLOSED_S))
            except Timeout:
                continue
        return True

    def close(self) -> None:
        """Do nothing: the event has no descriptor."""
