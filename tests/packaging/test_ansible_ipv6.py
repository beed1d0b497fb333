"""A site whose hosts have IPv6 addresses: before a port, the address stands in brackets in what the roles write."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.core.config import parse
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from tests.support.ansible_files import default_of, rendered

HOSTVARS = {"lb1": {"slackwater_base_address": "2001:db8::1"}, "lb2": {"slackwater_base_address": "lb2.example.org"}}


def test_the_controller_reads_the_admin_sockets_of_all_balancers() -> None:
    text = rendered(
        "slackwater_controller",
        "controller.toml.j2",
        groups={"balancers": ["lb1", "lb2"], "nodes": []},
        hostvars=HOSTVARS,
        slackwater_admin_port=14299,
        slackwater_backend="web",
        slackwater_balancer="haproxy",
        slackwater_balancers_group="balancers",
        slackwater_controller_bus_url="tls://[2001:db8::1]:14222",
        slackwater_controller_law="optimal",
        slackwater_controller_max_mitigated=0.5,
        slackwater_controller_servers={},
        slackwater_controller_settings={},
        slackwater_controller_web_listen="127.0.0.1:8099",
        slackwater_mode="observe",
        slackwater_nodes_group="nodes",
        slackwater_pool="web",
        slackwater_shared=True,
    )
    (pool,) = parse(text, "ipv6").pool
    assert isinstance(pool, HAProxyPool)
    assert pool.all_sockets == ["tcp://[2001:db8::1]:14299", "tcp://lb2.example.org:14299"]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("2001:db8::1", "[2001:db8::1]"),
        ("::1", "[::1]"),
        ("[2001:db8::1]", "[2001:db8::1]"),
        ("192.0.2.1", "192.0.2.1"),
        ("lb1.example.org", "lb1.example.org"),
        ("lb1", "lb1"),
    ],
)
def test_the_bus_is_reached_at_each_kind_of_address(address: str, host: str) -> None:
    given: dict[str, Any] = {"slackwater_broker_port": 14222}
    node = default_of("slackwater_node", "slackwater_node_bus_url", slackwater_node_broker_address=address, **given)
    controller = default_of(
        "slackwater_controller",
        "slackwater_controller_bus_url",
        hostvars={"b": {"slackwater_base_address": address}},
        slackwater_controller_broker="b",
        **given,
    )
    assert node == controller == f"tls://{host}:14222"


def test_the_brokers_listen_and_reach_each_other() -> None:
    text = rendered(
        "slackwater_broker",
        "nats.conf.j2",
        groups={"nodes": [], "brokers": ["lb1", "lb2", "lb3"]},
        hostvars={**HOSTVARS, "lb3": {"slackwater_base_address": "2001:db8::3"}},
        inventory_hostname="lb1",
        slackwater_broker_cluster_port=14223,
        slackwater_broker_listen="2001:db8::1",
        slackwater_broker_port=14222,
        slackwater_brokers_group="brokers",
        slackwater_nodes_group="nodes",
        slackwater_vault={"cluster_password": "x"},
    )
    lines = [line.strip() for line in text.splitlines()]
    for expected in (
        'listen: "[2001:db8::1]:14222"',
        'listen: "[2001:db8::1]:14223"',
        '"nats-route://cluster:x@lb2.example.org:14223"',
        '"nats-route://cluster:x@[2001:db8::3]:14223"',
    ):
        assert expected in lines
