"""A real nats-server that can be stopped and started again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

from slackwater.bus import nats_server
from tests.support.real_processes import free_address

IN_TIME_S = 60.0


class Server:
    """A private nats-server as `serve` starts it, that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.listen = free_address()
        self.url = f"nats://{self.listen}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(nats_server.command(self._folder, self.listen))
        nats_server.wait_until_it_answers(self.listen, self._folder / "nats.log")

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
        self._process = None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(IN_TIME_S):
        while not condition():
            await asyncio.sleep(0.01)
