"""The API as its description says it, asked by schemathesis; `/metrics` and its users; the audit log's files."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from flask.testing import FlaskClient
from hypothesis import HealthCheck, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import load_all_checks

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, ChangeCause, Cycle, Governed, ResponseTimes, Sample, Traffic, plain_text
from slackwater.web import create_app
from slackwater.web.blueprints.api import described
from slackwater.web.metric_histograms import SERVER_RESPONSE
from slackwater.web.metric_values import METRICS, reason_of
from slackwater.web.users import Users
from tests.support.web_settings import settings_in
from tests.support.web_story import MARKUP, T0, Clock, story

STATE: list[Users] = []
load_all_checks()
api = schemathesis.openapi.from_dict(described.description())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = tmp_path_factory.mktemp("state")
    STATE[:] = [Users(folder)]
    with Journal.open(journal_path(folder), clock=Clock()) as journal:
        journal.record(*story())
        yield create_app(settings_in(folder), clock=Clock(), send=lambda *_: "done").test_client()


@pytest.fixture(scope="module")
def bearer(client: FlaskClient) -> dict[str, str]:  # noqa: ARG001 - it makes the folder
    return {"Authorization": f"Bearer {STATE[0].add_token('schemathesis', 'operator')}"}


@api.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_described(
    case: schemathesis.Case[Any], client: FlaskClient, bearer: dict[str, str]
) -> None:
    response = case.call(app=client.application, base_url="http://localhost", headers=bearer)
    case.validate_response(response)


def test_the_description_is_served(client: FlaskClient) -> None:
    assert client.get("/api/v1/openapi.json").json == json.loads(msgspec.json.encode(described.description()))


def test_every_route_of_the_api_is_described(client: FlaskClient) -> None:
    rules = {rule.rule.replace("<", "{").replace(">", "}") for rule in client.application.url_map.iter_rules()}
    served = {rule for rule in rules if rule.startswith("/api/v1/")} - {"/api/v1/openapi.json"}
    assert served == set(described.description()["paths"])


# --- for the site's own monitoring


def metrics(client: FlaskClient) -> dict[str, list[Any]]:
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].count("charset") == 1
    assert answer.status_code == 200
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(answer.text):
        samples.setdefault(family.name, []).extend(family.samples)
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def test_metrics_show_states_weights_ages_and_changes(client: FlaskClient) -> None:
    samples = metrics(client)
    on = {sample.labels["node"]: sample.labels["state"] for sample in samples["slackwater_node_state"] if sample.value}
    assert on == {"web1": "interference", "web2": "calm"}
    assert {sample.labels["node"]: sample.value for sample in samples["slackwater_server_weight"]} == {
        "web1": 0.0,
        "web2": 100.0,
    }
    assert samples["slackwater_pool_acting"][0].value == 1.0
    assert samples["slackwater_lease_valid"][0].value == 1.0
    assert samples["slackwater_cycle_age_seconds"][0].value == 0.0
    assert samples["slackwater_changes_total"][0].value == 1.0
    (reason, *_) = samples["slackwater_changes_last_hour"]
    assert reason.labels == {"pool": "web", "what": "weight", "reason": "interference", "applied": "true"}
    assert {sample.labels["percentile"]: sample.value for sample in samples["slackwater_decision_latency_seconds"]} == {
        "p50": 0.0,
        "p95": 0.0,
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not in PATH; `make setup` brings it")
def test_promtool_finds_nothing_in_the_metrics(client: FlaskClient) -> None:
    text = client.get("/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("cause", ["slow", "tried", "fast", "away", "warm_up", "calm", "pinned", "governor"])
def test_a_change_has_its_own_cause_as_reason_in_the_metrics(cause: ChangeCause) -> None:
    made = Change(1, "id", "web", T0, "weight", "web1", 0, 10, "why", "lbengine", True, cause=cause)
    assert reason_of(made) == cause


def test_metrics_have_a_histogram_of_each_server_that_adds_up(tmp_path: Path) -> None:
    clock = Clock()
    settings = settings_in(tmp_path)
    (pool,) = settings.pool
    with Journal.open(journal_path(tmp_path), clock=clock) as journal:
        for node, server in (("web1", "web1"), ("web1", "forged"), ("web2", "web1")):
            for _ in range(2):
                traffic = Traffic(times=ResponseTimes(server, 0.5, [(15, 3), (16, 2), (240, 1)]))
                journal.record(Sample(1, node, pool.name, T0, "boot", 0, 0.2, source="balancer", traffic=traffic))
                clock.now_unix_s += 10.0
    samples = metrics(create_app(settings, clock=clock).test_client())
    buckets = samples["slackwater_server_response_seconds_bucket"]
    assert {(bucket.labels["pool"], bucket.labels["server"]) for bucket in buckets} == {("web", "web1")}, (
        "a node's Samples count for its own servers alone"
    )
    mine = {bucket.labels["le"]: bucket.value for bucket in buckets}
    assert (mine["0.00025"], mine["0.0005"], mine["10"], mine["+Inf"], len(mine)) == (6.0, 10.0, 10.0, 12.0, 16)
    assert {sample.value for sample in samples["slackwater_server_response_seconds_count"]} == {12.0}
    assert {sample.value for sample in samples["slackwater_server_response_seconds_sum"]} == {1.0}


def test_metrics_of_the_governor_are_those_of_the_last_seconds(tmp_path: Path) -> None:
    clock = Clock()
    governed = Governed(1, "web1", "web", T0, "act", "slackwater", 150.0, "enough")
    governed.rt_p95_ms, governed.cores, governed.most_cores, governed.wanted_cores = 60.0, 1, 2, 1
    governed.clock_knob, governed.clock_share, governed.seconds, governed.misses = "cpu.quota", 0.6, 100, 3
    governed.watts, governed.most_watts, governed.power_model = 1.5, 2.0, "a72"
    with Journal.open(journal_path(tmp_path), clock=clock) as journal:
        journal.record(governed)
    client = create_app(settings_in(tmp_path), clock=clock).test_client()
    samples = metrics(client)

    def value(name: str) -> float:
        return float(samples[f"slackwater_governor_{name}"][0].value)

    assert (value("acting"), value("target_seconds"), value("response_p95_seconds")) == (1.0, 0.15, 0.06)
    assert (value("cores"), value("most_cores"), value("wanted_cores"), value("watts")) == (1.0, 2.0, 1.0, 1.5)
    assert (value("seconds_total"), value("misses_total")) == (100.0, 3.0)
    share = samples["slackwater_governor_clock_share"][0]
    assert (share.labels["knob"], share.value) == ("cpu.quota", 0.6), "a quota is called one"
    assert samples["slackwater_governor_watts"][0].labels["model"] == "a72"
    clock.now_unix_s += 10.0
    assert not metrics(client).get("slackwater_governor_cores"), "what is old is not shown"


def test_metrics_of_a_silent_controller_say_so(tmp_path: Path) -> None:
    clock = Clock()
    client = create_app(settings_in(tmp_path), clock=clock).test_client()
    assert metrics(client)["slackwater_journal_readable"][0].value == 0.0
    with Journal.open(journal_path(tmp_path), clock=clock) as journal:
        journal.record(*story())
    clock.now_unix_s += 60.0
    samples = metrics(client)
    assert samples["slackwater_pool_stale"][0].value == 1.0
    assert samples["slackwater_lease_valid"][0].value == 0.0
    assert samples["slackwater_cycle_age_seconds"][0].value == 60.0
    assert not any(sample.value for sample in samples["slackwater_node_state"] if sample.labels["state"] != "unknown")


def test_every_metric_that_is_documented_is_served(client: FlaskClient) -> None:
    known = {name for name, _, _ in [*METRICS, SERVER_RESPONSE]}
    assert known >= {name for name in metrics(client) if name.startswith("slackwater_")} - {
        name.removesuffix("_total") for name in known
    }


# --- the audit log


def test_the_audit_log_as_csv_runs_no_formula_and_loses_nothing(tmp_path: Path) -> None:
    change = Change(1, "c9", "web", T0, "weight", "web1", 100, 0, '=cmd("x"),\nsecond line', MARKUP, True)
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(change)
    client = create_app(settings_in(tmp_path), clock=Clock()).test_client()
    answer = client.get("/api/v1/changes.csv")
    assert answer.mimetype == "text/csv"
    (row,) = csv.DictReader(io.StringIO(answer.text, newline=""))
    assert row["why"] == "'" + plain_text(change.why)
    assert (row["before"], row["after"], row["by"], row["rt_p95_ms"]) == ("100", "0", MARKUP, "")
    listed = client.get("/api/v1/changes").json
    assert listed is not None
    assert listed["changes"][0]["why"] == plain_text(change.why)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["c3", "c2", "c1"]),
        ("?what=pause", ["c2"]),
        ("?target=web1", ["c1"]),
        ("?pool=other", ["c3"]),
        ("?text=DEPLOY", ["c2"]),
        ("?text=100%25_", ["c3"]),
        ("?text=%22quoted%22", ["c1"]),
        ("?since=1h", ["c3"]),
        ("?limit=1&page=2", ["c2"]),
        ("?text=nothing", []),
    ],
)
def test_changes_are_found_by_filter_and_text(tmp_path: Path, query: str, ids: list[str]) -> None:
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(
            Change(1, "c1", "web", T0 - 9000, "weight", "web1", 100, 0, 'said "quoted"', "lbengine", True),
            Change(1, "c2", "web", T0 - 8000, "pause", "web", None, None, "Deploy of 14:00", "anna", True),
            Change(1, "c3", "other", T0 - 60, "weight", "db1", 100, 50, "100%_sure", "lbengine", True),
        )
    client = create_app(settings_in(tmp_path), clock=Clock()).test_client()
    listed = client.get(f"/api/v1/changes{query}").json
    assert listed is not None
    assert [change["id"] for change in listed["changes"]] == ids
    assert (
        client.get(f"/changes{query.replace('&limit=1', '').replace('?limit=1&page=2', '?since=all')}").status_code
        == 200
    )


@pytest.mark.parametrize("query", ["?since=tomorrow", "?page=0", "?page=x"])
def test_a_filter_that_cannot_be_is_refused_in_words(tmp_path: Path, query: str) -> None:
    Journal.open(journal_path(tmp_path)).close()
    client = create_app(settings_in(tmp_path), clock=Clock()).test_client()
    for path in ("/changes", "/api/v1/changes"):
        answer = client.get(path + query)
        assert answer.status_code == 400
        assert "expected" in answer.text


def test_a_balancer_that_does_not_answer_is_unhealthy_and_the_controller_is_not_silent(tmp_path: Path) -> None:
    with Journal.open(journal_path(tmp_path), clock=lambda: T0) as journal:
        sentence = "/s: nobody listens there"
        journal.record(Cycle(1, "web", T0, "act", False, "leastconn", "optimal", sentence, [], outage="no_answer"))
    client = create_app(settings_in(tmp_path), clock=lambda: T0).test_client()
    health = client.get("/healthz")
    assert health.status_code == 503
    assert health.json == {"ok": False, "pools": {"web": {"age_s": 0.0, "stale": False, "outage": "no_answer"}}}
    metrics = client.get("/metrics").text
    assert 'slackwater_pool_balancer_away{pool="web"} 1' in metrics
    assert 'slackwater_pool_stale{pool="web"} 0' in metrics
