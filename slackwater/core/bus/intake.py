"""Limits for each sender on a subscription: one noisy sender must not delay the rest.

nats-server has no rate limit for a user, but it ends a subscription after a given number of messages. So each
subscription has credit. A message within `PER_S` a second of its subject returns its credit; one beyond does not. A
flood uses up the credit, and the server itself stops sending, so that no queue grows. The other subjects then get one
subscription each, and after some seconds the common one is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from slackwater.core import tasks
from slackwater.core.bus.client import size_of

log = logging.getLogger("slackwater.bus")

PER_S = 50
"""Messages of one subject accepted in a second. A monitor sends 5."""
BYTES_A_MESSAGE = 8192
"""On the wire, with headers that nobody reads. A longer message takes the credit of several; a Sample has some 2,500
bytes."""
CREDIT = 1000
CREDIT_A_SUBJECT = 20
"""Four seconds of a node's Samples: this process may be busy that long without losing any."""
KNOWN_FOR_S = 10.0
CHECK_EVERY_S = 1.0
SILENT_S = 2.0


def messages_worth(size: int) -> int:
    """The credit that a message of this many bytes takes."""
    return 1 + size // BYTES_A_MESSAGE


class FloodLimit:
    """Which messages are accepted: at most `per_s` of a subject."""

    def __init__(self, per_s: int = PER_S) -> None:
        self._per_s = per_s
        self._since_s = float("-inf")
        self._count: dict[str, int] = {}
        self._seen_s: dict[str, float] = {}
        self._flooded_s: dict[str, float] = {}

    def counts(self, subject: str, size: int, now_s: float) -> bool:
        """Whether this message is within its subject's limit of this second."""
        if now_s - self._since_s >= 1.0:
            self._since_s = now_s
            self._count.clear()
        count = self._count[subject] = self._count.get(subject, 0) + messages_worth(size)
        if count > self._per_s:
            self._flooded_s[subject] = now_s
            return False
        self._seen_s[subject] = now_s
        return True

    def floods(self, now_s: float) -> list[str]:
        """Subjects beyond their limit in the last seconds."""
        self._flooded_s = {
            name: flooded_s for name, flooded_s in self._flooded_s.items() if now_s - flooded_s < KNOWN_FOR_S
        }
        return sorted(self._flooded_s)

    def others(self, now_s: float) -> list[str]:
        """Subjects seen in the last seconds that do not flood."""
        self._seen_s = {name: seen_s for name, seen_s in self._seen_s.items() if now_s - seen_s < KNOWN_FOR_S}
        floods = self.floods(now_s)
        return [name for name in self._seen_s if name not in floods]

    @property
    def known(self) -> int:
        """How many subjects were seen."""
        return len(self._seen_s)


@dataclass
class _Subscription:
    """One subscription of NATS and its credit."""

    opened_s: float
    credit: int
    limit: int
    returned: int = 0
    extra: int = 0
    """Credit that long messages took in addition."""
    delivered_before: int = 0
    delivered_at_s: float = 0.0
    checks: int = 0
    quiet_checks: int = 0
    """Checks by `Intake` since it was opened, and since the last message. If this process was stopped for a while, the
    clock alone proves nothing: messages of that time are read only after the first check."""
    subscription: Subscription | None = field(default=None, repr=False)

    @property
    def ended(self) -> bool:
        """The server sends no more of it, or should not."""
        return self.subscription is not None and self.subscription.delivered + self.extra >= self.limit

    def is_silent(self, now_s: float) -> bool:
        """No message for a while: a subscription whose limit was raised too late ends like this, without a notice."""
        delivered = self.subscription.delivered if self.subscription is not None else 0
        if delivered != self.delivered_before:
            self.delivered_before, self.delivered_at_s, self.quiet_checks = delivered, now_s, 0
        else:
            self.quiet_checks += 1
        silent = self.quiet_checks > 1 and now_s - max(self.delivered_at_s, self.opened_s) >= SILENT_S
        return self.limit > self.credit and silent

    def lasts(self, now_s: float, for_s: float) -> bool:
        """It has been open for `for_s` with credit left."""
        self.checks += 1
        return self.checks > 1 and now_s - self.opened_s >= for_s


class Intake:
    """A subscription to a subject with a wildcard, for as long as the connection lives."""

    def __init__(
        self,
        client: Client,
        subject: str,
        take: Callable[[Msg], None],
        *,
        per_s: int = PER_S,
        retry_s: float = 5.0,
    ) -> None:
        self._client = client
        self._subject = subject
        self._take = take
        self._retry_s = retry_s
        self._per_s = per_s
        self._meter = FloodLimit(per_s)
        self._all: _Subscription | None = None
        self._all_again_s = 0.0
        self._own: dict[str, _Subscription] = {}
        """During a flood: the subscriptions of the other subjects."""
        self._reconnects = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribes, and renews the subscription from now on."""
        self._all = await self._open(self._subject)
        self._task = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        """Stops renewing; the subscription ends with its connection."""
        if self._task is not None:
            await tasks.end(self._task)

    async def _open(self, subject: str) -> _Subscription:
        credit = max(CREDIT, 2 * self._per_s) + (
            CREDIT_A_SUBJECT * self._meter.known if subject == self._subject else 0
        )
        line = _Subscription(time.monotonic(), credit, credit)

        async def on_message(raw: Msg) -> None:
            if line is self._all and raw.subject in self._own:
                line.returned += 1
            elif self._meter.counts(raw.subject, size_of(raw), time.monotonic()):
                line.returned += 1
                self._take(raw)
            else:
                line.extra += messages_worth(size_of(raw)) - 1
            await self._give_back(line)

        line.subscription = await self._client.subscribe(subject, cb=on_message)
        await line.subscription.unsubscribe(limit=line.limit)
        return line

    async def _give_back(self, line: _Subscription) -> None:
        if line.ended:
            self._wake.set()
        elif line.subscription is not None and line.returned + line.credit - line.limit >= line.credit // 4:
            line.limit = line.returned + line.credit
            with contextlib.suppress(nats.errors.Error):
                await line.subscription.unsubscribe(limit=line.limit)

    async def _close(self, line: _Subscription) -> None:
        if line.subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await line.subscription.unsubscribe()

    async def _renew(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), CHECK_EVERY_S)
            self._wake.clear()
            with contextlib.suppress(nats.errors.Error):  # no connection at the moment: tried again next time
                await self._check(time.monotonic())

    async def _check(self, now_s: float) -> None:
        if self._client.stats["reconnects"] != self._reconnects:
            # The server counts from 0 again.
            self._reconnects = self._client.stats["reconnects"]
            for line in [*self._own.values(), *([self._all] if self._all else [])]:
                await self._close(line)
            self._own.clear()
            self._all = await self._open(self._subject)
            return
        if self._all is None:
            if now_s >= self._all_again_s:
                self._all = await self._open(self._subject)
        elif self._all.ended:
            await self._split(self._all, now_s)
        elif self._all.is_silent(now_s):
            await self._close(self._all)
            self._all = await self._open(self._subject)
        elif self._own and self._all.lasts(now_s, self._retry_s):
            log.warning("bus: %s has one subscription again", self._subject)
            for subject in list(self._own):
                await self._close(self._own.pop(subject))
        for subject, line in list(self._own.items()):
            if line.ended or line.is_silent(now_s):
                await self._close(self._own.pop(subject))
                if subject not in self._meter.floods(now_s):
                    self._own[subject] = await self._open(subject)

    async def _split(self, line: _Subscription, now_s: float) -> None:
        """The credit is used up: subscribes to the subjects that do not flood, one by one."""
        await self._close(line)
        self._all = None
        floods = self._meter.floods(now_s)
        if not floods:
            self._all = await self._open(self._subject)
            return
        if not self._own:
            log.warning(
                "bus: more than %d messages/s of %s; ignored until there are fewer", self._per_s, ", ".join(floods)
            )
        self._all_again_s = now_s + self._retry_s
        for subject in self._meter.others(now_s):
            if subject not in self._own:
                self._own[subject] = await self._open(subject)
