"""Two recordings of the lab that no limit was set on and no model trained on: calm with disturbances, and noises."""

from __future__ import annotations

from pathlib import Path

import pytest

from detector.recording import read
from detector.scores import Scores
from detector.training import Options, replay
from detector.tree import SHIPPED, load

RECORDINGS = Path(__file__).parent / "recordings"


def scores(name: str) -> Scores:
    return replay(read(RECORDINGS / f"{name}.parquet"), Options(), load(SHIPPED))


@pytest.mark.parametrize("name", ["dokuwiki-calm", "events-other-load"])
def test_a_recording_of_the_lab_is_read_in_the_order_in_which_it_was_heard(name: str) -> None:
    recording = read(RECORDINGS / f"{name}.parquet")
    assert recording.nodes == ["host1", "host2", "host3"]
    assert recording.received_unix_s == sorted(recording.received_unix_s)
    steps_s = {0.0} | {label.intensity for label in recording.labels if label.kind == "clock_step"}
    seen_s = set()
    for sample, at in zip(recording.samples, recording.received_unix_s, strict=True):
        ahead_s = sample.time_unix_s - at
        nearest_s = min(steps_s, key=lambda step_s: abs(step_s - ahead_s))
        assert abs(nearest_s - ahead_s) < 1.0, "a stepped clock is seen in the Samples' own time, and only there"
        seen_s.add(nearest_s)
    assert seen_s == steps_s


def test_strong_noises_are_found_quickly_and_nothing_else() -> None:
    """Figures of docs/detector-scores.md; the delays are the Samples' own times, not this machine's."""
    found = scores("events-other-load")
    felt = [noise for noise in found.noises if noise.felt]
    assert len(felt) == 20
    assert all(noise.delay_s is not None and noise.delay_s < 1.0 for noise in felt)
    assert found.false_episodes == 0


def test_disturbances_beside_dokuwiki_give_no_more_false_episodes_than_the_document_tells() -> None:
    found = scores("dokuwiki-calm")
    assert found.noises == []
    assert dict(found.false_during).keys() <= {"reload", "slow_database"}
    assert found.false_episodes <= 2
