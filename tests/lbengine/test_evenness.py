"""Weights in calm by what each server carries: advised where the difference is sure, and set a step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import EvennessOutcome, Verdict
from slackwater.lbengine import describe
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.evenness import (
    FEW_REQUESTS,
    HIGHEST,
    LOWEST,
    OVERLOAD_S,
    SEEN_S,
    Advice,
    CalmWeights,
    Pool,
    Seen,
)
from slackwater.lbengine.decision.loads import Load
from slackwater.lbengine.decision.state import Phase, PoolState, PoolView
from slackwater.lbengine.decision.step import Actions, step
from slackwater.lbengine.overrides.overrides import Pin
from tests.support.pool_shown import POOL, snapshot, verdict

CAPACITY_RPS = {"web1": 500.0, "web2": 400.0, "web3": 300.0}
STEP_S = 25.0
EVEN_POOL = msgspec.structs.replace(POOL, balance_capacity=True, balance_step_s=STEP_S)
LOOK_EVERY_S = 1.0


def advised(
    capacity_rps: Mapping[str, float] = CAPACITY_RPS,
    *,
    baselines: Mapping[str, int] | None = None,
    error: float = 0.1,
    load: float = 0.6,
    seconds: float = 60.0,
    step: int = 1,
    by_concurrency: bool = False,
    rps: Mapping[str, float] | None = None,
) -> Advice:
    """The advice after some seconds of calm, with requests by weight unless `rps` says otherwise."""
    baselines = baselines or dict.fromkeys(capacity_rps, 100)
    whole, total_rps = sum(baselines.values()), load * sum(capacity_rps.values())
    loads = [
        Load(
            name,
            baselines[name],
            baselines[name],
            rps=(rps or {}).get(name, total_rps * baselines[name] / whole),
            capacity_rps=capacity,
            capacity_stderr_rps=error * capacity,
        )
        for name, capacity in capacity_rps.items()
    ]
    weights, pool = CalmWeights(), Pool(baselines, step, by_concurrency)
    for look in range(round(seconds) + 1):
        weights = weights.after(float(look), loads, baselines.keys(), pool)
    assert weights.advice is not None
    return weights.advice


def test_weights_in_proportion_to_what_servers_carry_are_advised_with_what_they_gain() -> None:
    advice = advised()
    assert advice.outcome == "uneven"
    assert dict(advice.weights) == {"web1": 100, "web2": 78, "web3": 60}
    assert advice.carries == {"web1": 1.0, "web2": pytest.approx(0.8), "web3": pytest.approx(0.6)}
    assert (advice.mean, advice.fullest, advice.evened) == pytest.approx((0.6, 0.8, 0.605), abs=0.001)
    assert advice.saved == pytest.approx(0.73, abs=0.01), "of three servers, as the fullest is 24% less full"


@pytest.mark.parametrize(
    ("capacity_rps", "why"),
    [
        ({"web1": 400.0, "web2": 400.0, "web3": 400.0}, "all carry the same"),
        ({"web1": 410.0, "web2": 400.0, "web3": 380.0}, "a difference within the error"),
        ({"web1": 400.0, "web2": 400.0, "web3": 408.0}, "no gain"),
    ],
)
def test_servers_that_do_not_surely_differ_are_even(capacity_rps: Mapping[str, float], why: str) -> None:
    advice = advised(capacity_rps)
    assert (advice.outcome, dict(advice.weights)) == ("even", {}), why


def test_a_large_error_hides_a_difference() -> None:
    assert advised(error=0.1).outcome == "uneven"
    assert advised(error=0.5).outcome == "even"


@pytest.mark.parametrize("seconds", [SEEN_S - 1.0, 3.0])
def test_nothing_is_known_before_some_calm(seconds: float) -> None:
    assert advised(seconds=seconds).outcome == "not_known"


def test_nothing_is_known_after_few_requests() -> None:
    rps = dict.fromkeys(CAPACITY_RPS, 0.9 * FEW_REQUESTS / 60.0)
    assert advised(rps=rps, seconds=60.0).outcome == "not_known"
    assert advised(rps=rps, seconds=90.0).outcome != "not_known"


def test_a_server_that_no_monitor_measures_leaves_all_unknown() -> None:
    baselines = dict.fromkeys(CAPACITY_RPS, 100)
    loads = [
        Load(name, 100, 100, rps=200.0, capacity_rps=rps, capacity_stderr_rps=30.0)
        for name, rps in CAPACITY_RPS.items()
    ]
    weights = CalmWeights()
    for look in range(61):
        weights = weights.after(float(look), loads, {"web1", "web2"}, Pool(baselines))
    assert weights.advice is not None
    assert weights.advice.outcome == "not_known"
    assert set(weights.advice.carries) == {"web1", "web2"}


def test_weights_that_are_too_small_are_named_and_finer_ones_advised() -> None:
    advice = advised(baselines=dict.fromkeys(CAPACITY_RPS, 1))
    assert (advice.outcome, dict(advice.weights)) == ("coarse", {"web1": 100, "web2": 78, "web3": 60})


def test_least_connections_is_left_alone() -> None:
    advice = advised(by_concurrency=True)
    assert (advice.outcome, dict(advice.weights), advice.saved) == ("by_itself", {}, 0.0)


def test_where_weights_are_served_in_runs_they_are_multiples_of_the_grain() -> None:
    assert all(
        weight % 5 == 0 for weight in advised({"web1": 500.0, "web2": 417.0, "web3": 289.0}, step=5).weights.values()
    )


def test_a_share_stays_within_its_bounds() -> None:
    weights = advised({"web1": 1000.0, "web2": 1000.0, "web3": 50.0}).weights
    assert weights["web3"] / sum(weights.values()) == pytest.approx(LOWEST / 3.0, rel=0.02)


@given(st.lists(st.tuples(st.integers(20, 256), st.floats(1.0, 1e4)), min_size=2, max_size=12))
def test_whatever_servers_carry_weights_stay_below_the_baselines_and_shares_within_the_bounds(
    servers: list[tuple[int, float]],
) -> None:
    baselines = {f"web{n}": baseline for n, (baseline, _) in enumerate(servers)}
    advice = advised({f"web{n}": 40.0 + rps for n, (_, rps) in enumerate(servers)}, baselines=baselines, seconds=40.0)
    if advice.outcome != "uneven":
        return
    assert all(0 < weight <= baselines[name] for name, weight in advice.weights.items())
    assert advice.evened < advice.fullest
    whole, before = sum(advice.weights.values()), sum(baselines.values())
    for name, weight in advice.weights.items():
        share = weight / whole / (baselines[name] / before)
        assert 0.9 * LOWEST - 1.0 / baselines[name] < share < 1.1 * HIGHEST + 1.0 / baselines[name]


# -- what is set ------------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A pool in simulated time. Its balancer does what is asked, and splits requests by weight."""

    pool: PoolSettings = EVEN_POOL
    phase: Phase = "acting"
    balance: str = "roundrobin"
    load: float = 0.6
    now_s: float = 0.0
    shown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAPACITY_RPS, 100))
    requests: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAPACITY_RPS, 0.0))
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(CAPACITY_RPS, "calm"))
    source: str = "monitor"
    pins: dict[str, Pin] = field(default_factory=dict)
    pid: int = 1
    configured: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAPACITY_RPS, 100))
    made: list[tuple[str, int, int, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = PoolState(self.phase, baselines={name: Baseline(100, 100) for name in CAPACITY_RPS})

    def run(self, seconds: float) -> Actions:
        """Goes on for this time; returns the last turn's actions."""
        until_s = self.now_s + seconds
        while True:
            actions = self.turn()
            if self.now_s >= until_s:
                return actions

    def turn(self) -> Actions:
        self.now_s += LOOK_EVERY_S
        whole, total_rps = sum(self.shown.values()), self.load * sum(CAPACITY_RPS.values())
        for name, weight in self.shown.items():
            self.requests[name] += LOOK_EVERY_S * total_rps * weight / whole
        servers = [
            Server(name=name, weight=weight, configured=self.configured[name], requests=int(self.requests[name]))
            for name, weight in self.shown.items()
        ]
        look = replace(snapshot(servers, self.balance), pid=self.pid, uptime_s=round(self.now_s))
        view = PoolView(self.now_s, look, {name: self._verdict(name) for name in CAPACITY_RPS}, pins=self.pins)
        self.state, actions = step(self.state, view, self.pool, LbengineSettings())
        for name, (_, after) in actions.restore_weights.items():
            self.shown[name] = after
        for value in actions.wanted:
            self.made.append((value.server, value.before, value.after, value.cause))
            if self.state.phase == "acting":
                self.shown[value.server] = value.after
        return actions

    def _verdict(self, name: str) -> Verdict:
        state = self.states[name]
        capacity_rps = CAPACITY_RPS[name] * (0.2 if state == "interference" else 1.0)
        own = verdict(name, state, 0.8 * (state == "interference"), capacity_rps)  # type: ignore[arg-type]
        return msgspec.structs.replace(own, capacity_stderr_rps=0.1 * capacity_rps, source=self.source)

    def balanced(self) -> Site:
        self.run(SEEN_S + 6 * STEP_S)
        assert self.shown == {"web1": 100, "web2": 78, "web3": 60}
        return self


def test_without_the_setting_weights_are_advised_and_none_is_set() -> None:
    site = Site(pool=POOL)
    site.run(10 * STEP_S)
    assert site.made == []
    assert site.state.calm_weights.advice is not None
    assert site.state.calm_weights.advice.outcome == "uneven"


def test_weights_take_a_tenth_of_the_baseline_a_step_and_the_reason_has_the_numbers() -> None:
    site = Site()
    site.run(STEP_S - 1.0)
    assert site.made == [], "the first step waits as long as any other"
    actions = site.run(4.0)
    assert site.made == [("web2", 100, 90, "capacity"), ("web3", 100, 90, "capacity")]
    decision = actions.decisions.servers["web3"]
    assert (
        decision.why
        == "it carries 0.60 of what web1 carries per unit of weight, so its weight in calm is 90 instead of 100"
    )
    site.run(STEP_S)
    assert site.shown == {"web1": 100, "web2": 80, "web3": 80}
    site.run(6 * STEP_S)
    assert site.shown == {"web1": 100, "web2": 78, "web3": 60}
    count = len(site.made)
    site.run(20 * STEP_S)
    assert len(site.made) == count, "it stays there"
    shown = describe.servers(site.state.last, actions.decisions, site.state, {}, {}) if site.state.last else []
    assert [(server.baseline, server.full_weight) for server in shown] == [(100, 100), (100, 78), (100, 60)]


@pytest.mark.parametrize(("balance", "moves"), [("random", True), ("leastconn", False)])
def test_other_algorithms(balance: str, moves: bool) -> None:
    site = Site(balance=balance)
    site.run(4 * STEP_S)
    assert bool(site.made) == moves


def test_in_observe_mode_steps_are_recorded_and_not_set() -> None:
    site = Site(phase="observing")
    site.run(8 * STEP_S)
    assert set(site.shown.values()) == {100}
    assert site.state.full_weight("web3") == 60
    assert {cause for *_, cause in site.made} == {"capacity"}


def test_a_server_without_a_monitor_takes_no_step() -> None:
    site = Site(source="balancer")
    site.run(4 * STEP_S)
    assert site.made == []


def test_an_episode_lowers_from_the_weight_in_calm_and_the_server_comes_back_to_it() -> None:
    site = Site(load=0.3).balanced()
    site.states["web3"] = "interference"
    site.run(5.0)
    assert site.shown["web3"] < 60
    assert (site.shown["web1"], site.shown["web2"]) == (100, 78)
    site.states["web3"] = "calm"
    site.run(2.0)
    assert site.shown["web3"] == 60


def test_no_step_is_taken_in_an_episode() -> None:
    site = Site(load=0.3)
    site.run(STEP_S / 2)
    site.states["web2"] = "interference"
    site.run(4 * STEP_S)
    assert {target for target, *_ in site.made} == {"web2"}


def test_another_phase_begins_at_the_baselines() -> None:
    site = Site().balanced()
    site.state = replace(site.state, phase="restoring")
    site.turn()
    assert site.shown == dict.fromkeys(CAPACITY_RPS, 100)
    assert site.state.full_weight("web3") == 100


def test_after_a_reload_the_weights_in_calm_are_sent_again() -> None:
    site = Site().balanced()
    site.shown, site.pid = dict.fromkeys(CAPACITY_RPS, 100), 2
    site.turn()
    assert site.shown == {"web1": 100, "web2": 78, "web3": 60}


def test_a_new_configured_weight_is_the_baseline_of_a_pool_that_begins_anew() -> None:
    site = Site().balanced()
    site.configured["web3"] = site.shown["web3"] = 50
    site.pid = 2
    site.run(2.0)
    assert site.shown == {"web1": 100, "web2": 100, "web3": 50}


def test_somebody_elses_weight_is_kept_and_ends_the_balance() -> None:
    site = Site().balanced()
    site.shown["web2"] = 70
    site.run(2.0)
    assert site.shown == {"web1": 100, "web2": 70, "web3": 100}
    site.run(3 * STEP_S)
    assert site.shown == {"web1": 100, "web2": 70, "web3": 100}
    assert site.state.externally_controlled == {"web2"}


def test_a_pin_may_be_above_the_weight_in_calm() -> None:
    site = Site().balanced()
    site.pins = {"web3": Pin(90, "anna", 1e9)}
    site.run(2.0)
    assert site.shown == {"web1": 100, "web2": 78, "web3": 90}


def test_a_server_that_got_more_and_stays_overloaded_alone_ends_the_balance() -> None:
    site = Site().balanced()
    site.states["web1"] = "overload"
    site.run(OVERLOAD_S - 2.0)
    assert site.shown["web3"] == 60, "a crowd that comes and goes"
    site.run(4.0)
    assert site.shown == dict.fromkeys(CAPACITY_RPS, 100)
    assert site.state.calm_weights.advice is not None
    assert site.state.calm_weights.advice.outcome == "not_known", "what was believed was wrong"


def test_an_overload_of_all_or_of_a_server_that_got_less_changes_nothing() -> None:
    for overloaded in (CAPACITY_RPS, ["web3"]):
        site = Site().balanced()
        site.states |= dict.fromkeys(overloaded, "overload")
        site.run(2 * OVERLOAD_S)
        assert site.shown["web3"] == 60


def test_a_full_server_is_relieved_although_it_is_never_calm() -> None:
    site = Site(load=0.85)
    site.states["web3"] = "overload"
    site.run(SEEN_S + STEP_S)
    assert site.made == [("web2", 100, 90, "capacity"), ("web3", 100, 90, "capacity")]


@pytest.mark.parametrize("outcome", ["even", "uneven", "coarse", "by_itself"])
def test_the_cycle_says_how_even_the_servers_are(outcome: EvennessOutcome) -> None:
    even = describe.evenness(Advice(outcome, {"web1": 1.0}, {}, 0.5, 0.75, 0.5))
    assert even is not None
    assert (even.outcome, even.mean, even.fullest, even.evened) == (outcome, 0.5, 0.75, 0.5)
    assert describe.evenness(None) is None
    unknown = describe.evenness(Advice("not_known"))
    assert unknown is not None
    assert unknown.fullest is None


def test_what_was_seen_fades() -> None:
    seen = Seen()
    for _ in range(4 * 1800):
        seen = seen.after(1.0, 100.0, 400.0, 0.1)
    for _ in range(4 * 1800):
        seen = seen.after(1.0, 100.0, 200.0, 0.1)
    assert seen.capacity_rps == pytest.approx(200.0, rel=0.05)
