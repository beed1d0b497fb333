"""A node's calm baseline: median and spread of each signal in its own calm ticks, apart for each range of its load.

A busy server waits for itself too, so a tick is compared with calm ticks at the same load. A baseline is learnt fast at
first and slowly later: a cell holds `KEEP` values, and once it is full it takes fewer and fewer ticks, until it spans
half an hour.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slackwater.detector.features.columns import Bools, Floats, Ints, filled
from slackwater.detector.features.signals import OF_REQUESTS, QUEUES, RESPONDS, SIGNALS, WAITS
from slackwater.detector.slot_arrays import SlotArrays

EDGES: Floats = np.array([0.03, 0.15, 0.30, 0.45, 0.60, 0.75, 0.90])
"""Load ranges: below 3% (no traffic), 3..15%, ..., above 90%."""
CENTRES: Floats = np.array([0.01, 0.09, 0.22, 0.37, 0.52, 0.67, 0.82, 0.93])
BINS = len(CENTRES)
KEEP = 48
MIN_SAMPLES = 10
"""Calm ticks that a cell needs before a node is judged by it."""
PROMPT = 24
"""A cell with up to this many ticks is summed up at each tick; later at every `EVERY`th."""
EVERY = 4
AT_ONCE = 400
"""The most cells that are summed up in a tick; the others follow in the next ones. Thousands of nodes that began
together would otherwise all be due in the same tick."""
MAX_STRIDE = 150
"""A full cell takes at least one tick of this many: one in 30 s at the default period."""
MAX_STRETCH = 6.0
QUANTILES = 9
"""Number of evenly spaced quantiles of a cell that are kept on disk."""
USUAL = 0.95
LAST_HEARD = "last_heard_unix_s"
"""The name, among a node's stored cells, of the wall time at which it was last heard of."""
StoredBaselines = dict[str, dict[str, Any]]
"""Node -> its calm baseline as JSON."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
_AWAY = np.arange(BINS)[None, :] - np.arange(BINS)[:, None]
_DISTANCE: Floats = np.abs(_AWAY) - 0.1 * (_AWAY > 0)
"""(bins, bins) distance from a bin to another. Of two at the same distance the busier counts as nearer."""


def _stretch(growth: Floats) -> Floats:
    """(bins, bins) factor from a value in the second bin to one in the first; 1 unless the first is busier."""
    return np.clip(growth[:, None] / growth[None, :], 1.0, MAX_STRETCH)


_SIGNALS = np.arange(len(SIGNALS))
_STRETCH: Floats = np.ones((BINS, BINS, len(SIGNALS)))
"""(bins, bins, signals) factors as in `_stretch`."""
_STRETCH[:, :, WAITS] = _stretch(CENTRES / (1.0 - CENTRES))[:, :, None]
_STRETCH[:, :, RESPONDS] = _stretch(1.0 / (1.0 - CENTRES))[:, :, None]
NONE = -1
_STANDS_IN: Bools = np.ones((BINS, BINS, len(SIGNALS)), dtype=bool)
"""(bins, bins, signals) whether the second bin may stand in for the first. Beyond 90% a queue has no usual length: what
was seen there is no measure of how long requests wait at another load. Without traffic there are the balancer's checks
alone, which are no measure of what users' requests cost and how long they take."""
_STANDS_IN[:-1, -1, QUEUES] = False
_STANDS_IN[1:, 0, OF_REQUESTS] = False


def bins_of(load: Floats) -> Ints:
    """(M,) bin of each load (M,). An unknown load counts as the lowest, which all ticks share then."""
    return EDGES.searchsorted(filled(load, 0.0), side="right")


class Reference(NamedTuple):
    """The calm baseline of M nodes at their loads, (M, signals) each."""

    median: Floats
    spread: Floats
    """Robust standard deviation."""
    high: Floats
    """The highest usual value: 19 of 20 calm ticks stay below."""


class Baselines(SlotArrays):
    """Calm medians and spreads of all slots. A cell is a slot at one load; only cells with ticks take room."""

    _cell: Ints
    """(slots, bins) index of the cell; cell 0 is the empty one."""
    _seen: Ints
    _taken: Ints
    """(slots, bins) number of calm ticks that came, and of those that were taken."""
    _nearest: NDArray[np.int8]
    """(slots, bins, signals) the bin that stands in for this one, or `NONE`."""

    def __init__(self) -> None:
        signals = len(SIGNALS)
        none: Ints = np.zeros(BINS, dtype=np.int64)
        super().__init__(
            _cell=none,
            _seen=none,
            _taken=none,
            _nearest=np.full((BINS, signals), NONE, dtype=np.int8),
        )
        self._free: list[int] = []
        self._used = 1
        self._ring = np.full((1, KEEP, signals), np.nan, dtype=np.float32)
        """(cells, KEEP, signals). A tick's values lie side by side, so that thousands of nodes' cost little to take."""
        self._slot: Ints = np.zeros(1, dtype=np.int64)
        """(cells,) the cell's slot."""
        self._due: Bools = np.zeros(1, dtype=bool)
        """(cells,) whether the cell has ticks that its summary lacks."""
        self._turn = 0
        self._count: Ints = np.zeros((1, signals), dtype=np.int64)
        self._summary: Floats = np.full((1, len(Reference._fields), signals), np.nan)
        """(cells, 3, signals) median, spread and high."""

    def forget(self, slot: int) -> None:
        cells = self._cell[slot][self._cell[slot] > 0]
        self._ring[cells] = self._summary[cells] = np.nan
        self._count[cells], self._due[cells] = 0, False
        self._free += [int(cell) for cell in cells]
        super().forget(slot)

    def learn(self, slots: Ints, bins: Ints, values: Floats) -> None:
        """Adds calm ticks of these slots (M,) at these loads (M,); `values`: (M, signals)."""
        seen = self._seen[slots, bins]
        take = seen % np.minimum(np.maximum(seen // KEEP, 1), MAX_STRIDE) == 0
        self._seen[slots, bins] = seen + 1
        slots, bins, values = slots[take], bins[take], values[take]
        if len(slots):
            self._allot(slots, bins)
            cells, taken = self._cell[slots, bins], self._taken[slots, bins]
            self._ring[cells, taken % KEEP] = values
            self._taken[slots, bins] = taken = taken + 1
            self._due[cells[(taken >= MIN_SAMPLES) & ((taken <= PROMPT) | (taken % EVERY == 0))]] = True
        due = np.flatnonzero(self._due)
        if len(due) > AT_ONCE:
            due = np.roll(due, -int(np.searchsorted(due, self._turn)))[:AT_ONCE]
            self._turn = int(due[-1]) + 1
        if len(due):
            self._summarise(due)

    def _allot(self, slots: Ints, bins: Ints) -> None:
        """Gives a cell to each slot and bin that has none."""
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
            self._slot, self._due = _grown(self._slot, room, 0), _grown(self._due, room, 0)
        self._cell[slots[lacking], bins[lacking]], self._slot[cells] = cells, slots[lacking]

    def _ordered(self, cells: Ints) -> NDArray[np.float32]:
        """(M, signals, KEEP) the sorted values of these cells."""
        values = np.ascontiguousarray(self._ring[cells].swapaxes(1, 2))
        values.sort(axis=2)
        return values

    def _summarise(self, cells: Ints) -> None:
        """Computes medians, spreads and highs of these cells."""
        ordered = self._ordered(cells)
        count = (~np.isnan(ordered)).sum(axis=2)
        median = _median(ordered, count)
        distances = np.sort(np.abs(ordered - median[:, :, None].astype(np.float32)), axis=2)
        usual = np.ceil(USUAL * np.maximum(count - 1, 0)).astype(np.int64)
        self._summary[cells, 0] = median
        self._summary[cells, 1] = MAD_TO_SIGMA * _median(distances, count)
        self._summary[cells, 2] = _pick(ordered, usual)
        self._due[cells] = False
        changed = ((self._count[cells] >= MIN_SAMPLES) != (count >= MIN_SAMPLES)).any(axis=1)
        self._count[cells] = count
        if changed.any():
            self._look_around(np.unique(self._slot[cells[changed]]))

    def _look_around(self, slots: Ints) -> None:
        """Finds the nearest bins, after these slots have learnt enough of another bin."""
        enough = self._count[self._cell[slots]] >= MIN_SAMPLES
        for number in range(BINS):
            distance = np.where(enough & _STANDS_IN[number], _DISTANCE[number][None, :, None], np.inf)
            self._nearest[slots, number] = np.where(np.isinf(distance).all(axis=1), NONE, distance.argmin(axis=1))

    @property
    def learnt(self) -> Bools:
        """(slots,) whether the slot has a cell that nodes are judged by."""
        return np.asarray((self._taken >= MIN_SAMPLES).any(axis=1))

    def reference(self, slots: Ints, bins: Ints) -> Reference:
        """The calm baseline of these slots (M,) at these loads (M,); NaN where too little was learnt.

        Where this load was not seen yet, the nearest load that was seen stands in. If that is a lower one, signals that
        the node's own load raises are stretched (`signals.Growth`). An overload stands in for no other load there.
        """
        nearest = self._nearest[slots, bins].astype(np.int64)
        stretch = np.where(nearest != NONE, _STRETCH[bins[:, None], nearest, _SIGNALS], np.nan)
        cells = self._cell[slots[:, None], nearest]
        return Reference(*(self._summary[cells, number, _SIGNALS] * stretch for number in range(3)))

    def export(self, slots: Ints) -> list[dict[str, Any]]:
        """These slots' baselines as JSON, (M,): bin -> signal -> quantiles, for signals with enough ticks."""
        owners, bins = np.nonzero(self._seen[slots])
        cells = self._cell[slots[owners], bins]
        ordered = self._ordered(cells)
        count = (~np.isnan(ordered)).sum(axis=2)
        quantiles = _four_digits(_quantiles(ordered, count)).tolist()
        known: list[list[int]] = [np.flatnonzero(row).tolist() for row in count >= MIN_SAMPLES]
        exported: list[dict[str, Any]] = [{} for _ in slots]
        for owner, number, values, columns in zip(owners.tolist(), bins.tolist(), quantiles, known, strict=True):
            if columns:
                exported[owner][str(number)] = {SIGNALS[column].key: values[column] for column in columns}
        return exported

    def restore(self, slot: int, cells: dict[str, Any]) -> None:
        """Restores a slot from a result of `export`.

        The quantiles stand for `MIN_SAMPLES` ticks, which new ticks soon outnumber. Raises ValueError for anything but
        a baseline; the slot is empty then.
        """
        self.forget(slot)
        try:
            for name, cell in cells.items():
                number = int(name)
                if not 0 <= number < BINS:
                    raise ValueError(f"load range {number} is not one of 0..{BINS - 1}")
                self._allot(np.array([slot]), np.array([number]))
                ring = self._ring[self._cell[slot, number]]
                for column, signal in enumerate(SIGNALS):
                    if signal.key in cell:
                        quantiles = np.asarray(cell[signal.key], dtype=np.float64)
                        if quantiles.shape != (QUANTILES,) or not np.isfinite(quantiles).all():
                            raise ValueError(f"{signal.key} in load range {number}: expected {QUANTILES} numbers")
                        spots = np.linspace(0, QUANTILES - 1, MIN_SAMPLES)
                        ring[:MIN_SAMPLES, column] = np.interp(spots, np.arange(QUANTILES), quantiles)
                self._seen[slot, number] = self._taken[slot, number] = MIN_SAMPLES
                self._summarise(self._cell[slot, number : number + 1])
        except (ValueError, TypeError, AttributeError) as error:
            self.forget(slot)
            raise ValueError(f"not a baseline: {error}") from None


def _grown(array: Any, length: int, fill: float) -> Any:
    """The array with more rows."""
    return np.concatenate([array, np.full((length - len(array), *array.shape[1:]), fill, dtype=array.dtype)])


def _pick(ordered: NDArray[np.floating[Any]], place: Ints) -> NDArray[np.floating[Any]]:
    """(M, S) the values of (M, S, K) at these places of the last axis."""
    return np.take_along_axis(ordered, place[:, :, None], axis=2)[:, :, 0]


def _median(ordered: NDArray[np.floating[Any]], count: Ints) -> Floats:
    """Median over the last axis of (M, S, K), which is sorted there; `count` (M, S) values are no NaN."""
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, ordered.shape[2] - 1)
    return np.asarray((_pick(ordered, low).astype(np.float64) + _pick(ordered, high)) / 2)


def _quantiles(ordered: NDArray[np.floating[Any]], count: Ints) -> Floats:
    """(M, S, QUANTILES) evenly spaced quantiles over the last axis of (M, S, K), as `_median` takes it."""
    spots = np.linspace(0.0, 1.0, QUANTILES) * np.maximum(count - 1, 0)[:, :, None]
    low = np.floor(spots).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(count - 1, 0)[:, :, None])
    lower, upper = (np.take_along_axis(ordered, place, axis=2).astype(np.float64) for place in (low, high))
    return np.asarray(lower + (upper - lower) * (spots - low))


def _four_digits(values: Floats) -> Floats:
    """The values rounded to four digits, which are enough, and short in JSON."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.nan_to_num(3.0 - np.floor(np.log10(np.abs(values))), nan=0.0, posinf=0.0, neginf=0.0)
    up, down = 10.0 ** np.maximum(digits, 0.0), 10.0 ** np.maximum(-digits, 0.0)
    return np.asarray(np.rint(values * up / down) / up * down)
