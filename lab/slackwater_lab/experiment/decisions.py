"""The oracle's decision: no sockets, no clocks; the same look gives the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.decision.room import in_flight
from slackwater.lbengine.laws.laws import optimal


@dataclass(frozen=True)
class Seen:
    """One server at a look."""

    server: str
    baseline: int = 100
    noisy: bool = False
    capacity: float | None = None
    """Capacity beside the noise, in the unit of the baselines; None: the same as the baseline."""


@dataclass(frozen=True)
class Look:
    """All servers at a time."""

    servers: Sequence[Seen]
    load: float | None = None
    """Share of the pool's capacity in calm that is demanded. None: not known, so it drains."""


@dataclass(frozen=True)
class Oracle:
    """Knows the noise, the load and what each server can do: it drains noisy servers at the onset as long as the others
    can carry everything, and else splits the load for the least mean response time
    (`slackwater.lbengine.laws.laws.optimal`).

    On `leastconn` a weight says how many requests a server should hold, by Little's law r·T, and r/(μ - r) under
    processor sharing.
    """

    balance: str = "roundrobin"
    drains: bool = True
    """If false, the split of least mean response time is kept all the time, also in calm."""

    ROOM = 0.95

    def __call__(self, look: Look) -> dict[str, int]:
        """Weights by server."""
        base = {seen.server: seen.baseline for seen in look.servers}
        if self.drains and not any(seen.noisy for seen in look.servers):
            return base
        if look.load is None:
            drained = {seen.server: 0 if seen.noisy else seen.baseline for seen in look.servers}
            return drained if any(drained.values()) else base
        total = look.load * sum(base.values())
        able = [float(seen.baseline if seen.capacity is None else seen.capacity) for seen in look.servers]
        quiet = [0.0 if seen.noisy else mu for seen, mu in zip(look.servers, able, strict=True)]
        if self.drains and total <= self.ROOM * sum(quiet):
            able = quiet
        if sum(able) <= 0.0:
            return base
        wanted = optimal(able, total)
        if weights_mean(self.balance) == "concurrency":
            wanted = [in_flight(rate / mu) if mu > 0.0 else 0.0 for rate, mu in zip(wanted, able, strict=True)]
        most = max(wanted)
        return {seen.server: round(seen.baseline * w / most) for seen, w in zip(look.servers, wanted, strict=True)}
