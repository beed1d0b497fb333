"""Figures of a phase, and what the watch of the balancer is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater_lab.cluster.balancer import Snapshot
from slackwater_lab.cluster.load import Requests
from slackwater_lab.experiment.balancer_watch import first_at, first_reduction, share
from slackwater_lab.experiment.measures import figures


def requests(*rows: tuple[float, float, int], lost: dict[str, int] | None = None) -> Requests:
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Requests(table[:, 0], table[:, 1], table[:, 2].astype(np.int64), lost or {}, np.zeros(len(table)))


def test_a_request_belongs_to_the_phase_in_which_it_was_due() -> None:
    seen = requests((9.99, 5.0, 200), (10.0, 0.002, 200), (19.99, 0.004, 200), (20.0, 7.0, 200))
    measured = figures(seen, seen.due_mono_s, 10.0, 20.0, noisy_share=0.25)
    assert (measured["requests"], measured["errors"], measured["rps"]) == (2, 0, 0.2)
    assert measured["mean_ms"] == pytest.approx(3.0)
    assert measured["p50_ms"] == pytest.approx(3.0)
    assert measured["noisy_share"] == 0.25


def test_percentiles_are_those_of_the_answered_requests() -> None:
    seen = requests(*[(float(n), n / 1000.0, 200) for n in range(1, 101)])
    measured = figures(seen, seen.due_mono_s, 0.0, 200.0)
    assert measured["p95_ms"] == pytest.approx(95.05)
    assert measured["p99_ms"] == pytest.approx(99.01)


def test_a_status_of_400_and_above_is_an_error_and_has_no_say_in_the_times() -> None:
    seen = requests((1.0, 0.001, 200), (2.0, 9.0, 503), (3.0, 9.0, 404))
    measured = figures(seen, seen.due_mono_s, 0.0, 10.0)
    assert (measured["requests"], measured["errors"]) == (3, 2)
    assert measured["mean_ms"] == pytest.approx(1.0)


def test_lost_requests_count_as_requests_and_as_errors() -> None:
    measured = figures((seen := requests((1.0, 0.001, 200))), seen.due_mono_s, 0.0, 10.0, lost=3)
    assert (measured["requests"], measured["errors"]) == (4, 3)


def test_without_an_answer_there_are_no_times() -> None:
    measured = figures((seen := requests()), seen.due_mono_s, 0.0, 10.0)
    assert (measured["requests"], measured["mean_ms"], measured["p99_ms"]) == (0, None, None)


def history(*rows: tuple[float, int, int, int]) -> list[Snapshot]:
    """Rows of (time, weight of a, requests of a, requests of b)."""
    up = {"a": "UP", "b": "UP"}
    return [Snapshot(at_s, {"a": weight, "b": 100}, {"a": a, "b": b}, up) for at_s, weight, a, b in rows]


def test_the_first_reduction_after_an_instant_is_found_whatever_came_before() -> None:
    seen = history((0.0, 100, 0, 0), (1.0, 50, 0, 0), (2.0, 60, 0, 0), (3.0, 70, 0, 0), (4.0, 20, 0, 0))
    assert first_reduction(seen, "a", 0.5) == pytest.approx(0.5)
    assert first_reduction(seen, "a", 1.5) == pytest.approx(2.5)
    assert first_reduction(seen, "b", 0.0) is None


def test_back_at_the_baseline_is_only_reported_of_a_server_that_was_away_from_it() -> None:
    seen = history((0.0, 100, 0, 0), (1.0, 0, 0, 0), (2.0, 0, 0, 0), (3.5, 100, 0, 0), (4.0, 100, 0, 0))
    assert first_at(seen, "a", 100, 1.5) == pytest.approx(2.0)
    assert first_at(seen, "a", 100, 3.6) is None
    assert first_at(seen[:3], "a", 100, 1.5) is None


def test_the_share_is_of_the_requests_between_two_instants() -> None:
    seen = history((0.0, 100, 10, 10), (1.0, 100, 20, 40), (2.0, 100, 30, 70), (3.0, 100, 99, 99))
    assert share(seen, "a", 0.0, 2.0) == pytest.approx(20 / 80)


def test_counters_that_begin_anew_after_a_reload_do_not_spoil_the_share() -> None:
    seen = history((0.0, 100, 1000, 1000), (1.0, 100, 1010, 1030), (2.0, 100, 5, 15))
    assert share(seen, "a", 0.0, 2.0) == pytest.approx(15 / 60)


def test_no_requests_give_no_share() -> None:
    assert share(history((0.0, 100, 5, 5), (1.0, 100, 5, 5)), "a", 0.0, 1.0) is None
