"""The end of one of two controllers that share a HAProxy: the other one takes over with the weights as they are, so
nobody sets the baseline before; without another one it is set."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.bus.bus import Bus
from tests.support.lbengine_site import Detector, LbengineProcess, story, until
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, tcp_to, web_servers

pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not in PATH"),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LbengineProcess]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer, tcp_to(balancer.socket) as address:
        pool = f'socket = "tcp://{address}"\nallow_tcp_socket = true\n'
        running = LbengineProcess(balancer, tmp_path, pool)
        running.start_bus()
        try:
            yield running
        finally:
            running.end()


def as_the_unit_does(site: LbengineProcess) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slackwater.controller.cli.main", "restore", "--all", "--unless-driven"]
    return subprocess.run([*command, "--config", str(site.config)], capture_output=True, text=True, timeout=60)


def dead_while_host1_has_no_weight(site: LbengineProcess, *, with_second: bool) -> str:
    """What the unit's last command says then."""
    printed: list[str] = []

    async def script(_: Bus, detector: Detector) -> None:
        first = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        if with_second:
            site.start_second()
            await until(lambda: "standing by" in site.second_says(), site, "the second one stands by")
        first.kill()
        first.wait()
        done = as_the_unit_does(site)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
        if with_second:
            assert site.weights() == [0, 100, 100]
            assert "taking over" in site.second_says()

    story(site, script)
    assert not (site.folder / "baseline/web.json").exists()
    return printed[0]


def test_the_weights_are_left_to_a_controller_that_takes_over(site: LbengineProcess) -> None:
    printed = dead_while_host1_has_no_weight(site, with_second=True)
    assert "web: its weights are left as they are: lbengine of " in printed


def test_without_another_controller_the_baseline_is_set(site: LbengineProcess) -> None:
    printed = dead_while_host1_has_no_weight(site, with_second=False)
    assert printed == "web: host1 0 -> 100\n"
    assert site.weights() == [100, 100, 100]


def test_without_the_bus_too(site: LbengineProcess) -> None:
    async def script(_: Bus, detector: Detector) -> None:
        first = site.start()
        detector.states["host1"] = "interference"
        await until(lambda: site.weights()[0] == 0, site, "host1 at 0")
        first.kill()
        first.wait()

    story(site, script)
    assert site.bus_process is not None
    site.bus_process.kill()
    site.bus_process.wait()
    assert as_the_unit_does(site).stdout == "web: host1 0 -> 100\n"
