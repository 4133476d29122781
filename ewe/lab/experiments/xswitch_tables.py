"""X-Switch's tables and figures: what was printed, and how a technology is measured today."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ewe.lab.experiment import Bench, Chart, Experiment, Load
from ewe.lab.processes import LabError
from ewe.lab.programs import HELLO, missing, technology
from ewe.lab.results import Cell

MACHINE = {
    "server": "Pentium M, 1.73 GHz",
    "client": "Pentium 4, 3.2 GHz; Siege 2.65, JMeter 2.2, a C program",
    "network": "crossover cable",
}
FIRST, MEAN = "initial response time", "average response time"
TABLE_2 = {  # initial and average response time, ms
    "X-Switch Java": (450, 54),
    "Apache Tomcat": (180, 48),
    "X-Switch PHP": (234, 36),
    "Apache mod_php": (20, 35),
    "X-Switch Perl": (243, 39),
    "FastCGI Perl": (238, 43),
    "Speedy Perl": (236, 38),
    "X-Switch Python": (180, 42),
    "Apache mod_python": (88, 52),
}
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
    "php-fpm php": "Apache mod_php",
}


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


def measure(lab: Bench, name: str, *options: str) -> tuple[Cell, Cell]:
    """Measure one technology: its first answer, and those of ten users; each once per repeat."""
    document = TODAY[name.partition(",")[0]]
    cells = []
    for column, index in ((FIRST, 0), (MEAN, 1)):
        printed = TABLE_2.get(document, (None, None))[index]
        value = "extra.first" if index == 0 else "extra.mean"
        cells.append(Cell(name, column, value=value, unit="ms", paper=printed, paper_server=document))
    load = Load(users=USERS, seconds=lab.seconds(2, 5), warm_up=1.0, length=len(HELLO))
    for _ in range(2 if lab.quick else 3):
        try:
            with technology(lab, name.partition(",")[0], *options) as (server, path):
                first = first_answer(server.url.rstrip("/") + path) * 1e3
                sample = lab.load(server, replace(load, path=path))
        except LabError as reason:
            for cell in cells:
                cell.failure = str(reason)
            break
        sample.extra["first"] = first
        sample.extra["mean"] = sample.service.mean * 1e3 if sample.service else 0.0
        for cell in cells:
            cell.samples.append(sample)
            cell.command, cell.load = server.command, load.words()
    return cells[0], cells[1]


def run(lab: Bench, names: Sequence[str]) -> Iterator[Cell]:
    """Measure technologies, as far as they are here."""
    for name in names:
        if lacking := missing(name):
            if lacking not in lab.notes:
                lab.notes.append(lacking)
            continue
        yield from measure(lab, name)


def figure(number: int, language: str, beside: str, *names: str) -> Experiment:
    """Return the experiment of one figure."""
    native = next(name for name in names if TODAY[name] and not name.startswith("xswitch"))
    return Experiment(
        id=f"X-F{number}",
        document="X-Switch",
        source=f"figure {number} and table 2",
        title=f"{language}: X-Switch beside {beside}",
        claim=f"After the first requests X-Switch's {language} engine answers about as fast as {beside}.",
        varies="technology",
        measures="initial and average response time, 10 users without a pause",
        minutes=0.7 * len(names),
        reference=native,
        paper_reference=TODAY[native],
        charts=CHARTS,
        run=lambda lab: run(lab, names),
        machine=MACHINE,
    )


CHARTS = (
    Chart("bars", "Response time, in ms", log_y=True),
    Chart("bars", "Replies a second", "rate", columns=(MEAN,), log_y=True),
)
