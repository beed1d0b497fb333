"""Monitors that join servers which the balancer's view has found slow."""

from __future__ import annotations

import pytest

from slackwater.core.messages import Verdict
from slackwater.detector.judge import Judge
from slackwater.detector.monitors_first import BLANK_S
from tests.support.balancers_samples import outside, states
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import Cluster

ALL = ("host1", "host2", "host3")


def verdicts_of(
    judge: Judge, cluster: Cluster, seconds: float, joined: tuple[str, ...] = (), *, sees_requests: bool = True
) -> list[Verdict]:
    """The Verdicts about host1 while `joined` have monitors; `sees_requests`: whether these count requests."""
    verdicts: list[Verdict] = []
    for now_s, samples in cluster.run(seconds):
        seen = [sample if sample.node in joined else outside(sample) for sample in samples]
        for sample in seen:
            sample.boot_id = "the balancer's" if sample.source == "balancer" else "its own"
            if sample.source == "monitor" and not sees_requests:
                sample.traffic = None
        verdicts += judge.tick(now_s, seen)
    return [verdict for verdict in verdicts if verdict.node == "host1"]


def slow_server(seed: int) -> tuple[Judge, Cluster]:
    """Three servers without a monitor; host1 has a neighbour and is slow."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    verdicts_of(judge, cluster, 10.0)
    cluster.hosts["host1"].neighbour = 0.9
    assert verdicts_of(judge, cluster, 4.0)[-1].state == "slow"
    return judge, cluster


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("joined", [ALL, ("host1",)], ids=["all", "the slow server alone"])
def test_a_server_whose_neighbour_has_gone_is_slow_until_its_monitor_proves_calm(
    joined: tuple[str, ...], seed: int
) -> None:
    judge, cluster = slow_server(seed)
    cluster.hosts["host1"].neighbour = 0.0
    verdicts = verdicts_of(judge, cluster, 10.0, joined)
    words = [verdict.state for verdict in verdicts]
    assert words == sorted(words, reverse=True), "slow, then calm"
    assert 5 <= states(verdicts)["slow"] <= 25
    cluster.hosts["host1"].neighbour = 0.9
    assert verdicts_of(judge, cluster, 3.0, joined)[-1].state == "interference"


@pytest.mark.parametrize("seed", seeds(2))
def test_a_neighbour_is_named_once_the_monitors_know_calm_and_its_word_has_a_time_of_its_own(seed: int) -> None:
    judge, cluster = slow_server(seed)
    slow = verdicts_of(judge, cluster, 0.2)[-1]
    verdicts = verdicts_of(judge, cluster, 10.0, ALL)
    words = [verdict.state for verdict in verdicts]
    assert words == sorted(words, reverse=True), "slow, then interference"
    assert {verdict.since_unix_s for verdict in verdicts if verdict.state == "slow"} == {slow.since_unix_s}
    named = [verdict for verdict in verdicts if verdict.state == "interference"]
    assert {verdict.since_unix_s for verdict in named} == {named[0].time_unix_s}
    assert named[0].since_unix_s > slow.since_unix_s + 3.0
    assert named[-1].resource == "cpu"
    assert all(verdict.resource is None for verdict in verdicts if verdict.state == "slow")
    cluster.hosts["host1"].neighbour = 0.0
    assert verdicts_of(judge, cluster, 10.0, ALL)[-1].state == "calm"


@pytest.mark.parametrize("seed", seeds(2))
def test_the_first_monitor_of_a_pool_does_not_take_a_neighbour_for_calm(seed: int) -> None:
    """It has nothing to compare with, and the balancer's view knows that the requests are slow."""
    judge, cluster = slow_server(seed)
    assert set(states(verdicts_of(judge, cluster, 12.0, ("host1",)))) == {"slow"}
    cluster.hosts["host1"].neighbour = 0.0
    assert verdicts_of(judge, cluster, 10.0, ("host1",))[-1].state == "calm"
    assert set(states(verdicts_of(judge, cluster, 10.0, ("host1",)))) == {"calm"}
    cluster.hosts["host1"].neighbour = 0.9
    assert verdicts_of(judge, cluster, 3.0, ("host1",))[-1].state == "interference"


@pytest.mark.parametrize("seed", seeds(2))
def test_a_monitor_that_was_there_before_compares_with_its_own_calm_at_once(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    verdicts_of(judge, cluster, 10.0, ("host1",))
    verdicts_of(judge, cluster, 10.0)
    cluster.hosts["host1"].neighbour = 0.9
    assert verdicts_of(judge, cluster, 4.0)[-1].state == "slow"
    assert verdicts_of(judge, cluster, 1.0, ("host1",))[-1].state == "interference"


@pytest.mark.parametrize("seed", seeds(2))
def test_a_monitor_that_sees_its_first_requests_late_does_not_take_a_neighbour_for_calm(seed: int) -> None:
    judge, cluster = slow_server(seed)
    assert set(states(verdicts_of(judge, cluster, 2.0, ("host1",), sees_requests=False))) == {"slow"}
    assert set(states(verdicts_of(judge, cluster, 12.0, ("host1",)))) == {"slow"}
    cluster.hosts["host1"].neighbour = 0.0
    assert verdicts_of(judge, cluster, 10.0, ("host1",))[-1].state == "calm"


def test_a_monitor_that_never_sees_requests_speaks_for_its_server_after_some_seconds() -> None:
    judge, cluster = slow_server(1)
    verdicts_of(judge, cluster, 2.0, ("host1",), sees_requests=False)
    last = verdicts_of(judge, cluster, 2.0 * BLANK_S, ("host1",), sees_requests=False)[-1]
    assert last.source == "monitor"


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("joined", [ALL, ("host1",)], ids=["all", "the slow server alone"])
def test_a_controller_that_starts_while_a_joined_server_is_lowered_does_not_take_its_neighbour_for_calm(
    joined: tuple[str, ...], seed: int
) -> None:
    before, cluster = slow_server(seed)
    verdicts_of(before, cluster, 2.0, joined)
    judge = new_judge()
    judge.restore_baselines(before.export_baselines(0.0))
    judge.lowered = ("host1",)
    assert "calm" not in states(verdicts_of(judge, cluster, 12.0, joined))
    cluster.hosts["host1"].neighbour = 0.0
    assert verdicts_of(judge, cluster, 12.0, joined)[-1].state == "calm"
