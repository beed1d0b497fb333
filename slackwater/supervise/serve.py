"""The supervisor: `slackwater serve` starts the parts, restarts those that die or hang, restores the baseline weights.

It decides nothing about weights. It writes to a balancer only to restore the baseline weights, if lbengine could not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slackwater import __version__
from slackwater.bus import nats_server
from slackwater.bus.bus import without_password
from slackwater.config import ControllerSettings, LbengineSettings, PoolSettings
from slackwater.supervise import state_dir
from slackwater.supervise.children import Child, Death, Limits
from slackwater.supervise.notify import Notify
from slackwater.supervise.store_progress import StoreProgress

log = logging.getLogger("slackwater.serve")

LOOK_EVERY_S = 0.1
LBENGINE_STOPS_WITHIN_S = 5.0
OTHERS_STOP_WITHIN_S = 3.0
START_WITHIN_S = 300.0
"""Until a part's first progress: the first start after an update may convert a large journal."""
OTHERS_SILENT_S = 20.0
NATS = "nats-server"


def stop_signals() -> frozenset[signal.Signals]:
    """The signals that end `serve`; SIGHUP only if nohup(1) does not ignore it."""
    hangup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else set()
    return frozenset({signal.SIGTERM, signal.SIGINT} | hangup)


def lbengine_silent_s(settings: LbengineSettings) -> float:
    """How long lbengine may be silent: a cycle comes round even when the balancer twice takes all the time it has."""
    return settings.cycle_s + 2 * settings.socket_timeout_s


class Outage:
    """Decides when lbengine has failed for too long to leave its weights in place. Pure: it is given the deaths."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._since_s: float | None = None
        self._handled = True

    def died(self, death: Death) -> None:
        """A life of a lease or longer ends a row of deaths: in it lbengine read the balancer and set it right.

        One that hung has used up its time already.
        """
        if death.hung:
            self._since_s = death.at_s - self._lease_s
        elif self._since_s is None or death.alive_s >= self._lease_s:
            self._since_s = death.at_s
        self._handled = False

    def is_overdue(self, now_s: float, works: bool) -> bool:
        """True once after each death, when the row of deaths is a lease old; `works`: lbengine makes progress again."""
        if self._handled or works or self._since_s is None or now_s - self._since_s < self._lease_s:
            return False
        self._handled = True
        return True


def serve(settings: ControllerSettings, config_path: Path) -> int:
    """Runs until SIGTERM, SIGINT or SIGHUP; returns the exit status. Raises what the checks at the start raise.

    1 means that the baseline weights could not be confirmed at the end.
    """
    from lbengine.backends.table import check
    from lbengine.leadership.lock import lock_folder, pool_lock

    folder = state_dir.prepare(settings.state_dir)
    log.info("slackwater %s: configuration %s, state in %s", __version__, config_path, folder)
    with contextlib.ExitStack() as locks:
        for pool in settings.pool:
            locks.enter_context(pool_lock(pool, lock_folder(folder)))
        lock = state_dir.ServeLock(folder)
        lock.acquire()
        locks.callback(lock.release)
        state_dir.remove_serve(folder)  # of a `serve` that was killed
        for pool in settings.pool:
            for warning in check(pool, settings.lbengine):
                log.warning("%s", warning)
        # Blocked, and waited for in the loop: no signal interrupts the return to the baseline weights.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals() | {signal.SIGCHLD})
        try:
            return Supervisor(settings, config_path, folder, lock.fd).run()
        finally:
            while signal.sigtimedwait(stop_signals(), 0):  # a second Ctrl-C changes nothing
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Supervisor:
    """Runs the children of one configuration; one thread, one loop."""

    def __init__(self, settings: ControllerSettings, config_path: Path, folder: Path, lock_fd: int) -> None:
        self._settings = settings
        self._config_path = config_path.absolute()
        self._folder = folder
        self._lock_fd = lock_fd
        self._outage = Outage(settings.lbengine.lease_s)
        self._children: list[Child] = []
        self._written: dict[str, dict[str, int | None]] = {}
        self._notify = Notify()

    def run(self) -> int:
        """The supervisor's life: start, tend, stop."""
        try:
            self._start()
            self._notify.ready()
            while (number := self._wait_for_signal()) is None:
                self._tend()
                # A child that makes no progress is killed. While one cannot be killed, systemd's watchdog is not fed.
                if not any(child.is_stuck for child in self._children):
                    self._notify.alive(time.monotonic())
            self._notify.stopping()
            log.info("stopping (%s): lbengine first", signal.Signals(number).name)
        finally:
            confirmed = self._stop()
        return 0 if confirmed else 1

    def _start(self) -> None:
        from lbengine.leadership.ownership import BUCKET

        settings = self._settings
        if not settings.bus.url:
            nats_server.check_free(settings.bus.listen)
            self._add(
                Child(
                    NATS,
                    nats_server.command(settings),
                    pass_fds=[self._lock_fd],
                    limits=Limits(START_WITHIN_S, OTHERS_SILENT_S),
                    progress=StoreProgress(settings.controller_bus, BUCKET),
                )
            )
            nats_server.wait_until_it_answers(settings.bus.listen, nats_server.log_file(settings))
            if not nats_server.nodes_of(settings):
                log.warning("no node may log in to the bus yet: `slackwater bus node add POOL NODE`")
        names = ["journal", "detector", "lbengine"]
        names += ["retune"] if settings.retune.mode != "off" else []
        names += ["web"] if settings.web.listen else []
        for name in names:
            run = [sys.executable, "-P", "-m", "slackwater.cli.main", "run", name, "--config", str(self._config_path)]
            silent_s = lbengine_silent_s(settings.lbengine) if name == "lbengine" else OTHERS_SILENT_S
            self._add(Child(name, run, pass_fds=[self._lock_fd], limits=Limits(START_WITHIN_S, silent_s)))
        self._describe()
        for pool in settings.pool:
            log.info("pool %s: %s, law %s, %s", pool.name, pool.mode, pool.law, pool.place)
        log.info("running: %s", ", ".join(f"{child.name} (pid {child.pid})" for child in self._children))
        log.info("bus %s, dashboard %s", without_password(settings.bus.address), self._dashboard() or "off")

    def _add(self, child: Child) -> None:
        child.start()
        self._children.append(child)

    def _wait_for_signal(self) -> int | None:
        """The stop signal that came; None after a while, or at once when a child died."""
        came = signal.sigtimedwait(stop_signals() | {signal.SIGCHLD}, LOOK_EVERY_S)
        return came.si_signo if came and came.si_signo != signal.SIGCHLD else None

    def _tend(self) -> None:
        for child in self._children:
            death = child.tend()
            if child.name != "lbengine":
                continue
            if death:
                self._outage.died(death)
            if self._outage.is_overdue(time.monotonic(), child.has_progressed):
                if child.is_stuck:
                    self._restore("lbengine hung")
                else:
                    log.error("lbengine could not be kept running for %g s", self._settings.lbengine.lease_s)
                    self._restore("lbengine could not be kept running")
        self._describe()

    def _stop(self) -> bool:
        """Ends the children in order and sets the baseline weights; False when those could not be set."""
        started = [child for child in self._children if child.name == "lbengine"]
        for child in started:
            child.stop(LBENGINE_STOPS_WITHIN_S)
        rest = [child for child in self._children if child.name not in ("lbengine", NATS)]
        for child in rest:
            child.ask_to_stop()
        for child in (*rest, *(child for child in self._children if child.name == NATS)):
            child.stop(OTHERS_STOP_WITHIN_S)
        confirmed = self._restore("`slackwater serve` stops") if started else True
        state_dir.remove_serve(self._folder)
        log.info("stopped")
        return confirmed

    def _restore(self, why: str) -> bool:
        # Also pools that the configuration has in observe mode: an operator may have had them act.
        # At once: one balancer that does not answer holds up no other.
        pools = self._settings.pool
        with ThreadPoolExecutor(len(pools), thread_name_prefix="restore") as threads:
            return all(list(threads.map(lambda pool: self._restore_pool(pool, why), pools)))

    def _restore_pool(self, pool: PoolSettings, why: str) -> bool:
        from lbengine.restore import LeftOutError, restore

        left_out = ""
        try:
            changes = restore(self._settings, pool, "serve", why)
        except LeftOutError as error:
            changes, left_out = error.changes, str(error)
        except Exception as error:  # whatever it is, the other pools must have their turn
            log.error("pool %s: the baseline weights could not be set: %s", pool.name, error)
            return False
        for change in changes:
            log.warning("pool %s: %s %s -> %s (%s)", pool.name, change.target, change.before, change.after, why)
        if left_out:
            log.error("pool %s: %s", pool.name, left_out)
        return not left_out

    def _dashboard(self) -> str:
        return f"http://{self._settings.web.listen}" if self._settings.web.listen else ""

    def _describe(self) -> None:
        """Writes serve.json when something about a child changed."""
        children: dict[str, dict[str, int | None]] = {
            "children": {child.name: child.pid for child in self._children},
            "starts": {child.name: child.starts for child in self._children},
            "works": {child.name: child.has_progressed for child in self._children},
            "hangs": {child.name: child.hangs for child in self._children},
        }
        if children == self._written:
            return
        self._written = children
        description = {
            "pid": os.getpid(),
            "config": str(self._config_path),
            "pools": {pool.name: pool.mode for pool in self._settings.pool},
            "bus": without_password(self._settings.bus.address),
            "web": self._dashboard(),
            **children,
        }
        try:
            state_dir.write_serve(self._folder, description)
        except OSError as error:  # a full disk is no reason to stop
            log.error("%s/serve.json cannot be written: %s", self._folder, error.strerror)
