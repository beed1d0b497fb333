"""Comparing what we set with what the balancer shows: a reload, someone else's hand, or our own word not yet confirmed.

Pure: the engine acts on what is found here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lbengine.balancer import Snapshot
from lbengine.baseline import Baseline
from lbengine.decision.ramp import Position


@dataclass(frozen=True)
class Ours:
    """What the engine believes of the pool between two looks."""

    baselines: Mapping[str, Baseline]
    positions: Mapping[str, Position]
    yielded: frozenset[str] = frozenset()
    """Servers whose weight someone else holds."""
    unsure: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Weights that were sent and not confirmed: the balancer may show them or not."""


@dataclass(frozen=True)
class Seen:
    """The same after a look; `foreign` is server -> (weight we had set, weight that someone else set)."""

    positions: dict[str, Position]
    yielded: frozenset[str]
    foreign: dict[str, tuple[int, int]]


def reconcile(
    ours: Ours, snapshot: Snapshot, baselines: Mapping[str, Baseline], slow: Collection[str], fresh_process: bool
) -> Seen:
    """While we act. `baselines` are those after this look, `slow` the servers with a Verdict of interference.

    After a restart our positions stand (they are sent again), adapted to a new baseline; servers that take no requests
    are taken as they are. Otherwise a weight that we did not set is someone else's: theirs until it is at the baseline
    again and nothing calls for less.
    """
    positions: dict[str, Position] = {}
    yielded = set(ours.yielded & {server.name for server in snapshot.servers})
    foreign: dict[str, tuple[int, int]] = {}
    for server in snapshot.servers:
        name, baseline = server.name, baselines[server.name].weight
        position, known = ours.positions.get(name), ours.baselines.get(name)
        if position is None or name in yielded:
            positions[name] = Position(server.weight)
        elif server.weight == position.weight:
            positions[name] = position
        elif fresh_process and server.available:
            untouched = known is None or position.weight == known.weight
            stays = Position(baseline) if untouched else position
            positions[name] = stays if stays.weight <= baseline else Position(baseline)
        else:
            positions[name] = Position(server.weight)
            if not fresh_process and ours.unsure.get(name) != server.weight:
                yielded.add(name)
                foreign[name] = (position.weight, server.weight)
        if name in yielded and server.weight == baseline and name not in slow:
            yielded.discard(name)
    return Seen(positions, frozenset(yielded), foreign)


def follow(ours: Ours, snapshot: Snapshot, baselines: Mapping[str, Baseline], imagined: bool) -> Seen:
    """While our hands are off (observe, pause): the weights are what they are.

    With `imagined` (observe) a position is where we would have gone, until the server's baseline changes.
    """
    return Seen(
        {
            server.name: ours.positions[server.name]
            if imagined and server.name in ours.positions and ours.baselines.get(server.name) == baselines[server.name]
            else Position(server.weight)
            for server in snapshot.servers
        },
        frozenset(),
        {},
    )
