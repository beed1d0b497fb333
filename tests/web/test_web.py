"""The dashboard: pages and API with Flask's test client, the stream and its end on the real server."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from slackwater.core.config import ControllerSettings, parse
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import (
    Sample,
)
from slackwater.views.percentiles import OF_MONITOR
from slackwater.views.pool import NOTHING
from slackwater.views.row import clock as local
from slackwater.web import create_app
from slackwater.web.reader import JournalReader
from slackwater.web.streams import MAX_STREAMS
from tests.support.paths import ROOT
from tests.support.real_processes import free_address
from tests.support.web_story import MARKUP, T0, Clock, Texts, story

IN_TIME_S = 60.0


def settings_in(folder: Path, listen: str = "127.0.0.1:8099", pools: str = "web") -> ControllerSettings:
    tables = "".join(f'[[pool]]\nname = "{name}"\nbackend = "{name}"\nsocket = "/s"\n' for name in pools.split())
    return parse(f'state_dir = "{folder}"\n{tables}[web]\nlisten = "{listen}"\n', "test")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with Journal.open(journal_path(tmp_path), clock=clock) as opened:
        yield opened


@pytest.fixture
def client(tmp_path: Path, clock: Clock) -> FlaskClient:
    return create_app(settings_in(tmp_path), clock=clock).test_client()


def test_nothing_is_to_be_measured_where_no_weight_was_changed(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story(mode="observe"))
    page = Texts(client.get("/").text)
    assert page.fields["helped"] == ["nothing to measure: no weight was changed"]


def test_the_page_has_the_table_without_a_script(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    answer = client.get("/")
    assert answer.status_code == 200
    page = Texts(answer.text)
    assert page.fields["headline"] == ["1 of 2 calm; web1 is beside a noisy neighbour"]
    assert page.fields["node"] == ["web1", "web1", "web2"], "the episode that goes on comes first"
    assert page.fields["done"] == ["weight 100 → 0, it gets 50% of the requests"]
    assert page.fields["helped"] == ["not known yet: it is measured 10 s after a change"]
    assert page.fields["word"] == ["interference", "interference", "calm"]
    assert page.fields["since"] == ["42 s", "42 s"]
    assert page.fields["weight"] == ["0 / 100", "100 / 100"]
    assert page.fields["p95"] == ["44 ms", "62 ms", "4.5 ms"], "of the users, then of the servers"
    assert page.fields["cpu"] == ["40%", "40%"]
    assert len(page.fields["p50"]) == 2
    assert len(page.fields["p99"]) == 3, "of the users, then of the servers"
    assert answer.text.count(" data-cpu>") == 2, "a pool without it has no column for it"
    assert page.fields["what"] == ["weight of web1: 100 → 0"]
    slowed = "a noisy neighbour slows it"
    assert page.fields["why"] == [f"{slowed}, so it gets weight 0 instead of 100", ""]
    assert page.fields["reason"] == ["interference: run delay 14x"]
    assert page.stands["state"] == "acting"


def test_each_state_has_a_word_and_a_sign_of_its_own(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    page = Texts(client.get("/").text)
    assert page.fields["symbol"][1:] == ["▲", "▲", "●"]
    assert dict(next(given for tag, given in page.tags if tag == "tr" and "data-node" in given))["data-state"]


def test_in_observe_mode_it_says_what_would_have_been(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story(mode="observe"))
    page = Texts(client.get("/").text)
    assert page.fields["mode"] == ["observe"]
    assert page.fields["weight"] == ["100 / 100", "100 / 100"]
    assert page.fields["wanted"] == ["would be 0", ""]
    assert "would" not in page.hidden


def test_a_silent_controller_looks_dead(client: FlaskClient, journal: Journal, clock: Clock) -> None:
    journal.record(*story())
    clock.now_unix_s += 12.0
    page = Texts(client.get("/").text)
    assert page.fields["headline"] == [
        f"The controller is silent: no data for 12 s; the weights are those of {local(T0)}"
    ]
    assert (page.stands["state"], page.stands["symbol"]) == ("broken", "✕")
    assert page.stands["sentence"].startswith("The controller is silent about pool web")
    assert "systemctl restart slackwater-controller" in page.stands["todo"]
    assert page.fields["word"] == ["unknown", "unknown"]
    assert page.fields["rps"] == [NOTHING, NOTHING]
    assert page.fields["symbol"][0] == "?"
    assert any("data-stale" in given for _, given in page.tags)


def test_without_a_journal_the_page_says_so_and_recovers(client: FlaskClient, tmp_path: Path, clock: Clock) -> None:
    answer = client.get("/")
    assert answer.status_code == 503
    stands = Texts(answer.text).stands
    assert stands["state"] == "empty"
    assert "is slackwater serve running with this state_dir?" in stands["sentence"]
    with Journal.open(journal_path(tmp_path), clock=clock) as journal:
        clock.now_unix_s += 1.0
        answer = client.get("/")
        assert answer.status_code == 200
        assert Texts(answer.text).stands["sentence"] == "Nothing is recorded of pool web yet."
        journal.record(*story())
    clock.now_unix_s += 1.0
    assert Texts(client.get("/").text).fields["node"] == ["web1", "web1", "web2"]


def test_names_and_reasons_with_markup_stay_text(tmp_path: Path, client: FlaskClient, journal: Journal) -> None:
    journal.record(*story(why=MARKUP, sentence=MARKUP))
    # A name like this never passes `messages.decode`; the page does not rely on that.
    journal.record(Sample(1, MARKUP, "web", T0, "boot", 1, 0.2))
    answer = client.get("/").text
    assert "<script>alert" not in answer
    page = Texts(answer)
    assert page.fields["reason"][-1] == MARKUP
    assert Texts(client.get("/pools/web").text).fields["sentence"] == [MARKUP]
    assert page.fields["node"][3] == MARKUP
    assert all(
        (given.get("src") or "").startswith(("/static/js/", "/static/vendor/"))
        for tag, given in page.tags
        if tag == "script"
    )
    event = json.loads(JournalReader(settings_in(tmp_path), lambda: T0).event_json())
    assert event["pools"][0]["changes"][0]["reason"] == MARKUP, "as data; the script sets it as text"


def test_the_scripts_never_write_markup() -> None:
    scripts = list((ROOT / "web/static/js").glob("*.js"))
    assert scripts
    for script in scripts:
        unsafe = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script.read_text()
        )
        assert not unsafe, f"{script.name}: {unsafe}"


@pytest.mark.parametrize("path", ["/", "/api/v1/pools", "/healthz", "/nothing", "/static/js/main.js"])
def test_every_answer_has_the_strict_headers(client: FlaskClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"


def test_the_page_obeys_its_own_policy(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    page = Texts(client.get("/").text)
    for tag, given in page.tags:
        assert tag != "style"
        assert "style" not in given, "no inline style"
        assert not any(name.startswith("on") for name in given), "no inline handler"
        assert tag != "script" or given.get("src"), "no inline script"
        for link in (given.get("src"), given.get("href")):
            assert link is None or link.startswith(("/", "#")), f"{link} is not of this server"
            if link and link.startswith("/static/"):
                assert client.get(link).status_code == 200, link


def test_nothing_can_be_posted(client: FlaskClient) -> None:
    assert client.post("/").status_code == 405
    assert client.post("/api/v1/pools").status_code == 405


# --- the API


def test_the_api_gives_the_view(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    pools = client.get("/api/v1/pools").json
    assert pools is not None
    (pool,) = pools["pools"]
    assert pool == client.get("/api/v1/pools/web").json
    assert (pool["mode"], pool["stale"], pool["age_s"]) == ("act", False, 0.0)
    assert pool["rows"][0] == {
        "node": "web1", "server": "web1", "condition": "up", "state": "interference", "since_unix_s": T0 - 42,
        "weight": 0, "baseline": 100, "wanted": 0, "rps": 80.0, "share": 0.5, "share_wanted": 0.0,
        "rt_p50_ms": 2.0, "rt_p95_ms": 62.0, "rt_p99_ms": None, "cpu": 0.4, "resource": None, "retuned": [],
        "governed": [], "why": "interference: run delay 14x", "in_flight": None, "queue": None, "errors_per_s": None,
        "failed_share": None, "peers_failed_share": None, "rt_p95_now_ms": None, "rt_p95_usual_ms": None,
        "as_in_calm": [], "decided": True, "pinned": False,
        "summary": "a noisy neighbour slows it, so it gets weight 0 instead of 100",
        "percentiles": {
            "requests": 0, "p50_ms": None, "p95_ms": None, "p99_ms": None, "p999_ms": None, "absent": OF_MONITOR,
        },
        "full_weight": 100,
        "own_limit_cores": None,
        "exceptions": ["is beside a noisy neighbour"],
    }  # fmt: skip


def test_the_api_gives_history_with_marks_and_spans(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    plots: Any = client.get("/api/v1/pools/web/history?last_s=60&step_s=1").json
    assert len(plots["history"]["time_unix_s"]) == 60
    assert plots["history"]["nodes"]["web1"]["rt_p95_ms"][-3:] == [62.0] * 3
    assert [(mark["node"], mark["before"], mark["after"]) for mark in plots["marks"]] == [("web1", 100.0, 0.0)]
    assert [(span["node"], span["state"]) for span in plots["spans"]] == [("web1", "interference")]


def test_the_api_gives_changes(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    changes: Any = client.get("/api/v1/pools/web/changes?limit=5").json
    assert [change["id"] for change in changes["changes"]] == ["c1"]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/v1/pools/other", 404, "no pool `other`; the configuration has: web"),
        ("/api/v1/pools/other/history", 404, "no pool `other`"),
        ("/api/v1/pools/web/history?step_s=0", 400, "step_s: expected a number from 0.001"),
        ("/api/v1/pools/web/history?last_s=nan", 400, "last_s: expected a number from 0.001"),
        ("/api/v1/pools/web/history?last_s=1e6&step_s=1", 400, "expected at most 20000"),
        ("/api/v1/pools/web/changes?limit=many", 400, "limit: expected a number from 1 to 10000"),
    ],
)
def test_the_api_refuses_in_words(client: FlaskClient, journal: Journal, path: str, status: int, text: str) -> None:
    journal.record(*story())
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json is not None
    assert text in answer.json["error"]


@pytest.mark.parametrize("path", ["/api/v1/pools", "/api/v1/pools/web", "/api/v1/pools/web/history", "/healthz"])
def test_the_api_says_when_there_is_no_journal(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 503
    assert answer.json is not None
    assert answer.json["error"].startswith("no journal at ")


def test_healthz_is_well_only_while_the_controller_is(client: FlaskClient, journal: Journal, clock: Clock) -> None:
    journal.record(*story())
    assert client.get("/healthz").status_code == 200
    clock.now_unix_s += 12.0
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json == {"ok": False, "pools": {"web": {"age_s": 12.0, "stale": True, "outage": None}}}


def test_all_pools_are_on_the_page(tmp_path: Path, journal: Journal, clock: Clock) -> None:
    journal.record(*story())
    client = create_app(settings_in(tmp_path, pools="web shop"), clock=clock).test_client()
    page = Texts(client.get("/").text)
    assert [given["data-pool"] for tag, given in page.tags if "data-pool" in given] == ["web", "shop"]
    assert page.fields["headline"][1] == "The controller is silent: nothing recorded yet"


# --- live


def test_the_first_event_comes_at_once(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    answer = client.get("/events?pool=web", buffered=False)
    assert answer.mimetype == "text/event-stream"
    first = next(iter(answer.iter_encoded())).decode()
    answer.close()
    assert first.startswith("retry: 1000\ndata: ")
    assert first.endswith("\n\n")
    event = json.loads(first.partition("data: ")[2])
    assert [row["state"] for row in event["pools"][0]["rows"]] == ["interference", "calm"]
    assert event["tails"]["web"]["history"]["nodes"]["web1"]["rt_p95_ms"][-1] == 62.0
    assert event["error"] == ""


def test_an_event_without_a_journal_says_why(client: FlaskClient) -> None:
    answer = client.get("/events", buffered=False)
    event = json.loads(next(iter(answer.iter_encoded())).decode().partition("data: ")[2])
    answer.close()
    assert event["error"].startswith("no journal at ")
    assert event["pools"][0]["stale"] is True


def test_too_many_viewers_are_refused_and_a_place_becomes_free(client: FlaskClient, journal: Journal) -> None:
    journal.record(*story())
    viewers = [client.get("/events", buffered=False) for _ in range(MAX_STREAMS)]
    assert client.get("/events").status_code == 503
    viewers.pop().close()
    again = client.get("/events", buffered=False)
    assert again.status_code == 200
    for viewer in [*viewers, again]:
        viewer.close()


class Served:
    """`slackwater.web.service.run` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        address = free_address()
        self.port = int(address.rpartition(":")[2])
        config = (
            f'state_dir = "{folder}"\n[[pool]]\nname = "web"\nbackend = "b"\nsocket = "/s"\n'
            f'[web]\nlisten = "{address}"\n'
        )
        code = (
            "import asyncio, sys, slackwater.lbengine.backends.table\n"
            "from slackwater.core.config import parse; from slackwater.web import service\n"
            "try: asyncio.run(service.run(parse(sys.argv[1], 'test')))\n"
            "except service.WebError as error: sys.exit(str(error))\n"
        )
        self.command = [sys.executable, "-c", code, config]
        self.process = subprocess.Popen(self.command, cwd=ROOT)

    def get(self, path: str) -> http.client.HTTPResponse:
        """Tries until it listens."""
        deadline = time.monotonic() + IN_TIME_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=IN_TIME_S)
            try:
                connection.request("GET", path)
                return connection.getresponse()
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the dashboard does not listen"
                time.sleep(0.05)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.process.kill()
    served.process.wait()


def event_of(stream: http.client.HTTPResponse) -> Any:
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    return json.loads(line[6:])


def test_the_stream_goes_on_and_shows_what_is_new(served: Served, tmp_path: Path) -> None:
    stream = served.get("/events")
    assert event_of(stream)["error"].startswith("no journal at ")
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(*story())
    deadline = time.monotonic() + IN_TIME_S
    while not (rows := event_of(stream)["pools"][0]["rows"]):
        assert time.monotonic() < deadline
    assert [row["node"] for row in rows] == ["web1", "web2"]
    stream.close()


def test_it_ends_on_sigterm_also_while_somebody_watches(served: Served) -> None:
    stream = served.get("/events")
    event_of(stream)
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(IN_TIME_S) == 0
    stream.close()


def test_viewers_that_leave_free_their_place(served: Served) -> None:
    for _ in range(MAX_STREAMS):
        stream = served.get("/events")
        event_of(stream)
        stream.close()
    deadline = time.monotonic() + IN_TIME_S
    while True:
        answer = served.get("/events")
        status = answer.status
        answer.close()
        if status == 200:
            break
        assert time.monotonic() < deadline, "the places of viewers that left are not freed"
        time.sleep(0.1)


def test_a_port_that_is_taken_is_reported_in_words(served: Served) -> None:
    served.get("/healthz").close()
    second = subprocess.run(served.command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert f"the dashboard cannot listen on 127.0.0.1:{served.port}" in second.stderr
    assert "in use" in second.stderr
    assert "Traceback" not in second.stderr
