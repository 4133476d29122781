"""A change in progress: the supervisor's state before it, to which the supervisor returns if the change fails.

A change replaces all workers by those of the next generation (HUP, or a changed source file):

    begin_change() ──▶ Change ──┬─ the next generation serves ──▶ end_complete_change()
                                ├─ one of it cannot start ──────▶ undo_change(): factory, slots and span as before
                                └─ another valid configuration ─▶ begin_change(): its workers replace those to come

A further configuration that has an error leaves the change in progress alone. A valid one does not wait for it: the
import of a new worker may hang, and then only another configuration helps. If the second one fails as well, the
supervisor returns to the configuration of the workers that serve.

Read next: supervisor.py; worker_slots.py; worker_table.py, the states of a worker during a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ewe.config.count_range import CountRange
    from ewe.server.processor_factory import ProcessorFactory


class Change(NamedTuple):
    """The state before a change.

    factory: a copy, with the configuration of the workers that serve. slots: the numbers of the slots in use. span:
    the limits for the number of workers.
    """

    factory: ProcessorFactory
    slots: frozenset[int]
    span: CountRange
