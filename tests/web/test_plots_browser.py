"""The plots in Chromium over a made quarter of an hour; what is looked at stands in tests/browser/plots.test.mjs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

from slackwater.core.config import ControllerSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Message
from slackwater.web import create_app
from slackwater.web.users import Users
from tests.support.chromium import browse, needs_chromium
from tests.support.plotted_story import crowded_story, plotted_story
from tests.support.served_app import served
from tests.support.web_settings import settings_in
from tests.support.web_story import Clock

PASSWORD = "correct horse battery"
pytestmark = [
    *needs_chromium,
    pytest.mark.timeout(600),
]


@contextmanager
def served_story(settings: ControllerSettings, story: Iterable[Message]) -> Iterator[str]:
    """The address of a dashboard over a journal with this story."""
    clock = Clock()
    with Journal.open(journal_path(settings.state_dir), clock=clock) as journal:
        journal.record(*story)
        with served(create_app(settings, clock=clock)) as address:
            yield address


def test_the_plots_and_the_lengths_of_pages(tmp_path: Path) -> None:
    Users(tmp_path).add_user("anna", "operator", PASSWORD)
    with served_story(settings_in(tmp_path), plotted_story()) as url:
        printed = browse("plots.test.mjs", url, PASSWORD, 500)
    assert "pass 10" in printed, printed


def test_a_pool_is_four_screens_long_at_most_however_many_servers_there_are(tmp_path: Path) -> None:
    crowds = [(3, 1), (12, 1), (12, 12), (50, 3), (50, 50)]
    """Servers, and how many of them are slow."""
    stories = {f"pool{n}": list(crowded_story(f"pool{n}", *crowd)) for n, crowd in enumerate(crowds)}
    with served_story(settings_in(tmp_path, pools=[*stories]), chain(*stories.values())) as url:
        pages = [f"{url}/pools/{pool}" for pool in stories]
        printed = browse("lengths.test.mjs", url, PASSWORD, 500, PAGES=json.dumps(pages))
    assert f"pass {len(pages) + 4}" in printed, printed
