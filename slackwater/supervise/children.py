"""A child process of the supervisor: started, restarted when it dies, stopped.

The kernel signals the children when the supervisor dies, however it dies: prctl(2), PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger("slackwater.serve")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
STEADY_AFTER_S = 10.0
"""A child that lived this long is started again without delay, as if it had never died before."""

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def wait_before_start_s(last_wait_s: float, alive_s: float) -> float:
    """How long to wait before a child that lived for `alive_s` is started again: doubling, with a ceiling."""
    if last_wait_s == 0.0 or alive_s >= STEADY_AFTER_S:
        return FIRST_WAIT_S
    return min(LONGEST_WAIT_S, last_wait_s * 2)


def how_it_ended(status: int) -> str:
    """A `Popen.returncode` in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


@dataclass(frozen=True)
class Death:
    """A child's end, and how long it had lived."""

    name: str
    at_s: float
    alive_s: float


class Child:
    """One process that is to run for ever. `clock` gives seconds that never go back."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._pass_fds = list(pass_fds)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._wait_s = 0.0
        self._start_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process; raises OSError when there is no such program."""
        parent = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:  # it died before prctl
                os._exit(1)

        # A process group of its own: Ctrl-C on the terminal reaches the supervisor alone, which ends its children in
        # order. The supervisor has one thread, so preexec_fn is safe, and PDEATHSIG (which is about the thread) right.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=self._pass_fds,
            preexec_fn=prepare,
        )
        self._started_s = self._clock()

    def tend(self) -> Death | None:
        """Returns a death, once, and restarts the process when it is time."""
        now_s = self._clock()
        if self._process is None:
            if now_s >= self._start_at_s:
                try:
                    self.start()
                except OSError as error:
                    self._wait_s = wait_before_start_s(self._wait_s, 0.0)
                    self._start_at_s = now_s + self._wait_s
                    log.error("%s cannot be started: %s", self.name, error)
                else:
                    log.info("%s runs again (pid %d)", self.name, self.pid)
            return None
        status = self._process.poll()
        if status is None:
            return None
        alive_s = now_s - self._started_s
        self._wait_s = wait_before_start_s(self._wait_s, alive_s)
        self._start_at_s = now_s + self._wait_s
        log.error(
            "%s (pid %d) %s after %.1f s; starting it again in %.1f s",
            self.name,
            self._process.pid,
            how_it_ended(status),
            alive_s,
            self._wait_s,
        )
        self._process = None
        return Death(self.name, now_s, alive_s)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, if it runs."""
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def stop(self, wait_s: float) -> None:
        """Ends it: SIGTERM, after `wait_s` SIGKILL. Returns when it is gone."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            log.error("%s (pid %d) did not end within %g s: killing it", self.name, self._process.pid, wait_s)
            self._process.kill()
            self._process.wait()
        self._process = None
