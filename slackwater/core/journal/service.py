"""The journal process: writes what goes over the bus into the journal, a transaction each half second.

What cannot be written waits, in bounded memory; a Change of the controller that has to give way goes to the log.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import time
from collections.abc import Callable

from slackwater.core import messages
from slackwater.core.bus.bus import Bus, subject_of
from slackwater.core.complaints import Complaints
from slackwater.core.config import ControllerSettings
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.journal.receipt import Receipt
from slackwater.core.journal.retention import Keeper
from slackwater.core.messages import WSENGINE, Change, Message
from slackwater.core.stopping import stop_event

log = logging.getLogger("slackwater.journal")

KINDS = ("sample", "verdict", "change", "cycle", "knobs", "governed")
FLUSH_S = 0.5
KEEP_S = 60.0
KEEP_MESSAGES = 50_000
"""Most Samples, Verdicts and Cycles that wait in memory while the journal cannot be written; as many of the
controller's Changes."""
KEEP_NODE_CHANGES = 500
"""Most Changes of one node that wait."""
COMPLAIN_S = 10.0
LAST_TRIES = 3


class Queue:
    """Messages that wait to be written: the newest of each node's Changes, of the controller's, and of all others.

    What gives way is counted; a Change of the controller goes to the log.
    """

    def __init__(self, keep: int = KEEP_MESSAGES, keep_node_changes: int = KEEP_NODE_CHANGES) -> None:
        self._keep = keep
        self._keep_node_changes = keep_node_changes
        self._changes: dict[tuple[str, str], collections.deque[Message]] = collections.defaultdict(collections.deque)
        """(Pool, node) -> its Changes that are not written yet; the controller's own are under their pool."""
        self._others: collections.deque[Message] = collections.deque()
        self.dropped = 0

    def __len__(self) -> int:
        return sum(map(len, self._changes.values())) + len(self._others)

    def put(self, message: Message) -> None:
        waiting, keep = self._others, self._keep
        if isinstance(message, Change) and message.by == WSENGINE:
            waiting, keep = self._changes[message.pool, message.target], self._keep_node_changes
        elif isinstance(message, Change):
            waiting = self._changes[message.pool, ""]
        waiting.append(message)
        if len(waiting) > keep:
            self.dropped += 1
            log_lost(waiting.popleft())

    def take(self) -> list[Message]:
        """Everything that waits, Changes first; the queue is empty afterwards."""
        batch = [*itertools.chain(*self._changes.values()), *self._others]
        self._changes.clear()
        self._others.clear()
        return batch

    def put_back(self, batch: list[Message]) -> None:
        """A batch that was not written, in front of what came since."""
        for message in (*batch, *self.take()):
            self.put(message)


def log_lost(message: Message) -> None:
    """A Change of the controller that the journal will not have is at least in the log."""
    if isinstance(message, Change) and message.by != WSENGINE:
        log.error("not in the journal: %s", messages.encode(message).decode())


class JournalWriter:
    """Writes a Queue into a journal; failures are logged every 10 s, not at each try."""

    def __init__(self, journal: Journal, queue: Queue, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._queue = queue
        self._clock = clock
        self._failures = 0
        self._complained_at = -COMPLAIN_S
        self._complaints = Complaints(clock)

    async def flush(self) -> bool:
        """Writes everything that waits, in one transaction; False if that failed, then it waits on."""
        batch = self._queue.take()
        if not batch:
            return True
        try:
            await asyncio.to_thread(self._journal.record, *batch)
        except JournalError as error:
            self._queue.put_back(batch)
            self._failures += 1
            if self._clock() - self._complained_at >= COMPLAIN_S:
                self._complained_at = self._clock()
                log.error("%s; tries: %d, %s", error, self._failures, self._waiting())
            return False
        except Exception as error:
            log.debug("one of %d messages cannot be stored (%s): writing them one by one", len(batch), error)
            await asyncio.to_thread(self._write_singly, batch)
        if self._failures:
            log.warning("the journal is written again after %d tries, %s", self._failures, self._waiting())
            self._failures = 0
            self._complained_at = -COMPLAIN_S
        return True

    def _write_singly(self, batch: list[Message]) -> None:
        """So that one message that cannot be stored (a number beyond 64 bits) does not hold up the others."""
        for number, message in enumerate(batch):
            try:
                self._journal.record(message)
            except JournalError:
                self._queue.put_back(batch[number:])
                return
            except Exception as error:
                if self._complaints.are_due(subject_of(message)):
                    log.error("left out (%s): %.500s", error, messages.encode(message).decode())

    async def keep(self, keeper: Keeper) -> None:
        """Rolls up and deletes what is too old or too much; a failure is logged, the next minute tries again."""
        try:
            deleted = await asyncio.to_thread(keeper.keep, not self._failures)
        except JournalError as error:
            log.error("%s", error)
        else:
            log.debug("pruned %d rows", deleted)

    async def finish(self) -> None:
        """The last flush; Changes that still cannot be written go to the log, whole."""
        for attempt in range(LAST_TRIES):
            if await self.flush():
                return
            if attempt < LAST_TRIES - 1:
                await asyncio.sleep(FLUSH_S)
        left = self._queue.take()
        for message in left:
            log_lost(message)
        log.error("ended with %d messages that were not written", len(left))

    def _waiting(self) -> str:
        return f"messages waiting: {len(self._queue)}, dropped so far: {self._queue.dropped}"


async def run(settings: ControllerSettings) -> None:
    """Writes the configured pools' messages until SIGTERM or SIGINT. Raises JournalError, BusError at the start."""
    queue, receipt = Queue(), Receipt()

    def take(message: Message) -> None:
        queue.put(receipt.dated(message))

    with Journal.open(journal_path(settings.state_dir)) as journal:
        writer = JournalWriter(journal, queue)
        bus = await Bus.connect(settings.controller_bus, "slackwater-journal")
        stop = stop_event()
        try:
            for pool in settings.pool:
                for kind in KINDS:
                    await bus.subscribe(kind, take, pool=pool.name)
            log.info("journal %s, bus %s", journal.path, bus.url)
            await _loop(writer, Keeper(journal, settings.journal), stop)
        finally:
            await bus.drain()
            await writer.finish()


async def _loop(writer: JournalWriter, keeper: Keeper, stop: asyncio.Event) -> None:
    keep_at = time.monotonic()
    keeping: asyncio.Task[None] | None = None
    heartbeat = Heartbeat()
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), FLUSH_S)
        except TimeoutError:
            await writer.flush()
            heartbeat.beat()
            # Beside the writing: rolling up a large pool takes some seconds.
            if time.monotonic() >= keep_at and (keeping is None or keeping.done()):
                keep_at = time.monotonic() + KEEP_S
                keeping = asyncio.create_task(writer.keep(keeper))
    if keeping is not None:
        await keeping
