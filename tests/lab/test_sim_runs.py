"""Whole simulations: the product's detector and laws on modelled servers."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from slackwater.core import messages
from slackwater.core.messages import Sample, Verdict
from slackwater.detector.judge import Judge
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.decision import step
from slackwater_lab.commands import lab
from slackwater_lab.compare import simulate_commands
from slackwater_lab.sim import control, requests, signals
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.episodes import Episode, Timeline, coming_and_going
from slackwater_lab.sim.outcome import Outcome, Score
from slackwater_lab.sim.setup import POLICIES, WARM_UP_S, Setup, SimulationError
from tests.support.judges import shipped

SMALL = Setup(servers=5, noisy=0.2, episode_s=0.0, seconds=15.0)


def p99(outcome: Outcome) -> float:
    p99_ms = outcome.felt["p99_ms"]
    assert p99_ms is not None
    return p99_ms


def test_the_simulation_runs_the_product_itself() -> None:
    assert isinstance(control.Detecting().judge, Judge)
    assert vars(control)["step"] is step.step


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again = (requests.simulate(SMALL, "slackwater", shipped()) for _ in range(2))
    other = requests.simulate(replace(SMALL, seed=2), "slackwater", shipped())
    assert first == again
    assert first.felt != other.felt


def test_slackwater_is_between_static_weights_and_the_oracle() -> None:
    static, ours, oracle = (
        requests.simulate(SMALL, policy, shipped()) for policy in ("static", "slackwater", "oracle")
    )
    assert p99(ours) < p99(static) / 2
    assert p99(oracle) <= p99(ours)
    assert static.missed == 1
    assert ours.missed == 0
    assert 0.0 < ours.detection_s[0] < 2.0
    assert oracle.detection_s == [pytest.approx(0.0, abs=SMALL.period_s)]


@pytest.mark.parametrize("balance", ["leastconn", "random2"])
def test_the_balancer_alone_drains_a_slow_server_and_tries_it_until_it_is_fast(balance: str) -> None:
    common = Setup(servers=3, capacity_rps=120.0, noisy=0.34, load=0.3, warm_up_s=15.0, balance=balance)
    setup = replace(common, noisy_servers=(0,), episode_s=0.0, seconds=12.0)
    static = requests.simulate(setup, "static", shipped())
    run = requests.Simulation(setup, "slackwater-lb", shipped())
    alone = run.run()
    assert p99(alone) < p99(static)
    assert 0.0 < alone.detection_s[0] < 3.0
    assert alone.moves >= 3, "a fall, and a trial"
    assert run.driver.weights.tolist()[0][1:] == [100, 100]
    back = requests.simulate(replace(common, episode_s=5.0, seconds=40.0), "slackwater-lb", shipped())
    assert back.back_s
    assert statistics.median(back.back_s) < 6.0


def test_no_sample_of_the_balancers_view_says_more_than_requests_do() -> None:
    seen = signals.of_balancer(
        "s0", 3, 10.0, 0.2, answered_s=[0.001] * 19 + [0.1], in_flight=2, oldest_unanswered_s=0.3
    )
    assert (seen.source, seen.cpu, seen.sched, seen.canary) == ("balancer", None, None, None)
    assert seen.traffic is not None
    assert (seen.traffic.rps, seen.traffic.in_flight, seen.traffic.oldest_unanswered_ms) == (100.0, 2, 300.0)
    assert seen.traffic.rt_mean_ms == pytest.approx(5.95)
    assert seen.traffic.rt_p50_ms == pytest.approx(1.0)
    idle = signals.of_balancer("s0", 4, 10.2, 0.2, answered_s=[], in_flight=0, oldest_unanswered_s=0.0)
    assert idle.traffic is not None
    assert (idle.traffic.rps, idle.traffic.rt_mean_ms, idle.traffic.rt_p95_ms) == (0.0, None, None)
    for sample in (seen, idle):
        assert messages.decode("sample", messages.encode(sample)) == sample


def have_the_first_node_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node lies from the end of the warm-up on."""
    judges = control.Detecting.tick

    def tick(self: control.Detecting, now_s: float, samples: Sequence[Sample]) -> list[Verdict]:
        verdicts = judges(self, now_s, samples)
        for verdict in verdicts:
            if verdict.node == "s0" and now_s > WARM_UP_S:
                claim = {"severity": 0.8, "capacity_rps": 50.0, "capacity_stderr_rps": 7.0, "probability": 0.99}
                self.latest.put(msgspec.structs.replace(verdict, state="interference", **claim), now_s)
        return verdicts

    monkeypatch.setattr(control.Detecting, "tick", tick)


@pytest.mark.parametrize(("balance", "load"), [("roundrobin", 0.4), ("leastconn", 0.4), ("roundrobin", 0.8)])
def test_a_node_that_lies_costs_the_users_little(monkeypatch: pytest.MonkeyPatch, balance: str, load: float) -> None:
    """It says that it has lost 80% of its capacity and is sure of it, for as long as the run lasts."""
    setup = Setup(servers=5, noisy=0.0, load=load, balance=balance, seconds=20.0)
    honest = requests.simulate(setup, "slackwater", shipped())
    have_the_first_node_lie(monkeypatch)
    lied_to = requests.simulate(setup, "slackwater", shipped())
    assert lied_to.felt["mean_ms"] == pytest.approx(honest.felt["mean_ms"], rel=0.25)
    assert lied_to.felt["p95_ms"] == pytest.approx(honest.felt["p95_ms"], rel=0.35)
    assert honest.moves == 0
    if balance == "roundrobin":
        assert lied_to.moves > 0, "it is believed at first"


def have_the_second_node_claim_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of the warm-up on its Samples are those of a server beside a neighbour."""
    judges = control.Detecting.tick

    def slow(sample: Sample) -> Sample:
        assert sample.sched is not None
        assert sample.canary is not None
        assert sample.traffic is not None
        used = sample.sched.cpu_s_per_s or 0.0
        return msgspec.structs.replace(
            sample,
            sched=msgspec.structs.replace(sample.sched, run_delay_per_cpu_s=6.5, run_delay_s_per_s=6.5 * used),
            canary=msgspec.structs.replace(sample.canary, wall_cpu_ratio=4.5, late_ms=8.5),
            traffic=msgspec.structs.replace(sample.traffic, rps=50.0, rt_mean_ms=65.0, rt_p95_ms=130.0),
        )

    def tick(self: control.Detecting, now_s: float, samples: Sequence[Sample]) -> list[Verdict]:
        return judges(
            self, now_s, [slow(sample) if sample.node == "s1" and now_s > WARM_UP_S else sample for sample in samples]
        )

    monkeypatch.setattr(control.Detecting, "tick", tick)


def test_a_liar_in_a_pool_of_two_does_not_keep_load_on_the_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detector calls both slow alike; what the balancer holds of each tells them apart."""
    pair = Setup(servers=2, noisy=0.5, noisy_servers=(0,), episode_s=0.0, load=0.2, seconds=15.0)
    have_the_second_node_claim_to_be_slow(monkeypatch)
    run = requests.Simulation(pair, "slackwater", shipped())
    lowered = []
    decides = run._decide

    def decide(now_s: float) -> None:
        decides(now_s)
        if now_s > WARM_UP_S:
            lowered.append(int(run.driver.weights[0][0]) < control.BASE_WEIGHT)

    monkeypatch.setattr(run, "_decide", decide)
    run.run()
    assert statistics.mean(lowered) > 0.6
    assert sum(before != after for before, after in itertools.pairwise(lowered)) <= 8, "it is told apart for good"


WINDOW_S = 5.0


class FirstFall(requests.Simulation):
    """Knows when the first weight fell."""

    at_s: float | None = None

    def _decide(self, now_s: float) -> None:
        super()._decide(now_s)
        if self.at_s is None and (self.driver.weights < control.BASE_WEIGHT).any():
            self.at_s = now_s

    def p95_ms(self, since_s: float) -> float:
        """The p95 of the requests that were answered in a window."""
        answered = [n for n, ended_s in self._ended.items() if since_s <= ended_s < since_s + WINDOW_S]
        return 1e3 * float(np.percentile([self._ended[n] - self._began[n] for n in answered], 95))


@pytest.mark.slow
def test_the_pools_p95_rises_after_right_changes() -> None:
    """So it cannot tell a wrong Verdict (docs/decisions/0029)."""
    busy = replace(SMALL, load=0.6, taken=0.8)
    calm = FirstFall(replace(busy, noisy=0.0, seconds=40.0), "slackwater", shipped())
    calm.run()
    usual = [calm.p95_ms(WARM_UP_S + WINDOW_S * number) for number in range(8)]
    noise = 2.0 * math.sqrt(2.0) * statistics.stdev(usual) / statistics.mean(usual)

    def rises_twice(setup: Setup) -> bool:
        run = FirstFall(setup, "slackwater", shipped())
        run.run()
        assert run.at_s is not None
        before_ms = run.p95_ms(run.at_s - WINDOW_S)
        return all(run.p95_ms(run.at_s + WINDOW_S * number) > (1.0 + noise) * before_ms for number in (0, 1))

    assert [rises_twice(replace(busy, seed=seed)) for seed in (1, 2, 3)] == [True] * 3


def test_in_calm_nobody_is_reduced() -> None:
    calm = requests.simulate(replace(SMALL, servers=8, noisy=0.0, seconds=30.0), "slackwater", shipped())
    assert calm.moves == 0
    assert calm.false_reductions == 0
    assert calm.episodes == 0


def test_a_neighbour_that_stays_does_not_make_the_weights_swing() -> None:
    long = requests.simulate(replace(SMALL, seconds=90.0), "slackwater", shipped())
    # A drained server is asked again now and then, by a trickle and down again: two turns a probe.
    assert long.turns <= 12


def test_lost_samples_delay_the_answer_but_do_not_prevent_it() -> None:
    lossy = requests.simulate(replace(SMALL, loss=0.4, delay_s=0.5), "slackwater", shipped())
    assert lossy.missed == 0
    assert lossy.detection_s[0] > requests.simulate(SMALL, "slackwater", shipped()).detection_s[0]


def test_several_balancers_each_drain_the_noisy_server() -> None:
    several = requests.simulate(replace(SMALL, balancers=3), "slackwater", shipped())
    assert several.moves >= 3
    assert several.missed == 0
    alone = requests.simulate(SMALL, "static", shipped())
    assert p99(several) < p99(alone) / 2


def test_a_closed_loop_has_no_more_requests_in_flight_than_clients() -> None:
    run = requests.Simulation(replace(SMALL, clients=7, balance="leastconn"), "static", shipped())
    run.run()
    assert sum(server.held for server in run.servers) <= 7
    assert len(run._began) - len(run._ended) <= 7


def test_the_command_knows_every_balancer_and_policy() -> None:
    assert tuple(BALANCERS) == simulate_commands.BALANCES
    assert simulate_commands.POLICIES == POLICIES


def test_only_weights_of_haproxys_algorithms_are_driven() -> None:
    with pytest.raises(SimulationError, match="slackwater with peak-ewma, which takes no weights: expected roundrobin"):
        requests.simulate(replace(SMALL, balance="peak-ewma"), "slackwater", shipped())


@pytest.mark.parametrize("balance", sorted(name for name, algorithm in BALANCERS.items() if algorithm.takes_weights))
def test_what_haproxy_calls_an_algorithm_is_known(balance: str) -> None:
    assert weights_mean(BALANCERS[balance].shown_as) in ("share", "draws", "concurrency")


def test_slackwater_plays_random_draws_on_their_own_terms() -> None:
    setup = replace(SMALL, balance="random2")
    static, ours = (requests.simulate(setup, policy, shipped()) for policy in ("static", "slackwater"))
    assert ours.moves > 0
    assert p99(ours) < p99(static)


def test_the_oracle_that_may_keep_any_split_is_not_worse_than_the_one_that_drains() -> None:
    """Two of three lose half: without them the third cannot carry the load."""
    setup = replace(SMALL, servers=3, noisy=2 / 3, taken=0.5, load=0.6, spread=0.2)
    drains, splits = (
        requests.simulate(setup, policy, shipped()).felt["mean_ms"] for policy in ("oracle", "oracle-split")
    )
    assert drains is not None
    assert splits is not None
    assert splits <= 1.05 * drains


@pytest.mark.parametrize(("name", "value"), [("servers", 0), ("noisy", 1.5), ("taken", 1.0), ("balance", "source")])
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SimulationError, match=f"{name} .*: expected"):
        replace(SMALL, **{name: value})  # type: ignore[arg-type]


def test_episodes_take_the_share_of_time_that_was_asked_for() -> None:
    episodes = coming_and_going(np.random.default_rng(1), 400, 0.0, 1000.0, 0.2, 20.0, 0.8)
    assert sum(episode.end_s - episode.begin_s for episode in episodes) / (400 * 1000.0) == pytest.approx(0.2, rel=0.05)
    assert np.mean(
        [episode.end_s - episode.begin_s for episode in episodes if episode.begin_s > 0 and episode.end_s < 1000]
    ) == pytest.approx(20.0, rel=0.1)


def test_a_timeline_shows_who_changed_on_the_way() -> None:
    line = Timeline(3, [Episode(1, 2.0, 4.0, 0.5), Episode(0, 3.0, 9.0, 0.7)])
    assert line.advance(1.0) == []
    assert line.next_s == 2.0
    assert line.advance(3.5) == [1, 0]
    assert line.now.tolist() == [0.7, 0.5, 0.0]
    assert line.advance(9.0) == [1, 0]


def test_the_score_counts_answers_misses_false_alarms_and_turns_apart() -> None:
    setup = replace(SMALL, servers=3)
    score = Score(setup, [Episode(0, 40.0, 50.0, 0.8), Episode(1, 41.0, 45.0, 0.8)])
    score.advance(40.0)
    score.moved(0, 0, 0, 40.5)
    score.advance(41.0)
    score.moved(0, 2, 50, 42.0)
    for weight, at_s in ((2, 46.0), (0, 46.5), (10, 47.0)):
        score.moved(0, 0, weight, at_s)
    score.advance(50.0)
    counted = score.outcome(setup, "x", requests.simulate(SMALL, "static", shipped()).felt)
    assert counted.detection_s == [pytest.approx(0.5)]
    assert counted.missed == 1
    assert counted.false_reductions == 1
    assert counted.turns == 3
    assert counted.moves == 5


def test_the_command_prints_json() -> None:
    arguments = ["simulate", "--servers", "3", "--servers", "4", "--policy", "static", "--seconds", "5", "--json", "-"]
    done = CliRunner().invoke(lab, arguments, catch_exceptions=False)
    result = json.loads(done.stdout)
    runs = result["runs"]
    assert result["command"] == f"slackwater lab {' '.join(arguments)}"
    assert [run["setup"]["servers"] for run in runs] == [3, 4]
    assert runs[0]["felt"]["requests"] == pytest.approx(5 * 3 * 250 * 0.5, rel=0.2)
