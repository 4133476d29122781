"""Fork: a process for each connection.

fork(2) makes a child that is a copy of the parent, with the open connection. The child runs the conversation and
exits. The parent closes its copy of the connection and accepts the next one:

    parent: accept A ─▶ fork ─▶ close A ─▶ accept B ─▶ fork ─▶ close B ─▶ ... ─▶ SIGCHLD: reap child A ─▶ ...
                         │                              │                         ▲
                         │                              └─▶ child B: conversation ─▶ ...
                         └─▶ child A: conversation ─▶ exit ───────────────────────┘

Memory is copied only when one side writes to it (copy-on-write), but the page tables are copied at once. A fork
costs more the larger the parent is: the parent imports little, and gc.freeze() keeps the garbage collector from
writing to, and so copying, every page of the inherited heap.

Processes share no memory after the fork. A conversation that crashes or leaks memory affects only its own client.
The files that a child adds to its cache are lost when the child exits.

Possible failures, and where each is prevented:

- A child that has ended stays a zombie until its parent reads the exit status. SIGCHLD wakes the listener: reap().
- A stop must reach the children: signal_children() passes signals on. A signal would be lost if it came before the
  parent has recorded the child, or before the child has installed its handlers. Signals are blocked until then.
- A child inherits every descriptor. A child that kept the listening socket would occupy the port after the parent
  has ended. A child that kept the wake pipe could read wake-ups meant for the parent. be_child() closes both.
- Many clients connect in one moment. Each child that runs takes processor time from the parent (docs/speed.md).
- A child that is killed leaves its programs behind. The kernel makes the parent adopt them (ewe.gateway.orphans).

Read next: prefork.py, which forks before clients connect.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without enums: a child copies fewer pages
import gc
import os
from typing import TYPE_CHECKING

from ewe import logger
from ewe.gateway import orphans
from ewe.processors.base import Processor

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.listener import Accepted, Listener

CHILD_SIGNALS = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1}
ABORTED = 4  # exit status of a child whose conversation was aborted


class Fork(Processor):
    """Forks a child for each connection, up to the connection limit."""

    name = "fork"
    many_processes = True
    worker_method = "be_child"
    runs_at_once = True  # the child registers its connection
    connection_limit = 256
    supervised = False  # this model starts its processes itself

    @classmethod
    def description(cls, config: Config) -> str:
        return "a process per connection"

    def __init__(self, conversations: Conversations, config: Config) -> None:
        super().__init__(conversations, config)
        self.children: dict[int, str] = {}  # pid -> client address, if it is counted

    def serve(self, listener: Listener) -> None:
        """Fork a child for each connection; return once the listener is closed and every child has ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the signal wakes the listener
        orphans.adopt_orphans()
        gc.collect()
        # Without this the collector would write to every page of the heap in every child, and so copy the heap.
        gc.freeze()
        while not listener.closed or self.children:
            accepted = self.next_connection(listener)
            self.reap()
            if accepted is not None:
                self.start(accepted)

    def limit_reached(self) -> str:
        """Return the setting whose limit leaves no room for another child; "" if there is room."""
        return "" if len(self.children) < self.connection_limit else "connections"

    def unfinished(self) -> int:
        """Return the number of children, since each runs one conversation; in a child, that of live streams."""
        return len(self.children) or super().unfinished()

    def start(self, accepted: Accepted) -> None:
        """Fork a child for a connection; in the child this call never returns.

        Signals stay blocked until the child is registered and has installed its handlers, so none is lost.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)
        try:
            child = os.fork()
            if child == 0:
                try:
                    self.be_child(accepted)
                except Exception:
                    logger.errors.exception(f"the child for {accepted.client[0]} failed")
                finally:
                    os._exit(ABORTED if self.aborted else 0)
            counted_address = accepted.client[0] if self.config.connections_per_client else ""
            self.children[child] = counted_address
        except OSError as reason:
            logger.errors.error(f"cannot fork: {reason.strerror}")
            return self.refuse(accepted, "a fork failed")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)
        if counted_address:
            self.clients[counted_address] += 1
        accepted.socket.close()
        if self.stopping:  # a signal came before this child was in `children`
            stop = signal.SIGTERM if self.finishing else signal.SIGHUP
            self.signal_children(signal.SIGQUIT if self.asked_to_abort.raised else stop)

    def be_child(self, accepted: Accepted) -> None:
        """Run one conversation, in the child, after closing the parent's sockets and pipes."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.listener.leave()
        self.refused.clear()
        self.children.clear()
        self.max_served = self.aborted = 0
        stream = self.stream_of(accepted)
        signal.signal(signal.SIGHUP, lambda *_: self.mark_last())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)
        try:
            self.run(stream)
        finally:
            self.stop_conversations()

    def start_conversations(self) -> str:
        """Start nothing: a child does not inherit the thread of the applications, and starts its own."""
        return ""

    def reap(self) -> None:
        """Read the exit status of each child that has ended."""
        for child, status in orphans.reap(self.children):
            self.uncount(self.children.pop(child))
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                orphans.kill_orphans(self.children)
            self.aborted += code == ABORTED
            if code not in (0, ABORTED):
                logger.errors.warning(
                    f"child {child} ended by {f'signal {-code}' if code < 0 else f'status {code}'}"
                )

    def retire(self) -> None:
        """Stop accepting, and have each child close its connection after the next exchange (SIGHUP)."""
        super().retire()
        self.signal_children(signal.SIGHUP)

    def adopt(self, conversations: Conversations, config: Config) -> None:
        """Use another configuration for new children; the others close after their next exchange (SIGHUP)."""
        super().adopt(conversations, config)
        self.signal_children(signal.SIGHUP)

    def finish(self) -> None:
        """Stop accepting, and have the children end their exchanges in progress (SIGTERM)."""
        super().finish()
        self.signal_children(signal.SIGTERM)

    def abort(self) -> None:
        """Stop accepting, and have the children abort their conversations (SIGQUIT)."""
        super().abort()
        self.signal_children(signal.SIGQUIT)

    def signalled(self, signum: int) -> None:
        """Pass a signal on to the children."""
        self.signal_children(signum)

    def signal_children(self, signum: int) -> None:
        """Send a signal to all children."""
        for child in list(self.children):
            try:
                os.kill(child, signum)
            except ProcessLookupError:
                pass  # reap() has just read the child's status, and will remove the child from `children`
