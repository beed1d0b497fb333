"""Measured against estimated capacities: what is kept of a run, and how errors are counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slackwater.detector.recordings.recording import Recording, RecordingError, write
from slackwater_lab.stories.capacity import State, without
from slackwater_lab.stories.capacity_errors import compare, load_states, summary
from tests.support.judges import shipped
from tests.support.paths import RECORDINGS
from tests.support.synthetic_cluster import CAPACITY_RPS, Cluster, swing


def recording(seconds: float = 40.0) -> Recording:
    """A calm cluster's Samples as a recording."""
    cluster = Cluster(seed=3)
    samples = [sample for _, tick in cluster.run(seconds, swing(cluster, 0.2, 0.6, 20.0)) for sample in tick]
    return Recording(
        samples, [], "", "", sorted({sample.node for sample in samples}), [sample.time_unix_s for sample in samples]
    )


def state(recording: Recording, truth_rps: float, taken: float = 0.0, calm_rps: float = CAPACITY_RPS) -> State:
    begin, end = recording.received_unix_s[0], recording.received_unix_s[-1]
    return State(recording.nodes[0], 0.4, taken, taken, taken, begin, end, truth_rps, 1.0, calm_rps)


def test_samples_that_saw_any_part_of_a_closed_loop_are_left_out() -> None:
    recorded = recording(2.0)
    times = [sample.time_unix_s for sample in recorded.samples if sample.node == recorded.nodes[0]]
    middle = times[4]
    kept, received = without(recorded.samples, recorded.received_unix_s, [(middle - 0.001, middle + 0.001)])
    left = [sample.time_unix_s for sample in kept if sample.node == recorded.nodes[0]]
    assert set(times) - set(left) == {middle, times[5]}, (
        "the loop ran at the end of one period and at the start of the next"
    )
    assert len(kept) == len(received)


def test_a_right_estimate_has_a_small_error_and_a_wrong_truth_a_large_one() -> None:
    recorded = recording()
    right, wrong = compare(recorded, [state(recorded, CAPACITY_RPS), state(recorded, 2 * CAPACITY_RPS)], shipped())
    # The cluster's requests cost the same at any load, which the prior of wake-ups does not expect.
    assert abs(right["relative_error"]) < 0.3
    assert wrong["relative_error"] == pytest.approx((1.0 + right["relative_error"]) / 2.0 - 1.0, abs=0.01)
    assert not wrong["within"]


def test_a_neighbour_that_the_detector_misses_counts_with_all_that_it_took() -> None:
    recorded = recording()
    (row,) = compare(recorded, [state(recorded, 0.4 * CAPACITY_RPS, taken=0.6)], shipped())
    assert (row["estimated_lost"], row["lost_error"]) == (0.0, -0.6)
    assert summary([row])["lost_error_median"] == pytest.approx(0.6)
    assert summary([row])["calm_error_median"] is None


def test_a_state_without_a_verdict_has_no_estimate_and_is_counted() -> None:
    recorded = recording(2.0)
    before = msgspec.structs.replace(recorded.samples[0]).time_unix_s - 100.0
    never = State(recorded.nodes[0], 0.2, 0.0, 0.0, 0.0, before, before + 1.0, 100.0, 1.0, 100.0)
    assert summary(compare(recorded, [never], shipped())) == {
        "states": 1,
        "without_estimate": 1,
        "lost_error_median": None,
        "lost_error_p90": None,
        "calm_error_median": None,
        "calm_error_worst": None,
        "within_one_standard_error": None,
    }


def test_states_are_read_beside_their_recording_and_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    recorded, path = recording(2.0), tmp_path / "one.parquet"
    write(path, recorded.samples, [], "", recorded.received_unix_s)
    with pytest.raises(RecordingError, match=r"one\.json: expected the states"):
        load_states(path)
    path.with_suffix(".json").write_text('{"states": [{"host": 3}]}')
    with pytest.raises(RecordingError, match=r"one\.json: expected the states"):
        load_states(path)
    path.with_suffix(".json").write_bytes(msgspec.json.encode({"states": [state(recorded, 100.0)]}))
    again, states = load_states(path)
    assert states == [state(recorded, 100.0)]
    assert len(again.samples) == len(recorded.samples)


def test_what_a_virtual_machine_lost_is_told_though_it_was_never_full() -> None:
    """It answers all that it is asked for, at a steady rate, while its neighbour takes a third and more."""
    recorded, states = load_states(RECORDINGS / "guests-capacity.parquet")
    calm, *beside = compare(recorded, states, shipped())
    assert calm["relative_error"] > 0.5, "the limit that it is not told of does not show in calm"
    assert [row["state"] for row in beside] == ["interference"] * 2
    assert [row["estimated_lost"] for row in beside] == pytest.approx([row["lost"] for row in beside], abs=0.2)
    assert all(row["estimated_rps"] > row["measured_rps"] for row in beside), "it could do more than it was asked for"
