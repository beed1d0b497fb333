"""The plots in Chromium over a made quarter of an hour; what is looked at stands in tests/browser/plots.test.mjs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.web import create_app
from slackwater.web.users import Users
from tests.support.chromium import browse, needs_chromium
from tests.support.plotted_story import plotted_story
from tests.support.web_settings import settings_in
from tests.support.web_story import Clock

PASSWORD = "correct horse battery"
pytestmark = [
    *needs_chromium,
    pytest.mark.timeout(600),
]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    Users(tmp_path).add_user("anna", "operator", PASSWORD)
    clock = Clock()
    with Journal.open(journal_path(tmp_path), clock=clock) as journal:
        journal.record(*plotted_story())
        server = make_server("127.0.0.1", 0, create_app(settings_in(tmp_path), clock=clock), threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_plots_and_the_lengths_of_pages(url: str) -> None:
    printed = browse("plots.test.mjs", url, PASSWORD, 500)
    assert "pass 8" in printed, printed
