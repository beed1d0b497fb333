"""What a server does to itself is no neighbour: replaced processes, a burst of its own; and what is not its doing."""

from __future__ import annotations

import numpy as np
import pytest

from detector.classify.judge import Judge
from detector.classify.thresholds import NO_BURST_LOAD, find_deviations
from slackwater.messages import Verdict
from tests.support.cluster_frames import frame
from tests.support.synthetic_cluster import PERIOD_S, Cluster


@pytest.mark.parametrize(
    ("peak", "found"), [(0.3, True), (NO_BURST_LOAD - 0.01, True), (NO_BURST_LOAD, False), (0.8, False)]
)
def test_requests_that_wait_for_a_core_twice_show_a_neighbour_where_the_server_had_time(
    peak: float, found: bool
) -> None:
    waiting = frame(peak, run_delay_per_cpu=4.0, rt_mean=3.0, rt_p95=4.0)
    first = find_deviations(waiting, np.array([False]))
    assert not first.interfering.any(), "once may be the first tick of a burst"
    assert first.queueing_suspected.tolist() == [found]
    assert find_deviations(waiting, first.queueing_suspected).interfering.tolist() == [found]


def test_waiting_that_nobody_feels_and_slowness_without_waiting_are_not_enough() -> None:
    waited = np.array([True])
    assert not find_deviations(frame(0.3, run_delay_per_cpu=4.0, rt_mean=1.1, rt_p95=1.1), waited).interfering.any()
    assert not find_deviations(frame(0.3, run_delay_per_cpu=1.1, rt_mean=4.0, rt_p95=4.0), waited).interfering.any()


@pytest.mark.parametrize(
    ("threads", "state"),
    [(84, "interference"), (83, "interference"), (74, "calm"), (100, "calm")],
    ids=["the same", "one process fewer", "a reload", "more of them"],
)
@pytest.mark.parametrize("seed", range(3))
def test_who_replaces_its_processes_waits_for_itself(seed: int, threads: int, state: str) -> None:
    """Half a second of waiting as beside a neighbour, while the web server's processes change, or do not."""
    judge, cluster = Judge("web", stale_after_s=1.0, calm_dwell_s=2.0), Cluster(seed=seed, canary=False)
    found: set[str] = set()

    def play(seconds: float) -> None:
        for now_s, batch in cluster.run(seconds):
            found.update(verdict.state for verdict in judge.tick(now_s, batch) if verdict.node == "host1")

    play(15.0)
    assert found == {"calm"}
    host = cluster.hosts["host1"]
    host.threads, host.neighbour = threads, 0.6
    play(3 * PERIOD_S)
    host.neighbour = 0.0
    play(2.0)
    assert found == {"calm", state}


@pytest.mark.parametrize(("backup", "state"), [(0.0, "interference"), (1.0, "overload")])
@pytest.mark.parametrize("seed", range(3))
def test_a_cgroup_that_its_own_programs_fill_has_no_neighbour(seed: int, backup: float, state: str) -> None:
    """What waits, waits as beside a neighbour; only the cgroup's CPU time tells who took the time."""
    judge, cluster = Judge("web", stale_after_s=1.0, calm_dwell_s=2.0), Cluster(seed=seed, rich=True)
    verdicts: list[Verdict] = []

    def play(seconds: float) -> None:
        for now_s, batch in cluster.run(seconds):
            verdicts.extend(verdict for verdict in judge.tick(now_s, batch) if verdict.node == "host1")

    play(15.0)
    assert {verdict.state for verdict in verdicts} == {"calm"}
    host = cluster.hosts["host1"]
    host.neighbour, host.backup = 0.6, backup
    play(5.0)
    assert {verdict.state for verdict in verdicts} == {"calm", state}
    told = any("its other programs take" in line for verdict in verdicts for line in verdict.path)
    assert told == (backup > 0)
