"""Servers without a monitor are judged by what the balancer sees: slow by themselves, or for another reason."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from slackwater.core import messages
from slackwater.core.messages import Sample, Traffic, Verdict
from slackwater.detector.capacity.calm_capacity import ERROR, LEAST_OVER_HIGHEST, MOST_OVER_HIGHEST, CalmCapacity
from slackwater.detector.classify.tree import PLAIN, SHIPPED, load, model_of
from slackwater.detector.explain import TAIL_ALONE
from slackwater.detector.judge import HIGHEST_RPS
from slackwater.detector.sample_sorter import FORGET_AFTER_S
from tests.support.balancers_samples import outside, play, seconds_until, states
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import Cluster


@pytest.mark.parametrize("seed", seeds(3))
def test_a_server_that_is_slow_by_itself_is_slow_and_no_cause_is_named(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    assert set(states(play(judge, cluster, 20.0))) == {"calm"}
    cluster.hosts["host1"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host1", "slow") <= 2.0
    verdicts = play(judge, cluster, 3.0)
    assert set(states(verdicts, "host1")) == {"slow"}
    assert set(states(verdicts, "host2", "host3")) == {"calm"}
    last = [verdict for verdict in verdicts if verdict.node == "host1"][-1]
    assert "times as long as usual, unlike on the other servers" in last.path[0]
    assert "its calm baseline" in last.path[1]
    assert "the cause is not visible from the balancer" in last.path
    assert 0.5 < last.severity < 1.0
    assert (last.resource, last.capacity_rps, last.cpu) == (None, None, None)
    assert messages.decode("verdict", messages.encode(last)) == last
    cluster.hosts["host1"].neighbour = 0.0
    assert seconds_until(judge, cluster, "host1", "calm") <= 10.0


def test_the_calm_capacity_is_that_of_a_processor_sharing_queue_within_what_was_carried() -> None:
    slots, calm = np.arange(4), np.array([True, True, False, True])
    capacity = CalmCapacity()
    capacity.resize(4)
    nothing, no_time = np.full(4, np.nan), np.zeros(4)
    assert np.isnan(capacity.update(slots, nothing, nothing, nothing, no_time, calm)).all()
    for _ in range(50):
        rps, rt_ms, highest = (
            np.array([50.0, 300.0, 50.0, 30.0]),
            np.array([20.0, 20.0, 20.0, 2.0]),
            np.array([50.0, 600.0, np.nan, 40.0]),
        )
        known = capacity.update(slots, rps, rt_ms, highest, np.full(4, 0.2), calm)
    assert known[0] == pytest.approx(100.0)
    assert known[1] == pytest.approx(LEAST_OVER_HIGHEST * 600.0), "what it carried is sure"
    assert np.isnan(known[2]), "nothing is learnt from what is not calm"
    idle = capacity.update(slots[:1], np.zeros(1), np.full(1, np.nan), np.full(1, 50.0), np.full(1, 60.0), calm[:1])
    assert idle[0] >= LEAST_OVER_HIGHEST * 50.0
    assert known[3] == pytest.approx(MOST_OVER_HIGHEST * 40.0), "530 by its times, which may be those of a quota's rest"


def test_a_calm_server_without_a_monitor_has_a_capacity_and_a_slow_one_has_none() -> None:
    judge, cluster = new_judge(), Cluster(seed=7)
    last = play(judge, cluster, 20.0)[-1]
    assert last.capacity_rps is not None
    assert last.capacity_stderr_rps == pytest.approx(ERROR * last.capacity_rps)
    assert last.capacity_rps > cluster.hosts["host1"].rps
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "slow")
    capacities = {verdict.node: verdict.capacity_rps for verdict in play(judge, cluster, 1.0)}
    assert capacities["host1"] is None
    assert capacities["host2"] is not None


@pytest.mark.parametrize("seed", seeds(3))
def test_what_slows_all_servers_or_comes_with_a_higher_rate_is_not_slow(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    for host in cluster.hosts.values():
        host.slow_database_ms = 30.0
    verdicts = play(judge, cluster, 10.0)
    assert "slow" not in states(verdicts)
    assert "all_slow" in states(verdicts[-3:])
    for host in cluster.hosts.values():
        host.slow_database_ms = 0.0
    play(judge, cluster, 10.0)
    cluster.hosts["host2"].rps *= 2.2
    assert "slow" not in states(play(judge, cluster, 10.0))


@pytest.mark.parametrize("seed", seeds(3))
def test_another_mix_of_routes_and_a_deploy_on_all_are_calm(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed, routes=True)
    play(judge, cluster, 20.0)
    cluster.hosts["host2"].searches = 0.4
    assert "slow" not in states(play(judge, cluster, 10.0))
    cluster.hosts["host2"].searches = 0.1
    for name in cluster.names:
        cluster.hosts[name].dearer = 1.3
        assert "slow" not in states(play(judge, cluster, 5.0))


def test_one_slow_client_on_one_connection_is_no_slow_server() -> None:
    """Its requests take a second each, one after the other: one of 83 that the server answers in that time."""
    judge, cluster = new_judge(), Cluster(seed=4)
    play(judge, cluster, 20.0)
    verdicts = []
    for number in range(100):
        for now_s, samples in cluster.run(0.2):
            for sample in map(outside, samples):
                if sample.node == "host1" and number % 5 == 0 and sample.traffic is not None:
                    answers = max(1.0, (sample.traffic.rps or 0.0) * 0.2)
                    mean_ms = ((answers - 1.0) * (sample.traffic.rt_mean_ms or 0.0) + 1000.0) / answers
                    sample.traffic = msgspec.structs.replace(sample.traffic, rt_mean_ms=mean_ms, rt_p95_ms=1000.0)
                verdicts += judge.tick(now_s, [sample])
    assert "slow" not in states(verdicts)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_client_whose_slow_requests_are_in_every_look_makes_no_slow_server(seed: int) -> None:
    """On one connection a request of 150 ms follows the other: each look's p95 and mean are ten times as long."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    verdicts = []
    for now_s, samples in cluster.run(20.0):
        for sample in map(outside, samples):
            if sample.node == "host1" and sample.traffic is not None:
                answers = max(1.0, (sample.traffic.rps or 0.0) * 0.2)
                mean_ms = ((answers - 1.0) * (sample.traffic.rt_mean_ms or 0.0) + 150.0) / answers
                sample.traffic = msgspec.structs.replace(sample.traffic, rt_mean_ms=mean_ms, rt_p95_ms=150.0)
            verdicts += judge.tick(now_s, [sample])
    assert set(states(verdicts)) == {"calm"}
    assert Counter(verdict.node for verdict in verdicts if TAIL_ALONE in verdict.path)["host1"] > 20


@pytest.mark.parametrize("seed", seeds(3))
def test_a_neighbour_in_slices_that_slows_a_quarter_of_the_requests_makes_a_slow_server(seed: int) -> None:
    """The median stays as in calm, but more requests of a look are slow than a single connection's."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    for host in cluster.hosts.values():
        host.rps = 120.0
    play(judge, cluster, 20.0)
    begun_s, slow_after_s = cluster.now_s, None
    for now_s, samples in cluster.run(3.0):
        for sample in map(outside, samples):
            if sample.node == "host1" and sample.traffic is not None:
                mean_ms = 0.75 * (sample.traffic.rt_mean_ms or 0.0) + 0.25 * 28.0
                sample.traffic = msgspec.structs.replace(sample.traffic, rt_mean_ms=mean_ms, rt_p95_ms=28.0)
            for verdict in judge.tick(now_s, [sample]):
                if verdict.state == "slow" and slow_after_s is None:
                    assert verdict.node == "host1"
                    slow_after_s = now_s - begun_s
    assert slow_after_s is not None
    assert slow_after_s <= 1.5


def test_a_drained_server_stays_slow_until_its_answers_prove_calm() -> None:
    judge, cluster = new_judge(), Cluster(seed=5)
    play(judge, cluster, 20.0)
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "slow")
    play(judge, cluster, 1.0)
    cluster.hosts["host1"].rps = 0.0
    drained = [verdict for verdict in play(judge, cluster, 10.0) if verdict.node == "host1"]
    assert set(states(drained)) == {"slow"}
    assert drained[-1].calm_shows_within_s is None  # so that lbengine brings it requests
    assert drained[-1].severity > 0.5
    cluster.hosts["host1"].neighbour = 0.0
    cluster.hosts["host1"].rps = 83.0
    assert seconds_until(judge, cluster, "host1", "calm") <= 10.0


def test_a_new_detector_does_not_doubt_that_a_lowered_server_is_slow_before_it_answers() -> None:
    judge, cluster = new_judge(), Cluster(seed=5)
    play(judge, cluster, 20.0)
    again = new_judge()
    again.restore_baselines(judge.export_baselines(0.0))
    again.lowered = {"host1"}
    cluster.hosts["host1"].rps = 0.0
    verdicts = [verdict for verdict in play(again, cluster, 5.0) if verdict.node == "host1"]
    assert set(states(verdicts)) == {"slow"}
    assert all(verdict.shown and (verdict.probability or 0.0) > 0.75 for verdict in verdicts)
    cluster.hosts["host1"].rps = 83.0
    assert seconds_until(again, cluster, "host1", "calm") <= 10.0


def both(cluster: Cluster, seconds: float, silent: str = "") -> Iterator[tuple[float, list[Sample]]]:
    """Ticks with the Samples of each host's monitor, and of the balancer for each host. `silent`: whose monitor is."""
    for now_s, samples in cluster.run(seconds):
        seen = []
        for sample in samples:
            at_balancer = outside(sample)
            at_balancer.boot_id = "the balancer's"
            seen += [at_balancer] if sample.node == silent else [at_balancer, sample]
        yield now_s, seen


def test_while_a_monitor_speaks_it_alone_is_judged_and_the_balancers_view_stands_in_when_it_is_silent() -> None:
    judge, cluster = new_judge(), Cluster(seed=7)

    def verdicts_of(seconds: float, silent: str = "") -> list[Verdict]:
        return [
            verdict
            for now_s, samples in both(cluster, seconds, silent)
            for verdict in judge.tick(now_s, samples)
            if verdict.node == "host1"
        ]

    calm = verdicts_of(20.0)
    assert set(states(calm)) == {"calm"}
    assert len(calm) == 100, "one for each Sample of the monitor"
    assert all(verdict.cpu is not None for verdict in calm)
    cluster.hosts["host1"].neighbour = 0.9
    assert "interference" in states(verdicts_of(3.0))
    cluster.hosts["host1"].neighbour = 0.0
    verdicts_of(10.0)
    learnt = judge.export_baselines(0.0)["host1"]

    silent = verdicts_of(20.0, "host1")
    assert silent[-1].state == "calm"
    assert silent[-1].cpu is None
    assert len(silent) > 50
    cluster.hosts["host1"].neighbour = 0.9
    beside = verdicts_of(3.0, "host1")
    assert beside[-1].state == "slow"
    assert {"slow", "calm"} >= set(states(beside))

    assert "interference" in states(verdicts_of(3.0))
    kept = judge.export_baselines(0.0)["host1"]
    assert HIGHEST_RPS not in kept
    assert kept.keys() == learnt.keys(), "what is calm by the monitor is known again"


@pytest.mark.parametrize("seed", seeds(3))
def test_a_monitor_that_falls_silent_in_an_episode_does_not_keep_its_server_slow(seed: int) -> None:
    """The balancer's view has no calm of this server to compare with, but its peers'."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    for now_s, samples in both(cluster, 20.0):
        judge.tick(now_s, samples)
    host = cluster.hosts["host1"]
    host.neighbour = 0.9
    for now_s, samples in both(cluster, 3.0):
        judge.tick(now_s, samples)
    host.neighbour = 0.0
    last = [
        verdict
        for now_s, samples in both(cluster, 20.0, "host1")
        for verdict in judge.tick(now_s, samples)
        if verdict.node == "host1"
    ][-1]
    assert (last.state, last.cpu) == ("calm", None)


def test_nothing_is_kept_of_nodes_that_had_both_and_left_the_pool() -> None:
    """Machines that come and go by the hour, each with a name of its own, and a monitor that comes after its server."""
    judge = new_judge()
    for number in range(3):
        cluster = Cluster(names=(f"host{number}",), now_s=number * 2.0 * FORGET_AFTER_S)
        play(judge, cluster, 5.0)
        cluster.hosts[f"host{number}"].boot_id = "the monitor's"
        for now_s, samples in cluster.run(2.0):
            judge.tick(now_s, samples)
        judge.tick(cluster.now_s + 1.5 * FORGET_AFTER_S, [])
        assert len(judge._of_other_source) == 1


def test_a_node_that_gets_a_monitor_is_judged_by_it_and_its_rates_are_forgotten() -> None:
    judge, cluster = new_judge(), Cluster(seed=6)
    play(judge, cluster, 20.0)
    stored = judge.export_baselines(0.0)
    assert stored["host1"][HIGHEST_RPS] > 60.0
    for host in cluster.hosts.values():
        host.boot_id = "the monitor's"
    verdicts = [verdict for now_s, samples in cluster.run(10.0) for verdict in judge.tick(now_s, samples)]
    assert set(states(verdicts)) == {"calm"}
    assert verdicts[-1].cpu is not None
    assert HIGHEST_RPS not in judge.export_baselines(0.0)["host1"]
    again = new_judge()
    again.restore_baselines(stored)
    for now_s, samples in cluster.run(1.0):
        again.tick(now_s, samples)
    assert HIGHEST_RPS not in again.export_baselines(0.0).get("host1", {})


def test_a_model_without_a_tree_for_them_leaves_them_unjudged() -> None:
    shipped = load(SHIPPED)
    assert shipped.judges_outside
    arrays = {"cgroup": json.loads(zipfile.ZipFile(SHIPPED).read(PLAIN))["trees"]["cgroup"]}
    assert not model_of("older", arrays, shipped.coefficients, {}).judges_outside


def with_client(sample: Sample, takes_ms: float) -> None:
    """One client asks, on a connection, for one page after the other that takes so long."""
    assert sample.traffic is not None
    answers = max(1.0, (sample.traffic.rps or 0.0) * 0.2)
    slow = min(1.0, 200.0 / takes_ms)
    mean_ms = ((answers - slow) * (sample.traffic.rt_mean_ms or 0.0) + slow * takes_ms) / answers
    sample.traffic = msgspec.structs.replace(sample.traffic, rt_mean_ms=mean_ms, rt_p95_ms=takes_ms)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_client_with_slow_requests_keeps_no_episode_going(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "slow")
    play(judge, cluster, 2.0)
    cluster.hosts["host1"].neighbour = 0.0
    verdicts = []
    for now_s, samples in cluster.run(15.0):
        for sample in map(outside, samples):
            if sample.node == "host1":
                with_client(sample, 150.0)
            verdicts += judge.tick(now_s, [sample])
    assert states(verdicts[-15:], "host1").keys() == {"calm"}


def in_slices(cluster: Cluster, share: float, takes_ms: float) -> Iterator[tuple[float, Sample]]:
    """For 10 s a neighbour of host1 that takes its CPU in slices: by chance a `share` of its requests meet one."""
    draw = np.random.default_rng(cluster.seed)
    for now_s, samples in cluster.run(10.0):
        for sample in map(outside, samples):
            traffic = sample.traffic
            if sample.node == "host1" and traffic is not None and traffic.rt_mean_ms is not None:
                answers = max(1, round((traffic.rps or 0.0) * 0.2))
                met = draw.binomial(answers, share)
                mean_ms = ((answers - met) * traffic.rt_mean_ms + met * takes_ms) / answers
                p95_ms = takes_ms if met else traffic.rt_p95_ms
                p50_ms = takes_ms if 2 * met > answers else traffic.rt_p50_ms
                sample.traffic = msgspec.structs.replace(
                    traffic, rt_mean_ms=mean_ms, rt_p95_ms=p95_ms, rt_p50_ms=p50_ms
                )
            yield now_s, sample


@pytest.mark.parametrize("seed", seeds(3))
def test_at_20_requests_a_second_a_neighbour_that_slows_a_part_of_them_makes_a_slow_server(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    for host in cluster.hosts.values():
        host.rps = 20.0
    play(judge, cluster, 40.0)
    begun_s, slow_after_s = cluster.now_s, None
    for now_s, sample in in_slices(cluster, 0.4, 28.0):
        for verdict in judge.tick(now_s, [sample]):
            if verdict.state == "slow" and slow_after_s is None:
                assert verdict.node == "host1"
                slow_after_s = now_s - begun_s
    assert slow_after_s is not None
    assert slow_after_s <= 3.0


def by_counters(sample: Sample, in_flight: int | None = None) -> Sample:
    """What is known without the right to capture: rate, mean, and requests in flight."""
    assert sample.traffic is not None
    made = Traffic(sample.traffic.rps, sample.traffic.rt_mean_ms, in_flight=sample.traffic.in_flight, errors_per_s=0.0)
    sample.traffic = made if in_flight is None else msgspec.structs.replace(made, in_flight=in_flight)
    return sample


@pytest.mark.parametrize("seed", seeds(3))
def test_by_the_counters_alone_many_requests_in_flight_make_a_slow_server_and_one_client_does_not(seed: int) -> None:
    """One that holds a connection all the time adds one request in flight, so 12 ms to the mean at 83 requests/s."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    calm = []
    for now_s, samples in cluster.run(40.0):
        for sample in map(outside, samples):
            by_counters(sample, in_flight=0)
            if sample.node == "host1" and now_s > 20.0 and sample.traffic is not None:
                mean_ms = (sample.traffic.rt_mean_ms or 0.0) + 12.0
                sample.traffic = msgspec.structs.replace(sample.traffic, rt_mean_ms=mean_ms, in_flight=1)
            calm += judge.tick(now_s, [sample])
    assert "slow" not in states(calm)
    assert TAIL_ALONE in [verdict for verdict in calm if verdict.node == "host1"][-1].path
    cluster.hosts["host1"].neighbour = 0.9
    begun_s, slow_after_s = cluster.now_s, None
    for now_s, samples in cluster.run(5.0):
        for sample in samples:
            for verdict in judge.tick(now_s, [by_counters(outside(sample))]):
                if verdict.state == "slow" and slow_after_s is None:
                    assert verdict.node == "host1"
                    slow_after_s = now_s - begun_s
    assert slow_after_s is not None
    assert slow_after_s <= 3.0
    cluster.hosts["host1"].neighbour = 0.0
    last = [
        verdict
        for now_s, samples in cluster.run(15.0)
        for sample in samples
        for verdict in judge.tick(now_s, [by_counters(outside(sample), in_flight=0)])
    ][-1]
    assert last.state == "calm"
