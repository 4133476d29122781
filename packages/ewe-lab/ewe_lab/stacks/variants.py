"""Processors for experiments only: `ewe --model ewe_lab.stacks.variants:BuildingThread`.

They do on purpose what the EWE of 2006 did, to measure what that costs. Do not use them for a site.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Coroutine
from typing import Any

from ewe.config.settings import Config
from ewe.conversation import converse
from ewe.gateway import orphans
from ewe.http.messages import Request, Response
from ewe.processors.event import Event
from ewe.processors.fork import Fork
from ewe.processors.thread import Thread
from ewe.site import Site
from ewe.sites import make_site
from ewe.streams.base import Stream
from ewe.streams.blocking import BlockingStream
from ewe.streams.listener import Accepted, Listener

TIMES = "LAB_TIMES"  # the variable that names the file for the times of requests
REAPS_EVERY = 0.005  # seconds between two checks for ended children at a stop
NOTHING = b"hello world, from a handler that has nothing to do.\n"  # 52 bytes, as programs.HELLO


class BuildingThread(Thread):
    """A thread per connection that builds its own Site, as each thread of EWE built a baseProcessor."""

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        return converse(stream, make_site(self.config, holds_idle=True))


class BuildingFork(Fork):
    """A process per connection that builds its own Site, although it inherited one."""

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        return converse(stream, make_site(self.config, holds_idle=True))


class Null(Event):
    """An event loop whose site answers every request at once, with as many bytes as the measured program."""

    def __init__(self, site: Site, config: Config) -> None:
        super().__init__(site, config)
        site.respond = Nothing().respond


class TimedStream(BlockingStream):
    """A stream that notes how long each request was in the server: from its receipt until its response was sent."""

    __slots__ = ("began", "times")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.began = 0.0
        self.times: list[float] = []

    async def next_request(self, seconds: float) -> bytes:
        if self.began:
            self.times.append(time.perf_counter() - self.began)
        found = await super().next_request(seconds)
        self.began = time.perf_counter()
        return found

    def close(self) -> None:
        """Write the times into the file that LAB_TIMES names, a line of seconds for each request."""
        with open(os.environ[TIMES], "a") as file:
            file.writelines(f"{each:.9f}\n" for each in self.times)
        self.times.clear()
        super().close()


class Timed(Thread):
    """A thread per connection that notes the time of each request."""

    def meet(self, accepted: Accepted) -> Stream:
        stream = TimedStream(accepted.socket, accepted.client, accepted.server, self.config)
        return self.register(stream)


class Nothing:
    """A handler with a constant answer: it takes the place of mod_x in table 1 of X-Switch."""

    async def respond(self, request: Request, io: Stream) -> Response:
        return Response(200, (("Content-Type", "text/plain"),), NOTHING)


class LazyFork(Fork):
    """A process per connection, reaped when the next connection comes: the way of EWE, without signals."""

    def serve(self, listener: Listener) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the end of a child interrupts no wait
        orphans.adopt()
        while not listener.closed:
            accepted = self.next(listener)
            self.reap()
            if accepted is not None:
                self.start(accepted)
        while self.children:
            self.reap()
            time.sleep(REAPS_EVERY)


class PidfdFork(Fork):
    """A process per connection, whose end shows on a pidfd instead of by a signal."""

    def serve(self, listener: Listener) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orphans.adopt()
        while not listener.closed or self.children:
            accepted, ended = listener.wait(-1, 1 if self.has_room() else 0)
            for descriptor in ended:
                listener.unwatch(descriptor)
                os.close(descriptor)
            self.reap()
            for each in accepted:
                before = set(self.children)
                self.start(each)
                for child in set(self.children) - before:
                    listener.watch(os.pidfd_open(child), select.EPOLLIN)
