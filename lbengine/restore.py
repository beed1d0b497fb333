"""Restores the baseline weights that are stored on disk, without an engine, a bus or a detector."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.messages import Change
from slackwater.lbengine.backends.table import balancer_of
from slackwater.lbengine.balancer import Balancer, BalancerUnreachable
from slackwater.lbengine.baseline import (
    BaselineError,
    BaselineStore,
    configured_weight,
    diff_from_baseline,
    merge,
    pool_of,
    set_by_someone,
    stored_in,
)
from slackwater.lbengine.writer import change

log = logging.getLogger("lbengine")

RECORD_WITHIN_S = 0.5
"""The weights wait for the journal no longer than this. A disk that hangs must not keep them lowered."""
RECORD_AFTERWARDS_S = 5.0
"""After the weights are set, the journal may take this much longer."""


class LeftOutError(BalancerUnreachable):
    """Part of the balancer did not answer, or the stored baseline could not be removed. `changes` were made. Trying
    again may help."""

    def __init__(self, text: str, changes: list[Change]) -> None:
        super().__init__(text)
        self.changes = changes


def restore(
    settings: ControllerSettings,
    pool: PoolSettings,
    by: str,
    why: str,
    say: Callable[[str], None] = log.warning,
    balancer: Balancer | None = None,
) -> list[Change]:
    """Sets every server of the pool to its stored baseline and reads it back; returns what was changed.

    Without a stored baseline nothing of ours is set, so there is nothing to do. Afterwards the stored baseline is
    removed. A server that somebody else held at another weight than the configured one keeps it, and `say` is called
    with a sentence. Where the balancer fetches the weights from the nodes, the function waits until the nodes' leases
    have ended. The Changes go to the journal; when it cannot be written, or not soon, the weights are set all the same.

    Raises BaselineError when the file cannot be read, BalancerError when the balancer cannot be reached or refuses, and
    LeftOutError when part of the balancer does not answer or cannot be read, or the file cannot be removed (all else is
    done then).
    """
    store = BaselineStore(Path(settings.state_dir), pool)
    stored = store.load()
    balancer = balancer or balancer_of(pool, settings.lbengine.socket_timeout_s)
    if stored is None:
        return []
    snapshot = balancer.read()
    baselines, _ = merge(stored, snapshot)
    held = set_by_someone(stored, snapshot)
    baselines |= {name: stored[name] for name in held}
    full = {server.name: configured_weight(server) for server in snapshot.servers}
    for name, weight in held.items():
        say(f"{name} keeps weight {weight}, which somebody else has set; {full[name]} is configured")
    weights, limits = diff_from_baseline(snapshot, baselines)
    changes = [
        change(pool.name, "restore", name, before, after, text, by, time.time())
        for pairs, text in ((weights, why), (limits, f"{why} (maxconn)"))
        for name, (before, after) in pairs.items()
    ]
    recording = threading.Thread(target=_record, args=(settings, changes))
    if changes:
        recording.start()
        recording.join(RECORD_WITHIN_S)
    if weights:
        balancer.restore_weights({name: after for name, (_, after) in weights.items()}, settings.lbengine.lease_s)
    if limits:
        balancer.set_maxconns({name: after for name, (_, after) in limits.items()})
    if changes:
        recording.join(RECORD_AFTERWARDS_S)
    if snapshot.not_reached(baselines):
        again = f"`slackwater restore --pool {pool.name}`"
        raise LeftOutError(f"{snapshot.describe_not_reached(baselines)}; when it answers, run {again} again", changes)
    try:
        store.remove()
    except BaselineError as error:
        raise LeftOutError(f"the weights are set, but {error}", changes) from None
    return changes


def has_stored(settings: ControllerSettings, pool: PoolSettings) -> bool:
    """Whether a baseline is stored, so that there may be something to put back."""
    return BaselineStore(Path(settings.state_dir), pool).path.exists()


def stored_elsewhere(settings: ControllerSettings) -> list[PoolSettings]:
    """Pools with a stored baseline that these settings do not drive, or drive at another place. An earlier run has left
    them. A file that cannot be read is logged."""
    known = {(pool.name, pool.place) for pool in settings.pool}
    elsewhere: list[PoolSettings] = []
    for path in sorted(stored_in(Path(settings.state_dir))):
        try:
            pool = pool_of(path)
        except BaselineError as error:
            log.error("%s", error)
        else:
            if (pool.name, pool.place) not in known:
                elsewhere.append(pool)
    return elsewhere


def _record(settings: ControllerSettings, changes: list[Change]) -> None:
    try:
        with Journal.open(journal_path(settings.state_dir)) as journal:
            journal.record(*changes)
    except JournalError as error:
        log.error("the restore is not in the journal: %s", error)
