"""The queues of the papers' machines against what queueing theory says of them."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater_lab.governor.queues import PinnedQueues, erlang_c, mmc_wait_quantile_s, mmc_wait_s


def waits_s(cv2: float, load: float, speeds: tuple[float, ...] = (1.0,), seed: int = 1) -> np.ndarray:
    """Waits of many requests whose work is 1 ms of a core, in intervals of 1 s."""
    queues = PinnedQueues(1e-3, cv2=cv2, random=np.random.default_rng(seed))
    return np.concatenate([queues.run(1.0, load * 1e3 * sum(speeds), speeds).waited_s for _ in range(600)])


@pytest.mark.parametrize("cv2", [0.0, 0.5, 1.0, 2.0])
def test_mean_wait_of_mg1_is_that_of_pollaczek_and_khinchine(cv2: float) -> None:
    theory_s = 0.7 * 1e-3 * (1.0 + cv2) / 2.0 / (1.0 - 0.7)
    assert waits_s(cv2, 0.7).mean() == pytest.approx(theory_s, rel=0.05)


def test_the_response_time_of_mm1_is_exponential() -> None:
    queues = PinnedQueues(1e-3, random=np.random.default_rng(2))
    took_s = np.concatenate([queues.run(0.1, 600.0, (1.0,)).answered_s for _ in range(6000)])
    assert np.percentile(took_s, 95) == pytest.approx(-np.log(0.05) * 1e-3 / (1.0 - 0.6), rel=0.05)


def test_a_slower_clock_makes_a_slower_queue_and_pinned_queues_do_not_share() -> None:
    two = waits_s(1.0, 0.6, (0.5, 0.5))
    assert two.mean() == pytest.approx(0.6 * 2e-3 / (1.0 - 0.6), rel=0.05)


def test_nothing_is_lost_when_clocks_and_cores_change() -> None:
    queues = PinnedQueues(1e-3, cv2=0.0, random=np.random.default_rng(3))
    work_s = answered = 0.0
    for seconds, rps, speeds in ((1.0, 1900.0, (1.0, 1.0)), (0.5, 900.0, (0.5,)), (2.0, 0.0, (1.0, 1.0, 0.25))):
        done = queues.run(seconds, rps, speeds)
        answered += len(done.answered_s)
        work_s += sum(busy * seconds * speed for busy, speed in zip(done.busy_shares, speeds, strict=True))
    assert done.oldest_s == 0.0, "all are answered"
    assert work_s == pytest.approx(answered * 1e-3)


def test_a_closed_loop_is_no_slower_than_its_connections() -> None:
    queues = PinnedQueues(1e-3, cv2=0.0, connections=8, random=np.random.default_rng(4))
    first, second = queues.run(1.0, 5000.0, (1.0, 1.0)), queues.run(1.0, 5000.0, (1.0, 1.0))
    assert second.answered_s.max() == pytest.approx(4e-3), "four connections at each core, one service time each"
    assert len(first.answered_s) + len(second.answered_s) == pytest.approx(4000, abs=8)
    assert second.oldest_s <= 4e-3


def test_requests_dealt_out_in_turn_wait_as_in_a_queue_with_erlang_arrivals() -> None:
    queues = PinnedQueues(1e-3, in_turn=True, random=np.random.default_rng(5))
    waited_s = np.concatenate([queues.run(1.0, 1400.0, (1.0, 1.0)).waited_s for _ in range(600)])
    # E2/M/1: the root of x = (a / (a + 1 - x))^2 with a = 2 * 0.7 arrival stages per service (Kleinrock 1975, 6.3).
    root = 0.5
    for _ in range(200):
        root = (1.4 / (1.4 + 1.0 - root)) ** 2
    assert waited_s.mean() == pytest.approx(root * 1e-3 / (1.0 - root), rel=0.05)


def test_the_turn_goes_on_from_one_interval_to_the_next() -> None:
    queues = PinnedQueues(1e-6, cv2=0.0, in_turn=True, random=np.random.default_rng(6))
    busy_s = sum(np.array(queues.run(0.01, 300.0, (1.0, 1.0, 1.0)).busy_shares) * 0.01 for _ in range(1000))
    assert np.ptp(busy_s) == pytest.approx(0.0, abs=1.1e-6), "no queue got two requests more than another"


def test_erlang_c_has_its_textbook_values() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(3, 5.0) == 1.0


def test_the_quantiles_of_mmc_belong_to_its_mean() -> None:
    quantiles = (np.arange(100_000) + 0.5) / 100_000
    waits = [mmc_wait_quantile_s(3, 2.4, 1.0, float(quantile)) for quantile in quantiles]
    assert np.mean(waits) == pytest.approx(mmc_wait_s(3, 2.4, 1.0), rel=1e-3)
