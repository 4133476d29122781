"""The command `ewe-watch`: a picture of a trace, or models at work (ewe_watch.live). docs/watch.md explains it.

Exit status: 0 if the page is written, or after a stop of the live page; 1 if a model does not start, or if a scene
does not show what it says; 2 for wrong usage, also if a file cannot be read or written, or is not a trace; 130
after an interrupt. Each error is one line.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from ewe import __version__
from ewe.config.command import RaisingParser, UsageError, entry_point
from ewe.config.command_parser import HelpFormatter
from ewe.config.messages import docs_page
from ewe_watch.behind import DATABASE, ENGINE, is_behind
from ewe_watch.document import document
from ewe_watch.events import TraceError, read
from ewe_watch.live.choice import split_choices
from ewe_watch.moment import duration_of_micros, several
from ewe_watch.page import page
from ewe_watch.perfetto import perfetto
from ewe_watch.picture import svg_of
from ewe_watch.story import TraceStory, story_of_events

MOST_TRACES = 4  # on one page
MAX_EXAMINED_EVENTS = 1000  # events at the begin of a file, by which its writer is known
MOST_EVENTS = 1_000_000  # of a trace: with more, a browser takes minutes for the page

BEHIND_NAMES = {ENGINE: "engines", DATABASE: "database connections"}

EPILOG = """examples:
  ewe -p --parking never --trace pool.trace       write a trace, until Ctrl-C
  ewe-watch pool.trace                            its picture: pool.trace.html
  ewe-watch pool.trace thread.trace -o two.html   two models, one above the other
  ewe-watch ewe.trace xswitch.trace               a server and its X-Switch, each with a trace: one picture
  ewe-watch pool.trace --perfetto pool.json       for https://ui.perfetto.dev
  ewe-watch pool.trace --svg pool.svg             the picture for a slide
  ewe-watch pool.trace --json                     the numbers of the picture

  ewe-watch "-p --parking never" -a               two models at work, with clients at the press of a button
  ewe-watch --model mine:Model -t                 a model of your own beside threads
  ewe-watch --scene pool-starves                  a prepared demonstration; --scene list names all
  ewe-watch --command './server {port} {root} {workers}' -t
                                                  a server in any language, as far as the system shows it
"""


class WatchHelpFormatter(HelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description and the epilog."""


@entry_point("ewe-watch", interrupted="\newe-watch: interrupted")
def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    models, others = split_choices(arguments)
    options = parser().parse_args(others)
    if models or options.command or options.scene or options.check_scene:
        from ewe_watch.live.command import run_live

        return run_live(models, options)
    return run(options)


def parser() -> RaisingParser:
    """Return the parser of the command line."""
    found = RaisingParser(
        prog="ewe-watch",
        description="Make a picture of a trace, or of models at work: the work of each worker, and the queue.\n"
        f"{docs_page('watch.md', 'ewe-watch')} explains it.",
        epilog=EPILOG,
        formatter_class=WatchHelpFormatter,
    )
    add = found.add_argument
    add("files", nargs="*", metavar="FILE", help="a trace; several are shown one above the other")
    add("-o", "--output", metavar="PAGE", help="the page to write (by default FILE.html, in this directory)")
    add("--perfetto", metavar="JSON", help="write the trace in the format of Perfetto's viewer")
    add("--svg", metavar="SVG", help="write the picture as a file for a slide")
    add("--json", action="store_true", help="print the numbers of the picture as JSON")
    live = found.add_argument_group("models at work")
    add = live.add_argument
    add("-n", "-f", "-t", "-p", "-a", "-x", "--model", dest="model", metavar="NAME",
        action="append", help="a model, one to four; with options in quotes: '-p --parking never'")  # fmt: skip
    add("--command", metavar="LINE", action="append", default=[],
        help="a server in any language; ewe-watch fills in {port}, {root} and {workers}")  # fmt: skip
    add("--scene", metavar="NAME", help="play a scene: its name, or a TOML file of your own; list: names all")
    add("--check-scene", metavar="NAME", help="play a scene without a page, and check it; all: every scene")
    add("--users", metavar="NAMES", default="",
        help="accounts for a scene with several users, separated by commas; it needs root, and writes a script into"
        " the public_html/cgi-bin of each, which it removes at the end")  # fmt: skip
    add("--open", action=argparse.BooleanOptionalAction,
        help="show the page in a browser here: the default at a terminal of a graphical session")  # fmt: skip
    add = found.add_argument
    add("--version", action="version", version=f"ewe-watch {__version__}")
    return found


def run(options: argparse.Namespace) -> int:
    """Write the picture of the traces in the formats that the options name; return the exit status.

    Raises UsageError, TraceError.
    """
    files_by_picture = checked_files(options)
    for output in filter(None, (options.output, options.perfetto, options.svg)):
        if any(is_same_file(output, name) for name in options.files):
            raise UsageError(f"{printable(output)} is a trace that is read here: write to another file")
    stories = {name: story_of(files) for name, files in files_by_picture.items()}
    documents = [document(story, printable(Path(name).name)) for name, story in stories.items()]
    if options.perfetto:
        (story,) = stories.values()
        write(options.perfetto, json.dumps(perfetto(story)))
    if options.svg:
        write(options.svg, svg_of(documents))
    if options.json:
        print(json.dumps(documents if len(documents) > 1 else documents[0], ensure_ascii=False))
    if options.output or not (options.perfetto or options.svg or options.json):
        output = options.output or Path(options.files[0]).name + ".html"
        write(output, page(documents))
        if not options.json:
            for each in documents:
                print(summary(each))
            print(f"the page: {printable(output)}")
    return 0


def checked_files(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the files of each picture, by the picture's name. Raises TraceError, UsageError."""
    if not options.files:
        raise UsageError(
            "name a trace (ewe --trace FILE writes one) or a model such as -p; see ewe-watch --help"
        )
    if len(options.files) > MOST_TRACES:
        raise UsageError(f"a page shows {MOST_TRACES} traces at most, and here are {len(options.files)}")
    files_by_picture = group_by_picture(options.files)
    # A file that is named twice counts once
    different_files = sum(len(files) for files in files_by_picture.values())
    if options.perfetto and (len(files_by_picture) > 1 or len(options.files) > different_files):
        raise UsageError("--perfetto takes one trace")
    return files_by_picture


def group_by_picture(names: list[str]) -> dict[str, list[str]]:
    """Return the files of each picture, by the picture's name, which is that of its first file.

    A file of X-Switch or of the database daemon belongs to the picture of the server in front of it. All
    processes of a machine have one clock, so their events can be sorted together.

    Raises TraceError, UsageError.
    """
    behind = [name for name in names if begins_with_events_behind(Path(name))]
    servers = [name for name in names if name not in behind]
    if behind and len(servers) > 1:
        raise UsageError(
            f"{behind[0]} has events of X-Switch or of ewe-dbd only: name it with the trace of one server, "
            f"and here are {len(servers)}"
        )
    if not behind:
        return {name: [name] for name in servers}
    first = servers[0] if servers else behind[0]
    return {first: list(dict.fromkeys([first, *behind]))}  # each file once, in this order


def begins_with_events_behind(path: Path) -> bool:
    """Return whether a file begins with events of X-Switch or of the daemon only. Raises TraceError."""
    kinds = [event.kind for event in islice(read(path), MAX_EXAMINED_EVENTS)]
    return bool(kinds) and all(is_behind(kind) or kind == "lost" for kind in kinds)


def is_same_file(one: str, other: str) -> bool:
    """Return whether two names are those of one file; False if one of them does not exist."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def story_of(files: list[str]) -> TraceStory:
    """Return the story of the files of one picture. Raises TraceError."""
    name = files[0]
    events = heapq.merge(*(read(Path(file)) for file in files), key=lambda event: event.seconds)
    story = story_of_events(islice(events, MOST_EVENTS))
    if not story.events:
        raise TraceError(f"{name} has no events: has the server served anybody?")
    if next(events, None) is not None:  # an event that the story has not taken
        print(f"ewe-watch: {name}: the first {MOST_EVENTS:,} events are shown", file=sys.stderr)
    if story.lost:
        print(f"ewe-watch: {name}: {story.lost:,} events were lost (a full disk or pipe)", file=sys.stderr)
    return story


def printable(name: str) -> str:
    """Return the name of a file as text, although Linux allows names that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def summary(trace: dict[str, Any]) -> str:
    """Return a trace in a few lines: its size and its moments. trace: the numbers, as document() returns them."""
    sizes = {name: len(trace[name]) for name in ("connections", "requests", "workers")}
    lanes = Counter(lane["kind"] for lane in trace["behind"]["lanes"])
    sizes |= {name: lanes[kind] for kind, name in BEHIND_NAMES.items() if lanes[kind]}
    numbers = ", ".join(
        several(count, nouns) for nouns, count in {"events": trace["events"], **sizes}.items()
    )
    lines = [f"{trace['name']}: {numbers}"]
    for moment in trace["moments"]:
        lines.append(f"  {duration_of_micros(moment['begin']):>8}  {moment['text']}")
    return "\n".join(lines)


def write(name: str, text: str) -> None:
    """Write a file. Raises TraceError."""
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as reason:
        raise TraceError(f"cannot write {name}: {reason.strerror}") from None
