"""A drained server comes back when what showed its neighbour is calm; where nothing did, only requests can tell."""

from __future__ import annotations

import random

import msgspec
import pytest

from slackwater.core.messages import Gaps, Sample, State, Verdict
from slackwater.detector.judge import Judge
from tests.support.balancers_samples import play, seconds_until, states
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import Cluster

QUIET_CPU_S = 0.005
"""CPU time per second of a web server without requests: Apache's and php-fpm's housekeeping."""
GLITCH = 107.0
"""How many times its peers' value a signal of such a server was seen at, with no neighbour anywhere."""
GLITCHES = 0.1
"""Share of its ticks in which a signal is so."""
SIGNALS = (
    ("sched", "run_delay_per_cpu_s", 0.9),
    ("sched", "run_delay_s_per_s", 0.005),
    ("pressure", "cpu_some", 0.01),
    ("counters", "wall_cpu_ratio", 1.0),
    ("counters", "cpi", 110.0),
    ("canary", "wall_cpu_ratio", 1.0),
    ("canary", "llc_cycles_per_load", 60.0),
    ("canary", "alu_cycles_per_op", 0.5),
    ("canary", "late_ms", 0.1),
    ("cpu", "steal", 0.01),
)


def glitching(sample: Sample, dice: random.Random) -> Sample:
    """The Sample of a server without requests, with a glitch now and then in every signal at once."""
    plain = msgspec.to_builtins(sample)
    glitch = dice.random() < GLITCHES
    for section, name, calm in SIGNALS:
        if section in plain:
            value = calm * (GLITCH if glitch else 1.0) * dice.uniform(0.9, 1.1)
            plain[section][name] = min(value, 1.0) if name in ("steal", "cpu_some") else value
    plain["sched"]["cpu_s_per_s"] = QUIET_CPU_S
    return msgspec.convert(plain, Sample)


def with_moments(sample: Sample, share: float) -> Sample:
    """The Sample with the share of random moments at which the machine did not run the monitor."""
    return msgspec.structs.replace(sample, gaps=Gaps(moments=4, lost_share=0.0, queued_share=share))


def until(judge: Judge, cluster: Cluster, state: str, limit_s: float, dice: random.Random | None = None) -> float:
    """Seconds until host1 is in a state; `dice`: its signals glitch."""
    begin_s = cluster.now_s
    for now_s, samples in cluster.run(limit_s):
        given = [glitching(sample, dice) if dice and sample.node == "host1" else sample for sample in samples]
        if any((verdict.node, verdict.state) == ("host1", state) for verdict in judge.tick(now_s, given)):
            return now_s - begin_s
    raise AssertionError(f"host1 is not {state} after {limit_s:g} s")


def drained(seed: int) -> tuple[Judge, Cluster]:
    """host1 in an episode and for some seconds without requests; its neighbour is still there."""
    judge, cluster = new_judge(), Cluster(seed=seed, rich=True, steal=True)
    for now_s, samples in cluster.run(8.0):
        judge.tick(now_s, samples)
    cluster.hosts["host1"].neighbour = 0.9
    until(judge, cluster, "interference", 2.0)
    cluster.hosts["host1"].rps = 0.0
    for now_s, samples in cluster.run(3.0):
        judge.tick(now_s, samples)
    return judge, cluster


@pytest.fixture(params=[0.0, 125.0], ids=["idle-pool", "busy-pool"])
def others_rps(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_drained_server_whose_signals_glitch_is_calm_within_ten_seconds(seed: int, others_rps: float) -> None:
    judge, cluster = drained(seed)
    for name in ("host2", "host3"):
        cluster.hosts[name].rps = others_rps
    cluster.hosts["host1"].neighbour = 0.0
    dice = random.Random(seed)
    assert until(judge, cluster, "calm", 10.0, dice) <= 10.0
    for now_s, samples in cluster.run(60.0):
        given = [glitching(sample, dice) if sample.node == "host1" else sample for sample in samples]
        assert all(verdict.state == "calm" for verdict in judge.tick(now_s, given)), "and it stays so"


def test_random_moments_alone_hold_a_drained_server_until_they_are_calm() -> None:
    judge, cluster, share = new_judge(), Cluster(seed=1, rich=True), 0.0

    def states(seconds: float) -> list[tuple[float, State]]:
        verdicts_at = []
        for now_s, samples in cluster.run(seconds):
            given = [with_moments(sample, share if sample.node == "host1" else 0.0) for sample in samples]
            verdicts = {verdict.node: verdict.state for verdict in judge.tick(now_s, given)}
            verdicts_at += [(now_s, verdicts["host1"])] if "host1" in verdicts else []
        return verdicts_at

    states(8.0)
    cluster.hosts["host1"].neighbour = 0.9
    assert states(2.0)[-1][1] == "interference"
    cluster.hosts["host1"].rps = cluster.hosts["host1"].neighbour = 0.0
    share = 0.5
    assert {state for _, state in states(20.0)} == {"interference"}, "nothing else shows it"
    share, begin_s = 0.0, cluster.now_s
    calm_s = next(now_s for now_s, state in states(10.0) if state == "calm")
    assert calm_s - begin_s <= 3.0


@pytest.mark.parametrize("seed", seeds(3))
def test_a_drained_servers_episode_lasts_as_long_as_its_neighbour_shows(seed: int, others_rps: float) -> None:
    judge, cluster = drained(seed)
    for name in ("host2", "host3"):
        cluster.hosts[name].rps = others_rps
    for now_s, samples in cluster.run(60.0):
        for verdict in judge.tick(now_s, samples):
            if verdict.node == "host1":
                assert verdict.state == "interference"
                assert verdict.calm_shows_within_s is not None
                assert verdict.calm_shows_within_s <= 3.0
    cluster.hosts["host1"].neighbour = 0.0
    assert until(judge, cluster, "calm", 10.0) <= 3.0


@pytest.mark.parametrize("seed", seeds(3))
def test_where_nothing_shows_the_neighbour_without_requests_the_verdict_says_so_and_requests_decide(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    for now_s, samples in cluster.run(8.0):
        judge.tick(now_s, samples)
    host = cluster.hosts["host1"]
    host.neighbour = 0.9
    until(judge, cluster, "interference", 2.0)
    host.rps = host.neighbour = 0.0  # without requests this one shows nowhere
    begin_s = cluster.now_s
    for now_s, samples in cluster.run(60.0):
        for verdict in judge.tick(now_s, samples):
            if verdict.node == "host1":
                assert verdict.state == "interference"
                if now_s > begin_s + 4.0:
                    assert verdict.calm_shows_within_s is None
                    assert verdict.path[0].startswith("the episode goes on: without requests no sign")
    host.rps, host.neighbour = 40.0, 0.9
    for now_s, samples in cluster.run(5.0):
        assert all(verdict.state == "interference" for verdict in judge.tick(now_s, samples) if verdict.node == "host1")
    host.neighbour = 0.0
    assert until(judge, cluster, "calm", 10.0) <= 4.0


def restarted(judge: Judge) -> Judge:
    """The judge of a detector that was started anew while lbengine says that host1 is lowered."""
    again = new_judge()
    again.restore_baselines(judge.export_baselines(0.0))
    again.lowered = {"host1"}
    return again


@pytest.mark.parametrize("seed", seeds(3))
def test_a_new_detector_does_not_call_a_drained_server_calm_while_its_neighbour_shows(
    seed: int, others_rps: float
) -> None:
    judge, cluster = drained(seed)
    judge = restarted(judge)
    for name in ("host2", "host3"):
        cluster.hosts[name].rps = others_rps
    for now_s, samples in cluster.run(60.0):
        for verdict in judge.tick(now_s, samples):
            assert verdict.state == ("interference" if verdict.node == "host1" else "calm")
    cluster.hosts["host1"].neighbour = 0.0
    assert until(judge, cluster, "calm", 10.0) <= 4.0


def test_a_new_detector_says_that_nothing_shows_where_the_neighbour_left_meanwhile() -> None:
    judge, cluster = drained(0)
    cluster.hosts["host1"].neighbour = 0.0
    judge = restarted(judge)
    verdicts: dict[str, Verdict] = {}
    for now_s, samples in cluster.run(5.0):
        verdicts |= {verdict.node: verdict for verdict in judge.tick(now_s, samples)}
    assert (verdicts["host1"].state, verdicts["host1"].calm_shows_within_s) == ("interference", None)
    cluster.hosts["host1"].rps = 40.0
    assert until(judge, cluster, "calm", 10.0) <= 4.0


@pytest.mark.parametrize("seed", seeds(3))
def test_servers_that_become_slow_after_a_drained_one_are_slow_alike(seed: int) -> None:
    """From the balancer: a server that answers nothing shows no loss, and the others hide each other."""
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "slow")
    cluster.hosts["host1"].rps = 0.0
    assert set(states(play(judge, cluster, 3.0), "host2", "host3")) == {"calm"}
    cluster.hosts["host2"].neighbour = cluster.hosts["host3"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host2", "all_slow") <= 2.0
