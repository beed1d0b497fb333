"""A balancer in a clean root, and a controller installed beside it: what its web servers' monitors would say comes from
a made-up cluster that feels its weights."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings
from tests.support.clean_root import CleanRoot
from tests.support.real_haproxy import servers_of, until, web_servers
from tests.support.synthetic_cluster import PERIOD_S, Cluster

BUS, FRONTEND = "127.0.0.1:14222", 8080
TOTAL_RPS = 200.0
BURSTS_PER_S = 10
IN_TIME_S = 180.0
BASELINE = 100
HAPROXY = f"""\
global
    stats socket /run/haproxy/admin.sock mode 660 level admin
defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
frontend www
    bind 127.0.0.1:{FRONTEND}
    default_backend web
backend web
    balance roundrobin
"""


class CleanSite:
    """HAProxy with three servers, and what is installed beside it."""

    def __init__(self, root: CleanRoot) -> None:
        self.root = root
        self.cluster = Cluster(seed=3)
        self.loud: set[str] = set()
        self.log = root.place / "tmp/serve.log"
        self._balancer: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failed: list[Exception] = []
        """Errors that ended a thread."""

    # --- the balancer

    def start_balancer(self, ports: list[int]) -> None:
        """Debian's HAProxy, as it was before Slackwater."""
        self.root.run("apt-get", "-qq", "-y", "install", "--no-download", "haproxy")
        (self.root.place / "etc/haproxy/haproxy.cfg").write_text(HAPROXY + servers_of(ports) + "\n")
        # As its package's tmpfiles.d has it: the socket has the folder's group.
        self.root.run("install", "-d", "-m", "2775", "-o", "haproxy", "-g", "haproxy", "/run/haproxy")
        command = ("haproxy", "-Ws", "-f", "/etc/haproxy/haproxy.cfg")
        self._balancer = self.root.popen(*command, log=self.root.place / "tmp/haproxy.log")
        self._until(lambda: self.weights() is not None, "HAProxy answers")

    def weights(self) -> dict[str, int] | None:
        """Each server's weight; None while HAProxy does not answer."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return {name: int(self._ask(f"get weight web/{name}").split()[0]) for name in self.cluster.names}
        return None

    def _ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30.0)
            connection.connect(str(self.root.place / "run/haproxy/admin.sock"))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode()

    # --- the controller

    def start_controller(self) -> None:
        """As its unit starts it."""
        folder = self.root.place / "run/slackwater"
        folder.mkdir(exist_ok=True)
        self.root.run("chown", "slackwater:slackwater", "/run/slackwater")
        drop_in = self.root.place / "etc/systemd/system/slackwater-controller.service.d/haproxy-socket.conf"
        groups = drop_in.read_text().partition("SupplementaryGroups=")[2].strip()
        who = ("--reuid=slackwater", "--regid=slackwater", f"--groups={groups}")
        may = tuple(f"--{kind}=-all,+net_raw" for kind in ("inh-caps", "ambient-caps", "bounding-set"))
        self._controller = self.root.popen("setpriv", *who, *may, "slackwater", "serve", log=self.log)
        self._until(lambda: self._runs() and self.states() is not None, "the controller answers")

    def stop_controller(self) -> None:
        if self._controller is not None:
            self._controller.terminate()
            self._controller.wait(60.0)
            self._controller = None

    def _runs(self) -> bool:
        assert self._controller is not None
        assert self._controller.poll() is None, self.log.read_text(errors="replace")[-3000:]
        return True

    def states(self) -> dict[str, str] | None:
        """Each server's state, as `slackwater status` shows it; None while it shows none."""
        rows = self.rows()
        return None if rows is None else {row["node"]: row["state"] for row in rows}

    def rows(self) -> list[dict[str, Any]] | None:
        """The servers in `slackwater status`; None while it shows none."""
        done = self.root.run("slackwater", "status", "--json", check=False)
        if done.returncode != 0:
            return None
        pool = json.loads(done.stdout)["pools"][0]
        return None if pool["stale"] else list(pool["rows"])

    def known(self, *, times: bool) -> list[dict[str, Any]]:
        """The servers once each has its rate and errors, and with `times` its p50, p95 and p99."""

        def whole() -> list[dict[str, Any]]:
            rows = self.rows() or []
            is_whole = len(rows) == len(self.cluster.names) and all(
                row["rps"] and row["errors_per_s"] is not None and (row["percentiles"]["p99_ms"] or not times)
                for row in rows
            )
            return rows if is_whole else []

        complete: list[dict[str, Any]] = self._until(whole, "each server is known")
        return complete

    def changes(self) -> list[dict[str, Any]]:
        """What `slackwater log` shows."""
        return [json.loads(line) for line in self.root.run("slackwater", "log", "--json").stdout.splitlines()]

    def would_have_set(self, name: str) -> int:
        """The first weight of a server that was decided in observe mode."""

        def decided() -> list[int]:
            mine = [change for change in self.changes() if change["what"] == "weight" and change["target"] == name]
            return [change["after"] for change in mine if not change["applied"]]

        return int(self._until(decided, f"a weight for {name}")[0])

    def lowered(self, name: str) -> int:
        """A server's weight as soon as it is below the baseline."""
        self._until(lambda: (self.weights() or {name: BASELINE})[name] < BASELINE, f"a lower weight of {name}")
        return (self.weights() or {})[name]

    # --- the web servers

    def start_requests(self) -> None:
        """Requests through HAProxy."""
        self._start(self._request)

    def start_nodes(self) -> None:
        """Samples of each server under its own user of the bus."""
        self._start(lambda: asyncio.run(self._publish()))

    def _start(self, work: Callable[[], None]) -> None:
        def kept() -> None:
            try:
                work()
            except Exception as error:
                self._failed.append(error)

        self._threads.append(threading.Thread(target=kept, daemon=True))
        self._threads[-1].start()

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        """As `until`. The error that ended a thread is raised at once."""

        def checked() -> Any:
            if self._failed:
                raise self._failed[0]
            return condition()

        return until(checked, what, IN_TIME_S)

    def noise(self, name: str) -> None:
        self.loud.add(name)
        self._until(lambda: (self.states() or {}).get(name) == "interference", f"an episode of {name}")

    def calm(self) -> None:
        self.loud.clear()
        self._until(lambda: set((self.states() or {"": ""}).values()) == {"calm"}, "calm servers")
        self._until(lambda: set((self.weights() or {}).values()) == {BASELINE}, "baseline weights")

    def _request(self) -> None:
        while not self._done.wait(1.0 / BURSTS_PER_S):
            connection = http.client.HTTPConnection("127.0.0.1", FRONTEND, timeout=30.0)
            with contextlib.suppress(OSError, http.client.HTTPException):  # on a machine that has no time for it
                for _ in range(round(TOTAL_RPS / BURSTS_PER_S)):
                    connection.request("GET", "/")
                    connection.getresponse().read()
            connection.close()

    async def _publish(self) -> None:
        passwords = self.root.place / "var/lib/slackwater/bus/passwords"
        monitors = {
            name: await Bus.connect(
                BusSettings(f"nats://{BUS}", user=name, password_file=str(passwords / f"{name}.password")),
                name,
                wait_s=IN_TIME_S,
            )
            for name in self.cluster.names
        }
        try:
            while not self._done.is_set():
                weights = self.weights() or dict.fromkeys(self.cluster.names, BASELINE)
                for sample in self.cluster.shared(TOTAL_RPS, weights, self.loud):
                    with contextlib.suppress(Exception):  # the bus is upgraded too
                        await monitors[sample.node].publish(sample)
                await asyncio.sleep(PERIOD_S)
        finally:
            for bus in monitors.values():
                await bus.close()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(30.0)
        self.stop_controller()
        if self._balancer is not None:
            self._balancer.terminate()
            self._balancer.wait(30.0)


@contextmanager
def clean_site(root: CleanRoot) -> Iterator[CleanSite]:
    """HAProxy runs in the root, before three web servers; everything ends with the block."""
    with web_servers(3) as ports:
        site = CleanSite(root)
        try:
            site.start_balancer(ports)
            yield site
        finally:
            site.stop()
