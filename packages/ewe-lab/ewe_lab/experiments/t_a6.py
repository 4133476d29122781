"""Thesis, table A.6: is the network as fast as its name?"""

from __future__ import annotations

from collections.abc import Iterator

from ewe_lab.bench.experiment import Bench, Load
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.experiments.contenders import ASYNCIO
from ewe_lab.experiments.papers import printed

SIZES = {"10mbit": 65_536, "100mbit": 262_144, "1gbit": 1_048_576}  # a link carries about ten a second
NOMINAL = {"10mbit": 10, "100mbit": 100, "1gbit": 1000}
PRINTED = printed("T-A6")  # Mbit/s by client and server
BETWEEN = (0.85, 1.02)  # share of the nominal speed: packets have headers


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the goodput of each link with files that suit it."""
    root = lab.site(list(SIZES.values()))
    for speed in NOMINAL:
        cell = Cell(speed, value="extra.goodput", unit="Mbit/s")
        if speed == "1gbit":
            cell.paper, cell.paper_server = PRINTED["TAS01"]["TAS02"], "TAS01 to TAS02"
        with lab.linked(speed) as why:
            if why:
                cell.failure = why
            else:
                load = Load(
                    "ceiling",
                    users=4,
                    seconds=lab.seconds(2, 5),
                    warm_up=1,
                    timeout=20,
                    path=f"/{SIZES[speed]}.html",
                    length=SIZES[speed],
                )
                lab.measure(ASYNCIO, load, cell, root)
        for sample in cell.samples:
            sample.extra["goodput"] = sample.received * 8 / sample.seconds / 1e6
        yield cell


def check(table: Table) -> Finding:
    """The claim holds if each link carries nearly its nominal speed."""
    found = {cell.server: cell.median for cell in table.cells if cell.median}
    if not found:
        return Finding(NOT_TESTABLE, "No link could be made here.")
    good = all(BETWEEN[0] <= value / NOMINAL[speed] <= BETWEEN[1] for speed, value in found.items())
    told = ", ".join(f"{speed} {value:.1f} Mbit/s" for speed, value in found.items())
    return Finding(HOLDS if good else FAILS, f"Goodput: {told}.")
