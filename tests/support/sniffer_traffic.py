"""Real servers and clients on loopback ports, captured by tcpdump: what the sniffer's tests compare with tshark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

MODULES = ROOT / ".build/debian/usr/lib/apache2/modules"
WITHIN_S = 60.0


def program(name: str) -> str:
    """The path of a program; skips the test with the reason where it is not there."""
    built = [ROOT / "target" / kind / name for kind in ("release", "debug")]
    newest = max((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime, default=None)
    places = [newest] if newest else [ROOT / ".build/bin" / name]
    for place in places:
        if place.exists():
            return str(place)
    program_path = shutil.which(name)
    if program_path is None:
        pytest.skip(f"{name} is not there: run `make setup`")
    return program_path


def wait_for(condition: Callable[[], bool], event: str) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until, f"{event}: not within {WITHIN_S:g} s"
        time.sleep(0.02)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A server until the end of the block; waits until its port answers."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        wait_for(lambda: answers(port) or process.poll() is not None, command[0])
        assert process.poll() is None, process.stderr.read() if process.stderr else command
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr:
            process.stderr.close()


def wait_for_all(path: Path, port: int) -> None:
    """Waits until all packets up to now are in the capture: a connection of our own is the last of them.

    That the file grows says nothing: the kernel hands over blocks, and the last packets may be in one that is open.
    """
    size = path.stat().st_size
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as last:
        ports = struct.pack(">HH", last.getsockname()[1], port)
    wait_for(lambda: ports in content_from(path, size), "the last packets")


def content_from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


@contextlib.contextmanager
def captured(path: Path, port: int) -> Iterator[None]:
    """Captures what goes over the loopback interface on this port."""
    if os.geteuid() != 0:
        pytest.skip("capturing needs root")
    command = [program("tcpdump"), "-i", "lo", "-U", "-w", str(path), "-B", "131072", "-Z", "root"]
    process = subprocess.Popen(
        [*command, "--time-stamp-precision=nano", f"tcp port {port}"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stderr is not None
    try:
        # It says so once it captures.
        while b"listening on" not in (line := process.stderr.readline()):
            assert line, "tcpdump ended"
        yield
        wait_for_all(path, port)
    finally:
        process.send_signal(signal.SIGINT)
        report = process.stderr.read().decode()
        process.wait()
        process.stderr.close()
    assert "\n0 packets dropped by kernel" in report, report


@dataclass(frozen=True)
class Seen:
    """What the sniffer printed: a dictionary for each exchange, and the summary."""

    exchanges: list[dict[str, Any]]
    summary: dict[str, Any]


def sniffed(path: Path, port: str) -> Seen:
    command = [program("slackwater-sniffer"), "read", str(path), "--port", port, "--json", "--exchanges"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Seen(lines[:-1], lines[-1])


def tshark(path: Path, *options: str) -> list[list[str]]:
    """Rows of fields."""
    command = [program("tshark"), "-n", "-r", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines() if line.strip()]


@dataclass(frozen=True)
class Time:
    """tshark's time of a pair; `is_close`: its last packet carries no bytes, it only closes the connection."""

    seconds: float
    is_close: bool


def http_times(path: Path, port: int) -> dict[tuple[int, int], Time]:
    """tshark's pairs, by frames of request and response."""
    rows = tshark(
        path,
        *("-d", f"tcp.port=={port},http", "-Y", "http.time", "-T", "fields"),
        *("-e", "http.request_in", "-e", "frame.number", "-e", "http.time", "-e", "tcp.len"),
    )
    return {(int(request), int(response)): Time(float(s), length == "0") for request, response, s, length in rows}
