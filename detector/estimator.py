"""Predicts each node's CPU and gives its capacity: ICE's law cpu = a*old_cpu + b*rps + c*cpi + d, refreshed online.

Source: Maji, Mitra, Bagchi, "ICE: An Integrated Configuration Engine for Interference Mitigation in Cloud Services".
Here rps is taken over the node's calm capacity and cpi over its calm baseline (minus 1), so that coefficients learnt
on one cluster are a start for another. A neighbour that takes time on the run queue leaves the CPU per request alone,
which that law cannot see: the capacity is also cut by the share of the time that the server wanted to run and did not.

ICE fitted one law for a pool of servers that were alike. Here each node refreshes its own: servers of a pool may have
other processors and other jobs beside, and one law for them all would follow whoever moves most. What they share is the
start, the coefficients of the model, fitted to all of its recordings (`detector.train.training.fit_law`): a new node
begins with these, not with what its peers have learnt since. Of its peers it borrows the median calm capacity, until it
has one of its own (`MIN_TICKS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detector.features.columns import Bools, Floats, Ints
from detector.features.features import Frame
from detector.features.signals import INDEX
from detector.slot_arrays import SlotArrays

TERMS = ("old CPU", "requests (of the calm capacity)", "CPI (over the calm one, minus 1)", "constant")
START: tuple[float, ...] = (0.0, 1.0, 0.0, 0.0)
"""Before anything was learnt: CPU follows the requests."""
FORGETTING = 0.998
"""Of recursive least squares: a tick's weight halves in 70 s at the default period."""
START_VARIANCE = 16.0
"""Of the starting coefficients, over the variance of a tick's CPU: they may be off by 0.2, a tick is by 0.05."""
MAX_VARIANCE = 100.0
"""Cap on the coefficients' variances: without changing load they are not told apart and would drift."""
MAX_RESIDUAL = 0.2
LOWEST = (0.0, 0.0, -0.2, 1.0)
HIGHEST = (1.0, 1.0, 0.5, 1.0)
"""Range of each term that the law is good for from the start."""
WIDEN = 0.1
"""A term may leave what a node has shown so far by this much a tick; what is further off is taken as if it were there.
So the law does not predict at loads that it never saw, and one odd tick does not bend it."""
MIN_UTILISATION = 0.05
"""Below this CPU utilisation, requests over utilisation is no measure of the capacity."""
MIN_TICKS = 5
"""Calm ticks before a node's own capacity is believed; its peers' stands in."""
SLOWEST_WEIGHT = 0.02
"""A calm capacity follows new ticks with 1/n, at least with this: it forgets in about 10 s."""
MAX_SEVERITY = 0.98
SEVERITY_WEIGHT = 0.4
"""How fast the severity of an episode follows its ticks."""


@dataclass(frozen=True)
class Estimates:
    """Per row of the frame, (M,); NaN is unknown."""

    predicted: Floats
    """CPU share that the next period takes at this request rate."""
    capacity: Floats
    """Requests per second at which the CPU is full, now."""
    severity: Floats
    """Share of the calm capacity that is lost; 0 for nodes in no episode."""
    capacity_stderr: Floats
    """Standard error of `capacity` in requests per second; NaN where it is not this node's own or not known yet."""


class Estimator(SlotArrays):
    """Regression, calm capacity and severity of every slot."""

    coefficients: Floats
    """(slots, len(TERMS))."""
    _covariance: Floats
    """(slots, len(TERMS), len(TERMS))."""
    _lowest: Floats
    _highest: Floats
    """(slots, len(TERMS)) range of each term that the law is good for."""
    _old_cpu: Floats
    calm_capacity: Floats
    """(slots,) requests per second."""
    _ticks: Ints
    _capacity_variance: Floats
    """Of single calm ticks' capacities about their mean."""
    _severity: Floats
    _severity_variance: Floats
    """Of an episode's single ticks about the severity that follows them."""

    def __init__(self, start: Sequence[float] = START) -> None:
        if len(start) != len(TERMS) or not np.isfinite(start).all():
            raise ValueError(f"starting coefficients: expected {len(TERMS)} numbers, got {list(start)}")
        super().__init__(
            coefficients=np.array(start, dtype=np.float64),
            _covariance=START_VARIANCE * np.eye(len(TERMS)),
            _lowest=LOWEST,
            _highest=HIGHEST,
            _old_cpu=np.nan,
            calm_capacity=np.nan,
            _ticks=0,
            _capacity_variance=0.0,
            _severity=0.0,
            _severity_variance=0.0,
        )
        self.history: list[Floats] | None = None
        """Set to a list to keep each tick's terms and CPU, (M, 5) (training)."""

    def update(self, frame: Frame, calm: Bools, episode: Bools) -> Estimates:
        """Takes a tick in. `calm` (M,) marks rows fit to learn from, `episode` those in an episode."""
        slots = frame.slots
        self._learn_capacity(frame, calm)
        capacity = self._calm_capacity(slots)
        cpu = np.where(np.isnan(frame.utilisation), frame.load, frame.utilisation)
        terms = self._in_range(slots, self._terms(frame, capacity))
        predicted = self._step(slots, terms, cpu, learn=~episode | (cpu < 1.0))
        self._old_cpu[slots] = cpu
        if self.history is not None:
            self.history.append(np.concatenate([terms, cpu[:, None]], axis=1))

        cpi_factor = self._cpi_factor(slots, terms)
        severity = self._follow_severity(frame, cpi_factor, episode)
        # What it is serving now, it can serve; in a calm second that can be more than the average.
        served = np.where(episode, np.nan_to_num(np.fmin(frame.rps, capacity), nan=0.0), 0.0)
        left = np.maximum(capacity * (1.0 - severity), served)
        with np.errstate(divide="ignore", invalid="ignore"):
            severity = np.where(episode, np.nan_to_num(1.0 - left / capacity, nan=0.0), 0.0)
        return Estimates(
            predicted=np.clip(predicted, 0.0, 2.0),
            capacity=left,
            severity=np.clip(severity, 0.0, MAX_SEVERITY),
            capacity_stderr=self._stderr(slots, capacity, severity, episode),
        )

    def _stderr(self, slots: Ints, capacity: Floats, severity: Floats, episode: Bools) -> Floats:
        """Standard error of calm capacity x (1 - severity): both are exponentially weighted means of their ticks.

        Such a mean of independent ticks has the variance of one tick times w/(2 - w) (S. W. Roberts, "Control chart
        tests based on geometric moving averages", Technometrics 1(3), 1959).
        """
        weight = np.maximum(1.0 / np.maximum(self._ticks[slots], 1), SLOWEST_WEIGHT)
        calm_variance = self._capacity_variance[slots] * weight / (2.0 - weight)
        lost_variance = self._severity_variance[slots] * SEVERITY_WEIGHT / (2.0 - SEVERITY_WEIGHT)
        variance = (1.0 - severity) ** 2 * calm_variance + np.where(episode, capacity**2 * lost_variance, 0.0)
        return np.where(self._ticks[slots] >= MIN_TICKS, np.sqrt(variance), np.nan)

    def _learn_capacity(self, frame: Frame, calm: Bools) -> None:
        utilisation = np.where(np.isnan(frame.utilisation), frame.load, frame.utilisation)
        with np.errstate(invalid="ignore", divide="ignore"):
            now = frame.rps / utilisation
            fit = calm & (utilisation >= MIN_UTILISATION) & (frame.rps > 0) & np.isfinite(now)
        slots, now = frame.slots[fit], now[fit]
        self._ticks[slots] += 1
        weight = np.maximum(1.0 / np.maximum(self._ticks[slots], 1), SLOWEST_WEIGHT)
        old = np.where(np.isnan(self.calm_capacity[slots]), now, self.calm_capacity[slots])
        # A tick may pull by a third at most: one odd second (a deploy, a backup) must not move the weights.
        off = np.clip(now - old, -old / 3, old / 3)
        self.calm_capacity[slots] = old + weight * off
        # As West (Communications of the ACM 22(9), 1979) updates a weighted variance.
        self._capacity_variance[slots] = (1.0 - weight) * (self._capacity_variance[slots] + weight * off**2)

    def _calm_capacity(self, slots: Ints) -> Floats:
        own = np.where(self._ticks >= MIN_TICKS, self.calm_capacity, np.nan)
        known = own[~np.isnan(own)]
        peers = float(np.median(known)) if len(known) else np.nan
        return np.where(np.isnan(own[slots]), peers, own[slots])

    def _terms(self, frame: Frame, capacity: Floats) -> Floats:
        """(M, 4) the regression's inputs; an unknown CPI counts as the calm one, since it is relative to it.

        Without hardware counters the probe's cycles per load stand in: both are over their own calm ones.
        """
        hardware, probe = frame.own[:, INDEX["cpi"]], frame.own[:, INDEX["probe_cycles"]]
        cpi = np.nan_to_num(np.where(np.isnan(hardware), probe, hardware), nan=1.0) - 1.0
        old = self._old_cpu[frame.slots]
        return np.stack([old, frame.rps / capacity, np.clip(cpi, -0.5, 5.0), np.ones(len(frame.slots))], axis=1)

    def _in_range(self, slots: Ints, terms: Floats) -> Floats:
        """Terms held to what the law knows; the range follows them (`WIDEN`)."""
        held = np.clip(terms, self._lowest[slots] - WIDEN, self._highest[slots] + WIDEN)
        self._lowest[slots] = np.fmin(self._lowest[slots], held)
        self._highest[slots] = np.fmax(self._highest[slots], held)
        return held

    def _step(self, slots: Ints, terms: Floats, cpu: Floats, learn: Bools) -> Floats:
        """One step of recursive least squares with forgetting; returns what was predicted before it."""
        whole = np.isfinite(terms).all(axis=1)
        predicted = np.where(whole, (np.nan_to_num(terms) * self.coefficients[slots]).sum(axis=1), np.nan)
        fit = whole & np.isfinite(cpu) & learn
        slots, terms = slots[fit], terms[fit]
        error = np.clip(cpu[fit] - predicted[fit], -MAX_RESIDUAL, MAX_RESIDUAL)
        covariance = self._covariance[slots]
        gain = np.einsum("mij,mj->mi", covariance, terms)
        gain /= (FORGETTING + np.einsum("mi,mi->m", terms, gain))[:, None]
        self.coefficients[slots] = _guarded(self.coefficients[slots] + gain * error[:, None])
        covariance = (covariance - np.einsum("mi,mj,mjk->mik", gain, terms, covariance)) / FORGETTING
        # Only the coefficients beyond the cap are held, the others go on learning.
        variance = np.einsum("mii->mi", covariance)
        held = np.sqrt(np.minimum(1.0, MAX_VARIANCE / np.maximum(variance, 1e-12)))
        covariance *= held[:, :, None] * held[:, None, :]
        self._covariance[slots] = (covariance + covariance.transpose(0, 2, 1)) / 2
        return predicted

    def _cpi_factor(self, slots: Ints, terms: Floats) -> Floats:
        """Capacity at this CPI over that at the calm CPI, by the regression: where its steady state reaches 1."""
        a, b, c, d = self.coefficients[slots].T
        room = 1.0 - a - d
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = (room - c * terms[:, 2]) / room
        return np.where((b > 0.05) & (room > 0.05), np.clip(np.nan_to_num(factor, nan=1.0), 0.2, 1.0), 1.0)

    def _follow_severity(self, frame: Frame, cpi_factor: Floats, episode: Bools) -> Floats:
        """Share of the calm capacity that is lost, followed through an episode.

        From the run delay while there are requests: of the time that it wants to run, a server gets
        1 / (1 + run delay per CPU second). Without them the probe's wall/CPU ratio can only raise it: calm looks of a
        drained server are not evidence that it could carry load.
        """
        slots = frame.slots
        by_queue, worst = _by_queue(frame), lost_share(frame)
        now = np.clip(1.0 - (1.0 - worst) * cpi_factor, 0.0, MAX_SEVERITY)
        old = self._severity[slots]
        rises = now > old
        heard = ~np.isnan(by_queue) | rises
        followed = np.where(old == 0.0, now, old + SEVERITY_WEIGHT * (now - old))
        self._severity[slots] = np.where(episode, np.where(heard, followed, old), 0.0)
        spread = self._severity_variance[slots]
        off = np.where(old == 0.0, 0.0, now - old)
        followed = (1.0 - SEVERITY_WEIGHT) * (spread + SEVERITY_WEIGHT * off**2)
        self._severity_variance[slots] = np.where(episode, np.where(heard, followed, spread), 0.0)
        return self._severity[slots]


def _by_queue(frame: Frame) -> Floats:
    """(M,) share of the CPU that a server lost in the run queue: of the time that it wants to run, it gets
    1 / (1 + run delay per CPU second)."""
    delay, calm_delay = frame.values[:, INDEX["run_delay_per_cpu"]], frame.baseline[:, INDEX["run_delay_per_cpu"]]
    return np.asarray(1.0 - (1.0 + calm_delay) / (1.0 + delay))


def lost_share(frame: Frame) -> Floats:
    """(M,) share of its calm CPU that a server did not get in this tick, by what shows it most; 0 if nothing does."""
    return _share(np.fmax(np.fmax(_by_queue(frame), _by_core(frame)), _by_steal(frame)))


def comparable_loss(frame: Frame) -> Floats:
    """(M,) the same, to compare servers by: from the run queue where it is known, since the probe only now and then
    meets whoever is on its core, and the machine's own little jobs too."""
    by_queue = _by_queue(frame)
    return _share(np.where(np.isnan(by_queue), np.fmax(_by_core(frame), _by_steal(frame)), by_queue))


def _share(lost: Floats) -> Floats:
    return np.asarray(np.clip(np.nan_to_num(lost, nan=0.0), 0.0, 1.0))


def _by_core(frame: Frame) -> Floats:
    ratio, calm_ratio = frame.values[:, INDEX["canary_ratio"]], frame.baseline[:, INDEX["canary_ratio"]]
    return np.asarray(1.0 - np.fmax(calm_ratio, 1.0) / np.fmax(ratio, 1.0))


def _by_steal(frame: Frame) -> Floats:
    return np.asarray(frame.values[:, INDEX["steal"]] - frame.baseline[:, INDEX["steal"]])


def _guarded(coefficients: Floats) -> Floats:
    """Keeps the law physical: CPU has a memory below 1, requests and CPI do not lower it."""
    low = np.array([0.0, 0.05, 0.0, -0.5])
    high = np.array([0.9, 2.0, 2.0, 0.5])
    return np.clip(coefficients, low, high)
