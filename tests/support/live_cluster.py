"""A whole controller (`slackwater serve` with a real nats-server and a real HAProxy) over a made-up cluster that feels
its weights: each host's requests follow them, and a neighbour can be switched on. For tests and screenshots only."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import slackwater.lbengine.backends.table  # noqa: F401  (declares the balancers that a configuration can name)
from slackwater.core import state_dir
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus
from slackwater.core.bus.config import ListedNode
from slackwater.core.config import load
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.views.pool import PoolStatus, pool_status
from slackwater.web.users import Users
from tests.support.nats_process import as_node
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, web_servers
from tests.support.real_processes import free_address
from tests.support.synthetic_cluster import PERIOD_S, Cluster

IN_TIME_S = 90.0
TOTAL_RPS = 200.0
BURSTS_PER_S = 10
PASSWORD = "correct horse battery"
FROZEN = ("lbengine", "detector", "journal")
MARKUP = "<img src=x onerror=alert(1)><b>&amp;"


def until(condition: Callable[[], Any], event: str, within_s: float = IN_TIME_S) -> Any:
    """Waits for the first true value of `condition`."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{event} did not happen within {within_s:g} s"
        time.sleep(0.05)
    return value


class LiveCluster:
    """Three hosts `host1`..`host3` in pool `web`; `anna` is an operator, `victor` a viewer."""

    def __init__(self, folder: Path, balancer: RealHAProxy, settings: str = "") -> None:
        self.state = folder / "state"
        self.balancer = balancer
        self.bus = free_address()
        self.web = free_address()
        self.config = folder / "controller.toml"
        self.config.write_text(
            f'state_dir = "{self.state}"\n[bus]\nlisten = "{self.bus}"\n[web]\nlisten = "{self.web}"\n'
            "[lbengine]\nlease_s = 1.5\n"
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{balancer.socket}"\nmode = "act"\n'
            "target_p95_ms = 25.0\ntarget_p99_ms = 80.0\n" + settings
        )
        self.log = folder / "serve.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.cluster = Cluster(seed=3, rich=False)
        self.loud: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._publish()), daemon=True)
        self._load = threading.Thread(target=self._request, daemon=True)
        nats_server.change_nodes(load(self.config), lambda _: [ListedNode("web", name) for name in self.cluster.names])
        users = Users(self.state)
        users.add_user("anna", "operator", PASSWORD)
        users.add_user("victor", "viewer", PASSWORD)
        self.token = users.add_token("tests", "operator")

    @property
    def url(self) -> str:
        return f"http://{self.web}"

    def start(self) -> None:
        """Starts everything and waits for calm."""
        command = [sys.executable, "-m", "slackwater.controller.cli.main", "serve", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        until(lambda: (self.state / "serve.json").exists(), "serve.json")
        nats_server.wait_until_it_answers(self.bus, self.state / "nats.log")
        self._thread.start()
        self._load.start()
        until(lambda: self.states() == ["calm"] * 3, "three calm hosts")

    def view(self) -> PoolStatus | None:
        try:
            with Journal.open(journal_path(self.state), read_only=True) as journal:
                return pool_status(journal, "web", time.time())
        except JournalError:  # it is being made
            return None

    def states(self) -> list[str]:
        view = self.view()
        return [] if view is None or view.stale else [row.state for row in view.rows]

    def noise(self, host: str) -> None:
        """Begins a neighbour beside a host and waits until its weight is lowered."""
        self.loud.add(host)
        until(lambda: self.balancer.weight(host) < 100, f"{host} is relieved")

    def calm(self) -> None:
        """Ends all neighbours and waits for the weights."""
        self.loud.clear()
        until(lambda: all(self.balancer.weight(host) == 100 for host in self.cluster.names), "all weights are back")

    def freeze(self) -> None:
        """Kills lbengine and the journal's process, as if the controller had hung: nothing new is recorded."""
        assert self.process is not None
        children = (state_dir.read_serve(self.state) or {})["children"]
        self.process.send_signal(signal.SIGSTOP)
        for name in FROZEN:
            subprocess.run(["kill", "-STOP", str(children[name])], check=True)

    def thaw(self) -> None:
        assert self.process is not None
        children = (state_dir.read_serve(self.state) or {})["children"]
        # The children first: a controller that goes on beside stopped ones takes them for hung.
        for pid in (*(children[name] for name in FROZEN), self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        self._done.set()
        for thread in (self._thread, self._load):
            if thread.is_alive():
                thread.join(10.0)
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.process.terminate()
            try:
                self.process.wait(20.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _request(self) -> None:
        """Real requests through HAProxy, as many as the Samples tell of."""
        while not self._done.wait(1.0 / BURSTS_PER_S):
            with contextlib.suppress(OSError, http.client.HTTPException):  # on a machine that has no time for it
                self.balancer.request(round(TOTAL_RPS / BURSTS_PER_S))

    async def _publish(self) -> None:
        settings = load(self.config)
        monitors = {name: await Bus.connect(as_node(settings, name), name) for name in self.cluster.names}
        weights = dict.fromkeys(self.cluster.names, 100)
        try:
            while not self._done.is_set():
                began = time.monotonic()
                with contextlib.suppress(OSError):
                    weights = {host: self.balancer.weight(host) for host in self.cluster.names}
                for sample in self.cluster.shared(TOTAL_RPS, weights, self.loud):
                    sample.absent["steal"] = f"not told here {MARKUP}"
                    await monitors[sample.node].publish(sample)
                await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - began)))
        finally:
            for bus in monitors.values():
                await bus.close()


@contextmanager
def live_cluster(folder: Path, settings: str = "") -> Iterator[LiveCluster]:
    """It runs and is calm, with these tables of settings besides its own; everything ends with the block."""
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        running = LiveCluster(folder, balancer, settings)
        try:
            running.start()
            yield running
        finally:
            running.stop()
