"""Plans of recordings and of swinging load."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from slackwater_lab.disturb import swing
from slackwater_lab.disturb.timetable import DISTURBANCES, DRAIN_WEIGHTS, OF_ONE_NODE, Timetable, timetable


def a_plan(seed: int = 1, seconds: float = 300.0, **changes: object) -> Timetable:
    settings: dict[str, object] = {
        "hosts": 3,
        "kinds": ("llcprobe", "cpu"),
        "intensities": (0.5, 1.0),
        "share": None,
        "drain": False,
        "overload": False,
        **changes,
    }
    return timetable(seed, seconds, **settings)  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert a_plan(7) == a_plan(7)
    assert a_plan(7) != a_plan(8)


@pytest.mark.parametrize("seed", range(20))
def test_noises_never_overlap_and_end_within_the_recording(seed: int) -> None:
    noises = a_plan(seed).noises
    assert noises[0].begin_s >= 12.0
    assert noises[-1].end_s <= 300.0
    for noise, following in itertools.pairwise(noises):
        assert 3.0 <= noise.end_s - noise.begin_s <= 5.01
        assert following.begin_s - noise.end_s >= 4.49


@pytest.mark.parametrize("overload", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_load_lasts_as_long_as_the_recording(seed: int, overload: bool) -> None:
    for share in (None, 0.3):
        levels = a_plan(seed, share=share, overload=overload).levels
        assert sum(level.seconds for level in levels) == pytest.approx(300.0)
        assert all(level.seconds > 0 for level in levels)


@pytest.mark.parametrize("seed", range(20))
def test_the_pool_is_overloaded_exactly_while_the_plan_says_so(seed: int) -> None:
    script = a_plan(seed, overload=True)
    overloads = [(disturbance.begin_s, disturbance.end_s) for disturbance in script.disturbances]
    assert overloads
    begin_s = 0.0
    for level in script.levels:
        middle = begin_s + level.seconds / 2
        meant = any(first <= middle < last for first, last in overloads)
        assert (level.share > 1.0) == meant
        begin_s += level.seconds
    for first, last in overloads:
        assert not any(noise.begin_s < last and first < noise.end_s for noise in script.noises)


def test_without_kinds_it_is_calm() -> None:
    assert a_plan(kinds=()).noises == []


def test_kinds_come_equally_often() -> None:
    counts = Counter(noise.kind for noise in a_plan(kinds=("llcprobe", "cpu", "disk")).noises)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("kinds", [(), ("cpu",)])
@pytest.mark.parametrize("seed", range(20))
def test_disturbances_take_turns_and_never_overlap(seed: int, kinds: tuple[str, ...]) -> None:
    script = a_plan(seed, kinds=kinds, disturbances=DISTURBANCES)
    assert bool(script.noises) == bool(kinds)
    assert {disturbance.kind for disturbance in script.disturbances} <= set(DISTURBANCES)
    for disturbance in script.disturbances:
        assert (disturbance.host is not None) == (disturbance.kind in OF_ONE_NODE), "a node, or the whole pool"
    turns = sorted(
        [(noise.begin_s, noise.end_s) for noise in script.noises]
        + [(disturbance.begin_s, disturbance.end_s) for disturbance in script.disturbances]
    )
    for (_, end_s), (begin_s, _) in itertools.pairwise(turns):
        assert begin_s - end_s >= 4.49


def test_a_flash_crowd_is_a_load_that_the_pool_can_carry() -> None:
    script = a_plan(kinds=(), disturbances=("flash_crowd",), share=0.3)
    crowds = [level.share for level in script.levels if level.share != 0.3]
    assert len(crowds) == len(script.disturbances)
    assert all(0.8 <= share <= 0.95 for share in crowds)


def test_weights_move_only_when_asked_for() -> None:
    assert {noise.server_weight for noise in a_plan().noises} == {100}
    moved = {noise.server_weight for seed in range(5) for noise in a_plan(seed, drain=True).noises}
    assert moved == set(DRAIN_WEIGHTS)


def test_swinging_load_stays_between_its_bounds() -> None:
    levels = swing.levels(random.Random(3), 600.0)
    assert all(swing.LOW <= level.share <= swing.HIGH for level in levels)
    assert max(level.share for level in levels) > 0.6
    assert min(level.share for level in levels) < 0.3
    assert sum(level.seconds for level in levels) == pytest.approx(600.0)
