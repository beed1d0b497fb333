"""Before `serve` starts anything: the settings, the locks, and a look at the balancers."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater import __version__
from slackwater.controller.supervise.parts import SettingsInForce
from slackwater.core import state_dir
from slackwater.core.config import ControllerSettings, PoolSettings, read

if TYPE_CHECKING:
    from slackwater.lbengine.leadership.lock import PoolLocks

log = logging.getLogger("slackwater.serve")


@dataclass(frozen=True)
class Start:
    """What a run of `serve` has from its start."""

    in_force: SettingsInForce
    folder: Path
    lock_fd: int
    """The descriptor of the lock on the folder."""
    locks: PoolLocks
    left: list[PoolSettings]
    """Pools whose weights an earlier run has left lowered, and which these settings do not drive."""


def prepare(config: Path, held: contextlib.ExitStack) -> Start:
    """Takes the locks for as long as `held` is open. Raises what is wrong with the settings, or who has a lock."""
    from slackwater.lbengine.leadership.lock import PoolLocks, lock_folder
    from slackwater.lbengine.restore import stored_elsewhere

    in_force = SettingsInForce.of(read(config), config.absolute())
    settings = in_force.settings
    folder = state_dir.prepare(settings.state_dir)
    log.info("slackwater %s: configuration %s, state in %s", __version__, config, folder)
    locks = PoolLocks(lock_folder(folder))
    held.callback(locks.release)
    locks.take(settings.pool)
    lock = state_dir.ServeLock(folder)
    lock.acquire()
    held.callback(lock.release)
    state_dir.remove_serve(folder)  # of a `serve` that was killed
    _look_at_balancers(settings)
    return Start(in_force, folder, lock.fd, locks, take_free(locks, stored_elsewhere(settings)))


def take_free(locks: PoolLocks, pools: list[PoolSettings]) -> list[PoolSettings]:
    """Those of the pools that no other process drives. Their locks are taken where there is a place for them, so no
    other process will drive them. The others are logged."""
    from slackwater.lbengine.leadership.lock import HeldError, LockError

    ours = []
    for pool in pools:
        try:
            locks.take([pool])
        except HeldError as error:
            log.warning("%s; its weights are left as they are", error)
            continue
        except LockError as error:
            # On a broken disk nothing else may come up either, and weights must not stay lowered.
            log.warning("%s; its baseline weights are set all the same", error)
        ours.append(pool)
    return ours


def _look_at_balancers(settings: ControllerSettings) -> None:
    """Looks at all balancers at the same time. A balancer that is away is waited for, now and later. Raises
    BalancerError for a balancer that answers and cannot be driven with these settings."""
    from slackwater.lbengine.backends.table import check
    from slackwater.lbengine.balancer import BalancerUnreachable

    def look(pool: PoolSettings) -> list[str]:
        try:
            return check(pool, settings.lbengine, settings.state_dir)
        except BalancerUnreachable as error:
            return [f"{error}; it is waited for"]

    with ThreadPoolExecutor(len(settings.pool), thread_name_prefix="look") as threads:
        for warnings in threads.map(look, settings.pool):
            for warning in warnings:
                log.warning("%s", warning)
