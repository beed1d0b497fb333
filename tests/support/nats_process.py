"""A real nats-server that can be stopped and started again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.bus import nats_server
from slackwater.core.bus.config import MAX_PAYLOAD_BYTES
from slackwater.core.config import BusSettings, ControllerSettings
from tests.support.real_processes import free_address

IN_TIME_S = 60.0


def open_server(folder: Path, listen: str) -> list[str]:
    """The command line of a nats-server of the site's own, where everybody may do everything."""
    path = folder / "open-nats.conf"
    path.write_text(
        f"listen: {json.dumps(listen)}\nlog_file: {json.dumps(str(folder / 'nats.log'))}\n"
        f"jetstream: {{ store_dir: {json.dumps(str(folder / 'jetstream'))} }}\nmax_payload: {MAX_PAYLOAD_BYTES}\n"
    )
    return ["nats-server", "-c", str(path)]


def as_node(settings: ControllerSettings, user: str) -> BusSettings:
    """The controller's own bus, as a node's monitor or wsengine logs in to it."""
    password = settings.bus_folder / f"passwords/{user}.password"
    return BusSettings(settings.bus.address, user=user, password_file=str(password), tls_ca=settings.bus.tls_ca)


class Server:
    """A nats-server without users, that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.listen = free_address()
        self.url = f"nats://{self.listen}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(open_server(self._folder, self.listen))
        nats_server.wait_until_it_answers(self.listen, self._folder / "nats.log")

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
        self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It takes nothing in and answers nothing."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(IN_TIME_S):
        while not condition():
            await asyncio.sleep(0.01)
