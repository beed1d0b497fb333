"""Whatever is in force by our Orders is given back, whatever became of the Orders and of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.core.messages import ChangeCause, Knobs, Mode, Verdict
from slackwater.orders.knobs import REACHES_S, RELEASE, Value
from tests.support.played_governor import CORES, LEASE_S, Played
from tests.support.played_retune import CHILDREN, FREQUENCY, Story, play

MODES = [pytest.param(True, "act", id="pause"), pytest.param(False, "observe", id="observe")]


def stop(played: Story | Played, paused: bool, mode: Mode) -> None:
    played.paused, played.mode = paused, mode


# --- a pause, and observe


@pytest.mark.parametrize(("paused", "mode"), MODES)
def test_the_second_stage_gives_everything_back(tmp_path: Path, paused: bool, mode: Mode) -> None:
    async def script() -> None:
        story = Story(tmp_path)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        assert story.site.values
        stop(story, paused, mode)
        assert sorted(await story.run(60.0)) == [f"order web1 {knob} {RELEASE}" for knob in (FREQUENCY, CHILDREN)]
        assert story.site.values == {}

    play(script())


@pytest.mark.parametrize(("paused", "mode"), MODES)
def test_the_governor_gives_everything_back(paused: bool, mode: Mode) -> None:
    async def script() -> None:
        played = Played()
        await played.run(60.0)
        assert played.node.set
        assert played.published[-1].mode == "act"
        stop(played, paused, mode)
        await played.run(2.0)
        assert played.node.set == {}
        count = len(played.orders)
        await played.run(LEASE_S)
        assert len(played.orders) == count
        assert played.published[-1].mode == mode

    play(script())


class SlowStory(Story):
    """Waiting takes as long as the pool's clock says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

        async def wait(ready: Callable[[], bool], within_s: float) -> bool:
            until_s = self.site.now_s + within_s
            while not ready():
                if self.site.now_s >= until_s:
                    return False
                await asyncio.sleep(0)
            return True

        self.site.wait = wait  # type: ignore[method-assign]
        self.states["web1"] = ("interference", 0.5)

    async def run_until(self, line: str) -> None:
        for _ in range(200):
            if line in await self.run(0.5):
                return
        raise AssertionError(f"never: {line}")


@pytest.mark.parametrize(("paused", "mode"), MODES)
def test_while_a_node_is_drained_nothing_is_set_any_more(tmp_path: Path, paused: bool, mode: Mode) -> None:
    async def script() -> None:
        story = SlowStory(tmp_path)
        story.site.in_flight["web1"] = 5
        await story.run_until("drain web1")
        assert ("web1", FREQUENCY) in story.site.values
        stop(story, paused, mode)
        assert f"order web1 {FREQUENCY} {RELEASE}" in await story.run(1.0), "at once"
        log = await story.run(60.0)
        assert not [line for line in log if CHILDREN in line]
        assert story.site.values == {}

    play(script())


@pytest.mark.parametrize(("paused", "mode"), MODES)
def test_an_order_that_the_node_has_not_answered_yet_is_withdrawn(tmp_path: Path, paused: bool, mode: Mode) -> None:
    async def script() -> None:
        story = SlowStory(tmp_path)
        story.site.answer = lambda _: None  # type: ignore[method-assign, assignment]
        await story.run_until(f"order web1 {CHILDREN} 16")
        story.deaf.add("web1")
        story.site.on_its_way.clear()
        stop(story, paused, mode)
        assert f"order web1 {CHILDREN} {RELEASE}" in await story.run(3.0)
        assert story.site.values == {}

    play(script())


# --- refusals and lost answers


@pytest.mark.parametrize("reloads", [True, False])
def test_what_was_in_force_before_a_refused_value_is_given_back(tmp_path: Path, reloads: bool) -> None:
    async def script() -> None:
        story = Story(tmp_path, reload_min_interval_s=1.0)
        story.site.reloads = reloads
        story.states["web1"] = ("interference", 0.3)
        await story.run(35.0)
        before = story.site.values["web1", CHILDREN]
        order = story.site.order

        async def refuse_more(node: str, knob: str, value: Value, why: str, cause: ChangeCause) -> str:
            story.site.refuses = "" if value in (before, RELEASE) else "too many"
            return await order(node, knob, value, why, cause)

        story.site.order = refuse_more  # type: ignore[method-assign]
        story.states["web1"] = ("interference", 0.7)
        log = await story.run(5.0)
        assert next(line for line in log if CHILDREN in line) == f"order web1 {CHILDREN} 32"
        story.paused = True
        await story.run(3.0)
        assert story.site.values == {}

    play(script())


@pytest.mark.parametrize("end", [True, False])
def test_the_governor_gives_back_what_was_in_force_before_a_refused_value(end: bool) -> None:
    async def script() -> None:
        played = Played()
        await played.run(60.0)
        played.node.refuses, played.node.busy_cores = True, 3.0
        refused_after = len(played.orders)
        while not [value for _, knob, value in played.orders[refused_after:] if knob == CORES]:
            await played.run(0.2)
        if end:
            played.pool.see(played._later.pop())
            await played.pool.end()
        else:
            played.paused = True
            await played.run(2.0)
        assert played.node.set == {}

    play(script())


def test_a_refused_renewal_is_followed_by_giving_the_knob_back() -> None:
    async def script() -> None:
        played = Played()
        await played.run(60.0)
        count = len(played.orders)
        played.node.refuses = True
        while "renewed" not in played.causes[count:]:
            await played.run(0.2)
        await played.run(2.0)
        assert played.node.set == {}
        assert "left alone" in played.reasons[-1]

    play(script())


def test_an_order_whose_answer_was_lost_is_held_and_given_back_in_a_pause(tmp_path: Path) -> None:
    async def script() -> None:
        story = Story(tmp_path)
        story.site.answer = lambda _: None  # type: ignore[method-assign, assignment]
        story.states["web1"] = ("interference", 0.5)
        while ("web1", CHILDREN) not in story.site.values:
            await story.run(0.5)
        await story.run(5.0)
        assert story.pool.node("web1").held[CHILDREN].value == 16
        assert story.pool.node("web1").stage.why.startswith("interference"), "it is of this run"
        story.paused = True
        await story.run(3.0)
        assert story.site.values == {}

    play(script())


@pytest.mark.parametrize("lost", [True, False])
def test_a_report_that_was_on_its_way_changes_nothing_that_is_held(tmp_path: Path, lost: bool) -> None:
    """`lost`: the later Order did not come into force by an answer, so a later report shows it."""

    async def script() -> None:
        story = Story(tmp_path)
        story.states["web1"] = ("interference", 0.5)
        await story.run(31.0)
        older: Knobs = story.site.knobs("web1")
        node = story.pool.node("web1")
        story.site.now_s += 1.0
        order = await story.site.order("web1", FREQUENCY, "powersave", "a test", "second_stage")
        if lost:
            node.see_knobs(story.site.knobs("web1"), story.site.now_s, story.site.sent_s)
        else:
            node.hold(FREQUENCY, "powersave", order, story.site.now_s)
        node.see_knobs(older, story.site.now_s, story.site.sent_s)
        assert (node.held[FREQUENCY].value, node.held[FREQUENCY].order) == ("powersave", order)

    play(script())


@pytest.mark.parametrize(("paused", "mode"), MODES)
def test_an_order_to_give_back_that_was_lost_is_sent_again(paused: bool, mode: Mode) -> None:
    async def script() -> None:
        played = Played()
        await played.run(60.0)
        stop(played, paused, mode)
        played.node.deaf = True
        await played.run(1.0)
        count = len(played.orders)
        assert [value for *_, value in played.orders].count(RELEASE) == len(played.node.set) > 0
        played.node.deaf = False
        await played.run(REACHES_S + 2.0)
        assert played.node.set == {}
        assert {value for *_, value in played.orders[count:]} == {RELEASE}
        count = len(played.orders)
        await played.run(LEASE_S)
        assert len(played.orders) == count, "once it is given back nothing more is sent"

    play(script())


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_an_order_to_give_back_that_waits_for_a_reload_or_was_answered_is_not_lost(
    tmp_path: Path, is_carried_out: bool
) -> None:
    async def script() -> None:
        story = Story(tmp_path)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        node, report = story.pool.node("web1"), story.site.knobs("web1")
        node.hold(CHILDREN, RELEASE, "the last", story.site.now_s, is_carried_out=is_carried_out)
        for waiting, is_lost in ((["the last"], False), ([], not is_carried_out)):
            report.waiting = waiting
            node.see_knobs(report, story.site.now_s + REACHES_S, story.site.sent_s)
            assert (CHILDREN in node.held) == is_lost

    play(script())


# --- room, and reasons


def test_a_node_that_is_gone_is_no_room(tmp_path: Path) -> None:
    async def script() -> None:
        story = Story(tmp_path)
        story.capacity_rps = 80.0
        gone = Verdict(1, "web9", "web", 2.0, "calm", 0.0, 0.0, [], "m", capacity_rps=300.0)
        story.pool.see(gone)
        await story.run(60.0)
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {FREQUENCY} performance" in await story.run(story.settings.no_room_after_s + 2.0)

    play(script())


def test_the_reasons_are_those_of_the_knob_also_where_the_frequency_may_be_lowered(tmp_path: Path) -> None:
    async def script() -> None:
        story = Story(tmp_path, calm_below_p95_ms=50.0, calm_frequency="powersave")
        order, reasons = story.site.order, []

        async def note(node: str, knob: str, value: Value, why: str, cause: ChangeCause) -> str:
            reasons.append((knob, value, why))
            return await order(node, knob, value, why, cause)

        story.site.order = note  # type: ignore[method-assign]
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        reasons.clear()
        story.states.clear()
        await story.run(30.0)
        assert {why for _, value, why in reasons if value == RELEASE} == {"the episode is over"}
        reasons.clear()
        await story.run(90.0)
        lowered = {why for _, value, why in reasons if value == "powersave" and not why.startswith("renewed")}
        assert lowered == {"calm, with latency to spare"}
        reasons.clear()
        story.p95_ms = lambda _: 80.0
        await story.run(2.0)
        assert set(reasons) == {(FREQUENCY, RELEASE, "no longer calm with latency to spare")}

    play(script())
