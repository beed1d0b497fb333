"""Counts how often each leaf of a tree shows in calm and beside a neighbour, and pools leaves into levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.classify.evidence import DAY_S, ENOUGH_PEAKS, QUIET, SMOOTHING, CalmSums, Evidence, counts, weight
from detector.classify.judge import Tick
from detector.classify.tree import Tree
from detector.features.columns import Bools, Floats, Ints
from detector.recordings.recording import Recording
from detector.train.scores import FELT, median_ms, reaches


@dataclass(frozen=True)
class Shown:
    """What one node's ticks of a recording showed, (ticks,) each."""

    kind: int
    """Of the node, in `KINDS`."""
    matrix: Floats
    """(ticks, features)."""
    by_tree: Bools
    """What a tree says counts."""
    covered_s: Floats
    undisturbed: Bools
    """No label is there, nor ended a moment ago."""
    beside: Bools
    """Wholly beside a neighbour that users felt."""
    without: Bools
    """No neighbour is there, nor ended a moment ago; anything else may be."""

    def levels(self, tree: Tree) -> Ints:
        """(ticks,) what each shows by a tree; nothing where the tree's word does not count."""
        return np.where(self.by_tree, tree.level[tree.walk(self.matrix)], QUIET).astype(np.int64)


def shown(recording: Recording, ticks: Iterable[Tick]) -> list[Shown]:
    """What each node's ticks of a recording's replay showed."""
    by_node: dict[tuple[int, str], list[Tick]] = defaultdict(list)
    for tick in ticks:
        by_node[tick.kind, tick.sample.node].append(tick)
    found = []
    for (kind, node), its in by_node.items():
        labels = [one for one in recording.labels if one.node in (node, "*")]
        noises = [one for one in labels if one.state == "interference"]
        undisturbed = np.array([not any(reaches(label, tick.sample.time_unix_s) for label in labels) for tick in its])
        usual_ms = _p95_ms(tick for tick, calm in zip(its, undisturbed, strict=True) if calm)
        beside = np.zeros(len(its), dtype=bool)
        for noise in noises:
            during = [noise.start_unix_s <= tick.sample.time_unix_s < noise.end_unix_s for tick in its]
            loud_ms = _p95_ms(tick for tick, is_in in zip(its, during, strict=True) if is_in)
            if usual_ms and (loud_ms or 0.0) >= FELT * usual_ms:
                begins = np.array([tick.sample.time_unix_s - tick.sample.period_s for tick in its])
                beside |= np.array(during) & (begins >= noise.start_unix_s)
        found.append(
            Shown(
                kind,
                np.array([tick.features for tick in its]),
                np.array([tick.by_tree for tick in its]),
                np.array([tick.sample.period_s for tick in its]),
                undisturbed,
                beside,
                np.array([not any(reaches(noise, tick.sample.time_unix_s) for noise in noises) for tick in its]),
            )
        )
    return found


def evidence(seen: Iterable[Shown], tree: Tree, kind: int) -> Evidence:
    """Counts of the tree's levels on nodes of a kind, in calm and beside a neighbour.

    Each Sample is one step of the sum, however long: the rest of the time that it covers adds nothing, and in calm
    counts as quiet. Calm is where no label is: deploys, reloads and the like are rare where they are not made on
    purpose, and would count as often as they were made.
    """
    levels = len(tree.evidence.calm)
    calm, neighbour = np.zeros(levels), np.zeros(levels)
    for one in seen:
        if one.kind == kind:
            level, covered = one.levels(tree), counts(one.covered_s)
            steps = np.minimum(covered, 1.0)
            calm += np.bincount(level, steps * one.undisturbed, levels)
            calm[QUIET] += ((covered - steps) * one.undisturbed).sum()
            neighbour += np.bincount(level, steps * one.beside, levels)
    return Evidence(tuple(calm.round(2).tolist()), tuple(neighbour.round(2).tolist()))


def with_levels(arrays: Mapping[str, Any], counted: Evidence) -> dict[str, Any]:
    """A tree's arrays (`detector.classify.tree.plain`) with the counts of its levels, which are pooled until one that
    comes later, and holds more of a neighbour, always says more."""
    calm, neighbour = np.array(counted.calm), np.array(counted.neighbour)
    pools: list[list[int]] = []
    for number in range(len(neighbour)):
        pools.append([number])
        while len(pools) > 1 and _odds(calm, neighbour, pools[-2]) >= _odds(calm, neighbour, pools[-1]):
            last = pools.pop()
            pools[-1] += last
    into: Ints = np.zeros(len(neighbour), dtype=np.int64)
    for number, pool in enumerate(pools):
        into[pool] = number
    level = np.array(arrays["level"])
    pooled = Evidence(*(tuple(np.bincount(into, of).round(2).tolist()) for of in (calm, neighbour)))
    return {**arrays, "level": np.where(level >= 0, into[level], -1).tolist(), "evidence": pooled.as_dict()}


def calm_sums(seen: Iterable[Shown], tree: Tree, kind: int) -> CalmSums:
    """How high the sum of a kind of node rose where no neighbour was, disturbances included."""
    peaks: list[float] = []
    days = 0.0
    for one in seen:
        if one.kind == kind:
            says = tree.evidence.ratios[one.levels(tree)] * weight(one.covered_s)
            highest = total = 0.0
            for gain in [*np.where(one.without, says, -np.inf).tolist(), -np.inf]:
                total = max(0.0, total + gain)
                if total == 0.0 and highest > 0.0:
                    peaks.append(highest)
                    highest = 0.0
                highest = max(highest, total)
            days += float((one.covered_s * one.without).sum()) / DAY_S
    highest_first = sorted(peaks, reverse=True)[:ENOUGH_PEAKS]
    return CalmSums(round(days, 4), tuple(round(peak, 2) for peak in highest_first))


def _odds(calm: Floats, neighbour: Floats, pool: Sequence[int]) -> float:
    """Of a neighbour, by the counts of some leaves together: in the same order as what the leaves say."""
    return float((neighbour[pool].sum() + SMOOTHING) / (calm[pool].sum() + SMOOTHING))


def _p95_ms(ticks: Iterable[Tick]) -> float | None:
    """Median of the ticks' p95 response times."""
    sections = (tick.sample.traffic for tick in ticks)
    return median_ms(one.rt_p95_ms for one in sections if one is not None)
