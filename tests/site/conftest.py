"""The day that the stories of a file are played on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.site import SHAPES, missing
from tests.site.story import Day, day


@pytest.fixture(scope="module")
def stock_day() -> Iterator[Day]:
    if lacks := missing():
        pytest.skip(f"the test site cannot run here; missing: {'; '.join(lacks)}")
    with day(SHAPES["stock"]) as made:
        yield made


@pytest.fixture
def today(stock_day: Day) -> Day:
    """The same, calm before and after."""
    stock_day.settle()
    return stock_day
