"""The blog for load tests: its posts and comments, the same in WordPress and in pages from SQL.

The text is made of a small vocabulary with a fixed seed, so that every run and every machine has the same blog.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

TITLE = "A blog under load"
POSTS, COMMENTS, POSTS_ON_MAIN_PAGE = 30, 4, 10
RANDOM_SEED = 2011
FIRST_POST_TIME = datetime(2011, 7, 13, 8, 0)
VOCABULARY = """
a server process thread event loop queue request answer socket page visitor blog database table index cache waits
reads writes forks accepts closes keeps serves counts measures quickly slowly often never then again with without
before after for from to under over between many few one two every the its their
"""
WORDS = VOCABULARY.split()
NAMES = ("Ada", "Blaise", "Chen", "Dagny", "Edsger", "Fatima", "Grace", "Haskell")


@dataclass(frozen=True)
class Comment:
    """A comment. author: a first name."""

    author: str
    date: str
    text: str


@dataclass(frozen=True)
class BlogPost:
    """A post. paragraphs: plain text without markup. date: `2011-07-13 08:00:00`."""

    number: int
    title: str
    date: str
    author: str
    paragraphs: tuple[str, ...]
    comments: tuple[Comment, ...]


def posts() -> Sequence[BlogPost]:
    """Return all posts, the oldest first. Each call returns the same ones."""
    chance = random.Random(RANDOM_SEED)
    found = []
    for number in range(1, POSTS + 1):
        date = FIRST_POST_TIME + timedelta(days=number)
        comments = tuple(
            Comment(chance.choice(NAMES), str(date + timedelta(hours=hour)), sentences(chance, 2))
            for hour in range(1, COMMENTS + 1)
        )
        paragraphs = tuple(sentences(chance, 5) for _ in range(4))
        title = " ".join(chance.sample(WORDS, 4)).capitalize()
        found.append(BlogPost(number, title, str(date), chance.choice(NAMES), paragraphs, comments))
    return found


def sentences(chance: random.Random, count: int) -> str:
    """Return `count` sentences of twelve words each."""
    return " ".join(" ".join(chance.choices(WORDS, k=12)).capitalize() + "." for _ in range(count))
