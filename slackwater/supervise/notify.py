"""What systemd is told: ready, still at work, stopping (sd_notify(3)). Started by anything else, nothing is said."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notify:
    """The way to the service manager that `environment` names; `alive` speaks four times in the unit's WatchdogSec=."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        limit = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID") == str(os.getpid()) else ""
        self._every_s = int(limit) / 4e6 if limit.isdigit() else None
        self._said_s: float | None = None

    def ready(self) -> None:
        self._say("READY=1")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def alive(self, now_s: float) -> None:
        """The work goes on; `now_s` is monotonic. Call it at each turn of the loop that does the work."""
        if self._every_s is None or (self._said_s is not None and now_s - self._said_s < self._every_s):
            return
        self._said_s = now_s
        self._say("WATCHDOG=1")

    def _say(self, state: str) -> None:
        if not self._address:
            return
        # A manager that cannot be reached will say so itself.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way,
        ):
            way.sendto(state.encode(), self._address)
