"""What several tests of the dashboard share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.journal.journal import Journal, journal_path
from tests.support.web_story import Clock, story


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(journal_path(tmp_path), clock=Clock()) as opened:
        opened.record(*story())
        yield opened
