"""What one request may take: so many values, Changes and seconds, few at a time; and how what fails is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from slackwater.core.journal.journal import Journal, JournalError
from slackwater.core.journal.series import NodeSeries
from slackwater.core.messages import Change, Message, Sample, Traffic, Verdict
from slackwater.core.messages.fields import MOST_REAL
from slackwater.web import create_app
from slackwater.web.content.pool import MOST_CARDS, MOST_DRAWN
from slackwater.web.context import Context
from slackwater.web.lanes import Lane
from slackwater.web.memory import FIRST_TO_GO, MOST_BYTES
from slackwater.web.reader import MOST_VALUES
from tests.support.paths import ROOT
from tests.support.plotted_story import crowded_story
from tests.support.web_settings import settings_in
from tests.support.web_story import T0, Clock

NODES = 100
READ_ANEW = (
    *("/pools/web", "/episodes", "/week", "/changes", "/detector", "/governor", "/metrics", "/api/v1/pools"),
    *("/api/v1/pools/web", "/api/v1/pools/web/history", "/api/v1/pools/web/episodes", "/api/v1/week"),
    *("/api/v1/pools/web/changes", "/api/v1/changes", "/api/v1/changes.csv", "/api/v1/pools/web/nodes/web1/episode"),
    "/api/v1/fleet/harm?until_unix_s=1000000",
)
SHARED = ("/", "/fleet", "/healthz", "/login", "/api/v1/fleet/harm", "/api/v1/openapi.json")


@pytest.fixture
def client(tmp_path: Path, journal: Journal) -> FlaskClient:  # noqa: ARG001 - it is made first
    return create_app(settings_in(tmp_path), clock=Clock()).test_client()


def many(count: int = NODES) -> list[Message]:
    """A Sample of each node of a large pool."""
    return [Sample(1, f"host{n:03}", "web", T0 - 5, "boot", 1, 0.2) for n in range(count)]


def error(client: FlaskClient, path: str, status: int = 400) -> str:
    answer = client.get(path)
    assert answer.status_code == status, path
    assert answer.json is not None
    return str(answer.json["error"])


# --- series and Changes


def test_a_history_of_many_nodes_is_limited_by_its_values(client: FlaskClient, journal: Journal) -> None:
    journal.record(*many())
    path = "/api/v1/pools/web/history?step_s=1&last_s="
    steps = MOST_VALUES // (len(NodeSeries.__struct_fields__) * (NODES + 2))
    answer = client.get(f"{path}{steps}")
    assert answer.json is not None
    assert len(answer.json["history"]["time_unix_s"]) == steps
    sentence = error(client, f"{path}19999")
    assert "19999 steps of these nodes are 24,478,776 values, expected at most 1,000,000" in sentence
    assert "`step_s`" in sentence
    assert client.get(f"{path}19999&node=host001&node=host002").status_code == 200, "two nodes are few"
    names = "&".join(f"node=host{n:03}" for n in range(NODES))
    assert "expected at most" in error(client, f"{path}19999&{names}")
    assert client.get(f"{path}19999&{'&'.join(['node=host001'] * 500)}").status_code == 200, "it is one node"
    assert client.get(f"{path}19999&{'&'.join(f'node=x{n}' for n in range(500))}").status_code == 200, "none is known"


def test_an_episode_of_a_large_pool_is_shown_with_some_of_its_nodes(client: FlaskClient, journal: Journal) -> None:
    since = T0 - 100
    path = f"/pools/web/episodes/host050/{round(since * 1000)}"
    journal.record(Verdict(1, "host050", "web", T0, "interference", since, 0.5, ["steal 5x"], "start"))
    assert "data-nodes" not in client.get(path).text
    journal.record(*many())
    page = client.get(path)
    assert page.status_code == 200
    drawn = page.text.partition('data-nodes="')[2].partition('"')[0].split()
    assert (drawn[:2], len(drawn)) == (["host050", "host000"], MOST_DRAWN)


@pytest.mark.parametrize("path", ["/", "/pools/web"])
@pytest.mark.parametrize(("slow", "rest"), [(MOST_CARDS - 1, ""), (12, f"and {13 - MOST_CARDS} more")])
def test_of_many_episodes_the_first_have_a_card_and_the_others_are_counted(
    client: FlaskClient, journal: Journal, path: str, slow: int, rest: str
) -> None:
    """The journal's web1 is beside a neighbour too."""
    journal.record(*crowded_story("web", 12, slow))
    page = client.get(path).text.partition("<template")[0]
    assert page.count('<li class="episode"') == MOST_CARDS
    assert f'data-field="more_episodes">{rest}</a>' in page
    assert ('data-if="more_episodes" hidden' in page) == (rest == "")


@pytest.mark.parametrize("period_s", [0.0, 1e-300, 1e300])
def test_whatever_a_node_says_of_its_period_its_episode_has_a_page(
    client: FlaskClient, journal: Journal, period_s: float
) -> None:
    journal.record(Sample(1, "web1", "web", T0, "boot", 30, period_s))
    answer = client.get(f"/pools/web/episodes/web1/{round((T0 - 42) * 1000)}")
    assert answer.status_code == 200
    assert "no estimate" in answer.text


@pytest.mark.parametrize("value", [5e-324, MOST_REAL])
def test_pages_are_shown_whatever_nodes_say_of_their_traffic(
    client: FlaskClient, journal: Journal, value: float
) -> None:
    """The least and the most that a message may say."""
    traffic = Traffic(value, value, value, value, value, errors_per_s=value)
    for n in (1, 2):
        for ago_s in reversed(range(60)):
            journal.record(Sample(1, f"web{n}", "web", T0 - ago_s, "boot", 100 - ago_s, 1.0, traffic=traffic))
    episode = f"/pools/web/episodes/web1/{round((T0 - 42) * 1000)}"
    history = "/api/v1/pools/web/history"
    for path in ("/", "/pools/web", "/episodes", "/week", episode, "/api/v1/pools/web", history, "/metrics"):
        assert client.get(path).status_code == 200, path


def test_changes_are_limited_by_their_bytes(client: FlaskClient, journal: Journal) -> None:
    long = "x" * 2000
    journal.record(
        *(
            Change(1, f"n{n}", "web", T0 - 1000 + n / 10, "cpu.share", "web1", long, long, long, "wsengine", True)
            for n in range(3000)
        )
    )
    for path in ("/api/v1/pools/web/changes?", "/api/v1/changes?", "/api/v1/changes.csv?"):
        sentence = error(client, f"{path}limit=3000")
        assert "8,388,608 bytes" in sentence
        fits = sentence.partition("at most ")[2].partition(" ")[0]
        assert client.get(f"{path}limit={fits}").status_code == 200
        assert client.get(f"{path}limit=100&page=2").status_code == 200
    assert client.get("/changes").status_code == 200
    plots: Any = client.get("/api/v1/pools/web/history").json
    assert [mark["id"] for mark in plots["marks"]] == ["c1"], "of knobs there are none"


@pytest.mark.parametrize("number", ["2.22e-299", "1e-300", "0.0009", "1e999", "-1", "inf", "0", "4e8"])
def test_numbers_beyond_all_measure_are_refused(client: FlaskClient, number: str) -> None:
    for name in ("last_s", "step_s"):
        sentence = error(client, f"/api/v1/pools/web/history?{name}={number}&until_unix_s=4000000000")
        assert f"{name}: expected a number from 0.001 to" in sentence
    with Journal.open(client.application.extensions["slackwater"].reader._path, read_only=True) as journal:
        for step_s in (2.22e-299, 5e-324, float("nan"), 0.0, -1.0):
            with pytest.raises(ValueError, match="step_s"):
                journal.history("web", 1.0, step_s, until_unix_s=4e9)
            with pytest.raises(ValueError, match="step_s"):
                journal.losses("web", 1.0, step_s, 4e9)


# --- at the same time, and for how long


def test_what_is_read_anew_waits_for_its_turn_and_what_is_shared_does_not(client: FlaskClient) -> None:
    context = client.application.extensions["slackwater"]
    assert isinstance(context, Context)
    for path in (*READ_ANEW, *SHARED):
        assert client.get(path).status_code == 200, path
    context.reader.lane = Lane(1, 0)
    with context.reader.lane.turn():
        for path in READ_ANEW:
            answer = client.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5"), path
            assert "at the same time" in answer.text
        for path in SHARED:
            assert client.get(path).status_code == 200, path
    for path in READ_ANEW:
        assert client.get(path).status_code == 200, path


def test_a_read_that_takes_too_long_is_stopped(journal: Journal) -> None:
    journal.give_up_after(0.0)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(JournalError, match="it took too long; ask for less"), journal.reading() as database:
        database.execute(endless).fetchall()


# --- memory


def test_the_process_has_a_memory_limit_and_is_the_first_to_go() -> None:
    code = (
        "import slackwater.web.memory; slackwater.web.memory.limit()\n"
        "print(open('/proc/self/oom_score_adj').read().strip())\n"
        "kept = []\n"
        "try:\n"
        f"    for _ in range({MOST_BYTES >> 20}): kept.append(bytearray(1 << 20))\n"
        "except MemoryError: count = len(kept); kept.clear(); print('refused after', count)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    adjusted, refused = done.stdout.splitlines()
    assert int(adjusted) >= FIRST_TO_GO
    assert int(refused.split()[-1]) > 300


# --- what fails


def fails(client: FlaskClient, path: str, problem: Exception) -> Any:
    """The answer of an endpoint in which this is raised."""
    app = client.application
    app.config["PROPAGATE_EXCEPTIONS"] = False
    name = app.url_map.bind("localhost").match(path)[0]

    def raises(**_: str) -> None:
        raise problem

    app.view_functions[name] = raises  # type: ignore[assignment]
    return client.get(path)


def test_a_fault_is_told_to_programs_as_json_and_to_people_as_a_page(client: FlaskClient) -> None:
    for path in ("/api/v1/pools/web/history", "/metrics", "/events", "/healthz"):
        answer = fails(client, path, ZeroDivisionError("secret"))
        assert (answer.status_code, list(answer.json)) == (500, ["error"]), path
        assert "secret" not in answer.text
    page = fails(client, "/week", ZeroDivisionError("secret"))
    assert (page.status_code, page.mimetype, "secret" in page.text) == (500, "text/html", False)


def test_every_error_below_the_api_is_json(client: FlaskClient) -> None:
    asked = [
        ("GET", "/api/v1/nothing"),
        ("GET", "/api/"),
        ("DELETE", "/api/v1/pools"),
        ("POST", "/api/v1/pools/web/control"),
    ]
    for method, path in [*asked, ("GET", "/api/v1/pools/web/nodes/%00/"), ("PUT", "/healthz")]:
        answer = client.open(path, method=method)
        assert 400 <= answer.status_code < 500
        assert msgspec.json.decode(answer.data)["error"], path


def test_a_request_that_needs_too_much_memory_is_refused(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    answer = fails(client, "/api/v1/pools/web/history", MemoryError())
    assert (answer.status_code, "ask for less" in answer.json["error"]) == (503, True)
    assert "needs more memory than the dashboard may take" in caplog.text


def test_a_damaged_file_of_users_is_no_fault_of_the_page(client: FlaskClient, tmp_path: Path) -> None:
    (tmp_path / "web-users.json").write_text("{")
    bearer = {"Authorization": "Bearer swt_x"}
    for method, path in (("POST", "/api/v1/pools/web/control"), ("GET", "/confirm/pause"), ("GET", "/week")):
        answer = client.open(path, method=method, headers=bearer)
        assert answer.status_code == 503, path
        assert "The file of users cannot be used" in answer.text
