"""The pages besides the overview, on a made journal: what they say, what is missing, and markup in reasons."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from flask.testing import FlaskClient

from slackwater.core import state_dir
from slackwater.core.config import load
from slackwater.core.journal.journal import Journal
from slackwater.core.messages import (
    GOVERNOR,
    Change,
    Cycle,
    Governed,
    Message,
    Sample,
    State,
    Traffic,
    Verdict,
    WeightsMean,
)
from slackwater.web import create_app
from slackwater.web.content.model import model_page
from tests.support.web_settings import settings_in
from tests.support.web_story import MARKUP, T0, Clock, Texts, story

SINCE_MS = round((T0 - 42) * 1000)
EPISODE = f"/pools/web/episodes/web1/{SINCE_MS}"


@pytest.fixture
def client(tmp_path: Path, journal: Journal) -> FlaskClient:  # noqa: ARG001 - it is there
    return create_app(settings_in(tmp_path, 'grafana_url = "https://g.example/d/x"\n'), clock=Clock()).test_client()


def text(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_an_episode_shows_why_what_was_done_and_what_came_of_it(client: FlaskClient, journal: Journal) -> None:
    done = Change(
        1, "c2", "web", T0 - 41, "weight", "web1", 100, 0, "interference: x", "lbengine", True, rt_p95_ms=60.0,
        rt_p95_predicted_ms=9.0,
    )  # fmt: skip
    shown = "p95 60.0 -> 8.0 ms: 10 s after the weight went from 100 to 0"
    journal.record(done, Change(1, "c3", "web", T0 - 31, "outcome", "web1", 60.0, 8.0, shown, "l", True, follows="c2"))
    page = text(client.get(EPISODE).text)
    assert "web1: interference" in page
    assert "goes on, for 42 s" in page
    assert "run delay 14x" in page
    assert "expected p95 9.0 ms instead of 60 ms" in page
    assert "p95 60.0 -&gt; 8.0 ms" in page
    assert "With static weights (estimate)" in page.replace("( ", "(")


@pytest.mark.parametrize(
    ("balance", "weights_mean", "shown"),
    [
        ("roundrobin", "share", "no estimate: the response times of web1 before it began are not known"),
        ("leastconn", "concurrency", "no estimate: under `leastconn` weights do not determine how requests are split"),
        ("random", "draws", "no estimate: under `random` weights do not determine how requests are split"),
        ("wlc", "concurrency", "no estimate: under `wlc` weights do not determine how requests are split"),
        ("newrr", None, "no estimate: it is not known whether weights determine how requests are split"),
    ],
)
def test_static_weights_are_estimated_only_where_weights_set_shares(
    client: FlaskClient, journal: Journal, balance: str, weights_mean: WeightsMean | None, shown: str
) -> None:
    def under(message: Message) -> Message:
        if not isinstance(message, Cycle):
            return message
        return msgspec.structs.replace(message, balance=balance, weights_mean=weights_mean)

    journal.record(*map(under, story()))
    assert shown in text(client.get(EPISODE).text)


def test_an_episode_links_to_its_time_in_grafana(client: FlaskClient) -> None:
    assert "https://g.example/d/x?from=" in client.get(EPISODE).text


def test_an_episode_that_there_was_not_is_reported(client: FlaskClient) -> None:
    answer = client.get("/pools/web/episodes/web1/1")
    assert answer.status_code == 404
    assert "No episode of web1" in answer.text
    assert client.get("/pools/other").status_code == 404


def test_episodes_are_listed_and_lead_to_their_pages(client: FlaskClient) -> None:
    for path in ("/episodes", "/pools/web"):
        assert f'href="{EPISODE}"' in client.get(path).text
    answer = client.get("/api/v1/pools/web/episodes").json
    assert answer is not None
    assert [episode["url"] for episode in answer["episodes"]] == [EPISODE]


def test_the_detectors_page_draws_the_tree_and_shows_what_is_absent(
    client: FlaskClient, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = [{"asks": "run delay", "limit": 2.8, "below": 1, "above": 2}]
    tree += [{"says": "calm", "ratio": -4.5}, {"says": "interference", "ratio": 8.0}]
    page = model_page({"name": "start", "trained": "2026-11-21", "trees": {"cgroup": tree}, "scores": {}, "data": []})
    monkeypatch.setattr("slackwater.web.content.model.Models.get", lambda _: page)
    sample = Sample(1, "web1", "web", T0, "boot", 99, 0.2, absent={"counters": f"no PMU {MARKUP}"})
    journal.record(sample, Verdict(1, "web1", "web", T0, "interference", T0 - 42, 0.8, ["x"], "m", resource="cache"))
    shown = client.get("/detector").text
    assert "<script>alert" not in shown
    shown = text(shown)
    assert "run delay? at most 2.8 ● calm (log-likelihood ratio -4.5)" in shown
    assert "above 2.8 ▲ interference (log-likelihood ratio +8.0)" in shown
    assert "1 signals counters no PMU" in shown
    assert " cache " in shown


def test_the_detectors_page_says_what_its_false_episodes_count() -> None:
    result = {"states": {}, "noises": 108, "missed": 14, "detection_delay_median_s": 0.9, "detection_delay_p95_s": 2.5}
    result |= {"false_episodes": 3, "calm_node_hours": 80.1, "false_during": {"deploy": 1, "nothing": 2}}
    tree = {"cgroup": [{"says": "calm", "ratio": -4.5}]}
    page = model_page({"name": "start", "trees": tree, "scores": {"tree": result}, "data": []})
    assert page.delays[1] == (
        "3 false episodes in 80 node-hours without a neighbour: 2 while nothing was done, 1 beside a deploy"
    )


def test_a_model_that_cannot_be_read_is_reported(tmp_path: Path, journal: Journal) -> None:  # noqa: ARG001
    settings = settings_in(tmp_path, f'[detector]\nmodel = "{tmp_path}/nothing.skops"\n')
    page = text(create_app(settings, clock=Clock()).test_client().get("/detector").text)
    assert "The model cannot be shown" in page
    assert "nothing.skops" in page


def test_settings_have_their_sources_and_no_secrets(tmp_path: Path, journal: Journal) -> None:  # noqa: ARG001
    config = tmp_path / "controller.toml"
    config.write_text(
        f'state_dir = "{tmp_path}"\n[bus]\nurl = "tls://me:hunter22@n.example:4222"\n'
        '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\nlaw = "ice"\n'
    )
    settings = load(config)
    state_dir.write_serve(tmp_path, {"config": str(config), "children": {}})
    client = create_app(settings, clock=Clock()).test_client()
    page = text(client.get("/settings").text)
    assert "law ice controller.toml, line 8" in page
    assert "u_threshold 0.9 default" in page
    assert "hunter22" not in page
    assert "slackwater reload" not in page
    config.write_text(config.read_text().replace("ice", "optimal"))
    assert "slackwater reload" in text(client.get("/settings").text)


def test_the_governors_page_shows_what_is_in_force_and_why(client: FlaskClient, journal: Journal) -> None:
    assert "The governor is off" in text(client.get("/governor").text)
    governed = Governed(1, "web1", "web", T0, "act", "slackwater", 150.0, f"at most 92 ms {MARKUP}")
    governed.rps, governed.rt_p95_ms, governed.seconds, governed.misses = 21.4, 180.0, 1000, 10
    governed.cores, governed.most_cores, governed.wanted_cores = 1, 2, 2
    governed.clock_knob, governed.clock_share, governed.wanted_clock_share = "cpu.quota", 0.6, 1.0
    governed.watts, governed.most_watts, governed.power_model = 1.5, 2.25, "a72"
    order = Change(
        1, "g1", "web", T0 - 5, "order cpu.cores", "web1", None, 1, "for 30 s: few requests", GOVERNOR, True,
        cause="governor",
    )  # fmt: skip
    journal.record(governed, order)
    raw = client.get("/governor").text
    assert MARKUP not in raw
    page = text(raw)
    assert (
        "180 ms / 150 ms missed 1 of 2, wants 2 60%, wants 100% quota in place of a clock 1.50 W of 2.25 W (a72)"
        in page
    )
    assert "99.0% of 16 min 40 s" in page
    assert "order cpu.cores of web1: none → 1 for 30 s: few requests" in page


@pytest.mark.parametrize("path", ["/pools/web", EPISODE, "/episodes", "/week", "/changes", "/detector", "/governor"])
def test_markup_in_reasons_and_people_stays_text(client: FlaskClient, journal: Journal, path: str) -> None:
    journal.record(
        Change(1, "m1", "web", T0 - 40, "weight", "web1", 100, 0, MARKUP, MARKUP, True),
        Verdict(1, "web1", "web", T0, "interference", T0 - 42, 0.8, [MARKUP], "m"),
    )
    answer = client.get(path)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert "<b>&amp;</b>" not in answer.text
    for tag, given in Texts(answer.text).tags:
        assert tag != "style"
        assert "style" not in given
        assert not any(name.startswith("on") for name in given), "no inline handler"


@pytest.mark.parametrize("path", ["/pools/web", "/episodes", "/week", "/changes", "/detector", "/governor"])
def test_without_a_journal_each_page_says_so(tmp_path: Path, path: str) -> None:
    answer = create_app(settings_in(tmp_path), clock=Clock()).test_client().get(path)
    assert answer.status_code == 503
    assert "is slackwater serve running" in text(answer.text).replace("`", "")


@pytest.mark.parametrize("last", ["5min", "90d"])
def test_ranges_are_offered_and_others_refused(client: FlaskClient, last: str) -> None:
    assert f'aria-current="true">{last}</a>' in client.get(f"/pools/web?last={last}").text
    assert client.get("/pools/web?last=ever").status_code == 400


def test_a_page_that_is_not_there_names_its_status(client: FlaskClient) -> None:
    page = text(client.get("/nope").text)
    assert "Not Found" in page
    assert "404 · to the overview" in page


def test_before_and_after_an_episode_are_times_without_another_one(client: FlaskClient, journal: Journal) -> None:
    """The same server and the other one were slow shortly before, and again shortly after."""
    begins: dict[str, list[float]] = {"web1": [T0 - 80, T0 - 42, T0 - 20], "web2": [T0 - 62]}
    for node, times in begins.items():
        for k in range(100):
            unix_s = T0 - 100 + k
            is_slow = any(begin - 1 <= unix_s < begin + 10 for begin in times)  # it is seen a second later
            traffic = Traffic(rps=80.0, rt_p50_ms=1.0, rt_p95_ms=90.0 if is_slow else 3.0, rt_p99_ms=99.0)
            journal.record(Sample(1, node, "web", unix_s, "boot", k, 1.0, traffic=traffic))
        for begin in times:
            states: dict[State, float] = {"interference": begin, "calm": begin + 10}
            for state, since in states.items():
                journal.record(Verdict(1, node, "web", since, state, since, 0.8, ["run delay 14x"], "start"))
    page = text(client.get(EPISODE).text)
    assert "p95 before 3.0 ms" in page, "what users felt"
    row = page[page.index("p95 of its response time") :].split()
    assert row[5:9] == ["3.0", "ms", "90", "ms"], "before and during"
    assert float(row[9]) < 20.0, "after; the story is slow at its end"
