"""The bench on which experiments run: start a server, load it, watch it, stop it, and remove its files.

    LabBench.measure_once   one measurement
      start             the server, on its core, from a scratch directory
      probe             one request, and a check of the answer
      load              the load generator on its core, while a Watch reads /proc
                        -> a Sample, added to the Cell

The server has the first core that the lab may use, and the load the last. If there are more than two cores, the
Watch has the second. ewe_lab.bench.experiment.Bench is the interface that an experiment sees.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ewe_lab.bench.disturbance import is_disturbed
from ewe_lab.bench.experiment import Load, RunningServer, ServedPath, ServerUnderTest
from ewe_lab.bench.foreign import OtherProgramsWatch
from ewe_lab.bench.guard import Guard
from ewe_lab.bench.links import link
from ewe_lab.bench.processes import (
    LabError,
    bounded_file,
    has_ended,
    last_line,
    on_core,
    output_text,
    path_of_tool,
    running,
    two_cores,
)
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.bench.watch import LOAD, SERVER, Watch
from ewe_lab.load.child import environment
from ewe_lab.load.run import run
from ewe_lab.machines.watch import TargetServer, TargetWatch
from ewe_lab.machines.workers import LoadHosts
from ewe_lab.stacks import other_servers, servers
from ewe_lab.stacks.ways import ServingStack, serve_stack

OVERHEAD_S = 2.5  # seconds to start and stop server and load; used in estimates
MAX_PROBE_S = 15  # seconds that the first request may take, with the start of Python
# Measurements that were repeated for nothing, one after the other: then the machine is not quiet, and no more of
# them are repeated
MAX_VAIN_REPEATS = 3
# Exceptions that end a measurement and not the run, also of a full disk, or of a program that does not end
FAILURES = (LabError, OSError, subprocess.TimeoutExpired)
ONE_CORE = "There is one core only: server and load share it, and figures say less than they would on two."


@dataclass(frozen=True)
class CellJob:
    """A cell to measure. root: the document root; options: more options of the server.

    target: a server that runs already, which the lab does not start. stack: a program and the server before it, in
    place of `tested`; the load's path is then the program's.
    """

    tested: ServerUnderTest
    load: Load
    cell: Cell
    root: Path
    options: tuple[str, ...] = ()
    access_log: bool = False
    target: TargetServer | None = None
    stack: ServingStack | None = None


class LabBench:
    """An experiment.Bench. Use it in a `with` statement: its directory is removed at the end.

    started: the cells with at least one attempt. After an interrupt their samples are kept. other_programs: the
    clock of other programs; None: nobody looks. repeated_for_others: the measurements that were made twice, because
    other programs had the cores.
    """

    def __init__(self, progress: Progress, *, quick: bool = False, repeats: int = 3) -> None:
        self.progress = progress
        self.quick = quick
        self.repeats = repeats
        self.notes: list[str] = []
        self.started: list[Cell] = []
        self.other_programs: OtherProgramsWatch | None = None
        self.repeated_for_others = self.vain_repeats = 0
        self.load_hosts: LoadHosts | None = None  # the machines from which load comes; None: this one
        self.is_announced = False  # whether the progress line names the measurement
        # The words before each command, such as those that enter the network of a slow link
        self.command_prefix: list[str] = []
        self.server_core: int | None
        self.load_core: int | None
        self.watch_core: int | None
        cores = sorted(os.sched_getaffinity(0))
        self.server_core, self.load_core = two_cores()
        self.watch_core = cores[1] if len(cores) > 2 else self.load_core
        if len(cores) == 1:  # nothing can be pinned apart
            self.server_core = self.load_core = self.watch_core = None

    def __enter__(self) -> LabBench:
        self.directory = Path(tempfile.mkdtemp(prefix="ewe-lab-"))
        self.directory.chmod(0o755)  # a server may run under another account
        self.guard = Guard(self.directory)
        self.guard.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.guard.__exit__()

    # Helpers of an experiment

    def quick_or_full(self, quick: float, full: float) -> float:
        """Return the first number in a quick run, else the second."""
        return quick if self.quick else full

    def servers(self, tested_servers: Iterable[ServerUnderTest]) -> Iterator[ServerUnderTest]:
        """Yield the servers that can run here; add a note for each of the others with the reason."""
        for tested in tested_servers:
            if reason := why_server_is_missing(tested):
                self.add_note(reason)
            else:
                yield tested

    def add_note(self, text: str) -> None:
        """Add a note to the table, unless the table has it already."""
        if text not in self.notes:
            self.notes.append(text)

    def site(self, sizes: Sequence[int]) -> Path:
        """Return a document root with a file /SIZE.html of each size, and /index.html of 1 KB."""
        root = self.directory / "site"
        root.mkdir(exist_ok=True)
        for name, size in [("index", 1024), *((str(size), size) for size in sizes)]:
            path = root / f"{name}.html"
            if not path.exists():
                path.write_bytes(b"x" * (size - 1) + b"\n")
        return root

    def certificate(self) -> Path:
        """Return a PEM file with a key and a certificate for localhost: RSA 2048, as in 2011. Raises LabError."""
        path = self.directory / "certificate.pem"
        if not path.exists():
            key, chain = self.directory / "key.pem", self.directory / "chain.pem"
            command = [
                path_of_tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key),
                "-out", str(chain), "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode:
                raise LabError(f"openssl could not make a certificate: {last_line(done.stderr)}")
            path.write_text(key.read_text() + chain.read_text())
        return path

    # Servers and loads

    @contextmanager
    def start(
        self, tested: ServerUnderTest, root: Path, *options: str, tls: bool = False, access_log: bool = False
    ) -> Iterator[RunningServer]:
        """Run a server on the server's core until the block is left; yield it. access_log: ewe and nginx only."""
        if not self.is_announced:  # an experiment has called start() itself, without measure_once()
            self.progress.show_step(tested.name)
        certificate = self.certificate() if tls else None
        scratch = Path(tempfile.mkdtemp(prefix="server-", dir=self.directory))
        scratch.chmod(0o755)
        log = scratch / "access.log" if access_log else None
        options = (*tested.options, *options)
        run, name = servers.run_other_server, tested.kind
        if tested.kind == "ewe":
            run, name = partial(servers.run_ewe, variables=tested.variables), tested.model
            if "--requests" not in options:
                options = ("--requests", "0", *options)  # no connection is closed because of its age
        started = run(
            name,
            *options,
            root=root,
            directory=scratch,
            core=self.server_core,
            access_log=log,
            certificate=certificate,
            prefix=self.command_prefix,
        )
        try:
            with started as server:
                yield replace(server, other_pids=(*server.other_pids, *tested.other_pids))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def probe(self, server: RunningServer, load: Load) -> None:
        """Send one request and check its answer against the load. Raises LabError."""
        command = [
            *self.command_prefix,
            sys.executable,
            "-m",
            "ewe_lab.load.probe",
            server.url.rstrip("/") + load.path,
        ]
        if load.length is not None:
            command.append(str(load.length))
        command += ["--method", load.method, "--status", str(load.status)]
        for name, value in load.headers:
            command += ["--header", name, value]
        with (
            bounded_file() as output,
            running(command, output, self.load_core, env=environment()) as started,
        ):
            try:
                status = started.wait(MAX_PROBE_S)
            except subprocess.TimeoutExpired:
                raise LabError("a first request did not end") from None
            if status:
                raise LabError(last_line(output_text(output)))
            if remark := output_text(output).strip():
                self.add_note(remark)

    def load(self, server: RunningServer, load: Load) -> Sample:
        """Run a load once on the load's core, and watch the server meanwhile. Return its sample.

        Raises LabError, also if the server ends during the load: its figures would be those of a part.
        """
        run_load = self.load_hosts.run if self.load_hosts else run
        new_watch = self.watch_of(server)
        # A target is no child of the lab: its CPU time here would be that of another program
        others = None if isinstance(server, TargetServer) else self.other_programs
        begin = others.take_reading() if others else None
        with on_core(self.watch_core), new_watch as watch:  # the thread that reads /proc runs on watch_core
            sample = run_load(load, server.url, self.load_core, watch, self.command_prefix)
            if others and begin:
                sample.foreign_cores = others.cores_since(begin)
            sample.usage = watch.usage()
            if sample.usage is not None:  # it may be unknown: TargetWatch
                sample.usage.core = watch.busy_share(SERVER, sample.seconds)
                if note := watch.note_on_cpu():
                    sample.notes.append(note)
            # The core of this machine says nothing about a load that comes from others
            sample.core = None if self.load_hosts else watch.busy_share(LOAD, sample.seconds)
            if isinstance(watch, TargetWatch):
                sample.elsewhere = True
                self.add_note(watch.sentence())
            watch.add_to_timeline(sample.timeline)
            phase_begin = 0.0
            for phase in sample.phases:
                phase.usage = watch.usage_between(phase_begin, phase_begin + phase.seconds)
                phase_begin += phase.seconds
        if server.pid and has_ended(server.pid):  # a target has no pid here
            raise LabError("the server ended during the load")
        if not sample.replies and not sample.errors:
            sample.notes.append(f"not one answer came within {sample.seconds:.1f} s")
        return sample

    def watch_of(self, server: RunningServer) -> Watch:
        """Return a watch on the resources of a server during one load."""
        if isinstance(server, TargetServer):
            return server.watch(self.load_core)
        return Watch(server.pid, self.server_core, self.load_core, server.other_pids)

    # Cells

    def fill_cell(self, tested: ServerUnderTest, load: Load, cell: Cell, root: Path, *options: str) -> Cell:
        """Start, warm up, load and stop the server as often as the lab repeats; add the samples to the cell.

        Return the cell. After a failure it is not tried again.
        """
        job = CellJob(tested, load, cell, root=root, options=options)
        for repeat in range(self.repeats):
            if not self.measure_once(job, repeat):
                break
        return cell

    def fill_cells_in_turns(self, jobs: Sequence[CellJob]) -> Iterator[Cell]:
        """Measure cells in turns, in reverse order in every other round; yield each cell when it is complete.

        A busy minute of the machine then affects one repeat of many cells, not all repeats of one cell.
        """
        for repeat in range(self.repeats):
            is_last_round = repeat + 1 == self.repeats
            # The last round is never a reversed one, so the cells are complete in their order
            for job in jobs if (self.repeats - repeat) % 2 else reversed(jobs):
                if not job.cell.failure:
                    self.measure_once(job, repeat)
                if is_last_round:
                    yield job.cell

    def undisturbed(self, measure: Callable[[], Sample]) -> Sample:
        """Measure, and once more if other programs had the cores; return the last sample that was completed.

        The second one is spared after MAX_VAIN_REPEATS, one after the other, that were disturbed again. Raises the
        exceptions of the first measurement.
        """
        sample = measure()
        if not is_disturbed(sample):
            self.vain_repeats = 0
        elif self.vain_repeats < MAX_VAIN_REPEATS:
            self.repeated_for_others += 1
            try:
                sample = measure()
            except FAILURES:  # the first sample stays, and counts as disturbed
                self.vain_repeats += 1
                return sample
            self.vain_repeats = self.vain_repeats + 1 if is_disturbed(sample) else 0
        return sample

    def measure_once(self, job: CellJob, repeat: int) -> bool:
        """Measure a cell once: add a sample, or a failure. Return whether a sample was added. repeat: from 0.

        It is measured a second time, with a new server, if other programs had the cores.
        """
        cell, load = job.cell, adapted_load(job.load, job.tested)
        if all(cell is not started for started in self.started):  # `is`: two cells may be equal
            self.started.append(cell)
        turn = f", {repeat + 1} of {self.repeats}" if self.repeats > 1 else ""
        self.is_announced = True
        self.progress.show_step(
            ", ".join(filter(None, (cell.server, cell.column, load.description()))) + turn
        )
        if self.server_core is None and not job.target:
            self.add_note(ONE_CORE)
        cell.load = load.description()
        try:
            cell.samples.append(self.undisturbed(lambda: self.sample_of_job(job, load)))
            return True
        except FAILURES as reason:
            cell.failure = str(reason)
            return False
        finally:
            self.is_announced = False

    def sample_of_job(self, job: CellJob, load: Load) -> Sample:
        """Start the server of a job, check its first answer, and load it; return the sample. Raises LabError."""
        with self.server_of_job(job, load) as (server, path):
            load = replace(load, path=path)
            job.cell.command = server.command
            self.probe(server, load)
            return self.load(server, load)

    @contextmanager
    def server_of_job(self, job: CellJob, load: Load) -> Iterator[ServedPath]:
        """Yield the server of a job, started for the block or the target that runs already; and the load's path."""
        if job.target:
            yield ServedPath(job.target, load.path)
        elif job.stack:
            with serve_stack(self, job.stack, tls=bool(load.tls)) as found:
                yield found
        else:
            options, is_logged = job.options, job.access_log
            with self.start(
                job.tested, job.root, *options, tls=bool(load.tls), access_log=is_logged
            ) as server:
                yield ServedPath(server, load.path)

    @contextmanager
    def behind_link(self, speed: str) -> Iterator[str]:
        """Run the servers and loads of the block behind a slow link. Yield "", or why the link cannot be made."""
        slow_link = link(speed)
        # Not a `with`: only an error of making the link is yielded; one of the block has to reach the caller
        try:
            self.command_prefix = slow_link.__enter__()
        except LabError as problem:
            yield str(problem)
            return
        try:
            yield ""
        finally:
            self.command_prefix = []
            slow_link.__exit__(None, None, None)


def why_server_is_missing(tested: ServerUnderTest) -> str:
    """Return why a server cannot run here, "" if it can."""
    if tested.kind != "ewe":
        found = other_servers.OTHER_SERVERS.get(tested.kind)
        return found.why_missing if found else f"{tested.name}: there is no server {tested.kind!r}"
    from ewe.processors import base  # late: the modules of the models take long to load

    try:
        base.model_named(tested.model)
    except base.UnknownModel as reason:
        return f"{tested.name}: {reason}"
    if "uvloop" in tested.options and find_spec("uvloop") is None:
        return f"{tested.name} is left out: pip install uvloop"
    return ""


def adapted_load(load: Load, tested: ServerUnderTest) -> Load:
    """Return the load for a server: with a warm-up that is long enough, and no more connections than it serves.

    Only a load of shape `saturation` with kept connections is reduced. Such a load sends requests over each
    connection without a pause, so a connection beyond the server's limit would wait until the end of the load.
    """
    load = other_servers.with_warm_up(load, tested.kind)
    max_connections = tested.max_connections
    if tested.kind in other_servers.OTHER_SERVERS:
        max_connections = min(max_connections, other_servers.OTHER_SERVERS[tested.kind].max_connections)
    if load.shape == "saturation" and load.keep_alive and load.users > max_connections:
        return replace(load, users=max_connections)
    return load


def expected_s(load: Load) -> float:
    """Return an estimate of the seconds that a measurement takes, with the start and the end of the server."""
    if not load.sessions:
        return OVERHEAD_S + load.warm_up + load.duration
    # A number of sessions has no warm-up. It ends with the last session, and at the latest after the load's time
    last_session_ends_s = load.sessions / load.rate + load.calls * load.think
    return OVERHEAD_S + min(load.duration, last_session_ends_s)
