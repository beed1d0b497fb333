"""A node that floods the bus with its own key, in several ways."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slackwater.core import messages
from slackwater.core.config import BusSettings
from tests.support import rollout_thief
from tests.support.rollout_ansible import Site
from tests.support.synthetic_cluster import Cluster


def controllers_bus(site: Site, folder: Path) -> BusSettings:
    """The bus as a controller logs in to it."""
    authority, password = folder / "authority.pem", folder / "password"
    authority.write_text(site.hosts.ssh("web1", "cat /etc/slackwater/node/authority.pem").stdout)
    password.write_text(site.hosts.ssh("lb1", "cat /etc/slackwater/controller/password").stdout)
    password.chmod(0o600)
    return BusSettings(
        url=f"tls://{site.hosts['lb1'].address}:14222",
        user="slackwater-controller",
        password_file=str(password),
        tls_ca=str(authority),
    )


@dataclass(frozen=True)
class Kind:
    """What is sent, with the key of which part, and how many at a time."""

    part: str
    subject: str
    payload: Callable[[], bytes]
    at_once: int


SAMPLE = "slackwater.sample.web.web1"
a_sample = messages.encode(Cluster(("web1",)).sample("web1", 1.0))


def a_change() -> messages.Change:
    """One that web1's wsengine might make, as long as it may be."""
    id_, why = uuid.uuid4().hex, "x" * 2000
    return messages.Change(1, id_, "web", 1.0, "cpu.share", "web1", 1, 2, why, "wsengine", True, cause="lease_ended")


FLOODS = {
    "of garbage": Kind("monitor", SAMPLE, lambda: b"{" + b"x" * 1000, 100),
    "tiny messages": Kind("monitor", SAMPLE, lambda: b"hi", 1000),
    "Samples": Kind("monitor", SAMPLE, lambda: a_sample, 100),
    "huge messages": Kind("monitor", SAMPLE, lambda: b"x" * 200_000, 4),
    "Changes": Kind("wsengine", "slackwater.change.web.web1", lambda: messages.encode(a_change()), 100),
}


class Flood:
    """Sends as fast as the broker takes it, until the block ends."""

    def __init__(self, site: Site, bus: BusSettings, kind: str) -> None:
        self._kind = FLOODS[kind]
        seed = site.hosts.ssh("web1", f"cat /etc/slackwater/node/{self._kind.part}.nkey").stdout.strip()
        self._thief = rollout_thief.Thief(bus.url.removeprefix("tls://"), seed, Path(bus.tls_ca))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.sent = 0

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._thief.close()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stop.is_set():
                self._thief.flood(self._kind.subject, [self._kind.payload() for _ in range(self._kind.at_once)])
                self.sent += self._kind.at_once
