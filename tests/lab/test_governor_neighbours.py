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
    assert [second for second, is_there in enumerate(ONE.beside(30)) if is_there] == list(range(10, 21))


def test_episodes_are_those_of_the_seed_and_do_not_overlap() -> None:
    episodes = neighbour(1, 600.0).episodes
    assert episodes == neighbour(1, 600.0).episodes
    assert episodes != neighbour(2, 600.0).episodes
    assert all(episode.end_s + PAUSE_S[0] <= other.begin_s for episode, other in pairwise(episodes))
    assert all(STAY_S[0] <= episode.end_s - episode.begin_s <= STAY_S[1] for episode in episodes)


def test_the_table_has_a_row_for_each_policy() -> None:
    names = ("static", "heracles", "slackwater", BLIND)
    figures = neighbours.compare([1], "a72", step_s=4, rows={name: neighbours.ROWS[name] for name in names})
    assert {figure.policy for figure in figures} == {*names, "bound"}
    claims = [figure for figure in figures if figure.reached() is not None]
    assert [(claim.policy, claim.measure, claim.least) for claim in claims] == [("slackwater", "guarantee %", 97.0)]
