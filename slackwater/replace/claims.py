"""Who replaces a machine: the last day's replacements in NATS key-value, which all controllers of a bus share.

Leadership may change while a command runs, and a controller's journal may lack what another one has done. So a
replacement is claimed before its drain and once more before its command is called, each time by compare-and-set: of
several controllers one calls the command, and none calls it a second time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec

from slackwater.core.bus.bus import BusError, NoStoreError
from slackwater.core.config import ReplaceSettings
from slackwater.views.chronic import DAY_S

log = logging.getLogger("replace")

BUCKET = "slackwater_replace"
MARGIN_S = 60.0
"""Beyond the times of the settings, until a replacement of which no end is recorded is over for sure."""
TRIES = 5
"""Attempts at a record that others change too."""


class Stopped(Exception):
    """The replacement is given up before its command; the text has the reason."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One replacement."""

    id: str
    """Of the Change that began it."""
    node: str
    controller: str
    begun_unix_s: float
    over_unix_s: float
    """When it is over at the latest."""
    called_unix_s: float | None = None
    """When its command was called; None: it was not."""
    ended: bool = False


class Bucket(Protocol):
    """A key-value store as claims need it. The methods raise BusError when the store does not answer."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its revision; None: the key is not there."""

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        """Sets the value if its revision is still this one (0: no key); else None."""


class Claims:
    """The claims of one pool, as one controller sees them. `wall` gives Unix time, `clock` is monotonic: what we have
    called ourselves counts for a day by it, however the wall clock is set meanwhile."""

    def __init__(
        self,
        open_bucket: Callable[[str], Awaitable[Bucket]],
        pool: str,
        controller: str,
        settings: ReplaceSettings,
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._called: dict[str, tuple[str, float]] = {}
        """Ids of the replacements of which we have called the command -> the node, and when by `clock`."""
        self._open, self._pool, self._controller = open_bucket, pool, controller
        self._settings, self._wall = settings, wall
        self._bucket: Bucket | None = None
        self._alone: list[Claim] | None = None
        """Our own claims where the bus stores nothing: no other controller shares its balancers' leases then either.
        None: it stores them."""

    async def begin(self, id_: str, node: str) -> None:
        """Claims a replacement. Raises Stopped where another one is under way, or the day has had enough."""
        now = self._wall()
        over = now + self._settings.drain_s + self._settings.timeout_s + MARGIN_S

        def claimed(claims: list[Claim]) -> list[Claim]:
            self._check(claims)
            return [*claims, Claim(id_, node, self._controller, now, over)]

        await self._change(claimed)

    async def call(self, id_: str) -> None:
        """Notes that the command is called now. Raises Stopped where it must not be."""
        nodes: list[str] = []

        def called(claims: list[Claim]) -> list[Claim]:
            own = [claim for claim in claims if claim.id == id_ and claim.called_unix_s is None and not claim.ended]
            if len(own) != 1:
                raise Stopped("its claim in the bus's store is gone, or was used")
            others = [claim for claim in claims if claim.id != id_]
            self._check(others)
            nodes.append(own[0].node)
            return [*others, msgspec.structs.replace(own[0], called_unix_s=self._wall())]

        await self._change(called)
        self._called[id_] = nodes[-1], self._clock()

    async def end(self, id_: str) -> None:
        """Notes that a replacement is over. Without a store that answers others wait until its time is over."""
        try:
            await self._change(
                lambda claims: [
                    msgspec.structs.replace(claim, ended=True) if claim.id == id_ else claim for claim in claims
                ]
            )
        except Stopped as error:
            log.warning("%s: the end of a replacement is not in the bus's store: %s", self._pool, error)

    async def of_others(self) -> set[str]:
        """Ids of the replacements that other controllers may be at. Raises Stopped where that is not known."""
        claims, _ = await self._read()
        return {claim.id for claim in self._under_way(claims)}

    def _under_way(self, claims: Iterable[Claim]) -> list[Claim]:
        """Those of other controllers. One of our own that has no end was our last process's, which is gone."""
        now = self._wall()
        return [
            claim
            for claim in claims
            if claim.controller != self._controller and not claim.ended and now < claim.over_unix_s
        ]

    def _check(self, claims: list[Claim]) -> None:
        if others := self._under_way(claims):
            raise Stopped(f"{others[0].node} is being replaced by another controller")
        most, now = self._settings.most_per_day, self._wall()
        ran = {
            claim.id: claim.node
            for claim in claims
            if claim.called_unix_s is not None and now - claim.called_unix_s < DAY_S
        }
        ran |= {id_: node for id_, (node, at_s) in self._called.items() if self._clock() - at_s < DAY_S}
        if len(ran) >= most:
            raise Stopped(f"at most {most} in 24 h (`replace.most_per_day`), and these were: {', '.join(ran.values())}")

    async def _change(self, change: Callable[[list[Claim]], list[Claim]]) -> None:
        for _ in range(TRIES):
            claims, revision = await self._read()
            since = self._wall() - DAY_S
            kept = [claim for claim in change(claims) if (claim.called_unix_s or claim.over_unix_s) > since]
            if self._alone is not None:
                self._alone = kept
                return
            if await self._put(msgspec.json.encode(kept), revision):
                return
        raise Stopped("other controllers change the bus's store at the same time")

    async def _read(self) -> tuple[list[Claim], int]:
        try:
            if self._alone is not None:
                return self._alone, 0
            if self._bucket is None:
                self._bucket = await self._open(BUCKET)
            entry = await self._bucket.get(self._pool)
            return (msgspec.json.decode(entry[0], type=list[Claim]), entry[1]) if entry is not None else ([], 0)
        except NoStoreError:
            self._alone = []
            return [], 0
        except BusError as error:
            raise Stopped(str(error)) from None
        except msgspec.DecodeError as error:
            raise Stopped(f"what the bus's store has of {self._pool} cannot be read: {error}") from None

    async def _put(self, value: bytes, revision: int) -> bool:
        assert self._bucket is not None
        try:
            return await self._bucket.put(self._pool, value, revision) is not None
        except BusError as error:
            raise Stopped(str(error)) from None
