"""Table 2 and figures 5 to 8 of X-Switch: the printed figures, and the measurement of a technology of today.

A technology has two times: that of the first answer, in which an interpreter or an engine starts, and the mean of
many answers. The figures show how the first becomes the second, as the mean of all answers so far:

    ms │▔▔╲___              first answer: the start of the process
       │      ▔▔▔▔▔────     then the mean falls to the time of a usual answer
       └────────────────▶ answers

One measurement gives both: the first request alone, then a load whose recorder notes the mean at 1, 2, 5, 10 ...
answers (Recorder.running).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ewe_lab.bench import figures
from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.processes import LabError, last_line
from ewe_lab.bench.results import Cell, Sample
from ewe_lab.experiments.papers import printed
from ewe_lab.stacks.applications import HELLO
from ewe_lab.stacks.backends import URL_ERRORS, opener
from ewe_lab.stacks.ways import serve_stack, technology

FIRST, MEAN = "initial response time", "average response time"
TABLE_2 = printed("X-T2")  # initial and average response time, ms
USERS = 10  # JMeter's threads, without a pause
PRINTED_TECHNOLOGY = {  # our technology: the document's
    "xswitch java": "X-Switch Java",
    "tomcat java": "Apache Tomcat",
    "xswitch python": "X-Switch Python",
    "nginx+xswitch python": "",
    "uwsgi python": "Apache mod_python",
    "uwsgi-script python": "",
    "cgi python": "",
    "xswitch perl": "X-Switch Perl",
    "fcgi perl": "FastCGI Perl",
    "mod_perl perl": "Speedy Perl",
    "cgi perl": "",
    "xswitch php": "X-Switch PHP",
    "nginx+xswitch php": "",
    "mod_php php": "Apache mod_php",
    "php-fpm php": "",
}
NATIVE = {  # by language: the technology with which X-Switch is compared
    "java": "tomcat java",
    "php": "mod_php php",
    "perl": "fcgi perl",
    "python": "uwsgi python",
}
STAND_INS = {  # our technology: how it differs from the one whose printed figures stand beside it
    "uwsgi python": "mod_python left Debian with Python 2; uWSGI's figures stand beside its",
    "mod_perl perl": "SpeedyCGI has no release since 2003; beside its figures stand those of mod_perl's registry, "
    "which also keeps unmodified scripts",
}
COLD_START_SUFFIX = ", no preloaded parent"  # X-Switch then starts a new engine by exec
CURVE = "mean of all answers so far"
CURVE_REQUESTS = 10_000  # of a curve in the document: ten users, a thousand each


def time_first_answer(url: str) -> float:
    """Return the seconds that the first request takes. Raises LabError."""
    url_opener = opener()
    began = time.perf_counter()
    try:
        with url_opener.open(url, timeout=20) as answer:
            body = answer.read()
    except URL_ERRORS as reason:
        raise LabError(f"a first request failed: {last_line(str(reason))}") from None
    if body.decode("latin-1") != HELLO:
        raise LabError(f"a first request brought {body[:40]!r}")
    return time.perf_counter() - began


def measure(lab: Bench, name: str, prefix: str = "") -> Iterator[Cell]:
    """Measure one technology two or three times: its first answer, then a load of ten users.

    Yields the points of its curve, the first answer and the average answer. name: one of
    PRINTED_TECHNOLOGY, perhaps with COLD_START_SUFFIX. prefix: of the names of the columns.
    """
    technique, is_cold = name.removesuffix(COLD_START_SUFFIX), name.endswith(COLD_START_SUFFIX)
    document = "" if is_cold else PRINTED_TECHNOLOGY[technique]
    options: tuple[str, ...] = ()
    if is_cold:
        settings = lab.directory / "cold.toml"
        settings.write_text("preload = false\n")
        options = ("--xswitch-config", str(settings))
    cells = []
    for column, index in ((FIRST, 0), (MEAN, 1)):
        printed_ms = TABLE_2.get(document, (None, None))[index]
        value = "extra.first" if index == 0 else "extra.mean"
        cells.append(
            Cell(name, prefix + column, value=value, unit="ms", paper=printed_ms, paper_server=document)
        )
    load = Load(users=USERS, seconds=lab.quick_or_full(2, 5), warm_up=0.0, length=len(HELLO))
    for _ in range(2 if lab.quick else 3):
        try:
            with serve_stack(lab, technology(technique), *options) as (server, path):
                first = time_first_answer(server.url.rstrip("/") + path) * 1e3
                sample = lab.load(server, replace(load, path=path))
        except LabError as reason:
            for cell in cells:
                cell.failure = str(reason)
            break
        curve = running_means(first, sample)
        _, mean_of_all = curve[-1]
        sample.extra["first"], sample.extra["mean"] = first, mean_of_all
        for cell in cells:
            cell.samples.append(sample)
            cell.command, cell.load = server.command, load.description()
    if cells[0].samples and not prefix:  # figures 5 to 8 show curves; table 2 has a prefix, and none
        yield from curve_cells(name, cells[1])
    yield from cells


def running_means(first: float, sample: Sample) -> list[tuple[int, float]]:
    """Return pairs of a number of answers and their mean in ms.

    The pairs are for the first answer, for the points that the load noted, and for all answers. first: the ms of
    the first answer. It came before the load, so each pair of the load counts one answer more.
    """
    means = [(count, mean * 1e3) for count, mean in sample.running if count < CURVE_REQUESTS]
    if sample.service and sample.service.mean is not None:
        means.append((sample.service.count, sample.service.mean * 1e3))
    return [(1, first), *((count + 1, (first + count * mean) / (count + 1)) for count, mean in means)]


def curve_cells(name: str, cell: Cell) -> Iterator[Cell]:
    """Yield a cell for each point of a curve: the mean time of the first `x` answers, in ms.

    The answers are those of the technology's middle sample. name: of the technology.
    """
    sample = figures.middle_sample(cell)
    if sample is None:
        return
    for count, mean in running_means(sample.extra["first"], sample):
        point = Sample(sample.tool, seconds=sample.seconds, extra={"running": mean})
        curve_cell = Cell(name, CURVE, x=count, value="extra.running", unit="ms", samples=[point])
        curve_cell.command, curve_cell.load = cell.command, cell.load
        yield curve_cell


def run(lab: Bench, names: Sequence[str], by_language: bool = False) -> Iterator[Cell]:
    """Measure the technologies that are installed; yield the cells.

    by_language: whether each language has its own columns.
    """
    for name in names:
        if lacking := technology(name.removesuffix(COLD_START_SUFFIX)).why_missing:
            if lacking not in lab.notes:
                lab.notes.append(lacking)
            continue
        if name in STAND_INS:
            lab.notes.append(f"{STAND_INS[name]}.")
        language = name.removesuffix(COLD_START_SUFFIX).rpartition(" ")[2]
        yield from measure(lab, name, prefix=f"{language}: " if by_language else "")
