"""How full the servers of a pool would be in this turn, and how much weight a server to drain keeps. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lbengine.decision import residual
from lbengine.decision.law_weights import Load, capacities


@dataclass(frozen=True)
class Headroom:
    """The servers that share the pool's requests (`staying`), those to drain (`leaving`), and the pool's rate."""

    staying: Sequence[Load]
    leaving: Sequence[Load]
    total_rps: float | None
    """None: not known."""
    u_threshold: float
    by_concurrency: bool

    @cached_property
    def rps(self) -> float | None:
        """Requests/s that the staying servers have to carry; None: not known."""
        return None if self.total_rps is None else self.total_rps - self._left_rps

    def limit(self) -> float:
        """The highest utilisation, as `filled` predicts it, that a server which keeps its weight may have."""
        capacity, rps = self._able, self.rps
        if capacity is None or rps is None:
            return self.u_threshold + residual.OVER
        return residual.allowed(capacity, rps, self.u_threshold)

    def filled(self, weights: Mapping[str, int], without: Collection[str] = ()) -> float:
        """Predicted utilisation of the fullest server that is neither reduced nor named in `without`.

        It is predicted from the rate and the capacities; where these are not known from the present CPU utilisations;
        without these it is 0.
        """
        given = [weights[load.server] for load in self.staying]
        kept = [not load.reduce and load.server not in without for load in self.staying]
        capacity, rps = self._able, self.rps
        if capacity is not None and rps is not None:
            return residual.fullest(given, capacity, kept, rps, self.by_concurrency)
        now = [load.weight_now for load in self.staying]
        least = residual.least_weight(now, [load.cpu for load in self.staying], kept, self.u_threshold)
        return least * self.u_threshold / max(sum(given), 1)

    def keeps(self, weights: Mapping[str, int], min_change: float) -> dict[str, int]:
        """The weights of the servers to drain: 0, or as much as the staying servers cannot carry with `weights`.

        A change below `min_change`, as a share of the baseline, is not made.
        """
        if not self.leaving:
            return {}
        others = [weights[load.server] for load in self.staying]
        kept = {}
        for load, wanted in zip(self.leaving, self._keep(others), strict=True):
            weight, now = min(wanted, load.baseline), load.weight_now
            if 0 < abs(weight - now) < min_change * load.baseline and weight > 0 and now < load.baseline:
                weight = now
            kept[load.server] = weight
        return kept

    def _keep(self, others: Sequence[int]) -> list[int]:
        capacity, left_rps, rps = self._all, self._left_rps, self.rps
        if capacity is None or rps is None:
            least = residual.least_weight(
                [*(load.weight_now for load in self.staying), *(load.weight or 0 for load in self.leaving)],
                [load.cpu for load in (*self.staying, *self.leaving)],
                [not load.reduce for load in self.staying] + [False] * len(self.leaving),
                self.u_threshold,
            )
            return [math.ceil(max(least - sum(others), 0.0) / len(self.leaving)) for _ in self.leaving]
        able, own = capacity[: len(self.staying)], capacity[len(self.staying) :]
        return [
            residual.weight_for(left_rps * mu / math.fsum(own), mu, others, able, rps, self.by_concurrency)
            for mu in own
        ]

    @cached_property
    def _able(self) -> list[float] | None:
        return capacities(self.staying)

    @cached_property
    def _all(self) -> list[float] | None:
        return capacities([*self.staying, *self.leaving])

    @cached_property
    def _left_rps(self) -> float:
        """Requests/s that the servers to drain keep together; 0 where that is not known."""
        if not self.leaving or self._all is None or self.total_rps is None:
            return 0.0
        able, own = self._all[: len(self.staying)], self._all[len(self.staying) :]
        return residual.left_rps(math.fsum(able), math.fsum(own), self.total_rps, self.u_threshold)
