"""A lease on a balancer in NATS key-value: the lbengine that has it drives the balancer, the others stand by.

The record is changed by compare-and-set on its revision. Each lbengine takes the record's age by its own monotonic
clock, so no clocks are compared (otherwise as in C. Gray and D. Cheriton, "Leases", SOSP 1989). The record carries the
baseline and the pause too, so that the next holder knows the weights to go back to.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol

import msgspec

from slackwater.core.bus.bus import BusError
from slackwater.core.config import PoolSettings
from slackwater.core.machine import Process, folder_id, this_process
from slackwater.lbengine.backends.table import targets_of
from slackwater.lbengine.balancer import Target
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.overrides.overrides import Pause

LEASE_S = 1.6
"""A lease whose record has not changed for this long is free."""
RENEW_S = 0.4
"""Time between renewals. A death is seen after RENEW_S + LEASE_S + RENEW_S at most: 2.4 s."""
Owner = Literal["ours", "theirs", "unknown", "free"]
"""`unknown`: the bus does not answer. Without it no Verdicts come either, so weights return to the baseline.
`free`: nobody has the lease, and we were not asked to take it."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value under a balancer's key. Without a `holder` the lease was given back."""

    holder: str = ""
    host: str = ""
    """Name of the holder's host, for people."""
    process_space: str = ""
    """The holder's process space, as in `slackwater.core.machine`."""
    pid: int = 0
    folder: str = ""
    """The `folder_id` of the holder's state folder."""
    baseline: dict[str, Baseline] | None = None
    """The baseline while the holder may have changed weights; None: it has changed none."""
    baseline_id: str = ""
    """Id of the baseline in `BaselineStore`; empty without a baseline."""
    paused: Pause | None = None
    contested: bool = False
    """The lease was given back soon after it was taken from another lbengine. That lbengine may still set weights, if
    it is cut off."""


class Bucket(Protocol):
    """A key-value store as the lease needs it. The methods raise BusError when the store does not answer."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its revision; None: the key is not there."""

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        """Sets the value; returns its new revision, or None when the old one is not `revision` (0: no key) any more."""


def keys_of(pool: PoolSettings) -> dict[str, str]:
    """The key of each target of a pool, and the target's place in words.

    The key does not depend on the pool's name, since another pool may have the same target.
    """
    return {_key(target): target.place for target in targets_of(pool)}


def _key(target: Target) -> str:
    return f"balancer.{hashlib.sha256(repr(target.lease).encode()).hexdigest()[:16]}"


class Lease:
    """One lbengine's view of a lease. Call `step` every RENEW_S; `clock` is monotonic."""

    def __init__(
        self, bucket: Bucket, key: str, state_dir: str, clock: Callable[[], float], process: Process | None = None
    ) -> None:
        self.key = key
        self.owner: Owner = "unknown"
        self.their_record: Record | None = None
        """The record of the other lbengine that has the lease; None: there was none yet."""
        self.they_renewed = False
        """The other lbengine has renewed its record since it was first seen."""
        self.taken_after_others = 0
        """How often the lease was taken from another lbengine that may live, cut off, without knowing of it yet."""
        self._held: tuple[dict[str, Baseline] | None, str] = None, ""
        """The baseline that the next record carries, and its id. Two threads set it, so both are set at once."""
        self.paused: Pause | None = None
        self._bucket = bucket
        self._clock = clock
        self._process = process or this_process()
        self._me = Record(
            holder=os.urandom(8).hex(),
            host=self._process.host,
            process_space=self._process.space,
            pid=self._process.pid,
            folder=folder_id(os.path.realpath(state_dir)),
        )
        self._revision = 0
        self._stored: Record | None = None
        """The record that was last written, as far as is known."""
        self._renewed_s = -LEASE_S
        self._seen: tuple[int, float] = (0, 0.0)
        self._nobodys: tuple[Record | None, int] = (None, 0)
        """The record and its revision when the lease was free."""
        self._one_at_a_time = asyncio.Lock()

    @property
    def stale(self) -> bool:
        """True when the last renewal is too old to act on: another lbengine may have taken over while we were stopped
        or the bus hung.

        Nobody takes over before LEASE_S. The second half of it is left for commands on their way to the balancer.
        """
        return self.owner == "ours" and self._clock() - self._renewed_s >= LEASE_S / 2

    @property
    def baseline(self) -> dict[str, Baseline] | None:
        """The baseline that the record carries: the weights to go back to, whoever stored them."""
        return self._held[0]

    @property
    def baseline_id(self) -> str:
        """The id of that baseline; empty where there is none."""
        return self._held[1]

    @property
    def carries_baseline(self) -> bool:
        """Whether the written record has the baseline, so that the next holder can put it back."""
        return self._stored is not None and self._stored.baseline == self.baseline

    @property
    def is_another_controllers(self) -> bool:
        """True when the holder lives, and is no lbengine of our own controller.

        Its state folder may be a copy of ours, with the same id; then its processes are elsewhere.
        """
        if self.their_record is None or not self.they_renewed:
            return False
        their_identity, our_identity = (
            (record.folder, record.process_space) for record in (self.their_record, self._me)
        )
        return their_identity != our_identity

    @property
    def is_elsewhere(self) -> bool:
        """True when the holder has another state folder, so that our stored baseline is out of date.

        A living holder always has another folder: ours may be a copy of it, with the same id.
        """
        return self.their_record is not None and (self.they_renewed or self.their_record.folder != self._me.folder)

    @property
    def heard_s(self) -> float:
        """Time at which somebody else's change of the record was last seen."""
        return self._seen[1]

    async def step(self, take: bool = True) -> Owner:
        """Renews the lease, takes it if it is free (with `take`), or looks who has it."""
        async with self._one_at_a_time:
            now_s = self._clock()
            try:
                if self.owner != "ours" or not await self._write(self._revision, now_s):
                    await self._look(now_s, take)
            except BusError:
                if self.owner == "ours" and now_s - self._renewed_s >= LEASE_S:
                    self.owner = "unknown"
            return self.owner

    async def take(self) -> Owner:
        """Takes the lease that the last step found free. Another lbengine may have been quicker; the next step shows
        it."""
        async with self._one_at_a_time:
            if self.owner == "free":
                with contextlib.suppress(BusError):
                    await self._take(*self._nobodys, self._clock())
            return self.owner

    def hold(self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, baseline_id: str = "") -> None:
        """Sets the contents of the record for when it is next written; from any thread."""
        self.paused = paused
        self._held = (None, "") if baseline is None else (dict(baseline), baseline_id)

    def keep(
        self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, baseline_id: str = ""
    ) -> Coroutine[Any, Any, None]:
        """Holds the contents, and returns the coroutine that writes them, if the lease is ours. They are on our disk
        already. A coroutine may be given up before it has begun, and what is held is not.

        The coroutine raises BusError.
        """
        self.hold(baseline, paused, baseline_id)
        return self.write_held()

    async def write_held(self) -> None:
        """Writes what is held into the record before it returns, if the lease is ours. Raises BusError."""
        async with self._one_at_a_time:
            if self.owner == "ours" and not await self._write(self._revision, self._clock()):
                raise BusError("somebody else has the lease now")

    async def release(self, contested: bool = False) -> None:
        """Gives the lease back, so that the next holder need not wait. `contested`: as in Record. Raises BusError."""
        async with self._one_at_a_time:
            if self.owner == "ours":
                baseline, baseline_id = self._held
                left = Record(baseline=baseline, baseline_id=baseline_id, paused=self.paused, contested=contested)
                await self._bucket.put(self.key, msgspec.json.encode(left), self._revision)
            self.owner = "unknown"

    async def _look(self, now_s: float, take: bool) -> None:
        entry = await self._bucket.get(self.key)
        record, revision = None, 0
        if entry is not None:
            data, revision = entry
            try:
                record = msgspec.json.decode(data, type=Record)
            except (msgspec.DecodeError, UnicodeDecodeError):
                record = Record()
        # A record may have changed while the answer was on its way, so its age is counted from the answer.
        seen = self._seen[0]
        if record is not None and not self._is_nobodys(record, revision, self._clock()):
            same = (
                self.owner == "theirs" and self.their_record is not None and self.their_record.holder == record.holder
            )
            self.they_renewed = same and (self.they_renewed or revision != seen)
            self.owner, self.their_record = "theirs", record
        elif take:
            await self._take(record, revision, now_s)
        else:
            self.owner, self._nobodys = "free", (record, revision)

    async def _take(self, record: Record | None, revision: int, now_s: float) -> None:
        # A record of our own is there when the answer to its writing got lost. Its contents are known.
        if record is not None and record.holder != self._me.holder:
            self.hold(record.baseline, record.paused, record.baseline_id)
            self.taken_after_others += bool(record.holder or record.contested or self.owner == "ours")
        await self._write(revision, now_s)

    async def _write(self, revision: int, now_s: float) -> bool:
        baseline, baseline_id = self._held
        record = msgspec.structs.replace(self._me, baseline=baseline, baseline_id=baseline_id, paused=self.paused)
        if record != self._stored:  # its answer may get lost
            self._stored = None
        written = await self._bucket.put(self.key, msgspec.json.encode(record), revision)
        if written is None:
            return False
        self.owner, self._revision, self._renewed_s, self._stored = "ours", written, now_s, record
        return True

    def _is_nobodys(self, record: Record, revision: int, now_s: float) -> bool:
        old = self._is_old(revision, now_s)
        return record.holder in ("", self._me.holder) or old or self._is_dead(record)

    def _is_dead(self, record: Record) -> bool:
        """Whether the holder was a process of this machine that has ended: its lease is free at once."""
        return record.process_space == self._me.process_space and self._process.has_ended(record.pid)

    def _is_old(self, revision: int, now_s: float) -> bool:
        if self._seen[0] != revision:
            self._seen = (revision, now_s)
        return now_s - self._seen[1] >= LEASE_S
