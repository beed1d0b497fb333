"""What Samples say of a server's capacity: observations, each made of as many Samples as it takes to be one.

A Sample of 0.2 s holds two requests of a slow application and a hundred of a fast one, and what one stall held up ends
in the next. So Samples are summed up for `SHORTEST_S` at least and until they hold `ENOUGH` completed requests;
completions count, never arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.features.columns import Columns, Floats, Ints, filled
from detector.slot_arrays import SlotArrays

ENOUGH = 40
"""Completed requests that make an observation."""
SHORTEST_S = 0.8
LONGEST_S = 3.0
"""After so long it is made of those that there are."""
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
    """Standard error of `rps`, as far as it comes from a sample of the connections. The same connections stay in the
    sample from one Sample to the next, so their errors add up and do not cancel out."""
    utilisation: Floats
    """CPU time over what the server may use, stolen time included."""
    own: Floats
    """CPU time of the web server's own processes over what it may use."""
    cores: Floats
    """What it may use."""
    held: Floats
    """Mean number of requests in flight: by Little's law from those that ended, else as counted."""
    wanted: Floats
    """Least share of the wall time in which some thread ran or waited for a CPU, as far as the sums over threads tell:
    several that wait at once count once."""
    wait_ratio: Floats
    """1 + run delay per CPU second."""


class Windows(SlotArrays):
    """Sums over the Samples since the last observation of each slot."""

    _sums: Floats
    """(slots, SUMS)."""
    _last_unix_s: Floats
    """Label of the last Sample."""

    def __init__(self) -> None:
        super().__init__(_sums=np.zeros(SUMS), _last_unix_s=np.nan)

    def restart(self, slots: Ints) -> None:
        """What was summed up is of another state."""
        self._sums[slots] = 0.0

    def add(self, slots: Ints, columns: Columns) -> Observations | None:
        """Takes in one Sample of each slot, (M,); None when these complete no observation."""
        period_s, rps = columns["period_s"], columns["traffic.rps"]
        cpu_s, delay_s = columns["sched.cpu_s_per_s"], columns["sched.run_delay_s_per_s"]
        utilisation = np.where(
            np.isnan(columns["cpu.utilisation"]), cpu_s / columns["cpu.cores"], columns["cpu.utilisation"]
        )
        by_littles_law = np.where(rps > 0, rps * columns["traffic.rt_mean_ms"] / 1e3, 0.0)
        held = np.where(np.isnan(by_littles_law), columns["traffic.in_flight"], by_littles_law)
        now = np.array(
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
        self._sums[slots[usable]] += now[usable] * period_s[usable, None]
        sums = self._sums[slots]
        enough = (sums[:, _REQUESTS] >= ENOUGH) & (sums[:, _TIME] >= SHORTEST_S)
        due = usable & (enough | (sums[:, _TIME] >= LONGEST_S))
        if not due.any():
            return None
        rows = np.flatnonzero(due)
        self._sums[slots[rows]] = 0.0
        seconds, requests, cpu, held, wanted, waited, busy, off = sums[rows].T
        with np.errstate(divide="ignore", invalid="ignore"):
            return Observations(
                rows=rows,
                requests=requests,
                rps=requests / seconds,
                rps_error=off / seconds,
                utilisation=cpu / seconds,
                own=np.where(np.isnan(busy), cpu, busy / columns["cpu.cores"][rows]) / seconds,
                cores=columns["cpu.cores"][rows],
                held=held / seconds,
                wanted=wanted / seconds,
                wait_ratio=1.0 + waited / busy,
            )
