"""Features, which make nodes comparable: each signal over its own calm baseline at this load, and over its peers' now.

They are computed in one vectorised pass over all nodes with a new Sample. An absent value is NaN. The tree's input has
no gaps: a signal that is absent, that is usual, or that the node's own load raises counts as in calm, so it speaks
neither for nor against a neighbour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slackwater.detector.features.baseline import Baselines, Reference, bins_of
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.features.history import SampleRows, in_cgroup, in_own_queue
from slackwater.detector.features.signals import FLOORS, INDEX, QUEUES, RESPONSES, SCALES, SIGNALS, Group
from slackwater.detector.features.single_client import FEW, SingleClients
from slackwater.detector.slot_arrays import SlotArrays

MIN_SPREAD = 0.1
"""A spread counts as at least this share of the baseline."""
LENDERS = 400
"""The most peers' baselines, evenly spread, that are read when one is borrowed. Thousands give the same, slowly."""
COST = INDEX["cpu_per_request"]
PEER_TICKS = 3
"""As a peer a node counts with its highest values of this many ticks, so that its single quiet tick makes no other node
stand out."""
MIN_SPREADS = 6.0
"""A deviation is at least this many calm spreads. The machine's own little jobs disturb the probe now and then, which a
spread does not show. So signals of the core must also be above the usual values of calm."""
SELF_INFLICTED_LOAD = 0.85
"""A server's waits are self-inflicted when its own programs took at least this CPU share in any of the last ticks."""
UNKNOWN_OWN = 1.5
"""Without any baseline only the peers' present values are there to compare with. A node that stands out among them
counts this much less."""
MOST_EXCESS = 1000.0
_CORE: Bools = np.array([signal.group == "core" for signal in SIGNALS])
CAUSES: tuple[Group, ...] = ("run queue", "core", "cost", "disk", "memory", "network")
"""The groups of signals that can explain why users wait."""
CAUSE, SECOND, FELT = "cause", "second cause", "felt cause"
FEATURES = (CAUSE, SECOND, FELT)
"""Columns of `Frame.matrix`, each 0 in calm and 1 at the signal's scale: the most remarkable cause; the most remarkable
one of another group of signals; and of a cgroup the first cause, as far as users feel it. In its kernel a neighbour
shows at once, so users who wait without a cause say nothing. A machine's neighbour is outside of its kernel, so there
the third is how long users wait, whatever the cause; so it is of a server without a monitor."""
NAMED = 0.75
"""From this `CAUSE` on it is seen why a server is slow; the trees of monitored nodes begin to ask at 0.7 to 0.9."""
FEW_REQUESTS = 0.03
"""A server whose own CPU share is below this counts as one without requests."""
MAX_FEATURE = 10.0
_OF_CAUSE: tuple[Ints, ...] = tuple(
    np.flatnonzero([signal.group == group and signal.scale < math.inf for signal in SIGNALS]) for group in CAUSES
)
_RATIO = INDEX["canary_ratio"]
_MEDIAN, _P95, _MEAN = INDEX["rt_p50"], INDEX["rt_p95"], INDEX["rt_mean"]
_PERIOD, _IN_FLIGHT = INDEX["period"], INDEX["in_flight"]
_CGROUPS_ONLY: Ints = np.flatnonzero([signal.cgroups_only for signal in SIGNALS])
_INSTEAD = [(INDEX[signal.key], INDEX[signal.instead_of]) for signal in SIGNALS if signal.instead_of]
_LOG_SCALE: Floats = np.log(SCALES)


@dataclass(frozen=True, kw_only=True)
class Frame(SampleRows):
    """The features of M nodes at one tick; (M, signals) unless stated otherwise, NaN is absent."""

    baseline: Floats
    """Calm median at this load: the node's own, or its peers' where it has none yet."""
    own: Floats
    """Value over baseline."""
    usual: Floats
    """Value over the highest usual value at this load (19 of 20 calm ticks stay below)."""
    spreads: Floats
    """Distance from the baseline in calm spreads (standard deviations, robust)."""
    peers: Floats
    """`own` over the (lower) median of the peers' `own`, which counts at least 1; raw values where `own` is unknown."""
    own_excess: Floats
    """`own` where it is above the usual values and the node's own load does not explain it; else 1."""
    excess: Floats
    """`own_excess` with the lower of `own` and `peers`; else 1."""
    borrowed: Bools
    """(M,) whether the node has no baseline of its own yet. Its peers' stand in where they have one."""
    bins: Ints
    """(M,) range of the load that its requests account for, whose baseline the tick is compared with."""
    demand: Floats
    """(M,) CPU share that the node's requests cost in calm; of a server without a monitor its load."""
    peers_demand: Floats
    """(M,) median of the peers' demand."""
    tail_alone: Bools
    """(M,) whether a single client can be why users wait (`features.single_client`); never of a cgroup."""

    @cached_property
    def causes(self) -> tuple[Ints, Floats]:
        """(M, groups) the most remarkable signal of each group of `CAUSES`, and how remarkable it is, 1 at its scale.

        In each row the most remarkable group comes first.
        """
        remarkable = np.minimum(np.log(self.excess) / _LOG_SCALE, MAX_FEATURE)
        rows = np.arange(len(remarkable))[:, None]
        signals = np.array([columns[remarkable[:, columns].argmax(axis=1)] for columns in _OF_CAUSE]).T
        order = np.argsort(remarkable[rows, signals], axis=1)[:, ::-1]
        signals = signals[rows, order]
        return signals, remarkable[rows, signals]

    @cached_property
    def matrix(self) -> Floats:
        """(M, len(FEATURES)) the tree's input, without gaps: higher is worse."""
        cause, second = self.causes[1][:, 0], self.causes[1][:, 1]
        # Where nobody sees the requests it is not known whether users wait, so the cause is believed.
        unseen = np.isnan(self.rps) & np.isnan(self.values[:, RESPONSES]).all(axis=1)
        unknown = unseen & (self.load >= FEW_REQUESTS)
        # A single client with slow requests begins no episode, and keeps none going. It is no cause in a machine.
        felt = np.where(self.tail_alone & self.unnamed, 0.0, self.felt(self.excess))
        felt = np.where(in_own_queue(self.values), np.minimum(cause, felt), felt)
        return np.column_stack([cause, second, np.where(unknown, cause, felt)])

    @property
    def unnamed(self) -> Bools:
        """(M,) whether no cause shows why users wait, if they do."""
        return np.asarray(self.causes[1][:, 0] < NAMED)

    def felt(self, excess: Floats) -> Floats:
        """(M,) how remarkable the response time is, 1 at its scale, by `excess` or `own_excess`."""
        columns = self.columns_of(FELT)
        rows = np.arange(len(columns))
        return np.minimum(np.log(excess[rows, columns]) / _LOG_SCALE[columns], MAX_FEATURE)

    @property
    def slower(self) -> Floats:
        """(M,) the response time over the node's own calm, whatever explains it."""
        columns = self.columns_of(FELT)
        return self.own[np.arange(len(columns)), columns]

    @property
    def users_wait(self) -> Bools:
        """(M,) whether users wait longer than in the node's own calm, whatever explains it."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.slower >= SCALES[self.columns_of(FELT)])

    def columns_of(self, feature: str) -> Ints:
        """(M,) column of the signal that the feature has in each row."""
        if feature == FELT:
            return np.asarray(RESPONSES[(~np.isnan(self.values[:, RESPONSES])).argmax(axis=1)])
        return self.causes[0][:, 0 if feature == CAUSE else 1]


class Features(SlotArrays):
    """Keeps every node's last values, since a node is compared with peers whose Samples come at other times."""

    _recent: Floats
    """(slots, PEER_TICKS, columns) ring of the last values."""
    _levels: Floats
    """(slots, columns) highest values in `_recent`."""
    _at: Ints
    """(slots,) next place in the ring."""

    def __init__(self) -> None:
        self.baselines = Baselines()
        self._clients = SingleClients()
        columns = 2 * len(SIGNALS) + 1
        super().__init__(
            *(self.baselines, self._clients),
            _recent=np.full((PEER_TICKS, columns), np.nan),
            _levels=np.full(columns, np.nan),
            _at=0,
        )

    def compute(self, rows: SampleRows, fresh: Bools, in_episode: Bools) -> Frame:
        """The features of these rows. A node's peers are the other fresh nodes in no episode, or where none is such a
        node all other fresh nodes.

        `fresh`, `in_episode`: (slots,).
        """
        comparable = fresh & ~in_episode
        bins = bins_of(rows.peak)
        reference, borrowed = self._reference(rows.slots, bins, rows.values, comparable)
        demand = np.where(rows.outside, rows.load, rows.rps * reference.median[:, COST] / 1e3 / rows.cores)
        load, machines = rows.peak, np.flatnonzero(~rows.outside & ~in_cgroup(rows.values))
        if len(machines):
            load = load.copy()
            load[machines] = requests_load(load[machines], demand[machines])
            bins[machines] = bins_of(load[machines])
            load[machines] += rows.others[machines]
            parts, borrowed[machines] = self._reference(
                rows.slots[machines], bins[machines], rows.values[machines], comparable
            )
            for values, part in zip(reference, parts, strict=True):
                values[machines] = part
        median, spread, high = reference
        base = np.maximum(median, FLOORS)
        own = rows.values / base
        usual = rows.values / np.maximum(high, base)
        spreads = (rows.values - median) / np.maximum(spread, np.maximum(MIN_SPREAD * base, MIN_SPREAD * FLOORS))

        self._recent[rows.slots, self._at[rows.slots]] = np.concatenate([own, rows.values, demand[:, None]], axis=1)
        self._at[rows.slots] = (self._at[rows.slots] + 1) % PEER_TICKS

        self._levels[rows.slots] = np.fmax.reduce(self._recent[rows.slots], axis=1)

        # Raw values are compared only where a row has no baseline of its own.
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
        own_excess, excess = _excess(rows, load, own, usual, spreads, peers)
        return Frame(
            **vars(rows),
            baseline=median,
            own=own,
            usual=usual,
            spreads=spreads,
            peers=peers,
            own_excess=own_excess,
            excess=excess,
            borrowed=borrowed,
            bins=bins,
            demand=demand,
            peers_demand=peers_demand,
            tail_alone=self._tail_alone(rows, own, in_episode),
        )

    def _tail_alone(self, rows: SampleRows, own: Floats, in_episode: Bools) -> Bools:
        """`Frame.tail_alone`."""
        judged = np.flatnonzero(~in_own_queue(rows.values))
        tail_alone: Bools = np.zeros(len(rows.slots), dtype=bool)
        if len(judged):
            slots, values, own = rows.slots[judged], rows.values[judged], own[judged]
            # An event brings a Sample each 50 ms. Of one or two answers the median is no other than the tail.
            few = (rows.answers[judged] < FEW) & ~rows.outside[judged]
            with np.errstate(invalid="ignore", divide="ignore"):
                tail_alone[judged] = self._clients.update(
                    slots,
                    values[:, _PERIOD] / 1000.0,
                    answers=rows.answers[judged],
                    mean_ms=values[:, _MEAN],
                    p95_ms=values[:, _P95],
                    own_mean=own[:, _MEAN],
                    own_p95=own[:, _P95],
                    own_median=np.where(few, 1.0, own[:, _MEDIAN]),
                    in_flight=values[:, _IN_FLIGHT],
                    in_episode=in_episode[slots],
                )
            tail_alone &= rows.unanswered_s <= 0.0
        return tail_alone

    def _reference(self, slots: Ints, bins: Ints, values: Floats, comparable: Bools) -> tuple[Reference, Bools]:
        """The calm baseline of these slots at these loads, and `Frame.borrowed`.

        The peers' baseline stands in for each of the `values` (M, signals) that has none.
        """
        own = self.baselines.reference(slots, bins)
        unknown = np.isnan(own.median) & ~np.isnan(values)
        borrowed: Bools = np.asarray(np.isnan(own.median).all(axis=1))
        if unknown.any():
            lent = self._lent(bins, comparable)
            own = Reference(
                *(np.where(unknown, lent_values, own_values) for own_values, lent_values in zip(own, lent, strict=True))
            )
        return own, borrowed

    def _lent(self, bins: Ints, comparable: Bools) -> Reference:
        """Median of the peers' baselines at these loads (M,); NaN where no peer has one."""
        lenders = np.flatnonzero(comparable)
        lenders = lenders[:: 1 + len(lenders) // LENDERS]
        lent = Reference(*(np.full((len(bins), len(SIGNALS)), np.nan) for _ in Reference._fields))
        if not len(lenders):
            return lent
        for number in np.unique(bins):
            references = self.baselines.reference(lenders, np.full(len(lenders), number))
            for lent_values, values in zip(lent, references, strict=True):
                lent_values[bins == number] = _lower_median(values)
        return lent


def _excess(
    rows: SampleRows, load: Floats, own: Floats, usual: Floats, spreads: Floats, peers: Floats
) -> tuple[Floats, Floats]:
    """`Frame.own_excess` and `Frame.excess`. `load`: (M,) the load that the requests account for."""
    with np.errstate(invalid="ignore"):
        unusual = (spreads >= MIN_SPREADS) & ((usual > 1.0) | ~_CORE)
        no_own = np.isnan(own)
        # A server that used nearly all of its CPU a moment ago, or replaces its processes, waits for itself.
        # From the balancer it is not known how full a server is: the response times of a lower load are stretched.
        waits_for_itself = ((load >= SELF_INFLICTED_LOAD) & ~rows.outside) | rows.replaced
        self_inflicted = waits_for_itself[:, None] & QUEUES
        # A machine's stolen time is booked on the program that was running. So a full machine may still wait for a
        # neighbour, and its probe and its requests' cost count.
        self_inflicted[:, [_RATIO, COST]] |= (waits_for_itself & in_cgroup(rows.values))[:, None]
        # After a restart nothing counts: not how long requests take, nor what starting costs.
        counts_here = np.repeat(~rows.returned[:, None], own.shape[1], axis=1)
        counts_here[:, _CGROUPS_ONLY] &= in_cgroup(rows.values)[:, None]
        for instead, known in _INSTEAD:
            counts_here[:, instead] &= np.isnan(rows.values[:, known])
        beside_peers = np.where(no_own, peers / UNKNOWN_OWN, np.fmin(own, peers))
        counts = (unusual | no_own) & ~self_inflicted & counts_here
        return (
            np.where(counts & (own > 1.0), np.minimum(own, MOST_EXCESS), 1.0),
            np.where(counts & (beside_peers > 1.0), np.minimum(beside_peers, MOST_EXCESS), 1.0),
        )


def requests_load(load: Floats, demand: Floats) -> Floats:
    """(M,) the load of virtual machines, as far as their requests account for it.

    The time that a hypervisor takes away is booked on the program that was running. So with a neighbour's first time
    slice the web server seems to be busy, up to all of its CPU time: by that `load` all waits would be its own, and the
    neighbour would excuse itself. `demand`: what the requests cost in calm; where it is not known, `load` counts.
    """
    return np.where(np.isnan(demand), load, demand)


def _lower_median(values: Floats) -> Floats:
    """Lower median over axis 0, without NaN."""
    count = (~np.isnan(values)).sum(axis=0)
    ordered = np.sort(values, axis=0)
    return np.asarray(ordered[np.maximum((count - 1) // 2, 0), np.arange(values.shape[1])])


def _median_of_others(values: Floats, fit: Bools, slots: Ints) -> Floats:
    """(M, columns) the lower median, in each column, of the `fit` rows other than the slot's own; NaN where none is.

    With two peers a node stands out when it is worse than the better of them, so two neighbours at a time do not hide
    each other. Two order statistics of all rows are enough for all slots: without a value that is not above the middle
    the median moves up by one place.
    """
    medians = np.full((len(slots), values.shape[1]), np.nan)
    pool = np.where(fit[:, None], values, np.nan).T
    own_values = pool[:, slots]
    counts = (~np.isnan(pool)).sum(axis=1)
    for count in set(counts[counts > 0].tolist()):
        columns = counts == count
        whole, low = (count - 1) // 2, max((count - 2) // 2, 0)
        high = min(low + 1, count - 1)
        ordered = np.partition(pool[columns], sorted({whole, low, high}), axis=1)
        own = own_values[columns]
        without = np.where(own <= ordered[:, low, None], ordered[:, high, None], ordered[:, low, None])
        if count == 1:
            without = np.full_like(own, np.nan)
        medians[:, columns] = np.where(np.isnan(own), ordered[:, whole, None], without).T
    return medians
