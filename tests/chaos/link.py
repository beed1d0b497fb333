"""The way between a machine and the bus: a TCP proxy that stalls, delays, or disturbs single messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from slackwater_lab.cluster.paths import LabError
from tests.chaos.frames import Disorder, Frames

Direction = Literal["to_bus", "from_bus"]
PART_BYTES = 65536
POLL_S = 0.02
START_WITHIN_S = 60.0


@dataclass
class State:
    """What a direction does to bytes. Read by the proxy's thread, set by others."""

    stalled: bool = False
    """A partition: nothing gets through. What was sent arrives when it is over, as TCP has it."""
    delay_s: float = 0.0
    """Added to each part that is passed on; parts behind it wait."""
    share: float = 0.0
    """Share of the messages that are lost, doubled or swapped."""


class Link:
    """Listens on one address and connects to another for each client; in a thread of its own.

    With `tls` (what it shows to clients) it stands for a server with TLS: what it disturbs it must be able to read.
    """

    def __init__(
        self,
        name: str,
        listen: tuple[str, int],
        bus: tuple[str, int],
        seed: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self._tls = tls
        self.listen = listen
        self._bus = bus
        self._seed = seed
        self.state: dict[Direction, State] = {"to_bus": State(), "from_bus": State()}
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._up = threading.Event()
        self._error: OSError | None = None
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"link {name}", daemon=True)

    @property
    def url(self) -> str:
        return f"{'tls' if self._tls else 'nats'}://{self.listen[0]}:{self.listen[1]}"

    def start(self) -> None:
        """Raises LabError when the address cannot be listened on."""
        self._thread.start()
        if not self._up.wait(START_WITHIN_S) or self._error:
            raise LabError(f"link {self.name}: {self.listen[0]}:{self.listen[1]}: {self._error or 'did not start'}")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_WITHIN_S)

    def cut(self) -> None:
        """Resets every connection."""

        def reset() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(reset)

    def restore(self) -> None:
        """Everything passes again."""
        self.state = {"to_bus": State(), "from_bus": State()}

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        try:
            server = await asyncio.start_server(self._join, *self.listen)
        except OSError as error:
            self._error = error
            self._up.set()
            return
        self._up.set()
        await self._end.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._writers.add(to_client)
        to_bus: asyncio.StreamWriter | None = None
        try:
            while any(part.stalled for part in self.state.values()):  # a connection needs both directions
                await asyncio.sleep(POLL_S)
            from_bus, to_bus = await asyncio.open_connection(*self._bus)
            self._writers.add(to_bus)
            if self._tls is not None:
                await _greet(from_bus, to_client, self._tls)
            random = Random(self._seed)
            ways = [
                asyncio.create_task(self._pass(from_client, to_bus, lambda: self.state["to_bus"], random)),
                asyncio.create_task(self._pass(from_bus, to_client, lambda: self.state["from_bus"], random)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):  # the bus is down: the client sees a connection that ends
            pass
        finally:
            for writer in (to_client, to_bus):
                if writer is not None:
                    self._writers.discard(writer)
                    writer.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        state: Callable[[], State],
        random: Random,
    ) -> None:
        frames = Frames()
        disorder: Disorder | None = None
        with contextlib.suppress(OSError):
            while part := await reader.read(PART_BYTES):
                for frame in frames.feed(part):
                    while state().stalled:
                        await asyncio.sleep(POLL_S)
                    now = state()
                    if now.delay_s:
                        await asyncio.sleep(now.delay_s)
                    if now.share and disorder is None:
                        disorder = Disorder(now.share, random)
                    elif not now.share:
                        disorder = None
                    writer.write(disorder.through(frame) if disorder else frame)
                await writer.drain()


async def _greet(from_bus: asyncio.StreamReader, to_client: asyncio.StreamWriter, tls: ssl.SSLContext) -> None:
    """Hands the bus's greeting on as that of a server with TLS, and begins it."""
    verb, _, info = (await from_bus.readuntil(b"\r\n")).partition(b" ")
    to_client.write(verb + b" " + json.dumps(json.loads(info) | {"tls_required": True}).encode() + b"\r\n")
    await to_client.drain()
    await to_client.start_tls(tls)
