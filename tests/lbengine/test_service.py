"""The process as it runs: a real bus, a real HAProxy, signals, and what happens when either goes away."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.bus.bus import Bus
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, Cycle
from tests.support.lbengine_site import IN_TIME_S, Detector, LbengineProcess, ask, story, until
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not in PATH"),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LbengineProcess]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        running = LbengineProcess(balancer, tmp_path)
        running.start_bus()
        try:
            yield running
        finally:
            running.end()


def test_verdicts_move_weights_and_are_reported_on_the_bus_and_in_the_journal(site: LbengineProcess) -> None:
    changes: list[Change] = []
    cycles: list[Cycle] = []

    async def script(bus: Bus, detector: Detector) -> None:
        await bus.subscribe("change", changes.append)
        await bus.subscribe("cycle", cycles.append)
        site.start()
        await until(lambda: cycles and cycles[-1].sentence == "web: 3 unchanged", site, "a calm cycle")
        detector.states["host1"] = "interference"
        await until(lambda: site.weights() == [0, 100, 100], site, "host1 at 0")
        await until(lambda: changes, site, "a Change on the bus")
        detector.states["host1"] = "calm"
        await until(lambda: site.weights() == [100, 100, 100], site, "host1 back")

    story(site, script)
    assert (changes[0].target, changes[0].before, changes[0].after) == ("host1", 100, 0)
    with Journal.open(journal_path(site.folder), read_only=True) as journal:
        recorded = [change.id for change in reversed(journal.changes("web"))]
    assert recorded[: len(changes)] == [change.id for change in changes]
    assert "INFO web: host1 100 -> 0 (interference, at most 80% of capacity lost, because); 2 others unchanged" in (
        site.log.read_text()
    )


def test_a_silent_detector_leads_back_to_the_baseline_after_the_lease(site: LbengineProcess) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        await detector.silence()
        await until(lambda: site.weights() == [100, 100, 100], site, "the baseline")
        await until(lambda: "nothing new is known of it for 1.5 s" in site.log.read_text(), site, "the reason")

    site.with_settings(lease_s=1.5)
    story(site, script)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_puts_the_weights_back(site: LbengineProcess, number: signal.Signals) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        process = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        process.send_signal(number)
        await until(lambda: process.poll() is not None, site, "the end")

    story(site, script)
    assert site.process is not None
    assert site.process.returncode == 0
    assert site.weights() == [100, 100, 100]
    with Journal.open(journal_path(site.folder), read_only=True) as journal:
        assert journal.changes("web")[0].why == "lbengine stops"


def test_a_killed_process_is_followed_by_one_that_takes_over(site: LbengineProcess) -> None:
    events = site.with_hook()

    async def script(_bus: Bus, detector: Detector) -> None:
        process = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        await until(lambda: events() == ["episode-start"], site, "the hook is called")
        process.kill()
        process.wait()
        assert site.weights()[0] == 0
        before = len(site.log.read_text())
        site.start()
        await until(lambda: "(interference)" in site.log.read_text()[before:], site, "the next one hears of it")
        detector.states["host1"] = "calm"
        await until(lambda: site.weights() == [100, 100, 100], site, "the baseline")
        await until(lambda: "episode-end" in events(), site, "its end is told")
        assert events() == ["episode-start", "episode-end"]

    story(site, script)


def test_pause_and_resume_are_answered(site: LbengineProcess) -> None:
    async def script(bus: Bus, detector: Detector) -> None:
        site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        answer = await ask(bus, {"action": "pause", "by": "alice", "why": "deploy"})
        assert answer == {"sentence": "web: host1 0 -> 100 put back; paused by alice (deploy)"}
        assert site.weights() == [100, 100, 100]
        answer = await ask(bus, {"action": "resume", "by": "alice", "why": ""})
        assert answer["sentence"].startswith("web: resumed by alice; host1 100 -> 0")
        assert "expected `pause`, `resume`" in (await ask(bus, {"action": "stop", "by": "x"}))["error"]
        assert "Expected `str`, got `int` - at `$.by`" in (await ask(bus, {"action": "pause", "by": 7}))["error"]

    story(site, script)


def test_a_haproxy_that_is_stuck_is_complained_of_once_and_taken_up_again(site: LbengineProcess) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        process = site.start()
        await until(lambda: "3 unchanged" in site.log.read_text(), site, "a calm cycle")
        worker = site.balancer.pid()
        before = len(site.log.read_text())

        def printed() -> str:
            return site.log.read_text()[before:]

        os.kill(worker, signal.SIGSTOP)
        try:
            await until(lambda: "did not answer" in printed(), site, "the complaint")
            detector.states["host1"] = "interference"
            await asyncio.sleep(5.0)  # time for more complaints, if there were any
        finally:
            os.kill(worker, signal.SIGCONT)
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        await until(lambda: "HAProxy answers again" in printed(), site, "the all-clear")
        assert process.poll() is None
        assert printed().partition("HAProxy answers again")[0].count("ERROR") == 1

    site.with_settings(socket_timeout_s=2.0)
    story(site, script)


def test_without_a_bus_it_waits_and_leads_back_what_was_left(site: LbengineProcess) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        process = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        process.kill()
        process.wait()

    site.with_settings(lease_s=1.5)
    story(site, script)
    assert site.bus_process is not None
    site.bus_process.kill()
    site.bus_process.wait()

    async def alone() -> None:
        process = site.start()
        await until(lambda: site.weights() == [100, 100, 100], site, "the baseline without a bus")
        await until(lambda: "waiting for it" in site.log.read_text(), site, "the complaint")
        site.start_bus()
        bus = await Bus.connect(site.url, "test")
        detector = Detector(bus)
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        await detector.silence()
        await bus.close()
        assert process.poll() is None

    asyncio.run(alone())


def test_a_corrupt_baseline_ends_it_with_the_files_name(site: LbengineProcess) -> None:
    (site.folder / "baseline").mkdir()
    (site.folder / "baseline" / "web.json").write_text("{}")
    process = site.start()
    assert process.wait(IN_TIME_S) != 0
    assert "web.json is there but cannot be read" in site.log.read_text()
    assert site.weights() == [100, 100, 100]


def test_a_second_lbengine_stands_by_and_takes_over_from_a_dead_one_without_a_jump(site: LbengineProcess) -> None:
    seen: list[list[int]] = []
    events = site.with_hook()

    async def script(_bus: Bus, detector: Detector) -> None:
        first = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        site.start_second()
        await until(lambda: "standing by" in site.second_says(), site, "the second one stands by")
        await until(lambda: events() == ["episode-start"], site, "the first one's hook is called")
        first.kill()
        first.wait()
        died_s = time.monotonic()

        def taken_over() -> bool:
            seen.append(site.weights())
            return "taking over" in site.second_says()

        await until(taken_over, site, "the second one takes over")
        assert time.monotonic() - died_s < IN_TIME_S
        inherited = site.folder / "second" / "baseline" / "web.json"
        await until(inherited.exists, site, "it has the first one's baseline on disk")
        for _ in range(20):
            seen.append(site.weights())
            await asyncio.sleep(0.02)
        detector.states["host1"] = "calm"
        await until(lambda: site.weights() == [100, 100, 100], site, "the baseline that the first one knew")
        await until(lambda: "episode-end" in events(), site, "the second one's hook is called")

    story(site, script)
    assert {tuple(weights) for weights in seen} == {(0, 100, 100)}
    assert events() == ["episode-start", "episode-end"]


def test_one_that_observes_takes_no_lease_and_keeps_nobody_from_it(site: LbengineProcess) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        site.start_second('mode = "observe"')
        detector.states["host1"] = "interference"
        await until(lambda: "(observe): would set host1" in site.second_says(), site, "the second one only says it")
        assert site.weights() == [100, 100, 100]
        site.start()
        await until(lambda: site.weights()[0] == 0, site, "the first one acts")
        detector.states["host1"] = "calm"
        await until(lambda: site.weights() == [100, 100, 100], site, "and goes back")

    story(site, script)
    assert "standing by" not in site.log.read_text() + site.second_says()


def test_a_frozen_owner_that_wakes_up_keeps_its_hands_off(site: LbengineProcess) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        first = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        site.start_second()
        await until(lambda: "standing by" in site.second_says(), site, "the second one stands by")
        first.send_signal(signal.SIGSTOP)
        await until(lambda: "taking over" in site.second_says(), site, "the second one takes over")
        first.send_signal(signal.SIGCONT)
        await until(lambda: "standing by" in site.log.read_text(), site, "the first one stands by")
        assert site.weights()[0] == 0
        detector.states["host1"] = "calm"
        await until(lambda: site.weights() == [100, 100, 100], site, "the baseline")
        first.send_signal(signal.SIGTERM)
        await until(lambda: first.poll() is not None, site, "the end")

    story(site, script)
    after_it_took_over = site.second_says().partition("taking over")[2]
    assert "by someone else" not in after_it_took_over


def test_a_clean_stop_gives_the_lease_back_at_once(site: LbengineProcess) -> None:
    async def script(_bus: Bus, detector: Detector) -> None:
        first = site.start()
        await until(lambda: "3 unchanged" in site.log.read_text(), site, "a calm cycle")
        site.start_second()
        await until(lambda: "standing by" in site.second_says(), site, "the second one stands by")
        first.terminate()
        await until(lambda: "taking over" in site.second_says(), site, "the second one takes over")
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")

    story(site, script)
