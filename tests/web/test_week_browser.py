"""The tour and the page of the week in Chromium; what is looked at stands in tests/browser/week.test.mjs."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from slackwater.control import Request
from slackwater.journal.journal import Journal, journal_path
from slackwater.messages import Change
from tests.support.paths import ROOT
from tests.support.web_settings import settings_in
from tests.support.web_story import T0, Clock, story
from web import create_app
from web.users import Users

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
MODULES = ROOT / ".build/browser"
PASSWORD = "correct horse battery"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: `make setup` brings it"),
    pytest.mark.skipif(not (MODULES / "node_modules/playwright-core").exists(), reason="no playwright-core here"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js here"),
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

        server = make_server("127.0.0.1", 0, create_app(settings_in(tmp_path), clock=Clock(), send=send), threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_tour_the_head_and_the_week(url: str) -> None:
    environment = {
        **os.environ,
        **{"CHROMIUM": str(CHROMIUM), "BROWSER_MODULES": str(MODULES), "URL": url, "PASSWORD": PASSWORD},
    }
    command = ["node", "--test", "--test-reporter=spec", str(ROOT / "tests/browser/week.test.mjs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "pass 5" in done.stdout, done.stdout
