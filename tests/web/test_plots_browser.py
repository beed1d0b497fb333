"""The plots in Chromium over a made quarter of an hour; what is looked at stands in tests/browser/plots.test.mjs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from slackwater.core.config import ControllerSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Message
from slackwater.web import create_app
from slackwater.web.users import Users
from tests.support.chromium import browse, needs_chromium
from tests.support.plotted_story import crowded_story, plotted_story
from tests.support.web_settings import settings_in
from tests.support.web_story import Clock

PASSWORD = "correct horse battery"
pytestmark = [
    *needs_chromium,
    pytest.mark.timeout(600),
]


@contextmanager
def served(settings: ControllerSettings, story: Iterable[Message]) -> Iterator[str]:
    """The address of a dashboard over a journal with this story."""
    clock = Clock()
    with Journal.open(journal_path(settings.state_dir), clock=clock) as journal:
        journal.record(*story)
        server = make_server("127.0.0.1", 0, create_app(settings, clock=clock), threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_plots_and_the_lengths_of_pages(tmp_path: Path) -> None:
    Users(tmp_path).add_user("anna", "operator", PASSWORD)
    with served(settings_in(tmp_path), plotted_story()) as url:
        printed = browse("plots.test.mjs", url, PASSWORD, 500)
    assert "pass 8" in printed, printed


def test_a_pools_page_is_four_screens_long_at_most_however_many_servers_there_are(tmp_path: Path) -> None:
    crowds = [(12, 1), (12, 12), (50, 3), (50, 50)]
    """Servers, and how many of them are slow."""
    stories = {f"pool{n}": list(crowded_story(f"pool{n}", *crowd)) for n, crowd in enumerate(crowds)}
    with served(settings_in(tmp_path, pools=[*stories]), chain(*stories.values())) as url:
        pages = [f"{url}/pools/{pool}" for pool in stories]
        printed = browse("lengths.test.mjs", url, PASSWORD, 500, PAGES=json.dumps(pages))
    assert f"pass {len(pages)}" in printed, printed
