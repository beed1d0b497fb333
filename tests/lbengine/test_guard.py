"""The guard holds for any sequence of verdicts, drains and pins."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core.messages import State
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision import guard
from slackwater.lbengine.decision.decide import Decisions
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.split import LAWS
from slackwater.lbengine.overrides.overrides import Pin
from slackwater.lbengine.overrides.temporary import TemporaryOverride
from tests.support.examples import examples
from tests.support.pool_shown import decided, server, snapshot, verdict

STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Told:
    """What is the case for one server in one turn."""

    state: State | None
    severity: float
    capacity_rps: float | None
    cpu: float | None
    rps: float
    up: bool
    controlled: int | None
    """The weight that someone else holds it at."""
    drained: bool
    held: bool
    pin: int | None


def mostly(value: object, other: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """`value` three times of four."""
    return st.sampled_from([True, True, True, False]).flatmap(lambda usual: st.just(value) if usual else other)


told_of_a_server = st.builds(
    Told,
    state=st.one_of(st.none(), st.sampled_from(STATES)),
    severity=st.floats(0.0, 1.0),
    capacity_rps=st.one_of(st.none(), st.floats(0.0, 500.0)),
    cpu=st.one_of(st.none(), st.floats(0.0, 1.5)),
    rps=st.floats(0.0, 500.0),
    up=mostly(True, st.just(False)),
    controlled=mostly(None, st.integers(0, 256)),
    drained=mostly(False, st.just(True)),
    held=mostly(False, st.just(True)),
    pin=mostly(None, st.integers(0, 256)),
)
turns_strategy = st.lists(
    st.tuples(
        st.lists(told_of_a_server, min_size=7, max_size=7),
        st.floats(0.0, 2.0),
        st.sampled_from([None, True, 3000.0, 40.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
"""For each turn the servers, seconds since the one before, the pool's rate (True: the sum of the servers'), waiting."""


@examples(40, 300)
@given(
    st.integers(1, 7),
    st.floats(0.01, 1.0),
    st.sampled_from(sorted(LAWS)),
    st.sampled_from(["roundrobin", "leastconn", "unknown", "wrr"]),
    turns_strategy,
    st.lists(st.tuples(st.sampled_from([0, 1, 7, 100, 256]), mostly(False, st.just(True))), min_size=7, max_size=7),
)
def test_no_sequence_of_verdicts_and_overrides_breaks_the_bounds(
    count: int,
    max_mitigated: float,
    law: str,
    balance: str,
    turns: list[tuple[list[Told], float, float | bool | None, bool]],
    lines: list[tuple[int, bool]],
) -> None:
    """`lines` are the baselines and whether it is a backup."""
    pool = HAProxyPool(name="web", backend="web", socket="/none", law=law, max_mitigated=max_mitigated)  # type: ignore[arg-type]
    stored = {f"host{n}": Baseline(lines[n][0], lines[n][0]) for n in range(count)}
    backups = {f"host{n}" for n in range(count) if lines[n][1]}
    positions = {name: Position(baseline.weight) for name, baseline in stored.items()}
    now_s = 0.0
    for told_of_all, pause_s, total, waiting in turns:
        now_s += pause_s
        facts_of = dict(zip(stored, told_of_all, strict=False))
        theirs = {name: facts.controlled for name, facts in facts_of.items() if facts.controlled is not None}
        positions |= {name: Position(weight) for name, weight in theirs.items()}
        servers = [
            dataclasses.replace(server(name, positions[name].weight, facts.up), backup=name in backups)
            for name, facts in facts_of.items()
        ]
        rates = {name: facts.rps for name, facts in facts_of.items()}
        decisions = decided(
            snapshot(servers, balance),
            positions,
            {
                name: msgspec.structs.replace(
                    verdict(name, facts.state, facts.severity, facts.capacity_rps), cpu=facts.cpu
                )
                for name, facts in facts_of.items()
                if facts.state is not None
            },
            now_s=now_s,
            pool=pool,
            baselines=stored,
            externally_controlled=theirs,
            waiting=waiting,
            rates=rates if total is True else None,
            total_rps=sum(rates.values()) if total is True else total,
            drains={
                n: TemporaryOverride("drain", now_s + 1.0, "a test", "why") for n, t in facts_of.items() if t.drained
            },
            holds={n: TemporaryOverride("hold", now_s + 1.0, "a test", "") for n, t in facts_of.items() if t.held},
            pins={name: Pin(facts.pin, "anna") for name, facts in facts_of.items() if facts.pin is not None},
        )
        active = [s for s in servers if s.available and not s.backup]
        governed = [s.name for s in active if s.name not in theirs and stored[s.name].weight > 0]
        away = {s.name for s in servers if s.condition in ("down", "maintenance")}
        assert [name for name in decisions.servers if name not in away] == governed
        positions |= {name: decision.position for name, decision in decisions.servers.items()}
        weights = {name: positions[name].weight for name in governed}
        others = [s.weight for s in active if s.name in theirs and s.weight > 0]
        assert all(0 <= weight <= stored[name].weight for name, weight in weights.items())
        assert not governed or sum(weights.values()) + sum(others) > 0
        drained = [name for name in governed if guard.is_drained(weights[name], stored[name].weight)]
        whole = len(governed) + len(others)
        assert len(drained) <= max(0, min(math.floor(whole * max_mitigated + 1e-9), whole - 1))


def test_any_number_of_servers_beside_neighbours_may_be_reduced() -> None:
    admission = guard.admit({"h1": "interference", "h2": "interference", "h3": "calm"}, reduced=())
    assert admission == guard.Admission(frozenset(("h1", "h2")))


def test_all_slow_in_any_verdict_is_panic() -> None:
    admission = guard.admit({"h1": "interference", "h2": "all_slow", "h3": "calm"}, reduced=("h1",))
    assert not admission.reduce
    assert admission.panic


def test_a_server_that_loses_its_answers_is_reduced_whatever_else_is_slow_or_fails() -> None:
    slow = guard.admit({"h1": "errors", "h2": "all_slow", "h3": "all_slow"}, reduced=())
    assert (slow.reduce, bool(slow.panic)) == (frozenset(["h1"]), True)
    fails = guard.admit({"h1": "errors", "h2": "calm", "h3": "interference"}, (), failing={"h1": 1.0, "h2": 0.05})
    assert (fails.reduce, fails.fails) == (frozenset(["h1"]), "h2 fails 5% of its requests")


def test_overload_alone_is_no_panic_and_no_reason_to_reduce() -> None:
    admission = guard.admit({"h1": "overload", "h2": "overload", "h3": "calm"}, reduced=())
    assert admission == guard.Admission(frozenset())


def test_an_episode_that_waits_for_its_end_holds_a_server_down_and_lowers_none() -> None:
    waiting = guard.admit({"h1": "interference", "h2": "interference"}, reduced=("h1",), waiting=("h1", "h2"))
    assert waiting.reduce == {"h1"}


def test_of_the_servers_beyond_the_blast_radius_each_keeps_a_part() -> None:
    baselines = dict.fromkeys(("h1", "h2", "h3"), 100)
    assert guard.bound({"h1": 0, "h2": 5, "h3": 100}, baselines, {"h1", "h2"}, 0.5, {}) == {
        "h1": 0,
        "h2": 10,
        "h3": 100,
    }


def test_one_on_its_way_back_makes_room_for_one_that_is_slow_now() -> None:
    bounded = guard.bound({"h1": 4, "h2": 0, "h3": 100}, dict.fromkeys(("h1", "h2", "h3"), 100), {"h2"}, 0.5, {})
    assert bounded == {"h1": 100, "h2": 0, "h3": 100}


def test_the_last_server_that_takes_requests_keeps_its_weight() -> None:
    assert guard.bound({"h1": 0}, {"h1": 100}, {"h1"}, 1.0, {}) == {"h1": 10}
    assert guard.bound({"h1": 0}, {"h1": 100}, {"h1"}, 1.0, {"h2": 0}) == {"h1": 10}
    assert guard.bound({"h1": 0}, {"h1": 100}, {"h1"}, 1.0, {"h2": 5}) == {"h1": 0}


def test_weights_stay_within_what_the_balancer_takes() -> None:
    assert guard.bound({"h1": 900, "h2": -3}, {"h1": 256, "h2": 100}, {"h2"}, 0.5, {}) == {"h1": 256, "h2": 0}
    large = guard.bound({"h1": 60000, "h2": 70000}, {"h1": 65535, "h2": 65535}, set(), 1.0, {}, 65535)
    assert large == {"h1": 60000, "h2": 65535}


def test_when_all_are_slow_alike_everything_is_given_back_at_once() -> None:
    names = ["web1", "web2", "web3"]
    states: dict[str, State] = {"web1": "interference", "web2": "all_slow", "web3": "all_slow"}
    decisions = decided(
        snapshot([server("web1", 0), server("web2", 100), server("web3", 100)]),
        {"web1": Position(0), "web2": Position(100), "web3": Position(100)},
        {name: verdict(name, state, 0.9 * (name == "web1"), 40.0) for name, state in states.items()},
        now_s=10.0,
        rates=dict.fromkeys(names, 80.0),
        total_rps=240.0,
    )
    assert [decisions.servers[name].position.weight for name in names] == [100] * 3
    assert "together" in decisions.panic


# --- residual capacity: what is asked for by hand and by the second stage

FOUR = ("host0", "host1", "host2", "host3")


def four(
    total_rps: float | None,
    weights: tuple[int, ...] = (100, 100, 100, 100),
    states: dict[str, State] | None = None,
    balance: str = "roundrobin",
    capacity_rps: float | None = 300.0,
    cpu: float | None = None,
    unshown: Collection[str] = (),
    **of_view: Any,
) -> Decisions:
    """Four servers of 300 requests/s; one in interference has 60 left, unless it only waits for its end (`unshown`)."""
    states = {name: (states or {}).get(name, "calm") for name in FOUR}
    slow = {name for name, state in states.items() if state == "interference" and name not in unshown}
    facts = {
        name: msgspec.structs.replace(
            verdict(
                name,
                state,
                0.8 * (name in slow),
                capacity_rps and (60.0 if name in slow else capacity_rps),
            ),
            cpu=cpu,
            shown=name not in unshown,
        )
        for name, state in states.items()
    }
    positions = of_view.pop("positions", {name: Position(weight) for name, weight in zip(FOUR, weights, strict=True)})
    shown = snapshot([server(name, positions[name].weight) for name in FOUR], balance)
    return decided(shown, positions, facts, now_s=100.0, total_rps=total_rps, **of_view)


def weights_of(decisions: Decisions) -> list[int]:
    return [decisions.servers[name].position.weight for name in FOUR]


def drain(*names: str) -> dict[str, TemporaryOverride]:
    return {name: TemporaryOverride("drain", 200.0, "retune", "php-fpm reloads") for name in names}


def test_a_drain_that_the_others_can_carry_takes_all_weight() -> None:
    decisions = four(700.0, drains=drain("host1"))
    assert weights_of(decisions) == [100, 0, 100, 100]
    assert decisions.servers["host1"].why == "drained for retune: php-fpm reloads"
    assert decisions.servers["host1"].cause == "drained"


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
def test_a_drained_server_keeps_what_the_others_cannot_carry(balance: str) -> None:
    decisions = four(860.0, drains=drain("host1"), balance=balance)
    kept = decisions.servers["host1"].position.weight
    assert 0 < kept < 100
    assert decisions.servers["host1"].why == (
        f"drained for retune: php-fpm reloads; it keeps weight {kept}: with that load too the others would not stay"
        " below 90% of their capacity"
    )
    if balance == "roundrobin":
        assert 860.0 * 100 / (300 + kept) == pytest.approx(270.0, abs=1.0)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
@pytest.mark.parametrize("total_rps", [860.0, 1150.0])
def test_a_server_whose_machine_is_being_replaced_stays_empty_whatever_the_others_can_carry(
    balance: str, total_rps: float
) -> None:
    firm = {"host1": TemporaryOverride("drain", 200.0, "replace", "chronic", is_firm=True)}
    assert weights_of(four(total_rps, drains=firm, balance=balance)) == [100, 0, 100, 100]


def test_in_a_pool_that_is_full_a_drain_takes_nothing() -> None:
    assert weights_of(four(1150.0, drains=drain("host1"))) == [100, 100, 100, 100]


def test_a_drain_in_an_episode_leaves_the_slow_server_what_is_too_much_for_the_two_others() -> None:
    without = weights_of(four(520.0, states={"host0": "interference"}))
    weights = weights_of(four(520.0, states={"host0": "interference"}, drains=drain("host1")))
    assert without[0] <= 2
    assert weights[0] > 10
    assert 520.0 * 100 / sum(weights) <= 300.0 * (0.8 + 0.02)


def test_where_rates_are_unknown_a_drain_heeds_the_others_cpu() -> None:
    assert weights_of(four(None, drains=drain("host1"))) == [100, 0, 100, 100]
    assert weights_of(four(None, drains=drain("host1"), cpu=0.5)) == [100, 0, 100, 100]
    weights = weights_of(four(None, drains=drain("host1"), cpu=0.7875))
    assert weights == [100, 50, 100, 100], "0.7875 * 400 / 350 = 0.9"


def test_a_drain_beyond_the_blast_radius_is_refused_in_words() -> None:
    decisions = four(100.0, drains=drain("host1", "host2", "host3"))
    assert weights_of(decisions) == [100, 0, 0, 100]
    assert decisions.servers["host3"].why == (
        "not drained: at most 50% of the pool may be drained at a time, and never its last server"
    )
    assert decisions.servers["host3"].cause == "not_drained"


def test_a_pin_wins_and_what_it_does_to_the_others_is_reported() -> None:
    easy, hard = (four(total, pins={"host1": Pin(0, "anna")}) for total in (600.0, 1000.0))
    assert weights_of(easy) == weights_of(hard) == [100, 0, 100, 100]
    assert easy.servers["host1"].why == "pinned at 0 by anna"
    assert hard.servers["host1"].why == (
        "pinned at 0 by anna; warning: the others are predicted to be 111% full, above 90%"
    )
    assert hard.servers["host1"].short == (hard.servers["host1"].why,)
    assert hard.servers["host1"].cause == "pinned"


def test_a_pin_goes_before_a_verdict_where_the_blast_radius_has_room_for_one_only() -> None:
    states: dict[str, State] = {"host0": "interference", "host2": "interference"}
    weights = weights_of(four(100.0, states=states, pins={"host1": Pin(0, "anna")}))
    assert weights[1] == 0
    assert sorted((weights[0], weights[2])) == [0, 10]


def test_a_pinned_server_is_not_counted_on_for_more_than_it_gets() -> None:
    weights = weights_of(four(520.0, states={"host0": "interference"}, pins={"host1": Pin(0, "anna")}))
    assert weights[1] == 0
    assert weights[0] > 0
    assert 520.0 * 100 / sum(weights) <= 300.0 * (0.8 + 0.02)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
def test_calm_gives_the_weight_back_at_once_and_an_episode_does_so_when_the_others_would_be_full(balance: str) -> None:
    slow: dict[str, State] = {"host0": "interference"}
    assert weights_of(four(520.0, (2, 100, 100, 100), balance=balance))[0] == 100
    assert weights_of(four(520.0, (0, 100, 100, 100), slow, balance))[0] == 0, "there is room"
    weights = weights_of(four(860.0, (0, 100, 100, 100), slow, balance))
    assert weights[0] > 0, "no dwell"


def test_where_rates_are_unknown_and_the_others_cpu_is_high_nothing_is_taken_from_the_slow_server() -> None:
    slow: dict[str, State] = {"host0": "interference"}
    assert weights_of(four(None, states=slow)) == [20, 100, 100, 100]
    assert weights_of(four(None, states=slow, cpu=0.5)) == [20, 100, 100, 100]
    assert weights_of(four(None, states=slow, cpu=0.7875)) == [50, 100, 100, 100], "0.7875 * 400 / 350 = 0.9"
    assert weights_of(four(None, states=slow, cpu=0.95625)) == [100, 100, 100, 100]
    back = four(None, (20, 100, 100, 100), slow, cpu=0.95625)
    assert weights_of(back) == [40, 100, 100, 100], "0.95625 * 320 / 340 = 0.9, at once"
    unknown = four(600.0, states=slow, capacity_rps=None, cpu=0.7875)
    assert weights_of(unknown) == [50, 100, 100, 100]


def test_an_episode_that_only_waits_for_its_end_lowers_no_server_that_stands_at_its_baseline() -> None:
    states: dict[str, State] = {"host0": "interference"}
    assert weights_of(four(300.0, states=states, unshown={"host0"})) == [100, 100, 100, 100]
    assert "nothing shows it now" in four(300.0, states=states, unshown={"host0"}).servers["host0"].why
    assert weights_of(four(100.0, (0, 100, 100, 100), states, unshown={"host0"}))[0] < 100, "it is held"
    assert weights_of(four(300.0, states=states)) == [0, 100, 100, 100]


def test_three_of_four_servers_beside_neighbours_are_reduced_and_two_of_them_drained_at_most() -> None:
    three: dict[str, State] = dict.fromkeys(FOUR[:3], "interference")
    decisions = four(100.0, states=three)
    assert not decisions.panic
    assert sorted(weights_of(decisions)) == [0, 0, 10, 100]
    full = four(400.0, states=three)
    assert weights_of(full)[3] == 100
    assert all(10 <= weight < 100 for weight in weights_of(full)[:3]), "the last one cannot carry it all"


def test_where_all_are_slow_alike_an_episode_changes_nothing() -> None:
    four_slow: dict[str, State] = dict.fromkeys(FOUR, "interference")
    decisions = four(160.0, states=four_slow)
    assert weights_of(decisions) == [100, 100, 100, 100]
    assert decisions.servers["host0"].cause == "no_gain"
    assert "the others would not answer its requests sooner" in decisions.servers["host0"].why
