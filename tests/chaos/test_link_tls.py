"""A link of chaos that speaks TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings
from slackwater.core.messages import Verdict
from slackwater_lab.cluster.balancer import free_port
from tests.chaos.link import Link
from tests.support.certificates import certificates
from tests.support.nats_process import Server, until


def test_a_link_stands_for_a_server_with_tls(tmp_path: Path) -> None:
    """A password goes through no other connection, and the link reads what it disturbs."""
    certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server = Server(tmp_path)
    server.start()
    host, port = server.listen.split(":")
    link = Link("host1", ("127.0.0.1", free_port(0)), (host, int(port)), seed=1, tls=tls)
    link.start()

    async def story() -> None:
        near = await Bus.connect(server.url, "near")
        far = await Bus.connect(BusSettings(link.url, tls_ca=f"{tmp_path}/ca.pem"), "far")
        nodes: list[str] = []
        await far.subscribe("verdict", lambda verdict: nodes.append(verdict.node))
        await far.flush()
        await near.publish(Verdict(1, "n1", "web", 1.0, "calm", 1.0, 0.0, [], "said"))
        await until(lambda: nodes == ["n1"])
        await far.close()
        await near.close()

    try:
        asyncio.run(story())
    finally:
        link.close()
        server.stop()
