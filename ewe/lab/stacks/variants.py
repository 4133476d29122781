"""Processors for experiments only: `ewe --model ewe.lab.variants:BuildingThread`.

They do on purpose what the EWE of 2006 did, so that its price can be measured. Nothing here is for a site.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Coroutine
from typing import Any

from ewe import orphans
from ewe.config import Config
from ewe.conversation import converse
from ewe.http import Request, Response
from ewe.listener import Listener
from ewe.processors.event import Event
from ewe.processors.fork import Fork
from ewe.processors.thread import Thread
from ewe.site import Site
from ewe.streams import Stream

REAPS_EVERY = 0.005  # seconds between two looks for children at a stop
NOTHING = b"hello world, from a handler that has nothing to do.\n"  # 52 bytes, as programs.HELLO


class BuildingThread(Thread):
    """A thread per connection that builds all that answers requests anew, as EWE's did its baseProcessor."""

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        return converse(stream, Site(self.config, holds_idle=True))


class BuildingFork(Fork):
    """A process per connection that builds all that answers requests anew, though it inherited it."""

    def converse(self, stream: Stream) -> Coroutine[Any, Any, None]:
        return converse(stream, Site(self.config, holds_idle=True))


class Null(Event):
    """An event loop whose site answers everything at once, with as many bytes as a program that is measured."""

    def __init__(self, site: Site, config: Config) -> None:
        super().__init__(site, config)
        site.mounts.insert(0, ("/", Nothing()))


class Nothing:
    """A handler that does nothing but answer: X-Switch's table 1 has it in the place of mod_x."""

    async def respond(self, request: Request, io: Stream) -> Response:
        return Response(200, (("Content-Type", "text/plain"),), NOTHING)


class LazyFork(Fork):
    """A process per connection, reaped when the next one comes: EWE's way without signals."""

    def serve(self, listener: Listener) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the end of a child wakes nobody
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
    """A process per connection, whose end is seen on a descriptor of its own: no signal takes part."""

    def serve(self, listener: Listener) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orphans.adopt()
        while not listener.closed or self.children:
            accepted, ended = listener.wait(-1, 1 if self.has_room() else 0)
            for descriptor in ended:
                listener.epoll.unregister(descriptor)
                os.close(descriptor)
            self.reap()
            for each in accepted:
                before = set(self.children)
                self.start(each)
                for child in set(self.children) - before:
                    listener.epoll.register(os.pidfd_open(child), select.EPOLLIN)
