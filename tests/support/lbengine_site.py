"""lbengine as a process: a bus, a HAProxy with three servers, and a detector that says what it is told."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.messages import State
from slackwater_lab.played_verdict import verdict
from tests.support.nats_process import open_server
from tests.support.real_haproxy import RealHAProxy
from tests.support.real_processes import free_address

HOSTS = ("host1", "host2", "host3")
RUN = """
import asyncio, logging, sys
from slackwater.lbengine.service import run
from slackwater.core.config import load
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
asyncio.run(run(load(sys.argv[1])))
"""
IN_TIME_S = 60.0
LEASE_S = 45.0
"""Longer than a busy machine holds anybody up: between two words of the detector, say."""
PATIENCE_S = 20.0
"""Longest time of HAProxy's answer."""


class LbengineProcess:
    """A bus, a HAProxy with three servers, and lbengine as a process."""

    def __init__(self, balancer: RealHAProxy, folder: Path, pool: str = "") -> None:
        """`pool`: more settings of the pool, or others than the admin socket."""
        self.balancer = balancer
        self.folder = folder
        self.listen = free_address()
        self.url = f"nats://{self.listen}"
        self.config = folder / "controller.toml"
        self.config.write_text(
            f'state_dir = "{folder}"\n[bus]\nurl = "{self.url}"\n'
            f"[lbengine]\nlease_s = {LEASE_S:g}\nsocket_timeout_s = {PATIENCE_S:g}\n"
            f'[[pool]]\nname = "web"\nbackend = "web"\nmode = "act"\n' + (pool or f'socket = "{balancer.socket}"\n'),
            encoding="utf-8",
        )
        self.log = folder / "lbengine.log"
        self.log.touch()
        self.bus_process: subprocess.Popen[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.second: subprocess.Popen[bytes] | None = None
        self.monitors: dict[str, subprocess.Popen[bytes]] = {}

    def with_settings(self, **settings: float) -> None:
        """Has every lbengine that starts from now on have these settings, of the section `lbengine`."""
        text = self.config.read_text()
        for name, value in settings.items():
            text, count = re.subn(rf"^{name} = .*$", f"{name} = {value:g}", text, flags=re.MULTILINE)
            assert count == 1, name
        self.config.write_text(text, encoding="utf-8")

    def with_hook(self) -> Callable[[], list[str]]:
        """Has every lbengine that starts from now on call a hook; gives the episodes' events that it has heard."""
        heard, hook = self.folder / "heard", self.folder / "hook"
        hook.write_text(f"#!/bin/sh\ncat >> {heard}\n")
        hook.chmod(0o755)
        text = self.config.read_text().replace("[lbengine]\n", f'[lbengine]\nhooks = ["{hook}"]\n')
        self.config.write_text(text, encoding="utf-8")

        def events() -> list[str]:
            lines = heard.read_text().splitlines() if heard.exists() else []
            return [event for line in lines if (event := json.loads(line)["event"]) != "change"]

        return events

    def start_bus(self) -> None:
        self.bus_process = subprocess.Popen(open_server(self.folder, self.listen))
        nats_server.wait_until_it_answers(self.listen, self.folder / "nats.log")

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", RUN, str(self.config)], stderr=log)
        return self.process

    def start_second(self, mode: str = 'mode = "act"') -> subprocess.Popen[bytes]:
        """Another lbengine for the same HAProxy, with a state folder of its own."""
        folder = self.folder / "second"
        folder.mkdir()
        config = folder / "controller.toml"
        text = self.config.read_text().replace(f'"{self.folder}"', f'"{folder}"').replace('mode = "act"', mode)
        config.write_text(text, encoding="utf-8")
        with (folder / "lbengine.log").open("ab") as log:
            self.second = subprocess.Popen([sys.executable, "-c", RUN, str(config)], stderr=log)
        return self.second

    def second_says(self) -> str:
        log = self.folder / "second" / "lbengine.log"
        return log.read_text() if log.exists() else ""

    def weights(self) -> list[int]:
        return [self.balancer.weight(host) for host in HOSTS]

    def end(self) -> None:
        for process in (self.process, self.second, self.bus_process):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


async def until(condition: Callable[[], object], site: LbengineProcess, event: str) -> None:
    deadline_s = time.monotonic() + IN_TIME_S
    while not condition():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {IN_TIME_S:g} s: {event}\n{site.log.read_text()}\n{site.second_says()}")
        await asyncio.sleep(0.02)


class Detector:
    """Says every 50 ms what it was last told to think of each node, until it is silenced."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.states: dict[str, State] = dict.fromkeys(HOSTS, "calm")
        self._task = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
        while True:
            for host, state in self.states.items():
                await self._bus.publish(verdict(host, state, time_unix_s=time.time()))
            await asyncio.sleep(0.05)

    async def silence(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def story(site: LbengineProcess, script: Callable[[Bus, Detector], Awaitable[None]]) -> None:
    """Runs a story with a connected bus and a detector."""

    async def run() -> None:
        bus = await Bus.connect(site.url, "test")
        detector = Detector(bus)
        try:
            await script(bus, detector)
        finally:
            await detector.silence()
            await bus.close()

    asyncio.run(run())


async def ask(bus: Bus, question: dict[str, Any]) -> dict[str, Any]:
    """Asks until somebody is there to answer."""
    deadline_s = time.monotonic() + IN_TIME_S
    while True:
        try:
            return await bus.request("slackwater.control.web", question, timeout_s=PATIENCE_S)
        except BusError:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
