"""What else moves requests or writes weights on a real HAProxy: backup servers, slowstart, SRV records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slackwater.core.config import LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.table import check
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.engine import Engine
from slackwater_lab.played_verdict import verdict
from tests.support.real_agent import Agent
from tests.support.real_haproxy import (
    RealHAProxy,
    agent_inter_ms,
    haproxy,
    needs_haproxy,
    servers_of,
    until,
    web_servers,
)
from tests.support.srv_dns import SrvDns

pytestmark = [needs_haproxy, pytest.mark.usefixtures("haproxy_version")]
SETTINGS = LbengineSettings(socket_timeout_s=20.0)


class DrivenHAProxy:
    """An engine on a HAProxy; all nodes are calm but those that are named."""

    def __init__(self, running: RealHAProxy, folder: Path) -> None:
        self.running = running
        self.client = HAProxy(running.socket, "web", SETTINGS.socket_timeout_s)
        self.pool = HAProxyPool(name="web", backend="web", socket=running.socket, mode="act")
        self.journal = Journal.open(journal_path(folder))
        self.engine = Engine(self.pool, SETTINGS, folder, self.journal)
        self.now_s = 1000.0

    def cycle(self, *slow: str) -> str:
        self.now_s += 0.2
        for server in self.client.read().servers:
            self.engine.inbox.put(verdict(server.name, "interference" if server.name in slow else "calm"), self.now_s)
        return self.engine.cycle(self.now_s)

    def servers(self) -> dict[str, Server]:
        return {server.name: server for server in self.client.read().servers}

    def weights(self) -> dict[str, int]:
        return {name: server.weight for name, server in self.servers().items()}


@contextmanager
def site_of(backends: str, folder: Path) -> Iterator[DrivenHAProxy]:
    with haproxy(backends) as running:
        site = DrivenHAProxy(running, folder)
        yield site
        site.journal.close()


def test_a_backup_server_is_left_alone_and_counts_for_nothing(tmp_path: Path) -> None:
    with web_servers(3) as ports:
        lines = servers_of(ports[:2]) + "\n" + servers_of(ports[2:], "weight 100 backup").replace("host1", "spare")
        with site_of(f"backend web\n    balance roundrobin\n{lines}\n", tmp_path) as site:
            assert site.servers()["spare"].backup
            site.cycle()
            site.cycle("spare")
            assert site.weights() == {"host1": 100, "host2": 100, "spare": 100}, "it takes no requests"
            site.cycle("host1", "spare")
            assert site.weights() == {"host1": 0, "host2": 100, "spare": 100}, "host1 is one of two, not two of three"
            site.running.send("set server web/host2 state maint")
            site.cycle("host1")
            assert site.weights()["host1"] > 0, "a backup does not stand in for the last server"


def test_a_server_in_slowstart_is_described_and_its_weight_stays_as_it_is(tmp_path: Path) -> None:
    with web_servers(2) as ports:
        lines = servers_of(ports, "weight 100 check inter 200ms fall 1 rise 1 slowstart 600s")
        with site_of(f"backend web\n    balance roundrobin\n{lines}\n", tmp_path) as site:
            until(lambda: {server.condition for server in site.servers().values()} == {"up"}, "checks have passed")
            assert "slow start" not in site.cycle()
            site.running.send("set server web/host1 health down")
            until(lambda: site.servers()["host1"].slow_start, "host1 is back from a failed check")
            remarks = site.cycle()
            assert "host1 is in the balancer's slow start" in remarks
            assert site.weights() == {"host1": 100, "host2": 100}
            assert "someone else" not in remarks, "slowstart works beside the weight, not on it"
            assert any("slowstart holds host1 down" in text for text in check(site.pool, SETTINGS))
            site.cycle("host1")
            assert site.weights() == {"host1": 0, "host2": 100}
            assert site.running.shares(10) == [0.0, 1.0]


def test_a_live_agent_check_beside_us_is_warned_of_and_what_it_sets_is_left_alone(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(web_servers(3))
        agent = Agent()
        stack.callback(agent.close)
        asked = f"weight 100 agent-check agent-port {agent.port} agent-inter {agent_inter_ms()}ms"
        lines = servers_of(ports).replace(f"127.0.0.1:{ports[1]} weight 100", f"127.0.0.1:{ports[1]} {asked}")
        site = stack.enter_context(site_of(f"backend web\n    balance roundrobin\n{lines}\n", tmp_path))
        remarks = "\n".join(check(site.pool, SETTINGS))
        assert "the agent-check of host2 sets weights too where it answers with a percentage" in remarks
        site.cycle()
        agent.line = "30%\n"
        until(lambda: site.weights()["host2"] == 30, "HAProxy has asked the agent")
        assert "host2 100 -> 30 by someone else" in site.cycle("host2")
        assert "host2 is held at 30 by someone else" in site.cycle("host2")
        site.cycle("host1")
        assert site.weights() == {"host1": 0, "host2": 30, "host3": 100}
        agent.line = "100%\n"
        until(lambda: site.weights()["host2"] == 100, "HAProxy has asked the agent again")
        assert "someone else" not in site.cycle()
        assert {change.by for change in site.journal.changes("web") if change.target == "host2"} == {"someone else"}


@contextmanager
def with_srv(folder: Path, options: str = "") -> Iterator[tuple[DrivenHAProxy, SrvDns]]:
    """Three servers by an SRV record; HAProxy asks for it five times a second."""
    with web_servers(3) as ports:
        dns = SrvDns(dict.fromkeys(ports, 100))
        backends = (
            f"resolvers dns\n    nameserver one 127.0.0.1:{dns.port}\n    hold valid 100ms\n    timeout resolve 200ms\n"
            "    accepted_payload_size 8192\n"
            f"backend web\n    balance roundrobin\n"
            f"    server-template host 3 _http._tcp.web.test resolvers dns weight 100 init-addr none check {options}\n"
        )
        try:
            with site_of(backends, folder) as site:
                until(lambda: all(server.available for server in site.servers().values()), "all three are resolved")
                yield site, dns
        finally:
            dns.close()


def settle(dns: SrvDns) -> None:
    before = dns.answered
    until(lambda: dns.answered > before + 4, "HAProxy asks again")


def test_weights_of_srv_records_are_warned_of_and_a_change_there_is_someone_elses(tmp_path: Path) -> None:
    with with_srv(tmp_path) as (site, dns):
        first = site.servers()["host1"]
        assert first.srv_record
        remarks = "\n".join(check(site.pool, SETTINGS))
        assert "the weights of host1, host2, host3 come from SRV records; set `resolve-opts ignore-weight`" in remarks
        site.cycle()
        dns.weights = dict.fromkeys(dns.weights, 65_535)
        until(lambda: site.weights()["host1"] != first.weight, "HAProxy has taken the new weights")
        assert "by someone else" in site.cycle("host1")


def test_with_ignore_weight_srv_records_leave_our_weights_alone(tmp_path: Path) -> None:
    with with_srv(tmp_path, "resolve-opts ignore-weight") as (site, dns):
        site.cycle()
        site.cycle("host1")
        assert site.weights() == {"host1": 0, "host2": 100, "host3": 100}
        dns.weights = dict.fromkeys(dns.weights, 65_535)
        settle(dns)
        assert site.weights() == {"host1": 0, "host2": 100, "host3": 100}
        assert "someone else" not in site.cycle("host1")
