"""A bench of the lab for tests: it measures once, shortly, and says nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from ewe.lab.bench.progress import Progress
from ewe.lab.lab_bench import LabBench


@contextmanager
def quick_lab() -> Iterator[LabBench]:
    """Make a bench for the block."""
    with LabBench(Progress(file=io.StringIO()), quick=True, repeats=1) as lab:
        yield lab
