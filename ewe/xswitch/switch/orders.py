"""The main process's side of suexecme: orders wait in queues, users take turns, and each order has a deadline.

suexecme carries out one order at a time, and the kernel buffers only a few messages between the two processes. Only
a few orders are therefore in flight (MAX_UNANSWERED), and all others wait here, in a queue for each user. The users
take turns: a flood of one user's orders delays another user's single order only by the few orders in flight.

An order that has waited for `queue-timeout` is answered here, with 503. If suexecme does not answer
an order in flight, it hangs, for example in a file system whose server does not answer. Then the main process ends,
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
    from ewe.xswitch.switch.loop import EventLoop

OnAnswer = Callable[[dict[str, Any]], None]

MAX_UNANSWERED = 4  # orders that suexecme has and has not answered
# The minimum time that suexecme has to answer an order. It may wait for a preloaded parent that hangs, for
# ANSWER_SECONDS (privileged/preloaded.py)
SILENT_SECONDS = 8.0
NO_ANSWER = "suexecme does not answer"


class Order(NamedTuple):
    """One order.

    descriptors_to_pass: suexecme receives them with the order; they are closed here once they are sent, or not
    needed. on_answer: called with the answer. is_wanted: returns False if the order may be dropped without an
    answer. expires_at: the monotonic time at which the order has waited for `queue-timeout`.
    """

    message: dict[str, Any]
    descriptors_to_pass: Sequence[socket.socket | int]
    on_answer: OnAnswer
    is_wanted: Callable[[], bool]
    expires_at: float

    def descriptor_numbers(self) -> list[int]:
        return [file if isinstance(file, int) else file.fileno() for file in self.descriptors_to_pass]

    def close_descriptors(self) -> None:
        """Close the descriptors that were to be passed: suexecme has them, or does not need them."""
        for file in self.descriptors_to_pass:
            os.close(file) if isinstance(file, int) else file.close()

    def refuse(self, cause: str) -> None:
        """Answer the order without suexecme."""
        if self.is_wanted():
            self.on_answer({"refused": cause, "status": 503})


def always_wanted() -> bool:
    return True


class Orders:
    """All orders that wait for suexecme, and those in flight."""

    def __init__(self, sock: socket.socket, settings: Settings, loop: EventLoop) -> None:
        """sock: the channel to suexecme."""
        sock.setblocking(False)
        self.loop = loop
        self.socket = sock
        self.settings = settings
        # User -> orders; the user whose turn is next comes first. A home stands for its user, "" for the site
        self.queues: dict[str, deque[Order]] = {}
        # Pids of engines that suexecme must kill. These orders come before all others.
        self.to_kill: deque[int] = deque()
        # Orders in flight: id -> order, and when it was sent; the oldest first
        self.in_flight: dict[int, tuple[Order, float]] = {}
        self.last_id = 0

    def ask(
        self,
        user: str,
        message: dict[str, Any],
        on_answer: OnAnswer,
        descriptors_to_pass: Sequence[socket.socket | int] = (),
        is_wanted: Callable[[], bool] = always_wanted,
    ) -> None:
        """Send an order (see Order) in its user's turn, or refuse it if too many orders of the user wait."""
        queue = self.queues.setdefault(user, deque())
        order = Order(
            message, descriptors_to_pass, on_answer, is_wanted, time.monotonic() + self.settings.queue_timeout
        )
        if len(queue) >= self.settings.max_queue:
            order.close_descriptors()
            # Later: the caller does not expect the answer before ask() returns.
            self.loop.call_soon(order.refuse, f"suexecme has {len(queue)} orders of this user to carry out")
            return
        queue.append(order)
        self.dispatch()

    def kill_engine(self, pid: int) -> None:
        """Make suexecme kill an engine, and its leftover processes."""
        self.to_kill.append(pid)
        self.dispatch()

    def dispatch(self) -> None:
        """Send as many orders as may be in flight."""
        while self.to_kill and self.send({"order": "kill", "pid": self.to_kill[0]}):
            self.to_kill.popleft()
        while self.queues and not self.to_kill and len(self.in_flight) < MAX_UNANSWERED:
            user, queue = next(iter(self.queues.items()))
            del self.queues[user]
            while queue and not queue[0].is_wanted():
                queue.popleft().close_descriptors()
            if not queue:
                continue
            if not self.send_order(queue[0]):
                self.queues = {user: queue, **self.queues}  # the user keeps the turn
                return
            queue.popleft()
            if queue:
                self.queues[user] = queue  # behind all other users

    def send_order(self, order: Order) -> bool:
        """Send an order and close its descriptors, which suexecme has then; return whether the channel had room."""
        self.last_id += 1
        if not self.send({**order.message, "id": self.last_id}, order.descriptor_numbers()):
            return False
        order.close_descriptors()
        self.in_flight[self.last_id] = order, time.monotonic()
        return True

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Send a message. Return False if the channel has no room: the caller then sends the message again later.

        If suexecme has ended, drop the message, and return True: no later attempt could succeed, and this process
        ends soon (Switch.on_orders()).
        """
        try:
            channel.send(self.socket, message, descriptors)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def answered(self, message: dict[str, Any]) -> None:
        """Pass an answer to the caller that waits for it, and send the next orders."""
        order, _ = self.in_flight.pop(message["id"])
        order.on_answer(message)
        self.dispatch()

    def tick(self, now: float) -> bool:
        """Refuse orders that have waited for `queue-timeout`; return whether suexecme still answers.

        Called a few times a second.
        """
        late: list[Order] = []
        for user, queue in list(self.queues.items()):
            while queue and queue[0].expires_at < now:  # the oldest order comes first
                late.append(queue.popleft())
            if not queue:
                del self.queues[user]
        for order in late:
            order.close_descriptors()
            order.refuse(f"{NO_ANSWER}: {self.settings.queue_timeout:g} s (queue-timeout)")
        self.dispatch()
        # The first order in flight is the oldest. Without one, suexecme owes no answer
        oldest_sent_at = next((sent_at for _, sent_at in self.in_flight.values()), now)
        return now - oldest_sent_at < max(self.settings.queue_timeout, SILENT_SECONDS)

    def refuse_all(self) -> None:
        """Refuse all orders: suexecme has ended, or is being replaced."""
        in_flight = [order for order, _ in self.in_flight.values()]
        waiting = [order for queue in self.queues.values() for order in queue]
        self.in_flight.clear()
        self.queues.clear()
        for order in waiting:  # those in flight were closed when they were sent
            order.close_descriptors()
        for order in (*in_flight, *waiting):
            order.refuse(NO_ANSWER)
