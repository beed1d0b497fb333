"""How soon a policy answered: weights that move in calm too are no answer; each neighbour has its own detection."""

from __future__ import annotations

import pytest

from slackwater_lab.compare import results
from slackwater_lab.experiment.latency import answer_s, detections
from slackwater_lab.experiment.recording import Run
from tests.support.comparison_files import recorded


def looks(*weights: int) -> list[tuple[float, str, int, int]]:
    """host1's weights, one a second from 0 s on."""
    return [(float(at_s), "host1", weight, 0) for at_s, weight in enumerate(weights)]


def test_a_weight_that_falls_no_further_than_in_calm_is_no_answer() -> None:
    agents = looks(50, 47, 53, 49, 51, 46, 48, 47)
    assert answer_s(agents, {"host1"}, 0.0, 4.5) is None, "46 is below all of calm, but by less than calm's own range"
    assert answer_s([*agents, (8.0, "host1", 30, 0)], {"host1"}, 0.0, 4.5) == pytest.approx(3.5)
    assert answer_s(looks(100, 100, 100, 99), {"host1"}, 0.0, 2.5) == pytest.approx(0.5), "still weights: any fall"


def test_a_drain_is_an_answer_however_much_weights_moved_in_calm() -> None:
    assert answer_s(looks(20, 90, 20, 90, 0), {"host1"}, 0.0, 3.5) == pytest.approx(0.5)


def test_what_is_of_before_the_calm_or_of_other_servers_does_not_count() -> None:
    assert answer_s(looks(10, 100, 100, 60), {"host1"}, 0.5, 2.5) == pytest.approx(0.5)
    assert answer_s(looks(100, 100, 100, 60), {"host2"}, 0.5, 2.5) is None


def test_a_fall_after_the_neighbours_have_gone_is_no_answer() -> None:
    assert answer_s(looks(100, 100, 100, 60), {"host1"}, 0.0, 1.5, 2.5) is None
    assert answer_s(looks(100, 100, 60, 60), {"host1"}, 0.0, 1.5, 2.5) == pytest.approx(0.5)


def test_a_server_without_a_monitor_is_detected_as_slow() -> None:
    noise = {"host": "host1", "on_s": 10.0, "off_s": 20.0}
    verdicts = [(1.0, "host1", "calm"), (10.6, "host1", "slow"), (22.0, "host1", "calm")]
    assert detections(verdicts, [noise]) == [pytest.approx(0.6)]
    assert detections([(9.0, "host1", "slow"), *verdicts[1:]], [noise]) == [], "it was slow when the noise began"


def test_each_neighbour_has_its_own_detection() -> None:
    bursts = [{"host": "host1", "on_s": on_s, "off_s": on_s + 2.0} for on_s in (10.0, 17.0, 24.0)]
    other = {"host": "host2", "on_s": 10.0, "off_s": 20.0}
    verdicts = [
        (9.8, "host1", "calm"),
        (10.4, "host1", "interference"),
        (10.6, "host1", "interference"),
        (10.8, "host2", "overload"),
        (13.0, "host1", "calm"),
        (19.2, "host1", "interference"),
        (23.9, "host1", "interference"),
    ]
    assert detections(verdicts, [*bursts, other]) == [
        pytest.approx(0.4),
        None,  # judged only after it had ended
        # the third: its server was in an episode already
        None,  # another state is no detection
    ]


def test_a_run_tells_when_its_neighbour_was_detected() -> None:
    run = Run(1, 1, "one", "slackwater")
    for result, expected_s in (
        (recorded(run), None),
        (recorded(run, detected_s=1e9), None),
        (recorded(run, 0.5, 0.4), 0.4),
    ):
        assert results.of_run(result)["loud"]["detected_s"] == (
            None if expected_s is None else pytest.approx(expected_s)
        )
