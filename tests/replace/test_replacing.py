"""The replacement of a machine: its steps in order on a real HAProxy under load, and every way in which it may end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.config import ReplaceSettings
from slackwater.core.messages import ChangeCause, Mode
from slackwater.orders.access import NotNow
from slackwater.replace import pool as replacing
from slackwater.replace.claims import Claims
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy
from tests.support.real_processes import is_alive
from tests.support.replaced_site import Machines, ReplacedSite, Users, cloud, machines, program

pytestmark = needs_haproxy
Story = Callable[[ReplacedSite], Awaitable[None]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at once, and a server is soon empty; it gives up on nothing that a busy machine makes late."""
    at_once = {"FIRST_LOOK_S": 0.0, "EMPTY_S": 0.4, "RENEW_S": 0.2, "SHOWN_S": 60.0, "BACK_S": 1000.0}
    for name, seconds in at_once.items():
        monkeypatch.setattr(replacing, name, seconds)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Machines]:
    yield from machines(tmp_path)


@pytest.fixture
def balancer(hosts: Machines) -> Iterator[RealHAProxy]:
    with haproxy(backend(hosts.ports)) as running:
        yield running


def play(
    balancer: RealHAProxy,
    folder: Path,
    story: Story,
    command: str = "",
    mode: Mode = "act",
    before: Story | None = None,
    **settings: Any,
) -> None:
    async def run() -> None:
        site = ReplacedSite(balancer, folder, ReplaceSettings(command=command or cloud(folder), **settings), mode)
        if before is not None:
            await before(site)
        async with site.running():
            await story(site)

    asyncio.run(run())


def script(folder: Path, text: str) -> str:
    return program(folder, f"#!/bin/sh\n{text}\n")


def test_it_is_drained_then_empty_then_replaced_then_back_and_no_request_is_lost(
    hosts: Machines, balancer: RealHAProxy, tmp_path: Path
) -> None:
    before = hosts.pid("host1")

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replacing")
        assert balancer.weight("host1") == 0
        await site.until_cause("replaced")
        await site.until(lambda: balancer.weight("host1") == 100, "its weight is back")
        at_the_time = users.answered
        await site.until(lambda: users.answered > at_the_time + 100, "requests go on")
        assert site.causes() == ["chronic", "replacing", "replaced"]
        first, *later = site.changes()
        assert {change.follows for change in later} == {first.id}
        assert first.why == site.plan.machines[0].why
        assert first.applied

    with Users(balancer.port) as users:
        play(balancer, tmp_path, story)
    assert users.lost == 0
    assert users.answered > 200
    assert hosts.pid("host1") != before
    assert not is_alive(before)
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["event"], told["pool"], told["node"], told["servers"]) == ("replace", "web", "host1", ["host1"])
    assert told["machine"]["lost_share"] == 0.05


def test_in_observe_mode_nothing_is_run_and_it_is_noted_once(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "LOOK_EVERY_S", 0.1)
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("chronic")
        await site.until(lambda: site.reads > 2, "it looks again")
        assert [(change.cause, change.applied) for change in site.changes()] == [("chronic", False)]
        assert site.bus.requests == []
        assert balancer.weight("host1") == 100

    play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"), mode="observe")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "timeout_s", "cause", "why"),
    [
        ("exit 3", 60.0, "replace_failed", "ended with status 3"),
        ("printf 'no\\033[2J rights\\r\\n'; exit 3", 60.0, "replace_failed", "it printed last: no [2J rights"),
        ("echo no rights >&2; exit 3", 60.0, "replace_failed", "ended with status 3; it printed last: no rights"),
        ("sleep 1000", 0.5, "replace_timeout", "was killed after 0.5 s"),
    ],
    ids=["failure", "last words with control characters", "its last words", "timeout"],
)
def test_a_command_that_fails_or_takes_too_long_gives_the_server_its_requests_back(
    balancer: RealHAProxy, tmp_path: Path, text: str, timeout_s: float, cause: str, why: str
) -> None:
    async def story(site: ReplacedSite) -> None:
        await site.until_cause(cause)
        assert site.changes()[-1].why.endswith(why)
        await site.until(lambda: balancer.weight("host1") == 100, "its weight is back")
        assert site.attempts()[0].ran_unix_s is not None, "it counts as the machine of its day"

    play(balancer, tmp_path, story, script(tmp_path, text), timeout_s=timeout_s)


def test_a_command_that_is_not_there_is_a_failure(balancer: RealHAProxy, tmp_path: Path) -> None:
    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replace_failed")
        assert "cannot be called: No such file or directory" in site.changes()[-1].why

    play(balancer, tmp_path, story, str(tmp_path / "none"))


def test_a_server_that_is_not_empty_in_time_is_not_replaced(balancer: RealHAProxy, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replace_given_up")
        assert site.changes()[-1].why.startswith("it is not empty after 0.3 s")
        await site.until(lambda: balancer.weight("host1") == 100, "its weight is back")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replacing, "EMPTY_S", 1000.0)
        play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"), drain_s=0.3)
    assert not ran.exists()


def test_while_another_server_is_slow_none_is_replaced(balancer: RealHAProxy, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        balancer.send("set server web/host3 state maint")
        await site.until_cause("replace_given_up")
        assert site.changes()[-1].why == "host3 does not carry its share now"
        assert balancer.weight("host2") == 100

    play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"))
    assert not ran.exists()


def test_a_pause_before_the_command_ends_it_and_its_drain(balancer: RealHAProxy, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until(lambda: balancer.weight("host1") == 0, "the drain")
        await site.command(action="pause")
        await site.until_cause("replace_given_up")
        assert "paused" in site.changes()[-1].why
        assert balancer.weight("host1") == 100

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replacing, "EMPTY_S", 1000.0)
        play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"))
    assert not ran.exists()


def is_given_up_where(
    happens: Callable[[ReplacedSite], Awaitable[None]],
    why: str,
    balancer: RealHAProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record of the call waits for what happens; then the command is not called, for this reason."""
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replace_given_up")
        assert site.changes()[-1].why == why
        assert site.attempts()[0].ran_unix_s is not None, "it counts as the machine of its day"

    async def before(site: ReplacedSite) -> None:
        record = site.access.record

        async def slowly(node: str, what: str, after: str, why: str, cause: ChangeCause, **more: Any) -> str:
            id_ = await record(node, what, after, why, cause, **more)
            if cause == "replacing":
                await happens(site)
            return id_

        monkeypatch.setattr(site.access, "record", slowly)

    play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"), before=before)
    assert not ran.exists()


def test_a_pause_while_the_call_is_being_recorded_keeps_the_command_from_being_called(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pause(site: ReplacedSite) -> None:
        await site.command(action="pause")
        await site.until(lambda: site.pool.cycle is not None and site.pool.cycle.paused, "the pause")

    is_given_up_where(pause, "the pool is paused", balancer, tmp_path, monkeypatch)


def test_the_command_is_not_called_where_lbengine_fell_silent_while_the_call_was_being_recorded(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may have its requests back by then."""

    async def fall_silent(site: ReplacedSite) -> None:
        site.is_lbengine_alive = False
        await site.until(lambda: not site.access.leads, "lbengine is silent")

    why = "the lbengine of this controller does not drive the pool"
    is_given_up_where(fall_silent, why, balancer, tmp_path, monkeypatch)


def test_the_command_is_not_called_where_the_weight_came_back_while_the_call_was_being_recorded(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lbengine that was started anew knows of no drain until it is renewed."""

    async def forget_the_drain(site: ReplacedSite) -> None:
        request = site.access.request

        async def no_drain(action: str, node: str, why: str, **more: Any) -> None:
            if action != "drain":
                await request(action, node, why, **more)

        monkeypatch.setattr(site.access, "request", no_drain)
        await site.access.request("undo", "host1", "as after a restart", what="drain")
        await site.until(
            lambda: (
                site.pool.cycle is not None
                and any(server.server == "host1" and server.weight > 0 for server in site.pool.cycle.servers)
            ),
            "host1 has its weight back",
        )

    is_given_up_where(forget_the_drain, "it has its weight back", balancer, tmp_path, monkeypatch)


def test_an_end_that_the_journal_does_not_take_is_recorded_later(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "LOOK_EVERY_S", 0.1)

    async def before(site: ReplacedSite) -> None:
        record = site.access.record
        refused: list[str] = []

        async def once_not(node: str, what: str, after: str, why: str, cause: ChangeCause, **more: Any) -> str:
            if cause == "replaced" and not refused:
                refused.append(cause)
                site.plan.node = ""
                raise NotNow("nothing is done without a record of it: the disk is full")
            return await record(node, what, after, why, cause, **more)

        monkeypatch.setattr(site.access, "record", once_not)

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replaced")
        await site.until(lambda: balancer.weight("host1") == 100, "its requests are back")
        assert site.causes() == ["chronic", "replacing", "replaced"]

    play(balancer, tmp_path, story, script(tmp_path, "exit 0"), before=before)


def test_where_another_controller_leads_nothing_is_begun(balancer: RealHAProxy, tmp_path: Path) -> None:
    async def story(site: ReplacedSite) -> None:
        await site.until(lambda: site.turns > 10, "some steps")
        assert site.changes() == []
        assert site.bus.requests == []

    play(balancer, tmp_path, story, before=ReplacedSite.lose_lead)


def test_who_no_longer_leads_gives_up_before_the_command(balancer: RealHAProxy, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until(lambda: balancer.weight("host1") == 0, "the drain")
        await site.lose_lead()
        await site.until_cause("replace_given_up")
        assert site.changes()[-1].why == "another controller leads now"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replacing, "EMPTY_S", 1000.0)
        play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"))
    assert not ran.exists()


def test_a_pause_while_the_command_runs_sets_the_weights_and_the_commands_end_is_recorded(
    balancer: RealHAProxy, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replacing")
        await site.command(action="pause")
        assert balancer.weight("host1") == 100
        go_on.touch()
        await site.until_cause("replaced")

    play(balancer, tmp_path, story, script(tmp_path, f"while [ ! -e '{go_on}' ]; do sleep 0.05; done"))


def test_a_controller_that_ends_while_the_command_runs_kills_it_and_undoes_the_drain(
    balancer: RealHAProxy, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"

    async def story(site: ReplacedSite) -> None:
        await site.until(lambda: pid.exists() and pid.read_text().strip(), "the command runs")
        await site.pool.end()
        assert site.causes()[-1] == "replace_unknown"
        assert site.bus.requests[-1]["action"] == "undo"
        await site.turn()
        assert balancer.weight("host1") == 100
        assert not is_alive(int(pid.read_text()))

    play(balancer, tmp_path, story, script(tmp_path, f"echo $$ > {pid}; exec sleep 1000"))


def test_a_reload_lets_a_command_that_runs_go_on_and_begins_nothing_more(balancer: RealHAProxy, tmp_path: Path) -> None:
    go_on, ran = tmp_path / "go on", tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until(ran.exists, "the command runs")
        site.pool.leave()
        at_the_time = site.turns
        await site.until(lambda: site.turns > at_the_time + 10, "some steps")
        assert not site.pool.has_left
        assert balancer.weight("host1") == 0
        go_on.touch()
        await site.until(lambda: site.pool.has_left, "it has left")
        assert site.causes() == ["chronic", "replacing", "replaced"]

    play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}; while [ ! -e '{go_on}' ]; do sleep 0.05; done"))


def test_a_reload_before_the_command_gives_up(balancer: RealHAProxy, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def story(site: ReplacedSite) -> None:
        await site.until(lambda: balancer.weight("host1") == 0, "the drain")
        site.pool.leave()
        await site.until_cause("replace_given_up")
        await site.until(lambda: site.pool.has_left, "it has left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replacing, "EMPTY_S", 1000.0)
        play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"))
    assert not ran.exists()


def test_what_another_controller_is_at_is_neither_closed_nor_done_twice(balancer: RealHAProxy, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    begun: list[str] = []

    async def before(site: ReplacedSite) -> None:
        begun.append(await site.access.record("host2", "replace", "drained", "it pays", "chronic", applied=True))
        other = Claims(site.access.bucket, "web", "another", site.settings, time.time)
        await other.begin(begun[0], "host2")

    async def story(site: ReplacedSite) -> None:
        await site.until_cause("replace_given_up")
        assert site.changes()[-1].why == "host2 is being replaced by another controller"
        (of_other, own) = site.attempts()
        assert (of_other.id, of_other.ended, own.node, own.ended) == (begun[0], None, "host1", "replace_given_up")

    play(balancer, tmp_path, story, script(tmp_path, f"touch {ran}"), before=before)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("ran", "cause"), [(False, "replace_given_up"), (True, "replace_unknown")], ids=["before the command", "in it"]
)
def test_what_a_controller_that_died_left_is_closed_and_not_done_again_that_day(
    balancer: RealHAProxy, tmp_path: Path, ran: bool, cause: str
) -> None:
    async def before(site: ReplacedSite) -> None:
        site.plan.node = ""
        begun = await site.access.record("host1", "replace", "drained", "it pays", "chronic", applied=True)
        if ran:
            why = "it is empty"
            await site.access.record("host1", "replace", "called", why, "replacing", applied=True, follows=begun)

    async def story(site: ReplacedSite) -> None:
        await site.until_cause(cause)
        (attempt,) = site.attempts()
        assert (attempt.ended, attempt.ran_unix_s is not None) == (cause, ran)
        assert balancer.weight("host1") == 100

    play(balancer, tmp_path, story, before=before)


def test_a_drain_ends_by_itself_when_nobody_renews_it(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "DRAIN_LEASE_S", 1.0)
    monkeypatch.setattr(replacing, "EMPTY_S", 1000.0)

    async def story(site: ReplacedSite) -> None:
        await site.until(lambda: balancer.weight("host1") == 0, "the drain")
        monkeypatch.setattr(site.access, "request", _nobody)  # as when we were killed: no renewal, no undo
        await site.until(lambda: balancer.weight("host1") == 100, "its requests are back")

    async def _nobody(*_: object, **__: object) -> None:
        return None

    play(balancer, tmp_path, story)


def test_the_same_machine_that_comes_back_is_recorded(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "LOOK_EVERY_S", 0.1)

    async def story(site: ReplacedSite) -> None:
        site.sample("host1", "boot-1")
        await site.until_cause("replaced")
        site.plan.node = ""
        await site.until_cause("same_machine")
        assert site.attempts()[0].ended == "same_machine"

    play(balancer, tmp_path, story, script(tmp_path, "exit 0"))


def test_what_the_balancer_tells_of_a_machine_is_of_no_boot_of_it(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot in such Samples is that of the balancer's host, before and after."""
    monkeypatch.setattr(replacing, "LOOK_EVERY_S", 0.1)

    async def story(site: ReplacedSite) -> None:
        site.sample("host1", "balancer-1", source="balancer")
        await site.until_cause("replaced")
        site.plan.node, turns = "", site.turns
        await site.until(lambda: site.turns > turns + 10, "it looks who came back")
        assert site.causes()[-1] == "replaced"

    play(balancer, tmp_path, story, script(tmp_path, "exit 0"))


def test_a_new_machine_of_the_same_name_is_not_taken_for_the_old_one(
    balancer: RealHAProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "LOOK_EVERY_S", 0.1)

    async def story(site: ReplacedSite) -> None:
        site.sample("host1", "boot-1")
        await site.until_cause("replacing")
        site.plan.node = ""
        site.sample("host1", "boot-2")
        await site.until_cause("replaced")
        await site.until(lambda: not site.pool._awaited, "its Samples are looked at")
        assert site.causes()[-1] == "replaced"

    play(balancer, tmp_path, story, script(tmp_path, "sleep 0.3"))
