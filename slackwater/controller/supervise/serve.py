"""The supervisor: `slackwater serve` starts the parts, restarts those that die or hang, restores the baseline weights.

It decides nothing about weights. It writes to a balancer only to restore the baseline weights, if lbengine could not.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from slackwater.controller.supervise import reload_record
from slackwater.controller.supervise.children import Child, Death, SilenceLimits
from slackwater.controller.supervise.differences import BALANCER_VIEW, LBENGINE, PARTS, REPLACE
from slackwater.controller.supervise.give_back import after_failed_start, set_baseline
from slackwater.controller.supervise.notify import Notify
from slackwater.controller.supervise.outage import Outage
from slackwater.controller.supervise.parts import OTHERS_SILENT_S, START_WITHIN_S, SettingsInForce, limits_of, names_of
from slackwater.controller.supervise.reload import ReloadOutcome, ReloadRefused, reload
from slackwater.controller.supervise.start import Start, prepare
from slackwater.controller.supervise.store_progress import StoreProgress
from slackwater.core import last_settings, state_dir
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import without_password
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.stopping import HAND_OVER

log = logging.getLogger("slackwater.serve")

LOOK_EVERY_S = 0.1
LBENGINE_STOPS_WITHIN_S = 5.0
OTHERS_STOP_WITHIN_S = 3.0
HAND_OVER_WITHIN_S = 3.0
NATS = "nats-server"
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
WAITED_FOR = STOP_SIGNALS | {signal.SIGHUP}
_SI_KERNEL = 128
"""`si_code` of a signal that the kernel sent: sigaction(2)."""


def is_end_of_terminal(came: signal.struct_siginfo) -> bool:
    """Whether a SIGHUP tells that the terminal is gone; one that a process sent asks for a reload."""
    return came.si_signo == signal.SIGHUP and came.si_code == _SI_KERNEL


def serve(config_path: Path) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit status. Raises what the checks at the start raise.

    1 means that the baseline weights could not be confirmed at the end. SIGHUP has the file read again; the end of the
    terminal ends it, unless nohup(1) has that ignored.
    """
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    # Blocked, and waited for in the loop: no signal interrupts the return to the baseline weights, and a reload waits
    # until there is something to reload.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR | {signal.SIGCHLD})
    try:
        with contextlib.ExitStack() as held:
            try:
                start = prepare(config_path, held)
            except Exception:
                held.close()
                after_failed_start(config_path)
                raise
            return Supervisor(start, nohup=nohup).run()
    finally:
        while signal.sigtimedwait(WAITED_FOR, 0):  # a second Ctrl-C changes nothing
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Supervisor:
    """Runs the children of one configuration; one thread, one loop."""

    def __init__(self, start: Start, *, nohup: bool = False) -> None:
        self.in_force = start.in_force
        self._folder = start.folder
        self._lock_fd = start.lock_fd
        self._locks = start.locks
        self._nohup = nohup
        self._outage = Outage(self._settings.lbengine.lease_s)
        self._children: list[Child] = []
        self._give_back = {pool.name: pool for pool in start.left}
        """Pools that are not driven any more, by name, while their baseline weights are not confirmed."""
        self._started = False
        self._reload_asked = False
        self._reloading: Iterator[None] | None = None
        self._outcome = ReloadOutcome(began_s=time.monotonic(), time_unix_s=time.time())
        self._reloads = reload_record.Reloads(last_success_unix_s=time.time())
        self._written: dict[str, Any] = {}
        self._notify = Notify()

    @property
    def _settings(self) -> ControllerSettings:
        return self.in_force.settings

    def run(self) -> int:
        """The supervisor's life: start, tend, stop."""
        try:
            self._start()
            self._notify.ready()
            while (number := self._wait_for_signal()) is None:
                self._tend()
                self._reload()
                # A child that makes no progress is killed. While one cannot be killed, systemd's watchdog is not fed.
                if not any(child.is_stuck for child in self._children):
                    self._notify.alive(time.monotonic())
            self._notify.stopping()
            log.info("stopping (%s): lbengine first", signal.Signals(number).name)
        finally:
            if self._reloading is not None:
                self._reloading.close()  # type: ignore[attr-defined]
            confirmed = self._stop()
        return 0 if confirmed else 1

    def _start(self) -> None:
        from slackwater.lbengine.leadership.ownership import BUCKET

        settings = self._settings
        # What a crash has left lowered goes back within a lease too, if no lbengine comes up.
        self._outage.died(Death(LBENGINE, time.monotonic(), self._outage.lease_s))
        last_settings.keep(self._folder, self.in_force.path, self.in_force.text)
        self._give_weights_back(strict=False)
        if not settings.bus.url:
            nats_server.check_free(settings.bus.listen)
            self._add(
                Child(
                    NATS,
                    nats_server.command(settings),
                    pass_fds=[self._lock_fd],
                    limits=SilenceLimits(START_WITHIN_S, OTHERS_SILENT_S),
                    progress=StoreProgress(settings.controller_bus, BUCKET),
                )
            )
            # It needs no bus to put right what an earlier run has left, so it does not wait for it.
            self._add(self._part(LBENGINE))
            nats_server.wait_until_it_answers(settings.bus.listen, nats_server.log_file(settings), meanwhile=self._tend)
            if settings.balancer_view.mode == "off" and not nats_server.nodes_of(settings):
                log.warning("no web server's monitor may log in yet: `slackwater bus node add POOL NODE`")
        for name in names_of(settings):
            if self._child(name) is None:
                self._add(self._part(name))
        self._started = True
        self._describe()
        for pool in settings.pool:
            log.info("pool %s: mode %s by the settings, law %s, %s", pool.name, pool.mode, pool.law, pool.place)
        log.info("running: %s", ", ".join(f"{child.name} (pid {child.pid})" for child in self._children))
        log.info("bus %s, dashboard %s", without_password(settings.bus.address), self._dashboard() or "off")

    def _add(self, child: Child) -> None:
        child.start()
        self._children.append(child)

    def _part(self, name: str) -> Child:
        command, fds, limits = self._start_of(name)
        return Child(name, command, pass_fds=fds, limits=limits, may_capture=name == BALANCER_VIEW)

    def _start_of(self, name: str) -> tuple[list[str], list[int], SilenceLimits]:
        """How a part is started with the settings in force."""
        fds = [self._lock_fd, self.in_force.fd]
        return self.in_force.command("run", name), fds, limits_of(name, self._settings)

    def _wait_for_signal(self) -> int | None:
        """The stop signal that came; None after a while, or at once when a child died. Notes a SIGHUP."""
        came = signal.sigtimedwait(WAITED_FOR | {signal.SIGCHLD}, LOOK_EVERY_S)
        if came is None or came.si_signo == signal.SIGCHLD:
            return None
        if came.si_signo != signal.SIGHUP or (is_end_of_terminal(came) and not self._nohup):
            return came.si_signo
        self._reload_asked |= not is_end_of_terminal(came)
        return None

    def _tend(self) -> None:
        for child in list(self._children):
            death = child.tend()
            if child.is_finishing and child.pid is None and child.name not in names_of(self._settings):
                self._children.remove(child)
            if child.name != "lbengine":
                continue
            if death:
                self._outage.died(death)
            if self._outage.is_overdue(time.monotonic(), child.has_progressed):
                if child.is_stuck:
                    self._restore("lbengine hung")
                elif child.pid and child.starts == 1:
                    self._restore(f"lbengine did not work within {self._settings.lbengine.lease_s:g} s of its start")
                else:
                    log.error("lbengine could not be kept running for %g s", self._settings.lbengine.lease_s)
                    self._restore("lbengine could not be kept running")
        self._describe()

    # --- reload

    def _reload(self) -> None:
        """Goes on with a reload, or begins one that was asked for: one at a time, and each reads the file anew."""
        if self._reloading is None:
            if not self._reload_asked:
                return
            self._reload_asked = False
            self._outcome = ReloadOutcome(began_s=time.monotonic(), time_unix_s=time.time())
            log.info("reload: reading %s", self.in_force.path)
            self._notify.reloading()
            self._reloading = reload(self, self.in_force.path, self._outcome)
        try:
            next(self._reloading)
        except StopIteration:
            self._reloaded("")
        except ReloadRefused as error:
            self._reloaded(str(error))
        except Exception as error:
            log.exception("reload")
            self._reloaded(f"{type(error).__name__}: {error}")

    def _reloaded(self, error: str) -> None:
        self._reloading = None
        if error:
            self._outcome = msgspec.structs.replace(self._outcome, error=error, changed=[], restarted=[])
        outcome = self._outcome
        outcome.time_unix_s = time.time()
        self._reloads = self._reloads.after(outcome)
        reload_record.to_log(outcome)
        if outcome.changed:
            last_settings.keep(self._folder, self.in_force.path, self.in_force.text)
            reload_record.to_journal(self._settings, outcome)
        self._describe()
        self._notify.ready()

    def take_locks(self, pools: list[PoolSettings]) -> None:
        self._locks.take(pools)

    def keep_locks(self) -> None:
        self._locks.keep_only(self._settings.pool)

    def switch(
        self, to: SettingsInForce, parts: Collection[str], give_back: Collection[PoolSettings], within_s: float | None
    ) -> Iterator[None]:
        """The method of `slackwater.controller.supervise.reload.Site`."""
        self.in_force = to
        self._outage.lease_s = self._settings.lbengine.lease_s
        due = {name: pool for name, pool in self._give_back.items() if pool not in self._settings.pool}
        self._give_back = due | {pool.name: pool for pool in give_back}
        for child in self._children:
            if child.name != NATS:
                child.use(*self._start_of(child.name))
        wanted = names_of(self._settings)
        started: dict[Child, int] = {}
        for name in [name for name in PARTS if name in parts]:
            has_ended = yield from self._end(name)
            if name == LBENGINE:
                self._give_weights_back(strict=within_s is not None)
            if name in wanted and has_ended:
                child = self._start_anew(name)
                started[child] = child.starts
        until_s = time.monotonic() + (within_s or 0.0)
        while within_s is not None and (waiting := [child for child in started if not child.has_progressed]):
            for child in waiting:
                if child.pid is None or child.starts != started[child]:
                    raise ReloadRefused(f"{child.name} did not start with the new settings; its error is above")
                if time.monotonic() >= until_s:
                    raise ReloadRefused(f"{child.name} made no progress within {within_s:g} s of its start")
            yield

    def _end(self, name: str) -> Generator[None, None, bool]:
        """Ends a part for another one, or for good; False: it still has a command to wait for, and ends by itself.
        lbengine leaves the weights as they are."""
        child = self._child(name)
        if child is None:
            return True
        if name == REPLACE:
            child.begin_to_end(math.inf, HAND_OVER)
        elif name != LBENGINE:
            child.begin_to_end(OTHERS_STOP_WITHIN_S)
        else:
            child.begin_to_end(HAND_OVER_WITHIN_S, HAND_OVER)
        is_reported = name != LBENGINE
        until_s = time.monotonic() + HAND_OVER_WITHIN_S
        while not child.has_ended():
            if name == REPLACE and time.monotonic() >= until_s:
                log.info("%s has a command that runs, and takes the new settings when that has ended", name)
                child.let_finish()
                return False
            if child.is_stuck and not is_reported:
                self._outage.died(Death(name, time.monotonic(), 0.0, hung=True))
                is_reported = True
            yield
        if name == LBENGINE:
            # If the next one does not come up within a lease, the baseline weights are set, as after a death.
            self._outage.died(Death(name, time.monotonic(), self._outage.lease_s))
        if name not in names_of(self._settings):
            self._children.remove(child)
            log.info("%s has ended", name)
        return True

    def _give_weights_back(self, *, strict: bool) -> None:
        """Sets the baseline weights of pools that nobody drives any more; `strict`: raises ReloadRefused."""
        from slackwater.lbengine.moved import keep_apart

        failed = set_baseline(self._settings, self._give_back.values(), "the settings changed")
        self._give_back = {pool.name: pool for pool in failed}
        if failed and strict:
            names = ", ".join(self._give_back)
            remedy = "; where its balancer is gone for good, restart the controller"
            raise ReloadRefused(f"pool {names}: its baseline weights could not be set; the reason is above{remedy}")
        apart = [keep_apart(self._settings, pool) for pool in failed]
        self._give_back = {pool.name: pool for pool in apart if pool is not None}

    def _start_anew(self, name: str) -> Child:
        child = self._child(name)
        if child is None:
            child = self._part(name)
            self._children.append(child)
        child.restart()
        return child

    def _child(self, name: str) -> Child | None:
        return next((child for child in self._children if child.name == name), None)

    # --- the end

    def _stop(self) -> bool:
        """Ends the children in order and sets the baseline weights; False when those could not be set."""
        for child in self._children:
            child.stop_observing()
        if (lbengine := self._child(LBENGINE)) is not None:
            lbengine.stop(LBENGINE_STOPS_WITHIN_S)
        rest = [child for child in self._children if child.name not in ("lbengine", NATS)]
        for child in rest:
            child.ask_to_stop()
        for child in (*rest, *(child for child in self._children if child.name == NATS)):
            child.stop(OTHERS_STOP_WITHIN_S)
        confirmed = self._restore(f"`slackwater serve` {'stops' if self._started else 'could not start'}")
        state_dir.remove_serve(self._folder)
        log.info("stopped")
        return confirmed

    def _restore(self, why: str) -> bool:
        # Also pools that the configuration has in observe mode: an operator may have had them act.
        return not set_baseline(self._settings, [*self._give_back.values(), *self._settings.pool], why)

    def _dashboard(self) -> str:
        return f"http://{self._settings.web.listen}" if self._settings.web.listen else ""

    def _describe(self) -> None:
        """Writes serve.json when something about a child changed."""
        children: dict[str, Any] = {
            "children": {child.name: child.pid for child in self._children},
            "starts": {child.name: child.starts for child in self._children},
            "works": {child.name: child.has_progressed for child in self._children},
            "hangs": {child.name: child.hangs for child in self._children},
            "reloads": msgspec.to_builtins(self._reloads, order="sorted"),
        }
        if not self._started or children == self._written:
            return
        self._written = children
        description = {
            "pid": os.getpid(),
            "config": str(self.in_force.path),
            "pools": {pool.name: pool.mode for pool in self._settings.pool},
            "bus": without_password(self._settings.bus.address),
            "web": self._dashboard(),
            **children,
        }
        try:
            state_dir.write_serve(self._folder, description)
        except OSError as error:  # a full disk is no reason to stop
            log.error("%s/serve.json cannot be written: %s", self._folder, error.strerror)
