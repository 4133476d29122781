"""Steps in words, for the story and the reasons of a failure.

Read next: waits.py and explain.py, which write sentences with them.
"""

from __future__ import annotations

import re

from ewe_explore.scheduler import Step, name_of_object


def phrase(step: Step, values: bool = True) -> str:
    """Describe a step in words: `reads self.n (3)`."""
    text = f"{step.verb} {name_of_object(step)}".strip()
    if values and step.attribute is not None:
        if step.verb == "writes" and step.attribute != "[]":
            text += f" = {step.after}" if step.after else ""
        elif step.writes and step.after and step.after != step.before:
            text += f" → {plain(step.after)}"
        elif step.before and not step.writes:
            text += f" ({plain(step.before)})"
    if values and step.note:
        text += f" ({step.note})"
    return text


def plain(value: str) -> str:
    """Return the text of a value; "empty" for an empty container."""
    return "empty" if value in ("[]", "{}", "set()", "0 items") else value


def at_line(line: int) -> str:
    """Return a line number for a message: ` [line 12]`; "" outside the student's file."""
    return f" [line {line}]" if line else ""


def whole_name(name: str) -> re.Pattern[str]:
    """Return the pattern of a thread's name in a text: `work 1`, but not the begin of `work 12`."""
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def listed(names: list[str], most: int = 3) -> str:
    """Return names as a list: `a, b and c`. Of more than `most` + 1 names, count those after the first `most`."""
    if len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most} other threads"
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
