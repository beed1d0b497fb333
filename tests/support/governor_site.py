"""The governor whole: `slackwater serve` with all its children, a real HAProxy, nats-server and wsengine, and a real
cgroup that the wsengine sets.

Only the Samples are made up, from what the cgroup really has: those of web1, which is governed, and of two peers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.messages import Governed, Sample
from tests.support.played_monitors import Monitors
from tests.support.real_cgroup import Guest
from tests.support.real_haproxy import RealHAProxy, backend, haproxy
from tests.support.real_wsengine import Engine, Nats, make_keys
from tests.support.served_site import Site

NODES = ("web1", "host2", "host3")
TARGET_MS = 150.0
LOW_CORES, HIGH_CORES = 0.2, 1.4
"""CPU time per second that web1's requests need."""
SETTINGS = """\
target_p95_ms = {target_ms}
servers = {{ host1 = "web1" }}
[retune]
order_key = "{key}"
[governor]
mode = "{mode}"
policy = "{policy}"
lease_s = {lease_s}
lower_every_s = 2
"""


class GovernedNodes(Monitors):
    """web1 has what its guest has, and its requests take `busy_cores`."""

    def __init__(self, url: str, guest: Guest) -> None:
        self.busy_cores = LOW_CORES
        self._guest = guest
        super().__init__(url, NODES)

    def sample(self, node: str) -> Sample:
        sample = super().sample(node)
        if node != "web1":
            return sample
        assert sample.cpu is not None
        assert sample.traffic is not None
        percent = self._guest.quota_percent()
        cores = float(self._guest.cores())
        sample.cpu.cores = cores if percent is None else min(cores, percent / 100.0)
        sample.cpu.utilisation = min(1.0, self.busy_cores / sample.cpu.cores)
        sample.traffic.rt_p95_ms = sample.traffic.rt_p99_ms = 20.0 / max(0.01, 1.0 - sample.cpu.utilisation)
        return sample


class GovernorSite(Site):
    def __init__(self, folder: Path, balancer: RealHAProxy) -> None:
        self.guest = Guest(f"slackwater-test-governor-{os.getpid()}", quota_cores=None)
        self.private, public = make_keys(folder)
        self.nats = Nats(folder / "nats")
        sections = f'[cpu]\ncgroup = "{self.guest.name}"\nquota = [10, 800]\n'
        self.socket = folder / "events"
        sections += f'policy = ["hurry-up", "pareto"]\nevents_socket = "{self.socket}"\n'
        if self.guest.cpuset is not None:
            sections += "cores = [1, 64]\n"
        self.engine = Engine(folder, self.nats.url, public, sections)
        self.engine.start()
        super().__init__(folder, balancer)
        self.nodes = GovernedNodes(self.nats.url, self.guest)
        self.own = self.has()

    def configure(self, mode: str, lease_s: float = 30.0, policy: str = "slackwater") -> None:
        self.write(bus=f'url = "{self.nats.url}"')
        with self.config.open("a") as file:
            values = {"mode": mode, "key": self.private, "lease_s": lease_s, "policy": policy}
            file.write(SETTINGS.format(**values, target_ms=TARGET_MS))

    def has(self) -> tuple[int, int | None]:
        """The cores that the kernel lets web1's process run on, and its quota in percent of one core."""
        return self.guest.cores(), self.guest.quota_percent()

    def governed(self) -> Governed | None:
        """What the governor said last of web1."""
        try:
            with Journal.open(journal_path(self.state), read_only=True) as journal:
                return journal.latest_governed("web").get("web1", (None, 0.0))[0]
        except JournalError:  # it is being made
            return None

    def clean(self) -> None:
        super().clean()
        self.nodes.close()
        self.engine.end()
        self.engine.close()
        self.nats.stop()
        self.guest.close()


@contextmanager
def governor_site(folder: Path) -> Iterator[GovernorSite]:
    """It is there, and nothing of it after the block."""
    with haproxy(backend([1, 2, 3])) as balancer:
        whole = GovernorSite(folder, balancer)
        try:
            yield whole
        finally:
            whole.clean()
