"""The resources of a server on another machine: an agent reads them there while a load runs.

A TargetWatch is a Watch (ewe_lab.bench.watch) that gets its readings from the agent. If a reading fails, all
figures are unknown, with a reason: figures of a part of a run would not describe the whole run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Second, Usage
from ewe_lab.bench.watch import Reading, Watch
from ewe_lab.machines.session import SIGN_OF_LIFE_S, Session, SshHost, printable

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_FLOAT = sys.float_info.max  # JSON may have a greater whole number, which no float can hold
WHOLE = ("processes", "threads", "voluntary", "involuntary")  # the whole numbers of each reading
SECONDS = ("run_s", "wait_s")  # the times of each reading that may be missing


def parse_reading(found: dict[str, object]) -> Reading:
    """Return the Reading in a message of an agent. Raises LabError for a value of a wrong type or below 0."""
    cpu, memory, descriptors = found.get("cpu"), found.get("memory"), found.get("descriptors")
    counts, times_s = [found.get(name) for name in WHOLE], [found.get(name) for name in SECONDS]
    if (
        not is_figure(cpu)
        or not (memory is None or is_figure(memory))
        or not all(each is None or is_figure(each) for each in times_s)
        or not (descriptors is None or is_count(descriptors))
        or not all(map(is_count, counts))
    ):
        raise LabError("the figures that its agent sent cannot be read")
    # They are numbers, as was checked; str() is for mypy, which does not know that
    processes, threads, voluntary, involuntary = (int(str(count)) for count in counts)
    run_s, wait_s = (None if each is None else float(str(each)) for each in times_s)
    return Reading(
        time.monotonic(), float(cpu), processes=processes, threads=threads, descriptors=descriptors, memory=memory,
        voluntary=voluntary, involuntary=involuntary, run_s=run_s, wait_s=wait_s,
    )  # fmt: skip


def is_figure(value: object) -> TypeGuard[float]:
    """Whether a value of a message is a number from 0 on that a float can hold."""
    return isinstance(value, int | float) and 0 <= value <= MAX_FLOAT


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of a message is a whole number from 0 on that a float can hold."""
    return isinstance(value, int) and is_figure(value)


class TargetWatch(Watch):
    """Watches the server at a port of a machine. core: of the load here.

    unknown_because: the reason if the figures are unknown, else "".
    """

    def __init__(self, host: SshHost, port: int, core: int | None, ssh: Sequence[str]) -> None:
        super().__init__(pid=0, server_core=None, load_core=core)  # the server's processes are not here
        self.host, self.port, self.ssh = host, port, ssh
        self.session: Session | None = None
        self.unknown_because = ""
        self.is_closing = threading.Event()
        self.server_names = ""  # the names of the processes that the agent reads

    def __enter__(self) -> TargetWatch:
        """Start the agent on the target's machine; if that fails, all figures are unknown, and the load goes on."""
        if self.unknown_because:
            return self
        try:
            self.session = Session(self.host, ssh=self.ssh)
            ready = self.session.begin({"role": "reader", "port": self.port})
            self.server_names = printable(str(ready.get("ready", "")))
            threading.Thread(target=self.keep_alive, daemon=True).start()
        except LabError as reason:
            self.make_unknown(str(reason))
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the readings and the thread of keep_alive(), then close the session."""
        super().__exit__(*exception)
        self.is_closing.set()
        with self.lock:  # keep_alive() holds the lock while it sends
            if self.session:
                self.session.close()

    def keep_alive(self) -> None:
        """Send the agent an empty line every SIGN_OF_LIFE_S seconds, until the watch is closed.

        An agent ends after some seconds of silence, since its lab may have crashed. The readings alone are not
        enough: there are none during the warm-up. If the agent takes no line, all figures become unknown.
        """
        while not self.is_closing.wait(SIGN_OF_LIFE_S):
            with self.lock:
                try:
                    if self.session and not self.is_closing.is_set():
                        self.session.send(b"\n", time.monotonic() + SIGN_OF_LIFE_S)
                except LabError as reason:
                    self.make_unknown(str(reason))
                    return

    def make_unknown(self, why: str) -> None:
        """Make all figures unknown. why: the reason; if there are several, the first one is kept."""
        self.unknown_because = self.unknown_because or why

    def sentence(self) -> str:
        """Return the note for the table: the processes that are read, or why the figures are unknown."""
        if self.unknown_because:
            return f"CPU and memory of the server at port {self.port} are unknown: {self.unknown_because}."
        machine = f" on {self.host}" if self.host.name else ""
        return f"CPU and memory are those of {self.server_names} at port {self.port}{machine}."

    def take_reading(self) -> None:
        """Add a reading of the agent; a reading of the time alone if the figures are unknown."""
        with self.lock:
            if self.session and not self.unknown_because:
                try:
                    found = parse_reading(self.session.ask("r"))
                    if self.readings and found.cpu < self.readings[-1].cpu:  # a total cannot become smaller
                        raise LabError("a process of the server ended, and its CPU time is lost")
                    self.readings.append(found)
                    return
                except LabError as reason:
                    self.make_unknown(str(reason))
            # The time alone: all other figures are unknown
            self.readings.append(
                Reading(
                    time.monotonic(), cpu=0.0, processes=0, threads=0, descriptors=None, memory=None, voluntary=0,
                    involuntary=0,
                )
            )  # fmt: skip

    def usage(self) -> Usage | None:  # type: ignore[override]
        """Return the resources used from begin() to end(); None if they are unknown."""
        return None if self.unknown_because else super().usage()

    def usage_between(self, start: float, end: float) -> Usage | None:
        """Return the resources used between two times, None if they are unknown."""
        return None if self.unknown_because else super().usage_between(start, end)

    def add_to_timeline(self, timeline: list[Second]) -> None:
        """Add to each second the reading at its end."""
        if not self.unknown_because:
            super().add_to_timeline(timeline)


@dataclass(frozen=True)
class TargetServer:
    """A server that runs already (an experiment.RunningServer). url: ends with a slash.

    host: the machine on which its resources are read; None: nowhere. why_unread: the reason if they are not read.
    """

    url: str
    host: SshHost | None
    why_unread: str = ""
    ssh: Sequence[str] = ("ssh",)
    pid: int = 0
    command: str = ""
    other_pids: tuple[int, ...] = ()

    def watch(self, core: int | None) -> TargetWatch:
        """Return a watch of its resources."""
        from ewe_lab.load.client import port_of  # late: it imports the parsers of HTTP

        found = TargetWatch(self.host or SshHost(""), port=port_of(self.url), core=core, ssh=self.ssh)
        if self.host is None:
            found.make_unknown(self.why_unread)
        return found
