"""What makes nodes comparable: each signal over its own calm baseline at this load, and over what its peers show now.

One vectorised pass over all nodes with a new Sample. An absent value is NaN, with the reason in `missing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from detector.features.baseline import MIN_SAMPLES, Baselines, Reference, bins_of
from detector.features.columns import Bools, Floats, Ints
from detector.features.history import SampleRows
from detector.features.signals import FLOORS, INDEX, RESPONDS, SIGNALS, reason
from detector.slot_arrays import SlotArrays

MIN_SPREAD = 0.1
"""Spreads below this share of the baseline count as this."""
LENDERS = 400
"""So many peers' baselines, evenly spread, are read when one is borrowed; thousands give the same, slowly."""
EVIDENCE: Ints = np.array([number for number, signal in enumerate(SIGNALS) if signal.evidence])
COST = INDEX["cpu_per_request"]
COST_RATIO_LIMIT = 1.5
"""From so many times its calm cost on, and its peers', a request's CPU time is not its own: a deploy or another mix
makes requests dearer on all servers, or by less."""
DEMAND = "demand"
PEER_TICKS = 3
"""A node counts, as a peer, with its highest values of so many ticks: one quiet tick of it makes nobody stand out."""
AGAINST = {"own": "its calm baseline", "peers": "its peers'"}
FEATURES: tuple[str, ...] = (
    *(f"{SIGNALS[number].key}:own" for number in EVIDENCE),
    *(f"{SIGNALS[number].key}:peers" for number in EVIDENCE),
    DEMAND,
)
"""Columns of `Frame.matrix`: `SIGNAL:own` is the ratio to the own calm baseline, `SIGNAL:peers` that ratio over the
peers', `demand` the CPU share that the node's requests cost when it is calm."""


@dataclass(frozen=True, kw_only=True)
class Frame(SampleRows):
    """The features of M nodes at one tick; (M, signals) unless said otherwise, NaN is absent."""

    baseline: Floats
    """Calm median at this load: the node's own, or its peers' where it has none yet (`borrowed`)."""
    own: Floats
    """Value over baseline."""
    usual: Floats
    """Value over the highest that is usual at this load (19 of 20 calm ticks)."""
    spreads: Floats
    """Distance from the baseline in calm spreads (standard deviations, robust)."""
    peers: Floats
    """`own` over the (lower) median of the peers' `own`, which counts at least 1; raw values where `own` is unknown."""
    borrowed: Bools
    """(M,) has no baseline of its own yet: its peers' stand in where they have one."""
    bins: Ints
    """(M,) range of the peak load: the baseline that the tick is compared with."""
    demand: Floats
    """(M,) CPU share that its requests cost when it is calm."""
    peers_demand: Floats
    """(M,) median of the peers' demand."""

    def matrix(self, rows: slice = slice(None)) -> Floats:
        """(M, len(FEATURES)), in the order of `FEATURES`; or of some rows only."""
        return np.concatenate([self.own[rows, EVIDENCE], self.peers[rows, EVIDENCE], self.demand[rows, None]], axis=1)

    def row(self, row: int) -> Floats:
        """(len(FEATURES),) one row of `matrix`, without making the others."""
        return np.asarray(self.matrix(slice(row, row + 1))[0])


class Features(SlotArrays):
    """Keeps every node's last values, since a node is compared with peers whose Samples come at other times."""

    _recent: Floats
    """(slots, PEER_TICKS, columns), a ring."""
    _levels: Floats
    """(slots, columns) highest of `_recent`."""
    _at: Ints

    def __init__(self) -> None:
        self.baselines = Baselines()
        columns = 2 * len(SIGNALS) + 1
        super().__init__(
            self.baselines, _recent=np.full((PEER_TICKS, columns), np.nan), _levels=np.full(columns, np.nan), _at=0
        )

    def compute(self, rows: SampleRows, fresh: Bools, in_episode: Bools) -> Frame:
        """The features of these rows. Peers are the other fresh nodes in no episode; all fresh ones where none is.

        `fresh` and `in_episode` are (slots,).
        """
        comparable = fresh & ~in_episode
        bins = bins_of(rows.peak)
        reference, borrowed = self._reference(rows.slots, bins, rows.values, comparable)
        cost_ratio = rows.values[:, COST] / np.maximum(reference.median[:, COST], FLOORS[COST])
        some = np.flatnonzero(cost_ratio >= COST_RATIO_LIMIT)  # hardly ever any: the others need no peers
        if len(some):
            peers_ratio = _median_of_others(self._levels[:, [COST]], comparable, rows.slots[some])[:, 0]
            cost_ratio[some] /= np.fmax(peers_ratio, 1.0)
        explained = bins_of(explained_load(rows.peak, cost_ratio))
        lower = np.flatnonzero(explained < bins)
        if len(lower):
            there, _ = self._reference(rows.slots[lower], explained[lower], rows.values[lower], comparable)
            for values, part in zip(reference, there, strict=True):
                values[np.ix_(lower, RESPONDS)] = part[:, RESPONDS]
        median, spread, high = reference
        base = np.maximum(median, FLOORS)
        own = rows.values / base
        usual = rows.values / np.maximum(high, base)
        spreads = (rows.values - median) / np.maximum(spread, np.maximum(MIN_SPREAD * base, MIN_SPREAD * FLOORS))

        cost_ms = median[:, COST]
        demand = rows.rps * cost_ms / 1e3 / rows.cores
        self._recent[rows.slots, self._at[rows.slots]] = np.concatenate([own, rows.values, demand[:, None]], axis=1)
        self._at[rows.slots] = (self._at[rows.slots] + 1) % PEER_TICKS

        self._levels[rows.slots] = np.fmax.reduce(self._recent[rows.slots], axis=1)

        # Raw values are compared only where a row has no own baseline to compare with.
        count = len(SIGNALS)
        raw = (np.isnan(own) & ~np.isnan(rows.values)).any(axis=0)
        needed = np.concatenate([np.ones(count, dtype=bool), raw, [True]])
        alone = comparable.sum() - comparable[rows.slots] == 0
        others = np.full((len(rows.slots), len(needed)), np.nan)
        others[:, needed] = _median_of_others(self._levels[:, needed], comparable, rows.slots)
        if alone.any():
            others[np.ix_(alone, needed)] = _median_of_others(self._levels[:, needed], fresh, rows.slots[alone])
        peers_own, peers_raw, peers_demand = others[:, :count], others[:, count:-1], others[:, -1]
        peers = np.where(np.isnan(own), rows.values / np.maximum(peers_raw, FLOORS), own / np.maximum(peers_own, 1.0))
        return Frame(
            **vars(rows),
            baseline=median,
            own=own,
            usual=usual,
            spreads=spreads,
            peers=peers,
            borrowed=borrowed,
            bins=bins,
            demand=demand,
            peers_demand=peers_demand,
        )

    def _reference(self, slots: Ints, bins: Ints, values: Floats, comparable: Bools) -> tuple[Reference, Bools]:
        """What is normal for these slots at these loads, and which of them (M,) have no baseline of their own: where
        one of their `values` (M, signals) has none, the peers' stands in."""
        own = self.baselines.reference(slots, bins)
        unknown = np.isnan(own.median) & ~np.isnan(values)
        borrowed: Bools = np.asarray(np.isnan(own.median).all(axis=1))
        if unknown.any():
            lent = self._lent(bins, comparable)
            own = Reference(*(np.where(unknown, theirs, mine) for mine, theirs in zip(own, lent, strict=True)))
        return own, borrowed

    def _lent(self, bins: Ints, comparable: Bools) -> Reference:
        """Median over the peers' baselines at these loads; NaN where no peer has one."""
        lenders = np.flatnonzero(comparable)
        lenders = lenders[:: 1 + len(lenders) // LENDERS]
        lent = Reference(*(np.full((len(bins), len(SIGNALS)), np.nan) for _ in Reference._fields))
        if not len(lenders):
            return lent
        for number in np.unique(bins):
            theirs = self.baselines.reference(lenders, np.full(len(lenders), number))
            for mine, values in zip(lent, theirs, strict=True):
                mine[bins == number] = _lower_median(values)
        return lent


def explained_load(load: Floats, cost_ratio: Floats) -> Floats:
    """(M,) the share of `load` that the requests account for; `cost_ratio` is CPU time per request over calm and peers.

    On a virtual machine the time that the hypervisor takes away is booked on whoever was running: CPU time per request
    rises beside a neighbour, and the load with it. Response times are compared with those at the load that the requests
    account for, or the neighbour would excuse itself. What waits in the guest's own run queue is compared at the load
    that the guest measures. Requests below `COST_RATIO_LIMIT` are the server's own, as are those of unknown
    cost.
    """
    return load / np.where(cost_ratio >= COST_RATIO_LIMIT, cost_ratio, 1.0)


def _lower_median(values: Floats) -> Floats:
    """Lower median over axis 0, NaN apart."""
    count = (~np.isnan(values)).sum(axis=0)
    ordered = np.sort(values, axis=0)
    return np.asarray(ordered[np.maximum((count - 1) // 2, 0), np.arange(values.shape[1])])


def _median_of_others(values: Floats, fit: Bools, slots: Ints) -> Floats:
    """For each of `slots` the lower median, per column, of the other `fit` rows: (M, columns); NaN where there is none.

    The lower one of an even number: with two peers a node stands out when it is worse than the better one, so that
    two neighbours at a time do not hide each other. Two order statistics of all rows serve every one of them: leaving
    out a value that is not above the middle one moves the median up by one place.
    """
    found = np.full((len(slots), values.shape[1]), np.nan)
    pool = np.where(fit[:, None], values, np.nan).T
    mine = pool[:, slots]
    counts = (~np.isnan(pool)).sum(axis=1)
    for count in set(counts[counts > 0].tolist()):
        columns = counts == count
        whole, low = (count - 1) // 2, max((count - 2) // 2, 0)
        high = min(low + 1, count - 1)
        ordered = np.partition(pool[columns], sorted({whole, low, high}), axis=1)
        own = mine[columns]
        without = np.where(own <= ordered[:, low, None], ordered[:, high, None], ordered[:, low, None])
        if count == 1:
            without = np.full_like(own, np.nan)
        found[:, columns] = np.where(np.isnan(own), ordered[:, whole, None], without).T
    return found


def why_missing(feature: str, frame: Frame, row: int, absent: Mapping[str, str]) -> str:
    """Why a feature of this row is NaN, in words; `absent` is its Sample's."""
    if feature == DEMAND:
        return "no request rate, CPU time per request or number of cores"
    key, _, _ = feature.partition(":")
    column = INDEX[key]
    if math.isnan(frame.values[row, column]):
        return reason(SIGNALS[column], absent)
    if feature.endswith(":own"):
        return f"no calm baseline yet (it needs {MIN_SAMPLES} calm ticks)"
    return "no peer has it now"


def words(feature: str) -> str:
    """A feature's name for people."""
    if feature == DEMAND:
        return "CPU share that its requests cost when calm"
    key, _, against = feature.partition(":")
    name = SIGNALS[INDEX[key]].words
    return f"{name} over {AGAINST[against]}"


def describe(feature: str, frame: Frame, row: int) -> str:
    """A feature's value in words: `run delay per CPU second 21.4 is 14.2x its calm baseline`."""
    return describe_all(feature, frame, np.array([row]))[0]


def describe_all(feature: str, frame: Frame, rows: Ints, after: str = "") -> list[str]:
    """`describe` of many rows, with the same words after each: (K,)."""
    if feature == DEMAND:
        shares = frame.demand[rows].tolist()
        return [f"its requests would cost {share:.0%} of its CPU when calm{after}" for share in shares]
    key, _, against = feature.partition(":")
    column = INDEX[key]
    signal = SIGNALS[column]
    values = frame.values[rows, column].tolist()
    ratios = {"own": frame.own, "peers": frame.peers}[against][rows, column].tolist()
    name, unit, own, lent = signal.words, signal.unit, AGAINST[against], "its peers' calm baseline"
    others = (frame.borrowed[rows] & (against != "peers")).tolist()
    return [
        # `times` written out where it is nearly always: a call for each node and tick would show.
        f"{name} {value:.3g}{unit} is {f'{ratio:.2g}x' if ratio < 10 else times(ratio)} {lent if other else own}{after}"
        for value, ratio, other in zip(values, ratios, others, strict=True)
    ]


def times(value: float) -> str:
    """A ratio for people: 1.2x, 14.2x, 120x."""
    return f"{value:.0f}x" if value >= 100 else f"{value:.2g}x" if value < 10 else f"{value:.1f}x"
