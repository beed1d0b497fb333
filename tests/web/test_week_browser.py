"""The tour and the page of the week in Chromium; what is looked at stands in tests/browser/week.test.mjs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change
from slackwater.web import create_app
from slackwater.web.users import Users
from tests.support.chromium import browse, needs_chromium
from tests.support.served_app import served
from tests.support.web_settings import settings_in
from tests.support.web_story import T0, Clock, story

PASSWORD = "correct horse battery"
pytestmark = [
    *needs_chromium,
    pytest.mark.timeout(600),
]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A dashboard over the story in observe mode; its lbengine records a mark as the real one does."""
    Users(tmp_path).add_user("anna", "operator", PASSWORD)
    with Journal.open(journal_path(tmp_path), clock=Clock()) as journal:
        journal.record(*story(mode="observe"))

        def send(pool: str, asked: Request) -> str:
            made = Change(1, "k1", pool, T0, asked.action, asked.target or pool, None, asked.mark, "", asked.by, True)
            made.why, made.since_unix_s = asked.why, asked.since_unix_s
            journal.record(made)
            return f"{pool}: done"

        with served(create_app(settings_in(tmp_path), clock=Clock(), send=send)) as address:
            yield address


def test_the_tour_the_head_and_the_week(url: str) -> None:
    printed = browse("week.test.mjs", url, PASSWORD, 500)
    assert "pass 5" in printed, printed
