"""From capacities to weights, for round robin and for least connections."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slackwater.lbengine.decision import guard, room
from slackwater.lbengine.decision.loads import Load, capacities
from slackwater.lbengine.decision.room import Room
from slackwater.lbengine.decision.split import LAWS, split, step_of
from slackwater.lbengine.laws.grain import grain
from tests.support.coarse_weights import a_step_more_is_no_better
from tests.support.examples import examples
from tests.support.pool_shown import snapshot

MOST_DRAINED = 8


def three(slow_rps: float | None = 53.0, calm_rps: float | None = 302.0, **of_slow: object) -> list[Load]:
    slow = {"weight": 100, "reduce": True, "slow": True, "severity": 0.82, **of_slow}
    return [
        Load("host1", 100, capacity_rps=slow_rps, **slow),  # type: ignore[arg-type]
        Load("host2", 100, 100, capacity_rps=calm_rps),
        Load("host3", 100, 100, capacity_rps=calm_rps),
    ]


def with_room(
    loads: list[Load], total: float | None, law: str = "optimal", u_threshold: float = 0.8, balance: str = "roundrobin"
) -> list[int]:
    """The weights of the split, raised by as much as the others have no room for."""
    look = snapshot((), balance)
    given = split(loads, total, law, u_threshold, look, MOST_DRAINED)
    assert set(given) == {load.server for load in loads if load.reduce}
    weights = {load.server: given[load.server].weight if load.reduce else load.baseline for load in loads}
    low = {load.server for load in loads if load.reduce and weights[load.server] < load.baseline}
    room = Room(loads, total, u_threshold, look.by_concurrency, step_of([load.baseline for load in loads], look))
    weights |= room.give_back(weights, low)[1]
    return [weights[load.server] for load in loads]


def weight(loads: list[Load], total: float | None, law: str = "optimal", balance: str = "roundrobin") -> int:
    return with_room(loads, total, law, balance=balance)[0]


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
def test_the_slow_server_is_drained_when_the_rest_can_carry_the_load(balance: str) -> None:
    assert weight(three(), 250.0, balance=balance) == 0


@pytest.mark.parametrize("law", ["optimal", "ice"])
@pytest.mark.parametrize("total", [490.0, 500.0, 520.0])
def test_the_slow_server_keeps_what_the_rest_cannot_carry(law: str, total: float) -> None:
    own = weight(three(), total, law)
    others_rps = total * 200 / (200 + own)
    assert 0 < own < 100
    assert others_rps <= 0.8 * 604 + total * 0.5 / (200 + own)  # half a weight of rounding


@pytest.mark.parametrize("law", ["optimal", "ice"])
def test_round_robin_weights_give_the_rate_that_the_law_wants(law: str) -> None:
    given = split(three(), 520.0, law, 0.8, snapshot(), MOST_DRAINED)["host1"]
    assert 520.0 * given.weight / (200 + given.weight) == pytest.approx(given.rps, abs=1.5)


def test_least_connections_at_saturation_keeps_its_own_balance() -> None:
    assert weight(three(), 900.0, balance="leastconn") == 100


def test_least_connections_scales_by_concurrency_between_drained_and_saturated() -> None:
    own = weight(three(slow_rps=150.0), 590.0, balance="leastconn")
    assert 0 < own < 100


def test_least_connections_passes_a_slow_server_over_while_the_others_hold_a_few_requests() -> None:
    """In a busy pool it should hold the root of its capacity where they hold the root of theirs."""
    weights = [with_room(three(100.0), total, u_threshold=0.95, balance="leastconn")[0] for total in (600.0, 660.0)]
    assert weights == pytest.approx([100 * math.sqrt(100 / 302)] * 2, abs=8)


def test_a_server_that_works_faster_than_its_capacity_says_takes_all_requests_of_a_slow_one() -> None:
    """Of a quota of a processor a request uses the whole processor, until the quota is spent."""
    loads = three(150.0)
    assert weight(loads, 500.0, balance="leastconn") > 0
    quick = [loads[0], *(msgspec.structs.replace(load, working_rps=900.0) for load in loads[1:])]
    assert with_room(quick, 500.0, u_threshold=0.9, balance="leastconn")[0] == 0
    assert with_room(quick, 560.0, u_threshold=0.9, balance="leastconn")[0] > 0, "the others have no room"


def test_ice_under_least_connections_drains_what_the_noise_alone_fills() -> None:
    # CPU at 0.95 with 10 requests/s, full at 53: at no rate below 0.8.
    assert weight(three(cpu_predicted=0.95, rps=10.0), 250.0, "ice", "leastconn") == 0
    # The line through the origin allows 42 requests/s, more than least connections would send there anyway.
    assert weight(three(), 250.0, "ice", "leastconn") == 100


def test_only_servers_to_reduce_get_a_weight() -> None:
    loads = [Load("host1", 100, 100, capacity_rps=50.0), Load("host2", 100, 100, capacity_rps=300.0)]
    assert split(loads, 100.0, "optimal", 0.8, snapshot(), MOST_DRAINED) == {}


def test_the_only_server_of_a_pool_is_never_reduced() -> None:
    assert split(three()[:1], 100.0, "optimal", 0.8, snapshot(), MOST_DRAINED) == {}


def test_a_pool_without_traffic_drains_the_slow_server() -> None:
    assert weight(three(), 0.0) == 0


def test_without_any_capacity_a_server_keeps_what_is_left_of_it() -> None:
    assert weight(three(None, None, severity=0.6), 250.0) == 40
    assert weight(three(None, 302.0, severity=0.6), None) == 40


def test_an_unknown_capacity_of_a_calm_server_is_taken_from_its_peers() -> None:
    loads = [*three()[:2], Load("host3", 50, 50)]
    assert capacities(loads) == pytest.approx([53.0, 302.0, 151.0])


def test_calm_capacities_can_be_inferred_from_the_slow_one() -> None:
    assert capacities(three(60.0, None, severity=0.8)) == pytest.approx([60.0, 300.0, 300.0])


def test_one_bad_estimate_of_a_calm_server_changes_little() -> None:
    loads = [Load("host1", 100, 100, reduce=True, slow=True, capacity_rps=53.0, severity=0.8)]
    loads += [Load(f"host{n}", 100, 100, capacity_rps=300.0) for n in range(2, 6)] + [
        Load("host6", 100, 100, capacity_rps=20.0)
    ]
    assert capacities(loads) == pytest.approx([53.0] + [300.0] * 5)


def test_a_slow_server_that_keeps_its_weight_bounds_what_the_others_can_take() -> None:
    loads = [*three()[:2], Load("host3", 100, 100, slow=True, capacity_rps=60.0, severity=0.8)]
    assert capacities(loads) == pytest.approx([53.0, 302.0, 60.0])
    assert weight(loads, 250.0) >= 80


def test_a_calm_server_carries_at_least_what_it_carries_now() -> None:
    loads = [*three()[:2], Load("host3", 100, 100, capacity_rps=10.0, rps=302.0)]
    assert capacities(loads) == pytest.approx([53.0, 302.0, 302.0])


loads_strategy = st.lists(
    st.builds(
        Load,
        server=st.uuids().map(str),
        baseline=st.integers(1, 256),
        reduce=st.booleans(),
        slow=st.booleans(),
        capacity_rps=st.one_of(st.none(), st.floats(0.0, 5000.0)),
        severity=st.floats(0.0, 1.0),
        cpu_predicted=st.one_of(st.none(), st.floats(0.0, 3.0)),
        rps=st.one_of(st.none(), st.floats(0.0, 5000.0)),
        weight=st.integers(0, 256),
        probability=st.floats(0.0, 1.0),
    ),
    min_size=2,
    max_size=8,
).filter(lambda loads: not all(load.reduce for load in loads))


@settings(deadline=None)
@given(
    loads_strategy,
    st.one_of(st.none(), st.floats(0.0, 20000.0)),
    st.sampled_from(sorted(LAWS)),
    st.floats(0.1, 1.0),
    st.sampled_from(["roundrobin", "leastconn", "unknown"]),
)
def test_any_pool_gets_weights_within_its_baselines(
    loads: list[Load], total: float | None, law: str, u_threshold: float, balance: str
) -> None:
    given = split(loads, total, law, u_threshold, snapshot((), balance), MOST_DRAINED)
    assert set(given) == {load.server for load in loads if load.reduce}
    assert all(0 <= given[load.server].weight <= load.baseline for load in loads if load.reduce)


@examples(100, 600)
@given(
    loads_strategy,
    st.floats(1.0, 20000.0),
    st.sampled_from(sorted(LAWS)),
    st.floats(0.1, 1.0),
    st.sampled_from(["roundrobin", "leastconn", "wrr"]),
)
def test_after_no_law_the_others_are_over_the_threshold(
    loads: list[Load], total: float, law: str, u_threshold: float, balance: str
) -> None:
    """What the others cannot carry below it stays on the slow ones, unless those would be the fuller ones then."""
    capacity = capacities(loads)
    assume(capacity is not None and any(load.reduce for load in loads))
    assert capacity is not None
    assume(total >= 0.001 * sum(capacity) and min(capacity) > 0.01)
    weights = with_room(loads, total, law, u_threshold, balance)
    if all(weight == load.baseline for weight, load in zip(weights, loads, strict=True) if load.reduce):
        return
    by_concurrency = balance == "leastconn"

    def filled(weights: Sequence[int], which: Sequence[bool]) -> float:
        return room.fullest(weights, capacity, which, total, by_concurrency)

    slow, every = [load.reduce for load in loads], [True] * len(loads)
    most = max(u_threshold, total / math.fsum(capacity), filled(weights, slow)) + room.OVER + 1e-9
    if filled(weights, [not reduce for reduce in slow]) > most:
        step = 1 if balance != "wrr" else grain([load.baseline for load in loads])
        baselines = [load.baseline for load in loads]
        assert a_step_more_is_no_better(weights, baselines, slow, step, lambda trial: filled(trial, every))


def test_with_coarse_weights_the_slow_server_keeps_too_much_rather_than_too_little() -> None:
    """Of a baseline of 1 there is all or nothing."""
    loads = [msgspec.structs.replace(load, baseline=1) for load in three()]
    assert weight(loads, 480.0) == 0
    assert weight(loads, 500.0) == 1
    assert 0 < weight(three(), 500.0) < 20


def test_a_small_weight_rounded_up_does_not_keep_the_others_from_being_raised() -> None:
    """Of a baseline of 11 the steps are coarse, of 41 they are finer; what comes is more than all can carry."""
    loads = [Load("a", 1, 1), Load("b", 1, 1)]
    loads += [Load("c", 11, 11, reduce=True, severity=0.75)]
    loads += [Load("d", 41, 41, reduce=True, capacity_rps=1.0, severity=0.5)]
    weights = with_room(loads, 2.0, "ice", u_threshold=1.0)
    capacity = capacities(loads)
    assert capacity is not None
    assert room.fullest(weights, capacity, [True] * 4, 2.0, False) < 2.0 / math.fsum(capacity) + 0.1


def test_wrr_gives_back_in_whole_steps_too() -> None:
    for total in range(440, 620, 10):
        assert weight(three(), float(total), balance="wrr") % 5 == 0


def test_without_a_rate_a_slow_server_keeps_what_the_others_cpu_has_no_room_for() -> None:
    def kept(cpu: float | None) -> int:
        return weight([msgspec.structs.replace(load, cpu=cpu) for load in three(severity=0.8)], None)

    assert [kept(cpu) for cpu in (None, 0.0, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)] == [20, 20, 20, 20, 63, 82, 100, 100]


def test_doubt_about_the_slow_server_takes_weight_from_it() -> None:
    sure, unsure = (weight(three(150.0, capacity_stderr_rps=doubt), 400.0) for doubt in (0.0, 60.0))
    assert 0 < unsure < sure


def test_doubt_about_the_others_leaves_more_on_the_slow_server() -> None:
    loads = three(150.0)
    unsure = [loads[0], *(Load(name, 100, 100, capacity_rps=302.0, capacity_stderr_rps=60.0) for name in ("h2", "h3"))]
    assert weight(unsure, 450.0) > weight(loads, 450.0)


def test_no_doubt_takes_more_than_half_of_a_capacity() -> None:
    loads = [Load("host1", 100, 100, capacity_rps=300.0, capacity_stderr_rps=900.0), *three()[1:]]
    assert loads[0].sure_rps == 150.0


@pytest.mark.parametrize("total", [490.0, 500.0, 520.0])
def test_wrr_gets_weights_in_steps_that_keep_its_runs_short(total: float) -> None:
    even, stepped = weight(three(), total), weight(three(), total, balance="wrr")
    assert stepped % 5 == 0
    assert abs(stepped - even) <= 5


# --- how many are drained


def slow(name: str, capacity_rps: float, probability: float, weight: int = 100) -> Load:
    severity = 1.0 - capacity_rps / 250.0
    return Load(name, 100, weight, True, True, capacity_rps, 10.0, severity, rps=100.0, probability=probability)


def weights(loads: list[Load], total_rps: float, most_drained: int = 1) -> list[int]:
    given = split(loads, total_rps, "optimal", 0.8, snapshot(), most_drained)
    return [given[load.server].weight if load.reduce else load.baseline for load in loads]


CALM = Load("c", 100, 100, capacity_rps=250.0, capacity_stderr_rps=20.0, rps=100.0)


def test_of_two_slow_servers_the_one_with_the_greater_probable_loss_is_drained() -> None:
    least = guard.least_weight(100)
    assert weights([slow("a", 60.0, 0.7), slow("b", 60.0, 0.8), CALM], 60.0) == [least, 0, 100]
    assert weights([slow("a", 60.0, 0.7), slow("b", 60.0, 0.8), CALM], 60.0, most_drained=2) == [0, 0, 100]


def test_no_server_is_drained_in_the_place_of_one_that_stands_at_0() -> None:
    assert weights([slow("a", 60.0, 0.7, weight=0), slow("b", 60.0, 0.8), CALM], 60.0)[0] == 0


def test_where_all_are_slow_the_least_slow_one_keeps_its_weight() -> None:
    given = weights([slow("a", 50.0, 0.8), slow("b", 60.0, 0.8), slow("c", 200.0, 0.2)], 180.0)
    assert given[2] == 100
    assert max(given[:2]) < 60


def test_a_server_that_is_too_full_is_not_spared_at_the_cost_of_fuller_ones() -> None:
    """Of eight servers four have lost 60%, and one that keeps its weight is overloaded."""
    loads = [slow(f"slow{n}", 40.0, 1.0) for n in range(4)]
    loads += [Load("full", 100, 100, slow=True, capacity_rps=60.0, rps=62.0)]
    loads += [Load(f"calm{n}", 100, 100, capacity_rps=110.0, rps=62.0) for n in range(3)]
    for balance in ("roundrobin", "random"):
        assert max(with_room(loads, 490.0, balance=balance)[:4]) < 70
