"""The lab's commands end at once where locust is not installed."""

import pytest
from support import needs


@pytest.fixture(scope="session", autouse=True)
def locust_is_here() -> None:
    needs.require("locust")
