"""Who drives a balancer: one lbengine, by a lease in NATS key-value; others stand by and take over.

The record is changed by compare-and-set on its revision, and its age is taken by each one's own monotonic clock: no
clocks are compared (as in C. Gray and D. Cheriton, "Leases", SOSP 1989, but for the clock). It carries the baseline
and the pause too, so that whoever takes over knows what to go back to.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from lbengine.backends.table import targets_of
from lbengine.balancer import Target
from lbengine.baseline import Baseline
from lbengine.overrides.overrides import Pause
from slackwater.bus.bus import BusError
from slackwater.config import PoolSettings
from slackwater.machine import Process, this_process

LEASE_S = 1.6
"""A record that has not changed for so long is free."""
RENEW_S = 0.4
"""A death is seen after RENEW_S + LEASE_S + RENEW_S at most: 2.4 s."""
Owner = Literal["ours", "theirs", "unknown", "free"]
"""`unknown`: the bus does not answer. Without it no Verdicts come either, so weights return to the baseline.
`free`: nobody has it, and it was not to be taken."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands under a balancer's key; no `holder`: it was given back."""

    holder: str = ""
    host: str = ""
    """Its host's name, for people."""
    machine: str = ""
    process_space: str = ""
    """As in `slackwater.machine`; empty in records of earlier versions."""
    pid: int = 0
    state_dir: str = ""
    baseline: dict[str, Baseline] | None = None
    """While the holder may have changed something."""
    inherited: bool = False
    """The baseline came with the lease, and is not known to be on the holder's disk yet."""
    paused: Pause | None = None
    contested: bool = False
    """Given back so soon after it was taken from another one that this one may still set weights, if it is cut off."""


class Bucket(Protocol):
    """What the lease needs of a key-value store. All raise BusError when it cannot be asked."""

    async def get(self, key: str) -> tuple[bytes, int] | None: ...

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        """The new revision; None when the key's is not `revision` (0: not there) any more."""


def keys_of(pool: PoolSettings) -> dict[str, str]:
    """The key of each target of a pool, and in words what is driven there.

    The pool's name does not count, since another pool may have the same target.
    """
    return {_key(target): target.place for target in targets_of(pool)}


def _key(target: Target) -> str:
    return f"balancer.{hashlib.sha256(repr(target.lease).encode()).hexdigest()[:16]}"


class Lease:
    """One lbengine's side. Call `step` every RENEW_S; `clock` is monotonic."""

    def __init__(
        self, bucket: Bucket, key: str, state_dir: str, clock: Callable[[], float], process: Process | None = None
    ) -> None:
        self.key = key
        self.owner: Owner = "unknown"
        self.found: Record | None = None
        """The other one's record."""
        self.inherited = False
        """What the record carries is of somebody else, with another state folder, and ours to put back now.

        With the same folder the disk knows better: `slackwater restore` may have been there since.
        """
        self.taken_after_others = 0
        """How often it was taken from another one that may live and not know of it yet, if it is cut off."""
        self.baseline: dict[str, Baseline] | None = None
        self.paused: Pause | None = None
        self._bucket = bucket
        self._clock = clock
        self._process = process or this_process()
        self._me = Record(
            holder=os.urandom(8).hex(),
            host=self._process.host,
            machine=self._process.machine,
            process_space=self._process.space,
            pid=self._process.pid,
            state_dir=os.path.realpath(state_dir),
        )
        self._revision = 0
        self._stored: Record | None = None
        """What was last written, as far as is known."""
        self._renewed_s = -LEASE_S
        self._seen: tuple[int, float] = (0, 0.0)
        self._nobodys: tuple[Record | None, int] = (None, 0)
        """What was found when it was free."""
        self._one_at_a_time = asyncio.Lock()

    @property
    def stale(self) -> bool:
        """True when what is known is too old to act on: somebody may have taken over (we were stopped, or it hung).

        Nobody takes over before LEASE_S: the rest is for what is on its way to the balancer.
        """
        return self.owner == "ours" and self._clock() - self._renewed_s >= LEASE_S / 2

    @property
    def carries_baseline(self) -> bool:
        """The record has the baseline, so that whoever takes over can put it back."""
        return self._stored is not None and self._stored.baseline == self.baseline

    @property
    def is_neighbour(self) -> bool:
        """True when the other one has the same state folder."""
        return self.found is not None and self._has_our_folder(self.found)

    def _has_our_folder(self, record: Record) -> bool:
        return (record.machine, record.state_dir) == (self._me.machine, self._me.state_dir)

    @property
    def heard_s(self) -> float:
        """When the record was last seen to change by somebody else."""
        return self._seen[1]

    async def step(self, take: bool = True) -> Owner:
        """Renews the lease, takes it if it is nobody's (with `take`), or looks who has it."""
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
        """Takes it as it was found free. Somebody else may have been quicker: the next step shows it."""
        async with self._one_at_a_time:
            if self.owner == "free":
                with contextlib.suppress(BusError):
                    await self._take(*self._nobodys, self._clock())
            return self.owner

    async def keep(self, baseline: Mapping[str, Baseline] | None, paused: Pause | None) -> None:
        """Has these in the record before it returns, if the lease is ours: they are on the disk. Raises BusError."""
        async with self._one_at_a_time:
            self.inherited = False
            self.baseline, self.paused = None if baseline is None else dict(baseline), paused
            if self.owner == "ours" and not await self._write(self._revision, self._clock()):
                raise BusError("somebody else has the lease now")

    async def release(self, contested: bool = False) -> None:
        """Gives the lease back: the next one needs not wait. `contested`: as in Record. Raises BusError."""
        async with self._one_at_a_time:
            if self.owner == "ours":
                left = Record(baseline=self.baseline, inherited=self.inherited, paused=self.paused, contested=contested)
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
        # A record may have changed while the answer was on its way: it counts as new from the answer on.
        if record is not None and not self._is_nobodys(record, revision, self._clock()):
            self.owner, self.found = "theirs", record
        elif take:
            await self._take(record, revision, now_s)
        else:
            self.owner, self._nobodys = "free", (record, revision)

    async def _take(self, record: Record | None, revision: int, now_s: float) -> None:
        # A record of ours was written, and the answer got lost: what it carries is known then.
        if record is not None and record.holder != self._me.holder:
            self.baseline, self.paused = record.baseline, record.paused
            self.inherited = record.inherited or not self._has_our_folder(record)
            self.taken_after_others += bool(record.holder or record.contested)
        await self._write(revision, now_s)

    async def _write(self, revision: int, now_s: float) -> bool:
        record = msgspec.structs.replace(self._me, baseline=self.baseline, inherited=self.inherited, paused=self.paused)
        written = await self._bucket.put(self.key, msgspec.json.encode(record), revision)
        if written is None:
            return False
        self.owner, self._revision, self._renewed_s, self._stored = "ours", written, now_s, record
        return True

    def _is_nobodys(self, record: Record, revision: int, now_s: float) -> bool:
        old = self._is_old(revision, now_s)
        return record.holder in ("", self._me.holder) or old or self._is_dead(record)

    def _is_dead(self, record: Record) -> bool:
        """A process of this machine that is gone needs not be waited for."""
        return record.process_space == self._me.process_space and self._process.has_ended(record.pid)

    def _is_old(self, revision: int, now_s: float) -> bool:
        if self._seen[0] != revision:
            self._seen = (revision, now_s)
        return now_s - self._seen[1] >= LEASE_S
