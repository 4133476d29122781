"""The pool's stream: a conversation over it is parked instead of holding a worker."""

from __future__ import annotations

import os
import socket
import time

from ewe.streams import (
    RECEIVE,
    SENDFILE,
    BlockingStream,
    Disconnected,
    Pace,
    Timeout,
    Timeouts,
    Wait,
    Want,
)


class PoolStream(BlockingStream):
    """A stream whose conversation is parked instead of holding a worker of the pool.

    parks_always: in every wait for the client; otherwise only between requests.
    """

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        server: tuple[str, int],
        timeouts: Timeouts,
        parks_always: bool,
    ) -> None:
        super().__init__(sock, client, server, timeouts)
        self.parks_always = parks_always
        if parks_always:
            sock.setblocking(False)

    async def next_request(self, idle: float) -> bytes:
        self.idle = True
        try:
            if self.finishing:
                return self.what_came()
            wait = Wait(Want.BYTES, time.monotonic() + idle)
            while True:
                await wait
                try:
                    return self.socket.recv(RECEIVE)
                except BlockingIOError:
                    continue
                except OSError:
                    raise Disconnected from None
        except Timeout:
            return b""
        finally:
            self.idle = False

    async def receive(self, limit: int = RECEIVE) -> bytes:
        if not self.parks_always:
            return await super().receive(limit)
        while True:
            try:
                return self.socket.recv(limit)
            except BlockingIOError:
                if (
                    time.monotonic() > self.expires
                ):  # a trickle of bytes must not outrun the look at deadlines
                    raise Timeout from None
                await Wait(Want.BYTES, self.expires)
            except OSError:
                raise Disconnected from None

    async def send(self, *parts: bytes) -> None:
        if not self.parks_always:
            return await super().send(*parts)
        data = memoryview(b"".join(parts) if len(parts) > 1 else parts[0])
        pace: Pace | None = None
        while data:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                pace = await self.room(pace, 0)
                continue
            except OSError:
                raise Disconnected from None
            data = data[sent:]
            if pace is not None:
                pace.check(sent)

    async def room(self, pace: Pace | None, sent: int) -> Pace:
        """Wait until the client has read something."""
        pace = pace or Pace(self.timeouts)
        pace.check(sent)
        await Wait(Want.ROOM, time.monotonic() + self.timeouts.write_timeout)
        return pace

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        if not self.parks_always:
            return await super().send_file(file, offset, count, head)
        if head:
            await self.send(head)
        pace = Pace(self.timeouts)
        while count:
            try:
                sent = os.sendfile(self.socket.fileno(), file, offset, min(count, SENDFILE))
            except BlockingIOError:
                await self.room(pace, 0)
                continue
            except OSError:
                raise Disconnected from None
            if sent == 0:
                raise Disconnected("the file has become shorter")
            offset += sent
            count -= sent
            pace.check(sent)
