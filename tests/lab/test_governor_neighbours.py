"""The table `neighbours`."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slackwater_lab.governor import neighbours
from slackwater_lab.governor.neighbours import BLIND, PAUSE_S, STAY_S, Episode, Neighbour, neighbour

ONE = Neighbour((Episode(10.0, 20.5, 0.8, 10.4, 21.2),))


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [(9.9, (1.0, False)), (10.1, (0.8, False)), (10.5, (0.8, True)), (20.6, (1.0, True)), (21.3, (1.0, False))],
)
def test_the_verdict_follows_the_neighbour(time_s: float, expected: tuple[float, bool]) -> None:
    assert ONE(time_s) == expected


def test_a_policy_without_the_verdict_has_the_same_neighbour() -> None:
    assert Neighbour(ONE.episodes, verdicts=False)(10.5) == (0.8, False)


def test_seconds_beside_the_neighbour() -> None:
    assert [second for second, there in enumerate(ONE.beside(30)) if there] == list(range(10, 21))


def test_episodes_are_those_of_the_seed_and_do_not_overlap() -> None:
    found = neighbour(1, 600.0).episodes
    assert found == neighbour(1, 600.0).episodes
    assert found != neighbour(2, 600.0).episodes
    assert all(one.end_s + PAUSE_S[0] <= other.begin_s for one, other in pairwise(found))
    assert all(STAY_S[0] <= one.end_s - one.begin_s <= STAY_S[1] for one in found)


def test_the_table_has_a_row_for_each_policy() -> None:
    names = ("static", "heracles", "slackwater", BLIND)
    figures = neighbours.compare([1], "a72", step_s=4, rows={name: neighbours.ROWS[name] for name in names})
    assert {one.policy for one in figures} == {*names, "bound"}
    claims = [one for one in figures if one.reached() is not None]
    assert [(one.policy, one.measure, one.least) for one in claims] == [("slackwater", "guarantee %", 97.0)]
