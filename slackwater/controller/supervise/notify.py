"""Notifications to systemd: ready, alive, stopping (sd_notify(3)). Without systemd nothing is sent."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notify:
    """Sends to the service manager in `environment`; `alive` sends four times in the unit's WatchdogSec=."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        limit = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID") == str(os.getpid()) else ""
        self._every_s = int(limit) / 4e6 if limit.isdigit() else None
        self._sent_s: float | None = None

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        """Tells that a reload goes on, until `ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self, now_s: float) -> None:
        """Tells that the work goes on; `now_s` is monotonic. Call it in each turn of the main loop."""
        if self._every_s is None or (self._sent_s is not None and now_s - self._sent_s < self._every_s):
            return
        self._sent_s = now_s
        self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # A manager that cannot be reached reports that itself; one that does not read must not hold us up.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(state.encode(), self._address)
