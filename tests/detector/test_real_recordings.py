"""Recordings of the lab that no model was trained on: calm with disturbances, noises, and noises beside guests.

Each is one short run. They show that the whole detector, with the shipped model, finds what it should; how well it does
elsewhere is in docs/results/detector-scores.md.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from slackwater.core.config import DetectorSettings
from slackwater.core.messages import Verdict
from slackwater.detector.classify.tree import SHIPPED, load
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import Recording, read
from slackwater.detector.train.replay import play
from slackwater.detector.train.scores import Scores, score
from tests.support.paths import RECORDINGS

FIRST = 900
"""Samples of a recording that are played twice: a minute of three nodes."""


@cache
def recorded(name: str) -> Recording:
    return read(RECORDINGS / f"{name}.parquet")


def judged(recording: Recording) -> list[Verdict]:
    return play(
        recording,
        Judge.of(recording.samples[0].pool, DetectorSettings(), load(SHIPPED)),
    )


@cache
def verdicts(name: str) -> list[Verdict]:
    return judged(recorded(name))


def scores(name: str) -> Scores:
    return score(recorded(name), verdicts(name))


@pytest.mark.parametrize("name", ["dokuwiki-calm", "events-other-load"])
def test_a_recording_of_the_lab_is_read_in_the_order_in_which_it_was_heard(name: str) -> None:
    recording = recorded(name)
    assert recording.nodes == ["host1", "host2", "host3"]
    assert recording.received_unix_s == sorted(recording.received_unix_s)
    steps_s = {0.0} | {label.intensity for label in recording.labels if label.kind == "clock_step"}
    seen_s = set()
    for sample, received_s in zip(recording.samples, recording.received_unix_s, strict=True):
        ahead_s = sample.time_unix_s - received_s
        nearest_s = min(steps_s, key=lambda step_s: abs(step_s - ahead_s))
        assert abs(nearest_s - ahead_s) < 1.0, "a stepped clock is seen in the Samples' own time, and only there"
        seen_s.add(nearest_s)
    assert seen_s == steps_s


def test_strong_noises_are_found_quickly_and_nothing_else() -> None:
    """The delays are the Samples' own times, not this machine's."""
    score = scores("events-other-load")
    felt = [noise for noise in score.noises if noise.felt]
    assert len(felt) == 20
    delays_s = [noise.delay_s for noise in felt if noise.delay_s is not None]
    assert len(delays_s) == len(felt)
    assert np.percentile(delays_s, 95) < 1.0
    assert score.false_episodes == 0


def test_neighbours_of_virtual_machines_without_steal_are_found() -> None:
    felt = [noise for noise in scores("guests-hidden").noises if noise.felt]
    assert len(felt) == 20
    delays_s = [noise.delay_s for noise in felt if noise.delay_s is not None]
    assert len(delays_s) >= 18
    assert np.median(delays_s) < 1.3


def test_disturbances_beside_dokuwiki_give_no_false_episode() -> None:
    score = scores("dokuwiki-calm")
    assert score.noises == []
    assert score.disturbed_node_s.keys() >= {"deploy", "reload", "start", "slow_database", "clock_step", "flash_crowd"}
    assert score.false_episodes == 0


def test_the_shipped_model_says_the_same_of_a_recording_each_time_and_does_not_look_ahead() -> None:
    """The verdicts on a recording's beginning are those on the whole recording, words and figures too."""
    whole = recorded("events-other-load")
    part = Recording(whole.samples[:FIRST], whole.labels, "", whole.path, whole.nodes, whole.received_unix_s[:FIRST])
    once = judged(part)
    assert "interference" in {verdict.state for verdict in once}
    # The part may end within a tick: its last Verdicts then come at another time.
    agreed = len(once) - 3
    assert once[:agreed] == verdicts("events-other-load")[:agreed]


def test_a_neighbour_in_a_full_pool_is_not_learnt_as_calm_and_the_next_one_is_found() -> None:
    """Beside the first one the peers, overloaded, are as slow, so nothing is found. It must not be what is usual."""
    recording = recorded("sites/full-pool")
    first, second = recording.labels
    later = [
        verdict
        for verdict in verdicts("sites/full-pool")
        if verdict.node == second.node and second.start_unix_s < verdict.time_unix_s < second.end_unix_s
    ]
    assert first.end_unix_s < second.start_unix_s
    found_s = [verdict.time_unix_s - second.start_unix_s for verdict in later if verdict.state == "interference"]
    assert min(found_s, default=99.0) < 6.0
    assert len(found_s) > 0.7 * len(later)
