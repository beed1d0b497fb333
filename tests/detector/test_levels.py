"""Levels are counted by the time that Samples cover, whatever the pace at which they were recorded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from detector.classify.evidence import FAINT, QUIET, STRONG, WEAK, Evidence
from detector.classify.judge import Tick
from detector.recordings.recording import Label, Recording
from detector.train.levels import count, total
from slackwater.messages import Sample, Traffic

Covered = tuple[float, int]
"""Seconds that a Sample covers, and the level that it shows."""


def recording(*labels: Label) -> Recording:
    return Recording([], list(labels), "", "", ["n1"])


def ticks(shown: Iterable[Covered], *, from_s: float = 100.0, p95_ms: float = 5.0) -> list[Tick]:
    made, at_s = [], from_s
    for covered_s, level in shown:
        at_s += covered_s
        sample = Sample(1, "n1", "web", at_s, "b", 0, covered_s, traffic=Traffic(rt_p95_ms=p95_ms))
        made.append(Tick(sample, np.zeros(0), True, level))
    return made


def test_a_second_at_any_pace_counts_the_same() -> None:
    each = count(recording(), ticks([(0.2, QUIET)] * 10))
    by_event = count(recording(), ticks([(1.0, QUIET)] * 2))
    assert each == by_event
    assert np.sum(each.calm) == pytest.approx(10.0)
    often = count(recording(), ticks([*[(0.2, QUIET)] * 5, *[(0.05, STRONG)] * 4]))
    assert np.sum(often.calm, axis=0).tolist() == pytest.approx([5.0, 0.0, 0.0, 1.0])


def test_what_comes_in_a_row_is_counted_after_what_came_before() -> None:
    found = np.array(count(recording(), ticks([(0.2, QUIET), (0.2, WEAK), (0.6, FAINT), (0.1, QUIET)])).calm)
    assert found[QUIET, QUIET] == 1.0
    assert (found[QUIET, WEAK], found[WEAK, FAINT], found[FAINT, FAINT], found[FAINT, QUIET]) == (1.0, 1.0, 2.0, 0.5)
    assert found.sum() == pytest.approx(5.5)


def test_a_clock_step_or_a_long_silence_counts_for_little() -> None:
    assert np.sum(count(recording(), ticks([(86_400.0, STRONG)])).calm) == pytest.approx(6.0)


def test_beside_a_neighbour_samples_count_that_began_with_it() -> None:
    noise = Label("n1", "cpu", 1.0, 110.05, 112.0)
    calm = ticks([(0.2, QUIET)] * 50)
    begun = ticks([(0.1, WEAK)], from_s=110.0, p95_ms=50.0)
    whole = ticks([(0.2, STRONG), (0.05, STRONG), (1.0, WEAK)], from_s=110.1, p95_ms=50.0)
    found = count(recording(noise), [*calm, *begun, *whole])
    assert found.neighbour == pytest.approx((0.0, 0.0, 5.0, 1.25))
    assert np.sum(found.calm) == pytest.approx(50.0)


def test_a_recording_without_samples_counts_nothing_and_counts_add_up() -> None:
    nothing = count(recording(), [])
    assert np.sum(nothing.calm) == sum(nothing.neighbour) == 0.0
    some = Evidence(calm=((0.25, 0.0, 0.0, 0.0), *((0.0,) * 4,) * 3), neighbour=(0.0, 0.0, 0.5, 0.0))
    assert total([some, some, nothing]).calm[0][0] == 0.5
    assert total([some, some]).neighbour[WEAK] == 1.0
