"""A timeline of many threads folds those that do not explain the failure into one lane."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ewe_explore.program import ExploredProgram
from ewe_explore.report import Exploration, explore

# 12 clients add to a counter under a lock, and 2 of 14 without it
CLIENTS = """
import threading
def scenario():
    class Counter:
        n = 0
    counter, lock = Counter(), threading.Lock()
    def polite():
        with lock:
            counter.n += 1
    def hasty():
        counter.n += 1
    threads = [threading.Thread(target=polite, name=f"client {number}") for number in range(1, COUNT)]
    threads += [threading.Thread(target=hasty, name=f"hasty {number}") for number in (1, 2)]
    for each in threads: each.start()
    for each in threads: each.join()
    assert counter.n == len(threads)
"""


def failure(path: Path, clients: int) -> Exploration:
    """Return the failure of a program with so many clients, and two more without the lock."""
    path.write_text(CLIENTS.replace("COUNT", str(clients + 1)))
    result = explore(ExploredProgram(path, "scenario"), runs=300)
    assert result.story is not None
    return result


@pytest.mark.takes_time
def test_the_terminal_shows_the_threads_of_the_explanation(tmp_path: Path) -> None:
    result = failure(tmp_path / "clients.py", 12)
    assert result.story is not None
    named = set(re.findall(r"(?:client|hasty) \d+", " ".join(result.story.why)))
    names = {result.story.lanes[lane] for lane in result.story.folded}
    assert named and not named & names and len(names) >= 9 and "main" not in names
    head, *rows = result.text(120).splitlines()
    assert f"{len(names)} other threads: ended" in head and all(name in head for name in {"main", *named})
    text = " ".join(" ".join(rows).replace("│", " ").split())
    assert re.search(r"\d+ steps of client \d+, client \d+ and \d+ other threads", text)
    assert re.search(r"joins client \d+, client \d+ and \d+ other threads", text)


@pytest.mark.takes_time
def test_the_page_folds_the_lanes_of_the_picture_and_the_table(tmp_path: Path) -> None:
    result = failure(tmp_path / "clients.py", 12)
    assert result.story is not None
    page = result.html()
    count = len(result.story.folded)
    folded, _, whole = page.partition('<details class="ln-more">')
    assert f"<summary>{count} other threads: ended. Show a lane for each thread</summary>" in whole
    pictures = re.findall(r'<svg class="ln-names".*?</svg>', page, re.DOTALL)
    used = len({event.lane for event in result.story.events})
    assert [text.count('class="ln-text"') for text in pictures] == [used - count + 1, used]
    assert page.count('<th scope="col" class="thread"') == used - count + 1
    folded_name = result.story.lanes[result.story.folded[0]]
    assert f"{folded_name} acquires lock" in folded + whole and "<script" not in page


def test_few_threads_have_a_lane_each(tmp_path: Path) -> None:
    result = failure(tmp_path / "clients.py", 4)
    assert result.story is not None and not result.story.folded
    assert "other threads: ended" not in result.text() and "<details" not in result.html()
