"""Batch jobs beside a web server: who has which cores, and in which order that is changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater.core.config import BATCH_CORES, BATCH_RUNNING, GovernorSettings
from slackwater.core.messages import KnobState
from slackwater.governor.batch import BatchKnobs, batch_knobs, turn
from slackwater.governor.lines import as_line
from slackwater.orders.knobs import RELEASE, Value
from tests.support.played_governor import CORES, LEASE_S, Played, PlayedNode

KNOBS: list[Any] = ["cpu.cores", "batch.cores", "batch.running"]


def own_cores(baseline: int = 4, lowest: int = 1, highest: int = 4) -> KnobState:
    return KnobState(BATCH_CORES, baseline, baseline, lowest, highest)


def running(value: str = "on") -> KnobState:
    return KnobState(BATCH_RUNNING, value, value, words=["on", "off"])


def knobs_of(*states: KnobState) -> BatchKnobs:
    knobs = batch_knobs({state.name: state for state in states}, 4)
    assert knobs is not None
    return knobs


def test_batch_jobs_have_what_the_web_server_does_not_need_and_stand_still_when_that_is_nothing() -> None:
    knobs = knobs_of(own_cores(), running())
    assert [knobs.values(serving, may_run=True) for serving in (1, 3, 4)] == [
        {BATCH_CORES: 3},
        {BATCH_CORES: 1},
        {BATCH_CORES: 1, BATCH_RUNNING: "off"},
    ]
    assert knobs.values(1, may_run=False) == {BATCH_CORES: 1, BATCH_RUNNING: "off"}
    in_force: list[dict[str, Value]] = [{}, {BATCH_CORES: 3}, {BATCH_CORES: 1, BATCH_RUNNING: "off"}]
    assert [knobs.in_force(values) for values in in_force] == [4, 3, 0]


def test_the_nodes_own_limits_hold_for_batch_jobs_too() -> None:
    assert knobs_of(own_cores(lowest=2)).values(4, may_run=True) == {BATCH_CORES: 2}, "they may not be stopped there"
    assert knobs_of(own_cores(highest=2)).values(1, may_run=True) == {BATCH_CORES: 2}
    assert knobs_of(running()).values(1, may_run=True) == {}
    assert knobs_of(running()).values(4, may_run=True) == {BATCH_RUNNING: "off"}


@pytest.mark.parametrize("states", [[], [own_cores(baseline=2), running()], [running("off")]])
def test_batch_jobs_with_cores_of_their_own_or_stopped_by_the_site_are_left_alone(
    states: list[KnobState],
) -> None:
    assert batch_knobs({state.name: state for state in states}, 4) is None


def test_batch_jobs_yield_before_the_web_server_grows_and_gain_after_it_has_shrunk() -> None:
    def order(due: dict[str, Value], held: dict[str, Value]) -> list[str]:
        return sorted(due, key=lambda knob: turn(knob, due[knob], held.get(knob)))

    assert order({CORES: 2, BATCH_CORES: 2}, {CORES: 1, BATCH_CORES: 3}) == [BATCH_CORES, CORES]
    assert order({BATCH_CORES: 3, CORES: 1}, {CORES: 2, BATCH_CORES: 2}) == [CORES, BATCH_CORES]
    assert order({CORES: RELEASE, BATCH_RUNNING: "off"}, {CORES: 3}) == [BATCH_RUNNING, CORES]
    assert order({BATCH_RUNNING: RELEASE, CORES: 3}, {BATCH_RUNNING: "off"}) == [CORES, BATCH_RUNNING]
    assert order({BATCH_CORES: RELEASE, CORES: RELEASE}, {CORES: 1, BATCH_CORES: 3}) == [CORES, BATCH_CORES]
    assert order({"cpu.quota": 40, CORES: RELEASE}, {CORES: 1}) == [CORES, "cpu.quota"]


def played(policy: Any) -> Played:
    settings = GovernorSettings(mode="act", policy=policy, knobs=KNOBS, lower_every_s=1.0, lease_s=LEASE_S)
    knobs = {CORES: (4, 1, 4), BATCH_CORES: (4, 1, 4)}
    return Played(settings, PlayedNode(knobs=knobs, stops_batch=True))


def changes(site: Played) -> list[tuple[str, Value]]:
    """The Orders but renewals: knob and value."""
    pairs = zip(site.orders, site.causes, strict=True)
    return [(knob, value) for (_, knob, value), cause in pairs if cause == "governor"]


def in_use(orders: list[tuple[float, str, Value]]) -> list[int]:
    """Cores of web server and batch jobs together after each Order, once both have been given some."""
    now: dict[str, Value] = {}
    sums = []
    for _, knob, value in orders:
        now[knob] = value
        cores, batch = now.get(CORES), now.get(BATCH_CORES)
        if isinstance(cores, int) and isinstance(batch, int) and now.get(BATCH_RUNNING) != "off":
            sums.append(cores + batch)
    return sums


def test_core_switch_moves_a_core_between_web_server_and_batch_jobs() -> None:
    async def story() -> None:
        site = played("core-switch")
        site.node.busy_cores = 0.5
        await site.run(10.0)
        assert (site.node.value(CORES), site.node.value(BATCH_CORES), site.node.value(BATCH_RUNNING)) == (1, 3, "on")
        site.node.busy_cores = 1.6
        await site.run(10.0)
        assert (site.node.value(CORES), site.node.value(BATCH_CORES)) == (2, 2)
        governed = site.published[-1]
        assert (governed.cores, governed.batch_cores) == (2, 2)
        assert "2 cores, stays, batch jobs have 2 cores: " in as_line(governed)
        site.node.busy_cores = 0.5
        await site.run(10.0)
        assert (site.node.value(CORES), site.node.value(BATCH_CORES)) == (1, 3)
        assert max(in_use(site.orders)) == 4, "no core is given twice"
        await site.pool.end()
        assert site.node.set == {}
        assert site.orders[-1][1:] == (BATCH_CORES, RELEASE)

    asyncio.run(story())


def test_batch_jobs_stand_still_while_the_web_server_needs_all_cores_and_run_again_without_samples() -> None:
    async def story() -> None:
        site = played("slackwater")
        site.node.busy_cores = 3.9
        await site.run(20.0)
        assert site.node.value(BATCH_RUNNING) == "off"
        assert site.published[-1].batch_cores == 0
        assert "batch jobs stand still" in as_line(site.published[-1])
        site.node.busy_cores = 0.3
        await site.run(120.0)
        assert site.node.value(BATCH_RUNNING) == "on"
        assert int(site.node.value(CORES)) + int(site.node.value(BATCH_CORES)) == 4
        before = len(changes(site))
        site.node.busy_cores = 3.9
        await site.run(20.0)
        assert site.node.value(BATCH_RUNNING) == "off"
        given = changes(site)[before:]
        assert (BATCH_RUNNING, "off") in given[: given.index((CORES, RELEASE))], "they stop first"
        site.blind = True
        await site.run(10.0)
        assert site.node.set == {}

    asyncio.run(story())


def test_a_dead_controller_lets_the_leases_end() -> None:
    async def story() -> None:
        site = played("core-switch")
        site.node.busy_cores = 0.5
        await site.run(10.0)
        assert site.node.set
        await site.run(LEASE_S + 1.0, governed=False)
        assert site.node.set == {}

    asyncio.run(story())
