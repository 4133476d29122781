"""Pool: a fixed number of threads for any number of connections.

A thread for each connection is wasteful, since most connections wait most of the time. A pool has few threads
(workers), started once, and a queue of conversations that can go on:

    main thread: epoll over the listening sockets and the parked connections
        │                                        │ accepted: start the conversation, which waits for its request
        │ ready                                  ▼
        │                                      parked
        ▼                                        ▲ park: the client is silent, or does not read
      queue ──▶ worker 1: run a conversation ────┤
            ──▶ worker 2: ... until it must wait │
            ──▶ worker N                         └─▶ end: release

The lesson is what a worker does when its client makes it wait. The setting `parking` has three answers:

- never: the worker waits. Five silent clients stop a pool of five: the EWE of 2006. The main thread queues accepted
  connections as blocking streams, and hold() runs their conversations.
- idle: between two requests the connection is parked and the worker takes another. A client that sends its request
  slowly still holds a worker. Apache's event MPM began like this.
- always: the connection is parked in every wait for the client, so that a slow client holds no worker.

A conversation is a coroutine, so parking is cheap: the coroutine object with its local variables is all that must
be kept, and send(None) goes on where it paused, in any thread. Where it waits meanwhile is in pool_parking.py.

What can go wrong, and where it is prevented:

- A few fast clients never wait and keep all workers. With parking = always, a conversation that has handled SHARE
  bytes joins the end of the queue.
- A conversation computes before its first request: the handshake of TLS. The main thread runs conversations only to
  their first wait, and leaves such a one to a worker (computes_first).
- A program of a CGI request holds its worker. Parking is for clients, and for the servers behind a proxy.

Read next: pool_parking.py; streams/pool.py for the stream that pauses; event.py, where one thread is enough.
"""

from __future__ import annotations

import time
from _thread import start_new_thread
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ewe import logger
from ewe.processors.base import Processor
from ewe.processors.pool_parking import Parking, Task
from ewe.streams.base import Stream, Want
from ewe.streams.listener import ACCEPTS
from ewe.streams.pool import PoolStream

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.streams.listener import Accepted, Listener

LOOK = 0.25  # seconds between two looks at the deadlines of parked connections


class Pool(Processor):
    """Runs conversations in config.poolthreads workers.

    Accepting pauses while config.queue conversations, new or resumed, are in the queue.
    """

    name = "pool"
    many_threads = True
    ceiling = 4000

    def __init__(self, site: Any, config: Config) -> None:
        super().__init__(site, config)
        self.queue: SimpleQueue[Task | Stream | None] = SimpleQueue()
        self.parking = Parking(self.queue)
        self.parks = config.parking != "never"

    @classmethod
    def idle_holds(cls, config: Config) -> bool:
        return config.parking == "never"

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        return config.poolthreads > 1

    @classmethod
    def words(cls, config: Config) -> str:
        return f"a pool of {config.poolthreads} threads, parking {config.parking}"

    def serve(self, listener: Listener) -> None:
        threads = self.start()
        if not threads:
            return
        if self.parks:
            self.serve_parked(listener)
        else:
            while not listener.closed:
                accepted = self.next(listener)
                if accepted is not None:
                    self.queue.put(self.meet(accepted))
        self.drain()
        for _ in range(threads):
            self.queue.put(None)

    def start(self) -> int:
        """Start the workers; return how many started: the system may refuse threads."""
        for number in range(self.config.poolthreads):
            try:
                start_new_thread(self.work, ())
            except RuntimeError as reason:
                logger.errors.error(
                    f"{number} of {self.config.poolthreads} threads run (poolthreads): {reason}"
                )
                return number
        return self.config.poolthreads

    def has_room(self) -> bool:
        return self.queue.qsize() < self.config.queue and super().has_room()

    # The main thread

    def serve_parked(self, listener: Listener) -> None:
        """Accept connections, and queue the parked conversations that can go on."""
        looked = time.monotonic()
        self.parking.open(listener)
        while not listener.closed or self.live:
            refuses = self.config.overload == "refuse"
            accepted, ready = listener.wait(LOOK, ACCEPTS if refuses or self.has_room() else 0)
            for descriptor in ready:
                self.parking.ready(descriptor)
            for each in accepted:
                if self.has_too_many(each.client[0]):
                    self.refuse(each, "connections-per-client")
                elif refuses and not self.has_room():
                    self.refuse(each, "connections, queue")
                else:
                    self.begin(each)
            now = time.monotonic()
            if now - looked >= LOOK:
                looked = now
                self.parking.expire(now)

    def begin(self, accepted: Accepted) -> None:
        """Start a conversation and run it to its first wait, where it parks; a worker does it if it computes."""
        stream = PoolStream(
            accepted.socket, accepted.client, accepted.server, self.config, self.config.parking == "always"
        )
        self.register(stream)
        task = Task(stream, self.converse(stream))
        if self.conversations.computes_first:
            self.queue.put(task)  # the main thread must not compute, or wait in recv(2) (parking = idle)
        else:
            self.advance(task)

    # The workers

    def work(self) -> None:
        """Run the conversations of the queue, in a worker, until the queue yields None."""
        while (entry := self.queue.get()) is not None:
            if not self.listener.accepting:
                self.listener.wake()  # the queue has room again, so the main thread may accept
            if isinstance(entry, Task):
                self.advance(entry)
            else:
                # parking = never: the entry is a blocking stream
                self.hold(entry)

    def advance(self, task: Task) -> None:
        """Run a conversation until it parks or ends."""
        try:
            if task.error is None:
                wait = task.conversation.send(None)
            else:
                error, task.error = task.error, None
                wait = task.conversation.throw(error)
        except StopIteration:
            self.release(task.stream)
        except Exception:
            logger.errors.exception(f"a conversation with {task.stream.client[0]} failed")
            self.release(task.stream)
        else:
            if wait.want is Want.TURN:
                self.queue.put(task)
            elif not self.parking.park(task, wait):
                self.release(task.stream)
