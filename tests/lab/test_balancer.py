"""The lab's own view of a real HAProxy: snapshot, weights, a reload that forgets them."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_lab.cluster.balancer import Balancer, configuration, free_port
from slackwater_lab.cluster.hosts import hosts
from slackwater_lab.cluster.paths import BIN, LabError

pytestmark = pytest.mark.skipif(not (BIN / "haproxy").exists(), reason="haproxy is missing: run `make setup`")


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    # A short path: the socket's may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sw-", ignore_cleanup_errors=True) as name:
        running = Balancer(Path(name), hosts(3), "roundrobin")
        try:
            running.start([str(BIN / "haproxy")])
            yield running
        finally:
            if running.program is not None:
                running.program.stop()


def test_a_snapshot_shows_all_servers_with_weight_and_requests(balancer: Balancer) -> None:
    seen = balancer.snapshot()
    assert seen.weight == {"host1": 100, "host2": 100, "host3": 100}
    assert seen.requests == {"host1": 0, "host2": 0, "host3": 0}
    assert all(status.startswith(("UP", "no check")) for status in seen.status.values())


def test_a_weight_that_was_set_is_seen_and_lost_by_a_reload(balancer: Balancer) -> None:
    balancer.set_weight("host1", 0)
    assert balancer.snapshot().weight["host1"] == 0
    before = balancer.worker_pid()
    balancer.reload()
    assert balancer.worker_pid() != before
    assert balancer.snapshot().weight["host1"] == 100


def test_each_pool_is_a_backend_with_a_frontend_of_its_own() -> None:
    with tempfile.TemporaryDirectory(prefix="sw-", ignore_cleanup_errors=True) as name:
        running = Balancer(Path(name), hosts(4, pools=2), "roundrobin")
        try:
            running.start([str(BIN / "haproxy")])
            running.set_weight("host4", 7)
            assert running.snapshot().weight == {"host1": 100, "host2": 100, "host3": 100, "host4": 7}
            assert list(running.urls) == ["web1", "web2"]
            assert running.url == running.urls["web1"] != running.urls["web2"]
            for url in running.urls.values():
                address, _, port = url.removeprefix("http://").partition(":")
                socket.create_connection((address, int(port)), timeout=10.0).close()
        finally:
            if running.program is not None:
                running.program.stop()


def test_a_weight_that_haproxy_refuses_is_reported(balancer: Balancer) -> None:
    with pytest.raises(LabError, match="HAProxy refused weight 100 for host9"):
        balancer.set_weight("host9", 100)


def test_the_balance_algorithm_is_in_the_configuration(tmp_path: Path) -> None:
    assert "    balance leastconn\n" in configuration(hosts(2), "leastconn", 1, tmp_path / "socket")
    with pytest.raises(LabError, match="no balance `first` in the lab"):
        Balancer(tmp_path, hosts(2), "first")


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = taken.getsockname()[1]
        assert free_port(wanted) != wanted
