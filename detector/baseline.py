"""What is normal for a node: median and spread of each signal in its own calm ticks, apart for each range of its load.

A busy server waits for itself too, so a tick is compared with calm ticks at that load. Learnt fast at first and
slowly later: a cell holds `KEEP` values; once full it takes in fewer and fewer ticks, until it spans half an hour.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detector.signals import QUEUES, SIGNALS, Bools, Floats, Ints

EDGES: Floats = np.array([0.03, 0.15, 0.30, 0.45, 0.60, 0.75, 0.90])
"""Load ranges: below 3% (no traffic), 3..15%, ..., above 90%."""
CENTRES: Floats = np.array([0.01, 0.09, 0.22, 0.37, 0.52, 0.67, 0.82, 0.93])
BINS = len(CENTRES)
KEEP = 48
MIN_SAMPLES = 10
"""Calm ticks that a cell needs before a node is judged by it."""
MAX_STRIDE = 150
"""A full cell takes in one tick of this many at the least: 30 s at the default period."""
MAX_STRETCH = 6.0
QUANTILES = 9
"""A cell is kept on disk as this many evenly spaced quantiles."""
MAX_AGE_S = 7 * 86400.0
USUAL = 0.95
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
_AWAY = np.arange(BINS)[None, :] - np.arange(BINS)[:, None]
_DISTANCE: Floats = np.abs(_AWAY) - 0.1 * (_AWAY > 0)
"""From one bin to another; of two as near, the busier one."""
_WAIT: Floats = CENTRES / (1.0 - CENTRES)
_STRETCH: Floats = np.clip(_WAIT[:, None] / _WAIT[None, :], 1.0, MAX_STRETCH)


def bins_of(load: Floats) -> Ints:
    """Bin of each load; an unknown load counts as the lowest, all ticks then share it."""
    return np.searchsorted(EDGES, np.nan_to_num(load, nan=0.0), side="right").astype(np.int64)


class Reference(NamedTuple):
    """What is normal for M nodes at their loads, each (M, signals)."""

    median: Floats
    spread: Floats
    """Robust standard deviation."""
    high: Floats
    """The highest usual value: of 20 calm ticks 19 stay below."""


class Baselines:
    """Calm medians and spreads of all slots. Arrays are (slots, bins, signals)."""

    def __init__(self) -> None:
        signals = len(SIGNALS)
        self._ring = np.full((0, BINS, KEEP, signals), np.nan, dtype=np.float32)
        self._seen: Ints = np.zeros((0, BINS), dtype=np.int64)
        self._taken: Ints = np.zeros((0, BINS), dtype=np.int64)
        self.median: Floats = np.full((0, BINS, signals), np.nan)
        self.spread: Floats = np.full((0, BINS, signals), np.nan)
        self.high: Floats = np.full((0, BINS, signals), np.nan)
        self.count: Ints = np.zeros((0, BINS, signals), dtype=np.int64)

    def resize(self, slots: int) -> None:
        more = slots - len(self._seen)
        if more <= 0:
            return
        for name in ("_ring", "_seen", "_taken", "median", "spread", "high", "count"):
            array = getattr(self, name)
            fill = np.nan if array.dtype.kind == "f" else 0
            setattr(self, name, np.concatenate([array, np.full((more, *array.shape[1:]), fill, dtype=array.dtype)]))

    def forget(self, slot: int) -> None:
        """Empties a slot for a new node."""
        self._ring[slot] = np.nan
        self._seen[slot] = self._taken[slot] = self.count[slot] = 0
        self.median[slot] = self.spread[slot] = self.high[slot] = np.nan

    def learn(self, slots: Ints, bins: Ints, values: Floats) -> None:
        """Takes calm ticks in: `values` is (M, signals)."""
        stride = np.clip(self._seen[slots, bins] // KEEP, 1, MAX_STRIDE)
        take = self._seen[slots, bins] % stride == 0
        self._seen[slots, bins] += 1
        slots, bins, values = slots[take], bins[take], values[take]
        if not len(slots):
            return
        self._ring[slots, bins, self._taken[slots, bins] % KEEP] = values
        self._taken[slots, bins] += 1
        self._summarise(slots, bins)

    def _summarise(self, slots: Ints, bins: Ints) -> None:
        cells = self._ring[slots, bins].astype(np.float64)
        count = (~np.isnan(cells)).sum(axis=1)
        ordered = np.sort(cells, axis=1)
        median = _median(ordered, count)
        self.count[slots, bins] = count
        self.median[slots, bins] = median
        self.spread[slots, bins] = MAD_TO_SIGMA * _median(np.sort(np.abs(cells - median[:, None, :]), axis=1), count)
        usual = np.ceil(USUAL * np.maximum(count - 1, 0)).astype(np.int64)
        self.high[slots, bins] = ordered[np.arange(len(cells))[:, None], usual, np.arange(cells.shape[2])[None, :]]

    def reference(self, slots: Ints, bins: Ints) -> Reference:
        """What is normal for these slots at these loads; NaN where too little was learnt.

        Where this load was not seen yet, the nearest load that was speaks for it; signals that queue are stretched as
        load / (1 - load) when that was a lower one.
        """
        enough = self.count[slots] >= MIN_SAMPLES
        nearest = np.where(enough, _DISTANCE[bins][:, :, None], np.inf).argmin(axis=1)
        columns = np.arange(len(SIGNALS))[None, :]
        stretch = np.where(QUEUES, _STRETCH[bins[:, None], nearest], 1.0)
        stretch[~enough.any(axis=1)] = np.nan
        at = (slots[:, None], nearest, columns)
        return Reference(self.median[at] * stretch, self.spread[at] * stretch, self.high[at] * stretch)

    def export(self, slot: int) -> dict[str, Any]:
        """One slot as JSON: bin -> signal -> quantiles."""
        cells: dict[str, Any] = {}
        for number in np.flatnonzero(self._seen[slot]):
            ring = self._ring[slot, number]
            cell = {}
            for column, signal in enumerate(SIGNALS):
                values = ring[~np.isnan(ring[:, column]), column]
                if len(values) >= MIN_SAMPLES:
                    quantiles = np.quantile(values, np.linspace(0, 1, QUANTILES))
                    cell[signal.key] = [float(f"{value:.4g}") for value in quantiles]
            if cell:
                cells[str(number)] = cell
        return cells

    def restore(self, slot: int, cells: dict[str, Any]) -> None:
        """The opposite of `export`. The quantiles stand for `MIN_SAMPLES` ticks, which new ones soon outnumber.

        Raises ValueError for what is no baseline; the slot is then empty.
        """
        self.forget(slot)
        try:
            for name, cell in cells.items():
                number = int(name)
                if not 0 <= number < BINS:
                    raise ValueError(f"load range {number} is not one of 0..{BINS - 1}")
                for column, signal in enumerate(SIGNALS):
                    if signal.key in cell:
                        quantiles = np.asarray(cell[signal.key], dtype=np.float64)
                        if quantiles.shape != (QUANTILES,) or not np.isfinite(quantiles).all():
                            raise ValueError(f"{signal.key} in load range {number}: expected {QUANTILES} numbers")
                        spots = np.linspace(0, QUANTILES - 1, MIN_SAMPLES)
                        self._ring[slot, number, :MIN_SAMPLES, column] = np.interp(
                            spots, np.arange(QUANTILES), quantiles
                        )
                self._seen[slot, number] = self._taken[slot, number] = MIN_SAMPLES
                self._summarise(np.array([slot]), np.array([number]))
        except (ValueError, TypeError, AttributeError) as error:
            self.forget(slot)
            raise ValueError(f"not a baseline: {error}") from None


def _median(ordered: Floats, count: Ints) -> Floats:
    """Median over axis 1 of (M, K, S), which is sorted there; `count` (M, S) values are no NaN."""
    rows, columns = np.arange(len(ordered))[:, None], np.arange(ordered.shape[2])[None, :]
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, ordered.shape[1] - 1)
    return np.asarray((ordered[rows, low, columns] + ordered[rows, high, columns]) / 2)


def save(path: Path, pools: dict[str, dict[str, Any]], now_unix_s: float) -> None:
    """Writes the baselines of all pools (pool -> node -> `Baselines.export`), atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_text(json.dumps({"v": 1, "written_unix_s": now_unix_s, "pools": pools}), encoding="utf-8")
    draft.replace(path)


def load(path: Path, now_unix_s: float) -> dict[str, dict[str, Any]]:
    """Reads what `save` wrote; empty when there is no file. Raises ValueError for a file that is no such thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["v"] != 1:
            raise ValueError(f"version {content['v']}, expected 1")
        if not 0 <= now_unix_s - float(content["written_unix_s"]) <= MAX_AGE_S:
            return {}
        pools = content["pools"]
        if not isinstance(pools, dict) or not all(isinstance(nodes, dict) for nodes in pools.values()):
            raise ValueError("expected `pools` to map a pool to its nodes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the detector's baselines: {error!r}") from None
    return pools


def learnable(calm: Bools, values: Floats) -> Bools:
    """Ticks that may be learnt: calm ones that carry at least one value."""
    return calm & ~np.isnan(values).all(axis=1)
