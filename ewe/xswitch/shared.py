"""The main module's end of an engine that runs several requests at once, over a FastCGI connection each.

To the pool it is one engine: with room for more requests, idle once it runs none. What ends one request by force
ends the whole process, and with it the others, since nothing less ends a thread.
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import TYPE_CHECKING

from ewe.xswitch.fastcgi_link import FastCGILink
from ewe.xswitch.links import Link, how_it_ended

if TYPE_CHECKING:
    from ewe.xswitch.main import Switch
    from ewe.xswitch.pool import Key, Waiter
    from ewe.xswitch.task import Task


SOON = 0.05  # seconds
LOOK = 0.2  # seconds between two looks at a request whose client has left


class Connection(FastCGILink):
    """One connection to such an engine."""

    def __init__(self, engine: SharedLink, data: socket.socket) -> None:
        super().__init__(engine.switch, engine.key, data, -1)
        self.engine = engine
        self.has_body = False

    def begin(self, task: Task) -> None:
        """Write the head, with the end of an empty body: Jetty closes if that is not there when it answers."""
        self.has_body = task.params.get(b"CONTENT_LENGTH", b"") not in (b"", b"0")
        if self.has_body:
            super().begin(task)
        else:
            task.take_input()
            head = self.requester.begin(task.environment().items(), keep=True)
            self.outbox.send(head + self.requester.input(b""))

    def body(self, data: bytes) -> None:
        if self.has_body:
            super().body(data)

    def done(self, output: bytes, status: int, last: bool = False) -> None:
        """After a body the connection is not used again: Jetty closes it where the servlet has not read all."""
        super().done(output, status, last or self.has_body)

    def pause(self) -> None:
        super().pause()
        self.engine.set_deadline()

    def resume(self) -> None:
        super().resume()
        self.engine.set_deadline()

    def set_time(self, seconds: float) -> None:
        super().set_time(seconds)
        self.engine.set_deadline()

    def on_data(self) -> None:
        if self.engine.pid:
            super().on_data()
        else:
            wait(self)

    def broken(self, cause: str) -> None:
        """Its process may be ending: then all of it is broken in a moment, and not the one to try again."""
        if self.task is None or self.engine.closed:
            super().broken(cause)
        else:
            self.pause()
            self.loop.call_later(SOON, self.settle, cause)

    def settle(self, cause: str) -> None:
        """Its process has not ended."""
        if not self.closed:
            super().broken(cause)

    def free(self) -> None:
        self.engine.freed(self)

    def gone(self) -> None:
        self.engine.dropped(self)

    def abandon(self) -> None:
        """It may go on until its time limit, since others need the engine.

        But Jetty's next write fails, by which a servlet that goes on writing to a client ends.
        """
        if self.task is None or self.task.front is not None:
            return  # it has ended meanwhile
        if not self.engine.pid:
            self.loop.call_later(SOON, self.abandon)
            return
        deadline = self.deadline
        self.pause()
        self.deadline = deadline
        self.engine.set_deadline()
        self.data.shutdown(socket.SHUT_RD)
        self.look_for_end()

    def look_for_end(self) -> None:
        """See whether the engine has closed the connection, on which nothing can be read any more."""
        if self.closed:
            return
        poller = select.poll()
        poller.register(self.data, 0)
        if poller.poll(0):
            if self.task is not None:
                self.task.ended = True
            self.task = None
            self.end()
        else:
            self.loop.call_later(LOOK, self.look_for_end)


def wait(link: Link) -> None:
    """Read on soon: an end before suexecme has answered means that it refuses, and its answer will say why."""
    link.pause()
    link.loop.call_later(SOON, link.resume)


class SharedLink(Link):
    """The engine. Its own data connection carries no requests; its end tells that the engine has gone."""

    def __init__(
        self, switch: Switch, key: Key, data: socket.socket, errors: int, door: int, limit: int
    ) -> None:
        """door: a descriptor (O_PATH) of its listening socket, which has no name. limit: of connections."""
        super().__init__(switch, key, data, errors)
        self.door = door
        self.limit = limit
        self.connections: set[Connection] = set()
        self.unused: list[Connection] = []

    # Requests

    def running(self) -> int:
        """Return how many requests it runs."""
        return len(self.connections) - len(self.unused)

    def has_room(self) -> bool:
        most = self.switch.settings.max_requests_of(self.key[1])
        return not self.closed and self.running() < self.limit and self.served < most

    def give(self, waiter: Waiter) -> None:
        task: Task = waiter  # type: ignore[assignment]
        try:
            connection = self.unused.pop() if self.unused else self.connect()
        except OSError as reason:
            cause = f"no connection to its engine: {reason.strerror}"
            self.broken(cause)
            task.died(cause)
            return
        if task.script != self.script:
            self.on_errors(over=True)  # what is there is of the application before
        self.count_errors()
        self.script = task.script
        self.task = task
        self.used = time.monotonic()
        connection.give(task)
        self.set_deadline()

    def connect(self) -> Connection:
        """Open one more connection. Raises OSError."""
        data = socket.socket(socket.AF_UNIX)
        try:
            data.setblocking(False)
            data.connect(f"/proc/self/fd/{self.door}")
        except OSError:
            data.close()
            raise
        connection = Connection(self, data)
        self.connections.add(connection)
        return connection

    def freed(self, connection: Connection) -> None:
        """A connection has ended its request."""
        self.unused.append(connection)
        self.ended_one()

    def dropped(self, connection: Connection) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        if connection in self.unused:
            self.unused.remove(connection)
        elif not self.closed:
            self.ended_one()

    def ended_one(self) -> None:
        """It runs one request less."""
        self.served += 1
        self.used = time.monotonic()
        self.set_deadline()
        if self.running():
            self.switch.pool.dispatch()
        else:
            self.task = None
            self.switch.pool.release(self)

    def set_deadline(self) -> None:
        """Have the pool look when the first of its requests will have taken too long."""
        self.deadline = min((connection.deadline for connection in self.connections), default=float("inf"))

    def on_data(self) -> None:
        if not self.pid:
            wait(self)
        elif self.receive() is not None:
            self.broken("the engine has ended" if self.status is None else how_it_ended(self.status))

    # Ends

    def take_tasks(self) -> list[tuple[Task, float]]:
        """Take the requests that it runs from it, each with its deadline."""
        taken = []
        for connection in self.connections:
            task, connection.task = connection.task, None
            if task is not None:
                taken.append((task, connection.deadline))
        self.task = None
        return taken

    def expire(self) -> None:
        now = time.monotonic()
        tasks = self.take_tasks()
        self.end()
        for task, deadline in tasks:
            if deadline < now:
                task.expired()
            else:
                task.died("another request took too long, and the engine was ended")

    def refused(self, status: int, cause: str) -> None:
        tasks = self.take_tasks()
        self.end()
        for task, _ in tasks:
            task.fail(status, cause)

    def broken(self, cause: str) -> None:
        tasks = self.take_tasks()
        self.end()
        for task, _ in tasks:
            task.died(cause)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.end()
        os.close(self.door)
        super().close()

    def ended(self, status: int) -> None:
        super().ended(status)
        if not self.closed:
            self.broken(how_it_ended(status))
