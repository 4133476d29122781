"""Processors for experiments only: `ewe --model ewe_lab.stacks.variants:BuildingThread`.

They repeat decisions of the EWE of 2006 in order to measure their cost. Do not use them for a site.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import signal
import time
from collections.abc import Coroutine
from typing import Any

from ewe.config.settings import Config
from ewe.conversation import converse
from ewe.conversations import Conversations
from ewe.gateway import orphans
from ewe.http.messages import Request, Response
from ewe.processors.event import Event
from ewe.processors.fork import Fork
from ewe.processors.thread import Thread
from ewe.sites import make_site
from ewe.streams.base import Stream
from ewe.streams.blocking import BlockingStream
from ewe.streams.listener import Accepted, Listener

TIMES_VARIABLE = "LAB_TIMES"  # the variable that names the file for the times of requests
REAP_EVERY_S = 0.005  # seconds between two checks for ended children at a stop
HELLO_BODY = b"hello world, from a handler that has nothing to do.\n"  # 52 bytes, as programs.HELLO


class BuildingThread(Thread):
    """A thread per connection that builds its own Site, as each thread of EWE built a baseProcessor."""

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        return converse(stream, make_site(self.config, idle_occupies_worker=True))


class BuildingFork(Fork):
    """A process per connection that builds its own Site, although it inherited one."""

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        return converse(stream, make_site(self.config, idle_occupies_worker=True))


class Null(Event):
    """An event loop whose site answers every request at once, with as many bytes as the measured program."""

    def __init__(self, conversations: Conversations, config: Config) -> None:
        super().__init__(conversations, config)
        self.conversations.site.respond = Nothing().respond


class Selecting(Event):
    """An event loop of asyncio that asks the kernel by select()."""

    selector: type[selectors.BaseSelector] = selectors.SelectSelector

    def make_loop(self, config: Config) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(self.selector())


class Polling(Selecting):
    """An event loop of asyncio that asks the kernel by poll()."""

    selector = selectors.PollSelector


class EPolling(Selecting):
    """An event loop of asyncio that asks the kernel by epoll."""

    selector = selectors.EpollSelector


class Crash:
    """A handler that ends its process at once, as a segmentation fault does: `--mount /crash=...:Crash`."""

    def __init__(self, config: Config, path: str) -> None:
        self.path = path

    async def respond(self, request: Request, io: Stream) -> Response | None:
        if request.path == self.path:
            os.kill(os.getpid(), signal.SIGKILL)
        return None


class TimedStream(BlockingStream):
    """A stream that notes how long each request was in the server: from its receipt until its response was sent."""

    __slots__ = ("began", "times")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.began = 0.0
        self.times: list[float] = []

    async def next_request(self, seconds: float) -> bytes:
        """Note the time of the request before, whose response has been sent by now; then wait for the next."""
        if self.began:
            self.times.append(time.perf_counter() - self.began)
        found = await super().next_request(seconds)
        self.began = time.perf_counter()
        return found

    def close(self) -> None:
        """Write the times into the file that LAB_TIMES names, a line of seconds for each request."""
        with open(os.environ[TIMES_VARIABLE], "a") as file:
            file.writelines(f"{each:.9f}\n" for each in self.times)
        self.times.clear()
        super().close()


class Timed(Thread):
    """A thread per connection that notes the time of each request."""

    def stream_of(self, accepted: Accepted) -> Stream:
        stream = TimedStream(accepted.socket, accepted.client, accepted.server, self.config)
        return self.register(stream)


class Nothing:
    """A handler with a constant answer: it takes the place of mod_x in table 1 of X-Switch."""

    async def respond(self, request: Request, io: Stream) -> Response:
        return Response(200, (("Content-Type", "text/plain"),), HELLO_BODY)


class LazyFork(Fork):
    """A process per connection. It is reaped when the next connection comes, without signals, as in EWE."""

    def serve(self, listener: Listener) -> None:
        """Accept, reap the children that have ended meanwhile, and fork, until the listener is closed."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # not Fork's handler: the end of a child ends no wait
        orphans.adopt_orphans()  # as Fork does: programs of a killed child become children of this process
        while not listener.closed:
            accepted = self.next_connection(listener)
            self.reap()
            if accepted is not None:
                self.start(accepted)
        while self.children:  # the server stops, and no connection will wake it for them
            self.reap()
            time.sleep(REAP_EVERY_S)


class PidfdFork(Fork):
    """A process per connection. A pidfd reports the end of a child, instead of a signal."""

    def serve(self, listener: Listener) -> None:
        """Wait for connections and for the ends of children at the same time, until no child is left."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orphans.adopt_orphans()
        while not listener.closed or self.children:
            # At most one connection at a time, none without room for its child; `ended`: pidfds of ended children
            accepted, ended = listener.wait(-1, 0 if self.limit_reached() else 1)
            for descriptor in ended:
                listener.unwatch(descriptor)
                os.close(descriptor)
            self.reap()
            for each in accepted:
                before = set(self.children)
                self.start(each)
                for child in set(self.children) - before:  # the one that start() has added
                    listener.watch(os.pidfd_open(child), select.EPOLLIN)
