"""How table 2 and figures 5 to 8 of X-Switch run: what was printed, and how a technology is measured today."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.experiments.papers import printed
from ewe_lab.stacks.applications import HELLO
from ewe_lab.stacks.ways import served, technology

FIRST, MEAN = "initial response time", "average response time"
TABLE_2 = printed("X-T2")  # initial and average response time, ms
USERS = 10  # JMeter's threads, without a pause
TODAY = {  # our technology: the document's
    "xswitch java": "X-Switch Java",
    "tomcat java": "Apache Tomcat",
    "xswitch python": "X-Switch Python",
    "nginx+xswitch python": "",
    "uwsgi python": "Apache mod_python",
    "uwsgi-script python": "",
    "cgi python": "",
    "xswitch perl": "X-Switch Perl",
    "fcgi perl": "FastCGI Perl",
    "cgi perl": "",
    "xswitch php": "X-Switch PHP",
    "nginx+xswitch php": "",
    "mod_php php": "Apache mod_php",
    "php-fpm php": "",
}
NATIVE = {  # by language: our technology that X-Switch is compared with
    "java": "tomcat java",
    "php": "mod_php php",
    "perl": "fcgi perl",
    "python": "uwsgi python",
}
COLD = ", no warm parent"  # of X-Switch: a new engine is then started, not forked from one that is warm
CURVE = "mean of all answers so far"
REQUESTS = 10_000  # of a curve in the document: ten users, a thousand each


def first_answer(url: str) -> float:
    """Return the seconds that the first request takes. Raises LabError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began = time.perf_counter()
    try:
        with opener.open(url, timeout=20) as answer:
            body = answer.read()
    except OSError as reason:
        raise LabError(f"a first request failed: {reason}") from None
    if body.decode("latin-1") != HELLO:
        raise LabError(f"a first request brought {body[:40]!r}")
    return time.perf_counter() - began


def measure(lab: Bench, name: str, prefix: str = "") -> Iterator[Cell]:
    """Measure one technology: its first answer, then those of ten users; two or three times.

    Yields the points of its curve, the first answer and the average one. name: one of TODAY, perhaps with COLD.
    prefix: of the names of their columns.
    """
    technique, is_cold = name.removesuffix(COLD), name.endswith(COLD)
    document = "" if is_cold else TODAY[technique]
    options: tuple[str, ...] = ()
    if is_cold:
        settings = lab.directory / "cold.toml"
        settings.write_text("warm = false\n")
        options = ("--xswitch-config", str(settings))
    cells = []
    for column, index in ((FIRST, 0), (MEAN, 1)):
        then = TABLE_2.get(document, (None, None))[index]
        value = "extra.first" if index == 0 else "extra.mean"
        cells.append(Cell(name, prefix + column, value=value, unit="ms", paper=then, paper_server=document))
    load = Load(users=USERS, seconds=lab.seconds(2, 5), warm_up=0.0, length=len(HELLO))
    for _ in range(2 if lab.quick else 3):
        try:
            with served(lab, technology(technique), *options) as (server, path):
                first = first_answer(server.url.rstrip("/") + path) * 1e3
                sample = lab.load(server, replace(load, path=path))
        except LabError as reason:
            for cell in cells:
                cell.failure = str(reason)
            break
        curve = after_first(first, sample)
        sample.extra["first"], sample.extra["mean"] = first, curve[-1][1]
        for cell in cells:
            cell.samples.append(sample)
            cell.command, cell.load = server.command, load.words()
    if cells[0].samples and not prefix:
        yield from curve_cells(name, cells[1])
    yield from cells


def after_first(first: float, sample: Sample) -> list[tuple[int, float]]:
    """Return (answers, their mean in ms): after the first, at the points that the load noted, and after all."""
    means = [(count, mean * 1e3) for count, mean in sample.running if count < REQUESTS]
    if sample.service and sample.service.mean is not None:
        means.append((sample.service.count, sample.service.mean * 1e3))
    return [(1, first), *((count + 1, (first + count * mean) / (count + 1)) for count, mean in means)]


def curve_cells(name: str, cell: Cell) -> Iterator[Cell]:
    """Yield a cell for each point of the curve of a technology's middle sample."""
    sample = figures.middle(cell)
    if sample is None:
        return
    for count, mean in after_first(sample.extra["first"], sample):
        point = Sample(sample.tool, sample.seconds, extra={"running": mean})
        yield Cell(
            name, CURVE, count, "extra.running", "ms", samples=[point], command=cell.command, load=cell.load
        )


def run(lab: Bench, names: Sequence[str], by_language: bool = False) -> Iterator[Cell]:
    """Measure the technologies that are installed. by_language: with columns for each language."""
    for name in names:
        if lacking := technology(name.removesuffix(COLD)).missing:
            if lacking not in lab.notes:
                lab.notes.append(lacking)
            continue
        language = name.removesuffix(COLD).rpartition(" ")[2]
        yield from measure(lab, name, prefix=f"{language}: " if by_language else "")
