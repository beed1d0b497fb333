"""The detector's process on a real nats-server: Samples in, Verdicts out, baselines on disk, a clean end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from slackwater.core import messages
from slackwater.core.bus.bus import Bus
from slackwater.core.config import ControllerSettings, DetectorSettings
from slackwater.core.messages import Cycle, DecisionCause, Sample, ServerState, Verdict
from slackwater.detector.classify import tree
from slackwater.detector.features import sample_decoder
from slackwater.detector.service import ALIVE_EVERY_S, BASELINES, HEARS_OF_WEIGHTS_WITHIN_S, Detector, choose_model
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from tests.support.judges import shipped
from tests.support.paths import PROGRAMS
from tests.support.real_processes import free_address
from tests.support.synthetic_cluster import Cluster

NATS = shutil.which("nats-server", path=str(PROGRAMS)) or shutil.which("nats-server")
DEADLINE_S = 60.0
Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def bus_url() -> Iterator[str]:
    assert NATS, "nats-server is missing: run `make setup`"
    host, _, port = (address := free_address()).partition(":")
    server = subprocess.Popen([NATS, "-a", host, "-p", port], stderr=subprocess.DEVNULL)
    yield f"nats://{address}"
    server.terminate()
    server.wait(DEADLINE_S)


@pytest.fixture
def config(bus_url: str, tmp_path: Path) -> Path:
    path = tmp_path / "controller.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\n[bus]\nurl = "{bus_url}"\n'
        '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/nowhere"\n'
    )
    return path


@pytest.fixture
def start(config: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "slackwater.controller.cli.main", "run", "detector", "--config", str(config)]
        started.append(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


class Wire:
    """Sends Samples as monitors would, in their own time, and keeps the Verdicts."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.verdicts: list[Verdict] = []

    async def send_until(self, cluster: Cluster, done: Callable[[], bool], event: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < end_s, f"{event}: not within {DEADLINE_S:g} s; got {self.verdicts[-6:]}"
            for name in cluster.names:
                sample: Sample = cluster.sample(name, cluster.now_s)
                await self.bus.publish(sample)
            cluster.now_s += 0.2
            await asyncio.sleep(0.02)

    def states(self, node: str) -> list[str]:
        return [verdict.state for verdict in self.verdicts if verdict.node == node]


Story = Callable[[Wire], Awaitable[None]]


def with_wire(bus_url: str, story: Story) -> None:
    async def main() -> None:
        bus = await Bus.connect(bus_url, "test")
        wire = Wire(bus)
        await bus.subscribe("verdict", wire.verdicts.append, pool="web")
        try:
            await story(wire)
        finally:
            await bus.close()

    asyncio.run(main())


def test_samples_become_verdicts_and_silence_becomes_unknown(bus_url: str, start: Start) -> None:
    process = start()

    async def story(wire: Wire) -> None:
        cluster = Cluster()
        await wire.send_until(cluster, lambda: wire.states("host1").count("calm") >= 25, "25 calm Verdicts")
        cluster.hosts["host1"].neighbour = 0.9
        await wire.send_until(cluster, lambda: "interference" in wire.states("host1"), "the neighbour is found")
        # A node is unknown too while nobody sent its Samples, because the machine was busy with something else.
        assert set(wire.states("host2")) <= {"calm", "unknown"}
        loud = next(verdict for verdict in wire.verdicts if verdict.state == "interference")
        assert "x its calm baseline" in loud.path[1]
        assert loud.sample_seq is not None
        cluster.names = ("host2", "host3")
        await wire.send_until(
            cluster,
            lambda: (wire.states("host1")[-1], wire.states("host2")[-1]) == ("unknown", "calm"),
            "the silent node is unknown, and the others are not",
        )

    with_wire(bus_url, story)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, printed
    assert "web/host1: calm -> interference: " in printed
    assert "Traceback" not in printed


def test_baselines_are_saved_at_the_end_and_read_at_the_next_start(bus_url: str, start: Start, tmp_path: Path) -> None:
    async def story(wire: Wire) -> None:
        await wire.send_until(Cluster(), lambda: wire.states("host3").count("calm") >= 30, "30 calm Verdicts")

    first = start()
    with_wire(bus_url, story)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=DEADLINE_S)
    kept = json.loads((tmp_path / "state" / BASELINES).read_text())
    assert set(kept["pools"]["web"]) == {"host1", "host2", "host3"}
    second = start()
    with_wire(bus_url, story)
    second.send_signal(signal.SIGTERM)
    _, printed = second.communicate(timeout=DEADLINE_S)
    assert "web: baselines of 3 nodes read from" in printed


def test_damaged_baselines_are_learnt_anew_and_that_is_reported(bus_url: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / BASELINES).write_text("{")

    async def story(wire: Wire) -> None:
        await wire.send_until(Cluster(), lambda: "calm" in wire.states("host1"), "a calm Verdict")

    process = start()
    with_wire(bus_url, story)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "not the detector's baselines" in printed
    assert "learnt anew" in printed


def test_the_shipped_model_judges_unless_another_one_is_named() -> None:
    assert choose_model(DetectorSettings()).name == tree.load(tree.SHIPPED).name


def test_a_model_that_was_asked_for_and_is_unusable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tree.ModelError, match="cannot be read"):
        choose_model(DetectorSettings(model=str(tmp_path / "none.skops")))
    (tmp_path / "bad.skops").write_text("no")
    with pytest.raises(tree.ModelError, match="not a model file"):
        choose_model(DetectorSettings(model=str(tmp_path / "bad.skops")))


def test_it_sleeps_until_a_node_goes_stale_or_baselines_are_saved_and_no_longer(tmp_path: Path) -> None:
    settings = ControllerSettings(
        state_dir=str(tmp_path), pool=[HAProxyPool(name="web", backend="web", socket="/nowhere")]
    )

    async def main() -> None:
        detector = Detector(settings, cast(Bus, None), shipped())
        began_s = time.monotonic()
        assert detector.due_s() - began_s == pytest.approx(ALIVE_EVERY_S, abs=1.0), "nobody is there to wait for"
        judge = detector._judges["web"]
        cluster = Cluster()
        judge.tick(began_s, [cluster.sample("host1", cluster.now_s)])
        assert detector.due_s() == began_s + settings.detector.stale_after_s
        stale_s = detector.due_s() + 0.001
        assert [verdict.state for verdict in judge.tick(stale_s, [])] == ["unknown"]
        assert detector.due_s() == stale_s + 1.0, "it is reported again each second"

    asyncio.run(main())


class Sent:
    """A bus that keeps what is sent."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []

    async def publish(self, message: Verdict) -> None:
        self.states.append((message.node, message.state))


def test_a_node_that_is_waited_for_has_its_last_verdict_repeated_until_it_is_unknown(tmp_path: Path) -> None:
    settings = ControllerSettings(
        state_dir=str(tmp_path), pool=[HAProxyPool(name="web", backend="web", socket="/nowhere")]
    )

    async def main() -> None:
        sent = Sent()
        detector = Detector(settings, cast(Bus, sent), shipped())
        cluster = Cluster()
        began_s = time.monotonic()
        for node, next_within_s in (("host1", 4.0), ("host2", None)):
            sample = msgspec.structs.replace(cluster.sample(node, cluster.now_s), next_within_s=next_within_s)
            detector._take_sample(sample_decoder.decode(messages.encode(sample)))
        await detector._tick(began_s)
        assert sent.states == [("host1", "calm"), ("host2", "calm")]
        seen: list[tuple[float, str, str]] = []
        for tick in range(1, 61):
            sent.states.clear()
            await detector._tick(began_s + tick / 10)
            seen += [(tick / 10, *published) for published in sent.states]
        stale_s = 4.0 + settings.detector.stale_after_s
        states = [(at_s, state) for at_s, node, state in seen if node == "host1"]
        assert states == [(at_s, "calm") for at_s in (1.5, 3.0, 4.5)] + [
            (stale_s, "unknown"),
            (stale_s + 1.0, "unknown"),
        ]
        assert {state for _, node, state in seen if node == "host2"} == {"unknown"}

    asyncio.run(main())


@pytest.mark.parametrize("cause", ["interference", "slow", "tried"])
def test_at_its_start_nothing_is_called_calm_before_lbengine_has_said_what_is_lowered(
    tmp_path: Path, cause: DecisionCause
) -> None:
    settings = ControllerSettings(
        state_dir=str(tmp_path), pool=[HAProxyPool(name="web", backend="web", socket="/nowhere")]
    )
    servers = [
        ServerState("host1", "up", 10, 100, 10, cause=cause),
        ServerState("host2", "up", 100, 100, 100, cause="calm"),
        ServerState("host3", "up", 20, 100, 20, cause="pinned"),
    ]
    cycle = Cycle(1, "web", time.time(), "act", False, "roundrobin", "optimal", "", servers)

    async def main(hears: bool) -> list[tuple[str, str]]:
        sent = Sent()
        detector = Detector(settings, cast(Bus, sent), shipped())
        began_s = time.monotonic()
        detector.listen(began_s)
        cluster = Cluster()
        for node in ("host1", "host2", "host3"):
            detector._take_sample(sample_decoder.decode(messages.encode(cluster.sample(node, cluster.now_s))))
        await detector._tick(began_s)
        assert sent.states == []
        if hears:
            detector._take_cycle({}, cycle)
        await detector._tick(began_s + (0.1 if hears else HEARS_OF_WEIGHTS_WITHIN_S))
        return sent.states

    assert asyncio.run(main(True)) == [("host1", "interference"), ("host2", "calm"), ("host3", "calm")]
    assert {state for _, state in asyncio.run(main(False))} == {"calm"}, "there is no lbengine"


def test_a_sample_of_the_balancer_that_knows_nothing_of_the_requests_is_not_judged(tmp_path: Path) -> None:
    settings = ControllerSettings(
        state_dir=str(tmp_path), pool=[HAProxyPool(name="web", backend="web", socket="/nowhere")]
    )

    async def main() -> list[tuple[str, str]]:
        sent = Sent()
        detector = Detector(settings, cast(Bus, sent), shipped())
        cluster = Cluster()
        for node in ("host1", "host2"):
            full = cluster.sample(node, cluster.now_s)
            sample = Sample(1, node, "web", full.time_unix_s, "boot", 0, 0.2, next_within_s=4.0, source="balancer")
            known = {"traffic": full.traffic} if node == "host1" else {"absent": {"traffic": "direct routing"}}
            sample = msgspec.structs.replace(sample, **known)
            detector._take_sample(sample_decoder.decode(messages.encode(sample)))
        await detector._tick(time.monotonic())
        return sent.states

    assert {node for node, _ in asyncio.run(main())} == {"host1"}, "a rate of zero would look like calm"


def test_a_sample_wakes_it(tmp_path: Path) -> None:
    settings = ControllerSettings(
        state_dir=str(tmp_path), pool=[HAProxyPool(name="web", backend="web", socket="/nowhere")]
    )

    async def main() -> None:
        detector = Detector(settings, cast(Bus, None), shipped())
        sleeping = asyncio.create_task(detector._sleep(0.0))
        await asyncio.sleep(0.0)  # it runs until it waits
        assert not sleeping.done()
        cluster = Cluster()
        sample = sample_decoder.decode(messages.encode(cluster.sample("host1", cluster.now_s)))
        detector._take_sample(sample)
        await asyncio.wait_for(sleeping, ALIVE_EVERY_S / 2)  # long before it would wake by itself
        # One that came while a tick was at work is not waited for either.
        await asyncio.wait_for(detector._sleep(0.0), ALIVE_EVERY_S / 2)

    asyncio.run(main())
