"""What is done to the fleet in each minute of calm: load that swings, and disturbances that are no neighbour.

Pure: a minute's plan follows from the seed and the minute's number, so a measurement can end and go on at any minute.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_lab.calm.data import View
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.disturb import swing
from slackwater_lab.disturb.timetable import (
    CLOCK_STEPS_S,
    DISTURBANCE_S,
    FLASH_CROWD,
    Disturbance,
    with_loads,
)
from slackwater_lab.experiment.recording import ExperimentError

MINUTE_S = 60.0
PLACES = 2
"""Places for disturbances in a minute; disturbances never overlap."""
PLACES_PER_HOUR = 60 * PLACES
LEVELS_S = (10.0, 30.0)
"""How long a pool's load stays at a level."""
FIRST_S = (1.0, 5.0)
"""Into its place: when a disturbance begins."""


@dataclass(frozen=True)
class CalmPlan:
    """The kinds of disturbances and how often they come; `seed` draws when and where."""

    seed: int
    kinds: tuple[str, ...] = ()
    per_hour: int = 12
    """Disturbances of each kind, somewhere in the fleet."""
    load: float = 0.4
    """Share of this machine's processors that the web servers' full load is, unless their quotas are less."""
    view: View = "monitors"
    """What the hosts are judged by."""

    def __post_init__(self) -> None:
        most = PLACES_PER_HOUR // max(1, len(self.kinds))
        if self.kinds and not (0 < self.per_hour <= most and PLACES_PER_HOUR % self.per_hour == 0):
            fit = ", ".join(str(number) for number in range(1, most + 1) if PLACES_PER_HOUR % number == 0)
            raise ExperimentError(
                f"{self.per_hour} disturbances an hour of each of {len(self.kinds)} kinds: an hour has"
                f" {PLACES_PER_HOUR} places, so expected one of {fit}"
            )

    def disturbances(self, minute: int, hosts: Sequence[Host]) -> list[Disturbance]:
        """Disturbances of a minute, in seconds from its begin. Each has a host: kinds of one node are done to it, other
        kinds to its pool."""
        in_places = (self._in_place(number, hosts) for number in range(minute * PLACES, (minute + 1) * PLACES))
        return [disturbance for disturbance in in_places if disturbance is not None]

    def _in_place(self, number: int, hosts: Sequence[Host]) -> Disturbance | None:
        if not self.kinds:
            return None
        # Places in a row have each kind once, in random order, and are empty for the rest.
        row = PLACES_PER_HOUR // self.per_hour
        places: list[str | None] = [*self.kinds, *[None] * (row - len(self.kinds))]
        random.Random(f"{self.seed} row {number // row}").shuffle(places)
        kind = places[number % row]
        if kind is None:
            return None
        dice = random.Random(f"{self.seed} place {number}")
        begin_s = MINUTE_S / PLACES * (number % PLACES) + dice.uniform(*FIRST_S)
        end_s = begin_s + dice.uniform(*DISTURBANCE_S)
        size = {"clock_step": dice.choice(CLOCK_STEPS_S), "flash_crowd": dice.uniform(*FLASH_CROWD)}.get(kind, 1.0)
        return Disturbance(dice.randrange(len(hosts)), kind, round(size, 3), round(begin_s, 2), round(end_s, 2))

    def levels(self, minute: int, pool: str, hosts: Sequence[Host]) -> list[swing.Level]:
        """A pool's load in a minute, as shares of its capacity."""
        crowds = [disturbance for disturbance in self.disturbances(minute, hosts) if disturbance.kind == "flash_crowd"]
        of_pool = [crowd for crowd in crowds if crowd.host is not None and hosts[crowd.host].pool == pool]
        return with_loads(swing.levels(random.Random(f"{self.seed} {minute} {pool}"), MINUTE_S, LEVELS_S), of_pool)
