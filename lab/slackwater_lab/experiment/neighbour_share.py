"""Has a neighbour take the share of a host's capacity that a scenario states, and shows that it does.

The weight of a neighbour's cgroup says little about what it takes: it has more threads than the server, and it fills
the caches. So the weight is searched for: with each one tried, a closed loop asks the host directly, and what it is
answered less than in calm is what the neighbour takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LabError

RAMP_S = 0.7
LOOK_S = 2.0
NEAR, FAR = 0.05, 0.15
"""A weight is good if its mean share is within NEAR; a measurement off by more than FAR ends its trial."""
CONFIRM = 3
FITS = 8
LEAST_WEIGHT, MOST_WEIGHT = 1, 10_000
LEAST_SHARE = 0.01
SLOPE, SLOPE_WEIGHT, LEAST_SLOPE = 0.8, 3.0, 0.2
"""Odds grow with about this power of the weight."""
MARGIN_S = 3.0


@dataclass(frozen=True)
class Aim:
    """The share that a neighbour takes with a weight; `lost` and `measured` are shares of the host's calm capacity."""

    kind: str
    lost: float
    measured: float
    weight: int
    calm_rps: float

    def as_fact(self) -> dict[str, Any]:
        return asdict(self)


def _logit(share: float) -> float:
    kept = min(max(share, LEAST_SHARE), 1.0 - LEAST_SHARE)
    return math.log(kept / (1.0 - kept))


def _fitted_weight(tried: Sequence[tuple[float, float]], lost: float) -> float:
    """The weight at which a line through what was tried (log weight, log odds) has this share.

    The line's slope is drawn towards `SLOPE`, so that measurements that contradict each other do not turn it.
    """
    rows = [(1.0, math.log(weight)) for weight, _ in tried] + [(0.0, SLOPE_WEIGHT)]
    values = [_logit(share) for _, share in tried] + [SLOPE_WEIGHT * SLOPE]
    intercept, slope = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    log_weight = (_logit(lost) - intercept) / max(slope, LEAST_SLOPE)
    return math.exp(min(max(log_weight, math.log(LEAST_WEIGHT)), math.log(MOST_WEIGHT)))


def search(measure: Callable[[int], float], lost: float) -> tuple[int, float, bool]:
    """The weight that takes this share by `measure`, the mean that was measured with it, and whether that is near.

    A regression on all that was measured so far proposes the next weight. One is good that is confirmed `CONFIRM`
    times in a row, on the average.
    """
    tried: list[tuple[float, float]] = []
    weight = max(round(100.0 * lost / (1.0 - lost)), LEAST_WEIGHT)
    share = 0.0
    for _ in range(FITS):
        confirmed = []
        for _ in range(CONFIRM):
            confirmed.append(measure(weight))
            tried.append((weight, confirmed[-1]))
            if abs(confirmed[-1] - lost) > FAR:
                break
        share = sum(confirmed) / len(confirmed)
        if len(confirmed) == CONFIRM and abs(share - lost) <= NEAR:
            return weight, share, True
        weight = max(round(_fitted_weight(tried, lost)), LEAST_WEIGHT)
    return weight, share, False


class _Asked:
    """A host that is asked directly."""

    def __init__(self, lab: Lab, host: Host) -> None:
        self._lab, self._host = lab, host

    def answered_rps(self) -> float:
        """Requests per second that a closed loop gets answered."""
        clients = Demand(clients=2 * self._lab.settings.php_children)
        load = self._lab.load(clients, RAMP_S + LOOK_S, f"http://{self._host.address}")
        requests = load.finish()
        ended = requests.due_mono_s + requests.seconds - load.begin_mono_s
        return float(np.count_nonzero((ended >= RAMP_S) & (ended < RAMP_S + LOOK_S))) / LOOK_S


_KNOWN: dict[tuple[LabSettings, str, float, float], Aim] = {}
"""Shape of the lab, kind, share and quota -> aim. It holds for a lab that is built anew, too."""


def aim(lab: Lab, host: Host, kind: str, lost: float, quota_cores: float) -> Aim:
    """The weight with which a neighbour takes this share from this host, or from one like it.

    Takes some seconds the first time. Raises LabError where no weight does: the run would not be what it says.
    """
    key = lab.settings, kind, lost, quota_cores
    if key not in _KNOWN:
        asked = _Asked(lab, host)
        asked.answered_rps()  # the first answers fill caches
        calm_rps = sum(asked.answered_rps() for _ in range(CONFIRM)) / CONFIRM
        if not calm_rps:
            raise LabError(f"{host.name} answered nobody, so no neighbour can be measured there")

        def measure(weight: int) -> float:
            noise = lab.noise(host, kind, 1.0, RAMP_S + LOOK_S + MARGIN_S, weight)
            try:
                return 1.0 - asked.answered_rps() / calm_rps
            finally:
                noise.stop()

        weight, measured, good = search(measure, lost)
        if not good:
            raise LabError(
                f"a neighbour ({kind}) is to take {lost:.0%} of the capacity of {host.name}, but took {measured:.0%} "
                f"with weight {weight}, the last one tried: this run does not count"
            )
        _KNOWN[key] = Aim(kind, lost, measured, weight, calm_rps)
    return _KNOWN[key]
