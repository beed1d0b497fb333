"""A unit as systemd keeps it: watchdog, restart, and the command after each end. The lab has no systemd of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slackwater_lab.cluster.spawn import Program

RESTART_S = 2.0
WATCHDOG_S = 30.0
"""RestartSec= and WatchdogSec= of the packages' units."""
AFTER_WITHIN_S = 45.0


class Unit:
    """One service. `tend` is called often; nothing else starts or restarts the program.

    `leftovers` gives the processes that the program left when it ended; they are killed (KillMode=mixed). `after` is
    run when it has ended (ExecStopPost=).
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        after: Sequence[str] = (),
        leftovers: Callable[[], list[int]] = list,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.after = list(after)
        self.wanted = True
        """False: it stays down once it has ended, as on a machine that is off."""
        self.restarts = 0
        self._folder = folder
        self._env = dict(env or {})
        self._leftovers = leftovers
        self._program: Program | None = None
        self._start_at_s = 0.0
        self._alive_s = 0.0
        self._lock = threading.RLock()
        self._notices = self._open_socket()

    def _open_socket(self) -> socket.socket:
        self._address = self._folder / f"{self.name}.notify"
        self._address.unlink(missing_ok=True)
        notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        notices.bind(str(self._address))
        self._address.chmod(0o666)
        return notices

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return self._program.process.pid if self._program and self._program.running else None

    def tend(self) -> None:
        """Notices an end, a silent watchdog, and when it is time to start."""
        with self._lock:
            self._tend(time.monotonic())

    def _tend(self, now_s: float) -> None:
        self._listen(now_s)
        if self._program is not None and not self._program.running:
            self._ended(now_s)
        elif self._program is not None and now_s - self._alive_s > WATCHDOG_S:
            self._program.process.kill()  # systemd sends SIGABRT first; a stopped process takes neither but this
        elif self._program is None and self.wanted and now_s >= self._start_at_s:
            self._start(now_s)

    def _listen(self, now_s: float) -> None:
        with contextlib.suppress(BlockingIOError):
            while notice := self._notices.recv(4096):
                if b"WATCHDOG=1" in notice or b"READY=1" in notice:
                    self._alive_s = now_s

    def _start(self, now_s: float) -> None:
        # WATCHDOG_PID is the program's own: the shell that joins the cgroup becomes the program.
        watch = {"NOTIFY_SOCKET": str(self._address), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        argv = ["/bin/sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "unit", *self.argv]
        env = {**os.environ, **self._env, **watch}
        self._program = Program.start(self.name, argv, self._folder / f"{self.name}.log", env)
        self._alive_s = now_s

    def _ended(self, now_s: float) -> None:
        for pid in self._leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._program = None
        self.restarts += 1
        self._start_at_s = now_s + RESTART_S
        if self.after:
            with (
                (self._folder / f"{self.name}.log").open("ab") as log,
                contextlib.suppress(subprocess.TimeoutExpired),  # as TimeoutStopSec= ends it
            ):
                subprocess.run(
                    self.after,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={**os.environ, **self._env},
                    timeout=AFTER_WITHIN_S,
                )

    def send(self, number: signal.Signals) -> None:
        """A signal for the main process, if it runs."""
        if self.pid is not None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """All of its processes at once, so that none of them puts anything right."""
        main = [self.pid] if self.pid is not None else []
        pids = [*main, *(pid for pid in self._leftovers() if pid not in main)]
        # Stopped first: a child hears of its parent's end, and would still set the weights right.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def down(self) -> None:
        """As when the machine loses its power: nothing is run afterwards, nothing comes back by itself."""
        self.wanted = False
        with self._lock:
            after, self.after = self.after, []
            if self._program is not None:
                self._program.process.kill()
                self._program.process.wait()
                self._ended(time.monotonic())
            self.after = after

    def up(self) -> None:
        self.wanted = True
        self._start_at_s = 0.0

    def close(self) -> None:
        self.down()
        self._notices.close()
