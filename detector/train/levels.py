"""Counts how often each leaf of a tree shows in calm and beside a neighbour, and pools leaves into levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slackwater.detector.classify.evidence import (
    DAY_S,
    ENOUGH_PEAKS,
    QUIET,
    SMOOTHING,
    CalmSums,
    Evidence,
    counts,
    weight,
)
from slackwater.detector.classify.tree import Tree
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.judge import Tick
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.train.scores import FELT, median_ms, reaches


@dataclass(frozen=True)
class Shown:
    """One node's ticks of a recording, (ticks,) each."""

    kind: int
    """Kind of the node, index in `KINDS`."""
    matrix: Floats
    """(ticks, features)."""
    by_tree: Bools
    """Whether a tree's answer counts."""
    covered_s: Floats
    undisturbed: Bools
    """Whether no label is there, or ended a moment ago."""
    beside: Bools
    """Whether the tick is wholly beside a neighbour that users felt."""
    without: Bools
    """Whether no neighbour is there, or ended a moment ago. There may be other disturbances."""

    def levels(self, tree: Tree) -> Ints:
        """(ticks,) each tick's level by a tree; `QUIET` where the tree's answer does not count."""
        return np.where(self.by_tree, tree.level[tree.walk(self.matrix)], QUIET).astype(np.int64)


def shown(recording: Recording, ticks: Iterable[Tick]) -> list[Shown]:
    """The ticks of a recording's replay, by node."""
    by_node: dict[tuple[int, str], list[Tick]] = defaultdict(list)
    for tick in ticks:
        by_node[tick.kind, tick.sample.node].append(tick)
    nodes = []
    for (kind, node), node_ticks in by_node.items():
        labels = [label for label in recording.labels if label.node in (node, "*")]
        noises = [label for label in labels if label.state == "interference"]
        undisturbed = np.array(
            [not any(reaches(label, tick.sample.time_unix_s) for label in labels) for tick in node_ticks]
        )
        usual_ms = _p95_ms(tick for tick, calm in zip(node_ticks, undisturbed, strict=True) if calm)
        beside = np.zeros(len(node_ticks), dtype=bool)
        for noise in noises:
            during = [noise.start_unix_s <= tick.sample.time_unix_s < noise.end_unix_s for tick in node_ticks]
            loud_ms = _p95_ms(tick for tick, is_in in zip(node_ticks, during, strict=True) if is_in)
            if usual_ms and (loud_ms or 0.0) >= FELT * usual_ms:
                begins = np.array([tick.sample.time_unix_s - tick.sample.period_s for tick in node_ticks])
                beside |= np.array(during) & (begins >= noise.start_unix_s)
        nodes.append(
            Shown(
                kind,
                np.array([tick.features for tick in node_ticks]),
                np.array([tick.by_tree for tick in node_ticks]),
                np.array([tick.sample.period_s for tick in node_ticks]),
                undisturbed,
                beside,
                np.array([not any(reaches(noise, tick.sample.time_unix_s) for noise in noises) for tick in node_ticks]),
            )
        )
    return nodes


def evidence(seen: Iterable[Shown], tree: Tree, kind: int) -> Evidence:
    """Counts of the tree's levels on nodes of a kind, in calm and beside a neighbour.

    Each Sample is one step of the sum, however long: the rest of the time that it covers adds nothing, and in calm
    counts as quiet. Calm is the time without any label. Deploys, reloads and the like are left out: they are rare in
    operation, but would count as often as the recordings have them.
    """
    levels = len(tree.evidence.calm)
    calm, neighbour = np.zeros(levels), np.zeros(levels)
    for node in seen:
        if node.kind == kind:
            level, covered = node.levels(tree), counts(node.covered_s)
            steps = np.minimum(covered, 1.0)
            calm += np.bincount(level, steps * node.undisturbed, levels)
            calm[QUIET] += ((covered - steps) * node.undisturbed).sum()
            neighbour += np.bincount(level, steps * node.beside, levels)
    return Evidence(tuple(calm.round(2).tolist()), tuple(neighbour.round(2).tolist()))


def with_levels(arrays: Mapping[str, Any], counted: Evidence) -> dict[str, Any]:
    """A tree's arrays (`slackwater.detector.classify.tree.plain`) with the counts of its levels.

    Levels are pooled until a later one, which holds more of a neighbour, always says more.
    """
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
    pooled = Evidence(*(tuple(np.bincount(into, counts).round(2).tolist()) for counts in (calm, neighbour)))
    return {**arrays, "level": np.where(level >= 0, into[level], -1).tolist(), "evidence": pooled.as_dict()}


def calm_sums(seen: Iterable[Shown], tree: Tree, kind: int) -> CalmSums:
    """How high the sum of a kind of node rose without a neighbour, disturbances included."""
    peaks: list[float] = []
    days = 0.0
    for node in seen:
        if node.kind == kind:
            says = tree.evidence.ratios[node.levels(tree)] * weight(node.covered_s)
            highest = total = 0.0
            for gain in [*np.where(node.without, says, -np.inf).tolist(), -np.inf]:
                total = max(0.0, total + gain)
                if total == 0.0 and highest > 0.0:
                    peaks.append(highest)
                    highest = 0.0
                highest = max(highest, total)
            days += float((node.covered_s * node.without).sum()) / DAY_S
    highest_first = sorted(peaks, reverse=True)[:ENOUGH_PEAKS]
    return CalmSums(round(days, 4), tuple(round(peak, 2) for peak in highest_first))


def _odds(calm: Floats, neighbour: Floats, pool: Sequence[int]) -> float:
    """Odds of a neighbour by the counts of some leaves together. They are in the order of the leaves' ratios."""
    return float((neighbour[pool].sum() + SMOOTHING) / (calm[pool].sum() + SMOOTHING))


def _p95_ms(ticks: Iterable[Tick]) -> float | None:
    """Median of the ticks' p95 response times."""
    sections = (tick.sample.traffic for tick in ticks)
    return median_ms(traffic.rt_p95_ms for traffic in sections if traffic is not None)
