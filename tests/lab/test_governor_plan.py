"""`slackwater governor plan`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.governor_commands import governor
from slackwater.governor.power import hardware
from slackwater_lab.governor.plan import PLANNED, Service, plan

OF = hardware("a72", 3, (500.0, 1000.0, 2000.0), busy_w=4.0, base_w=0.0, idle_w=0.5)
SERVICE = Service(work_ms=5.0, target_ms=100.0, base_ms=2.0)
WORDS = ["plan", "--cores", "3", "--clocks-mhz", "500,1000,2000", "--work-ms", "5", "--target-ms", "100"]


def test_more_load_gets_more_and_all_get_less_than_everything() -> None:
    low, high = plan("slackwater", OF, SERVICE, (20.0, 300.0), 20)
    assert low.cores * low.clock_mhz < high.cores * high.clock_mhz
    assert low.watts < low.static_watts
    assert low.within_target_percent >= 80.0


def test_static_keeps_the_highest_configuration() -> None:
    (step,) = plan("static", OF, SERVICE, (50.0,), 5)
    assert (step.cores, step.clock_mhz, step.share) == (3, 2000.0, 1.0)
    assert step.watts == step.static_watts
    assert step.p95_ms is not None
    assert step.p95_ms > SERVICE.base_ms


def test_nobody_there() -> None:
    (step,) = plan("slackwater", OF, SERVICE, (0.0,), 5)
    assert step.p95_ms is None
    assert step.within_target_percent == 100.0


@pytest.mark.parametrize("policy", PLANNED)
def test_each_policy_makes_a_plan(policy: str) -> None:
    (step,) = plan(policy, OF, SERVICE, (30.0,), 3)
    assert step.rps == 30.0


def test_the_command_writes_the_steps() -> None:
    done = CliRunner().invoke(governor, [*WORDS, "--load", "10,100", "--step-s", "3", "--json", "-"])
    assert done.exit_code == 0, done.output
    assert [step["rps"] for step in json.loads(done.output)["steps"]] == [10.0, 100.0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--load", "10,x"], "expected numbers with commas"),
        (["--load", "10", "--clocks-mhz", "900,500"], "expected ascending clocks"),
    ],
)
def test_bad_numbers_are_refused(words: list[str], expected: str) -> None:
    done = CliRunner().invoke(governor, [*WORDS, *words])
    assert done.exit_code == 2
    assert expected in done.output
