"""Observations of a server's capacity, each made of several Samples.

A Sample of 0.2 s holds two requests of a slow application and a hundred of a fast one. Requests that a stall holds up
in one Sample end in the next. So Samples are summed up for at least `SHORTEST_S` and until they hold `ENOUGH` completed
requests. Completions count, never arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.columns import Columns, Floats, Ints, filled
from slackwater.detector.slot_arrays import SlotArrays

ENOUGH = 40
"""Completed requests that make an observation."""
SHORTEST_S = 0.8
LONGEST_S = 3.0
"""After this time an observation is made of fewer requests than `ENOUGH`."""
_TIME, _REQUESTS, _CPU, _HELD, _WANTED, _WAITED, _BUSY, _OFF = range(SUMS := 8)


@dataclass(frozen=True)
class Observations:
    """K observations; NaN is unknown."""

    rows: Ints
    """(K,) row of the tick whose Sample completed it."""
    requests: Floats
    rps: Floats
    """Completed requests per second."""
    rps_error: Floats
    """Standard error of `rps` that comes from watching only some of the connections. The same connections are watched
    from one Sample to the next, so their errors add up and do not cancel out."""
    utilisation: Floats
    """CPU time over the CPU that the server may use, stolen time included."""
    own: Floats
    """CPU time of the web server's own processes over the CPU that it may use."""
    cores: Floats
    """CPUs that the server may use."""
    held: Floats
    """Mean number of requests in flight: by Little's law from completed requests, else as counted."""
    wanted: Floats
    """Lower bound of the share of the wall time in which some thread ran or waited for a CPU. Several threads that wait
    at once count once."""
    wait_ratio: Floats
    """1 + run delay per CPU second."""


class Windows(SlotArrays):
    """Sums over the Samples since the last observation of each slot."""

    _sums: Floats
    """(slots, SUMS)."""
    _last_unix_s: Floats
    """(slots,) time label of the last Sample."""

    def __init__(self) -> None:
        super().__init__(_sums=np.zeros(SUMS), _last_unix_s=np.nan)

    def restart(self, slots: Ints) -> None:
        """Drops the sums of these slots, which are of another state."""
        self._sums[slots] = 0.0

    def add(self, slots: Ints, columns: Columns) -> Observations | None:
        """Adds one Sample of each slot, (M,); returns the completed observations, None when there are none."""
        period_s, rps = columns["period_s"], columns["traffic.rps"]
        cpu_s, delay_s = columns["sched.cpu_s_per_s"], columns["sched.run_delay_s_per_s"]
        utilisation = np.where(
            np.isnan(columns["cpu.utilisation"]), cpu_s / columns["cpu.cores"], columns["cpu.utilisation"]
        )
        by_littles_law = np.where(rps > 0, rps * columns["traffic.rt_mean_ms"] / 1e3, 0.0)
        held = np.where(np.isnan(by_littles_law), columns["traffic.in_flight"], by_littles_law)
        increments = np.array(
            [
                np.ones(len(slots)),
                rps,
                utilisation,
                held,
                np.minimum(cpu_s + delay_s, 1.0),
                delay_s,
                cpu_s,
                filled(columns["traffic.rps_error"], 0.0),
            ]
        ).T
        usable = ~np.isnan(rps)
        since_s = columns["time_unix_s"] - self._last_unix_s[slots]
        self._last_unix_s[slots] = columns["time_unix_s"]
        self.restart(slots[np.abs(since_s - period_s) > period_s])
        self._sums[slots[usable]] += increments[usable] * period_s[usable, None]
        sums = self._sums[slots]
        enough = (sums[:, _REQUESTS] >= ENOUGH) & (sums[:, _TIME] >= SHORTEST_S)
        due = usable & (enough | (sums[:, _TIME] >= LONGEST_S))
        if not due.any():
            return None
        rows = np.flatnonzero(due)
        self._sums[slots[rows]] = 0.0
        seconds, requests, cpu, held, wanted, waited, busy, errors = sums[rows].T
        with np.errstate(divide="ignore", invalid="ignore"):
            return Observations(
                rows=rows,
                requests=requests,
                rps=requests / seconds,
                rps_error=errors / seconds,
                utilisation=cpu / seconds,
                own=np.where(np.isnan(busy), cpu, busy / columns["cpu.cores"][rows]) / seconds,
                cores=columns["cpu.cores"][rows],
                held=held / seconds,
                wanted=wanted / seconds,
                wait_ratio=1.0 + waited / busy,
            )
