"""What a server does to itself is no neighbour: replaced processes, a burst of its own; and what is not its doing."""

from __future__ import annotations

import pytest

from slackwater.core.messages import Verdict
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import PERIOD_S, Cluster


@pytest.mark.parametrize(
    ("threads", "state"),
    [(84, "interference"), (83, "interference"), (74, "calm"), (100, "calm")],
    ids=["the same", "one process fewer", "a reload", "more of them"],
)
@pytest.mark.parametrize("seed", seeds(3))
def test_who_replaces_its_processes_waits_for_itself(seed: int, threads: int, state: str) -> None:
    """Half a second of waiting as beside a neighbour, while the web server's processes change, or do not."""
    judge, cluster = new_judge(), Cluster(seed=seed, canary=False)
    states: set[str] = set()

    def play(seconds: float) -> None:
        for now_s, batch in cluster.run(seconds):
            states.update(verdict.state for verdict in judge.tick(now_s, batch) if verdict.node == "host1")

    play(15.0)
    assert states == {"calm"}
    host = cluster.hosts["host1"]
    host.threads, host.neighbour = threads, 0.6
    play(3 * PERIOD_S)
    host.neighbour = 0.0
    play(2.0)
    assert states == {"calm", state}


@pytest.mark.parametrize(("backup", "state"), [(0.0, "interference"), (1.0, "overload")])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_cgroup_that_its_own_programs_fill_has_no_neighbour(seed: int, backup: float, state: str) -> None:
    """What waits, waits as beside a neighbour; only the cgroup's CPU time tells who took the time."""
    judge, cluster = new_judge(), Cluster(seed=seed, rich=True)
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
    is_told = any("its other programs take" in line for verdict in verdicts for line in verdict.path)
    assert is_told == (backup > 0)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_cgroup_full_of_dear_requests_has_no_neighbour(seed: int) -> None:
    """A job of the web server's own, such as a backup, is booked on its requests. Nobody else does that to a cgroup."""
    judge, cluster = new_judge(), Cluster(seed=seed, canary=False)
    host = cluster.hosts["host1"]
    states: set[str] = set()

    def play(seconds: float) -> None:
        for now_s, batch in cluster.run(seconds):
            states.update(verdict.state for verdict in judge.tick(now_s, batch) if verdict.node == "host1")

    play(15.0)
    host.rps, host.dearer = 30.0, 10.0
    play(10.0)
    assert "interference" not in states
