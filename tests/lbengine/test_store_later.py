"""lbengine on balancers that several hosts drive, while the bus's store has no leader yet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.bus.bus import Bus
from tests.support.lbengine_site import Detector, LbengineProcess, story, until
from tests.support.nats_cluster import Cluster
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, tcp_to, web_servers

pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not in PATH"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "bus"
    folder.mkdir()
    made = Cluster(folder)
    yield made
    made.stop()


def test_it_stands_by_until_the_store_says_whose_the_balancer_is(cluster: Cluster, tmp_path: Path) -> None:
    with (
        web_servers(3) as ports,
        haproxy(backend(ports)) as balancer,
        tcp_to(balancer.socket) as address,
    ):
        site = LbengineProcess(balancer, tmp_path, f'socket = "tcp://{address}"\nallow_tcp_socket = true\n')
        site.config.write_text(site.config.read_text().replace(site.listen, cluster.listens[0]))
        site.url = cluster.url(0)
        cluster.start(0)  # alone it finds no leader

        async def script(_bus: Bus, detector: Detector) -> None:
            site.start()
            await until(lambda: "asking again" in site.log.read_text(), site, "it asks for the store")
            detector.states["host1"] = "interference"
            await until(lambda: "standing by, who drives it is not known" in site.log.read_text(), site, "it waits")
            assert site.weights() == [100, 100, 100]
            cluster.start(1, 2)
            await until(lambda: site.weights()[0] == 0, site, "with the lease it drives")

        try:
            story(site, script)
        finally:
            site.end()
