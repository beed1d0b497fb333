"""From features to each node's state: the tree judges each Sample, and its evidence adds up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from detector.classify.episodes import CALM, INTERFERENCE, STATES, Signs, StateMachines, Steps
from detector.classify.evidence import QUIET, weight
from detector.classify.pool_correlation import PoolCorrelation, PoolCorrelator
from detector.classify.tree import Model, kinds_of
from detector.features.columns import Bools, Floats, Ints, Table, filled
from detector.features.features import FELT, RESPONSE, SCALE, Frame, describe
from detector.features.signals import INDEX, SIGNALS
from detector.slot_arrays import SlotArrays

WITHOUT_REQUESTS = ("run queue", "core", "disk", "memory", "network")
OWN_WORK = ("run_delay_per_cpu", "cpu_pressure", "cpi", "cache_miss_rate")
"""Groups of signals that do not come from requests, and signals in them that come from the web server's own work."""
SHOWN_SHARE = 0.05
"""The least share of the CPU at which other programs are mentioned."""
LOUD = {
    key: limit for key, limit in SCALE.items() if SIGNALS[INDEX[key]].group in WITHOUT_REQUESTS and key not in OWN_WORK
}
"""Signal -> limit, as a multiple of its calm baseline. These signals mean something on a server without requests: the
monitor's probe, steal, and the use of disk, memory and network by others. Signals of the web server's idle processes
are noise."""
_LOUD_COLUMNS = [INDEX[key] for key in LOUD]
_LOUD_LIMITS: Floats = np.array(list(LOUD.values()))
_RESPONSES = [INDEX[key] for key in RESPONSE]
_SIGNAL_WORDS = tuple(SIGNALS[column].words for column in _LOUD_COLUMNS)
FELT_SLOW = 1.0
"""An answer is slow from this excess on, in units of a response time's scale."""
MOMENTS_PER_S = 20.0
"""Rate of random moments of a monitor that does not count them."""
STANDS_OUT = 1.0
"""A Sample with a feature of at least this is not fit for a node's first baseline."""


@dataclass(frozen=True)
class Outcome:
    """The rules' result for a tick of M nodes, (M,) each."""

    state: Ints
    """Index in `STATES`."""
    since_unix_s: Floats
    began: Bools
    """Whether the state changed on this tick."""
    probability: Floats
    """Probability of a neighbour."""
    calm_shows_within_s: Floats
    """As `Steps.calm_shows_within_s`."""
    waits: Bools
    """As `Steps.waits`: the episode only waits for its end."""
    looks: Ints
    """The looks of the tick by itself, index in `STATES`."""
    kind: Ints
    """Kind of the node, index in `KINDS`."""
    by_tree: Bools
    """Whether the tree's answer counts, since the tick looks neither overloaded nor as slow as the whole pool."""
    stands_out: Bools
    """Whether a feature deviates, so that the tick is not fit for a node's first baseline."""
    has_requests: Bools
    paths: list[list[str]]
    """The reasons in words, for each node."""


@dataclass(frozen=True)
class Judged:
    """The trees' result for M rows."""

    kind: Ints
    """(M,) index in `KINDS` of the tree that judged the row."""
    leaf: Ints
    says: Floats
    """(M,) log-likelihood ratio of a neighbour."""
    quiet: Floats
    """(M,) the lowest log-likelihood ratio of that tree."""
    threshold: Floats
    """(M,) the sum at which an episode begins."""


class Rules(SlotArrays):
    """The rules, with every slot's state."""

    def __init__(self, calm_dwell_s: float, model: Model, false_episodes_per_node_day: float) -> None:
        self.model = model
        self._correlator = PoolCorrelator()
        self._machines = StateMachines(calm_dwell_s, _SIGNAL_WORDS)
        self._thresholds = [tree.calm.threshold(false_episodes_per_node_day) for tree in model.trees]
        self._last_shown: dict[int, list[str]] = {}
        """Slot of a node in an episode -> the reasons of the last tick that showed it."""
        super().__init__(self._correlator, self._machines)

    def add_node(self, slot: int, now_s: float, label_unix_s: float, *, is_lowered: bool = False) -> None:
        """Puts a new node into a slot: calm, without history. Where its server `is_lowered` the node is in an episode,
        the reason why it was lowered."""
        self._last_shown.pop(slot, None)
        self._machines.add_node(slot, now_s, label_unix_s)
        if is_lowered:
            self._machines.take_up(slot, now_s, label_unix_s)

    def since_s(self, slots: Ints) -> Floats:
        """(M,) times when these slots' states began, in monotonic seconds."""
        return self._machines.since_s[slots]

    def lost(self, slot: int, now_s: float, label_unix_s: float) -> tuple[int, float]:
        """Notes that the node sends no Samples any more; returns its state and when that began (Unix seconds)."""
        self._machines.mark_unknown(slot, now_s, label_unix_s)
        return int(self._machines.state[slot]), float(self._machines.since_unix_s[slot])

    def step(self, now_s: float, table: Table, frame: Frame, fresh: Bools, in_episode: Bools) -> Outcome:
        """Steps the frame's nodes by one tick, all in one pass.

        `fresh`, `in_episode`: (slots,) whether a node is heard of, and whether it is in an episode.
        """
        matrix = frame.matrix
        judged = self._judge(frame, matrix)
        correlation = self._correlator.classify(frame, judged.says > 0.0, fresh, in_episode)
        classification = correlation.classification
        # Looks of overload, or of a pool that is slow together, are believed after two Samples.
        by_tree: Bools = (classification == INTERFERENCE) | (classification == CALM)
        steps = self._machines.step(
            frame.slots,
            now_s,
            table.time_unix_s,
            classification,
            says=np.where(by_tree, judged.says, judged.threshold / 2.0),
            quiet=judged.quiet,
            threshold=judged.threshold,
            weight=weight(table.columns["period_s"]),
            low_traffic=~correlation.has_requests,
            signs=_signs(frame, table),
        )
        return Outcome(
            state=steps.state,
            since_unix_s=steps.since_unix_s,
            began=steps.began,
            waits=steps.waits,
            probability=steps.probability,
            calm_shows_within_s=steps.calm_shows_within_s,
            looks=classification,
            kind=judged.kind,
            by_tree=by_tree,
            stands_out=np.asarray((matrix >= STANDS_OUT).any(axis=1)),
            has_requests=correlation.has_requests,
            paths=self._paths(frame, judged, correlation, steps),
        )

    def _judge(self, frame: Frame, matrix: Floats) -> Judged:
        kind = kinds_of(frame)
        leaf = np.zeros(len(kind), dtype=np.int64)
        says, quiet, threshold = (np.zeros(len(kind)) for _ in range(3))
        for number, tree in enumerate(self.model.trees):
            rows = np.flatnonzero(kind == number)
            leaf[rows] = tree.walk(matrix[rows])
            ratios = tree.evidence.ratios
            says[rows], quiet[rows] = ratios[tree.level[leaf[rows]]], ratios[QUIET]
            threshold[rows] = self._thresholds[number]
        return Judged(kind, leaf, says, quiet, threshold)

    def _paths(self, frame: Frame, judged: Judged, correlation: PoolCorrelation, steps: Steps) -> list[list[str]]:
        """Each row's reasons in words. Nearly all rows are calm and described at once, the others one by one."""
        classification = correlation.classification
        paths: list[list[str]] = [[] for _ in classification]
        for number, tree in enumerate(self.model.trees):
            rows = np.flatnonzero(judged.kind == number)
            for row, path in zip(rows.tolist(), tree.explain(frame, rows, judged.leaf), strict=True):
                paths[row] = path
        shows = steps.shows
        busy = (classification != CALM) | (steps.state != CALM) | ~steps.uneventful
        for row in busy.nonzero()[0].tolist():
            slot, state, looks = int(frame.slots[row]), STATES[steps.state[row]], STATES[classification[row]]
            path = paths[row]
            if looks == "overload":
                path = [_own_load(frame, row)]
            elif looks == "all_slow":
                path = [describe(FELT, frame, row), correlation.why(row)]
            reason = steps.describe(row)
            if looks == state and shows[row]:
                self._last_shown[slot] = path
                path = [*path, reason]
            elif state != "calm":  # the reason why it goes on comes first, since the evidence is old
                path = [reason, *(f"before: {line}" for line in self._last_shown.get(slot, [])[:1])]
            elif looks != "calm":
                path = [*path, f"looks like {looks}, but there is not enough evidence yet"]
            elif reason:
                path = [*path, reason]
            paths[row] = path
        return paths


def _signs(frame: Frame, table: Table) -> Signs:
    """The signs of a neighbour that a tick shows without requests."""
    share = frame.values[:, INDEX["kept_waiting"]]
    counted = table.columns["gaps.moments"]
    moments = np.where(np.isnan(counted), MOMENTS_PER_S * table.columns["period_s"], counted)
    moments = np.where(np.isnan(share), 0.0, moments)
    return Signs(
        rps=filled(table.columns["traffic.rps"], 0.0),
        moments=moments,
        waited=filled(share, 0.0) * moments,
        loud=frame.excess[:, _LOUD_COLUMNS] >= _LOUD_LIMITS,
        known=~np.isnan(frame.values[:, _LOUD_COLUMNS]),
        answered=np.asarray(~np.isnan(frame.values[:, _RESPONSES]).all(axis=1)),
        slow=frame.felt(frame.own_excess) >= FELT_SLOW,
    )


def _own_load(frame: Frame, row: int) -> str:
    """Why a row looks `overload`, in words."""
    others = float(frame.others[row])
    beside = f", its other programs take {others:.0%}" if others >= SHOWN_SHARE else ""
    return f"its own load explains it: its requests cost {_share(frame.demand[row])} of its CPU when calm{beside}"


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "an unknown share"
