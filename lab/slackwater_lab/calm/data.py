"""The data of the calm: a line of JSON for each minute, in one file that is only ever appended to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from slackwater.core.messages import SLOW_ALONE
from slackwater_lab import cells
from slackwater_lab.cluster.machines import HostKind

FORMAT = 1
View = Literal["monitors", "balancer"]
NOTHING = "nothing"
"""Stands for a disturbance's kind where there is no disturbance."""


class Began(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A state other than calm that a node's Verdict began to have."""

    node: str
    state: str
    after_s: float
    """Seconds from the minute's begin."""
    beside: str
    """Kind of the disturbance that was done to the node, or `nothing`."""
    counts: bool
    """The machine carried the lab then."""
    severity: float
    why: list[str]
    """The Verdict's reasons, in words."""
    was_slow: bool = False
    """The state is `slow`, and the server was slow by itself then (`slackwater.detector.train.slow_alone`)."""

    @property
    def is_false(self) -> bool:
        """Whether it is an episode without a cause: nobody was loud, and of `slow`, which claims no neighbour, the
        server was not slow either."""
        return self.state in SLOW_ALONE and not self.was_slow


class Minute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A minute of calm."""

    v: int = FORMAT
    begun: str
    """Time in UTC."""
    machine: dict[str, Any]
    commit: str | None
    decision_commit: str | None
    """The last commit of the decision code."""
    minute: int
    """Number in the plan, from 0."""
    seed: int
    kinds: list[str]
    per_hour: int
    load: float
    """Share of the machine's processors that full load is, unless the quotas are less."""
    hosts: int
    pools: int
    quota_cores: float
    period_s: float
    """A host gets its quota once in this time."""
    app: str
    balance: str
    view: View = "monitors"
    """What the hosts are judged by."""
    kind: HostKind = "cgroup"
    """Kind of the hosts."""
    capacity_rps: float
    """Capacity of the whole fleet; the load is a share of it."""
    requests: int
    errors: int
    disturbances: dict[str, int]
    """Kind -> how many began."""
    node_s: dict[str, float]
    """Kind of disturbance, or `nothing` -> seconds of nodes that count."""
    overloaded_node_s: float
    """Seconds of nodes that do not count: the machine was overloaded."""
    unjudged_node_s: float
    """The same: there was no fresh Verdict on the node, as while it restarts."""
    busy_shares: list[float]
    """Busy share of the processors in each slice."""
    waits_ms: list[float]
    began: list[Began]

    @property
    def series(self) -> Series:
        return Series(**{name: getattr(self, name) for name in Series._fields} | {"kinds": tuple(self.kinds)})


class Series(NamedTuple):
    """The settings that all minutes of one measurement share."""

    decision_commit: str | None
    seed: int
    kinds: tuple[str, ...]
    per_hour: int
    load: float
    hosts: int
    pools: int
    quota_cores: float
    period_s: float
    app: str
    balance: str
    view: View = "monitors"
    kind: HostKind = "cgroup"


def described(series: Series) -> dict[str, Any]:
    """The fields of a minute of this measurement that it has in common with the others."""
    return {**series._asdict(), "kinds": list(series.kinds)}


def read(path: Path) -> list[Minute]:
    """All minutes that were measured, oldest first; none where there is no file. Raises ExperimentError, OSError."""
    return cells.read(path, Minute, FORMAT, "a minute of calm")


def left(measured: Sequence[Minute], series: Series, minutes: int) -> list[int]:
    """Numbers of the first `minutes` minutes of a measurement that are not measured yet."""
    done = {minute.minute for minute in measured if minute.series == series}
    return [number for number in range(minutes) if number not in done]
