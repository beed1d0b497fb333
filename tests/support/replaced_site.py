"""Machines that can be replaced: web servers as processes behind a real HAProxy, its engine, load, and a stand-in for
the cloud's command. Only the bus is played."""

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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from slackwater.core.config import LbengineSettings, ReplaceSettings
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.machine import controller_id
from slackwater.core.messages import Change, Cycle, Mode, Sample, State
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.engine import Engine
from slackwater.orders.access import BusAccess
from slackwater.replace.claims import Claims
from slackwater.replace.pool import BY, Planned, ReplacedPool
from slackwater.views.chronic import Machine
from slackwater.views.replacements import Attempt, Plan, attempts
from slackwater_lab.played_verdict import verdict
from tests.support.engine_site import HOSTS
from tests.support.played_bus import PlayedBus
from tests.support.real_haproxy import RealHAProxy, until
from tests.support.real_processes import free_port

ANSWERS_S = {"/": 0.03, "/long": 2.0}
"""How long answers take: requests are in flight at any moment, some for longer than a command takes to begin."""
_SERVER = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        time.sleep({answers_s}[self.path])
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"here" + b"\\n")
    def log_message(self, *_):
        pass
class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True
    def handle_error(self, *_):
        pass
Server(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""
CLOUD = """#!{python}
import json, os, pathlib, signal, subprocess, sys, time
about = json.load(sys.stdin)
folder = pathlib.Path({folder!r})
(folder / "told.json").write_text(json.dumps(about))
pid = folder / f"{{about['node']}}.pid"
os.kill(int(pid.read_text()), signal.SIGKILL)
time.sleep(0.3)  # the machine is away
port = (folder / f"{{about['node']}}.port").read_text()
started = subprocess.Popen([sys.executable, str(folder / "server.py"), port], start_new_session=True)
pid.write_text(str(started.pid))
for _ in range(500):
    import socket
    try:
        socket.create_connection(("127.0.0.1", int(port)), 1).close()
        break
    except OSError:
        time.sleep(0.02)
"""


def machine(node: str = "host1") -> Machine:
    """One that it pays to replace."""
    return Machine(
        pool="web",
        node=node,
        episodes=9,
        days=5,
        slow_min=900.0,
        lost_min=500.0,
        lost_share=0.05,
        peers_lost_share=0.001,
        slow_requests=1234.0,
        replaced_unix_s=None,
        advice="replace",
        why="slow by itself for 15 h on 5 of 7 d: replace this machine",
    )


class Machines:
    """Web servers, each a process of its own that the cloud's command can kill and start anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in HOSTS]
        (folder / "server.py").write_text(_SERVER.format(answers_s=ANSWERS_S))
        self._started: list[subprocess.Popen[bytes]] = []
        for host, port in zip(HOSTS, self.ports, strict=True):
            (folder / f"{host}.port").write_text(str(port))
            process = subprocess.Popen([sys.executable, str(folder / "server.py"), str(port)], start_new_session=True)
            (folder / f"{host}.pid").write_text(str(process.pid))
            self._started.append(process)
        for port in self.ports:
            until(partial(_listens, port), "the web servers listen")

    def pid(self, host: str) -> int:
        return int((self.folder / f"{host}.pid").read_text())

    def close(self) -> None:
        for host in HOSTS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid(host), signal.SIGKILL)
        for process in self._started:
            process.wait()


def _listens(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Users:
    """They ask one after the other, over connections that they keep; what is not answered with 200 is lost."""

    def __init__(self, port: int) -> None:
        self.answered, self.lost = 0, 0
        self._port, self._end, self._lock = port, threading.Event(), threading.Lock()
        paths = ["/"] * 3 + ["/long"] * 9
        self._threads = [threading.Thread(target=self._ask, args=(path,), daemon=True) for path in paths]

    def _ask(self, path: str) -> None:
        while not self._end.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            with contextlib.suppress(OSError, http.client.HTTPException):
                while not self._end.is_set():
                    is_answered = False
                    try:
                        connection.request("GET", path)
                        answer = connection.getresponse()
                        answer.read()
                        is_answered = answer.status == 200
                    finally:
                        with self._lock:
                            self.answered += is_answered
                            self.lost += not is_answered
            connection.close()

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


class _Bus(PlayedBus):
    def __init__(self, ask: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self._ask = ask

    async def request(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        assert subject == "slackwater.request.web"
        self.requests.append(question)
        return await self._ask(question)  # type: ignore[no-any-return]


class ReplacedSite:
    """A pool whose machine host1 is chronic. `mode` may be changed while it runs."""

    def __init__(self, balancer: RealHAProxy, folder: Path, settings: ReplaceSettings, mode: Mode = "act") -> None:
        self.balancer, self.folder, self.settings = balancer, folder, settings
        self.journal = Journal.open(journal_path(folder))
        config = HAProxyPool(name="web", backend="web", socket=balancer.socket, mode=mode)
        self.engine = Engine(config, LbengineSettings(socket_timeout_s=20.0), folder, self.journal)
        self.states: dict[str, State] = {}
        self.plan = Plan(pool="web", mode=mode, command=settings.command, days=7, machines=[machine()], node="host1")
        self._turn = asyncio.Lock()
        self.bus = _Bus(self._ask)
        self.access = BusAccess(
            config,
            0.0,
            self.bus,  # type: ignore[arg-type]
            self.journal,
            None,
            controller_id(folder),
            by=BY,
        )
        claims = Claims(self.access.bucket, "web", self.access.controller, settings, time.time)
        self.pool = ReplacedPool(config, settings, self.access, claims, self.read, time.monotonic)
        self.access.pool = self.pool
        self.is_lbengine_alive = True
        self.turns = 0
        self.reads = 0
        """How often the pool looked for what is due."""

    def read(self) -> Planned:
        self.reads += 1
        return Planned(self.plan, self.attempts(), any(not attempt.applied for attempt in self.attempts()))

    def attempts(self) -> list[Attempt]:
        return attempts(self.journal.changes("web", what="replace"))

    def changes(self) -> list[Change]:
        """Those of replacements, the oldest first."""
        return self.journal.changes("web", what="replace")[::-1]

    def causes(self) -> list[str | None]:
        return [change.cause for change in self.changes()]

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        async with self._turn:
            try:
                sentence = await asyncio.to_thread(self.engine.override_temporarily, question, time.monotonic())
            except ValueError as error:
                return {"error": str(error)}
            return {"sentence": sentence}

    async def command(self, **fields: Any) -> None:
        """A person's command."""
        request = msgspec.convert({"by": "anna", **fields}, Request)
        async with self._turn:
            await asyncio.to_thread(self.engine.command, request, time.monotonic())

    async def turn(self) -> None:
        """lbengine takes a turn, and the pool gets its Cycle."""
        async with self._turn:
            for host in HOSTS:
                said = verdict(host, self.states.get(host, "calm"), severity=0.0, capacity_rps=400.0, rps=30.0)
                self.engine.inbox.put(said, time.monotonic())
            await asyncio.to_thread(self.engine.cycle, time.monotonic())
            while self.engine.outbox:
                message = self.engine.outbox.popleft()
                if isinstance(message, Cycle):
                    self.access.take(message)

    async def lose_lead(self) -> None:
        """Another controller leads from now on: lbengine stands by and sends no Cycles, not even of a turn that it is
        at."""
        self.is_lbengine_alive = False
        async with self._turn:
            self.access.take(Cycle(1, "web", time.time(), "act", False, "", "", "", [], controller="another"))

    async def run(self) -> None:
        while True:
            if self.is_lbengine_alive:
                await self.turn()
            await self.pool.step()
            self.turns += 1
            await asyncio.sleep(0.05)

    def sample(self, node: str, boot_id: str, source: Literal["monitor", "balancer"] = "monitor") -> None:
        self.access.take(Sample(1, node, "web", time.time(), boot_id, 1, 1.0, source=source))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.pool.end()
            self.journal.close()

    async def until(self, condition: Callable[[], Any], event: str) -> None:
        deadline_s = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < deadline_s, f"not within 60 s: {event}; {self.changes()}"
            await asyncio.sleep(0.02)

    async def until_cause(self, cause: str) -> None:
        await self.until(lambda: cause in self.causes(), cause)


def program(folder: Path, text: str, name: str = "cloud") -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def cloud(folder: Path) -> str:
    """The stand-in for the cloud's command: it kills the machine and starts a new one."""
    return program(folder, CLOUD.format(python=sys.executable, folder=str(folder)))


def machines(folder: Path) -> Iterator[Machines]:
    """A fixture's body."""
    started = Machines(folder)
    try:
        yield started
    finally:
        started.close()
