"""What a guard runs after the lab was killed (guard.py): end the sessions that are left, and remove the directory.

python -m ewe_lab.bench.after_kill DIRECTORY [SESSION ...]
"""

from __future__ import annotations

import shutil
import sys

from ewe_lab.bench.processes import end_session

if __name__ == "__main__":
    directory, *sessions = sys.argv[1:]
    for session in sessions:
        end_session(int(session))
    shutil.rmtree(directory, ignore_errors=True)
