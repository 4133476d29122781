"""Run the command ewe-watch: `python -m ewe_watch`."""

import sys

from ewe_watch.cli import main

if __name__ == "__main__":
    sys.exit(main())
