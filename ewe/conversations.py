"""Conversations: what a processor is given to run, as coroutines that it need not understand.

A processor decides who runs a conversation, and when. It does not know what is said in one. This module knows, and
puts together what stands between an accepted connection and converse():

    processor                          Conversations
    ---------                          -------------
    before the first connection:       start(): the applications of ASGI start; why one cannot, or ""
    a connection, as a stream: ──────▶ of(stream) ─┬─ converse()             HTTP from the first byte
                                                   ├─ converse_securely()    the TLS handshake, then HTTP
                                                   └─ converse_announced()   a PROXY header, then one of the two
    one connection too many:           refusal: the bytes to send; is_trusted(): does the limit hold for the client?
    after the last connection:         stop(): the applications end

A model that has an event loop runs start() and stop() on it. For all others the loop of the applications runs in a
separate thread (streams/loops.py).

What can go wrong: a fork. The thread of the applications would not be in the child. The fork model therefore starts
nothing in the parent, and each child starts its own applications when its client first asks for one.

Read next: conversation.py; processors/base.py, which calls all of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ewe.conversation import BUSY, converse, converse_announced, converse_securely

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.site import Site
    from ewe.streams.base import Stream
    from ewe.streams.flag import Flag

    Run = Callable[[Coroutine[Any, Any, Any]], Any]  # runs a coroutine on a loop to its end


class Conversations:
    """The conversations with the clients of one site, under one configuration.

    refusal: what a client is sent if there is no room for its connection; over TLS nothing, since before the
    handshake there is no way to say it. computes_first: a conversation computes before its first request, or waits
    in place, so it should not begin in a thread on which others wait.
    """

    def __init__(self, site: Site, config: Config) -> None:
        self.site = site
        self.config = config
        self.computes_first = site.tls is not None
        self.refusal = b"" if self.computes_first else BUSY
        self.begin: Callable[[Stream, Site], Coroutine[Any, Any, None]]
        if config.proxy_protocol:
            self.begin = converse_announced
        else:
            self.begin = converse if site.tls is None else converse_securely

    def of(self, stream: Stream) -> Coroutine[Any, Any, None]:
        """Return the conversation over a stream; every model runs the same."""
        return self.begin(stream, self.site)

    def is_trusted(self, client: str) -> bool:
        """Return whether a client address is that of a trusted proxy, which has no limit of connections."""
        return self.site.proxies is not None and client in self.site.proxies.networks

    def start(self, told_to_finish: Flag, run: Run | None = None) -> str:
        """Start what runs beside the conversations; return in one line why it cannot start, or "".

        told_to_finish: a stop that comes meanwhile ends the start. run: of the model's own event loop, if it has
        one.
        """
        if not self.site.applications:
            return ""
        from ewe.gateway.asgi import start_all

        if run is None:
            from ewe.streams.loops import LoopThread

            run = LoopThread.of_this_process(self.config.loop).run
        failure: str = run(start_all(self.site.applications, told_to_finish))
        return failure

    def stop(self, told_to_abort: Flag, run: Run | None = None) -> None:
        """Stop what start(), or a conversation, has started in this process. run: as of start()."""
        if "ewe.gateway.asgi" not in sys.modules:
            return
        from ewe.gateway.asgi import stop_all

        if run is not None:
            run(stop_all(self.config.grace, told_to_abort))
            return
        from ewe.streams.loops import LoopThread

        loop = LoopThread.existing()
        if loop is not None:
            loop.run(stop_all(self.config.grace, told_to_abort))
            loop.close()
