"""The browser that the tests of ewe-watch share: a start of Chromium takes three seconds of processor time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from devtools import Browser, browser
from support.needs import require


@pytest.fixture(scope="session")
def one_chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium for all tests of this process of pytest; each takes a page of it by fresh()."""
    require("Chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found
