"""The whole core on made-up clusters: neighbours are found and told in words, load swings and shared causes are not."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.core import messages
from slackwater.core.messages import Verdict
from slackwater.detector import judge as judges
from slackwater.detector.baseline_checkpoint import EVERY_S, NODES_A_STEP, BaselineCheckpoint
from slackwater.detector.judge import Judge
from slackwater.detector.sample_sorter import FORGET_AFTER_S
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import CAPACITY_RPS, Cluster, swing

PATIENCE_S = 60.0
WAITING = {
    "sched": ("run_delay_per_cpu_s", "run_delay_s_per_s"),
    "counters": ("wall_cpu_ratio", "cpi"),
    "traffic": ("rt_mean_ms", "rt_p50_ms", "rt_p95_ms", "rt_p99_ms", "in_flight"),
}
NOW_UNIX_S = 1_795_000_000.0


def play(judge: Judge, cluster: Cluster, seconds: float, each: Callable[[float], None] | None = None) -> list[Verdict]:
    return [verdict for now_s, samples in cluster.run(seconds, each) for verdict in judge.tick(now_s, samples)]


def states(verdicts: list[Verdict], node: str | None = None) -> Counter[str]:
    return Counter(verdict.state for verdict in verdicts if node in (None, verdict.node))


def seconds_until(judge: Judge, cluster: Cluster, node: str, state: str) -> float:
    """Runs until a Verdict of this node says so; how long that took."""
    begin_s = cluster.now_s
    for now_s, samples in cluster.run(PATIENCE_S):
        for verdict in judge.tick(now_s, samples):
            if (verdict.node, verdict.state) == (node, state):
                return now_s - begin_s
    raise AssertionError(f"{node} is not {state} after {PATIENCE_S:g} s")


@pytest.mark.parametrize("seed", seeds(4))
def test_a_neighbour_is_found_in_three_samples_after_five_seconds_of_calm(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    assert set(states(play(judge, cluster, 5.0))) == {"calm"}
    cluster.hosts["host1"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host1", "interference") <= 0.8
    verdicts = play(judge, cluster, 3.0)
    assert set(states(verdicts, "host1")) == {"interference"}
    assert set(states(verdicts, "host2") | states(verdicts, "host3")) == {"calm"}
    last = [verdict for verdict in verdicts if verdict.node == "host1"][-1]
    assert 0.5 < last.severity <= 1.0
    assert last.capacity_rps is not None
    assert last.capacity_rps < 0.6 * CAPACITY_RPS
    assert last.path[0].endswith(" as usual, unlike on the other servers")
    assert "x its calm baseline" in last.path[1]
    assert messages.decode("verdict", messages.encode(last)) == last


@pytest.mark.parametrize("seed", seeds(4))
def test_a_neighbour_that_is_there_from_the_start_is_found_by_the_peers(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    cluster.hosts["host2"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host2", "interference") <= 5.0
    assert set(states(play(judge, cluster, 5.0), "host1")) == {"calm"}


@pytest.mark.parametrize("absent", ["traffic", "canary", "sched"])
def test_a_neighbour_is_found_with_one_kind_of_signal_missing(absent: str) -> None:
    judge, cluster = (
        new_judge(),
        Cluster(
            traffic=absent != "traffic", canary=absent != "canary", sched=absent != "sched", steal=absent == "sched"
        ),
    )
    assert set(states(play(judge, cluster, 6.0))) == {"calm"}
    cluster.hosts["host1"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host1", "interference") <= 2.0


@pytest.mark.parametrize("seed", seeds(3))
def test_swinging_load_is_no_neighbour(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    assert set(states(play(judge, cluster, 180.0, swing(cluster, 0.2, 0.7, 20.0)))) == {"calm"}


def test_two_neighbours_at_a_time_do_not_hide_each_other() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 6.0)
    cluster.hosts["host1"].neighbour = cluster.hosts["host2"].neighbour = 0.9
    verdicts = play(judge, cluster, 4.0)[-15:]
    assert set(states(verdicts, "host1")) == set(states(verdicts, "host2")) == {"interference"}
    assert set(states(verdicts, "host3")) == {"calm"}


def test_a_cause_that_all_share_is_no_neighbour_and_is_reported() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    for host in cluster.hosts.values():
        host.slow_database_ms = 60.0
    verdicts = play(judge, cluster, 5.0)
    assert "interference" not in states(verdicts)
    last = verdicts[-1]
    assert last.state == "all_slow"
    assert any("3 of 3 servers are slow together" in line for line in last.path)


def test_neighbours_everywhere_are_no_neighbour_either() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    for host in cluster.hosts.values():
        host.neighbour = 0.9
    assert states(play(judge, cluster, 5.0)[-15:])["all_slow"] >= 12


def test_what_was_judged_first_is_no_neighbour_any_more_when_the_others_lose_as_much() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    cluster.hosts["host1"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host1", "interference") <= 0.8
    cluster.hosts["host1"].rps, cluster.hosts["host2"].rps, cluster.hosts["host3"].rps = 0.0, 125.0, 125.0
    cluster.hosts["host2"].neighbour = cluster.hosts["host3"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host2", "all_slow") <= 0.5
    for host in cluster.hosts.values():
        host.rps = 83.0
    assert seconds_until(judge, cluster, "host1", "all_slow") <= 2.0
    verdicts = play(judge, cluster, 4.0)
    assert set(states(verdicts)) == {"all_slow"}
    assert any("2 of 2 other servers lose as much of their CPU" in line for line in verdicts[-1].path)


def test_a_calm_node_between_two_neighbours_is_not_slow_with_them() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    cluster.hosts["host1"].neighbour = cluster.hosts["host2"].neighbour = 0.9
    play(judge, cluster, 1.0)
    assert "all_slow" not in states(play(judge, cluster, 8.0))


def test_a_new_normal_is_learnt_after_a_while() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    for host in cluster.hosts.values():
        host.slow_database_ms = 60.0
    play(judge, cluster, judges.LEARN_ANYWAY_S + 90.0)
    assert set(states(play(judge, cluster, 3.0))) == {"calm"}


def test_own_load_explains_an_overload() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    for host in cluster.hosts.values():
        host.rps = 1.3 * CAPACITY_RPS
    verdicts = play(judge, cluster, 6.0)
    assert "interference" not in states(verdicts)
    assert states(verdicts[-15:])["overload"] == 15
    assert verdicts[-1].path[0].startswith("its own load explains it: its requests cost ")
    assert not any("no signal is beyond what is usual" in line for line in verdicts[-1].path)


def test_one_server_that_gets_far_more_than_its_peers_is_overloaded_not_interfered_with() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 8.0)
    cluster.hosts["host1"].rps = 1.3 * CAPACITY_RPS
    verdicts = play(judge, cluster, 6.0)
    assert "interference" not in states(verdicts)
    assert states(verdicts[-15:], "host1") == {"overload": 5}


def test_a_drained_server_stays_in_its_episode_while_its_neighbour_is_loud_and_leaves_it_after() -> None:
    judge, cluster = new_judge(), Cluster(seed=3)
    play(judge, cluster, 6.0)
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "interference")
    cluster.hosts["host1"].rps = 0.0
    for name in ("host2", "host3"):
        cluster.hosts[name].rps = 125.0
    verdicts = play(judge, cluster, 20.0)
    assert set(states(verdicts, "host1")) == {"interference"}
    assert set(states(verdicts, "host2") | states(verdicts, "host3")) == {"calm"}
    held = [verdict for verdict in verdicts if verdict.node == "host1"]
    assert any("it looks quiet" in line for verdict in held for line in verdict.path)
    assert min(verdict.severity for verdict in held) > 0.5, "looking calm without requests gives no capacity back"
    cluster.hosts["host1"].neighbour = 0.0
    took_s = seconds_until(judge, cluster, "host1", "calm")
    assert took_s <= 6.0


def test_what_holds_an_episode_now_stands_before_evidence_that_is_over() -> None:
    judge, cluster = new_judge(), Cluster(seed=3)
    play(judge, cluster, 6.0)
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "interference")
    loud = [verdict for verdict in play(judge, cluster, 2.0) if verdict.node == "host1"][-1]
    assert loud.shown
    cluster.hosts["host1"].neighbour = 0.0
    after = [verdict for verdict in play(judge, cluster, 1.8) if verdict.node == "host1"]
    held = [verdict for verdict in after if verdict.state == "interference" and not verdict.shown]
    assert held
    assert held[-1].path[0] == "it looks quiet, but not yet for long enough to be sure"
    assert held[-1].path[1].startswith("calm is ")
    assert all(line.startswith("before: ") for line in held[-1].path[2:])


def test_a_silent_node_is_unknown_about_once_a_second_and_one_never_heard_of_is_absent() -> None:
    judge, cluster = new_judge(), Cluster(names=("host1", "host2"))
    play(judge, cluster, 4.0)
    quiet_from_s = cluster.now_s
    verdicts = []
    for tick in range(80):
        verdicts += judge.tick(quiet_from_s + tick * 0.05, [])
    assert {verdict.state for verdict in verdicts} == {"unknown"}
    assert 6 <= len(verdicts) <= 8
    assert {verdict.node for verdict in verdicts} == {"host1", "host2"}
    assert verdicts[0].path[0].startswith("no Sample for 1.")
    assert len({verdict.since_unix_s for verdict in verdicts if verdict.node == "host1"}) == 1
    cluster.now_s += 5.0
    assert set(states(play(judge, cluster, 2.0)[-10:])) == {"calm"}


def test_a_node_that_left_and_comes_back_and_one_in_its_place_are_judged_apart() -> None:
    judge, cluster = new_judge(), Cluster(names=("host1", "host2"))
    play(judge, cluster, 4.0)
    cluster.now_s += FORGET_AFTER_S + 10.0
    assert judge.tick(cluster.now_s, []) == []
    later = Cluster(names=("host2", "host3", "host1"), now_s=cluster.now_s, seed=5)
    assert set(states(play(judge, later, 6.0))) == {"calm"}
    later.hosts["host3"].neighbour = 0.9
    assert seconds_until(judge, later, "host3", "interference") <= 0.8
    assert set(states(play(judge, later, 2.0), "host1")) == {"calm"}


def test_stale_peers_are_no_peers() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 6.0)
    cluster.hosts["host1"].neighbour = 0.9
    alone = Cluster(names=("host1",), seed=9, now_s=cluster.now_s + 3.0)
    alone.hosts = {"host1": cluster.hosts["host1"]}
    judge.tick(alone.now_s, [])
    assert "interference" in states(play(judge, alone, 3.0), "host1")


def test_the_same_samples_give_the_same_verdicts() -> None:
    first = play(new_judge(), Cluster(seed=8), 20.0)
    assert first == play(new_judge(), Cluster(seed=8), 20.0)
    assert first != play(new_judge(), Cluster(seed=9), 20.0)


def test_the_order_of_the_nodes_does_not_matter() -> None:
    def verdicts(names: list[str]) -> list[Verdict]:
        judge, cluster = new_judge(), Cluster(seed=2)
        verdicts: list[Verdict] = []
        for step in range(60):
            batch = [cluster.sample(name, step * 0.2) for name in cluster.names]
            if step == 30:
                cluster.hosts["host1"].neighbour = 0.9
            verdicts += judge.tick(step * 0.2 + 0.1, sorted(batch, key=lambda sample: names.index(sample.node)))
        return sorted(verdicts, key=lambda verdict: (verdict.time_unix_s, verdict.node))

    forth = verdicts(["host1", "host2", "host3"])
    back = verdicts(["host3", "host2", "host1"])
    assert [(verdict.node, verdict.state, verdict.path) for verdict in forth] == [
        (verdict.node, verdict.state, verdict.path) for verdict in back
    ]
    assert "interference" in states(forth, "host1")


def scaled(sample: messages.Sample, node: str, factor: float) -> messages.Sample:
    """The Sample as of another node, with everything that speaks of waiting times `factor`."""
    plain = msgspec.to_builtins(sample)
    plain["node"] = node
    for section, names in WAITING.items():
        for name in names:
            if plain[section].get(name) is not None:
                plain[section][name] *= factor
    plain["traffic"]["in_flight"] = int(plain["traffic"]["in_flight"])
    return msgspec.convert(plain, messages.Sample)


@settings(max_examples=12, deadline=None)
@given(st.floats(1.0, 100.0), st.integers(0, 1000))
def test_scaling_all_nodes_alike_never_yields_interference(factor: float, seed: int) -> None:
    judge, cluster = new_judge(), Cluster(names=("host1",), seed=seed)
    verdicts = []
    for step in range(60):
        sample = cluster.sample("host1", step * 0.2)
        alike = [scaled(sample, node, 1.0 if step < 40 else factor) for node in ("host1", "host2", "host3")]
        verdicts += judge.tick(step * 0.2 + 0.1, alike)
    assert "interference" not in states(verdicts)


def test_baselines_are_not_learnt_from_an_episode() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 6.0)
    cluster.hosts["host1"].neighbour = 0.9
    seconds_until(judge, cluster, "host1", "interference")
    before = judge.export_baselines(NOW_UNIX_S)["host1"]
    play(judge, cluster, 5.0)
    assert judge.export_baselines(NOW_UNIX_S)["host1"] == before


def test_baselines_carry_over_to_the_next_judge() -> None:
    judge, cluster = new_judge(), Cluster()
    play(judge, cluster, 20.0)
    kept = copy.deepcopy(judge.export_baselines(NOW_UNIX_S))
    again = new_judge()
    again.restore_baselines(kept)
    assert again.export_baselines(NOW_UNIX_S) == kept, "also before any node was heard of"
    cluster.hosts["host1"].neighbour = 0.9
    assert seconds_until(again, cluster, "host1", "interference") <= 0.8


def test_baselines_are_encoded_a_few_nodes_a_tick_and_the_file_holds_them_all() -> None:
    names = tuple(f"host{number}" for number in range(2 * NODES_A_STEP + 3))
    judge, cluster = new_judge(), Cluster(names=names)
    for step in range(40):
        judge.tick(step * 0.2, [cluster.sample(name, step * 0.2) for name in names])
    checkpoint = BaselineCheckpoint({"web": judge}, now_s=0.0)
    assert checkpoint.step(1.0, NOW_UNIX_S) is None, "it is not time yet"
    assert [checkpoint.step(EVERY_S + turn, NOW_UNIX_S) for turn in range(2)] == [None, None]
    content = checkpoint.step(EVERY_S + 2.0, NOW_UNIX_S)
    assert content is not None
    assert msgspec.json.decode(content)["pools"]["web"] == judge.export_baselines(NOW_UNIX_S)
    assert len(judge.export_baselines(NOW_UNIX_S)) == len(names)
    assert checkpoint.step(EVERY_S + 3.0, NOW_UNIX_S) is None
    assert msgspec.json.decode(checkpoint.whole(NOW_UNIX_S)) == msgspec.json.decode(content)


def test_a_baseline_that_cannot_be_read_is_left_out_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    judge = new_judge()
    judge.restore_baselines({"host1": {"3": {"cpi": "broken"}}})
    assert set(states(play(judge, Cluster(), 3.0))) == {"calm"}
    assert "web/host1: its stored baseline is left out" in caplog.text


def test_without_any_signal_a_node_is_calm_and_its_estimates_are_absent() -> None:
    judge = new_judge()
    bare = [
        messages.Sample(v=1, node="n", pool="web", time_unix_s=1.0 + seq, boot_id="b", seq=seq, period_s=0.2)
        for seq in range(30)
    ]
    verdicts = [verdict for seq, sample in enumerate(bare) for verdict in judge.tick(seq * 0.2, [sample])]
    assert set(states(verdicts)) == {"calm"}
    assert (verdicts[-1].capacity_rps, verdicts[-1].cpu, verdicts[-1].rps) == (None, None, None)


def test_verdicts_without_reasons_are_the_same_verdicts() -> None:
    def verdicts(judge: Judge) -> list[Verdict]:
        cluster = Cluster(seed=8)
        play(judge, cluster, 6.0)
        cluster.hosts["host1"].neighbour = 0.9
        return play(judge, cluster, 3.0)

    silent = new_judge()
    silent.explainer = None
    explained = verdicts(new_judge())
    assert all(verdict.path for verdict in explained)
    assert verdicts(silent) == [msgspec.structs.replace(verdict, path=[]) for verdict in explained]


def dearest_calm_answer_ms(judge: Judge, node: str) -> float:
    """The highest mean response time that the node's calm baseline holds, at any load."""
    cells = judge.export_baselines(NOW_UNIX_S)[node]
    return float(max(max(cell["rt_mean"]) for cell in cells.values() if isinstance(cell, dict) and "rt_mean" in cell))


@pytest.mark.parametrize("rps", [15.0, 83.0])
def test_a_server_that_stays_slow_for_another_reason_has_a_new_normal_also_beside_an_overloaded_one(rps: float) -> None:
    judge, cluster = new_judge(), Cluster(names=("host1", "host2", "host3", "host4"))
    cluster.hosts["host1"].rps = rps
    play(judge, cluster, 20.0)
    cluster.hosts["host4"].rps = 1.2 * CAPACITY_RPS
    cluster.hosts["host1"].slow_database_ms = 60.0
    assert states(play(judge, cluster, 120.0), "host4")["overload"] > 400
    assert dearest_calm_answer_ms(judge, "host1") > 60.0


@pytest.mark.parametrize("overloaded", [1, 4])
def test_an_overloaded_server_keeps_no_other_in_an_episode_that_is_over(overloaded: int) -> None:
    judge, cluster = new_judge(), Cluster(names=tuple(f"host{number}" for number in range(1, 11)))
    play(judge, cluster, 10.0)
    for number in range(10, 10 - overloaded, -1):
        cluster.hosts[f"host{number}"].rps = 1.2 * CAPACITY_RPS
    play(judge, cluster, 5.0)
    cluster.hosts["host1"].neighbour = 0.9
    assert seconds_until(judge, cluster, "host1", "interference") < 5.0
    play(judge, cluster, 5.0)
    cluster.hosts["host1"].neighbour, cluster.hosts["host1"].slow_database_ms = 0.0, 60.0
    assert seconds_until(judge, cluster, "host1", "calm") < 20.0
