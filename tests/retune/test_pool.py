"""The second stage of one pool against a site that is played: who is drained, ordered, renewed, put back, and when."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.core.messages import Change, ChangeCause
from slackwater.orders.access import NotNow
from slackwater.retune.drain import drain_and_apply
from tests.support.played_retune import CHILDREN, FREQUENCY, NODES, PlayedCluster, Story, play


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def put_back(after: int, cause: ChangeCause) -> Change:
    """What a wsengine says that put the number of children back."""
    return Change(1, "c", "web", 0.0, CHILDREN, "web1", 16, after, "words", "wsengine", True, cause=cause)


def without_renewals(log: list[str]) -> list[str]:
    """Without the limits and renewals."""
    return [line for line in log if not line.startswith("limit") and "renewed" not in line and "undo limit" not in line]


def test_a_knob_that_belongs_to_the_governor_is_left_alone_in_an_episode_and_in_calm(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder, leave_alone=[FREQUENCY], calm_frequency="powersave", calm_below_p95_ms=50.0)
        story.states["web1"] = ("interference", 0.5)
        log = without_renewals(await story.run(40.0))
        assert f"order web1 {CHILDREN} 16" in log
        story.states.clear()
        log += await story.run(120.0)
        assert f"order web1 {CHILDREN} baseline" in log
        assert not [line for line in log if FREQUENCY in line]

    play(script())


def test_an_episode_that_lasts_is_limited_first_then_drained_ordered_and_given_back(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        assert await story.run(28.0) == []
        log = await story.run(8.0)
        assert log[0] == "limit web1 38"
        assert without_renewals(log) == [
            f"order web1 {FREQUENCY} performance",
            "drain web1",
            f"order web1 {CHILDREN} 16",
            "undo web1",
        ]
        assert "limit web1 38" in await story.run(25.0)
        story.states.clear()
        log = await story.run(12.0)
        assert without_renewals(log) == [
            f"order web1 {FREQUENCY} baseline",
            "drain web1",
            f"order web1 {CHILDREN} baseline",
            "undo web1",
        ]
        assert "undo limit web1" in log
        assert story.site.values == {}

    play(script())


def test_leases_are_renewed_well_before_their_end(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder, lease_s=60.0)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        log = await story.run(61.0)
        renewals = [line for line in log if "renewed" in line]
        assert renewals.count(f"order web1 {CHILDREN} 16 renewed") == 3
        assert without_renewals(log) == []

    play(script())


def test_a_knob_that_is_being_turned_is_not_renewed_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        story = Story(folder, lease_s=6.0)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        idle, wait = asyncio.Event(), story.site.wait

        async def wait_until_idle(ready: Callable[[], bool], within_s: float) -> bool:
            await idle.wait()
            return await wait(ready, within_s)

        monkeypatch.setattr(story.site, "wait", wait_until_idle)
        story.states["web1"] = ("interference", 0.7)
        log = await story.run(20.0)
        assert "drain web1" in log
        assert f"order web1 {FREQUENCY} performance renewed" in log
        assert not [line for line in log if CHILDREN in line and log.index(line) > log.index("drain web1")]
        idle.set()
        log = await story.run(5.0)
        assert f"order web1 {CHILDREN} 32" in log
        assert f"order web1 {CHILDREN} 32 renewed" in log

    play(script())


def test_one_node_of_a_pool_at_a_time(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states = dict.fromkeys(NODES, ("interference", 0.5))
        log = [line for line in without_renewals(await story.run(60.0)) if FREQUENCY not in line]
        assert sorted(line.split()[1] for line in log if line.startswith("drain")) == list(NODES)
        for position, line in enumerate(log):
            if line.startswith("drain"):
                node = line.split()[1]
                assert log[position + 1 : position + 3] == [f"order {node} {CHILDREN} 16", f"undo {node}"]

    play(script())


def test_without_room_in_the_rest_of_the_pool_it_begins_at_once(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states = dict.fromkeys(NODES, ("interference", 0.5))
        assert any(line.startswith("drain") for line in await story.run(9.0))

    play(script())


def test_reloads_of_one_node_are_apart_however_fast_its_episode_gets_worse(folder: Path) -> None:
    async def script() -> None:
        apart_s = 30.0
        story = Story(folder, reload_min_interval_s=apart_s)
        for severity, lasts_s in ((0.3, 35.0), (0.5, 40.0), (0.7, 40.0)):
            story.states["web1"] = ("interference", severity)
            await story.run(lasts_s)
        story.states.clear()
        await story.run(60.0)
        orders = [
            (at_s, line.split()[-1])
            for at_s, line in zip(story.site.logged_s, story.site.log, strict=True)
            if line.startswith(f"order web1 {CHILDREN}") and "renewed" not in line
        ]
        assert [value for _, value in orders] == ["8", "16", "32", "baseline"]
        between_s = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(orders)]
        assert min(between_s) >= apart_s
        assert between_s[0] < 40.0, "it was the interval that was waited for"

    play(script())


def test_a_node_that_the_guard_does_not_let_be_drained_is_not_reloaded(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.site.guard_refuses = True
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(45.0)
        assert "drain web1" in log
        assert not [line for line in log if CHILDREN in line]
        assert "undo web1" in log

    play(script())


def test_a_node_is_not_reloaded_because_a_cycle_from_before_the_drain_shows_it_without_weight() -> None:
    async def script() -> None:
        site = PlayedCluster()
        site.is_silent = True
        outcome = await drain_and_apply(site, "web1", {CHILDREN: 16}, {CHILDREN: "a test"}, 10.0)  # type: ignore[arg-type]
        assert site.log == ["drain web1", "undo web1"]
        assert "cannot be drained" in outcome.trouble

    play(script())


def test_a_lost_order_ends_the_drain_at_once_and_the_next_one_comes_after_the_interval(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.site.loses_orders = True
        story.states["web1"] = ("interference", 0.5)
        await story.run(30.0)
        timed = list(zip(story.site.log, story.site.logged_s, strict=True))
        (ordered_s,) = [at_s for line, at_s in timed if CHILDREN in line]
        undone_s = next(at_s for line, at_s in timed if line == "undo web1")
        assert undone_s - ordered_s < 1.0
        story.site.loses_orders = False
        log = await story.run(60.0)
        assert without_renewals(log)[-3:] == ["drain web1", f"order web1 {CHILDREN} 16", "undo web1"]

    play(script())


def test_a_node_whose_load_the_others_cannot_carry_is_reloaded_with_what_is_left_and_nobody_waits_for_its_end(
    folder: Path,
) -> None:
    async def script() -> None:
        story = Story(folder)
        story.site.kept = 40
        story.site.in_flight["web1"] = 9
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(40.0)
        assert without_renewals(log)[1:] == ["drain web1", f"order web1 {CHILDREN} 16", "undo web1"]

    play(script())


def test_requests_that_never_end_hold_a_reload_up_for_drain_s_only(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder, drain_s=5.0)
        story.site.in_flight["web1"] = 3
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {CHILDREN} 16" in await story.run(45.0)

    play(script())


def test_a_refusal_is_not_repeated_in_the_same_episode(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.site.refuses = "php-fpm's configuration does not pass its test"
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(120.0)
        assert [line for line in log if CHILDREN in line] == [f"order web1 {CHILDREN} 16"]
        story.states.clear()
        await story.run(20.0)
        story.site.refuses = ""
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {CHILDREN} 16" in await story.run(45.0)

    play(script())


def test_a_refused_value_that_needs_no_reload_is_neither_repeated_nor_renewed(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.site.refuses = "the driver does not take it"
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(120.0)
        assert [line for line in log if FREQUENCY in line] == [f"order web1 {FREQUENCY} performance"]

    play(script())


def test_a_knob_in_somebody_elses_lease_is_not_taken(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        await story.site.order("web1", FREQUENCY, "powersave", "theirs", "governor")
        story.site.by = "governor"
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(60.0)
        assert f"order web1 {CHILDREN} 16" in log
        assert not [line for line in log if FREQUENCY in line]

    play(script())


def test_what_an_operator_changed_is_theirs_until_the_episode_is_over(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        del story.site.orders["web1", CHILDREN], story.site.values["web1", CHILDREN]
        story.pool.see(put_back(3, "someone_else"))
        assert not [line for line in await story.run(90.0) if CHILDREN in line]

    play(script())


def test_what_a_crashed_wsengine_put_back_is_turned_again(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        del story.site.orders["web1", CHILDREN], story.site.values["web1", CHILDREN]
        story.pool.see(put_back(4, "engine_died"))
        assert f"order web1 {CHILDREN} 16" in await story.run(60.0)

    play(script())


def test_what_was_put_back_for_a_reason_of_its_own_is_left_alone(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        del story.site.orders["web1", CHILDREN], story.site.values["web1", CHILDREN]
        story.pool.see(put_back(4, "not_as_ordered"))
        assert not [line for line in await story.run(90.0) if CHILDREN in line]
        story.states.clear()
        await story.run(30.0)
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {CHILDREN} 16" in await story.run(45.0)

    play(script())


def test_words_decide_nothing(folder: Path) -> None:
    """What a Change says for people may be anything."""

    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        why = "put back: given back by nobody"
        story.pool.see(Change(1, "c", "web", 0.0, CHILDREN, "web1", 16, 16, why, "wsengine", True, cause="ordered"))
        assert f"order web1 {CHILDREN} 16 renewed" in await story.run(30.0)

    play(script())


def test_a_restarted_controller_takes_up_what_is_turned_without_a_reload(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        story.start()
        log = await story.run(10.0)
        assert without_renewals(log) == []
        assert f"order web1 {CHILDREN} 16 renewed" in log
        story.states.clear()
        assert f"order web1 {CHILDREN} baseline" in await story.run(20.0)

    play(script())


def test_what_was_given_back_is_not_taken_up_from_a_message_that_was_on_its_way(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(31.0)
        on_its_way = story.site.knobs("web1")
        story.states.clear()
        assert f"order web1 {FREQUENCY} baseline" in await story.run(12.0)
        story.pool.see(on_its_way)
        assert without_renewals(await story.run(3.0)) == []
        assert not story.pool.node("web1").stage.entered

    play(script())


def test_a_pause_gives_everything_back_and_turns_nothing(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        story.paused = True
        log = await story.run(30.0)
        assert f"order web1 {CHILDREN} baseline" in log
        assert not [line for line in log if line.startswith(("drain", "limit"))]

    play(script())


def test_in_a_pause_nothing_is_forgotten_that_cannot_be_given_back_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)

        async def refuse(*_: object) -> str:
            raise NotNow("the bus is away")

        with monkeypatch.context() as patch:
            patch.setattr(story.site, "order", refuse)
            story.paused = True
            await story.run(20.0)
        assert f"order web1 {CHILDREN} baseline" in await story.run(5.0)
        assert story.site.values == {}

    play(script())


def test_in_observe_it_only_says_what_it_would_do(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder, mode="observe")
        story.states["web1"] = ("interference", 0.5)
        assert await story.run(90.0) == []
        assert story.site.notes == [
            f"web1 {CHILDREN} 4 -> 16: interference: run delay, for 30 s; severity 50%",
            f"web1 {FREQUENCY} schedutil -> performance: interference: run delay, for 30 s; severity 50%",
        ]
        story.site.notes.clear()
        story.states.clear()
        assert await story.run(20.0) == []
        assert story.site.notes == [
            f"web1 {CHILDREN} 16 -> baseline: the episode is over",
            f"web1 {FREQUENCY} performance -> baseline: the episode is over",
        ]

    play(script())


def test_a_node_whose_wsengine_is_silent_is_left_alone(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)
        story.deaf.add("web1")
        story.states["web1"] = ("interference", 0.5)
        assert not [line for line in await story.run(60.0) if line.startswith(("drain", "order"))]

    play(script())


def test_the_frequency_goes_down_when_calm_with_latency_to_spare_and_up_again_at_once(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder, calm_frequency="powersave", calm_below_p95_ms=50.0)
        assert await story.run(55.0) == []
        log = await story.run(10.0)
        assert log == [f"order {node} {FREQUENCY} powersave" for node in NODES]
        story.p95_ms = lambda node: 80.0 if node == "web2" else 20.0
        assert await story.run(2.0) == [f"order web2 {FREQUENCY} baseline"]
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {FREQUENCY} baseline" in await story.run(2.0)
        assert f"order web1 {FREQUENCY} performance" in await story.run(40.0)

    play(script())


def test_the_frequency_is_left_alone_by_default(folder: Path) -> None:
    async def script() -> None:
        assert await Story(folder).run(200.0) == []

    play(script())


def test_nobody_to_drain_is_reported_and_nothing_is_ordered(folder: Path) -> None:
    async def script() -> None:
        story = Story(folder)

        async def refuse(action: str, node: str, why: str, **fields: float | str) -> None:  # noqa: ARG001
            raise NotNow("nobody answers")

        story.site.request = refuse  # type: ignore[method-assign]
        story.states["web1"] = ("interference", 0.5)
        assert not [line for line in await story.run(60.0) if CHILDREN in line]

    play(script())
