"""Response time by route: robust to the mix of requests, learnt from calm ticks, bounded, kept on disk."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.core.messages import RouteTraffic
from slackwater.detector.features.routes import FIRST, MAX_ROUTES, RouteTimes


def sample(*routes: tuple[str, float, float | None]) -> list[RouteTraffic]:
    return [RouteTraffic(name, rps=rps, rt_mean_ms=rt_ms) for name, rps, rt_ms in routes]


def learnt(*routes: tuple[str, float, float | None], ticks: int = FIRST) -> RouteTimes:
    times = RouteTimes()
    times.resize(1)
    for _ in range(ticks):
        learn(times, *routes)
    return times


def learn(times: RouteTimes, *routes: tuple[str, float, float | None]) -> None:
    read = times.read(np.array([0]), [sample(*routes)])
    assert read is not None
    times.learn(np.array([0]), read[1], np.array([True]))


def ratio(times: RouteTimes, *routes: tuple[str, float, float | None]) -> float:
    read = times.read(np.array([0]), [sample(*routes)])
    assert read is not None
    return float(times.ratio(np.array([0]), *read)[0])


def test_another_mix_of_requests_is_no_slowness_and_slower_routes_are() -> None:
    times = learnt(("page", 90.0, 2.0), ("search", 10.0, 20.0))
    assert ratio(times, ("page", 10.0, 2.0), ("search", 90.0, 20.0)) == pytest.approx(1.0)
    assert ratio(times, ("page", 50.0, 6.0), ("search", 50.0, 60.0)) == pytest.approx(3.0)
    assert ratio(times, ("page", 75.0, 2.0), ("search", 25.0, 60.0)) == pytest.approx(1.5), "weighted by requests"


def test_routes_that_are_new_idle_or_without_a_time_say_nothing() -> None:
    times = learnt(("page", 90.0, 2.0))
    assert ratio(times, ("page", 90.0, 2.0), ("new", 900.0, 5000.0)) == pytest.approx(1.0)
    assert np.isnan(ratio(times, ("page", 0.0, None)))
    assert np.isnan(ratio(times, ("new", 5.0, 10.0)))
    assert times.read(np.array([0, 0]), [sample(), sample()]) is None


def test_the_calm_time_follows_slowly_whatever_the_outliers() -> None:
    times = learnt(("page", 90.0, 10.0))
    for _ in range(20):
        learn(times, ("page", 90.0, 1e6))
    assert 0.6 < ratio(times, ("page", 90.0, 10.0)) < 0.7
    for _ in range(200):
        learn(times, ("page", 90.0, 5.0))
    assert ratio(times, ("page", 90.0, 5.0)) == pytest.approx(1.0, abs=0.05)


def test_more_routes_than_are_followed_are_left_out() -> None:
    many = [(f"r{number}", 10.0, 5.0) for number in range(MAX_ROUTES + 9)]
    times = learnt(*many)
    assert ratio(times, *many) == pytest.approx(1.0)
    assert len(times.export(0)) == MAX_ROUTES


def test_a_node_that_invents_routes_takes_no_other_nodes_columns() -> None:
    times = RouteTimes()
    times.resize(2)
    liar, honest = 0, 1
    invented = sample(*((f"r{number}", 10.0, 5.0) for number in range(MAX_ROUTES + 9)))
    both = np.array([liar, honest])
    for _ in range(FIRST):
        read = times.read(both, [invented, sample(("page", 90.0, 2.0))])
        assert read is not None
        times.learn(both, read[1], np.array([True, True]))
    read = times.read(both, [invented, sample(("page", 90.0, 6.0))])
    assert read is not None
    assert times.ratio(both, *read)[honest] == pytest.approx(3.0)
    assert list(times.export(honest)) == ["page"]
    times.forget(liar)
    assert times.export(liar) == {}, "its columns are free for the next node"


def test_calm_times_come_back_from_disk_and_damaged_ones_are_refused() -> None:
    times = learnt(("page", 90.0, 10.0))
    again = RouteTimes()
    again.resize(1)
    again.restore(0, times.export(0))
    assert ratio(again, ("page", 1.0, 30.0)) == pytest.approx(3.0)
    for damaged in ({"page": -1}, {"page": "x"}, [1]):
        with pytest.raises(ValueError, match="no calm response times of routes"):
            again.restore(0, damaged)  # type: ignore[arg-type]
        assert again.export(0) == {}
