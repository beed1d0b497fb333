"""A child process of the supervisor: started, killed when it hangs, restarted when it dies, stopped.

The kernel signals the children when the supervisor dies, however it dies: prctl(2), PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slackwater.controller.supervise.progress import Pipe, Progress
from slackwater.core import heartbeat

log = logging.getLogger("slackwater.serve")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
STEADY_AFTER_S = 10.0
"""A child that lived this long is started again without delay, as if it had never died before."""
LONGEST_LOOK_S = 0.2
"""The most that one look adds to a child's silence: while the machine or the supervisor stood still, no child could
work."""
GONE_WITHIN_S = 2.0
"""Time after SIGKILL in which a process is gone. It stays longer only while the kernel cannot end it (a disk that
hangs)."""

_PR_SET_PDEATHSIG, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER = 1, 47, 3
_CAP_NET_RAW = 13
"""The right to capture packets: prctl(2), capabilities(7)."""
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
    hung: bool = False
    """The child made no progress and was sent SIGKILL. From then on it does nothing, even if the kernel cannot end it
    yet."""


@dataclass(frozen=True)
class SilenceLimits:
    """How long a child may be silent: while it starts, and between two reports of progress."""

    start_s: float = math.inf
    silence_s: float = math.inf


class Child:
    """One process that is to run for ever. `clock` gives seconds that never go back.

    It reports progress over a pipe (`slackwater.core.heartbeat`), unless `progress` observes it in another manner.
    Without `may_capture` it does not inherit CAP_NET_RAW, which the unit gives the supervisor.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        limits: SilenceLimits = SilenceLimits(),
        progress: Progress | None = None,
        may_capture: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.starts = 0
        self.hangs = 0
        self.has_progressed = False
        """Whether its present process has made progress."""
        self._command = list(command)
        self._pass_fds = list(pass_fds)
        self._limits = self._next_limits = limits
        self._progress = progress
        self._may_capture = may_capture
        self._reports: Progress | None = None
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._looked_s = 0.0
        self._silent_s = 0.0
        self._is_killed = False
        self._is_ending = False
        """The process was asked to end, and another one is to follow."""
        self.is_finishing = False
        """The process ends by itself when what it is at is done, and then another one is to follow."""
        self._end_by_s = 0.0
        self._wait_s = 0.0
        self._start_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process id; None while the child is down."""
        return self._process.pid if self._process else None

    @property
    def is_stuck(self) -> bool:
        """Whether it was killed and is still there: the kernel cannot end it."""
        return self._is_killed

    def use(self, command: Sequence[str], pass_fds: Sequence[int], limits: SilenceLimits) -> None:
        """Sets what the child's next start uses, whenever that is."""
        self._command, self._pass_fds, self._next_limits = list(command), list(pass_fds), limits

    def start(self) -> None:
        """Starts the process; raises OSError when there is no such program."""
        parent = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:  # it died before prctl
                os._exit(1)
            if not self._may_capture:
                _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, _CAP_NET_RAW, 0, 0)

        self._close_reports()
        pipe = Pipe() if self._progress is None else None
        # A process group of its own: Ctrl-C on the terminal reaches the supervisor alone, which ends its children in
        # order. Only the supervisor's main thread starts children, so PDEATHSIG (which is about the thread) is right.
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                process_group=0,
                pass_fds=[*self._pass_fds, *([pipe.writer] if pipe else [])],
                env=os.environ | {heartbeat.VARIABLE: str(pipe.writer)} if pipe else None,
                preexec_fn=prepare,
            )
        except OSError:
            if pipe:
                pipe.close()
            raise
        finally:
            if pipe:
                pipe.close_writer()
        self._reports = pipe or self._progress
        self.starts += 1
        self._started_s = self._looked_s = self._clock()
        self._silent_s = 0.0
        self._limits = self._next_limits
        self.has_progressed = self._is_killed = self._is_ending = self.is_finishing = False

    def restart(self) -> None:
        """Starts it after `has_ended`; if that fails, `tend` tries it again."""
        self._is_ending = False
        self._start_again(self._clock())

    def tend(self) -> Death | None:
        """Returns each death once, and restarts the process when it is time. Kills a process that hangs."""
        if self._is_ending:
            return None
        now_s = self._clock()
        if self._process is None:
            if now_s >= self._start_at_s:
                self._start_again(now_s)
            return None
        status = self._process.poll()
        alive_s = now_s - self._started_s
        if status is None:
            return self._kill_if_silent(now_s, alive_s)
        if self.is_finishing:
            log.info("%s (pid %d) has finished", self.name, self._process.pid)
            self._forget()
            return None
        was_killed = self._is_killed
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
        self._forget()
        return None if was_killed else Death(self.name, now_s, alive_s)

    def _start_again(self, now_s: float) -> None:
        try:
            self.start()
        except OSError as error:
            self._wait_s = wait_before_start_s(self._wait_s, 0.0)
            self._start_at_s = now_s + self._wait_s
            log.error("%s cannot be started: %s", self.name, error)
        else:
            log.info("%s runs again (pid %d)", self.name, self.pid)

    def _kill_if_silent(self, now_s: float, alive_s: float) -> Death | None:
        assert self._process is not None
        self._silent_s += min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        if self._is_killed:
            return None
        if self._reports is not None and self._reports.is_made():
            self._silent_s = 0.0
            self.has_progressed = True
        limit_s = self._limits.silence_s if self.has_progressed else self._limits.start_s
        if self._silent_s <= limit_s:
            return None
        log.error("%s (pid %d) hangs: no progress for %.1f s; killing it", self.name, self.pid, self._silent_s)
        self._process.kill()
        self._is_killed = True
        self.has_progressed = False
        self.hangs += 1
        return Death(self.name, now_s, alive_s, hung=True)

    def _forget(self) -> None:
        self._process = None
        self.has_progressed = self._is_killed = False
        self._close_reports()

    def _close_reports(self) -> None:
        if self._reports is not None:
            self._reports.close()
            self._reports = None

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Sends SIGTERM, or another signal, if it runs."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def begin_to_end(self, wait_s: float, number: int = signal.SIGTERM) -> None:
        """Asks it to end for good, or until `start`. From then on `has_ended` observes it, not `tend`."""
        self.ask_to_stop(number)
        self._is_ending, self._end_by_s = True, self._clock() + wait_s

    def has_ended(self) -> bool:
        """Whether the child is gone, after `begin_to_end`. Kills a child that takes longer than it may."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            if not self._is_killed and self._clock() >= self._end_by_s:
                log.error("%s (pid %d) did not end in time: killing it", self.name, self._process.pid)
                self._process.kill()
                self._is_killed, self.has_progressed = True, False
            return False
        self._forget()
        return True

    def let_finish(self) -> None:
        """After `begin_to_end`: it ends when it has done what it is at, however long that takes; `tend` observes it."""
        self._is_ending, self.is_finishing = False, True

    def stop_observing(self) -> None:
        """Ends what observes a child that does not report its own progress, before the child is stopped."""
        if self._progress is not None:
            self._progress.close()

    def stop(self, wait_s: float) -> None:
        """Ends the child with SIGTERM, and after `wait_s` with SIGKILL. Returns when it is gone or does no more."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            log.error("%s (pid %d) did not end within %g s: killing it", self.name, self._process.pid, wait_s)
            self._process.kill()
            try:
                self._process.wait(GONE_WITHIN_S)
            except subprocess.TimeoutExpired:
                log.error("%s (pid %d) is stuck in the kernel, and is left", self.name, self._process.pid)
        self._forget()
