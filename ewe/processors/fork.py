"""Fork: a process for each connection.

fork(2) makes a child that is a copy of the parent, open connection included. The child holds the conversation and
exits; the parent closes its copy of the connection and accepts the next:

    parent: accept A ─▶ fork ─▶ close A ─▶ accept B ─▶ fork ─▶ close B ─▶ ... ─▶ SIGCHLD: reap child A ─▶ ...
                         │                              │                         ▲
                         │                              └─▶ child B: conversation ─▶ ...
                         └─▶ child A: conversation ─▶ exit ───────────────────────┘

Memory is copied only when one side writes to it (copy-on-write), but the page tables are copied at once. A fork
costs more the larger the parent is: the parent imports little, and gc.freeze() keeps the garbage collector from
writing to, and so copying, every page of the inherited heap.

Processes share nothing after the fork. A conversation that crashes, or leaks memory, takes only its own client with
it; what it has learnt (a file in the cache) is lost with it as well.

What can go wrong, and where it is prevented:

- A child that has ended stays a zombie until its parent reads the exit status. SIGCHLD wakes the listener, reap()
  reads.
- A stop must reach the children: the parent passes signals on (tell). A signal that comes between fork(2) and the
  moment when the child is known to the parent and has its handlers would be lost, so signals are blocked meanwhile.
- A child inherits every descriptor. A child that kept the listening socket would hold the port after the
  parent has ended, and one that kept the wake pipe could be woken for the parent: be_child() closes them.
- A child that is killed leaves its programs behind. The kernel gives them to the parent (ewe.gateway.orphans).

Read next: prefork.py, which forks before the clients come.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.gateway import orphans
from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Accepted, Listener

TOLD = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1}
WAS_CUT = 4  # exit status of a child whose conversation was aborted


class Fork(Processor):
    """Forks a child for each connection, up to the ceiling."""

    name = "fork"
    many_processes = True
    ceiling = 256
    supervised = False  # this model makes its processes itself

    @classmethod
    def words(cls, config: Config) -> str:
        return "a process per connection"

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.children: dict[int, str] = {}  # pid -> client address

    def serve(self, listener: Listener) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the signal wakes the listener
        orphans.adopt()
        gc.collect()
        gc.freeze()  # else the collector writes to every page of the heap in every child, and so copies it
        while not listener.closed or self.children:
            accepted = self.next(listener)
            self.reap()
            if accepted is not None:
                self.start(accepted)

    def has_room(self) -> bool:
        return len(self.children) < self.ceiling

    def unfinished(self) -> int:
        """Return how many children run, whose conversations are not in this process; in a child, its own one."""
        return len(self.children) or super().unfinished()

    def start(self, accepted: Accepted) -> None:
        """Fork a child for a connection; in the child this call never returns.

        Signals stay blocked until the child is registered and has installed its handlers, so none is lost.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
        try:
            child = os.fork()
            if child == 0:
                try:
                    self.be_child(accepted)
                except Exception:
                    logger.errors.exception(f"the child for {accepted.client[0]} failed")
                finally:
                    os._exit(WAS_CUT if self.cut else 0)
            self.children[child] = accepted.client[0]
        except OSError as reason:
            logger.errors.error(f"cannot fork: {reason.strerror}")
            return self.refuse(accepted, "a fork failed")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        if self.config.connections_per_client:
            self.clients[accepted.client[0]] += 1
        accepted.socket.close()
        if self.stopping:  # the signal came between accept and fork
            self.tell(signal.SIGTERM if self.finishing else signal.SIGHUP)

    def be_child(self, accepted: Accepted) -> None:
        """Hold one conversation, in the child, with none of the parent's descriptors left open."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.listener.leave()
        self.refused.clear()
        self.children.clear()
        self.retire_at = 0
        stream = self.meet(accepted)
        signal.signal(signal.SIGHUP, lambda *_: self.mark_last())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        try:
            self.hold(stream)
        finally:
            self.stop_conversations()

    def start_conversations(self) -> str:
        """Start nothing: a thread of the parent would not be in the children. Each child starts its own."""
        return ""

    def reap(self) -> None:
        """Read the exit status of each child that has ended."""
        for child, status in orphans.reap(self.children):
            self.uncount(self.children.pop(child))
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                orphans.end(self.children)
            self.cut += code == WAS_CUT
            if code not in (0, WAS_CUT):
                logger.errors.warning(
                    f"child {child} ended by {f'signal {-code}' if code < 0 else f'status {code}'}"
                )

    def retire(self) -> None:
        super().retire()
        self.tell(signal.SIGHUP)

    def adopt(self, site: Any, config: Config) -> None:
        super().adopt(site, config)
        self.tell(signal.SIGHUP)

    def finish(self) -> None:
        super().finish()
        self.tell(signal.SIGTERM)

    def abort(self) -> None:
        super().abort()
        self.tell(signal.SIGQUIT)

    def signalled(self, number: int) -> None:
        self.tell(number)

    def tell(self, number: int) -> None:
        """Send a signal to all children."""
        for child in list(self.children):
            try:
                os.kill(child, number)
            except ProcessLookupError:
                pass  # reap() has just read its status, and removes it next
