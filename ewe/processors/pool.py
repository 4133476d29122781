"""Pool: a few threads for any number of connections.

A thread for each connection is wasteful, since most connections wait most of the time. A pool has few threads
(workers), which start once, and a queue of conversations that can go on:

    main thread: epoll over the listening sockets and the parked connections
        │                                        │ accepted: start the conversation, which waits for its request
        │ ready                                  ▼
        │                                      parked
        ▼                                        ▲ park: the client is silent, or does not read
      queue ──▶ worker 1: run a conversation ────┤
            ──▶ worker 2: ... until it must wait │
            ──▶ worker N                         └─▶ end: release

The models differ in the behaviour of a worker whose client makes it wait. The setting `parking` has three values:

- never: the worker waits. Five silent clients stop a pool of five. The EWE of 2006 worked like this.
- idle: between two requests the connection is parked, and the worker takes another conversation. A client that
  sends its request slowly still occupies a worker. Apache's event MPM began like this.
- always: the connection is parked in every wait for the client, so that a slow client occupies no worker.

A conversation is a coroutine, so parking is cheap: send(None) resumes it where it paused, in any thread.

Possible failures, and where each is prevented:

- A few fast clients never wait and occupy all workers. With parking = always, a conversation that has handled
  TURN_BYTES joins the end of the queue.
- A conversation may compute before its first request. The main thread leaves it to a worker (computes_first).
- A CGI program occupies a worker until its request ends. The pool grows if others wait (pool_threads.py).

Read next: pool_threads.py; pool_parking.py; scheduled_pool.py, with policies; streams/pool.py; event.py.
"""

from __future__ import annotations

import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ewe import logger
from ewe.processors.base import Processor
from ewe.processors.growth import LOOK_S
from ewe.processors.pool_parking import Parking, PoolTask
from ewe.processors.pool_threads import PoolThread, PoolThreads, threads_of
from ewe.streams.base import ForeignAwait, Stream, Wait, Want
from ewe.streams.pool import PoolStream

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations
    from ewe.streams.listener import Accepted, Listener

DEADLINE_CHECK_S = 0.25  # seconds between two checks of the deadlines of parked connections


class Pool(Processor):
    """Runs conversations in as many workers as config.poolthreads says.

    The pool stops accepting while config.queue conversations, new or resumed, are in the queue.
    """

    name = "pool"
    many_threads = True
    worker_method = "work"
    connection_limit = 4000
    make_queue = SimpleQueue  # the trace and the scheduled pool have others
    task_class, stream_class = PoolTask, PoolStream

    def __init__(self, conversations: Conversations, config: Config) -> None:
        super().__init__(conversations, config)
        # A PoolTask is a conversation that can go on. A Stream (parking = never) is an accepted connection: a
        # worker runs its conversation to the end. None ends a worker.
        self.queue: SimpleQueue[PoolTask | Stream | None] = self.make_queue()
        self.parking = Parking(self.queue)
        self.parks = config.parking != "never"
        self.threads = PoolThreads(self.work, self.queue, threads_of(config), self.resized)

    @classmethod
    def occupied_by_idle(cls, config: Config) -> bool:
        """Return whether an idle connection occupies a worker: only with parking = never."""
        return config.parking == "never"

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        """Return whether the pool may have more than one worker."""
        return threads_of(config).most > 1

    @classmethod
    def description(cls, config: Config) -> str:
        return f"a pool of {threads_of(config)} threads, parking {config.parking}"

    def serve(self, listener: Listener) -> None:
        """Serve connections until the listener is closed and every conversation has ended; then end the workers."""
        if not self.threads.start():
            return
        if self.parks:
            self.serve_parked(listener)
        else:
            while not listener.closed:
                if (accepted := self.next_connection(listener, self.threads.wait_s())) is not None:
                    self.queue.put(self.stream_of(accepted))
                self.threads.adjust_threads(time.monotonic())
        self.drain()
        self.threads.end()

    def adopt(self, conversations: Conversations, config: Config) -> None:
        """Use another configuration for new connections, and its `poolthreads` from now on."""
        super().adopt(conversations, config)
        self.threads.growth.span = threads_of(config)

    def workers_now(self) -> int:
        """Return how many workers run now."""
        return self.threads.count

    def limit_reached(self) -> str:
        """Return the setting whose limit leaves no room for another connection; "" if there is room."""
        return super().limit_reached() if self.queue.qsize() < self.config.queue else "queue"

    def waiting(self) -> int:
        """Return the length of the queue."""
        return self.queue.qsize()

    # The main thread

    def serve_parked(self, listener: Listener) -> None:
        """Accept connections, at a limit as `overload` says, and queue the parked conversations that can go on."""
        checked_at = time.monotonic()
        self.parking.open(listener)
        while not listener.closed or self.live:
            refuses = self.config.overload == "refuse"
            # While conversations wait for a worker, the pool may have to grow.
            timeout_s = LOOK_S if self.queue.qsize() else DEADLINE_CHECK_S
            max_accepts = listener.accepts_at_once if refuses or not self.limit_reached() else 0
            if not refuses:  # a burst of clients must not exceed the limit
                max_accepts = min(max_accepts, self.connection_limit - len(self.live))
            accepted, ready = listener.wait(timeout_s, max_accepts)
            for descriptor in ready:
                self.parking.handle_ready(descriptor)
            for each in accepted:
                if self.has_too_many(each.client[0]):
                    self.refuse(each, "connections-per-client")
                elif refuses and (limit := self.limit_reached()):
                    self.refuse(each, limit)
                else:
                    self.begin(each)
            now = time.monotonic()
            if now >= self.threads.look_from and not listener.closed:
                self.threads.adjust_threads(now)
            if now - checked_at >= DEADLINE_CHECK_S:
                checked_at = now
                self.parking.expire(now)

    def begin(self, accepted: Accepted) -> None:
        """Run a new conversation to its first wait, where it parks; queue it for a worker if it computes first."""
        client, server, always = accepted.client, accepted.server, self.config.parking == "always"
        stream = self.stream_class(accepted.socket, client, server, self.config, parks_always=always)
        self.register(stream)
        task = self.task_class(stream, self.converse(stream))
        if self.conversations.computes_first:
            self.queue.put(task)  # the main thread must not compute, or wait in recv(2) (parking = idle)
        else:
            self.advance(task)

    # The workers

    def work(self, thread: PoolThread) -> None:
        """Run the queued conversations, in a worker, until the queue yields None."""
        while (entry := self.queue.get()) is not None:
            thread.taken += 1
            thread.is_busy = True
            if not self.listener.accepting:
                self.listener.wake()  # the queue has room again, so the main thread may accept
            if isinstance(entry, PoolTask):
                self.advance(entry)
            else:  # parking = never: the entry is a blocking stream
                self.run(entry)
            thread.is_busy = False

    def advance(self, task: PoolTask) -> None:
        """Run a conversation until it parks or ends."""
        try:
            if task.error is None:
                wait = task.conversation.send(None)
            else:
                error, task.error = task.error, None
                wait = task.conversation.throw(error)
            while not isinstance(wait, Wait):
                wait = task.conversation.throw(ForeignAwait)
        except StopIteration:
            self.release(task.stream)
        except BaseException:  # otherwise the worker would end
            logger.errors.exception(f"a conversation with {task.stream.client[0]} failed")
            self.release(task.stream)
        else:
            if wait.want is Want.TURN:
                self.queue.put(task)
            elif not self.parking.park(task, wait):
                self.release(task.stream)
