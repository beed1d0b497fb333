"""What the balancer knows stands on the page: its state, sessions and errors. Nothing looks calm that is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from flask.testing import FlaskClient

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.views.pool import PoolStatus
from slackwater.views.row import NOTHING, Row
from slackwater.web import create_app
from slackwater.web.content.looks import Badge, badge, of_pool
from slackwater.web.content.pool import show
from tests.support.plotted_story import plotted_story
from tests.support.web_settings import settings_in
from tests.support.web_story import Clock, Texts

CALM = Row("web1", "web1", "up", "calm", 1.0, 100, 100, 100, 80.0, 0.5, 0.5, 4.0, 8.0, 0.4, "")


def but(**fields: object) -> Row:
    """A calm server, except for this."""
    row = msgspec.structs.replace(CALM)
    for name, value in fields.items():
        setattr(row, name, value)
    return row


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    with Journal.open(journal_path(tmp_path), clock=Clock()) as journal:
        journal.record(*plotted_story())
        yield create_app(settings_in(tmp_path), clock=Clock()).test_client()


def test_the_balancer_s_state_sessions_and_errors_are_columns_and_a_failing_server_is_named(
    client: FlaskClient,
) -> None:
    for path in ("/", "/pools/web"):
        text = client.get(path).text
        page = Texts(text)
        assert page.fields["headline"] == [
            "1 of 3 calm; web1 fails 37 of 100 requests, its peers 0; web3 is down in HAProxy"
        ]
        assert '<th scope="col">HAProxy</th>' in text
        assert page.fields["condition"] == ["up", "up", "down"]
        assert page.fields["sessions"] == ["3", "2", "0"]
        assert page.fields["errors"] == ["12", "0", "0"]
        assert page.fields["word"] == ["failing", "calm", "down"]
        assert (page.fields["total_errors"], page.fields["failing"]) == (["12"], ["failing: web1"])
        assert page.fields["since"] == ["", "4 min", ""], "of the Verdict's state, where that is shown"
        rows = [given for tag, given in page.tags if tag == "tr" and given.get("data-node")]
        assert [row["data-state"] for row in rows] == ["failing", "calm", "down"]
        assert ["data-fails" in row for row in rows] == [True, False, False]
        (pool,) = [given for _, given in page.tags if "data-pool" in given]
        assert pool["data-state"] == "failing", "nothing green about it"


def test_the_fleet_shows_the_same(client: FlaskClient) -> None:
    text = client.get("/fleet").text
    assert "✕ 1 failing, ✕ 1 down, ● 1 calm" in text
    assert "✕ failing" in text
    assert "✕ down" in text
    since = re.findall(r'<tr data-key="web/(web[123])".*?data-field="since">(.*?)</td>', text)
    assert sorted(since) == [("web1", NOTHING), ("web2", "4 min"), ("web3", NOTHING)]


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (CALM, Badge("calm", "●", "calm")),
        (but(condition="unchecked"), Badge("calm", "●", "calm")),
        (but(condition=None), Badge("calm", "●", "calm")),
        (but(condition="down"), Badge("down", "✕", "down")),
        (but(condition="maintenance"), Badge("aside", "○", "in maintenance")),
        (but(failed_share=0.3, peers_failed_share=0.0), Badge("failing", "✕", "failing")),
        (but(state="interference", resource="cpu"), Badge("interference", "▲", "interference: cpu")),
        (but(state="interference", peers_failed_share=0.0), Badge("failing", "✕", "failing")),
        (but(rt_p95_now_ms=155.0, rt_p95_usual_ms=9.0), Badge("slow", "!", "slow")),
        (but(state="unknown"), Badge("unknown", "?", "unknown")),
    ],
)
def test_a_server_looks_as_what_is_most_urgent_of_it(row: Row, shown: Badge) -> None:
    assert badge(row) == shown


def view(*rows: Row, **more: object) -> PoolStatus:
    return PoolStatus(pool="web", sentence="", headline="", stale=False, state="calm", rows=list(rows), **more)  # type: ignore[arg-type]


def test_a_pool_looks_as_its_most_urgent_server_and_is_never_calm_with_an_exception() -> None:
    assert of_pool(view(CALM, CALM)).look == "calm"
    assert of_pool(view(CALM, but(condition="down"))).look == "down"
    assert of_pool(view(but(condition="down"), but(peers_failed_share=0.0))).look == "failing"
    assert of_pool(view(CALM, but(exceptions=["has weight 40 of 100"]))) == Badge("attention", "!", "attention")
    assert of_pool(view(but(condition="down"), outage="no_answer")).look == "calm", "the last known rows do not speak"


def test_requests_that_wait_stand_beside_the_sessions() -> None:
    (row,) = show(view(but(in_flight=8, queue=3)), [], 2.0).rows
    assert row.sessions == "8 + 3 queued"
    (row,) = show(view(CALM), [], 2.0).rows
    assert (row.sessions, row.errors) == (NOTHING, NOTHING), "what is not known is no zero"
