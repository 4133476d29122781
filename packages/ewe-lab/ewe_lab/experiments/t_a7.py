"""Thesis, table A.7: the kernel's network parameters, then and here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ewe_lab.bench.experiment import Bench, Experiment
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.thesis_static import MACHINE

LEAST, DEFAULT, MOST = "least", "default", "most"
PRINTED: dict[str, tuple[float, ...]] = {  # of TAS01; TAS02 and TAS03 have 129024 in the defaults
    "core/rmem_default": (126976,),
    "core/rmem_max": (131071,),
    "core/wmem_default": (126976,),
    "core/wmem_max": (131071,),
    "ipv4/tcp_rmem": (4096, 87380, 4194304),
    "ipv4/tcp_wmem": (4096, 16384, 4194304),
    "ipv4/tcp_mem": (196608, 262144, 393216),
    "ipv4/tcp_timestamps": (1,),
    "ipv4/tcp_dsack": (1,),
    "ipv4/tcp_sack": (1,),
    "ipv4/tcp_window_scaling": (1,),
    "ipv4/ip_forward": (0,),
    "ipv4/tcp_fin_timeout": (60,),
    "ipv4/tcp_keepalive_time": (7200,),
}


def run(lab: Bench) -> Iterator[Cell]:
    """Read each parameter; nothing is changed."""
    for name, printed in PRINTED.items():
        try:
            values = [float(word) for word in Path("/proc/sys/net", name).read_text().split()]
        except (OSError, ValueError):
            yield Cell(name, value="extra.value", unit="", paper=printed[0], paper_server="TAS01",
                       failure="not readable here")  # fmt: skip
            continue
        for column, paper, value in zip(
            (LEAST, DEFAULT, MOST) if len(printed) > 1 else ("",), printed, values, strict=False
        ):
            sample = Sample("sysctl", 0.0, extra={"value": value})
            yield Cell(
                name,
                column,
                value="extra.value",
                unit="",
                paper=paper,
                paper_server="TAS01",
                samples=[sample],
            )


def check(table: Table) -> Finding:
    """Count the unchanged parameters. A difference is not a fault, but a reader should know it."""
    seen = [cell for cell in table.cells if cell.median is not None]
    if not seen:
        return Finding(NOT_TESTABLE, "No parameter could be read.")
    same = sum(cell.median == cell.paper for cell in seen)
    return Finding(
        HOLDS if same == len(seen) else IN_PART, f"{same} of {len(seen)} parameters are as printed."
    )


EXPERIMENT = Experiment(
    id="T-A7",
    document="thesis",
    source="table A.7",
    title="The kernel's network parameters",
    claim="The parameters are a distribution's defaults; they have hardly changed.",
    varies="nothing",
    measures="/proc/sys/net",
    minutes=0.1,
    errata=("tcp_wmem is printed as tcp_wmen.",),
    run=run,
    machine=MACHINE,
)
