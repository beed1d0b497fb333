"""The pure turn: what each phase does with the same look at a pool."""

from __future__ import annotations

import dataclasses

import pytest

from slackwater.core.config import LbengineSettings
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.state import Phase, PoolState, PoolView
from slackwater.lbengine.decision.step import Actions, step, without
from tests.support.pool_shown import POOL, server, snapshot, verdict

NAMES = ("host1", "host2", "host3")


def turn(phase: Phase, weight: int = 100, *, then: Phase = "paused") -> tuple[PoolState, Actions]:
    """host1 has this weight, which we have set, and is slow."""
    weights = {"host1": weight, "host2": 100, "host3": 100}
    state = PoolState(
        phase,
        baselines={name: Baseline(100, 100) for name in NAMES},
        positions={name: Position(shown) for name, shown in weights.items()},
    )
    view = PoolView(
        now_s=10.0,
        snapshot=snapshot([server(name, shown) for name, shown in weights.items()]),
        verdicts={
            name: verdict(name, "interference" if name == "host1" else "calm", 0.8 * (name == "host1"), 300.0)
            for name in NAMES
        },
        then=then,
    )
    return step(state, view, POOL, LbengineSettings())


def weights_of(state: PoolState) -> list[int]:
    return [state.positions[name].weight for name in NAMES]


@pytest.mark.parametrize("phase", ["acting", "observing"])
def test_acting_and_observing_decide_the_same(phase: Phase) -> None:
    after, actions = turn(phase)
    (wanted,) = actions.wanted
    assert (wanted.what, wanted.server, wanted.before, wanted.after) == ("weight", "host1", 100, 20)
    assert weights_of(after) == [20, 100, 100]
    assert after.phase == phase


def test_in_a_pause_nothing_is_decided_and_the_weights_are_what_they_are() -> None:
    after, actions = turn("paused", 40)
    assert actions.wanted == []
    assert weights_of(after) == [40, 100, 100]
    assert after.baselines == {name: Baseline(100, 100) for name in NAMES}
    assert after.externally_controlled == {"host1"}


def test_what_is_restored_is_followed_by_the_pause_or_by_observing() -> None:
    after, actions = turn("restoring", 40)
    assert actions.restore_weights == {"host1": (40, 100)}
    assert (after.phase, weights_of(after), actions.wanted) == ("paused", [100, 100, 100], [])
    after, actions = turn("restoring", 40, then="observing")
    assert (after.phase, weights_of(after)) == ("observing", [20, 100, 100])
    assert (actions.otherwise.phase, weights_of(actions.otherwise)) == ("restoring", [40, 100, 100])


def test_what_is_refused_or_fails_leaves_a_server_where_the_balancer_showed_it() -> None:
    after, actions = turn("acting")
    assert weights_of(actions.otherwise) == [100, 100, 100]
    assert weights_of(without(after, actions.wanted)) == [100, 100, 100]


def test_a_turn_changes_nothing_that_it_was_given() -> None:
    state, _ = turn("acting")
    view = PoolView(now_s=11.0, snapshot=snapshot([server(name, 100) for name in NAMES]), verdicts={})
    before = dataclasses.replace(state, positions=dict(state.positions))
    first, second = (step(state, view, POOL, LbengineSettings()) for _ in range(2))
    assert first == second
    assert state == before
