"""A comparison's plan: every run in a random order from a seed, round by round, so that what drifts on the machine
meets all policies alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.cluster.cgroups import PERIOD_S
from lab.cluster.lab import LabSettings
from lab.cluster.machines import HostKind
from lab.compare import resumable
from lab.experiment.drawn import named
from lab.experiment.policies import POLICIES
from lab.experiment.recording import ExperimentError, Run
from lab.experiment.scenarios import SCENARIOS

FORMAT = 1
FILE = "plan.json"
REFERENCE = LabSettings()


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for, and the order that follows from it."""

    v: int
    seed: int
    rounds: int
    scenarios: list[str]
    policies: list[str]
    hosts: int
    quota_cores: float
    runs: list[Run]
    kind: HostKind = "cgroup"
    hides_steal: bool = True
    period_s: float = PERIOD_S
    """Of the hosts, as in `LabSettings`."""
    haproxy: str = REFERENCE.haproxy
    capacity_rps: dict[str, float] = {}
    """Of the pool in calm, by application; measured when the first run needs it, and kept for all."""
    machine: dict[str, Any] = {}

    def settings(self, app: str) -> LabSettings:
        """Of the lab that the runs of an application need."""
        return LabSettings(
            self.hosts,
            self.quota_cores,
            app=app,
            retunable=True,
            kind=self.kind,
            hides_steal=self.hides_steal,
            period_s=self.period_s,
            haproxy=self.haproxy,
        )

    def same_question(self, other: Comparison) -> bool:
        """Both ask for the same runs in the same order."""
        measured: dict[str, Any] = {"capacity_rps": {}, "machine": {}}
        return msgspec.structs.replace(self, **measured) == msgspec.structs.replace(other, **measured)


def planned(
    scenarios: Sequence[str], policies: Sequence[str], rounds: int, seed: int, lab: LabSettings = REFERENCE
) -> Comparison:
    """All runs in order; `lab` describes the hosts, the scenarios choose the application.

    Within a round the order is random, but runs of one application stay together, since the lab is started anew for
    another. Raises ExperimentError for a name that is not in the tables.
    """
    known = {name: scenario for name in scenarios if (scenario := named(name)) is not None}
    for names, found, table, what in (
        (scenarios, known, SCENARIOS, "scenario"),
        (policies, POLICIES, POLICIES, "policy"),
    ):
        if unknown := [name for name in names if name not in found]:
            raise ExperimentError(f"no {what} `{unknown[0]}`; there are: {', '.join(table)}")
        if len(set(names)) < len(names) or not names:
            raise ExperimentError(f"expected each {what} once, and one at least, got: {', '.join(names) or 'none'}")
    dice = random.Random(seed)
    runs: list[Run] = []
    for number in range(1, rounds + 1):
        pairs = [(scenario, policy) for scenario in scenarios for policy in policies]
        dice.shuffle(pairs)
        pairs.sort(key=lambda pair: known[pair[0]].app)
        runs += [Run(len(runs) + place, number, *pair) for place, pair in enumerate(pairs, start=1)]
    return Comparison(
        FORMAT,
        seed,
        rounds,
        list(scenarios),
        list(policies),
        lab.hosts,
        lab.quota_cores,
        runs,
        kind=lab.kind,
        hides_steal=lab.hides_steal,
        period_s=lab.period_s,
        haproxy=lab.haproxy,
    )


def save(folder: Path, made: Comparison) -> None:
    """Writes the plan, atomically. Raises OSError."""
    resumable.save(folder / FILE, made)


def load(folder: Path) -> Comparison:
    """Reads a comparison's plan. Raises ExperimentError when there is none, or it is damaged."""
    return resumable.load(folder / FILE, Comparison, FORMAT, "a comparison")
