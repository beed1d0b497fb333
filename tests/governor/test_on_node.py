"""Policies that run on the node: which one is ordered, when it is taken back, and what is said of it."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.core.config import GovernorSettings
from slackwater.core.messages import Knobs, KnobState
from slackwater.governor.on_node import ChosenPolicy, choose_policy
from tests.support.played_governor import CORES, LEASE_S, POLICY, QUOTA, Played, PlayedNode

CORE_FREQUENCY = "cpu.core_frequency"
QUOTA_200 = KnobState(QUOTA, 200, 200, 10, 800)
HURRY_UP = "hurry-up lever=cpu.quota clocks=40,60,100 cores=2 period_ms=50 after_ms=450"


def settings(policy: str = "hurry-up", **others: object) -> GovernorSettings:
    return GovernorSettings(mode="act", lease_s=LEASE_S, policy=policy, **others)  # type: ignore[arg-type]


def runs(*words: str) -> KnobState:
    return KnobState(POLICY, "off", "off", words=list(words) or ["hurry-up", "pareto"])


def chosen(governor: GovernorSettings, *states: KnobState, cores: int = 2) -> str:
    policy = choose_policy(governor, Knobs(1, "web1", "web", 1e9, "any", list(states)), cores)
    return policy.value if isinstance(policy, ChosenPolicy) else f"none: {policy}"


def test_a_quota_stands_in_for_the_clock_and_is_called_so() -> None:
    assert chosen(settings(), runs(), QUOTA_200) == HURRY_UP
    policy = choose_policy(settings(), Knobs(1, "web1", "web", 1e9, "any", [runs(), QUOTA_200]), 2)
    assert isinstance(policy, ChosenPolicy)
    assert policy.why == "hurry-up runs on the node: 40, 60 or 100% of a core's time, by a quota, which is no clock"


def test_clocks_are_taken_where_there_are_some() -> None:
    clocks = settings(clocks_mhz=[1000.0, 2000.0, 2600.0], node_period_ms=60, hot_after_ms=300)
    own = KnobState(CORE_FREQUENCY, "2600000,2600000", "2600000,2600000", 1_000_000, 2_600_000)
    expected = "hurry-up lever=cpu.core_frequency clocks=1000000,2000000,2600000 cores=2 period_ms=60 after_ms=300"
    assert chosen(clocks, runs(), own, QUOTA_200) == expected
    assert chosen(settings(clocks_mhz=[1000.0, 2600.0]), runs(), own).split()[2] == "clocks=1000000,2600000"


def test_pareto_takes_cores_only_where_it_may() -> None:
    cores = KnobState(CORES, 2, 2, 1, 8)
    without = "pareto lever=cpu.quota clocks=40,60,80,100 cores=2 period_ms=50 up_delay_us=300 fewest=2"
    assert chosen(settings("pareto"), runs(), QUOTA_200) == without
    assert chosen(settings("pareto"), runs(), QUOTA_200, cores) == without.replace("fewest=2", "fewest=1")
    assert chosen(settings("pareto", knobs=["cpu.quota"]), runs(), QUOTA_200, cores) == without


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ([QUOTA_200], "none: the node's wsengine does not list `cpu.policy` with hurry-up"),
        ([runs("pareto"), QUOTA_200], "none: the node's wsengine does not list `cpu.policy` with hurry-up"),
        ([runs()], "none: the node's wsengine lists no clock for the policy, and no quota to stand in for one"),
        (
            [runs(), KnobState(QUOTA, 200, 200, 100, 800)],
            "none: 80 to 200 is not within what the node allows of `cpu.quota`",
        ),
    ],
)
def test_why_there_is_none(states: list[KnobState], why: str) -> None:
    assert chosen(settings(), *states) == why


def played(mode: str = "act") -> Played:
    node = PlayedNode(knobs={QUOTA: (200, 10, 800)}, policies=["hurry-up", "pareto"], base_ms=20.0, busy_cores=0.2)
    governor = GovernorSettings(mode=mode, lease_s=LEASE_S, policy="hurry-up")  # type: ignore[arg-type]
    return Played(governor, node, mode)  # type: ignore[arg-type]


def test_it_is_given_renewed_and_taken_back_beside_a_neighbour() -> None:
    async def story() -> None:
        scene = played()
        await scene.run(2.0)
        assert [(knob, value) for _, knob, value in scene.orders] == [(POLICY, HURRY_UP)]
        assert scene.published[-1].why.startswith("hurry-up runs on the node")
        assert (scene.published[-1].policy, scene.published[-1].clock_knob) == ("hurry-up", QUOTA)
        assert "hurry-up runs on the node" in scene.reasons[0]
        await scene.run(LEASE_S)
        assert set(scene.causes[1:]) == {"renewed"}
        scene.state = "interference"
        await scene.run(1.0)
        assert scene.orders[-1][1:] == (POLICY, "baseline")
        assert scene.published[-1].why == "interference: as it is without the governor"
        scene.state = "calm"
        await scene.run(2.0)
        assert scene.orders[-1][1:] == (POLICY, HURRY_UP)
        scene.blind = True
        await scene.run(5.0)
        assert scene.orders[-1][1:] == (POLICY, "baseline"), "no Samples"

    asyncio.run(story())


def test_in_observe_mode_it_is_noted_and_no_order_is_given() -> None:
    async def story() -> None:
        scene = played("observe")
        await scene.run(2.0)
        assert scene.orders == []
        assert scene.notes == [(POLICY, "off", HURRY_UP)]

    asyncio.run(story())


def test_the_end_of_the_governor_takes_it_back() -> None:
    async def story() -> None:
        scene = played()
        await scene.run(2.0)
        await scene.pool.end()
        assert scene.orders[-1][1:] == (POLICY, "baseline")

    asyncio.run(story())
