"""The worker processes of a server, and the slots in which they run. This file sends no signal and forks nothing.

A slot is a number from 0 on. While the server runs, each slot in use has a worker, or a planned start. Only during
a change it may have two workers, one of each generation:

    slots_in_use    0                 1                 2
    workers         41, SERVING       42, SERVING       43, RETIRING         generation 1
                    51, SERVING       52, COMING        (due in 0.5 s)       generation 2, the next one

A worker that retires occupies no slot, but it has a process id and a seat until it is reaped. X-Switch is a child
like a worker, in the slot XSWITCH. It has no seat, and belongs to no generation.

Possible failures: a fork may be refused, or a worker may die. Its slot stays in use, with a planned start
(child_slots.py). A slot that is given up loses its planned start, too: otherwise a worker would start in it later.

Read next: worker_table.py, the states of one worker; growing.py, how many slots there should be; supervisor.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import count, islice
from typing import TYPE_CHECKING

from ewe.child_slots import LONGEST_S, ChildSlot
from ewe.server.growing import START_S, Growing
from ewe.server.worker_table import COMING, FIRST, RETIRING, SERVING, XSWITCH, WorkerProcess

if TYPE_CHECKING:
    import socket

    from ewe.config.count_range import CountRange
    from ewe.server.worker_table import State


class WorkerSlots:
    """The workers of a server by process id, and its slots by number.

    slots_in_use: the slots that have, or will have, a worker. generation: the newest one that serves. growing:
    decides how many slots are in use.
    """

    def __init__(self, sockets: list[socket.socket], span: CountRange) -> None:
        """span: the limits for the number of workers, which begins with the lower one."""
        self.workers: dict[int, WorkerProcess] = {}
        self.slots: defaultdict[int, ChildSlot] = defaultdict(ChildSlot)  # also XSWITCH
        self.slots_in_use = set(range(span.least))
        self.generation = 1
        self.growing = Growing(sockets, span)

    # Workers

    def workers_in_slots(self) -> list[WorkerProcess]:
        """Return the workers that occupy a slot, sorted by process id: not X-Switch, and none that retires."""
        return sorted(
            (each for each in self.workers.values() if each.slot != XSWITCH and each.occupies_slot),
            key=lambda each: each.pid,
        )

    def has_worker_in(self, state: State) -> bool:
        """Return whether a worker is in a state."""
        return any(each.state is state for each in self.workers.values())

    def has_begun(self) -> bool:
        """Return whether a worker serves, and each of the first ones has reported or ended."""
        serving = any(each.state is SERVING for each in self.workers_in_slots())
        return serving and not self.has_worker_in(FIRST)

    def has_only_xswitch(self) -> bool:
        """Return whether X-Switch is the only child, or there is none."""
        return all(each.slot == XSWITCH for each in self.workers.values())

    def next_generation(self) -> list[WorkerProcess]:
        """Return the workers of the next generation."""
        return [each for each in self.workers_in_slots() if each.generation > self.generation]

    def is_old(self, worker: WorkerProcess) -> bool:
        """Return whether a change replaces this worker. No change replaces X-Switch."""
        return worker.slot != XSWITCH and worker.generation <= self.generation

    def next_generation_serves(self) -> bool:
        """Return whether the next generation serves in every slot, and no worker of it is still to report."""
        serving = {each.slot for each in self.next_generation() if each.state is SERVING}
        return serving.issuperset(self.slots_in_use) and not self.has_worker_in(COMING)

    def idle_workers(self) -> list[WorkerProcess]:
        """Return the workers that wait for a client; none of them if a client has waited for long beside them."""
        if not self.growing.waits_are_short():
            return []
        is_idle = self.growing.seats.is_idle
        return [each for each in self.workers_in_slots() if each.state is SERVING and is_idle(each.seat)]

    def begun_workers(self, now: float) -> list[WorkerProcess]:
        """Return the workers that serve, and those that seem to hang: they have not reported for START_S."""
        return [
            each for each in self.workers_in_slots() if each.state is SERVING or now - each.born >= START_S
        ]

    # Slots

    def free_slots(self, number: int) -> list[int]:
        """Return the first slots that are not in use."""
        return list(islice((slot for slot in count() if slot not in self.slots_in_use), max(number, 0)))

    def slots_beyond(self, most: int) -> list[int]:
        """Return the slots in use beyond a number of them: the last ones."""
        return sorted(self.slots_in_use)[most:]

    def give_up_slot(self, slot: int) -> None:
        """Use a slot no longer. Its workers are not told."""
        self.slots_in_use.discard(slot)
        self.slots[slot].due_at = None

    def use_span(self, span: CountRange) -> None:
        """Use other limits for the number of workers. Nothing starts, and no worker retires."""
        self.growing.span = span
        for slot in self.slots_beyond(span.most):
            self.give_up_slot(slot)
        self.slots_in_use.update(self.free_slots(span.least - len(self.slots_in_use)))

    def is_restarting(self) -> bool:
        """Return whether a worker has ended, or could not be forked, and its slot waits for the next one."""
        return any(self.slots[slot].due_at is not None for slot in self.slots_in_use if slot in self.slots)

    def cancel_starts(self) -> None:
        """Cancel the planned starts of workers."""
        for slot in self.slots_in_use:
            self.slots[slot].due_at = None

    def plan_missing_starts(self) -> None:
        """Plan a start in each slot without a worker: an old worker has ended while the next generation came."""
        for slot in self.slots_in_use - {each.slot for each in self.workers_in_slots()}:
            self.slots[slot].plan(LONGEST_S)

    def next_start_at(self) -> float | None:
        """Return the time.monotonic() at which the next start is due, or a retiring worker must hurry."""
        moments = [each.due_at for each in self.slots.values()]
        moments += [each.hurry_at for each in self.workers.values() if each.state is RETIRING]
        return min((each for each in moments if each is not None), default=None)

    # Growth

    def plan_growth(self) -> tuple[int, list[WorkerProcess]]:
        """Return how many workers to start, and the idle workers that are to retire; plan the next look."""
        idle = self.idle_workers()
        count = len(self.slots_in_use)
        # The slots whose worker is about to serve, or is still to be forked: each counts as an idle worker.
        starting = max(count - len(self.begun_workers(time.monotonic())), 0)
        difference = self.growing.plan_difference(count, len(idle) + starting)
        not_needed = sorted(idle, key=lambda each: -each.slot)[: max(-difference, 0)]
        return max(difference, 0), not_needed

    def may_start_more(self) -> bool:
        """Return whether another worker starts if all are busy: below the limit, and nothing hinders a start."""
        return (
            len(self.slots_in_use) < self.growing.span.most
            and not self.is_restarting()
            and self.growing.waits_are_short()
        )
