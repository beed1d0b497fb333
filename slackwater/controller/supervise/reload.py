"""The reload of `serve`: the changed file is read, examined as a whole and put in force, or nothing changes.

A reload is a generator: each `yield` gives the supervisor a turn of its loop, so that it goes on tending its children.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from slackwater.controller.supervise.differences import Difference, compare, given_back
from slackwater.controller.supervise.parts import SettingsInForce, names_of
from slackwater.core.config import ConfigError, PoolSettings, read

log = logging.getLogger("slackwater.reload")

TRIAL_WITHIN_S = 60.0
WORKS_WITHIN_S = 120.0
"""A part that was replaced makes its first progress within this time, or the settings before come back."""


class ReloadRefused(Exception):
    """The settings before stay in force, and not the new ones. The text says why."""


class ReloadOutcome(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The outcome of one reload, as it stands in serve.json."""

    began_s: float
    """When the file was read, by the machine's monotonic clock."""
    time_unix_s: float
    """When it was over."""
    error: str = ""
    changed: list[Difference] = []
    restarted: list[str] = []
    """The parts that were replaced."""


class ReloadedSite(Protocol):
    """What a reload needs of the supervisor."""

    in_force: SettingsInForce

    def take_locks(self, pools: list[PoolSettings]) -> None:
        """Takes the locks of these pools. Raises LockError."""

    def switch(
        self, to: SettingsInForce, parts: Collection[str], give_back: Collection[PoolSettings], within_s: float | None
    ) -> Iterator[None]:
        """Replaces these parts, one after the other, and waits until they work. Raises ReloadRefused.

        The pools in `give_back` get their baseline weights in between. Without `within_s` it neither waits nor raises.
        """

    def keep_locks(self) -> None:
        """Gives back the locks that the settings in force do not need."""


def reload(site: ReloadedSite, path: Path, outcome: ReloadOutcome) -> Iterator[None]:
    """Puts the file's settings in force; `outcome` then has what was changed. Raises ReloadRefused."""
    try:
        new = SettingsInForce.of(read(path), path)
    except (ConfigError, OSError) as error:
        raise ReloadRefused(str(error)) from None
    old = site.in_force
    try:
        differences = compare(old.settings, new.settings)
        if stubborn := [difference.setting for difference in differences if not difference.parts]:
            raise ReloadRefused(f"{path}: {', '.join(stubborn)} cannot change while the controller runs: restart it")
        outcome.changed = differences
        running = {*names_of(old.settings), *names_of(new.settings)}
        concerned = running.intersection(part for difference in differences for part in difference.parts)
        outcome.restarted = [name for name in names_of(new.settings) if name in concerned]
        if differences:
            yield from _apply(site, new, differences, concerned)
    except BaseException:
        if site.in_force is not new:
            new.close()
        raise
    (old if site.in_force is new else new).close()


def _apply(
    site: ReloadedSite, new: SettingsInForce, differences: list[Difference], concerned: set[str]
) -> Iterator[None]:
    old = site.in_force
    examined = {difference.pool for difference in differences if difference.pool and difference.after is not None}
    listen = new.settings.web.listen if new.settings.web.listen != old.settings.web.listen else ""
    yield from _trial(new, concerned, examined, listen)
    try:
        site.take_locks(new.settings.pool)
    except Exception as error:  # LockError, which is above this package
        raise ReloadRefused(str(error)) from None
    try:
        yield from site.switch(new, concerned, given_back(old.settings, new.settings), WORKS_WITHIN_S)
    except Exception as error:
        log.error("reload: %s; going back to the previous settings", error)
        yield from site.switch(old, concerned, given_back(new.settings, old.settings), None)
        raise
    finally:
        site.keep_locks()


def _trial(new: SettingsInForce, parts: Collection[str], pools: Collection[str], listen: str) -> Iterator[None]:
    """Raises ReloadRefused with what the trial says."""
    if not parts:
        return
    words = [
        "try-settings",
        *(f"--part={name}" for name in sorted(parts)),
        *(f"--pool={pool}" for pool in sorted(pools)),
    ]
    with tempfile.TemporaryFile() as output:
        trial = subprocess.Popen(
            [*new.command(*words), f"--listen={listen}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            pass_fds=[new.fd],
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
        )
        try:
            until_s = time.monotonic() + TRIAL_WITHIN_S
            while trial.poll() is None:
                if time.monotonic() >= until_s:
                    raise ReloadRefused(f"the trial of the new settings took longer than {TRIAL_WITHIN_S:g} s")
                yield
        finally:
            if trial.poll() is None:
                trial.kill()
                trial.wait()
        lines = _lines(output)
    if trial.returncode:
        raise ReloadRefused(lines[-1].removeprefix("error: ") if lines else "the trial of the new settings failed")
    for line in lines:
        log.warning("%s", line.partition("WARNING ")[2] or line)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
