"""A lab that is killed leaves no process and no directory: its guard ends them (ewe_lab/bench/guard.py)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import wait_until

from ewe_lab.bench.processes import ENDED_STATES, processes

# Two servers: one runs still, with a child of its own, and one has ended in order.
LAB = """
import sys, time
from ewe_lab.bench.processes import running
from ewe_lab.bench.progress import Progress
from ewe_lab.lab_bench import LabBench

with LabBench(Progress(), quick=True, repeats=1) as lab, open("/dev/null", "wb") as output:
    with running(["sh", "-c", "sleep 100 & wait"], output) as one:
        with running(["sleep", "100"], output):
            pass
        print(one.pid, lab.guard.process.pid, lab.directory, flush=True)
        {end}
"""

pytestmark = pytest.mark.starts_processes


@pytest.mark.needs("Linux", "/proc")
@pytest.mark.parametrize("killed", [True, False])
def test_a_lab_leaves_nothing_however_it_ends(killed: bool) -> None:
    code = LAB.format(end="time.sleep(100)" if killed else "pass")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        server, guard, directory = lab.stdout.readline().split()
        if killed:
            assert session_of(server) and Path(directory).exists()
            lab.send_signal(signal.SIGKILL)
        lab.wait(60)
    left = (lambda: session_of(server)), (lambda: session_of(guard)), Path(directory).exists
    wait_until(lambda: not any(each() for each in left), 30, lambda: str([each() for each in left]))


def session_of(number: str) -> list[int]:
    """Return the processes of a session that have not ended."""
    return [
        each.pid for each in processes() if each.session == int(number) and each.state not in ENDED_STATES
    ]
