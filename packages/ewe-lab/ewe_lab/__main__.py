"""Run the command ewe-lab: `python -m ewe_lab`."""

import sys

from ewe_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
