"""A dashboard, in a process of its own, that clients load: half-sent requests, large ones, and the site's checks."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slackwater.journal.journal import Journal, journal_path
from tests.support.paths import ROOT
from tests.support.real_processes import free_address
from tests.support.web_settings import settings_in
from web.http_server import MAX_REQUEST_BYTES, MOST_CONNECTIONS
from web.reader import Reader

IN_TIME_S = 60.0
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@dataclass(frozen=True)
class Dashboard:
    """One without a journal. It writes how many threads serve when it should have ended."""

    address: tuple[str, int]
    process: subprocess.Popen[str]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    host, _, port = free_address().rpartition(":")
    config = (
        f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbackend = "b"\nsocket = "/s"\n'
        f'[web]\nlisten = "{host}:{port}"\n'
    )
    code = (
        "import asyncio, sys, threading, lbengine.backends.table\n"
        "from slackwater.config import parse; from web import service\n"
        "asyncio.run(service.run(parse(sys.argv[1], 'test')))\n"
        "print(sum(thread.name == 'waitress' for thread in threading.enumerate()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, config], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + IN_TIME_S
    while True:
        try:
            socket.create_connection((host, int(port)), IN_TIME_S).close()
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the dashboard does not listen"
            time.sleep(0.05)
    with process:
        yield Dashboard((host, int(port)), process)
        process.kill()


@pytest.fixture
def address(dashboard: Dashboard) -> tuple[str, int]:
    return dashboard.address


def answer_to(address: tuple[str, int], request: bytes) -> bytes:
    """The first line of the answer; empty when the connection was closed without one."""
    with socket.create_connection(address, IN_TIME_S) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            return stream.readline()


@pytest.mark.parametrize("count", [100, MOST_CONNECTIONS + 100])
def test_half_sent_requests_hold_up_nobody(address: tuple[str, int], count: int) -> None:
    half_sent = []
    try:
        for _ in range(count):
            half_sent.append(socket.create_connection(address, IN_TIME_S))
            half_sent[-1].sendall(HALF)
        assert answer_to(address, HALF + b"no\r\n\r\n").startswith(b"HTTP/1.1 503"), "there is no journal"
        half_sent[-1].sendall(b"yes\r\n\r\n")  # also the newest of the slow ones is answered
        assert half_sent[-1].recv(12) == b"HTTP/1.1 503"
    finally:
        for one in half_sent:
            one.close()


def test_a_stop_ends_what_serves_though_a_client_holds_a_connection(dashboard: Dashboard) -> None:
    with socket.create_connection(dashboard.address, IN_TIME_S) as connection:
        connection.sendall(HALF)
        dashboard.process.send_signal(signal.SIGINT)
        out, _ = dashboard.process.communicate(timeout=IN_TIME_S)
        assert (out, dashboard.process.returncode) == ("0\n", 0)
        with contextlib.suppress(ConnectionResetError):  # closed too: the system resets it where the half was not read
            assert connection.recv(1) == b"", "it is closed"


def test_large_requests_are_refused_before_they_are_read(address: tuple[str, int]) -> None:
    body = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {MAX_REQUEST_BYTES + 1}\r\n\r\n"
    assert answer_to(address, body.encode()).startswith(b"HTTP/1.1 413")
    with socket.create_connection(address, IN_TIME_S) as connection:
        connection.sendall(HALF + b"x" * MAX_REQUEST_BYTES)
        assert connection.recv(12).endswith(b" 431")


def test_checks_read_the_journal_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_unix_s = 1_795_000_000.0
    Journal.open(journal_path(tmp_path)).close()
    reader = Reader(settings_in(tmp_path), lambda: now_unix_s)
    opened: list[object] = []
    real = Journal.open

    def count(*given: object, **named: object) -> Journal:
        opened.append(given)
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "open", count)
    for _ in range(100):
        assert reader.health().stale == {"web": True}
    assert len(opened) == 1
    now_unix_s += 1.0
    assert reader.health().time_unix_s == now_unix_s
    assert len(opened) == 2


def test_checks_do_not_wait_for_one_that_waits_for_the_disk(tmp_path: Path) -> None:
    now_unix_s = 1_795_000_000.0
    Journal.open(journal_path(tmp_path)).close()
    reader = Reader(settings_in(tmp_path), lambda: now_unix_s)
    first = reader.health()
    with reader._health_lock:  # as one that reads
        now_unix_s += 1.0
        assert reader.health() is first
        now_unix_s += 10.0
        assert "the disk does not answer" in reader.health().error
    assert reader.health().error == ""
