"""The engine of one pool: read the balancer, decide, record, write, read back. One call of `cycle` is one turn.

It never fires and forgets: each turn starts from what HAProxy shows, so reloads and other people's changes are seen.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lbengine import tell
from lbengine.baseline import Baseline, BaselineError, BaselineStore, merge
from lbengine.changes import change, lowers, weight_after
from lbengine.decide import Decisions, View, decide
from lbengine.fleet import balancer_of
from lbengine.haproxy import BalancerError, BalancerUnreachable, Snapshot
from lbengine.inbox import Inbox
from lbengine.meter import Meter
from lbengine.pause import Pause, PauseStore
from lbengine.ramp import Position
from lbengine.reconcile import Ours, follow, reconcile, restarted
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.journal import JournalError
from slackwater.messages import VERSION, Change, Cycle, Message, ServerState, Verdict

log = logging.getLogger("lbengine")

BY = "lbengine"
SOMEONE_ELSE = "someone else"
RATE_WINDOW_S = 1.0
Value = int | float | str | None


class Balancer(Protocol):
    """What the engine needs of a balancer."""

    def read(self) -> Snapshot: ...

    def set_weights(self, weights: Mapping[str, int]) -> None: ...


class Recorder(Protocol):
    """What the engine needs of the journal."""

    def record(self, *batch: Message) -> None: ...


class Engine:
    """Turns the Verdicts in `inbox` into weights of one pool. Not for several threads at once, except `inbox`.

    `now_s` in its methods is a monotonic clock, `wall` the label on what is recorded. Messages to publish gather in
    `outbox`. Raises BaselineError when a stored baseline cannot be read.
    """

    def __init__(
        self,
        pool: PoolSettings,
        settings: LbengineSettings,
        state_dir: Path,
        journal: Recorder,
        *,
        balancer: Balancer | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.inbox = Inbox()
        self.outbox: deque[Message] = deque()
        self.acting = pool.mode == "act"
        self._journal = journal
        self._balancer = balancer or balancer_of(pool.backend, pool.all_sockets, settings.socket_timeout_s)
        self._wall = wall
        self._store = BaselineStore(state_dir, pool)
        self._pauses = PauseStore(state_dir, pool.name)
        self.paused = self._pauses.load()
        self._baselines = self._store.load()
        self._put_back_due = self._baselines is not None and (self.paused is not None or not self.acting)
        """Weights of an earlier run may be set although we are to keep our hands off: first put them back."""
        self._positions: dict[str, Position] = {}
        self._yielded: frozenset[str] = frozenset()
        self._unsure: dict[str, int] = {}
        """What was sent and not confirmed: HAProxy may show it or not."""
        self._pending: dict[tuple[str, int], Change] = {}
        self._meter = Meter(RATE_WINDOW_S)
        self._total_rps: float | None = None
        self._last: Snapshot | None = None
        self._started_s: float | None = None
        self._remarks: list[str] = []

    # --- the turn

    def cycle(self, now_s: float) -> str:
        """One turn; returns what it did in a sentence. Raises BalancerError when HAProxy can't be read or refuses."""
        self._remarks = []
        verdicts = self._verdicts(now_s)
        snapshot = self._look(now_s, verdicts)
        if self._put_back_due:
            back = self._put_back(snapshot, BY if self.paused is None else self.paused.by, self._hands_off())
            self._remarks += [f"{made.target} {made.before} -> {made.after} put back" for made in back]
        if self.paused is not None:
            decisions = Decisions({})
            changes: list[Change] = []
            self._remarks.append(self._hands_off())
        else:
            decisions = decide(self._view(snapshot, verdicts, now_s), self.pool, self.settings)
            changes = self._apply(snapshot, decisions)
        sentence = self._tell(snapshot, changes, decisions)
        self.outbox.append(
            Cycle(
                v=VERSION,
                pool=self.pool.name,
                time_unix_s=self._wall(),
                mode=self.pool.mode,
                paused=self.paused is not None,
                balance=snapshot.balance,
                law=self.pool.law,
                sentence=sentence,
                servers=self._servers(snapshot, decisions, verdicts),
            )
        )
        return sentence

    def pause(self, by: str, why: str, now_s: float) -> str:
        """Puts the baseline weights back and keeps hands off until `resume`. Raises PauseError when it can't be kept.

        When HAProxy can't be reached now, the weights are put back as soon as it can.
        """
        if self.paused is not None:
            return f"{self.pool.name}: {self._hands_off()} already"
        pause = Pause(by=by, why=why, since_unix_s=self._wall())
        self._pauses.save(pause)
        self._note("pause", by, why)
        self.paused = pause
        self._put_back_due = self._store.path.exists()
        try:
            return self.cycle(now_s)
        except BalancerError as error:
            return f"{self.pool.name}: {self._hands_off()}; the weights are put back when HAProxy answers ({error})"

    def resume(self, by: str, why: str, now_s: float) -> str:
        """Ends a pause; the weights that the balancer shows then are the baseline. Raises PauseError."""
        if self.paused is None:
            return f"{self.pool.name}: not paused"
        self._pauses.remove()
        self._note("resume", by, why)
        self.paused = None
        self._put_back_due = self._put_back_due and not self.acting
        try:
            return f"{self.pool.name}: resumed by {by}; {self.cycle(now_s).removeprefix(f'{self.pool.name}: ')}"
        except BalancerError as error:
            return f"{self.pool.name}: resumed by {by}; HAProxy doesn't answer yet ({error})"

    def stop(self, now_s: float, why: str) -> str:
        """Puts the baseline weights back, if any may be changed. Raises BalancerError when HAProxy doesn't let us."""
        if not self._store.path.exists():
            return f"{self.pool.name}: nothing to put back"
        snapshot = self._look(now_s, self._verdicts(now_s))
        changes = self._put_back(snapshot, BY, why)
        back = ", ".join(f"{made.target} {made.before} -> {made.after}" for made in changes)
        return f"{self.pool.name}: {back or 'every server has its baseline weight'} ({why})"

    # --- looking

    def _verdicts(self, now_s: float) -> dict[str, Verdict]:
        """Fresh Verdicts by node."""
        if self._started_s is None:
            self._started_s = now_s
        return self.inbox.fresh(now_s, self.settings.lease_s)

    def _node(self, server: str) -> str:
        return self.pool.servers.get(server, server)

    def _look(self, now_s: float, verdicts: Mapping[str, Verdict]) -> Snapshot:
        """Reads the balancer and brings baselines, positions and who holds what up to date with it."""
        snapshot = self._balancer.read()
        if snapshot.stopping:
            raise BalancerUnreachable(f"{self.pool.socket}: HAProxy (pid {snapshot.pid}) is stopping; is it reloading?")
        fresh_process = restarted(self._last, snapshot)
        if fresh_process and self._last is not None:
            pids = f" (pid {self._last.pid} -> {snapshot.pid})" if snapshot.pid != self._last.pid else ""
            self._remarks.append(f"HAProxy was reloaded or started anew{pids}")
            self._meter.reset()
        self._remarks += snapshot.trouble
        self._last = snapshot
        self._meter.add(now_s, {server.name: server.requests for server in snapshot.servers})
        if (rates := self._meter.rates()) is not None:
            self._total_rps = sum(rates.values())
        hands_off = (not self.acting or self.paused is not None) and not self._put_back_due
        baselines, news = merge(None if hands_off else self._baselines, snapshot)
        ours = Ours(self._baselines or {}, self._positions, self._yielded, self._unsure)
        if hands_off:
            seen = follow(ours, snapshot, baselines, imagined=not self.acting)
        else:
            slow = {
                server.name
                for server in snapshot.servers
                if (verdict := verdicts.get(self._node(server.name))) is not None and verdict.state == "interference"
            }
            seen = reconcile(ours, snapshot, baselines, slow, fresh_process)
        self._baselines, self._positions, self._yielded, self._unsure = baselines, seen.positions, seen.yielded, {}
        self._keep(baselines, news)
        self._tell_foreign(seen.foreign)
        return snapshot

    def _keep(self, baselines: Mapping[str, Baseline], news: Sequence[str]) -> None:
        """Has a baseline that changed while weights are ours on disk at once."""
        self._remarks += [f"baseline: {text}" for text in news]
        if news and self._store.path.exists():
            try:
                self._store.save(baselines)
            except BaselineError as error:
                self._remarks.append(str(error))

    def _tell_foreign(self, foreign: Mapping[str, tuple[int, int]]) -> None:
        for server, (before, after) in foreign.items():
            self._remarks.append(f"{server} {before} -> {after} by someone else")
            why = "someone else set its weight; left alone until it is back at its baseline, or until pause and resume"
            self._try_record(self._change("weight", server, before, after, why, SOMEONE_ELSE, applied=True))

    def _view(self, snapshot: Snapshot, verdicts: Mapping[str, Verdict], now_s: float) -> View:
        started_s = now_s if self._started_s is None else self._started_s
        by_server = {
            server.name: verdicts[self._node(server.name)]
            for server in snapshot.servers
            if self._node(server.name) in verdicts
        }
        told = [verdict.rps for verdict in by_server.values() if verdict.rps is not None]
        return View(
            snapshot=snapshot,
            baselines=self._baselines or {},
            positions=dict(self._positions),
            yielded=self._yielded,
            verdicts=by_server,
            waiting=now_s - started_s < self.settings.lease_s,
            rates=self._meter.rates(),
            total_rps=self._total_rps if self._total_rps is not None or not told else sum(told),
            now_s=now_s,
        )

    # --- writing

    def _apply(self, snapshot: Snapshot, decisions: Decisions) -> list[Change]:
        """Records and sets what was decided; in observe mode only records what would have been set."""
        weights = {server.name: server.weight for server in snapshot.servers}
        shown = weights if self.acting else {name: position.weight for name, position in self._positions.items()}
        positions = {name: decision.position for name, decision in decisions.servers.items()}
        changes = [
            self._pending_change(name, shown[name], position.weight, decisions.servers[name].why)
            for name, position in positions.items()
            if position.weight != shown[name]
        ]
        wanted = {made.target for made in changes}
        # Until it is set and confirmed, a server stands where HAProxy showed it.
        self._positions |= {name: Position(shown[name]) for name in wanted}
        changes = self._set(changes)
        refused = wanted - {made.target for made in changes}
        self._positions |= {name: position for name, position in positions.items() if name not in refused}
        return changes

    def _pending_change(self, server: str, before: int, after: int, why: str) -> Change:
        """A change that is tried again keeps its first record."""
        pending = self._pending.get((server, after))
        if pending is not None and pending.before == before:
            return pending
        return self._change("weight", server, before, after, why, BY, applied=self.acting)

    def _set(self, changes: list[Change]) -> list[Change]:
        """Baseline to disk, changes to the journal, weights to HAProxy and read back. Returns what was changed.

        What cannot be recorded first is not lowered; the way back to the baseline stays open.
        """
        if not changes:
            self._pending = {}
            return []
        try:
            if self.acting and not self._store.is_current():
                self._store.save(self._baselines or {})
            self._journal.record(*changes)
        except (BaselineError, JournalError) as error:
            lowered = [made.target for made in changes if lowers(made)]
            self._remarks.append(f"not lowered: {', '.join(lowered) or 'nothing'} ({error})")
            changes = [made for made in changes if made.target not in lowered]
        if self.acting and changes:
            tried = set(self._pending)
            self._pending = {(made.target, weight_after(made)): made for made in changes}
            self._unsure = {made.target: weight_after(made) for made in changes}
            try:
                self._balancer.set_weights(self._unsure)
            except BalancerError as error:
                fresh = [made for made in changes if (made.target, weight_after(made)) not in tried]
                why = f"not set, tried again in the next cycle: {error}"
                self._try_record(
                    *(self._change("weight", c.target, c.before, c.after, why, BY, applied=False) for c in fresh)
                )
                raise
        self._unsure, self._pending = {}, {}
        self.outbox += changes
        return changes

    def _put_back(self, snapshot: Snapshot, by: str, why: str) -> list[Change]:
        """Sets the baseline of every server that nobody else holds, at once; the stored one has done its work then."""
        baselines = self._baselines or {}
        back = {
            server.name: baselines[server.name].weight
            for server in snapshot.servers
            if server.name not in self._yielded and server.weight != baselines[server.name].weight > 0
        }
        weights = {server.name: server.weight for server in snapshot.servers}
        changes = [
            self._change("weight", name, weights[name], weight, why, by, applied=True) for name, weight in back.items()
        ]
        if changes:
            self._try_record(*changes)
            self._unsure = dict(back)
            self._balancer.set_weights(back)
            self._unsure = {}
        self._positions |= {name: Position(weight) for name, weight in back.items()}
        self._yielded = frozenset()
        self._put_back_due = False
        try:
            self._store.remove()
        except BaselineError as error:
            self._remarks.append(str(error))
        return changes

    def _note(self, what: str, by: str, why: str) -> None:
        self._try_record(self._change(what, self.pool.name, None, None, why, by, applied=True))

    def _try_record(self, *changes: Change) -> None:
        """Records what must happen or has happened whether or not it can be recorded, and publishes it."""
        try:
            self._journal.record(*changes)
        except JournalError as error:
            log.error("%s: %s", self.pool.name, error)
        self.outbox += changes

    def _change(
        self, what: str, target: str, before: Value, after: Value, why: str, by: str, *, applied: bool
    ) -> Change:
        now = self._wall()
        return change(self.pool.name, what, target, before, after, why=why, by=by, applied=applied, time_unix_s=now)

    # --- telling

    def _hands_off(self) -> str:
        if self.paused is None:
            return f"mode is {self.pool.mode}"
        return f"paused by {self.paused.by}{f' ({self.paused.why})' if self.paused.why else ''}"

    def _tell(self, snapshot: Snapshot, changes: list[Change], decisions: Decisions) -> str:
        servers = {server.name: server for server in snapshot.servers}
        left_alone = {
            name: "it has no baseline weight" if server.available else server.status
            for name, server in servers.items()
            if name not in decisions.servers and name not in self._yielded and not server.backup and self.paused is None
        }
        return tell.sentence(
            self.pool.name,
            not self.acting,
            changes,
            decisions,
            {name: baseline.weight for name, baseline in (self._baselines or {}).items()},
            {name: servers[name].weight for name in sorted(self._yielded)},
            left_alone,
            self._remarks,
        )

    def _servers(self, snapshot: Snapshot, decisions: Decisions, verdicts: Mapping[str, Verdict]) -> list[ServerState]:
        """The servers after this turn."""
        measured = {node: verdict.rt_mean_ms for node, verdict in verdicts.items()}
        return tell.servers(
            snapshot,
            decisions,
            {name: baseline.weight for name, baseline in (self._baselines or {}).items()},
            {name: position.weight for name, position in self._positions.items()} if self.acting else {},
            self._meter.rates(),
            {server.name: measured.get(self._node(server.name)) for server in snapshot.servers},
        )
