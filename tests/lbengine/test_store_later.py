"""lbengine while the bus's store has no leader yet: another lbengine may drive the same balancer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.bus.bus import Bus
from tests.support.lbengine_site import Detector, LbengineProcess, story, until
from tests.support.nats_cluster import NatsCluster
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, tcp_to, web_servers

pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not in PATH"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    folder = tmp_path / "bus"
    folder.mkdir()
    made = NatsCluster(folder)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("is_shared", "waits"),
    [(True, "standing by, who drives it is not known"), (False, "not lowered: host1 (the lease on the balancer")],
)
def test_nothing_is_lowered_until_the_store_says_whose_the_balancer_is(
    cluster: NatsCluster, tmp_path: Path, is_shared: bool, waits: str
) -> None:
    with (
        web_servers(3) as ports,
        haproxy(backend(ports)) as balancer,
        tcp_to(balancer.socket) as address,
    ):
        tcp = f'socket = "tcp://{address}"\nallow_tcp_socket = true\n'
        site = LbengineProcess(balancer, tmp_path, tcp if is_shared else "")
        site.config.write_text(site.config.read_text().replace(site.listen, cluster.listens[0]))
        site.url = cluster.url(0)
        cluster.start(0)  # alone it finds no leader

        async def script(_bus: Bus, detector: Detector) -> None:
            site.start()
            await until(lambda: "asking again" in site.log.read_text(), site, "it asks for the store")
            detector.states["host1"] = "interference"
            await until(lambda: waits in site.log.read_text(), site, "it waits")
            assert site.weights() == [100, 100, 100]
            cluster.start(1, 2)
            await until(lambda: site.weights()[0] == 0, site, "with the lease it drives")

        try:
            story(site, script)
        finally:
            site.end()
