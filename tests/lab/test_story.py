"""The whole on the real lab: a neighbour comes and goes, parts hang and die, HAProxy reloads; no request fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from slackwater.core.messages import Cycle
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.bus import POOL
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.traces import traces
from slackwater_lab.experiment.steady import at_baseline
from tests.support.lab_stage import BACK_WITHIN_S, MITIGATED_WITHIN_S, REDUCED, Stage
from tests.support.real_lab import eventually, needs_lab
from tests.support.real_processes import is_alive

pytestmark = [pytest.mark.lab, needs_lab, pytest.mark.timeout(900)]

RATE_RPS = 200.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    if left_behind := traces():
        pytest.skip(f"a lab is up or was left behind: {left_behind}")
    with Lab(LabSettings()) as lab:
        on = Stage(lab, RATE_RPS)
        on.load.start()
        on.controller.start()
        yield on
        on.load.stop()


def test_a_neighbour_takes_the_weight_and_its_end_gives_it_back(stage: Stage) -> None:
    begin_unix_s = time.time()
    with stage.neighbour():
        eventually("it has the least", lambda: has_least(stage), MITIGATED_WITHIN_S)
        eventually("the journal has the Verdict", lambda: stage.state() == "interference", MITIGATED_WITHIN_S)
    stage.back()
    assert stage.controller.journal is not None
    made = stage.controller.journal.changes(POOL, 1000, begin_unix_s)
    moves = [
        int(change.after or 0)
        for change in made
        if (change.what, change.target, change.applied) == ("weight", stage.name, True)
    ]
    assert min(moves) < REDUCED, "the reduction is in the journal"
    assert all(change.why and change.by for change in made)
    assert moves[0] == BASE_WEIGHT, "newest first: the way back ends at the baseline"


def test_a_detector_that_hangs_loses_its_lease(stage: Stage) -> None:
    with stage.neighbour() as noise:
        pid = pid_of(stage, "detector")
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually("baseline weights without Verdicts", lambda: at_baseline(stage.lab), BACK_WITHIN_S)
            noise.check()
        finally:
            os.kill(pid, signal.SIGCONT)
        stage.mitigated()
    stage.back()


def test_a_detector_that_is_killed_comes_back_and_goes_on(stage: Stage) -> None:
    with stage.neighbour() as noise:
        pid = pid_of(stage, "detector")
        os.kill(pid, signal.SIGKILL)
        eventually("another detector runs", lambda: another(stage, "detector", pid), MITIGATED_WITHIN_S)
        stage.mitigated()
        noise.check()
    stage.back()


def test_an_lbengine_that_is_killed_comes_back_and_gives_the_weight_back(stage: Stage) -> None:
    with stage.neighbour():
        pid = pid_of(stage, "lbengine")
        os.kill(pid, signal.SIGKILL)
        eventually("another lbengine runs", lambda: another(stage, "lbengine", pid), MITIGATED_WITHIN_S)
        stage.mitigated()
    stage.back()


def test_wanted_weights_are_back_within_two_cycles_of_a_reload(stage: Stage) -> None:
    with BusListener("cycle") as listener, stage.neighbour():
        begin_unix_s = time.time()
        stage.lab.balancer.reload()
        stage.mitigated()
        eventually("cycles after it", lambda: len(cycles_since(listener, begin_unix_s)) >= 5, MITIGATED_WITHIN_S)
        wrong = [
            cycle.time_unix_s
            for cycle in cycles_since(listener, begin_unix_s)
            for server in cycle.servers
            if server.server == stage.name and server.weight == BASE_WEIGHT and server.wanted < REDUCED
        ]
        assert len(wrong) <= 2, "cycles that saw the forgotten weight"
    stage.back()


def cycles_since(listener: BusListener, unix_s: float) -> list[Cycle]:
    listener.check()
    return [cycle for cycle in list(listener.heard) if cycle.time_unix_s > unix_s]


def test_the_end_of_serve_leaves_the_baseline_although_the_neighbour_is_loud(stage: Stage) -> None:
    with stage.neighbour() as noise:
        stage.controller.stop()
        assert at_baseline(stage.lab)
        noise.check()


def test_no_request_failed_in_all_of_this(stage: Stage) -> None:
    stage.load.stop()
    assert stage.load.failed == []
    assert stage.load.answered > 500


def has_least(stage: Stage) -> bool:
    """Whether each other server has a higher weight than the noisy host's."""
    weights = stage.lab.balancer.snapshot().weight
    return all(weight > weights[stage.name] for name, weight in weights.items() if name != stage.name)


def pid_of(stage: Stage, child: str) -> int:
    pid = stage.controller.child_pid(child)
    assert pid is not None
    return pid


def another(stage: Stage, child: str, than: int) -> bool:
    pid = stage.controller.child_pid(child)
    return pid is not None and pid != than and is_alive(pid)
