"""A web server's ports, with what they speak."""

from __future__ import annotations

import tomllib

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.bus.node_settings import node_text
from slackwater.core.bus.ports import Port, parse_port, port_of


def test_what_is_spoken_stands_behind_a_port_where_it_is_not_usual_there() -> None:
    assert [str(port_of(*port)) for port in ((80, "http1"), (443, "unknown"), (443, "http1"), (8443, "unknown"))] == [
        "80",
        "443",
        "443:http1",
        "8443:unknown",
    ]
    text = node_text("web1", "web", "nats://b:1", [parse_port("80"), parse_port("8443:unknown")], has_authority=False)
    assert tomllib.loads(text)["sniffer"] == {"interface": "eth0", "ports": [80, "8443:unknown"]}
    assert parse_port("11211:http1") == Port(11211, "http1")


def test_without_ports_no_traffic_is_looked_at() -> None:
    text = node_text("web1", "web", "nats://b:1", [], has_authority=False)
    assert tomllib.loads(text)["sniffer"] == {"interface": ""}


@pytest.mark.parametrize("text", ["0", "65536", "http", "80:", "80:tls", "80:http1:x", "-1", "٨٠"])
def test_another_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a port from 1 to 65535, with what it speaks"):
        parse_port(text)


@pytest.mark.parametrize("other", [["--port", "80"], ["--interface", "eth0"]])
def test_where_no_traffic_is_looked_at_there_is_neither_a_port_nor_an_interface(other: list[str]) -> None:
    done = CliRunner().invoke(cli, ["bus", "node", "settings", "web1", "--no-port", *other])
    assert done.exit_code == 2
    assert f"--no-port and {other[0]} exclude each other." in done.output
