"""The baseline weights without lbengine: while it cannot be kept running, at the end, and after a start that failed.

The stored baselines say which weights were left lowered, and in which pool; so no settings are needed to find these.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from slackwater.controller.supervise.start import take_free
from slackwater.core import last_settings, state_dir
from slackwater.core.config import ConfigError, ControllerSettings, PoolSettings
from slackwater.core.files import in_hands_of
from slackwater.core.messages import Change

log = logging.getLogger("slackwater.serve")

MOST_NAMED = 20
"""The most servers that one line of the log names."""


@dataclass(frozen=True)
class GivenBack:
    """The result of setting back one pool's weights."""

    pool: PoolSettings
    text: str
    """The servers' weights that were set back, in words."""
    is_confirmed: bool = True


def set_baseline(settings: ControllerSettings, pools: Collection[PoolSettings], why: str) -> list[PoolSettings]:
    """Sets the baseline weights of these pools; returns the pools where that could not be confirmed, with the reason in
    the log. All pools are set at the same time, so a balancer that does not answer holds up no other. A pool that
    another controller drives is left to it."""
    return [given.pool for given in _give_back(settings, pools, why) if not given.is_confirmed]


def _give_back(settings: ControllerSettings, pools: Collection[PoolSettings], why: str) -> list[GivenBack]:
    if not pools:
        return []
    with ThreadPoolExecutor(len(pools), thread_name_prefix="restore") as threads:
        return list(threads.map(lambda pool: _give_back_one(settings, pool, why), pools))


def _give_back_one(settings: ControllerSettings, pool: PoolSettings, why: str) -> GivenBack:
    from slackwater.lbengine.leadership.another import left_to_another
    from slackwater.lbengine.restore import LeftOutError, has_stored, restore

    left_out = ""
    try:
        is_stored = has_stored(settings, pool)
        if is_stored and (who := left_to_another(settings, pool)):
            log.info("pool %s: its weights are left as they are: %s", pool.name, who)
            return GivenBack(pool, f"left as it is, {who}")
        changes = restore(settings, pool, "serve", why)
    except LeftOutError as error:
        is_stored, changes, left_out = True, error.changes, str(error)
    except Exception as error:  # whatever it is, the other pools must have their turn
        log.error("pool %s: the baseline weights could not be set: %s", pool.name, error)
        return GivenBack(pool, "the baseline weights could not be set", is_confirmed=False)
    for change in changes:
        log.warning("pool %s: %s %s -> %s (%s)", pool.name, change.target, change.before, change.after, why)
    if left_out:
        log.error("pool %s: %s", pool.name, left_out)
    return GivenBack(pool, _in_words(changes, is_stored, left_out), is_confirmed=not left_out)


def _in_words(changes: Sequence[Change], is_stored: bool, left_out: str) -> str:
    named = [f"{change.target} {change.before} -> {change.after}" for change in changes[:MOST_NAMED]]
    if more := len(changes) - len(named):
        named.append(f"and {more} more")
    if named:
        summary = f"{', '.join(named)} set back"
        return f"{summary}, but not everything could be done: the error above says why" if left_out else summary
    if left_out:
        return "not everything could be done: the error above says why"
    return "every server has its baseline weight" if is_stored else "nothing of ours was lowered"


def after_failed_start(config: Path) -> None:
    """Sets back the weights that an earlier run has left lowered, and logs what was done. Raises nothing.

    A pool that another process drives is left to it.
    """
    try:
        settings = settings_for_restore(config)
    except ConfigError:
        log.error(
            "no weights were set back: the settings cannot be used, and those that were accepted last are not stored;"
            " if weights are lowered, set them on the balancer by hand"
        )
        return
    try:
        _after_failed_start(settings)
    except Exception:  # the reason why the start failed must be told all the same
        log.exception("the weights could not be set back")


def _after_failed_start(settings: ControllerSettings) -> None:
    from slackwater.lbengine.leadership.lock import PoolLocks, lock_folder
    from slackwater.lbengine.restore import stored_elsewhere

    folder = Path(settings.state_dir)
    if (serving := state_dir.running_serve(settings.state_dir)) and state_dir.is_alive(serving):
        log.info("the weights are left to the `slackwater serve` that runs (pid %d)", serving)
        return
    with contextlib.ExitStack() as held:
        locks = PoolLocks(lock_folder(folder))
        held.callback(locks.release)
        is_of_another = os.geteuid() == 0 and in_hands_of(folder) is not None  # root takes nobody's word for a place
        ours = take_free(locks, [*settings.pool, *([] if is_of_another else stored_elsewhere(settings))])
        done = _give_back(settings, ours, "`slackwater serve` could not start")
    log.info(
        "could not start; %s",
        "; ".join(f"pool {given.pool.name}: {given.text}" for given in done)
        or "no weights were set back: each pool is driven by another process, or there is none",
    )


def settings_for_restore(config: Path, folder: Path | None = None) -> ControllerSettings:
    """The settings in the file, or those that were accepted last. Where neither is known: settings without pools, with
    the folder of the stored baselines. `folder`: the state's, where the file cannot be read and the folder is not the
    usual one. Raises ConfigError where it is not known, or is another one.
    """
    from slackwater.lbengine.baseline import stored_in

    try:
        settings = last_settings.load_or_last(config, folder)
    except ConfigError as error:
        for place in last_settings.state_dirs_of(config, folder):
            if stored_in(place):
                return ControllerSettings(pool=[], state_dir=str(place.absolute()))
        if folder:
            raise ConfigError(f"{error}; and {folder} has no stored weights") from None
        raise ConfigError(f"{error}; `--state-dir` names the controller's folder, if it is not the usual one") from None
    if folder and os.path.realpath(folder) != os.path.realpath(settings.state_dir):
        raise ConfigError(f"{config}: its `state_dir` is {settings.state_dir}, not {folder}: leave out --state-dir")
    return settings
