"""A HAProxy that does not answer is told from a controller that does not run, and each says what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli import check_command
from slackwater.controller.cli.main import cli
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cycle, ServerState
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable
from slackwater.views.pool import PoolStatus, pool_status
from slackwater.views.row import clock
from slackwater.views.standing import standing
from tests.support.engine_site import DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

pytestmark = [needs_haproxy, pytest.mark.usefixtures("haproxy_in_full")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DrivenHAProxy]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        made = DrivenHAProxy(balancer, ports, tmp_path)
        yield made
        made.journal.close()


def shown(site: DrivenHAProxy) -> PoolStatus:
    """What is shown of the last Cycle."""
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    site.journal.record(cycle)
    return pool_status(site.journal, "web", cycle.time_unix_s, {}, "HAProxy")


def test_a_dead_haproxy_is_said_to_be_silent_since_when_and_the_controller_is_not(site: DrivenHAProxy) -> None:
    site.cycle()
    assert shown(site).outage is None
    site.balancer.stop()
    for _ in range(3):
        with pytest.raises(BalancerUnreachable):
            site.cycle()
    view = shown(site)
    assert (view.outage, view.stale, view.state) == ("no_answer", False, "unknown")
    assert view.outage_since_unix_s is not None
    since = clock(view.outage_since_unix_s)
    assert view.headline.startswith(f"HAProxy has not answered since {since} (")
    assert "expected" in view.headline, "it says why"
    assert [(row.node, row.weight, row.baseline) for row in view.rows] == [
        (name, None, 100) for name in ("host1", "host2", "host3")
    ], "no weight is shown that nobody knows"
    stands = standing([view])
    assert stands.state == "broken"
    assert stands.sentence == (
        f"HAProxy has not answered since {since}, so the weights of pool web can be neither read nor set."
    )
    assert stands.todo == "look at HAProxy on its host; all else follows by itself when it answers."


def test_a_haproxy_that_refuses_is_not_said_to_be_silent(site: DrivenHAProxy) -> None:
    site.cycle()
    site.start(backend="gone")
    with pytest.raises(BalancerError):
        site.cycle()
    view = shown(site)
    assert view.headline.startswith("HAProxy has refused commands since ")
    assert "no such backend" in view.headline
    assert standing([view]).sentence.startswith("HAProxy has refused commands since ")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def status(config: str) -> str:
    """What it prints, in one line."""
    return " ".join(run("status", "--config", config).stdout.split())


def dead_controller(site: DrivenHAProxy, bus: str = "") -> str:
    """The configuration of a controller that ran until a minute ago, with host1 lowered then."""
    path = site.folder / "controller.toml"
    path.write_text(
        f'state_dir = "{site.folder}"\n{bus}[[pool]]\nname = "web"\nbackend = "web"\nmode = "act"\n'
        f'socket = "{site.balancer.socket}"\n'
    )
    servers = [ServerState(f"host{n}", "up", 0 if n == 1 else 100, 100, 100) for n in (1, 2, 3)]
    unix_s = time.time() - 60.0
    with Journal.open(journal_path(site.folder)) as journal:
        journal.record(Cycle(1, "web", unix_s, "act", False, "roundrobin", "optimal", "web: host1 100 -> 0", servers))
    return str(path)


def test_status_of_a_dead_controller_says_so_and_shows_what_haproxy_shows(site: DrivenHAProxy) -> None:
    config = dead_controller(site)
    printed = status(config)
    assert "The controller does not run (last sign of it: " in printed
    assert "HAProxy shows the weights host1 100, host2 100, host3 100" in printed
    assert "broken: The controller does not run: nothing is watched or changed in pool web." in printed
    assert "To do: `systemctl start slackwater-controller`." in printed
    assert "slackwater serve" not in printed
    assert "restore" not in printed, "there is nothing to restore"
    assert "last cycle: web: host1 100 -> 0" in printed
    (pool,) = json.loads(run("status", "--config", config, "--json").stdout)["pools"]
    assert (pool["running"], [row["weight"] for row in pool["rows"]]) == (False, [100, 100, 100])


def test_status_of_a_dead_controller_sends_nobody_to_restore_what_a_person_has_set(site: DrivenHAProxy) -> None:
    config = dead_controller(site)
    site.balancer.send("set server web/host3 weight 30")
    assert "To do: `systemctl start slackwater-controller`." in status(config)
    site.balancer.send("set server web/host3 weight 100")
    site.cycle()
    site.cycle(host1="interference")
    assert "To do: `slackwater restore --all`, as weights are still lowered; then `" in status(config)
    site.balancer.send("set server web/host3 weight 30")
    site.cycle(host1="interference")
    assert run("restore", "--all", "--config", config).exit_code == 0
    assert site.weights() == [100, 100, 30]
    assert "To do: `systemctl start slackwater-controller`." in status(config)


def test_status_when_both_are_dead_says_so(site: DrivenHAProxy) -> None:
    config = dead_controller(site)
    site.balancer.stop()
    printed = status(config)
    assert "The controller does not run (last sign of it: " in printed
    assert "and HAProxy does not answer: " in printed


def test_pause_without_a_controller_speaks_of_the_controller_and_not_of_the_bus(site: DrivenHAProxy) -> None:
    for bus in ("", '[bus]\nurl = "nats://127.0.0.1:1"\n'):
        answer = run("pause", "--config", dead_controller(site, bus))
        assert answer.exit_code == 1
        assert answer.stderr.startswith(
            "error: the controller does not run, so `pause` reaches nobody; `slackwater restore --all` sets the"
            " baseline weights without it, `systemctl start slackwater-controller` starts it"
        )
        assert ("nats" in answer.stderr) == bool(bus)


def test_check_says_what_the_controller_lacks_where_the_person_s_own_command_reaches_haproxy(
    site: DrivenHAProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dead_controller(site)
    monkeypatch.setattr(check_command, "running_serve", lambda _: 1)
    now_unix_s = time.time()
    outage = Cycle(1, "web", now_unix_s, "act", False, "", "optimal", "web: no permission to connect", [])
    outage.outage, outage.outage_since_unix_s = "no_answer", now_unix_s - 60.0
    site.journal.record(outage)
    lines = run("check", "--config", config).stdout
    assert (
        "✕ balancer of pool web: it answers this command, but not the controller: it has not answered since " in lines
    )
    assert ": web: no permission to connect" in lines
    assert "no Sample" not in lines, "of the servers nothing new is known"
