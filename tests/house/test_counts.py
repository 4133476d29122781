"""A request costs as many system calls and Python calls as `counts.toml` says, under each model.

A count does not depend on the machine's speed, so it shows a regression that a measured time would hide. If a count
has risen, find the new calls (`strace -f`, support/counting.py) and remove them. If the request needs them, run
`make counts`, and say in the message of the commit why. If a count has fallen, `make counts` lowers the file, so
that the gain stays.

Another version of Python or of the C library makes other calls for the same source. There a count may differ by a
quarter, which still shows a loop or a lookup that came to be repeated.
"""

from __future__ import annotations

import os
import platform
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.counting import ROWS, count_faults, count_python_calls, count_system_calls
from support.server import Start

pytestmark = pytest.mark.timeout(180)
FILE = Path(__file__).parent / "counts.toml"
WRITES = bool(os.environ.get("EWE_TEST_WRITE_COUNTS"))
SYSTEM = " ".join(("Python {}.{}".format(*sys.version_info), *platform.libc_ver()))
VARIANTS = (
    *("serial", "fork", "prefork", "thread", "pool", "asyncio --loop asyncio"),
    pytest.param("asyncio --loop uvloop", marks=pytest.mark.needs("uvloop")),
)
HEAD = """\
# What a request costs under each model (tests/house/test_counts.py). `make counts` writes this file.
# A commit that raises a figure says why in its message.
"""
MOST_FAULTS = 1.05  # of the figure in the file: the heap does not lie the same way in each run
ELSEWHERE = 0.25  # the part by which a count may differ under another Python or another C library
SAME_SYSTEM = WRITES or tomllib.loads(FILE.read_text())["made with"] == SYSTEM
Counts = dict[str, dict[str, int]]


@pytest.mark.starts_processes
@pytest.mark.needs("Linux", "strace", "/proc")
@pytest.mark.parametrize("model", VARIANTS)
def test_a_request_makes_no_more_system_calls_than_the_file_says(start: Start, model: str) -> None:
    judge("system calls", model, count_system_calls(start, model))


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", VARIANTS)
def test_a_request_makes_no_more_python_calls_than_the_file_says(
    start: Start, model: str, tmp_path: Path
) -> None:
    judge("Python calls", model, count_python_calls(start, model, tmp_path / "calls"))


@pytest.mark.starts_processes
@pytest.mark.needs("Linux", "/proc")
def test_a_forked_child_touches_no_more_pages_than_the_file_says(start: Start) -> None:
    """A connection each under the fork model: the page faults of the parent and its children, for a request."""
    found = count_faults(start)
    if WRITES:
        judge("page faults", "fork", {"a connection each": found})
    most = read("page faults", "fork")["a connection each"] * (MOST_FAULTS if SAME_SYSTEM else 1 + ELSEWHERE)
    assert found <= most, f"a request under fork costs {found} page faults, and {most:.0f} are allowed"


def judge(kind: str, model: str, found: Mapping[str, int]) -> None:
    """Compare counts with the file; or write them to the file, for `make counts`."""
    if WRITES:
        write(kind, model, found)
        return
    known = read(kind, model)
    assert known.keys() == found.keys(), "a row is new, or missing: run make counts"
    differences = {
        row: found[row] - known[row]
        for row in found
        if abs(found[row] - known[row]) > ROWS[row].slack + (0 if SAME_SYSTEM else ELSEWHERE * known[row])
    }
    risen = [f"{row}: {found[row]}, not {known[row]}" for row, more in differences.items() if more > 0]
    assert not risen, f"a request under {model} makes more {kind} than counts.toml says: {'; '.join(risen)}"
    fallen = [f"{row}: {found[row]}, not {known[row]}" for row, more in differences.items() if more < 0]
    assert not fallen, f"a request under {model} makes fewer {kind}, run `make counts`: {'; '.join(fallen)}"


def read(kind: str, model: str) -> dict[str, int]:
    """Return the table of a model in the file."""
    found: dict[str, int] = tomllib.loads(FILE.read_text())[kind][model]
    return found


def write(kind: str, model: str, found: Mapping[str, int]) -> None:
    """Put the counts of one model into the file."""
    tables: dict[str, Counts] = {}
    if FILE.exists():
        tables = {
            name: table for name, table in tomllib.loads(FILE.read_text()).items() if name != "made with"
        }
    tables.setdefault(kind, {})[model] = dict(found)
    lines = [HEAD, f'"made with" = "{SYSTEM}"\n']
    for name in sorted(tables):
        for each in sorted(tables[name]):
            lines.append(f'\n["{name}"."{each}"]\n')
            lines += [f'"{row}" = {count}\n' for row, count in tables[name][each].items()]
    FILE.write_text("".join(lines))
