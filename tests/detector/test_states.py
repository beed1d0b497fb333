"""What is no neighbour must not look like one: deploys, shared databases, reloads, starts, clocks, crowds, mixes.

And what is one is found whatever it takes, with the resource named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.core.messages import Sample, Verdict
from slackwater.detector.judge import Judge
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import CAPACITY_RPS, Cluster, Host, swing

SEEDS = seeds(3)
Each = Callable[[float], None]


def play(judge: Judge, cluster: Cluster, seconds: float, each: Each | None = None) -> list[Verdict]:
    return [verdict for now_s, samples in cluster.run(seconds, each) for verdict in judge.tick(now_s, samples)]


def states(verdicts: list[Verdict], node: str | None = None) -> Counter[str]:
    return Counter(verdict.state for verdict in verdicts if node in (None, verdict.node))


@pytest.mark.parametrize("share", [0.3, 0.65])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_deploy_that_makes_each_request_dearer_everywhere_is_no_neighbour(seed: int, share: float) -> None:
    """Node after node gets it, a second apart, as a rolling deploy does."""
    judge, cluster = new_judge(), Cluster(seed=seed, rich=True)
    load = swing(cluster, share - 0.05, share + 0.05, 7.0)
    play(judge, cluster, 20.0, load)
    begin_s = cluster.now_s

    def deploy(now_s: float) -> None:
        load(now_s)
        for number, host in enumerate(cluster.hosts.values()):
            host.dearer = 1.3 if now_s - begin_s > number else 1.0

    assert "interference" not in states(play(judge, cluster, 30.0, deploy))


@pytest.mark.parametrize("slow_ms", [8.0, 60.0, 400.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_shared_database_is_no_neighbour(seed: int, slow_ms: float) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 15.0)

    def slow(_now_s: float) -> None:
        for host in cluster.hosts.values():
            host.slow_database_ms = slow_ms

    verdicts = play(judge, cluster, 20.0, slow)
    assert "interference" not in states(verdicts)
    if slow_ms >= 60.0:
        assert states(verdicts[-15:]) == {"all_slow": 15}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graceful_reload_is_no_neighbour(seed: int) -> None:
    """A second without requests, then one with dearer ones (cold caches), one server after the other."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 15.0)
    begin_s = cluster.now_s

    def reload(now_s: float) -> None:
        for number, host in enumerate(cluster.hosts.values()):
            since_s = now_s - begin_s - 4.0 * number
            host.rps = 0.0 if 0 <= since_s < 1 else 83.0
            host.dearer = 1.4 if 1 <= since_s < 2 else 1.0

    assert "interference" not in states(play(judge, cluster, 20.0, reload))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_just_started_is_no_neighbour(seed: int) -> None:
    """It comes to a pool that has long run, with cold caches for three seconds."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 15.0)
    cluster.names = (*cluster.names, "host4")
    cluster.hosts["host4"] = Host(dearer=1.5)
    begin_s = cluster.now_s

    def warm(now_s: float) -> None:
        cluster.hosts["host4"].dearer = 1.5 if now_s - begin_s < 3 else 1.0

    assert states(play(judge, cluster, 20.0, warm)).keys() == {"calm"}


@pytest.mark.parametrize("step_s", [-3600.0, -0.3, 0.3, 86400.0])
def test_a_clock_step_is_no_neighbour(step_s: float) -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 10.0)
    cluster.clock_off_s = step_s
    assert states(play(judge, cluster, 10.0)).keys() == {"calm"}


@pytest.mark.parametrize("times", [0.6, 2.0, 4.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_gets_other_cpus_is_no_neighbour_and_its_capacity_follows(seed: int, times: float) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 60.0)
    cluster.hosts["host2"].cores *= times
    verdicts = play(judge, cluster, 120.0)
    assert "interference" not in states(verdicts)
    last = {verdict.node: verdict.capacity_rps for verdict in verdicts if verdict.capacity_rps is not None}
    assert last["host2"] == pytest.approx(times * last["host1"], rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flash_crowd_is_no_neighbour(seed: int) -> None:
    """From 20% of capacity to far beyond it in a tick, and back."""
    judge, cluster = new_judge(), Cluster(seed=seed)

    def crowd(now_s: float) -> None:
        share = 1.4 if 20 <= now_s < 26 else 0.8 if 32 <= now_s < 38 else 0.2
        for host in cluster.hosts.values():
            host.rps = share * CAPACITY_RPS

    assert "interference" not in states(play(judge, cluster, 45.0, crowd))


@pytest.mark.parametrize("seed", SEEDS)
def test_another_mix_of_requests_is_no_neighbour(seed: int) -> None:
    """One server gets the searches of all (a hash by URL): response times rise, its routes' do not."""
    judge, cluster = new_judge(), Cluster(seed=seed, routes=True)
    for host in cluster.hosts.values():
        host.rps = 40.0
    play(judge, cluster, 15.0)
    cluster.hosts["host1"].searches = 0.5
    assert states(play(judge, cluster, 15.0), "host1").keys() == {"calm"}
    cluster.hosts["host1"].searches = 0.1
    play(judge, cluster, 5.0)
    cluster.hosts["host1"].neighbour = 0.9
    assert "interference" in states(play(judge, cluster, 5.0), "host1"), "a neighbour is found by route, too"


@pytest.mark.parametrize("takes", ["cache", "memory bandwidth", "network", "disk", "cpu"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_neighbour_is_found_whatever_it_takes_and_the_resource_is_named(seed: int, takes: str) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed, rich=True)
    before = play(judge, cluster, 10.0)
    assert states(before).keys() == {"calm"}
    assert {verdict.resource for verdict in before} == {None}
    cluster.hosts["host2"].neighbour, cluster.hosts["host2"].takes = 0.9, takes
    verdicts = play(judge, cluster, 4.0)
    loud = [verdict for verdict in verdicts if verdict.node == "host2" and verdict.state == "interference"]
    assert len(loud) >= 15
    assert loud[-1].resource == takes
    assert states([verdict for verdict in verdicts if verdict.node != "host2"]).keys() == {"calm"}
    cluster.hosts["host2"].neighbour = 0.0
    after = [verdict for verdict in play(judge, cluster, 8.0) if verdict.node == "host2"]
    assert (after[-1].state, after[-1].resource) == ("calm", None)


def as_node(sample: Sample, node: str) -> Sample:
    plain = msgspec.to_builtins(sample)
    return msgspec.convert({**plain, "node": node}, Sample)


def lacking(sample: Sample, names: set[str]) -> Sample:
    """The Sample without these fields or sections, said to be absent."""
    plain = msgspec.to_builtins(sample)
    for name in names:
        section, _, field = name.partition(".")
        if field and isinstance(plain.get(section), dict):
            plain[section].pop(field, None)
        elif not field:
            plain.pop(section, None)
        plain.setdefault("absent", {})[name] = "left out"
    return msgspec.convert(plain, Sample)


FIELDS = (
    "cpu", "sched", "pressure", "counters", "traffic", "canary", "memory", "disk", "network",
    "cpu.utilisation", "cpu.cores", "sched.cpu_s_per_s", "sched.run_delay_per_cpu_s", "sched.run_delay_s_per_s",
    "traffic.rps", "traffic.rt_mean_ms", "traffic.rt_p95_ms", "traffic.in_flight", "traffic.routes",
    "counters.cpi", "pressure.cpu_some", "pressure.io_some", "disk.wait_ms",
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.sets(st.sampled_from(FIELDS)), st.integers(0, 1000), st.integers(0, 39))
def test_missing_features_never_crash_and_never_read_as_zero(names: set[str], seed: int, gone_at: int) -> None:
    """A value that goes away on one node is no neighbour, neither when it goes nor when it comes back."""
    judge, cluster = new_judge(), Cluster(seed=seed, rich=True, routes=True)
    judged = []
    for step in range(60):
        for name in cluster.names:
            sample = cluster.sample(name, step * 0.2)
            if name == "host1" and gone_at <= step < gone_at + 12:
                sample = lacking(sample, names)
            judged += judge.tick(step * 0.2 + 0.1, [sample])
    assert states(judged).keys() == {"calm"}


@settings(max_examples=10, deadline=None)
@given(st.permutations(["host1", "host2", "host3"]), st.integers(0, 1000), st.sampled_from(["cpu", "disk"]))
def test_permuting_nodes_permutes_verdicts(order: list[str], seed: int, takes: str) -> None:
    def verdicts(names: list[str]) -> dict[tuple[str, float], tuple[str, list[str], str | None]]:
        judge, cluster = new_judge(), Cluster(seed=seed, rich=True)
        rename = dict(zip(cluster.names, names, strict=True))
        by_node = {}
        for step in range(60):
            cluster.hosts["host1"].neighbour, cluster.hosts["host1"].takes = 0.9 * (step >= 35), takes
            batch = [as_node(cluster.sample(name, step * 0.2), rename[name]) for name in cluster.names]
            for verdict in judge.tick(step * 0.2 + 0.1, sorted(batch, key=lambda sample: sample.node)):
                by_node[verdict.node, verdict.time_unix_s] = (verdict.state, verdict.path, verdict.resource)
        back = {new: old for old, new in rename.items()}
        return {(back[node], unix_s): judged for (node, unix_s), judged in by_node.items()}

    same = verdicts(["host1", "host2", "host3"])
    assert verdicts(order) == same
    assert ("interference" in {judged[0] for judged in same.values()}) is True


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 50.0), st.integers(0, 1000), st.sampled_from(["sched", "canary", "disk", "network", "traffic"]))
def test_scaling_any_section_of_all_nodes_alike_never_yields_interference(
    factor: float, seed: int, section: str
) -> None:
    judge, cluster = new_judge(), Cluster(names=("host1",), seed=seed, rich=True)
    judged = []
    for step in range(70):
        sample = cluster.sample("host1", step * 0.2)
        plain = msgspec.to_builtins(sample)
        if step >= 40:
            for name, value in plain[section].items():
                if isinstance(value, float) and name not in ("rps", "cpu_s_per_s"):
                    plain[section][name] = min(value * factor, 1.0) if name in SHARES else value * factor
        alike = [as_node(msgspec.convert(plain, Sample), node) for node in ("host1", "host2", "host3")]
        judged += judge.tick(step * 0.2 + 0.1, alike)
    assert "interference" not in states(judged)


SHARES = {"slow_share", "busy", "saturation"}
