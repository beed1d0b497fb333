"""Levels are counted by the time that Samples cover, whatever the pace at which they were recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from slackwater.core.messages import Sample, Traffic
from slackwater.detector.classify.evidence import QUIET, Evidence
from slackwater.detector.classify.tree import CGROUP, CLASSES, MACHINE, Tree
from slackwater.detector.features.features import FEATURES
from slackwater.detector.judge import Tick
from slackwater.detector.recordings.recording import Label, Recording
from slackwater.detector.train.levels import calm_sums, evidence, shown, with_levels

Covered = tuple[float, int]
"""Seconds that a Sample covers, and the leaf that it falls into: 0 to 3, the higher the louder."""
LEAVES = 4
LEFT, RIGHT = [1, -1, 3, -1, 5, -1, -1], [2, -1, 4, -1, 6, -1, -1]


def arrays(counted: Evidence) -> dict[str, Any]:
    """A tree that asks for the first feature alone: leaf n is above n - 0.5."""
    return {
        "classes": list(CLASSES),
        "features": len(FEATURES),
        "left": LEFT,
        "right": RIGHT,
        "feature": [0 if left >= 0 else -2 for left in LEFT],
        "threshold": [0.5, 0.0, 1.5, 0.0, 2.5, 0.0, 0.0],
        "interference": [0.5] * len(LEFT),
        "level": [-1, 0, -1, 1, -1, 2, 3],
        "evidence": counted.as_dict(),
        "calm": {"days": 0.0, "peaks": []},
    }


TREE = Tree.of(arrays(Evidence.none(LEAVES)))


def recording(*labels: Label) -> Recording:
    return Recording([], list(labels), "", "", ["n1"])


def ticks(fell: Iterable[Covered], *, from_s: float = 100.0, p95_ms: float = 5.0, by_tree: bool = True) -> list[Tick]:
    made, at_s = [], from_s
    for covered_s, leaf in fell:
        at_s += covered_s
        sample = Sample(1, "n1", "web", at_s, "b", 0, covered_s, traffic=Traffic(rt_p95_ms=p95_ms))
        features = np.zeros(len(FEATURES))
        features[0] = leaf
        made.append(Tick(sample, features, True, CGROUP, by_tree))
    return made


def count(labelled: Recording, its: list[Tick], kind: int = CGROUP) -> Evidence:
    return evidence(shown(labelled, its), TREE, kind)


def test_a_second_at_any_pace_counts_the_same_in_calm() -> None:
    each = count(recording(), ticks([(0.2, 0)] * 10))
    assert each == count(recording(), ticks([(1.0, 0)] * 2))
    assert each.calm == (10.0, 0.0, 0.0, 0.0)
    often = count(recording(), ticks([*[(0.2, 0)] * 5, *[(0.05, 3)] * 4]))
    assert often.calm == (5.0, 0.0, 0.0, 1.0)


def test_a_long_sample_is_one_step_of_the_sum_and_a_clock_step_counts_for_little() -> None:
    assert count(recording(), ticks([(1.0, 3)])).calm == (4.0, 0.0, 0.0, 1.0)
    assert count(recording(), ticks([(86_400.0, 3)])).calm == (5.0, 0.0, 0.0, 1.0)


def test_what_the_tree_has_no_say_in_counts_as_quiet() -> None:
    assert count(recording(), ticks([(0.2, 3)], by_tree=False)).calm[QUIET] == 1.0


def test_each_kind_of_node_is_counted_by_itself() -> None:
    assert sum(count(recording(), ticks([(0.2, 3)]), MACHINE).calm) == 0.0


def test_beside_a_neighbour_samples_count_that_began_with_it() -> None:
    noise = Label("n1", "cpu", 1.0, 110.05, 112.0)
    calm = ticks([(0.2, 0)] * 50)
    begun = ticks([(0.1, 2)], from_s=110.0, p95_ms=50.0)
    whole = ticks([(0.2, 3), (0.05, 3), (1.0, 2)], from_s=110.1, p95_ms=50.0)
    counts = count(recording(noise), [*calm, *begun, *whole])
    assert counts.neighbour == pytest.approx((0.0, 0.0, 1.0, 1.25))
    assert sum(counts.calm) == pytest.approx(50.0)


def test_leaves_are_pooled_until_the_louder_one_says_more() -> None:
    counted = Evidence(calm=(1000.0, 10.0, 40.0, 1.0), neighbour=(10.0, 50.0, 50.0, 90.0))
    tree = Tree.of(with_levels(arrays(counted), counted))
    assert tree.level[[1, 3, 5, 6]].tolist() == [0, 1, 1, 2]
    assert tree.evidence == Evidence(calm=(1000.0, 50.0, 1.0), neighbour=(10.0, 100.0, 90.0))
    assert (np.diff(tree.evidence.ratios) > 0).all()


def test_the_sums_of_calm_end_at_a_neighbour_and_keep_their_highest_value() -> None:
    counted = Evidence(calm=(1000.0, 10.0, 10.0, 1.0), neighbour=(10.0, 10.0, 10.0, 100.0))
    tree = Tree.of(arrays(counted))
    loud, quiet = counted.ratios[3], counted.ratios[0]
    noise = Label("n1", "cpu", 1.0, 102.0, 103.0)
    its = ticks([(0.2, 3), (0.2, 0), (0.2, 3), *[(0.2, 0)] * 6, (0.2, 3), (0.2, 3)])
    sums = calm_sums(shown(recording(noise), its), tree, CGROUP)
    assert sums.peaks == pytest.approx((2 * loud + quiet,), abs=0.01)
    assert sums.days * 86_400.0 == pytest.approx(9 * 0.2, abs=5.0)
