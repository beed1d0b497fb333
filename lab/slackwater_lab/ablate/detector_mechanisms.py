"""The mechanisms of the detector, and how each is switched off: one line in a table each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from slackwater.detector.classify import rules
from slackwater.detector.classify.episodes import Signs
from slackwater.detector.classify.evidence import CalmSums
from slackwater.detector.classify.proof import CalmProof, Proof, Trials
from slackwater.detector.features.baseline import Reference
from slackwater.detector.features.columns import Bools, Floats, Ints, Table
from slackwater.detector.features.features import CAUSES, Features, Frame
from slackwater.detector.features.history import SampleRows, SampleWindows
from slackwater.detector.features.routes import RouteTimes
from slackwater.detector.features.signals import INDEX, SIGNALS
from slackwater_lab.ablate.mechanisms import Mechanism
from slackwater_lab.ablate.seams import Seam, as_it_came

_EVIDENCE = [signal for signal in SIGNALS if signal.scale < math.inf]
_signs, _add, _take = rules._signs, SampleWindows.add, CalmProof.take
CLASSIFY, FEATURES = "slackwater.detector.classify.", "slackwater.detector.features."
ANYTHING = 1e-6
"""Any Sample with evidence reaches this sum."""
WHATEVER = 1e9


def _one_load(load: Floats) -> Ints:
    return np.zeros(len(load), dtype=np.int64)


def _no_ratio(self: RouteTimes, slots: Ints, rps: Floats, rt_ms: Floats) -> Floats:
    del self, rps, rt_ms
    return np.full(len(slots), np.nan)


def _nothing_lent(self: Features, bins: Ints, comparable: Bools) -> Reference:
    del self, comparable
    return Reference(*(np.full((len(bins), len(SIGNALS)), np.nan) for _ in Reference._fields))


def _no_others(values: Floats, fit: Bools, slots: Ints) -> Floats:
    del fit
    return np.full((len(slots), values.shape[1]), np.nan)


def _no_moments(frame: Frame, table: Table, excused: Bools) -> Signs:
    signs = _signs(frame, table, excused)
    return replace(signs, moments=np.zeros_like(signs.moments), waited=np.zeros_like(signs.waited))


def _at_once(self: CalmSums, false_episodes_per_day: float) -> float:
    del self, false_episodes_per_day
    return ANYTHING


def _without_dwell(
    self: CalmProof,
    slots: Ints,
    now_s: float,
    trials: Trials,
    covered_s: Floats,
    *,
    peers: Bools,
    idle: Bools,
    needed: Floats,
    dwell_s: Floats,
) -> Proof:
    never = np.zeros_like(dwell_s)
    return _take(self, slots, now_s, trials, covered_s, peers=peers, idle=idle, needed=needed, dwell_s=never)


def _counts_fully(covered_s: Floats) -> Floats:
    return np.ones(len(covered_s))


def _without(signals: Sequence[str]) -> Callable[[SampleWindows, Ints, Table, Bools], SampleRows]:
    columns = [INDEX[key] for key in signals]

    def add(self: SampleWindows, slots: Ints, table: Table, first: Bools) -> SampleRows:
        rows = _add(self, slots, table, first)
        rows.values[:, columns] = np.nan
        return rows

    return add


def _signals(name: str, words: str, signals: Sequence[str]) -> Mechanism:
    return Mechanism(
        name,
        f"{words} is never known",
        (Seam("slackwater.detector.features.history:SampleWindows.add", _without(signals)),),
    )


def _members(group: str) -> list[str]:
    return [signal.key for signal in _EVIDENCE if signal.group == group]


_SHARE = Seam(f"{CLASSIFY}pool_correlation:ALL_SLOW_SHARE", 2.0)
_SUM = Seam(f"{CLASSIFY}episodes:PROOF", 0.0)
_DWELL = Seam(f"{CLASSIFY}proof:CalmProof.take", _without_dwell)
_WEAKEST = Seam(f"{CLASSIFY}proof:WEAKEST", WHATEVER)

DETECTOR: dict[str, Mechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        Mechanism(
            "pool-correlation",
            "no cause is shared by a pool's nodes",
            (_SHARE,),
            guards="nothing moves where all are slow alike",
            goes=(f"{CLASSIFY}pool_correlation:PoolCorrelator._alike",),
        ),
        Mechanism(
            "overload",
            "a node's own load never explains that it is slow",
            (Seam(f"{CLASSIFY}pool_correlation:FULL", WHATEVER),),
        ),
        Mechanism(
            "routes",
            "response times are not compared route by route",
            (Seam(f"{FEATURES}routes:RouteTimes.ratio", _no_ratio),),
            goes=("slackwater.detector.features.routes",),
        ),
        Mechanism(
            "baseline-per-load",
            "one baseline for all loads",
            (Seam(f"{FEATURES}features:bins_of", _one_load),),
            goes=(f"{FEATURES}baseline:bins_of", f"{FEATURES}baseline:_stretch"),
        ),
        Mechanism(
            "borrowed-baselines",
            "a new node is not compared with its peers' baselines",
            (Seam(f"{FEATURES}features:Features._lent", _nothing_lent),),
            goes=(f"{FEATURES}features:Features._lent",),
        ),
        Mechanism(
            "peers",
            "a node is compared with its own calm alone",
            (Seam(f"{FEATURES}features:_median_of_others", _no_others),),
            goes=(f"{FEATURES}features:_median_of_others",),
        ),
        Mechanism(
            "own-load",
            "a full server's waits are not its own",
            (Seam(f"{FEATURES}features:SELF_INFLICTED_LOAD", WHATEVER),),
        ),
        Mechanism(
            "explained-load",
            "signals of machines are compared at the load that is measured",
            (as_it_came(f"{FEATURES}features:requests_load", "load"),),
            goes=(f"{FEATURES}features:requests_load",),
        ),
        Mechanism(
            "sum",
            "an episode begins with the first Sample that looks so",
            (Seam(f"{CLASSIFY}evidence:CalmSums.threshold", _at_once),),
            guards="at most so many false episodes",
        ),
        Mechanism(
            "covered-time",
            "a Sample says as much however little time it covers",
            (Seam(f"{CLASSIFY}episodes:weight", _counts_fully),),
        ),
        Mechanism(
            "random-moments",
            "random moments of a server without requests prove nothing",
            (Seam(f"{CLASSIFY}rules:_signs", _no_moments),),
        ),
        Mechanism("proof-sum", "calm needs no sum of evidence", (_SUM,)),
        Mechanism("proof-dwell", "calm needs no time above 0", (_DWELL,)),
        Mechanism("proof-weakest", "calm is proven however far the share of hits is from that of calm", (_WEAKEST,)),
        Mechanism(
            "proof-caution",
            "an episode that follows another at once needs no more evidence for its end",
            (Seam(f"{CLASSIFY}episodes:MOST_CAUTION", 1.0),),
        ),
        Mechanism(
            "proof-bare",
            "none of the three conditions that have a name of their own",
            (_DWELL, _WEAKEST, _SUM),
        ),
        *(
            _signals(f"signals-of-{name.replace(' ', '-')}", f"any signal of the group {name}", _members(name))
            for name in CAUSES
        ),
        *(_signals(f"signal-{signal.key}", signal.words, (signal.key,)) for signal in _EVIDENCE),
    )
}
