"""The capacity of each server: an extended Kalman filter over its logarithm.

The state of a server is

- `calm`, log of the requests per second at which it is full when nobody disturbs it;
- `wake`, by what share a request costs more CPU time when it finds the server empty: under load wake-ups are shared;
- `unseen`, by how much (log) a CPU second of an idle machine brings more requests than one of a full machine. A
  hypervisor may limit a machine and not tell it: below that limit each of its CPU seconds is a whole one, above it the
  time for which the machine stands still is booked as CPU time. A cgroup's limit is known, so there it is 0;
- `left`, by how much the share of the capacity that a neighbour leaves (log) differs from what is suggested; 0 in calm.

Three kinds of observation move it, each with its own error:

- In calm, requests per CPU second: log(rps / utilisation) = calm - log(1 + wake * idle) + unseen * (1 - utilisation).
  `idle` is the share of requests that find the server empty, 1 / (1 + requests held) for Poisson arrivals. One load
  alone cannot tell the three apart, and the standard error says so; the prior of `wake` comes from recordings.
- While requests wait, the rate at which they are completed is the capacity: log(rps) = calm + suggested + left. The
  longer they take over what they take in calm, the surer it is that the server never ran dry. It needs no counters.
- In an episode a share is suggested by the run delay over calm, and by requests per CPU second over calm. How far off
  such suggestions are is where `left` begins and what it returns to: more ticks beside the same neighbour do not make
  that error smaller. A hypervisor that takes time away books it on whoever was running, so a machine's requests per CPU
  second say all, and its threads wait because of the same: their run delay counts no second time.

A machine's calm capacity is not known before it was full, since a limit may be unseen, while beside a neighbour the
limit binds. So what is left over the calm capacity is no share that was lost. A machine's share follows from what a
request costs alone: the neighbour accounts for a part of the log, and the limit and the queue for the rest
(`Parameters.left_cost`).

The highest rate that was served lately is a lower bound. It cuts the distribution off from below where the estimate is
read (the mean and variance of a truncated normal distribution), fades, and is never fed back.

Source of the filter: R. E. Kalman, "A New Approach to Linear Filtering and Prediction Problems", J. Basic Eng. 82(1),
1960. Of the law of held requests: J. D. C. Little, Operations Research 9(3), 1961.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slackwater.detector.capacity.observations import Observations, Windows
from slackwater.detector.features.columns import Bools, Columns, Floats, Ints, clipped, filled
from slackwater.detector.slot_arrays import SlotArrays

CALM, WAKE, LEFT, UNSEEN = range(STATES := 4)


@dataclass(frozen=True)
class Parameters:
    """What the filter assumes; fitted to recordings of `slackwater lab capacity` (docs/results/capacity.md)."""

    wake: float = 0.35
    """A wake-up costs this share of a request, and `wake_ms` at the most: to a slow application it is nothing."""
    wake_sd: float = 0.25
    """Standard deviation of `wake`; where `wake_ms` makes that less, this is less in proportion."""
    wake_ms: float = 0.35
    wake_s: float = 60.0
    """Time in which what was seen of a wake-up's cost is forgotten."""
    unseen_sd: float = 0.4
    """Standard deviation of a machine's `unseen` about 0: a machine limited to 45% of a core, without knowing it, has
    0.8."""
    unseen_s: float = 86400.0
    """Time in which what was seen of a limit is forgotten."""
    calm_drift: float = 0.04
    """Standard deviation by which the log capacity of a calm server moves in a second."""
    calm_sd: float = 0.3
    """The log capacity moves no further than this from what was seen of it: after idle hours it is the same server."""
    cost_sd: float = 0.8
    """Standard deviation of the log CPU time of one request about its mean."""
    window_sd: float = 0.15
    """Standard deviation of the log CPU time of a request in one observation, however many requests it holds."""
    law_sd: float = 0.08
    """Standard deviation by which the law of wake-ups misses the capacity: no number of observations removes this
    error."""
    left_slope: float = -0.4
    """The log of the share that is left over the log of the run delay's ratio over calm."""
    left_cost: float = 0.6
    """The same over the log of a machine's requests per CPU second over calm."""
    left_unknown: float = -0.7
    """The log of the share that is left where nothing suggests one."""
    left_sd: float = 0.45
    left_s: float = 6.0
    """Time in which `left` returns to 0: a neighbour may change."""
    busy_sd: float = 0.2
    """Standard deviation of the log rate of completions about the capacity, for a server that surely never ran dry."""
    stall_s: float = 0.03
    """Responses are this much later where a quota or a hypervisor lets the server stand still, without any queue."""
    floor_fade: float = 0.02
    """The log of the highest rate served fades by this in a second."""
    floor_sd: float = 0.08


WANTED = 0.9
"""Requests do not wait for a server that runs or waits for a CPU for less than this share of the time."""
IDLE_WORK = 0.01
"""CPU time of a server, as a share of what it may use, that no request may have caused. A server that does little more
than this has a larger error, and its capacity is understated rather than overstated."""
UNKNOWN = 3.0
"""Standard deviation of the log capacity before anything was seen."""
NEGLIGIBLE = -3.0
"""A floor this many standard deviations below the mean tells nothing new."""
FAR = 3.0
"""An observation that is off by more standard deviations than this has a larger error than it seems: one odd second (a
deploy, a backup) must not move the weights. Its variance is raised until it is off by exactly this many."""
MOST_COST = (-3.0, -5.0)
"""A request of a cgroup, or of a machine, that seems dearer than this (log) was charged with the CPU time of something
else."""
KNOWN = 0.5
"""A node's own capacity is believed below this standard deviation; above it the peers' stands in."""
CALM_WEIGHT = 0.05
"""The share by which calm response times and run delays follow a new observation."""
SERVED_WEIGHT = 0.3
"""The share by which the rate that is served follows a new observation."""
SUGGESTION_WEIGHT = 0.3
"""The share by which the suggested share follows a new observation."""


@dataclass(frozen=True)
class Capacity:
    """Per row of the tick, (M,); NaN is unknown."""

    rps: Floats
    """Requests per second at which the server is full, now."""
    stderr_rps: Floats
    """Its standard error; NaN where the capacity is borrowed from peers."""
    lost: Floats
    """Share of the calm capacity that is lost; 0 for nodes in no episode."""
    calm_rps: Floats


class CapacityFilter(SlotArrays):
    """The filter's state of every slot."""

    _mean: Floats
    """(slots, STATES)."""
    _covariance: Floats
    """(slots, STATES, STATES)."""
    _usual_wake: Floats
    """(slots,) what `wake` is as long as nothing is seen of it."""
    _unseen_sd: Floats
    """(slots,) standard deviation of `unseen` as long as nothing is seen of it: 0 for cgroups."""
    _suggested: Floats
    """(slots,) log of the share that is left, as suggested; 0 in calm."""
    _served: Floats
    """(slots,) requests per second, mean of the last observations."""
    _floor: Floats
    """(slots,) log of the highest `_served` lately."""
    _calm_response_s: Floats
    _calm_wait_ratio: Floats
    _disturbed: Bools

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = parameters or Parameters()
        self._windows = Windows()
        super().__init__(
            self._windows,
            _mean=np.array([np.nan, 0.0, 0.0, 0.0]),
            _covariance=np.diag([UNKNOWN**2, 0.0, 0.0, 0.0]),
            _usual_wake=0.0,
            _unseen_sd=0.0,
            _suggested=0.0,
            _served=np.nan,
            _floor=-np.inf,
            _calm_response_s=np.nan,
            _calm_wait_ratio=np.nan,
            _disturbed=False,
        )

    def update(self, slots: Ints, columns: Columns, calm: Bools, episode: Bools) -> Capacity:
        """Adds one Sample of each slot. `calm` (M,) marks rows fit to learn from, `episode` those beside a neighbour;
        `columns` are the Samples' fields."""
        # A machine knows its steal, a cgroup does not (as in `slackwater.detector.features.history.in_cgroup`).
        self._unseen_sd[slots] = np.where(np.isnan(columns["cpu.steal"]), 0.0, self.parameters.unseen_sd)
        self._begin_and_end(slots, episode)
        self._pass_time(slots, columns["period_s"], columns["traffic.rps"], episode)
        seen = self._windows.add(slots, columns)
        if seen is not None:
            self._observe(slots, seen, calm, episode)
        return self._read(slots, episode)

    def _begin_and_end(self, slots: Ints, episode: Bools) -> None:
        """Drops the sums and the highest rate of slots whose neighbour came or went: they describe the time before."""
        changed = slots[self._disturbed[slots] != episode]
        self._disturbed[slots] = episode
        if not len(changed):
            return
        self._windows.restart(changed)
        self._floor[changed], self._served[changed] = -np.inf, np.nan
        self._suggested[changed] = np.where(self._disturbed[changed], np.nan, 0.0)
        self._mean[changed, LEFT] = 0.0
        self._covariance[changed, LEFT, :] = self._covariance[changed, :, LEFT] = 0.0
        self._covariance[changed, LEFT, LEFT] = np.where(self._disturbed[changed], self.parameters.left_sd**2, 0.0)

    def _pass_time(self, slots: Ints, period_s: Floats, rps: Floats, episode: Bools) -> None:
        p = self.parameters
        seconds = filled(period_s, 0.0)
        mean, covariance = self._mean[slots], self._covariance[slots]
        calm = covariance[:, CALM, CALM]
        drifted = np.minimum(calm + np.where(episode, 0.0, p.calm_drift**2 * seconds), p.calm_sd**2)
        covariance[:, CALM, CALM] = np.maximum(calm, drifted)
        # A drained server shows nothing new: what it showed last stays, or its weight would swing by itself.
        served_s = np.where(rps > 0, seconds, 0.0)
        self._floor[slots] -= p.floor_fade * served_s
        _return(mean, covariance, WAKE, np.exp(-seconds / p.wake_s), *self._wake_prior(slots))
        _return(mean, covariance, UNSEEN, np.exp(-seconds / p.unseen_s), 0.0, self._unseen_sd[slots])
        if episode.any():  # else `left` is 0 already
            _return(mean, covariance, LEFT, np.exp(-served_s / p.left_s), 0.0, np.where(episode, p.left_sd, 0.0))
        self._mean[slots], self._covariance[slots] = mean, covariance

    def _observe(self, slots: Ints, seen: Observations, calm: Bools, episode: Bools) -> None:
        p, observed = self.parameters, slots[seen.rows]
        calm, episode = calm[seen.rows], episode[seen.rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            response_s = seen.held / seen.rps
            log_rps = np.log(seen.rps)
            per_cpu = log_rps - np.log(seen.own)
            noise = 1.0 / seen.requests
            sampled = np.square(seen.rps_error / seen.rps)

            idle = 1.0 / (1.0 + seen.held)
            fit = calm & np.isfinite(per_cpu + idle + seen.cores)
            cost_ms = 1e3 * seen.cores[fit] / np.exp(per_cpu[fit])
            self._usual_wake[observed[fit]] = np.minimum(p.wake, p.wake_ms / cost_ms)
            self._begin(observed[fit], per_cpu[fit], idle[fit])
            law, sight = self._law(observed, idle, clipped(1.0 - seen.utilisation, 0.0, 1.0))
            error = p.cost_sd**2 * noise + p.window_sd**2 + sampled + np.square(IDLE_WORK / seen.own)
            self._correct(observed[fit], sight[fit], (per_cpu - law)[fit], error[fit])
            self._follow(self._calm_response_s, observed[fit], response_s[fit], CALM_WEIGHT)
            self._follow(self._calm_wait_ratio, observed[fit], seen.wait_ratio[fit], CALM_WEIGHT)

            ratio = seen.wait_ratio / np.maximum(self._calm_wait_ratio[observed], 1.0)
            machine = self._unseen_sd[observed] > 0.0
            cost = np.where(machine, per_cpu, log_rps - np.log(seen.utilisation)) - law
            cost = np.maximum(np.minimum(np.nan_to_num(cost, nan=0.0), 0.0), np.where(machine, *MOST_COST[::-1]))
            suggested = cost + np.where(machine, 0.0, p.left_slope * np.log(np.maximum(ratio, 1.0)))
            shows = episode & (seen.requests > 0.0)
            self._follow(self._suggested, observed[shows], suggested[shows], SUGGESTION_WEIGHT)

            dry = (np.nan_to_num(self._calm_response_s[observed], nan=np.inf) + p.stall_s) / response_s
            never_dry = (np.nan_to_num(seen.wanted, nan=1.0) >= WANTED) & (dry < 1.0) & np.isfinite(log_rps)
            sight = np.zeros((len(observed), STATES))
            sight[:, CALM] = 1.0
            sight[:, LEFT] = episode
            full = log_rps + np.log1p(1.0 / seen.held)
            expected = self._mean[observed, CALM] + np.where(episode, self._left(observed), 0.0)
            never_dry &= np.isfinite(full - expected)
            error = noise + p.busy_sd**2 + dry**2 + sampled
            self._correct(observed[never_dry], sight[never_dry], (full - expected)[never_dry], error[never_dry])
        first = np.isnan(self._served[observed])
        self._follow(self._served, observed, seen.rps, SERVED_WEIGHT)
        with np.errstate(divide="ignore"):
            self._floor[observed] = np.where(
                first, -np.inf, np.maximum(self._floor[observed], np.log(self._served[observed]))
            )

    def _begin(self, slots: Ints, per_cpu: Floats, idle: Floats) -> None:
        """Starts servers of which nothing is known where their first observation is as expected."""
        new = np.isnan(self._mean[slots, CALM])
        slots, per_cpu, idle = slots[new], per_cpu[new], idle[new]
        usual, sd = self._wake_prior(slots)
        self._mean[slots, WAKE] = usual
        self._covariance[slots, WAKE, WAKE] = np.square(sd)
        self._covariance[slots, UNSEEN, UNSEEN] = np.square(self._unseen_sd[slots])
        self._mean[slots, CALM] = per_cpu + np.log(1.0 + usual * idle)

    def _wake_prior(self, slots: Ints) -> tuple[Floats, Floats]:
        """(K,) mean and standard deviation of `wake` as long as nothing is seen of it."""
        usual = self._usual_wake[slots]
        return usual, usual * self.parameters.wake_sd / self.parameters.wake

    def _law(self, slots: Ints, idle: Floats, unused: Floats) -> tuple[Floats, Floats]:
        """(K,) log of the calm requests per CPU second, and (K, STATES) its derivatives. `unused`: 1 - utilisation."""
        whole = 1.0 + self._mean[slots, WAKE] * idle
        sight = np.stack([np.ones(len(slots)), -idle / whole, np.zeros(len(slots)), unused], axis=1)
        return self._mean[slots, CALM] - np.log(whole) + self._mean[slots, UNSEEN] * unused, sight

    def _left(self, slots: Ints) -> Floats:
        """(K,) log of the share that a neighbour leaves."""
        suggested = self._suggested[slots]
        return np.asarray(
            self._mean[slots, LEFT] + np.where(np.isnan(suggested), self.parameters.left_unknown, suggested)
        )

    def _follow(self, levels: Floats, slots: Ints, values: Floats, weight: float) -> None:
        """Moves the geometric means of these slots towards the known values."""
        known = np.isfinite(values)
        slots, values = slots[known], values[known]
        old = np.where(np.isnan(levels[slots]), values, levels[slots])
        levels[slots] = old + weight * (values - old)

    def _correct(self, slots: Ints, sight: Floats, off: Floats, variance: Floats) -> None:
        """One step of the filter: an observation for each slot, which is `off` by this much from what its state
        predicts."""
        covariance = self._covariance[slots]
        reach = np.einsum("mij,mj->mi", covariance, sight)
        total = np.einsum("mi,mi->m", sight, reach) + variance
        total *= np.maximum(1.0, off**2 / (FAR**2 * total))
        gain = reach / total[:, None]
        self._mean[slots] += gain * off[:, None]
        for never_below in (WAKE, UNSEEN):
            self._mean[slots, never_below] = np.maximum(self._mean[slots, never_below], 0.0)
        self._covariance[slots] = covariance - gain[:, :, None] * reach[:, None, :]

    def _read(self, slots: Ints, episode: Bools) -> Capacity:
        p, mean, covariance = self.parameters, self._mean[slots], self._covariance[slots]
        known = self._covariance[:, CALM, CALM] < KNOWN**2
        own: Bools = known[slots]
        calm = mean[:, CALM].copy()
        if not own.all():
            calm[~own] = np.median(self._mean[known, CALM]) if known.any() else np.nan
        variance = covariance[:, CALM, CALM] + np.where(
            episode, 2.0 * covariance[:, CALM, LEFT] + covariance[:, LEFT, LEFT], 0.0
        )
        variance = np.where(own, variance, KNOWN**2 + covariance[:, LEFT, LEFT]) + p.law_sd**2
        level = calm + np.where(episode, self._left(slots), 0.0)
        level, variance = _truncated(level, variance, self._floor[slots], p.floor_sd)
        with np.errstate(over="ignore"):
            rps = np.exp(level)
            of_machine = filled(p.left_cost * self._suggested[slots], p.left_unknown)
            left = np.where(self._unseen_sd[slots] > 0.0, of_machine, np.minimum(level - calm, 0.0))
            lost = np.where(episode, 1.0 - np.exp(left), 0.0)
        return Capacity(
            rps=rps,
            stderr_rps=np.where(own, rps * np.sqrt(variance), np.nan),
            lost=filled(lost, 0.0),
            calm_rps=np.exp(calm),
        )


def _return(mean: Floats, covariance: Floats, part: int, keep: Floats, to: float | Floats, sd: Floats) -> None:
    """Lets a part of the states, (K, STATES) and (K, STATES, STATES), return to where it began, as an autoregressive
    process does: what was observed of it is forgotten, and its variance comes back."""
    mean[:, part] = to + keep * (mean[:, part] - to)
    covariance[:, part, :] *= keep[:, None]
    covariance[:, :, part] *= keep[:, None]
    covariance[:, part, part] += (1.0 - keep**2) * np.square(sd)


def _truncated(mean: Floats, variance: Floats, floor: Floats, floor_sd: float) -> tuple[Floats, Floats]:
    """Mean and variance of a normal distribution that lies above `floor`, where that is known up to `floor_sd`."""
    total = np.sqrt(variance + floor_sd**2)
    with np.errstate(invalid="ignore"):
        below = (floor - mean) / total
    hazard = np.zeros(len(mean))
    near = below > NEGLIGIBLE
    hazard[near] = [_hazard(value) for value in below[near].tolist()]
    shrink = clipped(np.where(near, hazard * (hazard - np.where(near, below, 0.0)), 0.0), 0.0, 1.0)
    return mean + variance / total * hazard, variance * (1.0 - variance / total**2 * shrink)


def _hazard(value: float) -> float:
    """Density of the standard normal distribution over its upper tail; far out by its asymptotic series."""
    if value > 8.0:
        return value + 1.0 / value
    return math.sqrt(2.0 / math.pi) * math.exp(-0.5 * value * value) / math.erfc(value / math.sqrt(2.0))
