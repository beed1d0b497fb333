"""Weights by agent-check: what HAProxy makes of the answers, and what lbengine asks and shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slackwater.core.config import LbengineSettings
from slackwater.lbengine.backends.haproxy.agent_check import PATIENCE_S, SEND_AGAIN_S, AgentCheck, in_force, percent_of
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.table import check
from slackwater.lbengine.balancer import BalancerError, Server, Snapshot
from tests.support.real_agent import Agent
from tests.support.real_haproxy import (
    RealHAProxy,
    agent_inter_ms,
    backend,
    haproxy,
    needs_haproxy,
    servers_of,
    until,
    web_servers,
)

PATIENT = LbengineSettings(socket_timeout_s=20.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def server(name: str, weight: int, configured: int = 100) -> Server:
    return Server(name=name, weight=weight, configured=configured, agent_check=True, maxconn=50)


class Shown:
    """A HAProxy that shows what the test says."""

    def __init__(self, **weights: int) -> None:
        self.servers = {name: server(name, weight) for name, weight in weights.items()}

    def show(self, name: str, weight: int, configured: int = 100) -> None:
        self.servers[name] = server(name, weight, configured)

    def read(self) -> Snapshot:
        return Snapshot(balance="roundrobin", weights_mean="share", servers=tuple(self.servers.values()))

    def expect(self, weights: Mapping[str, int]) -> None:
        """It shows what the test says, whatever is expected."""


def weights(driven: AgentCheck) -> dict[str, int]:
    return {server.name: server.weight for server in driven.read().servers}


@given(some.integers(1, 256), some.integers(0, 256))
def test_the_percentage_gives_the_weight_or_one_close_above(configured: int, weight: int) -> None:
    made = in_force(weight, configured)
    if configured <= 100:
        assert made == weight
    else:
        assert weight <= made <= min(weight + configured / 100, 256)
    assert percent_of(0, configured) == 0


def test_what_was_asked_for_is_shown_while_haproxy_has_not_asked_yet() -> None:
    clock, shown = Clock(), Shown(a=100, b=100)
    driven = AgentCheck(shown, clock)
    assert weights(driven) == {"a": 100, "b": 100}
    driven.set_weights({"a": 30})
    clock.now_s += 1.0
    driven.set_weights({"a": 0})
    assert weights(driven) == {"a": 0, "b": 100}, "on its way"
    shown.show("a", 30)
    clock.now_s += 1.0
    assert weights(driven)["a"] == 0, "HAProxy shows the one before"
    shown.show("a", 0)
    clock.now_s += 60.0
    assert weights(driven)["a"] == 0
    assert driven.read().trouble == ()


def test_a_weight_that_haproxy_never_shows_is_reported_as_it_is_and_no_more_asked_for() -> None:
    clock, shown = Clock(), Shown(a=100, b=100)
    driven = AgentCheck(shown, clock)
    driven.read()
    driven.set_weights({"a": 0})
    assert driven.percents_for_nodes() == {"a": 0, "b": 100}
    assert weights(driven)["a"] == 0
    clock.now_s += PATIENCE_S
    later = driven.read()
    assert {server.name: server.weight for server in later.servers} == {"a": 100, "b": 100}
    assert "a shows weight 100 instead of the one asked for" in later.trouble[0]
    assert driven.percents_for_nodes() == {"b": 100}, "a's monitor, if there is one, goes back to 100%"
    driven.set_weights({"a": 50})
    assert driven.percents_for_nodes() == {"a": 50}
    assert weights(driven)["a"] == 50


def test_words_are_reported_when_they_are_new_and_again_within_their_lease() -> None:
    clock, shown = Clock(), Shown(a=100)
    driven = AgentCheck(shown, clock)
    driven.read()
    assert (driven.percents_for_nodes(), driven.percents_for_nodes()) == ({"a": 100}, {})
    driven.set_weights({"a": 20})
    assert (driven.percents_for_nodes(), driven.percents_for_nodes()) == ({"a": 20}, {})
    clock.now_s += SEND_AGAIN_S
    assert driven.percents_for_nodes() == {"a": 20}


def test_what_an_earlier_run_asked_for_goes_on() -> None:
    driven = AgentCheck(Shown(a=0, b=100), Clock())
    assert weights(driven) == {"a": 0, "b": 100}
    assert driven.percents_for_nodes() == {"a": 0, "b": 100}, "no jump"


def test_another_configured_weight_makes_what_was_asked_for_void() -> None:
    clock, shown = Clock(), Shown(a=100)
    driven = AgentCheck(shown, clock)
    driven.read()
    shown.show("a", 50, configured=50)
    assert weights(driven) == {"a": 50}
    assert driven.percents_for_nodes() == {"a": 100}


def test_no_maxconn_is_shown_since_none_can_be_set() -> None:
    assert [server.maxconn for server in AgentCheck(Shown(a=1, b=2), Clock()).read().servers] == [None, None]


@pytest.mark.parametrize(
    ("asked", "says"),
    [({"a": 0, "c": 5}, "no server `c`"), ({"a": 0, "b": 257}, "0..256"), ({"a": 0, "zero": 1}, "weight 0")],
)
def test_what_is_out_of_reach_is_refused_whole(asked: dict[str, int], says: str) -> None:
    shown = Shown(a=100, b=100)
    shown.show("zero", 0, configured=0)
    driven = AgentCheck(shown, Clock())
    driven.read()
    with pytest.raises(BalancerError, match=says):
        driven.set_weights(asked)
    assert driven.percents_for_nodes()["a"] == 100


def test_leases_that_end_by_themselves_are_waited_for_but_not_for_ever() -> None:
    clock, shown = Clock(), Shown(a=0, b=100)
    driven = AgentCheck(shown, clock, clock.sleep)
    with pytest.raises(BalancerError, match="a shows 0 instead of 100: does its node's monitor answer"):
        driven.restore_weights({"a": 100}, 3.0)
    shown.show("a", 100)
    driven.restore_weights({"a": 100}, 3.0)


# --- a real HAProxy


@contextmanager
def with_agents(configured: Sequence[int] = (100, 100), more: str = "") -> Iterator[tuple[RealHAProxy, list[Agent]]]:
    """Servers with these weights, each with an agent that HAProxy asks as often as it can."""
    agents = [Agent() for _ in configured]
    try:
        with web_servers(len(agents)) as ports:
            lines = "\n".join(
                servers_of(
                    [port],
                    f"weight {weight} agent-check agent-port {agent.port} agent-inter {agent_inter_ms()}ms {more}",
                ).replace("host1", f"host{n}")
                for n, (port, agent, weight) in enumerate(zip(ports, agents, configured, strict=True), start=1)
            )
            with haproxy(f"backend web\n    balance roundrobin\n{lines}\n") as running:
                yield running, agents
    finally:
        for agent in agents:
            agent.close()


@needs_haproxy
@pytest.mark.usefixtures("haproxy_version")
class TestOnARealHAProxy:
    def test_it_makes_of_each_percentage_what_we_count_on(self) -> None:
        configured = (1, 7, 100, 200)
        with with_agents(configured) as (running, agents):
            for weights in zip(
                *(
                    (0, 1, configured_weight // 3, configured_weight, min(2 * configured_weight, 256), 256)
                    for configured_weight in configured
                ),
                strict=True,
            ):
                expected = {}
                for n, (weight, configured_weight) in enumerate(zip(weights, configured, strict=True)):
                    agents[n].line = f"{percent_of(weight, configured_weight)}%\n"
                    expected[f"host{n + 1}"] = in_force(weight, configured_weight)
                until(lambda e=expected: {host: running.weight(host) for host in e} == e, f"{expected}")  # type: ignore[misc]

    def test_zero_percent_gets_no_requests_and_half_gets_half_as_many(self) -> None:
        with with_agents() as (running, (first, _)):
            first.line = "0%\n"
            until(lambda: running.weight("host1") == 0, "weight 0")
            assert running.shares(20) == [0.0, 1.0]
            first.line = "50%\n"
            until(lambda: running.weight("host1") == 50, "weight 50")
            assert running.shares(60) == pytest.approx([1 / 3, 2 / 3], abs=0.06)

    def test_a_percentage_leaves_alone_what_an_operator_has_set(self) -> None:
        with with_agents() as (running, (first, _)):
            running.send("set server web/host1 state maint")
            assert HAProxy(running.socket, "web", 20.0).read().servers[0].condition == "maintenance"
            running.send("set server web/host1 state drain")
            first.line = "70%\n"
            until(lambda: running.weight("host1") == 70, "weight 70")
            shown = HAProxy(running.socket, "web", 20.0).read().servers[0]
            assert shown.condition == "draining"

    def test_an_agent_that_is_gone_leaves_the_last_weight_and_the_server_up(self) -> None:
        with with_agents() as (running, (first, second)):
            first.line = "10%\n"
            until(lambda: running.weight("host1") == 10, "weight 10")
            first.close()
            second.twice_more()
            shown = HAProxy(running.socket, "web", 20.0).read().servers[0]
            assert (shown.weight, shown.available, shown.agent_check) == (10, True, True)

    def test_a_reload_forgets_the_weight_until_the_agent_is_asked(self) -> None:
        with with_agents() as (running, (first, _)):
            first.line = "10%\n"
            until(lambda: running.weight("host1") == 10, "weight 10")
            running.reload()
            until(lambda: running.weight("host1") == 10, "weight 10 again")

    def test_a_socket_that_only_reads_is_enough(self) -> None:
        with with_agents() as (running, _):
            pool = HAProxyPool(
                name="web",
                backend="web",
                socket=running.operator,
                weight_delivery="agent-check",
                mode="act",
                law="optimal",
            )
            assert check(pool, PATIENT) == []
            assert len(AgentCheck(HAProxy(running.operator, "web", 20.0)).read().servers) == 2
            by_socket = msgspec.structs.replace(pool, weight_delivery="socket")
            with pytest.raises(
                BalancerError, match=r'no admin level; expected .* or `weight_delivery = "agent-check"`'
            ):
                check(by_socket, PATIENT)

    def test_a_server_without_an_agent_is_refused_with_the_line_that_it_needs(self) -> None:
        with web_servers(2) as ports, haproxy(backend(ports)) as running:
            pool = HAProxyPool(
                name="web", backend="web", socket=running.operator, weight_delivery="agent-check", mode="act"
            )
            with pytest.raises(BalancerError, match=r"no agent for the weight of host1, host2; expected `agent-check"):
                check(pool, PATIENT)
