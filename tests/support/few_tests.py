"""Install the packages of Python that only few tests need, those that install here; `make` runs this file.

They are compiled for each version of Python: a new version lacks one at first, and a machine without a compiler
cannot build it. pip installs all packages of a command line or none, so a package that fails is left out, with one
line of output, and only the tests that need it are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

EXTRA = "few-tests"
PROJECT = Path(__file__).resolve().parents[2]


def requirements() -> list[str]:
    """Return the requirements of the extra in pyproject.toml."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"][EXTRA])


def name_of(requirement: str) -> str:
    """Return the name of a package, without its versions and extras."""
    return re.split(r"[\s\[<>=;]", requirement, maxsplit=1)[0]


def pip_installs(log: Path, *wanted: str) -> bool:
    """Return whether pip installs these; its output is added to a log file."""
    constraints = "constraints.txt"  # not its whole path: pip splits the variable at spaces
    environment = os.environ | {
        "PIP_CONSTRAINT": constraints,
        "PIP_BUILD_CONSTRAINT": constraints,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    command = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
    with log.open("a") as output:
        ran = subprocess.run(command, cwd=PROJECT, env=environment, stdout=output, stderr=output)
        return ran.returncode == 0


def main() -> int:
    """Install all of them at once, else each by itself."""
    log = Path(sys.prefix, "few-tests.log")
    log.write_text("")
    wanted = requirements()
    left_out = [] if pip_installs(log, *wanted) else [each for each in wanted if not pip_installs(log, each)]
    for requirement in left_out:
        print(
            f"{name_of(requirement)} does not install here ({os.path.relpath(log)} says why):"
            " tests that need it are skipped"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
