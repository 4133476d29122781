"""The main process's side of suexecme: orders wait here, users take turns, and each order has a deadline.

suexecme carries out one order at a time, and the kernel holds only a few messages between the two processes.
Therefore only a few orders are on their way (IN_FLIGHT), and all others wait here, in a queue for each user. The
users take turns: a flood of one user's orders delays another user's single order by the few that are on their way.

An order that has waited for `patience` is answered here, with 503. An order that suexecme has and does not answer
means that suexecme hangs, for example in a file system whose server does not answer: then the main process ends,
and the supervisor replaces both.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ewe.xswitch import channel

if TYPE_CHECKING:
    from ewe.xswitch.settings import Settings
    from ewe.xswitch.switch.loop import Loop

Answered = Callable[[dict[str, Any]], None]

IN_FLIGHT = 4  # orders that suexecme has and has not answered
SILENT_SECONDS = 5.0  # the least time that suexecme may take to answer an order
NO_ANSWER = "suexecme does not answer"


class Order(NamedTuple):
    """One order.

    given: descriptors that suexecme receives with it; they are closed here once they are sent, or not needed.
    then: called with the answer. wanted: returns False if the order may be dropped without an answer. until: when
    the order has waited for `patience`.
    """

    message: dict[str, Any]
    given: Sequence[socket.socket | int]
    then: Answered
    wanted: Callable[[], bool]
    until: float

    def descriptors(self) -> list[int]:
        return [each if isinstance(each, int) else each.fileno() for each in self.given]

    def close(self) -> None:
        for each in self.given:
            os.close(each) if isinstance(each, int) else each.close()

    def refuse(self, cause: str) -> None:
        """Answer it without suexecme."""
        if self.wanted():
            self.then({"refused": cause, "status": 503})


def always() -> bool:
    return True


class Orders:
    """All orders that wait for suexecme, and those that suexecme has."""

    def __init__(self, sock: socket.socket, settings: Settings, loop: Loop) -> None:
        sock.setblocking(False)
        self.loop = loop
        self.socket = sock
        self.settings = settings
        self.queues: dict[str, deque[Order]] = {}  # user -> orders; the user whose turn is next comes first
        # Pids of engines that suexecme is to kill. These orders come before all others.
        self.to_kill: deque[int] = deque()
        # id -> order, and when it was sent; the oldest first
        self.flying: dict[int, tuple[Order, float]] = {}
        self.sent = 0

    def ask(
        self,
        user: str,
        message: dict[str, Any],
        then: Answered,
        given: Sequence[socket.socket | int] = (),
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Send an order in its user's turn, and call `then` with the answer."""
        queue = self.queues.setdefault(user, deque())
        order = Order(message, given, then, wanted, time.monotonic() + self.settings.patience)
        if len(queue) >= self.settings.max_queue:
            order.close()
            self.loop.call_soon(order.refuse, f"suexecme has {len(queue)} orders of this user to carry out")
            return
        queue.append(order)
        self.dispatch()

    def kill_engine(self, pid: int) -> None:
        """Have suexecme kill an engine, and what it has left behind."""
        self.to_kill.append(pid)
        self.dispatch()

    def dispatch(self) -> None:
        """Send as many orders as suexecme may have now."""
        while self.to_kill and self.send({"order": "kill", "pid": self.to_kill[0]}):
            self.to_kill.popleft()
        while self.queues and not self.to_kill and len(self.flying) < IN_FLIGHT:
            user, queue = next(iter(self.queues.items()))
            del self.queues[user]
            while queue and not queue[0].wanted():
                queue.popleft().close()
            if not queue:
                continue
            if not self.fly(queue[0]):
                self.queues = {user: queue, **self.queues}
                return
            queue.popleft()
            if queue:
                self.queues[user] = queue

    def fly(self, order: Order) -> bool:
        """Send an order; return whether there was room for it."""
        self.sent += 1
        if not self.send({**order.message, "id": self.sent}, order.descriptors()):
            return False
        order.close()
        self.flying[self.sent] = order, time.monotonic()
        return True

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Send a message; return whether there was room for it. If suexecme is gone, the message is dropped."""
        try:
            channel.send(self.socket, message, descriptors)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def answered(self, message: dict[str, Any]) -> None:
        """Pass an answer on to the caller that waits for it."""
        order, _ = self.flying.pop(message["id"])
        order.then(message)
        self.dispatch()

    def tick(self, now: float) -> bool:
        """Refuse orders that have waited too long; return whether suexecme still answers.

        Called a few times a second.
        """
        late: list[Order] = []
        for user, queue in list(self.queues.items()):
            while queue and queue[0].until < now:
                late.append(queue.popleft())
            if not queue:
                del self.queues[user]
        for order in late:
            order.close()
            order.refuse(f"{NO_ANSWER}: {self.settings.patience:g} s (patience)")
        self.dispatch()
        oldest = next((sent for _, sent in self.flying.values()), now)
        return now - oldest < max(self.settings.patience, SILENT_SECONDS)

    def give_up(self) -> None:
        """Refuse all orders: suexecme is gone, or is being replaced."""
        sent = [order for order, _ in self.flying.values()]
        waiting = [order for queue in self.queues.values() for order in queue]
        self.flying.clear()
        self.queues.clear()
        for order in waiting:
            order.close()
        for order in (*sent, *waiting):
            order.refuse(NO_ANSWER)
