"""``python -m ewe`` is the command ``ewe``."""

import sys

from ewe.cli import main

if __name__ == "__main__":
    sys.exit(main())
