"""Agent-check as a site has it: HAProxy with a socket that only reads, a real monitor on each node, lbengine, a bus."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.bus.bus import Bus
from slackwater.core.journal.journal import Journal, journal_path
from tests.support.lbengine_site import HOSTS, Detector, LbengineProcess, story, until
from tests.support.real_haproxy import agent_inter_ms, haproxy, needs_haproxy, servers_of, web_servers
from tests.support.real_processes import free_address

MONITOR = shutil.which("slackwater-monitor")
pytestmark = [
    needs_haproxy,
    pytest.mark.usefixtures("haproxy_in_full"),
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not in PATH"),
    pytest.mark.skipif(MONITOR is None, reason="slackwater-monitor is not built (make setup)"),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LbengineProcess]:
    """Three nodes whose monitors HAProxy asks as often as it can."""
    agents = [free_address() for _ in HOSTS]
    with web_servers(3) as ports, contextlib.ExitStack() as stack:
        options = f"weight 100 agent-check agent-inter {agent_inter_ms()}ms agent-port"
        lines = "\n".join(
            servers_of([port], f"{options} {agent.rpartition(':')[2]}").replace("host1", host)
            for host, port, agent in zip(HOSTS, ports, agents, strict=True)
        )
        balancer = stack.enter_context(haproxy(f"backend web\n    balance roundrobin\n{lines}\n"))
        running = LbengineProcess(
            balancer, tmp_path, f'socket = "{balancer.operator}"\nweight_delivery = "agent-check"\n'
        )
        stack.callback(running.end)
        running.start_bus()
        for host, agent in zip(HOSTS, agents, strict=True):
            running.monitors[host] = stack.enter_context(monitor(tmp_path, host, agent, running.url))
        yield running


@contextlib.contextmanager
def monitor(folder: Path, node: str, agent: str, bus: str) -> Iterator[subprocess.Popen[bytes]]:
    config = folder / f"{node}.toml"
    config.write_text(
        f'node = "{node}"\npool = "web"\n[bus]\nurl = "{bus}"\n[sniffer]\ninterface = ""\n[metrics]\nlisten = ""\n'
        f'[canary]\nenabled = false\n[pmu]\nenabled = false\n[agent]\nlisten = "{agent}"\n'
    )
    with (folder / f"{node}.log").open("wb") as log:
        process = subprocess.Popen([str(MONITOR), "run", "--config", str(config)], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_slow_node_answers_less_and_then_all_again(site: LbengineProcess) -> None:
    site.start()

    async def script(_: Bus, detector: Detector) -> None:
        detector.states["host1"] = "interference"
        await until(lambda: site.weights() == [0, 100, 100], site, "host1 answers 0%")
        site.balancer.request(20)
        detector.states["host1"] = "calm"
        await until(lambda: site.weights() == [100, 100, 100], site, "host1 answers 100% again")
        with Journal.open(journal_path(site.folder), read_only=True) as journal:
            made = [change for change in journal.changes("web", 1000) if change.what == "weight"]
        assert {change.target for change in made} == {"host1"}
        assert all(change.by == "lbengine" and change.applied for change in made), "nobody else is suspected"
        assert (made[-1].after, made[0].after) == (0, 100)

    story(site, script)


def test_without_lbengine_the_lease_ends_and_each_node_answers_all(site: LbengineProcess) -> None:
    site.with_settings(lease_s=1.5)
    process = site.start()

    async def script(_: Bus, detector: Detector) -> None:
        detector.states["host1"] = "interference"
        await until(lambda: site.weights() == [0, 100, 100], site, "host1 answers 0%")
        process.kill()
        process.wait()
        await until(lambda: site.weights() == [100, 100, 100], site, "the lease has ended")
        assert (site.folder / "baseline/web.json").exists()
        done = CliRunner().invoke(cli, ["restore", "--config", str(site.config), "--pool", "web"])
        assert done.exit_code == 0, done.output
        assert not (site.folder / "baseline/web.json").exists()

    story(site, script)


def test_a_stop_has_the_nodes_answer_all_at_once(site: LbengineProcess) -> None:
    process = site.start()

    async def script(bus: Bus, detector: Detector) -> None:
        heard: list[tuple[str, int]] = []
        await bus.subscribe("weight", lambda word: heard.append((word.node, word.percent)), pool="web")
        detector.states["host1"] = "interference"
        await until(lambda: site.weights() == [0, 100, 100], site, "host1 answers 0%")
        process.terminate()
        await until(lambda: process.poll() is not None, site, "lbengine ends")
        await until(lambda: ("host1", 100) in heard[-3:], site, "the last word is 100%")
        await until(lambda: site.weights() == [100, 100, 100], site, "all weights are back")
        assert not (site.folder / "baseline/web.json").exists()

    story(site, script)


def test_a_dead_monitor_holds_the_last_weight_and_lbengine_says_so(site: LbengineProcess) -> None:
    site.start()

    async def script(_: Bus, detector: Detector) -> None:
        await until(lambda: site.weights() == [100, 100, 100], site, "calm")
        os.kill(site.monitors["host1"].pid, signal.SIGKILL)
        detector.states["host1"] = "interference"
        await until(lambda: "host1 shows weight 100 instead of" in site.log.read_text(), site, "it is said")
        assert site.weights() == [100, 100, 100]

    story(site, script)
