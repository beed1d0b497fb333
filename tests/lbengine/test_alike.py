"""Whether servers are slow alike: what the balancer holds of each tells those apart that their nodes do not."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest

from slackwater.core.messages import State, Verdict
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.decision import alike
from slackwater.lbengine.decision.alike import HeldRequests
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.rates import Rates
from tests.support.pool_shown import verdict

RPS = 50.0
CALM = Calm(held=1.0, seen_s=0.0, requests=200.0)
"""A request takes 5 ms."""


def holds(dice: random.Random, mean: float) -> int:
    """Requests in flight at a moment, of a processor-sharing server that holds so many on average."""
    held = 0
    while dice.random() < mean / (1.0 + mean):
        held += 1
    return held


def looked(
    times: Mapping[str, float], looks: int, states: Mapping[str, State], seed: int = 1
) -> dict[str, HeldRequests]:
    """After so many looks at servers whose requests take so many times as long as in calm."""
    dice = random.Random(seed)
    verdicts = {name: verdict(name, state, 0.0, 250.0) for name, state in states.items()}
    seen: dict[str, HeldRequests] = {}
    for _ in range(looks):
        servers = [
            Server(name=name, weight=100, in_flight=holds(dice, RPS * 0.005 * more)) for name, more in times.items()
        ]
        seen = alike.after(seen, servers, verdicts, Rates(rps=dict.fromkeys(times, RPS)), CALM)
    return seen


def states_of(seen: Mapping[str, HeldRequests], claims: Mapping[str, State]) -> dict[str, str]:
    verdicts = {name: verdict(name, state, 0.0, 250.0) for name, state in claims.items()}
    return {name: weighed.state for name, weighed in alike.weighed(verdicts, seen).items()}


BOTH: dict[str, State] = {"a": "all_slow", "b": "all_slow"}


@pytest.mark.parametrize("seed", range(20))
def test_one_that_is_slow_beside_one_that_only_says_so_is_slow_by_itself(seed: int) -> None:
    seen = looked({"a": 12.0, "b": 1.0}, 150, BOTH, seed)
    assert states_of(seen, BOTH) == {"a": "interference", "b": "calm"}


def test_a_server_without_a_monitor_is_slow_and_has_no_neighbour_that_anybody_saw() -> None:
    seen = looked({"a": 12.0, "b": 1.0}, 150, BOTH)
    verdicts = {
        name: msgspec.structs.replace(verdict(name, "all_slow", 0.0, 250.0), source="balancer") for name in BOTH
    }
    weighed = alike.weighed(verdicts, seen)
    assert {name: weighed[name].state for name in BOTH} == {"a": "slow", "b": "calm"}


def test_a_limit_stays_with_the_server_that_is_slow_and_not_with_one_that_is_calm() -> None:
    seen = looked({"a": 12.0, "b": 1.0}, 150, BOTH)
    limit = {"resource": "own limit", "own_limit_cores": 0.4}
    verdicts = {name: msgspec.structs.replace(verdict(name, "all_slow", 0.0, 250.0), **limit) for name in BOTH}
    weighed = alike.weighed(verdicts, seen)
    assert {name: (weighed[name].state, weighed[name].resource, weighed[name].own_limit_cores) for name in BOTH} == {
        "a": ("slow", "own limit", 0.4),
        "b": ("calm", None, None),
    }


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("times", [(12.0, 12.0), (5.0, 5.0), (1.0, 1.0), (12.0, 5.0)])
def test_what_is_slow_alike_or_not_at_all_is_believed(times: tuple[float, float], seed: int) -> None:
    seen = looked({"a": times[0], "b": times[1]}, 150, BOTH, seed)
    assert states_of(seen, BOTH) == BOTH


def test_before_there_is_evidence_and_without_a_calm_to_compare_with_the_claim_holds() -> None:
    assert states_of(looked({"a": 12.0, "b": 1.0}, 2, BOTH), BOTH) == BOTH
    assert states_of({}, BOTH) == BOTH
    servers = [Server(name=name, weight=100, in_flight=50) for name in BOTH]
    verdicts = {name: verdict(name, "all_slow", 0.0, 250.0) for name in BOTH}
    assert alike.after({}, servers, verdicts, Rates(rps=dict.fromkeys(BOTH, RPS)), Calm()) == dict.fromkeys(
        BOTH, HeldRequests()
    )


def test_a_drained_server_stays_what_it_was_while_it_holds_nothing_and_is_forgotten_when_it_is_calm() -> None:
    seen = looked({"a": 12.0, "b": 1.0}, 150, BOTH)
    drained = [Server(name="a", weight=0, in_flight=0), Server(name="b", weight=100, in_flight=0)]
    rates = Rates(rps={"a": 0.0, "b": 2 * RPS})
    verdicts = {name: verdict(name, state, 0.0, 250.0) for name, state in BOTH.items()}
    for _ in range(100):
        seen = alike.after(seen, drained, verdicts, rates, CALM)
    assert states_of(seen, BOTH) == {"a": "interference", "b": "calm"}
    claims: dict[str, State] = {"a": "all_slow", "b": "interference"}
    assert states_of(seen, claims) == {"a": "interference", "b": "interference"}, "the other claim changes its word"
    calm: dict[str, Verdict] = {**verdicts, "a": verdict("a", "calm", 0.0, 250.0)}
    assert "a" not in alike.after(seen, drained, calm, rates, CALM)


def test_what_changes_is_noticed() -> None:
    seen = looked({"a": 12.0, "b": 1.0}, 100, BOTH)
    dice = random.Random(2)
    verdicts = {name: verdict(name, state, 0.0, 250.0) for name, state in BOTH.items()}
    for _ in range(600):
        servers = [Server(name=name, weight=100, in_flight=holds(dice, 3.0)) for name in BOTH]
        seen = alike.after(seen, servers, verdicts, Rates(rps=dict.fromkeys(BOTH, RPS)), CALM)
    assert states_of(seen, BOTH) == BOTH, "now both are slow"


def test_a_server_is_not_alone_slow_while_each_other_one_has_a_queue_too() -> None:
    assert alike.have_queues("a", {"a": 3.0, "b": 1.6, "c": 2.0})
    assert not alike.have_queues("a", {"a": 3.0, "b": 1.6, "c": 0.1}), "c is a better place"
    assert not alike.have_queues("a", {"a": 0.3, "b": 0.3}), "nobody waits"
    assert not alike.have_queues("a", {"a": 3.0})
