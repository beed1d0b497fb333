"""The way back to the full share, as the simulator's score counts it."""

from __future__ import annotations

import math

import pytest

from slackwater_lab.sim.control import BASE_WEIGHT
from slackwater_lab.sim.episodes import Episode
from slackwater_lab.sim.outcome import Score
from slackwater_lab.sim.setup import Setup

SETUP = Setup(servers=3, balancers=2, warm_up_s=0.0, seconds=100.0)


def back_s(
    *moves: tuple[float, int, int], episodes: tuple[Episode, ...] = (Episode(0, 10.0, 20.0, 0.8),)
) -> list[float]:
    """`moves`: when, which balancer, and the weight that it gives the first server."""
    score = Score(SETUP, episodes)
    for at_s, balancer, weight in moves:
        score.advance(at_s)
        score.moved(balancer, 0, weight, at_s)
    score.advance(SETUP.end_s)
    return score.back_s(SETUP.end_s)


def test_it_is_back_when_the_last_balancer_gives_it_its_baseline() -> None:
    assert back_s((11.0, 0, 0), (11.0, 1, 0), (21.0, 0, 50), (22.0, 0, BASE_WEIGHT), (23.5, 1, BASE_WEIGHT)) == [3.5]


def test_a_relapse_counts_until_it_is_over_and_one_that_is_not_for_ever() -> None:
    assert back_s((11.0, 0, 0), (21.0, 0, BASE_WEIGHT), (22.0, 0, 40), (26.0, 0, BASE_WEIGHT)) == [6.0]
    assert back_s((11.0, 0, 0), (21.0, 0, BASE_WEIGHT), (22.0, 0, 40)) == [math.inf]


def test_a_server_that_was_back_before_its_neighbour_left_needs_no_time() -> None:
    assert back_s((11.0, 0, 0), (15.0, 0, BASE_WEIGHT)) == [0.0]


@pytest.mark.parametrize(("begin_s", "expected_s"), [(24.0, []), (60.0, [2.0])])
def test_what_the_next_episode_cuts_short_is_not_counted(begin_s: float, expected_s: list[float]) -> None:
    two = (Episode(0, 10.0, 20.0, 0.8), Episode(0, begin_s, 99.0, 0.8))
    assert back_s((11.0, 0, 0), (22.0, 0, BASE_WEIGHT), episodes=two) == expected_s


def test_an_episode_without_an_answer_has_no_way_back() -> None:
    assert back_s() == []
