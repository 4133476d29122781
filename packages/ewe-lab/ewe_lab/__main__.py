"""Run the command ewe-lab: `python -m ewe.lab`."""

import sys

from ewe.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
