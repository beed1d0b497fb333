"""Scenarios drawn from a seed, and every scenario by its name."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.stress import STRESSORS
from slackwater_lab.experiment.scenarios import FLOODS, SCENARIOS, Neighbour, Scenario

HOSTS = 3
SECONDS = 12.0
TAKEN = {"llcprobe": (0.5, 0.7, 0.85), "dcopy": (0.5,), "cpu": (0.5,), "stress-cache": (0.5,)}
"""Kinds, and shares of a host that the lab is known to find a weight for."""
NAME = re.compile(r"random-(\d+)-(\d+)")
AT_LOAD = re.compile(r"(.+)@([1-9]\d?)")
OF_KIND = re.compile(r"(.+)\+([a-z-]+)")


def names(seed: int, count: int) -> list[str]:
    """Names of the first scenarios of a seed."""
    return [f"random-{seed}-{number}" for number in range(count)]


def seed_of(name: str) -> int | None:
    """The seed that a scenario was drawn from; None where it was not."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match else None


def named(name: str) -> Scenario | None:
    """The scenario with this name, of the table or drawn; `two@30` is `two` at 30% load, `two+cpu` with neighbours of
    this kind. None: there is none."""
    if match := NAME.fullmatch(name):
        return drawn(int(match[1]), int(match[2]))
    if match := AT_LOAD.fullmatch(name):
        usual = named(match[1])
        return usual and replace(
            usual, description=f"{usual.description}, at {match[2]}% load", load=int(match[2]) / 100
        )
    if (match := OF_KIND.fullmatch(name)) and (kind := match[2]) in (*NOISES, *STRESSORS):
        usual = named(match[1])
        return usual and replace(
            usual, description=f"{usual.description}, by {kind}", neighbours=_by(kind, usual.neighbours)
        )
    return SCENARIOS.get(name)


def _by(kind: str, neighbours: Sequence[Neighbour]) -> tuple[Neighbour, ...]:
    return tuple(
        replace(neighbour, kind=kind, lost=None if kind in FLOODS else neighbour.lost) for neighbour in neighbours
    )


def drawn(seed: int, number: int) -> Scenario:
    """One of three hosts' neighbours at random: how many there are, of which kind and share, and when; and the load."""
    dice = random.Random(f"{seed} {number}")
    neighbours = [
        neighbour for host in dice.sample(range(HOSTS), dice.randint(1, HOSTS)) for neighbour in _beside(host, dice)
    ]
    load = round(dice.uniform(0.2, 0.8), 2)
    beside = {neighbour.host for neighbour in neighbours}
    description = f"drawn: {len(neighbours)} episodes beside {len(beside)} of {HOSTS}, {load:.0%} load"
    return Scenario(
        description, tuple(sorted(neighbours, key=lambda neighbour: neighbour.begin_s)), seconds=SECONDS, load=load
    )


def _beside(host: int, dice: random.Random) -> list[Neighbour]:
    """One neighbour all the time, or bursts of one kind; it begins at once or later."""
    kind = dice.choice(sorted(TAKEN))
    lost = dice.choice(TAKEN[kind])
    begin_s = dice.choice((0.0, round(dice.uniform(1.0, 0.4 * SECONDS), 1)))
    if dice.random() < 0.5:
        return [Neighbour(host, begin_s, SECONDS, kind, lost=lost)]
    on_s, off_s = round(dice.uniform(1.5, 6.0), 1), round(dice.uniform(1.5, 6.0), 1)
    bursts = []
    while begin_s < SECONDS:
        bursts.append(Neighbour(host, round(begin_s, 1), round(min(begin_s + on_s, SECONDS), 1), kind, lost=lost))
        begin_s += on_s + off_s
    return bursts
