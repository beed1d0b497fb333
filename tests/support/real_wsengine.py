"""A real slackwater-wsengine on a real nats-server, and a controller that gives it Orders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client

from slackwater.core import messages
from slackwater.core.bus import nats_server
from slackwater.core.messages import Change, Order
from slackwater.orders.signing import Signer
from tests.support.nats_process import open_server
from tests.support.real_processes import free_address

IN_TIME_S = 60.0
PROGRAM = shutil.which("slackwater-wsengine")
T = TypeVar("T")
Signed = tuple[bytes, dict[str, str] | None]
"""An Order in bytes, and the headers that go with it."""


def wait_for(answer: Callable[[], T], event: str, within_s: float = IN_TIME_S) -> T:
    """The first answer that is true; fails with `event` when there is none in time."""
    deadline_s = time.monotonic() + within_s
    while True:
        if value := answer():
            return value
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {within_s:g} s: {event}")
        time.sleep(0.02)


def make_keys(folder: Path, name: str = "orders") -> tuple[Path, Path]:
    """A new pair in PEM: the private and the public file."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    private.chmod(0o600)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    public.chmod(0o644)
    return private, public


class Nats:
    """A nats-server that can be stopped and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir()
        self.listen = free_address()
        self.url = f"nats://{self.listen}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(open_server(self._folder, self.listen))
        nats_server.wait_until_it_answers(self.listen, self._folder / "nats.log", IN_TIME_S)

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._process:
            self._process.kill()
        self.stop()


class Controller:
    """Gives Orders and collects Changes, over a connection that runs in a thread of its own."""

    def __init__(self, url: str, key: Path) -> None:
        self.signer = Signer.load(key)
        self.changes: list[Change] = []
        self._orders = 0
        self._client = Client()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def ignore(_: Exception) -> None:
            """Tests stop the server under it."""

        self._do(self._client.connect(url, error_cb=ignore, max_reconnect_attempts=-1, reconnect_time_wait=1))

        async def collect(raw: Any) -> None:
            change = messages.decode("change", raw.data)
            assert isinstance(change, Change)
            # A Change may come twice: its id tells, as it tells the journal.
            if all(change.id != known.id for known in self.changes):
                self.changes.append(change)

        self._do(self._client.subscribe("slackwater.change.>", cb=collect))
        self._do(self._client.flush())

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(IN_TIME_S)

    def make(self, knob: str, value: int | float | str, lease_s: float = 60.0, **others: Any) -> Order:
        """An Order for web1, given now."""
        self._orders += 1
        order = Order(
            1, f"order-{self._orders}", "web1", "web", time.time(), knob, value, lease_s, "a test", "controller"
        )
        return msgspec.structs.replace(order, **others)

    def send(self, order: Order, *, signer: Signer | None = None, signed: bool = True) -> None:
        """Publishes an Order on web1's subject, whatever is in it."""
        payload = messages.encode(order)
        self._send([(payload, (signer or self.signer).headers(payload) if signed else None)])

    def send_together(self, orders: Iterable[Order]) -> None:
        """Publishes Orders in one go: between two of them nobody can be kept waiting."""
        payloads = [messages.encode(order) for order in orders]
        self._send([(payload, self.signer.headers(payload)) for payload in payloads])

    def _send(self, left: list[Signed]) -> None:
        """Once more what nobody heard: a subscription may arrive after its engine has said that it is connected."""

        def are_heard() -> bool:
            left[:] = self._do(self._publish(left))
            return not left

        wait_for(are_heard, "somebody hears the Orders")

    async def _publish(self, payloads: list[Signed]) -> list[Signed]:
        """Publishes them; returns those of which the server says that nobody listens, which it does at once."""
        inbox = self._client.new_inbox()
        unheard = await self._client.subscribe(f"{inbox}.*")
        for number, (payload, headers) in enumerate(payloads):
            await self._client.publish("slackwater.order.web.web1", payload, f"{inbox}.{number}", headers)
        while self._client.pending_data_size > 0:  # flush sends its question past what waits
            await asyncio.sleep(0.001)
        await self._client.flush()
        answers = [await unheard.next_msg() for _ in range(unheard.pending_msgs)]
        await unheard.unsubscribe()
        return [payloads[int(answer.subject.rpartition(".")[2])] for answer in answers]

    def order(self, knob: str, value: int | float | str, lease_s: float = 60.0) -> Change:
        """Gives an Order and returns the next Change of its knob."""
        seen = len(self.changes)
        self.send(self.make(knob, value, lease_s))
        return self.next(lambda change: change.what == knob, seen, f"{knob} = {value}")

    def next(self, wanted: Callable[[Change], bool], since: int, event: str = "a Change") -> Change:
        """The first Change after the first `since` ones that is as wanted."""
        changes = wait_for(lambda: [change for change in self.changes[since:] if wanted(change)], event)
        return changes[0]

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Engine:
    """A slackwater-wsengine for node web1, with the given knobs' sections of its configuration."""

    def __init__(self, folder: Path, url: str, public_key: Path, sections: str, *, check_every_s: float = 0.3) -> None:
        assert PROGRAM is not None
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "wsengine.toml"
        self.log = folder / "wsengine.log"
        self.config.write_text(
            f'node = "web1"\npool = "web"\nstate_dir = "{self.state}"\ncheck_every_s = {check_every_s}\n'
            f'[bus]\nurl = "{url}"\n[orders]\npublic_key = "{public_key}"\n{sections}'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it is connected."""
        log_text = self.log_text().count(": connected")
        self.spawn()
        wait_for(lambda: self.log_text().count(": connected") > log_text, "the engine is connected")

    def spawn(self) -> None:
        """Starts it and does not wait."""
        assert PROGRAM is not None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, "run", "--config", str(self.config)], stderr=log)

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends it; returns its status."""
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(IN_TIME_S)
        self.process = None
        return status

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert PROGRAM is not None
        return subprocess.run(
            [PROGRAM, name, "--config", str(self.config), *arguments], capture_output=True, text=True, timeout=IN_TIME_S
        )

    def leases(self) -> dict[str, Any]:
        leases: dict[str, Any] = json.loads(self.command("status", "--json").stdout)["leases"]
        return leases

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a server that was started with `start_new_session`, with all its children."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):  # children outlive one that was killed
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
