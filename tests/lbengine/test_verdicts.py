"""Which Verdicts are news that the engine does not wait for."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.core.messages import State, Verdict
from slackwater.lbengine.verdicts import OTHERS_AFTER_S, LatestVerdicts, age_s
from tests.support.pool_shown import verdict


def since(state: State, for_s: float) -> Verdict:
    """A Verdict on a node that has been in this state for so long."""
    own = verdict("host1", state, 0.5 * (state == "interference"), 300.0)
    return msgspec.structs.replace(own, time_unix_s=1000.0, since_unix_s=1000.0 - for_s)


@pytest.mark.parametrize(
    ("state", "for_s", "is_news"),
    [("interference", 0.0, True), ("interference", 0.9, True), ("interference", 1.1, False), ("calm", 0.0, False)],
)
def test_a_verdict_that_says_the_same_again_is_news_only_in_an_episodes_first_second(
    state: State, for_s: float, is_news: bool
) -> None:
    latest = LatestVerdicts()
    assert latest.put(since(state, for_s), 0.0)
    assert latest.put(since(state, for_s), 0.05) is is_news


def test_another_state_is_always_news() -> None:
    latest = LatestVerdicts()
    latest.put(since("interference", 60.0), 0.0)
    assert latest.put(since("calm", 60.0), 0.05)


def test_a_clock_that_was_set_back_makes_no_episode_older_than_nothing() -> None:
    assert age_s(since("interference", -30.0)) == 0.0


def test_two_detectors_that_disagree_move_nothing_in_turns() -> None:
    """Ours goes before, and the other one is heard when ours is silent."""
    ours = msgspec.structs.replace(since("calm", 60.0), controller="a")
    theirs = msgspec.structs.replace(since("interference", 60.0), controller="b")
    latest = LatestVerdicts("a")
    assert latest.put(theirs, 0.0)
    assert latest.put(ours, 0.1)
    assert not latest.put(theirs, 0.15)
    assert latest.fresh(0.2, 3.0)["host1"].state == "calm"
    assert latest.put(theirs, 0.1 + OTHERS_AFTER_S)
    assert latest.fresh(2.2, 3.0)["host1"].state == "interference"
