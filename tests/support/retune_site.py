"""The second stage whole: `slackwater serve` with all its children, a real HAProxy, nats-server and wsengine.

Only the nodes are made up: Samples of `web1`, which has the wsengine and can have a neighbour, and of two calm peers.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.messages import Sample
from tests.support.played_monitors import Monitors
from tests.support.real_haproxy import RealHAProxy, backend, haproxy
from tests.support.real_wsengine import wait_for
from tests.support.served_site import Site, until
from tests.support.wsengine_scene import BY_HAND, Scene

NODES = ("web1", "host2", "host3")
TURNED = "threads 16;\n"
"""What the wsengine's file says when web1 is retuned; `BY_HAND` is what it says without us."""
STARTED_WITHIN_S = 180.0
SETTINGS = """\
servers = {{ host1 = "web1" }}
[retune]
mode = "{mode}"
order_key = "{key}"
long_after_s = 2
leave_after_s = 1
lease_s = {lease_s}
drain_s = 1
reload_min_interval_s = 0
"""


class RetunedNodes(Monitors):
    """web1 has a neighbour while `loud`."""

    def __init__(self, url: str) -> None:
        self.loud = False
        super().__init__(url, NODES)

    def sample(self, node: str) -> Sample:
        self.cluster.hosts["web1"].neighbour = 0.9 if self.loud else 0.0
        return super().sample(node)


class RetuneSite(Site):
    """Everything, on the bus that the wsengine's scene has."""

    def __init__(self, folder: Path, balancer: RealHAProxy) -> None:
        self.scene = Scene(folder)
        super().__init__(folder, balancer)
        self.nodes = RetunedNodes(self.scene.nats.url)
        self.serving: subprocess.Popen[bytes] | None = None

    def begin(self, mode: str, lease_s: float = 6.0) -> None:
        """Starts `serve`, and a neighbour beside web1 once all nodes are known to be calm."""
        self.write(bus=f'url = "{self.scene.nats.url}"')
        with self.config.open("a") as file:
            file.write(SETTINGS.format(mode=mode, key=self.scene.private, lease_s=lease_s))
        self.serving = self.serve()
        wait_for(lambda: self.states() == ["calm"] * 3, "three calm nodes", STARTED_WITHIN_S)
        self.nodes.loud = True

    def states(self) -> list[str]:
        try:
            with Journal.open(journal_path(self.state), read_only=True) as journal:
                return [verdict.state for verdict in journal.latest_verdicts("web").values()]
        except JournalError:  # it is being made
            return []

    def wait_until_turned(self) -> None:
        until(lambda: self.scene.text() == TURNED, "the knob is turned")

    def kill(self, program: str) -> None:
        """`controller` with all its children, `bus`, or `wsengine`, which its service manager starts again at once."""
        if program == "controller":
            assert self.serving is not None
            self.serving.kill()
            self.serving.wait()
        elif program == "bus":
            self.scene.nats.kill()
        else:
            self.scene.engine.end(signal.SIGKILL)
            self.scene.engine.spawn()

    def clean(self) -> None:
        super().clean()
        self.nodes.close()
        self.scene.close()


@contextmanager
def whole_site(folder: Path) -> Iterator[RetuneSite]:
    """It is there, and nothing of it after the block; `begin` starts the controller."""
    with haproxy(backend([1, 2, 3])) as balancer:
        whole = RetuneSite(folder, balancer)
        try:
            yield whole
        finally:
            whole.clean()


__all__ = ["BY_HAND", "TURNED", "RetuneSite", "whole_site"]
