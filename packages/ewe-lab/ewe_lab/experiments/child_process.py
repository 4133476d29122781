"""Figures that a separate process measures and prints: the lab's own process would disturb them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ewe_lab.bench.processes import (
    FIGURES_BYTES,
    LabError,
    bounded_file,
    output_text,
    running,
    server_core,
    wait_for_end,
    why_no_figures,
)
from ewe_lab.load.child import environment


def figures_of(module: str, arguments: Sequence[str], max_s: float, too_long: str) -> Any:
    """Run a module as a program on the servers' core; return the value of the JSON that it prints.

    max_s: seconds that it may take. too_long: the error if it takes longer. Raises LabError.
    """
    command = [sys.executable, "-m", module, *arguments]
    with (
        bounded_file() as error_output,
        bounded_file(FIGURES_BYTES) as output,
        running(command, error_output, server_core(), env=environment(), stdout=output) as started,
    ):
        if not wait_for_end(started, max_s):
            raise LabError(too_long)
        try:
            return json.loads(output_text(output, FIGURES_BYTES))
        except ValueError:
            raise LabError(why_no_figures(output, error_output)) from None
