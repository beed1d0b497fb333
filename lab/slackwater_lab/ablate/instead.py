"""What stands in for parts of the decision while a mechanism is off (`slackwater_lab.ablate.mechanisms`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.decision import position as places
from slackwater.lbengine.decision import split
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.loads import Load
from slackwater.lbengine.decision.position import Position, Requests
from slackwater.lbengine.decision.room import Room
from slackwater.lbengine.decision.split import Share


def what_is_left(
    loads: Sequence[Load],
    capacity: Sequence[float],
    total_rps: float,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
) -> dict[str, Share]:
    del capacity, total_rps, law_name, u_threshold, snapshot
    return split._by_severity(loads, "no_capacity")


def drained(
    loads: Sequence[Load],
    capacity: Sequence[float],
    total_rps: float,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
) -> dict[str, Share]:
    del capacity, total_rps, law_name, u_threshold, snapshot
    return {load.server: Share(0) for load in loads if load.reduce}


def at_its_capacity(self: Calm, servers: int, capacity_rps: float) -> float:
    del self, servers, capacity_rps
    return 1.0


def by_requests(loads: Sequence[Load], capacity: Sequence[float], rates: Sequence[float]) -> dict[str, int]:
    del capacity
    return split._rounded(loads, rates)


def down_at_once(position: Position, target: int, baseline: int, now_s: float, min_change: float) -> Position:
    del baseline, min_change
    return places.moved(position, min(max(target, position.least), position.weight), now_s)


def up_and_down(position: Position, target: int, baseline: int, now_s: float, min_change: float) -> Position:
    del baseline, min_change
    return places.moved(position, max(target, position.least), now_s)


def never_tried(
    position: Position, baseline: int, requests: Requests, now_s: float, *, blind: bool, after_s: float
) -> Position:
    del baseline, requests, now_s, blind, after_s
    return position


def nothing_given_back(self: Room, weights: Mapping[str, int], low: Collection[str]) -> tuple[float, dict[str, int]]:
    del self, weights, low
    return 0.0, {}
