"""Run the command ewe-explore: `python -m ewe_explore`."""

import sys

from ewe_explore.cli import main

if __name__ == "__main__":
    sys.exit(main())
