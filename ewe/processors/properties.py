"""The properties of a model: the server reads them from the model's class before it makes a processor.

They say how the conversations of a model are distributed over threads and processes:

    may two run at once?           many_threads, in one process      many_processes, in several
    what does an idle one occupy?  idle_occupies_worker, occupied_by_idle(config)
    how many processes serve?      workers, may_grow, supervised, range_of_workers(config)

A class method answers a question to which the configuration belongs. The supervisor asks for the number of workers,
and the features ask whether several conversations may reach them at once.

Read next: accounting.py; base.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.count_range import CoreCount, CountRange, range_of
from ewe.processors.seats import Seat

if TYPE_CHECKING:
    from ewe.config.settings import Config


class ModelProperties:
    """The class attributes of a model. Each has a default, and a model overrides those that differ.

    many_threads and many_processes mean the same as multithread and multiprocess in PEP 3333.
    """

    name = ""
    many_threads = False  # may two conversations run in this process at once?
    many_processes = False  # may another process be running a conversation at the same time?
    worker_method = ""  # of a thread or a forked child, from its begin to its end: for the trace
    runs_at_once = False  # does the thread that accepts a connection run its conversation at once?
    idle_occupies_worker = True  # does an idle connection occupy a thread or a process?
    connection_limit = 1  # open connections in one process, unless config.connections says otherwise
    workers = CountRange(1)  # processes that the supervisor keeps, unless config.workers says otherwise
    may_grow = False  # may their number be a range? Then each worker says in its seat whether it is idle
    seat = Seat()
    supervised = True  # may there be more than one worker process?
    traces_itself = False  # does it write the events of EWE_TRACE (ewe.server.trace) itself?
    needs_xswitch = False  # does it need its own X-Switch beside it (ewe.server.xswitch_process)?

    @classmethod
    def occupied_by_idle(cls, config: Config) -> bool:
        """Return whether an idle connection occupies a worker under this configuration."""
        return cls.idle_occupies_worker

    @classmethod
    def calls_at_once(cls, config: Config) -> bool:
        """Return whether two conversations of one process may be in Stream.call() at once."""
        return cls.many_threads

    @classmethod
    def processes_at_once(cls, config: Config) -> bool:
        """Return whether several processes run conversations under this configuration."""
        if cls.supervised:
            return cls.range_of_workers(config).most > 1
        return cls.many_processes

    @classmethod
    def range_of_workers(cls, config: Config) -> CountRange:
        """Return how many processes the supervisor keeps under this configuration.

        workers = auto is a process for each processor. A model whose number may grow keeps its own range: each of
        its processes serves one client at a time, so the clients decide the number, and not the processors.
        """
        if not cls.supervised:
            return CountRange(1)
        wanted = config.workers
        if isinstance(wanted, CoreCount):
            return cls.workers if cls.may_grow else CountRange(int(wanted))
        return range_of(wanted or cls.workers)

    @classmethod
    def description(cls, config: Config) -> str:
        """Return the model's description for the banner."""
        return cls.name
