"""`slackwater check` knows what Slackwater itself has done to a server, and which one fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.messages import Cycle
from slackwater.lbengine.backends.table import check
from tests.support.engine_site import SETTINGS, DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

pytestmark = [needs_haproxy, pytest.mark.usefixtures("haproxy_in_full")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DrivenHAProxy]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        made = DrivenHAProxy(balancer, ports, tmp_path)
        (tmp_path / "controller.toml").write_text(
            f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbackend = "web"\nmode = "act"\n'
            f'socket = "{balancer.socket}"\n'
        )
        yield made
        made.journal.close()


def lines(site: DrivenHAProxy, about: str) -> list[dict[str, Any]]:
    """What `check` says of one thing, after the last Cycle came into the journal."""
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    cycle.time_unix_s = time.time()
    site.journal.record(cycle)
    done = CliRunner().invoke(cli, ["check", "--json", "--config", str(site.folder / "controller.toml")])
    return [line for line in json.loads(done.stdout) if line["about"] == about]


def test_a_server_that_slackwater_drained_is_not_said_to_be_left_alone(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    weight = site.weights()[0]
    assert weight < 20
    printed = lines(site, "balancer of pool web")
    assert not any("left alone" in line["text"] or "too small" in line["text"] for line in printed), printed
    (line,) = lines(site, "server host1 of pool web")
    assert line["state"] == "ok"
    assert line["text"].startswith(f"Slackwater has set its weight to {weight} of 100: interference:")


def test_a_server_with_weight_0_of_the_sites_own_is_still_warned_of(site: DrivenHAProxy) -> None:
    site.balancer.send("set server web/host3 weight 0")
    site.cycle()
    site.cycle(host1="interference")
    warnings = "\n".join(check(site.pool(mode="observe"), SETTINGS, site.folder))
    assert "host3 has weight 0 and is left alone until it is given one" in warnings
    assert "host1" not in warnings


def test_a_server_that_fails_well_above_its_peers_is_named_with_its_errors(site: DrivenHAProxy) -> None:
    site.cycle()
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    for server in cycle.servers:
        server.rps, server.errors_per_s, server.failed_share = 20.0, 0.0, 0.0
    failing = cycle.servers[1]
    failing.errors_per_s, failing.failed_share, failing.peers_failed_share = 7.4, 0.37, 0.0
    (line,) = lines(site, "server host2 of pool web")
    assert (line["state"], line["text"]) == ("warning", "it fails 37 of 100 requests, its peers 0")
    assert "7.4 errors/s" in line["remedy"]
    (line,) = lines(site, "requests of pool web")
    assert line["text"] == "60.0 requests/s, 7.4 errors/s"
