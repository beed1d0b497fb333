"""What stands in for parts of the decision while a mechanism is off (`lab.ablate.mechanisms`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lbengine.balancer import Snapshot
from lbengine.decision import choice as choosing
from lbengine.decision import law_weights, prediction, two_choices
from lbengine.decision import position as places
from lbengine.decision.choice import Choice
from lbengine.decision.headroom import Headroom
from lbengine.decision.law_weights import Load, Want
from lbengine.decision.position import Position
from lbengine.decision.prediction import Alike
from slackwater.messages import WeightsMean

Held = tuple[Callable[[Sequence[Alike], float], float], ...]


def law_alone(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    most_drained: int,
    speed: float = 1.0,
) -> Choice:
    del speed
    slow = [load for load in loads if load.reduce]
    if not slow or len(loads) < 2:
        return Choice({})
    wanted = law_weights.wanted_weights(loads, total_rps, law_name, u_threshold, snapshot)
    return Choice(choosing._within(wanted, slow, most_drained))


def severity_alone(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    spare_slow: bool = True,
) -> dict[str, Want]:
    del total_rps, law_name, snapshot, spare_slow
    return law_weights._by_severity(loads, "no law is", u_threshold)


def drain(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    spare_slow: bool = True,
) -> dict[str, Want]:
    del total_rps, law_name, u_threshold, snapshot, spare_slow
    return {load.server: Want(0, "drained") for load in loads if load.reduce}


def law_spares(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    spare_slow: bool = True,
) -> dict[str, Want]:
    del spare_slow
    return law_weights.wanted_weights(loads, total_rps, law_name, u_threshold, snapshot)


def as_the_law(loads: Sequence[Load], law: Mapping[str, Want]) -> dict[str, Want]:
    del loads
    return dict(law)


def baseline(loads: Sequence[Load], count: int) -> dict[str, Want]:
    del count
    return {load.server: Want(load.baseline, "") for load in loads}


def one_draw(weights_mean: WeightsMean | None) -> Held:
    return (prediction.one_queue, prediction.own_queues) if weights_mean == "concurrency" else (prediction.by_share,)


def only(model: Callable[[Sequence[Alike], float], float]) -> Callable[[WeightsMean | None], Held]:
    """For least connections."""

    def models(weights_mean: WeightsMean | None) -> Held:
        if weights_mean == "concurrency":
            return (model,)
        return (two_choices.held_together if weights_mean == "draws" else prediction.by_share,)

    return models


def likely(belief: choosing._Belief, draw: int, number: int, common: float, speed: float) -> tuple[float, float]:
    del draw, number, common
    if belief.sure < 0.5:
        return belief.calm_rps, speed
    return min(max(belief.capacity_rps, belief.served_rps), belief.calm_rps), belief.speed


def certain(draw: int, number: int) -> float:
    del draw, number
    return 0.0


def one_by_one(kept_weight: int, kept_rate: float, rates: Sequence[float], most: Sequence[int]) -> list[int]:
    return [min(round(kept_weight * rate / kept_rate), limit) for rate, limit in zip(rates, most, strict=True)]


def by_requests(
    loads: Sequence[Load], capacity: Sequence[float], rates: Sequence[float], total_rps: float, u_threshold: float
) -> dict[str, int]:
    del capacity, total_rps, u_threshold
    return law_weights._rounded(loads, rates)


def down_at_once(position: Position, target: int, baseline: int, now_s: float, min_change: float) -> Position:
    del baseline, min_change
    return places.moved(position, min(max(target, position.least), position.weight), now_s)


def up_and_down(position: Position, target: int, baseline: int, now_s: float, min_change: float) -> Position:
    del baseline, min_change
    return places.moved(position, max(target, position.least), now_s)


def never_tried(position: Position, baseline: int, now_s: float, blind: bool) -> Position:
    """How long it has been blind still counts: that decides when it is watched."""
    if not blind or position.weight >= baseline:
        return dataclasses.replace(position, blind_s=None)
    return dataclasses.replace(position, blind_s=now_s if position.blind_s is None else position.blind_s)


def nothing_given_back(
    moves: Mapping[str, Any], slow: Collection[str], weights: Mapping[str, int], headroom: Headroom, now_s: float
) -> None:
    del moves, slow, weights, headroom, now_s


def not_given_back(
    weights: Sequence[int],
    baselines: Sequence[int],
    capacity: Sequence[float],
    kept: Sequence[bool],
    total_rps: float,
    u_threshold: float,
    by_concurrency: bool,
    step: int = 1,
) -> list[int]:
    del baselines, capacity, kept, total_rps, u_threshold, by_concurrency, step
    return list(weights)
