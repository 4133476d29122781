"""The rubric of a lab: the criteria that only a person can mark, as a table in the lab's rubric.md.

    |           | 2 points                     | 1 point | 0 points  |      the most points come first
    |---|---|---|---|
    | Structure | each function does one thing | works   | dead code |      a criterion, and the work for its points

`ewe-course show LAB --rubric --toml` prints the criteria as the table [manual] of a course's rules (marks.py), so
manual.csv has a column for each of them.
"""

from __future__ import annotations

import json
import re

HEAD = re.compile(r"^\|\s*\|\s*(\d+) points? ", re.MULTILINE)
CRITERION = re.compile(r"^\| *(\S[^|]*?) *\|", re.MULTILINE)


def criteria(rubric: str) -> dict[str, int]:
    """Return the criteria of a rubric with the most points of each, in the order of the table.

    Raises ValueError if the text has no table whose head names points.
    """
    head = HEAD.search(rubric)
    if head is None:
        raise ValueError("the rubric has no table with a head of points")
    rows = rubric[head.end() :].partition("\n")[2].partition("\n")[2]  # after the head and the line below it
    return {name: int(head[1]) for name in CRITERION.findall(rows)}


def as_manual_marks(rubric: str) -> str:
    """Return the criteria of a rubric as the table [manual] in TOML. Raises ValueError (criteria())."""
    # A string of JSON is also a string of TOML.
    lines = [
        f"{json.dumps(name, ensure_ascii=False)} = {points}" for name, points in criteria(rubric).items()
    ]
    return "\n".join(["[manual]", *lines]) + "\n"
