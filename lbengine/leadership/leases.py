"""The leases on all balancers of a pool as one: all are held, or none.

Pools may have some balancers in common. No balancer may have two owners, so each has a lease of its own. An lbengine
takes them only when all look free, in the order of their keys. So of several lbengines that want them at once exactly
one gets all; an lbengine that is refused a lease gives back the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from slackwater.core.bus.bus import BusError
from slackwater.core.machine import Process
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.leadership.lease import Bucket, Lease, Owner
from slackwater.lbengine.overrides.overrides import Pause


class Leases:
    """One lbengine's view of the leases. `places`: key -> place in words (`keys_of`). Call `step` every RENEW_S."""

    def __init__(
        self,
        bucket: Bucket,
        places: Mapping[str, str],
        state_dir: str,
        clock: Callable[[], float],
        process: Process | None = None,
    ) -> None:
        self.owner: Owner = "unknown"
        """`ours`: all leases are; `theirs`: at least one is. It is never `free`."""
        self._places = dict(sorted(places.items()))
        self._leases = [Lease(bucket, key, state_dir, clock, process) for key in self._places]
        self.other = ""
        """Which lbengine has leases, and on what, in words; empty when no other has any."""
        self.are_elsewhere = False
        """Other lbengines with other state folders have all of them, so our stored baseline is out of date."""

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

    def keep(
        self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, baseline_id: str = ""
    ) -> Coroutine[Any, Any, None]:
        """Holds the contents for every record, and returns the coroutine that writes them, as `Lease.keep`."""
        self.hold(baseline, paused, baseline_id)
        return self._write_held()

    async def _write_held(self) -> None:
        kept = await asyncio.gather(*(lease.write_held() for lease in self._leases), return_exceptions=True)
        for error in kept:
            if error is not None:
                raise error

    async def release(self, contested: bool = False) -> None:
        """Gives the leases back, so that nobody need wait for them. `contested`: as in `Record`. Raises BusError."""
        self.owner = "unknown"
        for lease in self._leases:
            await lease.release(contested)

    def hold(self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, baseline_id: str = "") -> None:
        """Sets the contents of the records for when they are next written; from any thread."""
        for lease in self._leases:
            lease.hold(baseline, paused, baseline_id)

    @property
    def stale(self) -> bool:
        """True when any of the leases is stale, as `Lease.stale`."""
        return self.owner == "ours" and any(lease.stale for lease in self._leases)

    @property
    def is_sure(self) -> bool:
        """True when all leases are ours and none can have been taken over yet, and a later holder finds the baseline in
        each record."""
        return self.owner == "ours" and all(
            lease.owner == "ours" and not lease.stale and lease.carries_baseline for lease in self._leases
        )

    def _describe_other(self) -> str:
        others = [(lease, place) for lease, place in zip(self._leases, self._places.values(), strict=True)]
        others = [(lease, place) for lease, place in others if lease.owner == "theirs"]
        holder = others[0][0].their_record if others else None
        if holder is None:
            return ""
        driven = "it" if len(others) == len(self._leases) else ", ".join(place for _, place in others)
        return f"lbengine of {holder.host} (pid {holder.pid}) drives {driven}"

    @property
    def taken_after_others(self) -> int:
        """Sum of `Lease.taken_after_others` over the leases."""
        return sum(lease.taken_after_others for lease in self._leases)

    def left(self, put_back: str = "") -> dict[str, Baseline] | None:
        """The baseline that the last holder has left in the records; None: none. Those of several records are merged.

        A baseline with the id `put_back` is out of date, and left out.
        """
        left = [
            lease.baseline
            for lease in self._leases
            if lease.baseline is not None and not (put_back and lease.baseline_id == put_back)
        ]
        return dict(ChainMap(*left)) if left else None

    def _share(self) -> None:
        """Has all records carry the baseline that one of them carried when it was taken."""
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
        """Time at which another lbengine was last heard of."""
        return max(lease.heard_s for lease in self._leases)

    async def _take_all(self) -> list[Owner]:
        owners: list[Owner] = []
        for lease in self._leases:
            owners.append(await lease.take())
            if owners[-1] != "ours":
                break
        return owners
