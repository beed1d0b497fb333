"""A whole `slackwater serve` before a real HAProxy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slackwater.core import state_dir
from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings, load
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Verdict
from tests.support.real_haproxy import RealHAProxy
from tests.support.real_processes import free_address, is_alive

IN_TIME_S = 60.0


HOSTS = ("host1", "host2", "host3")
BREAKS = """
import pathlib, sys
flag = pathlib.Path(__file__).with_name("broken")
words = flag.read_text().split() if flag.exists() else []
if any(sys.orig_argv[at : at + 2] == ["run", word] for word in words for at in range(len(sys.orig_argv))):
    raise SystemExit(7)
"""
"""Has the parts that the file `broken` names end at their start: a module that Python imports first of all."""


CHILDREN = {"nats-server", "journal", "detector", "lbengine", "web"}


def until(condition: Callable[[], Any], event: str = "it") -> Any:
    """Waits for the first true value of `condition`."""
    deadline = time.monotonic() + IN_TIME_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{event} did not happen within {IN_TIME_S:g} s"
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
        self.program = [sys.executable, "-m", "slackwater.controller.cli.main"]
        self.broken = folder / "python" / "broken"
        """Parts named in it end as soon as they are started."""
        self.broken.parent.mkdir()
        self.broken.with_name("sitecustomize.py").write_text(BREAKS)
        path = os.environ.get("PYTHONPATH", "")
        self.environment = os.environ | {"PYTHONPATH": f"{self.broken.parent}:{path}".rstrip(":")}
        self._running: list[subprocess.Popen[bytes]] = []
        self.write()

    def write(
        self,
        *,
        mode: str = "act",
        bus: str = "",
        web: str | None = None,
        socket_timeout_s: float = 20.0,
        lease_s: float = 1.5,
        view: str = "off",
        more: str = "",
    ) -> None:
        """`web`: the dashboard's address; `view`: mode of the balancer's view; `more`: more lines at the end, which
        begin in the pool's table."""
        bus = bus or f'listen = "{self.listen}"'
        web = free_address() if web is None else web
        self.config.write_text(
            f'state_dir = "{self.state}"\n[bus]\n{bus}\n[web]\nlisten = "{web}"\n'
            f'[balancer_view]\nmode = "{view}"\n'
            f"[lbengine]\nlease_s = {lease_s:g}\nsocket_timeout_s = {socket_timeout_s:g}\n"
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{self.balancer.socket}"\nmode = "{mode}"\n{more}'
        )

    def replace(self, old: str, new: str) -> None:
        """Changes the configuration in one place."""
        text = self.config.read_text()
        assert text.count(old) == 1, (old, text)
        self.config.write_text(text.replace(old, new))

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

    def cli(self, *arguments: str, within_s: float = IN_TIME_S) -> subprocess.CompletedProcess[str]:
        command = [*self.program, *arguments, "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=within_s, env=self.environment)

    def children(self) -> dict[str, int]:
        """Pids by name of those that run now."""
        children = (state_dir.read_serve(self.state) or {}).get("children", {})
        return {name: pid for name, pid in children.items() if pid is not None}

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
        for pid in pids:  # asked to end, they would take seconds to put in order what nobody uses any more
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            until(lambda pid=pid: not is_alive(pid), "the end of the children")  # type: ignore[misc]


def verdict(pool: str, node: str, since_unix_s: float) -> Verdict:
    noisy = node == "host1"
    return Verdict(
        v=1,
        node=node,
        pool=pool,
        time_unix_s=time.time(),
        state="interference" if noisy else "calm",
        since_unix_s=since_unix_s,
        severity=0.9 if noisy else 0.0,
        path=["said by the test"],
        model="test",
        capacity_rps=30.0 if noisy else 300.0,
        rps=80.0,
        rt_mean_ms=60.0 if noisy else 2.0,
    )


@contextmanager
def noise_on_host1(site: Site, pools: Sequence[str] = ("web",)) -> Iterator[Callable[[], None]]:
    """Gives what has Verdicts published, five times a second from then on, that host1 of each pool has a neighbour."""
    done = threading.Event()
    threads: list[threading.Thread] = []

    async def script(settings: BusSettings) -> None:
        bus = await Bus.connect(settings, "test", wait_s=IN_TIME_S)
        since_unix_s = time.time()
        while not done.is_set():
            for pool in pools:
                for host in HOSTS:
                    await bus.publish(verdict(pool, host, since_unix_s))
            await asyncio.sleep(0.2)
        await bus.close()

    def start() -> None:
        config = load(site.config)  # here: the test may write the file anew as soon as this returns
        threads.append(threading.Thread(target=asyncio.run, args=(script(config.controller_bus),)))
        threads[-1].start()
        until(lambda: config.pool[0].mode != "act" or site.balancer.weight("host1") < 100, "a lower weight of host1")

    try:
        yield start
    finally:
        done.set()
        for thread in threads:
            thread.join()
