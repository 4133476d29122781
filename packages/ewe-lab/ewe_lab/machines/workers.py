"""A load from other machines: locust's master here, and a worker of locust on each of them.

    lab ──pipe── master (127.0.0.1:PORT) ◀──locust's protocol── worker, on another machine ──HTTP──▶ server
     └──pipes── ssh ════ -R 127.0.0.1:N:127.0.0.1:PORT ═══════════ agent ──┘

The worker reaches the master through ssh, so that locust's protocol, which checks nobody, never leaves the machines
unencrypted, and no firewall needs a hole. The modules of the load travel with the order; the other machine needs
Python 3.11 and locust. Only the requests to the server take the network directly.

`run()` has the interface of ewe_lab.load.run.run. Each measurement has its own sessions. A session that ends before
the load does ends the measurement with a line that names the machine and its last words.
"""

from __future__ import annotations

import io
import json
import select
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import ewe
import ewe_lab
from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import LabError, bounded_file, running
from ewe_lab.bench.results import Sample
from ewe_lab.load.child import (
    NoObserver,
    WindowObserver,
    child_timeout_s,
    environment,
    lines_within,
    receive_sample,
)
from ewe_lab.machines.session import SIGN_OF_LIFE_S, ClockOffset, Session, SshHost, printable

CLOCK_BOUND_S = 0.1  # seconds by which another clock may differ before the table has a note
MASTER_S = 30.0  # seconds until the master listens
EXTRA_S = 40.0  # seconds for workers to connect, and for their counts to come
CHECK_EVERY_S = 0.2  # how soon an ended worker is noticed
WORKER = "ewe_lab.load.worker"
TRAVELS = (  # the files that a worker imports
    (ewe, ("__init__.py", "closed_loop.py", "bounded.py", "http/*.py")),
    (ewe_lab, ("__init__.py", "load/*.py", "bench/__init__.py", "bench/results.py", "bench/experiment.py",
               "bench/guard.py", "bench/processes.py")),
)  # fmt: skip


@cache
def archive() -> bytes:
    """Return a zip file with the modules of a worker."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for package, patterns in TRAVELS:
            home = Path(str(package.__file__)).parent
            for path in sorted(found for pattern in patterns for found in home.glob(pattern)):
                file.write(path, path.relative_to(home.parent))
    return data.getvalue()


@dataclass
class LoadHosts:
    """The machines from which load comes; a machine that is named twice has two workers.

    notes: sentences for the table. offsets: of the clock of each machine, by its name.
    """

    hosts: Sequence[SshHost]
    ssh: Sequence[str] = ("ssh",)
    python: str = "python3"
    notes: list[str] = field(default_factory=list)
    offsets: dict[str, ClockOffset] = field(default_factory=dict)

    def run(
        self,
        load: Load,
        url: str,
        core: int | None,
        observer: WindowObserver | None = None,
        prefix: Sequence[str] = (),
    ) -> Sample:
        """Run a load once; return the sample of all workers. core: of the master. prefix: not used.

        The master starts first, since the workers need its port. Raises LabError.
        """
        with ExitStack() as exits:
            order = exits.enter_context(tempfile.TemporaryFile())
            errors = exits.enter_context(bounded_file())
            order.write(json.dumps({"url": url, "load": asdict(load), "workers": len(self.hosts)}).encode())
            order.seek(0)
            command = [sys.executable, "-m", "ewe_lab.load.master"]
            master = exits.enter_context(
                running(command, errors, core, env=environment(), stdin=order, stdout=subprocess.PIPE)
            )
            assert master.stdout is not None
            answer = exits.enter_context(master.stdout)
            port = port_of_master(answer)
            sessions = self.connect(exits, load, url, port)
            keeper = exits.enter_context(SessionKeeper(sessions, master))
            try:
                return receive_sample(
                    answer, child_timeout_s(load) + EXTRA_S, observer or NoObserver(), errors
                )
            except LabError as reason:
                raise LabError(keeper.failure or f"{reason}{keeper.unconnected_clause()}") from None

    def connect(self, exits: ExitStack, load: Load, url: str, port: int) -> list[Session]:
        """Start a worker on each machine; return the sessions. Raises LabError.

        All connections are opened before the first is waited for. exits: closes the sessions. port: of the master.
        """
        sessions = [
            exits.enter_context(Session(host, ssh=self.ssh, python=self.python, forward=port))
            for host in self.hosts
        ]
        for number, session in enumerate(sessions):
            part: dict[str, Any] = {"url": url, "load": asdict(load), "number": number, "of": len(sessions)}
            zip_file = archive()
            order = {"role": "worker", "bytes": len(zip_file), "module": WORKER, "locust": version("locust")}
            session.begin(order | {"load": part}, zip_file)
            for earlier in sessions[:number]:  # an agent ends if it hears nothing while the others connect
                earlier.send(b"\n", time.monotonic() + SIGN_OF_LIFE_S)
        return sessions

    def check_clocks(self) -> None:
        """Connect once to each machine, and compare its clock with ours; add a note if it differs.

        A machine that cannot be reached is found before any load. Raises LabError.
        """
        for host in dict.fromkeys(self.hosts):
            with Session(host, ssh=self.ssh, python=self.python) as session:
                session.begin({"role": "clock"})
                ahead_s, error_s = self.offsets[str(host)] = session.clock_offset()
            if abs(ahead_s) - error_s > CLOCK_BOUND_S:
                side = "ahead of" if ahead_s > 0 else "behind"
                self.notes.append(
                    f"The clock of {host} is {abs(ahead_s):.1f} s {side} ours (± {error_s * 1000:.1f} ms):"
                    " the times in its logs do not fit ours. The figures do not suffer: each worker times its own"
                    " requests."
                )


def port_of_master(answer: IO[bytes]) -> int:
    """Return the port that the first line of the master names. Raises LabError."""
    for line in lines_within(answer, MASTER_S):
        word, _, number = line.partition(b" ")
        if word == b"port" and number.isdigit():
            return int(number)
        break  # any other first line is an error
    raise LabError("locust's master does not start")


class SessionKeeper(threading.Thread):
    """Tells the agents that the lab is there, and ends the master if one of them ends.

    failure: why the master was ended, else "". connected: the sessions whose workers have reached the master.
    """

    def __init__(self, sessions: Sequence[Session], master: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self.sessions, self.master = sessions, master
        self.failure = ""
        self.connected: set[Session] = set()
        self.stopped = threading.Event()

    def __enter__(self) -> SessionKeeper:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopped.set()
        self.join()

    def run(self) -> None:
        """Exchange signs of life with all agents until the load has ended."""
        while not self.stopped.wait(CHECK_EVERY_S):
            try:
                for session in self.sessions:
                    self.exchange_signs_of_life(session)
            except LabError as reason:
                self.failure = str(reason)
                self.master.terminate()
                return

    def exchange_signs_of_life(self, session: Session) -> None:
        """Send a sign of life, and read the agent's messages. Raises LabError if its worker has ended."""
        session.send(b"\n", time.monotonic() + SIGN_OF_LIFE_S)
        while not self.stopped.is_set():  # a worker may print without end
            if b"\n" not in session.data and not select.select([session.output], [], [], 0)[0]:
                return  # no message has been received, and there is none to receive
            found = session.receive(time.monotonic() + SIGN_OF_LIFE_S)
            if found.get("said") == "connected":
                self.connected.add(session)
            if "ended" in found and not self.stopped.is_set():
                reason = printable(str(found.get("error") or f"status {found['ended']}"))
                raise LabError(f"the load worker on {session.host} ended: {reason}")

    def unconnected_clause(self) -> str:
        """Return a clause with the machines whose worker has not connected, "" if there are none."""
        names = [str(session.host) for session in self.sessions if session not in self.connected]
        return f" (not connected: {', '.join(names)})" if names else ""
