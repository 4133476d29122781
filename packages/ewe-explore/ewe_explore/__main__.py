"""Run the command ewe-explore: `python -m ewe.classroom.explorer`."""

import sys

from ewe.classroom.explorer.cli import main

if __name__ == "__main__":
    sys.exit(main())
