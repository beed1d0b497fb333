"""Looks at the cluster from outside: balancer, bus, journals, /proc, and the load's results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.messages import Cycle, Order, Verdict
from slackwater_lab.cluster.balancer import ask, parse_stat
from slackwater_lab.cluster.bus import POOL
from slackwater_lab.cluster.load import Demand, Load
from slackwater_lab.cluster.paths import LAB_DIR, LabError
from tests.chaos.look import Failed, Look, Recorded, Usage
from tests.chaos.site import CONTROLLER, SECOND, SETTINGS, STATE_DIR, Site, children_of, part_of

FRESH_S = 2.0
USAGE_EVERY_S = 2.0
JOURNAL_EVERY_S = 0.5
ASK_S = 0.5
DRAIN_MOST_S = 60.0
"""The longest that the second stage asks a drain for."""
PIECE_S = 5.0
"""Length of a run of the load: as near as a failed request's time is known."""
JOURNALS = {CONTROLLER: STATE_DIR / "journal.sqlite", SECOND: LAB_DIR / "lb2/slackwater/journal.sqlite"}


class Listener:
    """What is heard on the bus, with when; in a thread of its own, beside the bus and without a link."""

    def __init__(self) -> None:
        self.cycle_s: float | None = None
        self.verdicts: dict[str, tuple[float, str]] = {}
        """Node -> when its last Verdict was heard (monotonic), and the state."""
        self.judgement_s: float | None = None
        """When a Verdict was heard last that judges its node. A second controller calls all nodes unknown at first."""
        self.leases_until_s: dict[str, float] = {}
        self.drained_until_s: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), name="listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(10.0)

    async def _listen(self) -> None:
        logging.getLogger("slackwater.bus").setLevel(logging.CRITICAL)  # that the bus comes and goes is the story's
        bus = None
        while bus is None and not self._end.is_set():
            with contextlib.suppress(BusError):
                bus = await Bus.connect(SETTINGS.controller_bus, "chaos", wait_s=2.0)
        if bus is None:
            return
        for kind in ("cycle", "verdict", "order"):
            await bus.subscribe(kind, self.hear, pool=POOL)
        while not self._end.is_set():
            await asyncio.sleep(0.1)
        await bus.close()

    def hear(self, message: Cycle | Verdict | Order) -> None:
        """Takes what came on the bus now."""
        now_s = time.monotonic()
        if isinstance(message, Cycle):
            self.cycle_s = now_s
            drained = {server.server for server in message.servers if server.cause == "drained"}
            self.drained_until_s = {
                server: self.drained_until_s.get(server, now_s + DRAIN_MOST_S) for server in drained
            }
        elif isinstance(message, Verdict):
            self.verdicts[message.node] = now_s, message.state
            if message.state != "unknown":
                self.judgement_s = now_s
        elif message.value != "baseline":
            self.leases_until_s[message.node] = max(now_s + message.lease_s, self.leases_until_s.get(message.node, 0.0))


class ChangeReader:
    """New Changes of weights in a journal, whatever their time says; as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._after = 0

    def read(self) -> list[tuple[str, object, str]]:
        """Server, weight and author of each that is new; none while the journal cannot be read."""
        if not self._path.exists():
            return []
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=0.2)) as database:
                rows = database.execute(
                    "SELECT rowid, json FROM changes WHERE rowid > ? AND what IN ('weight', 'restore') ORDER BY rowid",
                    (self._after,),
                ).fetchall()
        except sqlite3.Error:
            return []
        changes = []
        for rowid, text in rows:
            self._after = max(self._after, rowid)
            change = json.loads(text)
            if change["applied"]:
                changes.append((change["target"], change["after"], change["by"]))
        return changes


class Watch:
    """Makes looks. `begin_s` is monotonic; times in looks count from there."""

    def __init__(self, site: Site, begin_s: float) -> None:
        self._site = site
        self._begin_s = begin_s
        self.listener = Listener()
        self._readers = {name: ChangeReader(path) for name, path in JOURNALS.items()}
        self._usage: dict[str, Usage] = {}
        self._usage_at_s = self._journal_at_s = 0.0

    def __enter__(self) -> Watch:
        self.listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.stop()

    def judged(self) -> frozenset[str]:
        """Nodes with a fresh Verdict that is not `unknown`."""
        fresh_s = time.monotonic() - FRESH_S
        heard = dict(self.listener.verdicts)
        return frozenset(node for node, (at_s, state) in heard.items() if at_s > fresh_s and state != "unknown")

    def look(self, failed: Sequence[Failed]) -> Look:
        """One look, at what is there now; without the faults at work, which it does not know."""
        now_s = time.monotonic()
        if now_s - self._usage_at_s >= USAGE_EVERY_S:
            self._usage_at_s, self._usage = now_s, self._used()
        weights = self._weights()
        recorded: list[Recorded] = []
        if now_s - self._journal_at_s >= JOURNAL_EVERY_S:
            self._journal_at_s = now_s
            for reader in self._readers.values():
                recorded += [Recorded(self._at(now_s), *row) for row in reader.read()]
        heard = self.listener
        return Look(
            at_s=self._at(time.monotonic()),
            weights=weights,
            drained_until_s={name: self._at(until_s) for name, until_s in dict(heard.drained_until_s).items()},
            cycle_s=None if heard.cycle_s is None else self._at(heard.cycle_s),
            verdict_s=None if heard.judgement_s is None else self._at(heard.judgement_s),
            judged=self.judged(),
            recorded=recorded,
            knobs_set=frozenset(host.name for host in self._site.lab.hosts if _has_knobs_set(host.folder)),
            leases_until_s={node: self._at(until_s) for node, until_s in dict(heard.leases_until_s).items()},
            usage=self._usage,
            journal_bytes=max(_bytes_of(path) for path in JOURNALS.values()),
            failed=failed,
        )

    def _at(self, mono_s: float) -> float:
        return mono_s - self._begin_s

    def _weights(self) -> dict[str, int] | None:
        try:
            text = ask(self._site.lab.balancer.admin_socket, "show stat", ASK_S)
            return parse_stat(text, time.monotonic()).weight or None
        except (LabError, KeyError, ValueError):  # it is down, hung, or being replaced
            return None

    def _used(self) -> dict[str, Usage]:
        used: dict[str, Usage] = {}
        for name, unit in self._site.units.items():
            if unit.pid is None:
                continue
            used[name] = usage_of(unit.pid)
            for child in children_of(unit.pid):
                used[f"{name}: {part_of(child)}"] = usage_of(child)
        return used


def usage_of(pid: int) -> Usage:
    """What a process holds; nothing when it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        threads = len(list((folder / "task").iterdir()))
        descriptors = len(list((folder / "fd").iterdir()))
    except (OSError, IndexError):
        return Usage(0, 0, 0)
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), descriptors, threads)


def _has_knobs_set(folder: Path) -> bool:
    return (folder / "zz-slackwater.conf").exists() or (folder / "pool.d/zz-slackwater.conf").exists()


def _bytes_of(journal: Path) -> int:
    total = 0
    for end in ("", "-wal"):
        with contextlib.suppress(OSError):
            total += Path(f"{journal}{end}").stat().st_size
    return total


class FailedRequests:
    """Load in short pieces, one after the other, and what failed in each."""

    def __init__(self, site: Site, rate_rps: float, begin_s: float) -> None:
        self._site = site
        self._rate_rps = rate_rps
        self._begin_s = begin_s
        self._found: list[Failed] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._finishing: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.requests = 0
        self.trouble = ""
        """Why the load itself could not be made."""

    def __enter__(self) -> FailedRequests:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for thread in self._finishing:
            thread.join()

    def take(self) -> list[Failed]:
        """What has failed since it was asked last."""
        with self._lock:
            failed, self._found = self._found, []
        return failed

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                piece = self._site.lab.load(Demand(rate_rps=self._rate_rps), PIECE_S)
            except (LabError, OSError) as error:
                self.trouble = str(error)
                return
            thread = threading.Thread(target=self._finish, args=(piece,), name="piece of load", daemon=True)
            thread.start()
            self._finishing = [thread for thread in self._finishing if thread.is_alive()] + [thread]
            self._over.wait(piece.begin_mono_s + PIECE_S - time.monotonic())

    def _finish(self, piece: Load) -> None:
        begin_s = piece.begin_mono_s - self._begin_s
        try:
            requests = piece.finish()
        except LabError as error:
            self.trouble = str(error)
            return
        bad = [int(status) for status in requests.status if status != 200]
        count = len(bad) + requests.lost_count
        end_s = time.monotonic() - self._begin_s
        with self._lock:
            self.requests += len(requests.status) + requests.lost_count
            if count:
                seen = [*(f"status {status}" for status in sorted(set(bad))), *requests.lost]
                self._found.append(Failed(begin_s, end_s, count, "; ".join(seen)))
