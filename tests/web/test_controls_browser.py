"""Every page and every control in Chromium, over a made-up journal and an lbengine that agrees to all that is asked.

What is looked at stands in tests/browser/controls.test.mjs.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from msgspec import structs

from slackwater.core.config import host_and_port
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, Cpu, Cycle, Message, Sample, ServerState, Traffic
from slackwater.web import create_app
from slackwater.web.http_server import HttpServer
from slackwater.web.users import Users
from tests.support.chromium import browse, needs_chromium
from tests.support.fleet_story import settings_in, site
from tests.support.real_processes import free_address
from tests.support.web_story import T0, Clock

PASSWORD = "correct horse battery"
pytestmark = [
    *needs_chromium,
    pytest.mark.timeout(2400),
]
PARTS = {"pool": "web", "node": "web1", "since_ms": f"{round((T0 - 600) * 1000)}", "word": "pause"}
"""What stands in the paths of pages."""


def pages(app: Flask) -> list[str]:
    """The path of every page. Raises KeyError for one whose path has a part that is not known here."""
    of_people = {"pages", "fleet", "controls", "login"}
    rules = [rule for rule in app.url_map.iter_rules() if rule.endpoint.partition(".")[0] in of_people]
    with_get = [rule.rule for rule in rules if "GET" in (rule.methods or ())]
    return [re.sub(r"<(?:\w+:)?(\w+)>", lambda part: PARTS[part[1]], path) for path in with_get]


def wide() -> list[Message]:
    """Servers of pool web whose values are as wide as they get, and a reason of two lines."""
    why = "interference: run delay per CPU second 5.12 is 14x its peers' (> 2.8); 2 of the last 3 ticks"
    names = ("web1", "web2", "web10")
    servers = [ServerState(name, "up", 20, 100, 20, share=0.12) for name in names]
    servers[0] = structs.replace(servers[0], why=why, cause="interference")
    traffic = Traffic(rps=1234.5, rt_p50_ms=20.0, rt_p95_ms=2640.0, rt_p99_ms=4000.0)
    cpu = Cpu("cgroup", 0.87)
    samples = [Sample(1, name, "web", T0 + 0.1, "boot", 2, 0.2, cpu=cpu, traffic=traffic) for name in names]
    return [*samples, Cycle(1, "web", T0, "act", False, "roundrobin", "optimal", why, servers, "share")]


@pytest.fixture
def application(tmp_path: Path) -> Iterator[tuple[Flask, str]]:
    """The dashboard and its address; anna is an operator."""
    address = free_address()
    settings = settings_in(
        tmp_path, f'target_p95_ms = 50.0\n[web]\nlisten = "{address}"\n[governor]\nmode = "observe"\n'
    )
    Users(settings.state_dir).add_user("anna", "operator", PASSWORD)
    with Journal.open(journal_path(tmp_path), clock=Clock()) as journal:
        journal.record(*site(), *wide())
        for number in range(120):
            journal.record(
                Change(1, f"c{number}", "web", T0 - 60 - number, "weight", "web1", 100, 20, "x", "lbengine", True),
                wait=False,
            )

    def send(pool: str, request: Request) -> str:
        return f"{pool}: {request.action} {request.target or ''} is done".replace("  ", " ")

    app = create_app(settings, clock=Clock(), send=send)
    server = HttpServer(app, *host_and_port(address), lambda: None)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield app, f"http://{address}"
    finally:
        app.extensions["slackwater"].streams.stop.set()
        server.end()
        thread.join(30.0)


def test_every_control_at_four_widths_and_axe_on_every_page(application: tuple[Flask, str]) -> None:
    app, url = application
    printed = browse("controls.test.mjs", url, PASSWORD, 2300, PAGES=json.dumps(pages(app)))
    passed = re.search(r"pass (\d+)", printed)
    assert passed is not None
    assert int(passed.group(1)) >= 4 * 7 + 5, printed
