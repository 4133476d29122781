"""The pages of handouts, which the tests make once: most of the time of a handout is that of reading Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import pytest

from ewe_classroom.course import handout
from ewe_classroom.course.locales import ENGLISH
from ewe_classroom.course.text_page import to_html


@pytest.fixture(scope="session", autouse=True)
def pages_made_once() -> Iterator[None]:
    """Make a page again only from other arguments. The pages of the documentation are in many handouts."""

    @cache
    def made(text: str, title: str, pictures: tuple[tuple[str, str], ...], locale: str) -> str:
        return to_html(text, title, dict(pictures), locale)

    def page(text: str, title: str, pictures: Mapping[str, str] | None = None, locale: str = ENGLISH) -> str:
        return made(text, title, tuple((pictures or {}).items()), locale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handout, "to_html", page)
        yield
