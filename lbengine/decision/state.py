"""The values that decisions are made of: what an engine keeps between two turns, and what it sees in a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slackwater.core.messages import Verdict
from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.alike import HeldRequests
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.evenness import CalmWeights
from slackwater.lbengine.decision.failing import FailingServer
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.rates import Rates
from slackwater.lbengine.overrides.overrides import Pin
from slackwater.lbengine.overrides.temporary import TemporaryOverride

Phase = Literal["standby", "observing", "acting", "paused", "restoring"]
"""standby: another lbengine drives the balancer. observing: decisions are made and recorded, nothing is set. acting:
decisions are set. paused: the operators set the weights. restoring: an earlier run or phase may have left weights that
are put back first; paused or observing follows."""


@dataclass(frozen=True)
class PoolState:
    """An engine's beliefs about a pool between two turns."""

    phase: Phase
    baselines: Mapping[str, Baseline] | None = None
    """By server; None before the first look."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By server; in `observing` the weight that it would have got."""
    externally_controlled: frozenset[str] = frozenset()
    """Servers whose weight someone else has set."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The `maxconn`s that we have set, or in `observing` would have."""
    externally_limited: frozenset[str] = frozenset()
    """Servers whose `maxconn` someone else has changed while we limited it."""
    adopt_limits: bool = False
    """Any `maxconn` that differs from the stored baseline may be ours, set by an earlier run."""
    rates: Rates = field(default_factory=Rates)
    calm: Calm = field(default_factory=Calm)
    held: Mapping[str, HeldRequests] = field(default_factory=dict)
    """By server, of those whose nodes call them slow."""
    failing: Mapping[str, FailingServer] = field(default_factory=dict)
    """By server, of those that fail well above their peers."""
    calm_weights: CalmWeights = field(default_factory=CalmWeights)
    slow_starts: frozenset[str] = frozenset()
    """Servers that the balancer itself was seen to warm up."""
    last: Snapshot | None = None
    """The snapshot of the turn before; None before the first look."""
    started_s: float | None = None
    """Time of the first turn or of the takeover; None before."""
    grace_until_s: float = 0.0
    """After a takeover: until this time a weight that changes is being restored by the lbengine before. It does not
    count as someone else's."""

    def full_weight(self, server: str) -> int:
        """The weight that the server has when nothing is wrong: its baseline, or its weight in calm."""
        return self.calm_weights.of(server, (self.baselines or {})[server].weight)


@dataclass(frozen=True)
class PoolView:
    """All that one turn sees. Overrides are by server."""

    now_s: float
    snapshot: Snapshot
    verdicts: Mapping[str, Verdict]
    """Fresh ones, by node."""
    unconfirmed: Mapping[str, int] = field(default_factory=dict)
    """Weights that were sent and not confirmed: the balancer may show them or not."""
    unconfirmed_limits: Mapping[str, int] = field(default_factory=dict)
    """`maxconn`s that were sent and not confirmed."""
    then: Phase = "paused"
    """The phase after `restoring`."""
    drains: Mapping[str, TemporaryOverride] = field(default_factory=dict)
    """Servers that should get no requests. Drains are allowed even in panic mode."""
    caps: Mapping[str, TemporaryOverride] = field(default_factory=dict)
    """Servers that should get fewer requests at a time."""
    holds: Mapping[str, TemporaryOverride] = field(default_factory=dict)
    """Servers that keep their baseline weight whatever their Verdict: they are being measured."""
    pins: Mapping[str, Pin] = field(default_factory=dict)
