"""What is seen of the cluster at one instant; the invariants judge these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.schedule import Injection


@dataclass(frozen=True)
class Move:
    """A server's weight was another than at the look before."""

    at_s: float
    server: str
    before: int
    after: int


@dataclass(frozen=True)
class Recorded:
    """A Change of a weight, as it came into a journal; `at_s` is when it was first seen there."""

    at_s: float
    server: str
    after: object
    by: str


@dataclass(frozen=True)
class Usage:
    """What one process holds: resident bytes, descriptors, threads."""

    rss_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Failed:
    """Requests that got no answer or a wrong one, of a piece of load."""

    begin_s: float
    end_s: float
    count: int
    how: str


@dataclass(frozen=True)
class Look:
    """One look. All times are monotonic seconds since the run's begin. What could not be seen is None or empty."""

    at_s: float
    weights: Mapping[str, int] | None = None
    drained_until_s: Mapping[str, float] = field(default_factory=dict)
    """Server -> until when it may stay without weight for a reload, by the last Cycle that showed it drained."""
    cycle_s: float | None = None
    """When lbengine was last heard on the bus."""
    verdict_s: float | None = None
    """When the detector was last heard there."""
    judged: frozenset[str] = frozenset()
    """Nodes with a fresh Verdict that is not `unknown`."""
    recorded: Sequence[Recorded] = ()
    """Since the look before."""
    knobs_set: frozenset[str] = frozenset()
    """Hosts where a file of wsengine's is in the web server's configuration."""
    leases_until_s: Mapping[str, float] = field(default_factory=dict)
    """Host -> when the last Order that was heard for it runs out."""
    usage: Mapping[str, Usage] = field(default_factory=dict)
    """Name of a process -> what it uses."""
    journal_bytes: int = 0
    failed: Sequence[Failed] = ()
    """Since the look before."""
    active: Sequence[Injection] = ()
    """Faults at work, or just over."""
