"""Conversations: the coroutines that a processor runs, and their start and stop.

A processor decides which thread or process runs a conversation, and when. It does not know HTTP. This module
combines the layers between an accepted connection and converse():

    processor                          Conversations
    ---------                          -------------
    before the first connection:       start(): start the ASGI applications; return why one cannot start, or ""
    a connection, as a stream: ──────▶ of(stream) ─┬─ converse()             HTTP from the first byte
                                                   ├─ converse_securely()    the TLS handshake, then HTTP
                                                   └─ converse_behind_proxy()   a PROXY header, then one of the two
    a connection above the limit:      refusal: the bytes to send; is_trusted(): is the client exempt?
    after the last connection:         stop(): stop the applications

A model that has an event loop runs start() and stop() on it. For all other models the loop of the applications runs
in a separate thread (streams/loops.py).

Possible failures: a forked child does not have the thread of the applications (Fork.start_conversations).

Read next: conversation.py; processors/base.py, which calls this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ewe.conversation import BUSY, converse, converse_behind_proxy, converse_securely

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.site import Site
    from ewe.streams.base import Stream
    from ewe.streams.flag import Flag

    Run = Callable[[Coroutine[Any, Any, Any]], Any]  # runs a coroutine on a loop to its end


class Conversations:
    """The conversations with the clients of one site, under one configuration.

    refusal: the response to a connection above the limit; empty for TLS, since no response can be sent before the
    handshake. computes_first: a conversation computes, or blocks, before its first request. It should therefore not
    begin in a thread for which others wait.
    """

    def __init__(self, site: Site, config: Config) -> None:
        self.site = site
        self.config = config
        self.computes_first = site.tls is not None
        self.refusal = b"" if self.computes_first else BUSY
        self.begin: Callable[[Stream, Site], Coroutine[Any, Any, None]]
        if config.proxy_protocol:
            self.begin = converse_behind_proxy
        else:
            self.begin = converse if site.tls is None else converse_securely

    def of(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a stream. It is the same under every model."""
        return self.begin(stream, self.site)

    def is_trusted(self, client: str) -> bool:
        """Return whether a client address is that of a trusted proxy, which may open any number of connections."""
        return self.site.proxies is not None and client in self.site.proxies.networks

    def requested_bytes(self, head: bytes, checked: int) -> tuple[int | None, int]:
        """Return the size of the file that a head asks for: see ewe.requested_bytes."""
        from ewe.requested_bytes import requested_bytes

        return requested_bytes(self.site, head, checked)

    def start(self, asked_to_finish: Flag, run: Run | None = None) -> str:
        """Start the ASGI applications; return one line why one cannot start, or "".

        asked_to_finish: a stop, which ends the wait for the applications. run: runs a coroutine on the model's own
        event loop; None if the model has none.
        """
        if not self.site.applications:
            return ""
        from ewe.gateway.asgi import start_all

        if run is None:
            from ewe.streams.loops import LoopThread

            try:
                run = LoopThread.of_this_process(self.config.loop).run
            except (ImportError, OSError) as reason:  # uvloop is not installed; the system starts no thread
                return f"the event loop of the ASGI applications cannot start: {reason} (loop)"
        failure: str = run(start_all(self.site.applications, asked_to_finish))
        return failure

    def stop(self, asked_to_abort: Flag, run: Run | None = None) -> None:
        """Stop the applications that start() or a conversation has started in this process. run: as in start()."""
        if "ewe.gateway.asgi" not in sys.modules:  # no application can have been started
            return
        from ewe.gateway.asgi import stop_all

        if run is not None:
            run(stop_all(self.config.grace, asked_to_abort))
            return
        from ewe.streams.loops import LoopThread

        loop = LoopThread.existing()
        if loop is not None:
            loop.run(stop_all(self.config.grace, asked_to_abort))
            loop.close()
