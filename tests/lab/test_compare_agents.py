"""The agent-check peer through HAProxy itself: what its agents answer becomes the weights that its decision names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from slackwater_lab.cluster.balancer import Balancer
from slackwater_lab.cluster.hosts import hosts
from slackwater_lab.cluster.paths import BIN
from slackwater_lab.experiment.agents import Agents
from slackwater_lab.experiment.decisions import AgentCheck
from slackwater_lab.experiment.steady import set_weights
from tests.support.real_haproxy import until
from tests.support.recorded_looks import looks

needs_haproxy = pytest.mark.skipif(not (BIN / "haproxy").exists(), reason="haproxy is missing: run `make setup`")
NAMES = [host.name for host in hosts(3)]


@contextmanager
def lab_balancer(folder: Path, agents: Agents | None) -> Iterator[Balancer]:
    """The lab's own HAProxy; no request goes through it."""
    folder.mkdir()
    running = Balancer(folder, hosts(3), "roundrobin")
    if agents is not None:
        running.set_balance("roundrobin", agents.lines)
    running.start([str(BIN / "haproxy")])
    try:
        yield running
    finally:
        assert running.program is not None
        running.program.stop()


def test_an_agent_answers_whoever_asks_with_what_it_was_given() -> None:
    with Agents(NAMES, 50) as agents:
        port = int(agents.lines["host2"].split("agent-port ")[1].split()[0])
        assert agents.lines["host2"].endswith("agent-inter 50ms")

        def ask() -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=60.0) as asking:
                return asking.makefile("rb").read()

        assert ask() == b"100%\n"
        agents.answer({"host2": 7})
        assert ask() == b"7%\n"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5.0)


@needs_haproxy
def test_weights_by_agent_check_are_those_that_the_admin_socket_would_set(tmp_path: Path) -> None:
    """The policy's decisions on looks of the lab, once asked for by HAProxy, once set on its socket."""
    decide = AgentCheck()
    some = [decide(look).weights for look in looks()[::10]]
    some.append({"host1": 1, "host2": 100, "host3": 53})
    with Agents(NAMES, 50) as agents, lab_balancer(tmp_path / "asks", agents) as asks:
        with lab_balancer(tmp_path / "told", None) as driven:
            for weights in some:
                agents.answer(weights)
                set_weights(SimpleNamespace(balancer=driven), weights)  # type: ignore[arg-type]
                until(lambda w=weights: asks.snapshot().weight == w, f"weights {weights}")  # type: ignore[misc]
                assert driven.snapshot().weight == weights
        assert min(agents.asked.values()) >= len(some)


@needs_haproxy
def test_the_next_policy_has_no_agents(tmp_path: Path) -> None:
    with Agents(NAMES, 50) as agents, lab_balancer(tmp_path / "lab", agents) as balancer:
        agents.answer({"host1": 10})
        until(lambda: balancer.snapshot().weight["host1"] == 10, "weight 10")
        balancer.set_balance("roundrobin")
        balancer.reload()
        assert balancer.lines == {}
        assert balancer.snapshot().weight == dict.fromkeys(NAMES, 100)
        assert "agent-check" not in balancer.config.read_text()
