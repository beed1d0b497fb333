"""The leases on all balancers of a pool as one: all are held, or none.

Lists of balancers that overlap must not lead to two owners of one balancer, so each balancer has a lease of its own.
They are taken only when all look free, in the order of their keys, so that of several lbengines that want them at once
one gets them; who is refused one gives back the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap
from collections.abc import Callable, Mapping

from lbengine.baseline import Baseline
from lbengine.leadership.lease import Bucket, Lease, Owner
from lbengine.overrides.overrides import Pause
from slackwater.bus.bus import BusError
from slackwater.machine import Process


class Leases:
    """One lbengine's side; `places` are keys and what is driven there (`keys_of`). Call `step` every RENEW_S."""

    def __init__(
        self,
        bucket: Bucket,
        places: Mapping[str, str],
        state_dir: str,
        clock: Callable[[], float],
        process: Process | None = None,
    ) -> None:
        self.owner: Owner = "unknown"
        """Never `free`. (`ours`: all of them.)"""
        self._places = dict(sorted(places.items()))
        self._leases = [Lease(bucket, key, state_dir, clock, process) for key in self._places]
        self.other = ""
        """Who has what, in words; empty when nobody else has anything."""
        self.are_elsewhere = False
        """Others, with other state folders, have all of them: what we stored is of the past then."""

    async def step(self) -> Owner:
        """Renews the leases, takes them if they are all free, or looks who has them."""
        renewing = self.owner == "ours"
        owners = await asyncio.gather(*(lease.step(take=renewing) for lease in self._leases))
        if not renewing and set(owners) <= {"free", "ours"}:
            owners = await self._take_all()
            if set(owners) != {"ours"}:  # somebody else was quicker
                owners = await asyncio.gather(*(lease.step(take=False) for lease in self._leases))
        if set(owners) == {"ours"}:
            if not renewing:
                self._share()
            self.owner, self.other, self.are_elsewhere = "ours", "", False
            return self.owner
        for lease in self._leases:
            if lease.owner == "ours":
                with contextlib.suppress(BusError):
                    await lease.release(contested=True)
        if "theirs" in owners:
            self.owner, self.other = "theirs", self._describe_other()
            self.are_elsewhere = all(lease.owner == "theirs" and lease.is_elsewhere for lease in self._leases)
        elif renewing:
            self.owner = "unknown"
        return self.owner

    async def keep(self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, baseline_id: str = "") -> None:
        """Has these in every record before it returns, where the leases are ours. Raises BusError."""
        keeping = (lease.keep(baseline, paused, baseline_id) for lease in self._leases)
        kept = await asyncio.gather(*keeping, return_exceptions=True)
        for error in kept:
            if error is not None:
                raise error

    async def release(self, contested: bool = False) -> None:
        """Gives the leases back: the next one needs not wait. `contested`: as in `Record`. Raises BusError."""
        self.owner = "unknown"
        for lease in self._leases:
            await lease.release(contested)

    def hold(self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, baseline_id: str = "") -> None:
        """What the records are to carry when they are next written."""
        for lease in self._leases:
            lease.hold(baseline, paused, baseline_id)

    @property
    def stale(self) -> bool:
        """As `Lease.stale`, of any of them."""
        return self.owner == "ours" and any(lease.stale for lease in self._leases)

    @property
    def is_sure(self) -> bool:
        """All are ours, nobody can have taken one over yet, and whoever does later finds the baseline with it."""
        return self.owner == "ours" and all(
            lease.owner == "ours" and not lease.stale and lease.carries_baseline for lease in self._leases
        )

    def _describe_other(self) -> str:
        theirs = [(lease, place) for lease, place in zip(self._leases, self._places.values(), strict=True)]
        theirs = [(lease, place) for lease, place in theirs if lease.owner == "theirs"]
        found = theirs[0][0].found if theirs else None
        if found is None:
            return ""
        what = "it" if len(theirs) == len(self._leases) else ", ".join(place for _, place in theirs)
        return f"lbengine of {found.host} (pid {found.pid}) drives {what}"

    @property
    def taken_after_others(self) -> int:
        """As `Lease.taken_after_others`, of all of them."""
        return sum(lease.taken_after_others for lease in self._leases)

    def left(self, put_back: str = "") -> dict[str, Baseline] | None:
        """The baseline that whoever had them before left, if it did; of several, all together. The one with the id
        `put_back` is of the past."""
        left = [
            lease.baseline
            for lease in self._leases
            if lease.baseline is not None and not (put_back and lease.baseline_id == put_back)
        ]
        return dict(ChainMap(*left)) if left else None

    def _share(self) -> None:
        """What one record carried when it was taken, all carry from now on."""
        if (left := self.left()) is not None:
            ids = {lease.baseline_id for lease in self._leases if lease.baseline is not None}
            self.hold(left, self.paused, ids.pop() if len(ids) == 1 else "")

    @property
    def paused(self) -> Pause | None:
        """The pause that the records carry."""
        return next((lease.paused for lease in self._leases if lease.paused is not None), None)

    @paused.setter
    def paused(self, paused: Pause | None) -> None:
        for lease in self._leases:
            lease.paused = paused

    @property
    def heard_s(self) -> float:
        """When one of the others was last heard of."""
        return max(lease.heard_s for lease in self._leases)

    async def _take_all(self) -> list[Owner]:
        owners: list[Owner] = []
        for lease in self._leases:
            owners.append(await lease.take())
            if owners[-1] != "ours":
                break
        return owners
