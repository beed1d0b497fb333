"""What happens in a recording and when: neighbours, and disturbances that are none. Pure; same seed, same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.disturb import swing
from slackwater_lab.experiment.scenarios import Neighbour

FIRST_CALM_S = 12.0
NOISE_S = (3.2, 5.0)
NOISE_REST_S = (4.5, 6.0)
"""Long enough for queues to drain and for the episode to end before the next noise begins."""
DISTURBANCE_S = (6.0, 9.0)
DISTURBANCE_REST_S = (5.0, 7.0)
DISTURBANCE_EVERY = 4
"""Every fourth turn is a disturbance where there are noises too."""
OVERLOAD_EVERY = 3
DRAIN_WEIGHTS = (100, 50, 10, 0)
OVERLOAD = (1.15, 1.5)
FLASH_CROWD = (0.8, 0.95)
LOADS = {"overload": OVERLOAD, "flash_crowd": FLASH_CROWD}
"""Disturbances that are only load -> their range, as shares of the pool's capacity."""
OF_ONE_NODE = ("reload", "start", "clock_step", "own_backup")
OF_ALL = ("deploy", "slow_database")
DISTURBANCES = ("flash_crowd", *OF_ALL, *OF_ONE_NODE)
CLOCK_STEPS_S = (-20.0, -2.0, 2.0, 20.0)


@dataclass(frozen=True)
class Disturbance:
    """Something that is no neighbour. `host` None: all of the pool. `size`: share of capacity, or seconds of a step."""

    host: int | None
    kind: str
    size: float
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Timetable:
    """The events of a recording; turns follow each other and never overlap."""

    levels: list[swing.Level]
    noises: list[Neighbour]
    disturbances: list[Disturbance] = field(default_factory=list)


def timetable(
    seed: int,
    seconds: float,
    *,
    hosts: int,
    kinds: Sequence[str],
    intensities: Sequence[float],
    share: float | None,
    drain: bool,
    overload: bool,
    disturbances: Sequence[str] = (),
) -> Timetable:
    """A plan from a seed. Kinds come equally often, in random order, each time in one host.

    `share` is the load as a share of capacity; None: it swings. With `overload` every third turn is a load that no pool
    could carry. With `drain` a host's weight is moved during its noise, as a controller would. With `disturbances` but
    no `kinds` every turn is one of these, with both every fourth.
    """
    dice = random.Random(seed)
    noises: list[Neighbour] = []
    others: list[Disturbance] = []
    loud, quiet = _bag(dice, kinds), _bag(dice, disturbances)
    at_s = FIRST_CALM_S + dice.uniform(0.0, 3.0)
    turn = 0
    while kinds or disturbances:
        turn += 1
        disturbed = bool(disturbances) and (not kinds or turn % DISTURBANCE_EVERY == 0)
        overloaded = overload and turn % OVERLOAD_EVERY == 0
        lasts_s, rests_s = (DISTURBANCE_S, DISTURBANCE_REST_S) if disturbed else (NOISE_S, NOISE_REST_S)
        end = at_s + dice.uniform(*lasts_s)
        if end > seconds - 0.5:
            break
        begin_s, end_s = round(at_s, 2), round(end, 2)
        if overloaded:
            others.append(Disturbance(None, "overload", round(dice.uniform(*OVERLOAD), 3), begin_s, end_s))
        elif disturbed:
            kind = next(quiet)
            host = dice.randrange(hosts) if kind in OF_ONE_NODE else None
            size = dice.choice(CLOCK_STEPS_S) if kind == "clock_step" else 1.0
            if kind in LOADS:
                size = round(dice.uniform(*LOADS[kind]), 3)
            others.append(Disturbance(host, kind, size, begin_s, end_s))
        else:
            weight = dice.choice(DRAIN_WEIGHTS) if drain else BASE_WEIGHT
            host = dice.randrange(hosts)
            noises.append(Neighbour(host, begin_s, end_s, next(loud), dice.choice(intensities), server_weight=weight))
        at_s = end + dice.uniform(*rests_s)
    base = swing.levels(dice, seconds) if share is None else [swing.Level(share, seconds)]
    return Timetable(
        with_loads(base, [disturbance for disturbance in others if disturbance.kind in LOADS]), noises, others
    )


def _bag(dice: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    """All kinds in random order, then all again in another."""
    while kinds:
        yield from dice.sample(kinds, len(kinds))


def with_loads(base: Sequence[swing.Level], loads: Sequence[Disturbance]) -> list[swing.Level]:
    """The levels with other loads laid over them."""
    result: list[swing.Level] = []
    begin_s = 0.0
    for level in base:
        end_s = begin_s + level.seconds
        at_s = begin_s
        for load in loads:
            if load.end_s <= at_s or load.begin_s >= end_s:
                continue
            if load.begin_s > at_s:
                result.append(swing.Level(level.share, load.begin_s - at_s))
                at_s = load.begin_s
            if at_s == load.begin_s:
                result.append(swing.Level(load.size, load.end_s - at_s))
            at_s = load.end_s
        if at_s < end_s:
            result.append(swing.Level(level.share, end_s - at_s))
        begin_s = end_s
    return result
