"""An X-Switch whose day is told by a file: python -m ewe_lab.stacks.day_clock CLOCK-FILE [OPTION ...]

The file holds the local seconds of the day as text. The lab writes it, so that a replayed day takes seconds. Only
priming reads this clock: timeouts and the measured times are those of the machine. The file is opened here, before
the processes of X-Switch begin, because the main process may not be allowed to enter its directory.
"""

from __future__ import annotations

import os
import sys

from ewe.xswitch import cli
from ewe.xswitch.switch import primer

MAX_BYTES = 32


def main() -> int:
    """Run X-Switch; return its exit status."""
    clock = os.open(sys.argv[1], os.O_RDONLY)
    primer.local_seconds = lambda: float(os.pread(clock, MAX_BYTES, 0))
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
