"""An engine over a real HAProxy, with a clock that only the test moves."""

from __future__ import annotations

from pathlib import Path

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, State
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.engine import Engine
from slackwater_lab.played_verdict import verdict
from tests.support.real_haproxy import (
    RealHAProxy,
)

HOSTS = ("host1", "host2", "host3")
CALM_RPS, SLOW_RPS = 300.0, 53.0


SETTINGS = LbengineSettings(socket_timeout_s=20.0)


class DrivenHAProxy:
    """A HAProxy with three servers, an engine before it, and a clock that only the test moves."""

    def __init__(self, balancer: RealHAProxy, ports: list[int], folder: Path) -> None:
        self.balancer = balancer
        self.ports = ports
        self.folder = folder
        self.now_s = 1000.0
        self.rps = 80.0
        self.journal = Journal.open(journal_path(folder))
        self.engine = self.start()

    def pool(self, **others: object) -> PoolSettings:
        return HAProxyPool(
            **{"name": "web", "backend": "web", "socket": self.balancer.socket, "mode": "act", **others}  # type: ignore[arg-type]
        )

    def start(self, **others: object) -> Engine:
        """A new engine, as after a restart of the process."""
        self.engine = Engine(self.pool(**others), SETTINGS, self.folder, self.journal)
        return self.engine

    def publish(self, **states: State) -> None:
        """Fresh Verdicts of all three nodes: calm, but for the ones named."""
        for host in HOSTS:
            state = states.get(host, "calm")
            slow = state == "interference"
            self.engine.inbox.put(
                verdict(
                    host,
                    state,
                    severity=0.82 if slow else 0.0,
                    path=["run delay 14.2x"] if slow else [],
                    model="start",
                    capacity_rps=SLOW_RPS if slow else CALM_RPS,
                    rps=self.rps,
                ),
                self.now_s,
            )

    def cycle(self, after_s: float = 0.2, **states: State) -> str:
        """Time passes, all nodes speak, the engine turns."""
        self.now_s += after_s
        self.publish(**states)
        return self.engine.cycle(self.now_s)

    def silent_cycle(self, after_s: float = 0.2) -> str:
        self.now_s += after_s
        return self.engine.cycle(self.now_s)

    def weights(self) -> list[int]:
        return [self.balancer.weight(host) for host in HOSTS]

    def changes(self) -> list[Change]:
        """Oldest first."""
        return list(reversed(self.journal.changes("web")))

    def baseline_file(self) -> Path:
        return self.folder / "baseline" / "web.json"
