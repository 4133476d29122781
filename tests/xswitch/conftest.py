"""Fixtures of the tests of X-Switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.accounts import User, two_users


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    """Make the accounts alice and bob for the tests of a file; remove them at the end."""
    with two_users() as made:
        yield made
