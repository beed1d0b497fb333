"""With a whole `serve`: a dead HAProxy and a dead controller are each called by their name, by every command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.real_processes import is_alive
from tests.support.served_site import HOSTS, Site, noise_on_host1, until, weights

pytestmark = needs_haproxy


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    site = Site(tmp_path, balancer)
    yield site
    site.clean()


def printed(site: Site, *command: str) -> str:
    """What a command prints, in one line."""
    done = site.cli(*command)
    return " ".join((done.stdout + done.stderr).split())


def test_a_haproxy_that_dies_is_named_and_the_controller_is_not_blamed(site: Site) -> None:
    site.serve()
    site.wait_for_cycles()
    site.balancer.stop()
    status = until(
        lambda: "HAProxy has not answered since " in (text := printed(site, "status")) and text, "the outage"
    )
    assert "broken: HAProxy has not answered since " in status
    assert "silent" not in status
    assert "slackwater serve" not in status
    assert f"✕ balancer of pool web: pool `web`: {site.balancer.socket}" in printed(site, "check")


def test_after_kill_9_of_everything_status_and_pause_say_that_the_controller_does_not_run(site: Site) -> None:
    serve = site.serve()
    site.wait_for_cycles()
    with noise_on_host1(site) as start:
        start()
        until(lambda: weights(site.balancer)["host1"] < 100, "host1 has less")
        children = site.children()
        serve.kill()
        serve.wait()
        for pid in children.values():
            until(lambda pid=pid: not is_alive(pid), "the end of the children")  # type: ignore[misc]
    status = until(
        lambda: "does not run (last sign of it: " in (text := printed(site, "status")) and text, "an old cycle"
    )
    now = weights(site.balancer)
    assert f"HAProxy shows the weights {', '.join(f'{host} {now[host]}' for host in HOSTS)}" in status
    assert "broken: The controller does not run: nothing is watched or changed in pool web." in status
    lowered = any(weight < 100 for weight in now.values())
    assert ("To do: `slackwater restore --all`, as weights are still lowered; then " in status) == lowered
    paused = printed(site, "pause", "--all", "--why", "3 a.m.")
    assert "error: web: the controller does not run, so `pause` reaches nobody; `slackwater restore" in paused
    assert "nats" not in paused.lower()
    printed(site, "restore", "--all")
    assert set(weights(site.balancer).values()) == {100}


def test_a_stop_leaves_the_baseline_and_status_says_that_nothing_runs(site: Site) -> None:
    serve = site.serve()
    site.wait_for_cycles()
    serve.send_signal(signal.SIGTERM)
    serve.wait()
    status = until(
        lambda: "does not run (last sign of it: " in (text := printed(site, "status")) and text, "an old cycle"
    )
    assert "HAProxy shows the weights host1 100, host2 100, host3 100" in status
    assert "restore" not in status
