"""A whole `slackwater serve` before a real HAProxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slackwater.journal.journal import Journal, journal_path
from slackwater.supervise import state_dir
from tests.support.real_haproxy import RealHAProxy
from tests.support.real_processes import free_address, is_alive

IN_TIME_S = 60.0


HOSTS = ("host1", "host2", "host3")


CHILDREN = {"nats-server", "journal", "detector", "lbengine", "web"}


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Waits for the first true value of `condition`."""
    deadline = time.monotonic() + IN_TIME_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {IN_TIME_S:g} s"
        time.sleep(0.02)
    return value


def weights(balancer: RealHAProxy) -> dict[str, int]:
    return {host: balancer.weight(host) for host in HOSTS}


class Site:
    """A configuration in a folder of its own, and what is started with it."""

    def __init__(self, folder: Path, balancer: RealHAProxy) -> None:
        self.state = folder / "state"
        self.config = folder / "controller.toml"
        self.listen = free_address()
        self.balancer = balancer
        self.log = folder / "serve.log"
        self.program = [sys.executable, "-m", "slackwater.cli.main"]
        self.environment = dict(os.environ)
        self._running: list[subprocess.Popen[bytes]] = []
        self.write()

    def write(
        self, *, mode: str = "act", bus: str = "", web: str | None = None, socket_timeout_s: float = 20.0
    ) -> None:
        bus = bus or f'listen = "{self.listen}"'
        web = free_address() if web is None else web
        self.config.write_text(
            f'state_dir = "{self.state}"\n[bus]\n{bus}\n[web]\nlisten = "{web}"\n'
            f"[lbengine]\nlease_s = 1.5\nsocket_timeout_s = {socket_timeout_s:g}\n"
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{self.balancer.socket}"\nmode = "{mode}"\n'
        )

    def serve(self) -> subprocess.Popen[bytes]:
        """Starts `serve` and waits until all its children run."""
        command = [*self.program, "serve", "--config", str(self.config)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True, env=self.environment
            )
        self._running.append(process)
        until(lambda: process.poll() is not None or self._describes(process.pid), "serve.json")
        assert process.poll() is None, self.log.read_text()
        return process

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.program, *arguments, "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME_S, env=self.environment)

    def children(self) -> dict[str, int]:
        """Pids by name of those that run now."""
        found = (state_dir.read_serve(self.state) or {}).get("children", {})
        return {name: pid for name, pid in found.items() if pid is not None}

    def _describes(self, pid: int) -> bool:
        return (state_dir.read_serve(self.state) or {}).get("pid") == pid

    def status(self) -> Any:
        done = self.cli("status", "--json")
        return json.loads(done.stdout)["pools"][0] if done.returncode == 0 else None

    def wait_for_cycles(self) -> None:
        until(lambda: (status := self.status()) and not status["stale"], "a cycle in the journal")

    def changes_by(self, who: str) -> list[Any]:
        with Journal.open(journal_path(self.state), read_only=True) as journal:
            return [change for change in journal.changes() if change.by == who]

    def clean(self) -> None:
        pids = list(self.children().values())
        for process in self._running:
            process.kill()
            process.wait()
        for pid in pids:
            until(lambda pid=pid: not is_alive(pid), "the end of the children")  # type: ignore[misc]
