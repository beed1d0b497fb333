"""What static weights would have given: an estimate from what was measured before the episode."""

from __future__ import annotations

import math

import pytest

from slackwater.static_weights import Server, estimate_ms


def server(mean_ms: float = 5.0, static_rps: float = 50.0, severity: float = 0.0, cpu: float | None = 0.5) -> Server:
    p50, p95, p99 = (mean_ms * math.log(of) for of in (2, 20, 100))
    return Server(50.0, cpu, p50, p95, p99, static_rps, severity)


def test_without_an_episode_nothing_changes() -> None:
    assert estimate_ms([server(), server()], 0.95) == pytest.approx(5.0 * math.log(20))


def test_half_the_slack_is_twice_the_response_time() -> None:
    """Capacity 100, rate 50; a quarter of the capacity gone leaves half of the slack."""
    assert estimate_ms([server(severity=0.25)], 0.95) == pytest.approx(10.0 * math.log(20))


def test_a_server_beyond_its_capacity_is_very_slow_but_finite() -> None:
    found = estimate_ms([server(severity=0.9), server()], 0.95)
    assert found is not None
    assert 200.0 < found < 1e6


def test_what_is_not_known_gives_no_estimate() -> None:
    assert estimate_ms([server(cpu=None), server()], 0.95) is None
    assert estimate_ms([], 0.95) is None
