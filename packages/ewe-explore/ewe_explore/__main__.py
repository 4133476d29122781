"""Run the command ewe-explore: `python -m ewe_explore`."""

import sys

from ewe_explore.hash_seed import restart_with_fixed_seed

if __name__ == "__main__":
    restart_with_fixed_seed()  # before all that the command imports
    from ewe_explore.cli import main

    sys.exit(main())
