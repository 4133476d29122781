"""`python -m ewe.xswitch` is the command `ewe-xswitch`."""

import sys

from ewe.xswitch.cli import main

sys.exit(main())
