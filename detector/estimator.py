"""Predicts each node's CPU by ICE's law cpu = a*old_cpu + b*rps + c*cpi + d, refreshed online, beside its capacity.

Source: Maji, Mitra, Bagchi, "ICE: An Integrated Configuration Engine for Interference Mitigation in Cloud Services".
Here rps is divided by the node's calm capacity and cpi by its calm baseline (minus 1), so that coefficients from one
cluster are a start for another. A neighbour that takes time on the run queue does not change the CPU time per request,
so that law cannot see it. Capacities therefore come from `slackwater.detector.capacity.filter`.

ICE fitted one law for a pool of equal servers. Here each node refreshes a law of its own: the servers of a pool may
have different processors and different other jobs, and a common law would follow the node that changes most. The nodes
share only the start, the model's coefficients, which are fitted to all of its recordings
(`slackwater.detector.train.fit.fit_law`). A new node begins with these, and not with its peers' present
coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.detector.capacity.filter import CapacityFilter
from slackwater.detector.features.columns import Bools, Columns, Floats, Ints, clipped, filled
from slackwater.detector.features.features import Frame
from slackwater.detector.features.signals import INDEX
from slackwater.detector.slot_arrays import SlotArrays

TERMS = ("old CPU", "requests (of the calm capacity)", "CPI (over the calm one, minus 1)", "constant")
START: tuple[float, ...] = (0.0, 1.0, 0.0, 0.0)
"""The coefficients without a model: CPU follows the requests."""
FORGETTING = 0.998
"""Factor of recursive least squares: a tick's weight halves in 70 s at the default period."""
START_VARIANCE = 16.0
"""Variance of the starting coefficients over that of a tick's CPU: the standard errors are 0.2 and 0.05."""
MAX_VARIANCE = 100.0
"""Cap on the coefficients' variances: under a constant load the terms cannot be separated, and would drift."""
MAX_RESIDUAL = 0.2
LOWEST = (0.0, 0.0, -0.2, 1.0)
HIGHEST = (1.0, 1.0, 0.5, 1.0)
"""Range of each term in which the law holds from the start."""
LEAST: Floats = np.array([0.0, 0.05, 0.0, -0.5])
MOST: Floats = np.array([0.9, 2.0, 2.0, 0.5])
"""Range of the coefficients. It keeps the law physical: CPU has a memory below 1, requests and CPI do not lower it."""
WIDEN = 0.1
"""In a tick a term may leave the range that a node has shown so far by this much; beyond, it is cut to that. So the law
does not predict at loads that it never saw, and one odd tick does not bend it."""
MAX_SEVERITY = 0.98


@dataclass(frozen=True)
class Estimates:
    """Estimates for each row of the frame, (M,); NaN is unknown."""

    predicted: Floats
    """Predicted CPU share of the next period at the present request rate."""
    capacity: Floats
    """Requests per second at which the CPU is full now."""
    severity: Floats
    """Share of the calm capacity that is lost; 0 for nodes in no episode."""
    capacity_stderr: Floats
    """Standard error of `capacity` in requests per second; NaN where it is unknown, or not the node's own."""


class Estimator(SlotArrays):
    """The law and the capacity of every slot."""

    coefficients: Floats
    """(slots, len(TERMS))."""
    _covariance: Floats
    """(slots, len(TERMS), len(TERMS))."""
    _lowest: Floats
    _highest: Floats
    """(slots, len(TERMS)) range of each term in which the law holds."""
    _old_cpu: Floats

    def __init__(self, start: Sequence[float] = START) -> None:
        if len(start) != len(TERMS) or not np.isfinite(start).all():
            raise ValueError(f"starting coefficients: expected {len(TERMS)} numbers, got {list(start)}")
        self.capacity = CapacityFilter()
        super().__init__(
            self.capacity,
            coefficients=np.array(start, dtype=np.float64),
            _covariance=START_VARIANCE * np.eye(len(TERMS)),
            _lowest=LOWEST,
            _highest=HIGHEST,
            _old_cpu=np.nan,
        )
        self.history: list[Floats] | None = None
        """Set to a list to keep each tick's terms and CPU, (M, 5), for training."""

    def update(self, frame: Frame, columns: Columns, calm: Bools, episode: Bools) -> Estimates:
        """Updates the law and the capacity by a tick; returns the estimates.

        `columns`: fields of the frame's Samples. `calm`: (M,) rows that are fit to learn from; `episode`: (M,) rows in
        an episode.
        """
        slots = frame.slots
        capacity = self.capacity.update(slots, columns, calm, episode)
        cpu = np.where(np.isnan(frame.utilisation), frame.load, frame.utilisation)
        terms = self._in_range(slots, self._terms(frame, capacity.calm_rps))
        predicted = self._step(slots, terms, cpu, learn=~episode | (cpu < 1.0))
        self._old_cpu[slots] = cpu
        if self.history is not None:
            self.history.append(np.concatenate([terms, cpu[:, None]], axis=1))
        return Estimates(
            predicted=clipped(predicted, 0.0, 2.0),
            capacity=capacity.rps,
            severity=clipped(capacity.lost, 0.0, MAX_SEVERITY),
            capacity_stderr=capacity.stderr_rps,
        )

    def _terms(self, frame: Frame, capacity: Floats) -> Floats:
        """(M, 4) the law's terms. An unknown CPI counts as calm, which is 0.

        Without hardware counters the probe's cycles per load stand in: both are relative to their own calm values.
        """
        hardware, probe = frame.own[:, INDEX["cpi"]], frame.own[:, INDEX["probe_cycles"]]
        cpi = filled(np.where(np.isnan(hardware), probe, hardware), 1.0) - 1.0
        old = self._old_cpu[frame.slots]
        return np.stack([old, frame.rps / capacity, clipped(cpi, -0.5, 5.0), np.ones(len(frame.slots))], axis=1)

    def _in_range(self, slots: Ints, terms: Floats) -> Floats:
        """The terms, cut to the law's range, which follows them (`WIDEN`)."""
        held = clipped(terms, self._lowest[slots] - WIDEN, self._highest[slots] + WIDEN)
        self._lowest[slots] = np.fmin(self._lowest[slots], held)
        self._highest[slots] = np.fmax(self._highest[slots], held)
        return held

    def _step(self, slots: Ints, terms: Floats, cpu: Floats, learn: Bools) -> Floats:
        """One step of recursive least squares with forgetting; returns the prediction before it, (M,)."""
        whole = np.isfinite(terms).all(axis=1)
        predicted = np.where(whole, (filled(terms, 0.0) * self.coefficients[slots]).sum(axis=1), np.nan)
        fit = whole & np.isfinite(cpu) & learn
        slots, terms = slots[fit], terms[fit]
        error = clipped(cpu[fit] - predicted[fit], -MAX_RESIDUAL, MAX_RESIDUAL)
        covariance = self._covariance[slots]
        gain = np.einsum("mij,mj->mi", covariance, terms)
        gain /= (FORGETTING + np.einsum("mi,mi->m", terms, gain))[:, None]
        self.coefficients[slots] = clipped(self.coefficients[slots] + gain * error[:, None], LEAST, MOST)
        covariance = (covariance - np.einsum("mi,mj,mjk->mik", gain, terms, covariance)) / FORGETTING
        # Only coefficients beyond the cap are held; the others go on learning.
        variance = np.einsum("mii->mi", covariance)
        held = np.sqrt(np.minimum(1.0, MAX_VARIANCE / np.maximum(variance, 1e-12)))
        covariance *= held[:, :, None] * held[:, None, :]
        self._covariance[slots] = (covariance + covariance.transpose(0, 2, 1)) / 2
        return predicted


def _by_queue(frame: Frame) -> Floats:
    """(M,) share of the CPU that a server lost in the run queue. It gets 1 / (1 + run delay per CPU second) of the time
    in which it wants to run."""
    delay, calm_delay = frame.values[:, INDEX["run_delay_per_cpu"]], frame.baseline[:, INDEX["run_delay_per_cpu"]]
    return np.asarray(1.0 - (1.0 + calm_delay) / (1.0 + delay))


def lost_share(frame: Frame) -> Floats:
    """(M,) share of its calm CPU that a server did not get in this tick, by the signal that shows most; 0 if none
    does."""
    return _share(np.fmax(np.fmax(_by_queue(frame), _by_core(frame)), _by_steal(frame)))


def comparable_loss(frame: Frame) -> Floats:
    """(M,) lost share of the calm CPU, for a comparison of servers: by the run queue where that is known.

    The probe meets the other programs on its core only now and then, and meets the machine's own little jobs too.
    """
    by_queue = _by_queue(frame)
    return _share(np.where(np.isnan(by_queue), np.fmax(_by_core(frame), _by_steal(frame)), by_queue))


def _share(lost: Floats) -> Floats:
    return clipped(filled(lost, 0.0), 0.0, 1.0)


def _by_core(frame: Frame) -> Floats:
    ratio, calm_ratio = frame.values[:, INDEX["canary_ratio"]], frame.baseline[:, INDEX["canary_ratio"]]
    return np.asarray(1.0 - np.fmax(calm_ratio, 1.0) / np.fmax(ratio, 1.0))


def _by_steal(frame: Frame) -> Floats:
    return np.asarray(frame.values[:, INDEX["steal"]] - frame.baseline[:, INDEX["steal"]])
