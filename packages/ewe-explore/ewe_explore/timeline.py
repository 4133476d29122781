"""The timeline in a terminal: a column for each thread, a row for each step, from top to bottom.

Read next: page.py, which writes the timeline as a page.
"""

from __future__ import annotations

import re
from unicodedata import category, east_asian_width

from ewe_explore.explain import Story, TimelineEvent
from ewe_explore.folding import fold_for_terminal

ANSI_COLOURS = (36, 33, 35, 32, 34, 31)
# Codes of SGR, "select graphic rendition" (ECMA-48)
BOLD, FAINT, FAINT_ITALIC, RED, BOLD_RED = "1", "2", "2;3", "31", "1;31"
MAX_RULE_CHARS = 100  # the width of the line above the failure
MIN_LANE_CHARS = 22  # the minimum width of a lane, in characters
GUTTER_CHARS = 6


def paint(text: str, code: str, colour: bool) -> str:
    """Return a text between the escape sequences of a code, or as it is if `colour` is false or it is blank."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and text.strip() else text


def timeline(story: Story, width: int = 100, colour: bool = False) -> str:
    """Return the timeline of a story as text, at most `width` characters wide if the lanes fit."""
    story = fold_for_terminal(story)
    used = sorted({event.lane for event in story.events})
    columns = {lane: column for column, lane in enumerate(used)}
    size = max((width - GUTTER_CHARS) // max(len(used), 1), MIN_LANE_CHARS)
    rows = [
        "".join([" line ", *(cell(story.lanes[lane], size, lane, colour, BOLD) for lane in used)]).rstrip()
    ]
    rows.append(
        "".join([" " * GUTTER_CHARS, *(cell("━" * (size - 2), size, lane, colour) for lane in used)]).rstrip()
    )
    for event in story.events:
        rows += row(story, event, columns, size, colour)
    return "\n".join(rows)


def row(story: Story, event: TimelineEvent, columns: dict[int, int], size: int, colour: bool) -> list[str]:
    """Return the lines of one event. columns: lane -> its column. size: the width of a column, in characters.

    A failure and a gap take the whole width, a stop the columns from its own to the right.
    """
    if event.kind == "fail":
        width = min(GUTTER_CHARS + size * len(columns), MAX_RULE_CHARS)
        wrapped = wrap(event.text, max(width - 2, 40))
        lines = [("  " if number else "✗ ") + line for number, line in enumerate(wrapped)]
        return [paint("═" * width, RED, colour), *(paint(line, BOLD_RED, colour) for line in lines)]
    if event.kind == "gap":
        return [paint(f"   ⋮  ({event.text})", FAINT, colour)]
    column = columns[event.lane]
    if event.kind == "stop":
        # At the end of a run no other lane goes on
        following = f"; {story.lanes[event.other]} goes on" if event.other != event.lane else ""
        lines = wrap(f"✂ {event.text}{following}", max(size * (len(columns) - column) - 2, size - 2))
        return [
            rails(columns, size, column, colour, gutter(event, is_first=not number))
            + paint(line, FAINT_ITALIC, colour)
            for number, line in enumerate(lines)
        ]
    mark = "⏳ " if event.kind == "wait" else ""
    lines = wrap(mark + event.text, size - 2)
    found = []
    for number, line in enumerate(lines):
        cells = [
            cell(line, size, lane, colour, "") if lane == event.lane else cell("│", size, lane, colour, FAINT)
            for lane in columns
        ]
        found.append((gutter(event, is_first=not number) + "".join(cells)).rstrip())
    return found


def gutter(event: TimelineEvent, *, is_first: bool) -> str:
    """Return the text to the left of an event's lanes: in its first row the line of the source."""
    return f"{event.line or '':>4}  " if is_first else " " * GUTTER_CHARS


def rails(columns: dict[int, int], size: int, before: int, colour: bool, left: str) -> str:
    """Return the gutter and the lanes to the left of a column. left: the gutter."""
    return left + "".join(
        cell("│", size, lane, colour, FAINT) for lane, column in columns.items() if column < before
    )


def cell(text: str, size: int, lane: int, colour: bool, style: str = "") -> str:
    """Return a text in the colour of its lane, padded to the width of a lane."""
    code = ";".join(each for each in (style, str(ANSI_COLOURS[lane % len(ANSI_COLOURS)])) if each)
    return paint(text, code, colour) + " " * max(size - terminal_columns(text), 1)


def wrap(text: str, columns: int) -> list[str]:
    """Return the lines of a text, each at most `columns` columns of a terminal wide; break a word that is wider.

    textwrap.wrap() counts characters: a lane of Chinese text would be twice as wide as its column.
    """
    lines = [""]
    for word in re.split(r"\s", text):
        before = f"{lines[-1]} " if lines[-1] else ""
        if terminal_columns(before + word) <= columns:
            lines[-1] = before + word
            continue
        if terminal_columns(word) <= columns or terminal_columns(before) >= columns:
            lines.append("")
        else:
            lines[-1] = before
        for character in word:
            if terminal_columns(lines[-1] + character) > columns:
                lines.append("")
            lines[-1] += character
    return [line.rstrip() for line in lines if line.strip()]


def terminal_columns(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    `⏳`, and each Chinese character, takes two. An accent that is a separate character takes none.
    """
    shown = (character for character in text if category(character) not in ("Mn", "Me", "Cf"))
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in shown)
