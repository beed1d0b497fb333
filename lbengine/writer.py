"""The writing half of an engine: the baseline goes to disk, changes to the journal, and values to the balancer."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from slackwater.core.journal.journal import JournalError
from slackwater.core.messages import VERSION, Change, ChangeCause, Message, shortened
from slackwater.lbengine.balancer import Balancer, BalancerError
from slackwater.lbengine.baseline import Baseline, BaselineError, BaselineStore
from slackwater.lbengine.decision.step import WantedValue

log = logging.getLogger("lbengine")

BY = "lbengine"
Value = int | float | str | None


def change(
    pool: str,
    what: str,
    target: str,
    before: Value,
    after: Value,
    why: str,
    by: str,
    time_unix_s: float,
    *,
    cause: ChangeCause | None = None,
    applied: bool = True,
) -> Change:
    """A Change with a new id. `applied` false: observe mode, in which it is not made."""
    id_ = uuid.uuid4().hex
    return Change(
        VERSION, id_, pool, time_unix_s, what, target, before, after, shortened(why), by, applied, cause=cause
    )


def _without_lowering(changes: list[Change], why: str, remarks: list[str]) -> list[Change]:
    """The changes that raise a value: they are made even where lowering is not allowed. The others are named in
    `remarks`."""
    lowered = [made for made in changes if made.lowers]
    remarks.append(f"not lowered: {', '.join(made.target for made in lowered) or 'nothing'} ({why})")
    return [made for made in changes if made not in lowered]


class Recorder(Protocol):
    """The journal as the engine needs it."""

    def record(self, *batch: Message, wait: bool = True) -> None:
        """Records messages. With `wait` false they are safe from a power cut only after `force`."""

    def force(self) -> None: ...


class Writer:
    """Makes changes, each recorded before it is made. Messages to publish gather in `outbox`."""

    def __init__(
        self,
        pool: str,
        balancer: Balancer,
        store: BaselineStore,
        journal: Recorder,
        wall: Callable[[], float],
        may_lower: Callable[[], bool],
    ) -> None:
        self.pool = pool
        self.acting = False
        """Whether changes are set; otherwise they are only recorded."""
        self.balancer = balancer
        self.store = store
        self.outbox: deque[Message] = deque()
        self.unconfirmed: dict[str, int] = {}
        """Weights that were sent and not confirmed: the balancer may show them or not."""
        self.unconfirmed_limits: dict[str, int] = {}
        """`maxconn`s that were sent and not confirmed."""
        self._journal = journal
        self._wall = wall
        self._may_lower = may_lower
        self._pending: dict[tuple[str, str, Value], Change] = {}

    def change(
        self,
        what: str,
        target: str,
        before: Value,
        after: Value,
        why: str,
        by: str,
        cause: ChangeCause | None = None,
        *,
        applied: bool = True,
    ) -> Change:
        """A Change of this moment, with a new id."""
        now = self._wall()
        return change(self.pool, what, target, before, after, why, by, now, cause=cause, applied=applied)

    def note(
        self,
        what: str,
        target: str,
        before: Value,
        after: Value,
        why: str,
        by: str,
        since_unix_s: float | None,
    ) -> None:
        """Records a command that was carried out; `since_unix_s`: begin of the episode that it is about."""
        made = self.change(what, target, before, after, why, by)
        self.try_record(msgspec.structs.replace(made, since_unix_s=since_unix_s))

    def pending(self, wanted: WantedValue) -> Change:
        """The Change for a wanted value; where it is tried again, the Change of the first time."""
        what, server, before, after = wanted.what, wanted.server, wanted.before, wanted.after
        pending = self._pending.get((what, server, after))
        if pending is not None and pending.before == before:
            return pending
        return self.change(what, server, before, after, wanted.why, BY, wanted.cause, applied=self.acting)

    def forget_unconfirmed(self) -> None:
        """Forgets the unconfirmed values, since a fresh look has shown whether they are set."""
        self.unconfirmed, self.unconfirmed_limits = {}, {}

    def try_record(self, *changes: Change) -> None:
        """Records and publishes changes that are made, or were made, even if they cannot be recorded."""
        try:
            self._journal.record(*changes, wait=False)
        except JournalError as error:
            log.error("%s: %s", self.pool, error)
        self.outbox += changes

    def recorded(self, made: Change) -> bool:
        """Records and publishes a change that may only be made once it is recorded; returns whether it was."""
        try:
            self._journal.record(made, wait=False)
        except JournalError as error:
            log.error("%s: %s", self.pool, error)
            return False
        self.outbox.append(made)
        return True

    def settle(self) -> None:
        """Forces the records to the disk. It is called after the weights are set, since disks are slow."""
        try:
            self._journal.force()
        except JournalError as error:
            log.error("%s: %s", self.pool, error)

    def make(self, changes: list[Change], baselines: Mapping[str, Baseline], remarks: list[str]) -> list[Change]:
        """Makes the changes, or in observe mode only records them; returns those that were made or recorded.

        Changes that cannot be recorded first are made only where they raise a value: the way back to the baseline stays
        open. Raises BalancerError.
        """
        changes = self._allowed(changes, remarks)
        if not changes:
            self._pending = {}
            return []
        try:
            limits = any(made.what == "maxconn" for made in changes)
            if self.acting and (limits or not self.store.is_current()):
                self.store.save(baselines)
            self._journal.record(*changes, wait=False)
        except (BaselineError, JournalError) as error:
            changes = _without_lowering(changes, str(error), remarks)
        changes = self._allowed(changes, remarks)  # recording them may have taken long
        if self.acting and changes:
            self._send(changes)
        self.forget_unconfirmed()
        self._pending = {}
        self.outbox += changes
        return changes

    def _allowed(self, changes: list[Change], remarks: list[str]) -> list[Change]:
        """The changes that may be made now: while the balancer is not surely ours none that lowers a value."""
        if not self.acting or self._may_lower() or not any(made.lowers for made in changes):
            return changes
        return _without_lowering(changes, "the lease on the balancer is not renewed, or has no baseline yet", remarks)

    def _send(self, changes: Sequence[Change]) -> None:
        tried = set(self._pending)
        self._pending = {(made.what, made.target, made.after): made for made in changes}
        weights, limits = (
            {made.target: made.after for made in changes if made.what == what and isinstance(made.after, int)}
            for what in ("weight", "maxconn")
        )
        self.unconfirmed = weights
        try:
            if weights:
                self.balancer.set_weights(weights)
            if limits:
                self.unconfirmed_limits = limits
                self.balancer.set_maxconns(limits)
        except BalancerError as error:
            why = f"not set, tried again in the next cycle: {error}"
            self.try_record(
                *(
                    self.change(made.what, made.target, made.before, made.after, why, BY, "not_set", applied=False)
                    for key, made in self._pending.items()
                    if key not in tried
                )
            )
            raise

    def put_back(
        self,
        weights: Mapping[str, tuple[int, int]],
        limits: Mapping[str, tuple[int, int]],
        by: str,
        why: str,
    ) -> list[Change]:
        """Sets the baselines at once, also where they cannot be recorded; returns the changes. Raises BalancerError.

        `weights`, `limits`: server -> (shown, baseline).
        """
        changes = [
            self.change(what, name, before, after, why, by, "put_back")
            for what, pairs in (("weight", weights), ("maxconn", limits))
            for name, (before, after) in pairs.items()
        ]
        if changes:
            self.try_record(*changes)
        if weights:
            self.unconfirmed = {name: after for name, (_, after) in weights.items()}
            self.balancer.set_weights(self.unconfirmed)
            self.unconfirmed = {}
        if limits:
            self.balancer.set_maxconns({name: after for name, (_, after) in limits.items()})
        return changes
