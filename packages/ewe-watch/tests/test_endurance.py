"""The verdict of endurance.py, without its hour: which growth of memory or of CPU time is a fault."""

from __future__ import annotations

import pytest
from endurance import MOST_GROWTH, Minute, grown


def minutes(**growths: float) -> list[Minute]:
    """Return twenty minutes. growths: of a column, in a minute; the other columns are level."""
    level = Minute(0.0, 500.0, 60.0, 20.0, 40.0, 8.0, 900, 15.0)
    return [
        level._replace(
            minute=float(number),
            **{name: getattr(level, name) + number * growth for name, growth in growths.items()},
        )
        for number in range(1, 21)
    ]


@pytest.mark.parametrize("name", MOST_GROWTH)
def test_each_column_that_grows_by_more_than_its_limit_is_a_fault(name: str) -> None:
    assert grown(minutes(**{name: 1.1 * MOST_GROWTH[name]})) == [name]
    assert grown(minutes(**{name: 0.9 * MOST_GROWTH[name]})) == []
