"""The bench on which experiments run: start a server, load it, watch it, stop it, and remove its files.

    LabBench.once       one measurement
      start             the server, on its core, from a scratch directory
      probe             one request, whose answer is checked
      load              the load generator on its core, while a Watch reads /proc
                        -> a Sample, added to the Cell

The server has the first core that we may use, the load the last. A third core, if there is one, is for the Watch.
ewe_lab.bench.experiment.Bench is the interface that an experiment sees.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ewe_lab.bench.experiment import Contender, Load, Running
from ewe_lab.bench.links import link
from ewe_lab.bench.processes import LabError, on_core, one_line, running, text_of, tool, two_cores
from ewe_lab.bench.progress import Progress
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.bench.watch import Watch
from ewe_lab.load.child import environment
from ewe_lab.load.run import run
from ewe_lab.stacks import peers, servers

OVERHEAD = 2.5  # seconds to start and stop server and load; used in estimates
ONE_CORE = "There is one core only: server and load share it, and figures say less than they would on two."


@dataclass(frozen=True)
class Job:
    """A cell to measure. root: the document root; options: more options of the server."""

    contender: Contender
    load: Load
    cell: Cell
    root: Path
    options: tuple[str, ...] = ()
    access_log: bool = False


class LabBench:
    """An experiment.Bench. Use it in a `with`: its directory is removed at the end.

    started: cells with at least one attempt; after an interrupt their samples are kept.
    """

    def __init__(self, progress: Progress, *, quick: bool = False, repeats: int = 3) -> None:
        self.progress = progress
        self.quick = quick
        self.repeats = repeats
        self.notes: list[str] = []
        self.started: list[Cell] = []
        self.said = False  # whether the progress line names the measurement
        self.prefix: list[str] = []  # of all commands: enters the network of a slow link
        self.server_core: int | None
        self.load_core: int | None
        self.watch_core: int | None
        cores = sorted(os.sched_getaffinity(0))
        self.server_core, self.load_core = two_cores()
        self.watch_core = cores[1] if len(cores) > 2 else self.load_core
        if len(cores) == 1:
            self.server_core = self.load_core = self.watch_core = None

    def __enter__(self) -> LabBench:
        self.directory = Path(tempfile.mkdtemp(prefix="ewe-lab-"))
        self.directory.chmod(0o755)  # a server may run under another account
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    # What an experiment asks for

    def seconds(self, quick: float, full: float) -> float:
        """Return the first number in a quick run, else the second."""
        return quick if self.quick else full

    def servers(self, contenders: Iterable[Contender]) -> Iterator[Contender]:
        """Yield the contenders that can run here; note why the others cannot."""
        for each in contenders:
            if lacking := missing(each):
                self.note(lacking)
            else:
                yield each

    def note(self, text: str) -> None:
        """Add a note to the table, once."""
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
                tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key),
                "-out", str(chain), "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode:
                raise LabError(f"openssl could not make a certificate: {one_line(done.stderr)}")
            path.write_text(key.read_text() + chain.read_text())
        return path

    # Servers and loads

    @contextmanager
    def start(
        self, contender: Contender, root: Path, *options: str, tls: bool = False, access_log: bool = False
    ) -> Iterator[Running]:
        """Run a server on its core. access_log: for ewe and nginx only."""
        if not self.said:
            self.progress.say(contender.name)
        certificate = self.certificate() if tls else None
        scratch = Path(tempfile.mkdtemp(prefix="server-", dir=self.directory))
        scratch.chmod(0o755)
        log = scratch / "access.log" if access_log else None
        options = (*contender.options, *options)
        run, name = servers.peer, contender.kind
        if contender.kind == "ewe":
            run, name = partial(servers.ewe, variables=contender.variables), contender.model
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
            prefix=self.prefix,
        )
        try:
            with started as server:
                yield replace(server, also=(*server.also, *contender.also))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def probe(self, server: Running, load: Load) -> None:
        """Send one request and check its answer against the load. Raises LabError."""
        command = [
            *self.prefix,
            sys.executable,
            "-m",
            "ewe_lab.load.probe",
            server.url.rstrip("/") + load.path,
        ]
        if load.length is not None:
            command.append(str(load.length))
        with (
            tempfile.TemporaryFile() as output,
            running(command, output, self.load_core, env=environment()) as started,
        ):
            try:
                status = started.wait(15)
            except subprocess.TimeoutExpired:
                raise LabError("a first request did not end") from None
            if status:
                raise LabError(one_line(text_of(output)))

    def load(self, server: Running, load: Load) -> Sample:
        """Run a load once on its core, and watch the server meanwhile."""
        cores = (self.server_core, self.load_core)
        with on_core(self.watch_core), Watch(server.pid, *cores, server.also) as watch:
            sample = run(load, server.url, self.load_core, watch, self.prefix)
            sample.usage = watch.usage()
            sample.core = watch.share(1)
            watch.fill(sample.timeline)
            begin = 0.0
            for phase in sample.phases:
                phase.usage = watch.usage_between(begin, begin + phase.seconds)
                begin += phase.seconds
        if not sample.replies and not sample.errors:
            sample.notes.append(f"not one answer came within {sample.seconds:.1f} s")
        return sample

    # Cells

    def measure(self, contender: Contender, load: Load, cell: Cell, root: Path, *options: str) -> Cell:
        """Measure a cell: start, warm up, load and stop the server as often as the lab repeats."""
        job = Job(contender, load, cell, root, options)
        for repeat in range(self.repeats):
            if not self.once(job, repeat):
                break
        return cell

    def measure_all(self, jobs: Sequence[Job]) -> Iterator[Cell]:
        """Measure cells in turns, in one order and then in the other; yield each when it is complete.

        A busy minute of the machine then does not fall on the repeats of one cell.
        """
        for repeat in range(self.repeats):
            last = repeat + 1 == self.repeats
            for job in jobs if (self.repeats - repeat) % 2 else reversed(jobs):
                if not job.cell.failure:
                    self.once(job, repeat)
                if last:
                    yield job.cell

    def once(self, job: Job, repeat: int) -> bool:
        """Measure a cell once: add a sample, or a failure. Return whether there is a sample."""
        cell, load = job.cell, fitting(job.load, job.contender)
        if all(cell is not each for each in self.started):
            self.started.append(cell)
        turn = f", {repeat + 1} of {self.repeats}" if self.repeats > 1 else ""
        self.said = True
        self.progress.say(", ".join(filter(None, (cell.server, cell.column, load.words()))) + turn)
        if self.server_core is None:
            self.note(ONE_CORE)
        cell.load = load.words()
        try:
            with self.start(
                job.contender, job.root, *job.options, tls=bool(load.tls), access_log=job.access_log
            ) as server:
                cell.command = server.command
                self.probe(server, load)
                cell.samples.append(self.load(server, load))
            return True
        except (LabError, OSError) as reason:
            cell.failure = str(reason)
            return False
        finally:
            self.said = False

    @contextmanager
    def linked(self, speed: str) -> Iterator[str]:
        """Run what is started in the block behind a slow link. Yield the reason if that is impossible, else ""."""
        made = link(speed)
        try:
            self.prefix = made.__enter__()
        except LabError as reason:
            yield str(reason)
            return
        try:
            yield ""
        finally:
            self.prefix = []
            made.__exit__(None, None, None)


def missing(contender: Contender) -> str:
    """Return why a server cannot run here, "" if it can."""
    if contender.kind != "ewe":
        found = peers.PEERS.get(contender.kind)
        return found.missing if found else f"{contender.name}: there is no peer {contender.kind!r}"
    from ewe.processors import base

    try:
        base.find(contender.model)
    except base.UnknownModel as reason:
        return f"{contender.name}: {reason}"
    if "uvloop" in contender.options and find_spec("uvloop") is None:
        return f"{contender.name} is left out: pip install uvloop"
    return ""


def fitting(load: Load, contender: Contender) -> Load:
    """Adapt a load to a server: a warm-up that is long enough, and no more kept connections than it can serve."""
    load = peers.warmed(load, contender.kind)
    most = contender.most
    if contender.kind in peers.PEERS:
        most = min(most, peers.PEERS[contender.kind].most)
    if load.shape == "ceiling" and load.keep_alive and load.users > most:
        return replace(load, users=most)
    return load


def expected(load: Load) -> float:
    """Return an estimate of the seconds that a measurement takes."""
    length = load.duration
    if load.sessions:
        length = min(length, load.sessions / load.rate + load.calls * load.think)
    return OVERHEAD + load.warm_up + length
