"""What an engine knows between two turns, and what it sees in one: the values that decisions are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lbengine.balancer import Snapshot
from lbengine.baseline import Baseline
from lbengine.decision.alike import Held
from lbengine.decision.calm import Calm
from lbengine.decision.position import Position
from lbengine.decision.rates import Rates
from lbengine.overrides.overrides import Pin
from lbengine.overrides.temporary import TemporaryOverride
from slackwater.messages import Verdict

Phase = Literal["standby", "observing", "acting", "paused", "restoring"]
"""standby: another lbengine drives the balancer. observing: decisions are made and recorded, nothing is set. acting:
they are set. paused: the weights are the operators'. restoring: an earlier run, or an earlier phase, may have left
weights that are put back first; then it is paused or observing."""


@dataclass(frozen=True)
class PoolState:
    """What is believed of a pool between two turns."""

    phase: Phase
    baselines: Mapping[str, Baseline] | None = None
    """By server; None before the first look."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By server; in `observing` where it would have been moved."""
    externally_controlled: frozenset[str] = frozenset()
    """Servers whose weight someone else has set."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The `maxconn`s that we have set, or in `observing` would have."""
    externally_limited: frozenset[str] = frozenset()
    """Servers whose `maxconn` someone else has changed while we limited it."""
    adopt_limits: bool = False
    """An earlier run may have set whatever `maxconn` is not the stored baseline."""
    rates: Rates = field(default_factory=Rates)
    calm: Calm = field(default_factory=Calm)
    held: Mapping[str, Held] = field(default_factory=dict)
    """By server that is called slow."""
    last: Snapshot | None = None
    started_s: float | None = None
    """When the first turn was, or the takeover; None before."""
    grace_until_s: float = 0.0
    """After a takeover: until then, weights that move are being restored by the lbengine before, and nobody else's."""


@dataclass(frozen=True)
class PoolView:
    """What one turn sees. Overrides are by server."""

    now_s: float
    snapshot: Snapshot
    verdicts: Mapping[str, Verdict]
    """Fresh ones, by node."""
    unconfirmed: Mapping[str, int] = field(default_factory=dict)
    """Weights that were sent and not confirmed: the balancer may show them or not."""
    unconfirmed_limits: Mapping[str, int] = field(default_factory=dict)
    """The same for `maxconn`."""
    then: Phase = "paused"
    """What follows `restoring`."""
    drains: Mapping[str, TemporaryOverride] = field(default_factory=dict)
    """Servers that should get no requests. Drains are allowed even in panic mode."""
    caps: Mapping[str, TemporaryOverride] = field(default_factory=dict)
    """Servers that should get fewer requests at a time."""
    holds: Mapping[str, TemporaryOverride] = field(default_factory=dict)
    """Servers that keep their baseline weight whatever their Verdict: they are being measured."""
    pins: Mapping[str, Pin] = field(default_factory=dict)
