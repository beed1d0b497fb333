"""A dashboard in a process of its own, served as `slackwater serve` has it served."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.real_processes import free_address

IN_TIME_S = 60.0
# lbengine answers at once; at the end it writes how many threads serve when it should have ended.
CODE = """\
import asyncio, sys, threading, slackwater.lbengine.backends.table
from slackwater.core import control
from slackwater.core.config import parse
from slackwater.web import service
control.send_once = lambda *_: "done"
asyncio.run(service.run(parse(sys.argv[1], "test")))
print(sum(thread.name == "waitress" for thread in threading.enumerate()))
"""


@dataclass(frozen=True)
class Dashboard:
    address: tuple[str, int]
    process: subprocess.Popen[str]
    log: Path

    def memory_mib(self, field: str = "VmRSS") -> int:
        """Memory from /proc; `VmHWM`: the most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) >> 10

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, IN_TIME_S)

    def first_line(self, request: bytes) -> bytes:
        """The answer's first line; empty when the connection was closed without one."""
        with self.connect() as connection:
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                return stream.readline()


@contextmanager
def served(folder: Path) -> Iterator[Dashboard]:
    """A dashboard with its state in this folder, where nothing need be."""
    host, _, port = free_address().rpartition(":")
    config = (
        f'state_dir = "{folder}"\n[[pool]]\nname = "web"\nbackend = "b"\nsocket = "/s"\n'
        f'[web]\nlisten = "{host}:{port}"\n'
    )
    log = folder / "dashboard.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, config], cwd=ROOT, stdout=subprocess.PIPE, stderr=sink, text=True
        )
    dashboard = Dashboard((host, int(port)), process, log)
    with process:
        try:
            deadline_s = time.monotonic() + IN_TIME_S
            while True:
                try:
                    dashboard.connect().close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline_s, "the dashboard does not listen"
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.05)
            yield dashboard
        finally:
            process.kill()
