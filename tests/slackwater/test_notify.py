"""What systemd is told, by a real socket in its place."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from slackwater.controller.supervise.notify import Notify


def manager(address: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(address)
    listening.setblocking(False)
    return listening


def heard(listening: socket.socket) -> list[str]:
    received = []
    while True:
        try:
            received.append(listening.recv(100).decode())
        except BlockingIOError:
            return received


def test_ready_and_stopping_are_sent_to_the_socket_of_the_environment(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address) as listening:
        notify = Notify({"NOTIFY_SOCKET": address})
        notify.ready()
        notify.alive(1.0)  # no watchdog was asked for
        notify.stopping()
        assert heard(listening) == ["READY=1", "STOPPING=1"]


def test_a_fast_loop_speaks_four_times_in_the_watchdogs_limit() -> None:
    address = f"\0slackwater-test-{os.getpid()}"
    environment = {
        "NOTIFY_SOCKET": "@" + address[1:],
        "WATCHDOG_USEC": "10000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    with manager(address) as listening:
        notify = Notify(environment)
        for turn in range(100):
            notify.alive(turn / 10)
        assert heard(listening) == ["WATCHDOG=1"] * 4


def test_a_watchdog_that_is_another_process_s_is_not_fed(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address) as listening:
        Notify({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}).alive(0.0)
        assert heard(listening) == []


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    Notify({}).ready()
    Notify({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_a_manager_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notify = Notify({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        for _ in range(10_000):
            notify.ready()
        assert manager.recv(100) == b"READY=1"
