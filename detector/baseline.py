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
from numpy.typing import NDArray

from detector.signals import QUEUES, SIGNALS, Bools, Floats, Ints

EDGES: Floats = np.array([0.03, 0.15, 0.30, 0.45, 0.60, 0.75, 0.90])
"""Load ranges: below 3% (no traffic), 3..15%, ..., above 90%."""
CENTRES: Floats = np.array([0.01, 0.09, 0.22, 0.37, 0.52, 0.67, 0.82, 0.93])
BINS = len(CENTRES)
KEEP = 48
MIN_SAMPLES = 10
"""Calm ticks that a cell needs before a node is judged by it."""
PROMPT = 24
"""Until it holds so many ticks, each one counts at once; later every `EVERY`th tick counts those before it in too."""
EVERY = 4
MAX_STRIDE = 150
"""A full cell takes in one tick of this many at the least: 30 s at the default period."""
MAX_STRETCH = 6.0
QUANTILES = 9
"""A cell is kept on disk as this many evenly spaced quantiles."""
VERSION = 2
"""Of the file. In 1 the probe's cycles stood under the name of hardware's."""
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
    """Calm medians and spreads of all slots. A cell is one slot at one load; only those that were learnt take room."""

    def __init__(self) -> None:
        signals = len(SIGNALS)
        self._cell: Ints = np.zeros((0, BINS), dtype=np.int64)
        """(slots, bins) which cell; cell 0 is the empty one."""
        self._seen: Ints = np.zeros((0, BINS), dtype=np.int64)
        self._taken: Ints = np.zeros((0, BINS), dtype=np.int64)
        self._nearest = np.zeros((0, BINS, signals), dtype=np.int8)
        """(slots, bins, signals) the bin that speaks for this one."""
        self._known: Bools = np.zeros((0, signals), dtype=bool)
        self._free: list[int] = []
        self._used = 1
        self._ring = np.full((1, KEEP, signals), np.nan, dtype=np.float32)
        self._count: Ints = np.zeros((1, signals), dtype=np.int64)
        self._summary: Floats = np.full((1, len(Reference._fields), signals), np.nan)
        """(cells, median spread high, signals)."""

    def resize(self, slots: int) -> None:
        more = slots - len(self._seen)
        if more <= 0:
            return
        for name in ("_cell", "_seen", "_taken", "_nearest", "_known"):
            setattr(self, name, _grown(getattr(self, name), slots, 0))

    def forget(self, slot: int) -> None:
        """Empties a slot for a new node."""
        cells = self._cell[slot][self._cell[slot] > 0]
        self._ring[cells] = self._summary[cells] = np.nan
        self._count[cells] = 0
        self._free += [int(cell) for cell in cells]
        self._cell[slot] = self._seen[slot] = self._taken[slot] = self._nearest[slot] = 0
        self._known[slot] = False

    def learn(self, slots: Ints, bins: Ints, values: Floats) -> None:
        """Takes calm ticks in: `values` is (M, signals)."""
        stride = np.clip(self._seen[slots, bins] // KEEP, 1, MAX_STRIDE)
        take = self._seen[slots, bins] % stride == 0
        self._seen[slots, bins] += 1
        slots, bins, values = slots[take], bins[take], values[take]
        if not len(slots):
            return
        self._allot(slots, bins)
        taken = self._taken[slots, bins]
        self._ring[self._cell[slots, bins], taken % KEEP] = values
        self._taken[slots, bins] = taken = taken + 1
        due = (taken >= MIN_SAMPLES) & ((taken <= PROMPT) | (taken % EVERY == 0))
        if due.any():
            self._summarise(slots[due], bins[due])

    def _allot(self, slots: Ints, bins: Ints) -> None:
        """Gives cells to those that have none."""
        lacking = np.flatnonzero(self._cell[slots, bins] == 0)
        if not len(lacking):
            return
        again = [self._free.pop() for _ in range(min(len(lacking), len(self._free)))]
        more = len(lacking) - len(again)
        cells = np.array([*again, *range(self._used, self._used + more)], dtype=np.int64)
        self._used += more
        if self._used > len(self._count):
            room = max(self._used, min(2 * len(self._count), len(self._count) + 4096))
            self._ring = _grown(self._ring, room, np.nan)
            self._count = _grown(self._count, room, 0)
            self._summary = _grown(self._summary, room, np.nan)
        self._cell[slots[lacking], bins[lacking]] = cells

    def _summarise(self, slots: Ints, bins: Ints) -> None:
        at = self._cell[slots, bins]
        cells = self._ring[at]
        count = (~np.isnan(cells)).sum(axis=1)
        ordered = np.sort(cells, axis=1)
        median = _median(ordered, count)
        away = np.sort(np.abs(cells - median[:, None, :].astype(np.float32)), axis=1)
        usual = np.ceil(USUAL * np.maximum(count - 1, 0)).astype(np.int64)
        self._summary[at, 0] = median
        self._summary[at, 1] = MAD_TO_SIGMA * _median(away, count)
        self._summary[at, 2] = ordered[np.arange(len(cells))[:, None], usual, np.arange(cells.shape[2])[None, :]]
        changed = ((self._count[at] >= MIN_SAMPLES) != (count >= MIN_SAMPLES)).any(axis=1)
        self._count[at] = count
        if changed.any():
            self._look_around(np.unique(slots[changed]))

    def _look_around(self, slots: Ints) -> None:
        """Which bins speak for which, after these slots have learnt enough of one more."""
        enough = self._count[self._cell[slots]] >= MIN_SAMPLES
        self._known[slots] = enough.any(axis=1)
        for number in range(BINS):
            distance = np.where(enough, _DISTANCE[number][None, :, None], np.inf)
            self._nearest[slots, number] = distance.argmin(axis=1)

    def reference(self, slots: Ints, bins: Ints) -> Reference:
        """What is normal for these slots at these loads; NaN where too little was learnt.

        Where this load was not seen yet, the nearest load that was speaks for it; signals that queue are stretched as
        load / (1 - load) when that was a lower one.
        """
        nearest = self._nearest[slots, bins].astype(np.int64)
        columns = np.arange(len(SIGNALS))[None, :]
        stretch = np.where(QUEUES, _STRETCH[bins[:, None], nearest], 1.0)
        stretch[~self._known[slots]] = np.nan
        cells = self._cell[slots[:, None], nearest]
        return Reference(*(self._summary[cells, number, columns] * stretch for number in range(3)))

    def export(self, slot: int) -> dict[str, Any]:
        """One slot as JSON: bin -> signal -> quantiles."""
        cells: dict[str, Any] = {}
        for number in np.flatnonzero(self._seen[slot]):
            ring = self._ring[self._cell[slot, number]]
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
                place = np.array([slot]), np.array([number])
                self._allot(*place)
                for column, signal in enumerate(SIGNALS):
                    if signal.key in cell:
                        quantiles = np.asarray(cell[signal.key], dtype=np.float64)
                        if quantiles.shape != (QUANTILES,) or not np.isfinite(quantiles).all():
                            raise ValueError(f"{signal.key} in load range {number}: expected {QUANTILES} numbers")
                        spots = np.linspace(0, QUANTILES - 1, MIN_SAMPLES)
                        self._ring[self._cell[slot, number], :MIN_SAMPLES, column] = np.interp(
                            spots, np.arange(QUANTILES), quantiles
                        )
                self._seen[slot, number] = self._taken[slot, number] = MIN_SAMPLES
                self._summarise(*place)
        except (ValueError, TypeError, AttributeError) as error:
            self.forget(slot)
            raise ValueError(f"not a baseline: {error}") from None


def _grown(array: Any, length: int, fill: float) -> Any:
    """The array with more rows."""
    return np.concatenate([array, np.full((length - len(array), *array.shape[1:]), fill, dtype=array.dtype)])


def _median(ordered: NDArray[np.floating[Any]], count: Ints) -> Floats:
    """Median over axis 1 of (M, K, S), which is sorted there; `count` (M, S) values are no NaN."""
    rows, columns = np.arange(len(ordered))[:, None], np.arange(ordered.shape[2])[None, :]
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, ordered.shape[1] - 1)
    return np.asarray((ordered[rows, low, columns] + ordered[rows, high, columns]) / 2)


def save(path: Path, pools: dict[str, dict[str, Any]], now_unix_s: float) -> None:
    """Writes the baselines of all pools (pool -> node -> `Baselines.export`), atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_text(json.dumps({"v": VERSION, "written_unix_s": now_unix_s, "pools": pools}), encoding="utf-8")
    draft.replace(path)


def load(path: Path, now_unix_s: float) -> dict[str, dict[str, Any]]:
    """Reads what `save` wrote; empty when there is no file. Raises ValueError for a file that is no such thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["v"] != VERSION:
            raise ValueError(f"version {content['v']}, expected {VERSION}")
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
