"""A comparison's data: a line of JSON for each finished run, in one file that is only ever appended to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slackwater_lab import cells
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.compare.overload import RunLoad

FORMAT = 2
MACHINE = ("cpu", "cores", "last_level_cache_mib", "kernel")
"""The facts that tell machines apart."""
PROGRAMS = ("haproxy", "haproxy_command", "apache", "php", "hosts", "quota_cores", "period_s", "hypervisor")


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run of a comparison."""

    v: int = FORMAT
    begun: str
    """Time in UTC."""
    took_s: float
    """Time of the run, with the start and end of its programs."""
    machine: dict[str, Any]
    commit: str | None
    decision_commit: str | None
    """The last commit of the decision code."""
    hosts: HostKind
    scenario: str
    balance: str
    """The balance algorithm that the variant is based on."""
    variant: str
    """A name of `slackwater_lab.experiment.policies`."""
    round: int
    seed: int
    """Decides the order of the block's runs."""
    capacity_rps: float
    rate_rps: float
    calm: dict[str, float | None]
    """Figures of `slackwater_lab.experiment.measures` before the first neighbour."""
    loud: dict[str, float | None]
    """The same from the first neighbour to the last, and `results.ANSWERS`."""
    machine_load: RunLoad | None = None
    """None: of a time before it was recorded."""

    @property
    def is_carried(self) -> bool:
        """Whether the machine carried it, as far as that was recorded; else it does not count."""
        return self.machine_load is None or self.machine_load.is_carried

    @property
    def block(self) -> Block:
        return Block(self.hosts, self.scenario, self.round, machine_of(self.machine), self.decision_commit)


class Block(NamedTuple):
    """One round of one scenario: what was measured on one machine with one state of the decision code."""

    hosts: HostKind
    scenario: str
    round: int
    machine: str
    decision_commit: str | None


def machine_of(facts: Mapping[str, Any]) -> str:
    """A machine in words."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['last_level_cache_mib']:g} MiB last-level cache, Linux"
        f" {facts['kernel']}"
    )


def read(path: Path) -> list[Measured]:
    """All runs that were measured, oldest first; none where there is no file. Raises ExperimentError, OSError."""
    return cells.read(path, Measured, FORMAT, "a run of a comparison")


def parted(runs: Iterable[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Those that count, and those that the machine did not carry."""
    carried: list[Measured] = []
    overloaded: list[Measured] = []
    for run in runs:
        (carried if run.is_carried else overloaded).append(run)
    return carried, overloaded


def as_runs(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """For `results` and `goals`: two runs have the same round if they are of the same block."""
    rounds = {block: number for number, block in enumerate(dict.fromkeys(run.block for run in measured), start=1)}
    return [
        {
            "round": rounds[run.block],
            "scenario": run.scenario,
            "policy": run.variant,
            "calm": run.calm,
            "loud": run.loud,
        }
        for run in measured
    ]
