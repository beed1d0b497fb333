"""The engine of one pool: read the balancer, decide, record, write, read back. One call of `cycle` is one turn.

It never fires and forgets: each turn starts from what the balancer shows, so reloads and other people's changes are
seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lbengine import tell
from lbengine.backends.table import balancer_of
from lbengine.balancer import Balancer, BalancerUnreachable, Snapshot
from lbengine.baseline import Baseline, BaselineError, BaselineStore, away, merge
from lbengine.decision import limits
from lbengine.decision.decide import Decisions, View, decide
from lbengine.decision.ramp import Position
from lbengine.decision.reconcile import Ours, follow, reconcile
from lbengine.inbox import Inbox
from lbengine.outcome.outcomes import Account
from lbengine.outcome.rates import Rates
from lbengine.overrides.commands import Asked
from lbengine.overrides.overrides import ByHand
from lbengine.overrides.pause import Pause, PauseStore
from lbengine.overrides.temporary import Wishes
from lbengine.writer import BY, Recorder, Writer
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import VERSION, Change, Cycle, ServerState, Verdict, Weight

SOMEONE_ELSE = "someone else"


class Engine(Asked):
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
        self.state_dir = state_dir
        self._who = pool.balancer_name
        self.settings = settings
        self.inbox = Inbox()
        self._by_hand = ByHand(state_dir, pool.name, pool.mode)
        self.acting = self._by_hand.mode == "act"
        self._wall = wall
        self._store = BaselineStore(state_dir, pool)
        balancer = balancer or balancer_of(pool, settings.socket_timeout_s)
        self._writer = Writer(pool.name, self.acting, balancer, self._store, journal, wall)
        self.outbox = self._writer.outbox
        self._pauses = PauseStore(state_dir, pool.name)
        self.paused = self._pauses.load()
        self._baselines = self._store.load()
        self.standby = ""
        """Who drives the balancer, when that is not us."""
        self._grace_until_s = 0.0
        self._put_back_due = self._baselines is not None and (self.paused is not None or not self.acting)
        """Weights of an earlier run may be set although we are to keep our hands off: first put them back."""
        self._positions: dict[str, Position] = {}
        self._yielded: frozenset[str] = frozenset()
        self._take_limits_over = self._baselines is not None
        self._not_our_limits: set[str] = set()
        """Servers whose `maxconn` someone else has changed while we limited it."""
        self._account = Account(self._writer, self._node)
        self._rates = Rates()
        self._wishes = Wishes()
        self._last: Snapshot | None = None
        self._started_s: float | None = None
        self._panicked_s: float | None = None
        self._remarks: list[str] = []

    # --- standing by

    def stored_baseline(self) -> dict[str, Baseline] | None:
        """What an earlier run left on disk, if it did. Raises BaselineError."""
        return self._store.load()

    def mirror_baseline(self, mirror: Callable[[Mapping[str, Baseline] | None], None]) -> None:
        """Has `mirror` called with what is on disk now (None: nothing), before the change that it is for."""
        self._store.mirror = mirror

    def stand_by(self, told: str, forget: bool) -> None:
        """Somebody else drives the balancer: look only. `forget`: what we stored is of the past."""
        self.standby = told
        if forget:
            self._store.path.unlink(missing_ok=True)
        self._put_back_due = False
        self._writer.limits = {}

    def take_over(self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, now_s: float) -> None:
        """The balancer is ours from now on. `baseline` and `paused` are what the one before left, if it did.

        Weights stay as they are. For a while, weights that move are the way back of the one before, if it still lives
        and was cut off: they are set again rather than left to it. Raises BaselineError, PauseError.
        """
        was_standby, self.standby = bool(self.standby), ""
        stored = self._store.load()
        inherits = stored is None and baseline is not None
        if stored is None and baseline is not None:
            self._store.save(baseline)
            stored = dict(baseline)
        if paused is not None and self._pauses.load() is None:
            self._pauses.save(paused)
        self.paused = self._pauses.load()
        if was_standby or inherits:
            self._baselines, self._positions, self._yielded = stored, {}, frozenset()
            self._take_limits_over = stored is not None
            self._put_back_due = stored is not None and (self.paused is not None or not self.acting)
        if was_standby:
            self._started_s = now_s
            self._grace_until_s = now_s + self.settings.lease_s + self.settings.ramp_s

    # --- the turn

    def cycle(self, now_s: float) -> str:
        """One turn; returns what it did in a sentence. Raises BalancerError when the balancer is away or refuses."""
        self._remarks = []
        if self.standby:
            return f"{self.pool.name}: standing by, {self.standby}"
        verdicts = self._verdicts(now_s)
        snapshot = self._look(now_s, verdicts)
        self._account.see(now_s, verdicts, self._rates.rps)
        if self._put_back_due:
            back = self._put_back(snapshot, BY if self.paused is None else self.paused.by, self._hands_off())
            self._remarks += [f"{made.target} {made.before} -> {made.after} put back" for made in back]
        if self._is_idle:
            decisions = Decisions({})
            changes: list[Change] = []
            self._remarks.append(self._hands_off())
        else:
            decisions = decide(self._view(snapshot, verdicts, now_s), self.pool, self.settings)
            if decisions.panic:
                self._panicked_s = now_s
            changes = self._apply(snapshot, decisions)
            self._remarks += self._by_hand.remarks()
            self._remarks += self._account.over_share(snapshot, self._baselines or {})
        self._account.follow_up(changes)
        self._say()
        sentence = self._tell(snapshot, changes, decisions)
        self.outbox.append(
            Cycle(
                v=VERSION,
                pool=self.pool.name,
                time_unix_s=self._wall(),
                mode=self._by_hand.mode,
                paused=self.paused is not None,
                balance=snapshot.balance,
                law=self.pool.law,
                sentence=sentence,
                servers=self._servers(snapshot, decisions, verdicts),
                weights_mean=snapshot.weights_mean,
            )
        )
        return sentence

    def settle(self) -> None:
        """Has the Changes of the last turn on the disk; call it when they have been published."""
        self._writer.settle()

    def stop(self, now_s: float, why: str) -> str:
        """Puts the baseline weights back, if any may be changed.

        Raises BalancerError when that is refused or part of the balancer does not answer: the file stays then.
        """
        if self.standby or not self._store.path.exists():
            return f"{self.pool.name}: nothing to put back"
        snapshot = self._look(now_s, self._verdicts(now_s))
        changes = self._put_back(snapshot, BY, why)
        self._say()
        if snapshot.absent:
            raise BalancerUnreachable(snapshot.describe_absent())
        back = ", ".join(f"{made.target} {made.before} -> {made.after}" for made in changes)
        return f"{self.pool.name}: {back or 'every server has its baseline weight'} ({why})"

    # --- looking

    def _verdicts(self, now_s: float) -> dict[str, Verdict]:
        """Fresh Verdicts by node."""
        if self._started_s is None:
            self._started_s = now_s
        return self._by_hand.judged(self.inbox.fresh(now_s, self.settings.lease_s))

    def _node(self, server: str) -> str:
        return self.pool.servers.get(server, server)

    def _by_server(self, snapshot: Snapshot, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        nodes = {server.name: self._node(server.name) for server in snapshot.servers}
        return {name: verdicts[node] for name, node in nodes.items() if node in verdicts}

    def _look(self, now_s: float, verdicts: Mapping[str, Verdict]) -> Snapshot:
        """Reads the balancer and brings baselines, positions and who holds what up to date with it."""
        snapshot = self._writer.balancer.read()
        fresh_process = snapshot.restarted_since(self._last)
        if snapshot.returned:
            self._remarks.append("one that was left out answers again")
        elif fresh_process and self._last is not None and len(snapshot.absent) <= len(self._last.absent):
            pids = f" (pid {self._last.pid} -> {snapshot.pid})" if snapshot.pid != self._last.pid else ""
            self._remarks.append(f"{self._who} was reloaded or started anew{pids}")
        if fresh_process:
            self._rates.reset()
        self._remarks += [f"left out: {why}" for why in snapshot.absent]
        self._remarks += snapshot.trouble
        self._remarks += [f"{s.name} is in the balancer's slow start" for s in snapshot.servers if s.slow_start]
        self._last = snapshot
        by_server = self._by_server(snapshot, verdicts)
        self._rates.see(now_s, snapshot, {name: v.rps for name, v in by_server.items() if v.rps is not None})
        hands_off = (not self.acting or self.paused is not None) and not self._put_back_due
        known_limits = None
        if not hands_off:
            self._take_limits_over = self._take_limits_over or snapshot.returned
            known_limits = self._reconcile_limits(snapshot, fresh_process)
        baselines, news = merge(None if hands_off else self._baselines, snapshot, known_limits)
        ours = Ours(self._baselines or {}, self._positions, self._yielded, self._writer.unsure)
        if hands_off:
            seen = follow(ours, snapshot, baselines, imagined=not self.acting)
        else:
            slow = {name for name, verdict in by_server.items() if verdict.state == "interference"}
            seen = reconcile(ours, snapshot, baselines, slow, fresh_process or now_s < self._grace_until_s)
        self._baselines, self._positions, self._yielded = baselines, seen.positions, seen.yielded
        self._writer.unsure, self._writer.unsure_limits = {}, set()
        self._keep(baselines, news)
        self._tell_foreign(seen.foreign)
        return snapshot

    def _reconcile_limits(self, snapshot: Snapshot, fresh_process: bool) -> dict[str, int]:
        """Brings the limits that are ours up to date with what the balancer shows."""
        writer = self._writer
        if self._take_limits_over:  # an earlier run may have set whatever is not the stored baseline
            _, away_from = away(snapshot, self._baselines or {})
            writer.limits = {name: shown for name, (shown, _) in away_from.items()}
            self._take_limits_over = False
        writer.limits, changed = limits.still_ours(writer.limits, snapshot.servers, writer.unsure_limits, fresh_process)
        for name, most in changed.items():
            self._not_our_limits.add(name)
            self._remarks.append(f"{name}'s maxconn is {most} by someone else")
        return writer.limits

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
            self._writer.try_record(
                self._writer.change("weight", server, before, after, why, SOMEONE_ELSE, "someone_else", applied=True)
            )

    def _view(self, snapshot: Snapshot, verdicts: Mapping[str, Verdict], now_s: float) -> View:
        started_s = now_s if self._started_s is None else self._started_s
        return View(
            snapshot=snapshot,
            baselines=self._baselines or {},
            positions=dict(self._positions),
            yielded=self._yielded,
            verdicts=self._by_server(snapshot, verdicts),
            waiting=now_s - started_s < self.settings.lease_s,
            rates=self._rates.rps,
            total_rps=self._rates.total_rps,
            now_s=now_s,
            limits=dict(self._writer.limits),
            drains=self._wishes.drains(now_s),
            caps=self._wishes.limits(now_s),
            holds=self._wishes.holds(now_s),
            pins=self._by_hand.pins(now_s, self._wall()),
            panicked_s=self._panicked_s,
        )

    # --- writing

    def _apply(self, snapshot: Snapshot, decisions: Decisions) -> list[Change]:
        """Records and sets what was decided; in observe mode only records what would have been set."""
        weights = {server.name: server.weight for server in snapshot.servers}
        shown = weights if self.acting else {name: position.weight for name, position in self._positions.items()}
        positions = {name: decision.position for name, decision in decisions.servers.items()}
        changes = [
            self._writer.pending("weight", name, shown[name], decision.position.weight, decision.why, decision.cause)
            for name, decision in decisions.servers.items()
            if decision.position.weight != shown[name]
        ]
        wanted = {made.target for made in changes}
        # Until it is set and confirmed, a server stands where the balancer showed it.
        self._positions |= {name: Position(shown[name]) for name in wanted}
        changes = self._account.forecast(changes, snapshot, positions) + self._limit_changes(decisions)
        changes = self._writer.make(changes, self._baselines or {}, self._remarks)
        refused = wanted - {made.target for made in changes if made.what == "weight"}
        self._positions |= {name: position for name, position in positions.items() if name not in refused}
        return changes

    def _limit_changes(self, decisions: Decisions) -> list[Change]:
        """The `maxconn`s that should be others than they are."""
        changes = []
        for name, baseline in (self._baselines or {}).items():
            decision = decisions.servers.get(name)
            if baseline.maxconn is None or (decision is not None and decision.cause == "waiting"):
                continue
            wanted = None if decision is None or name in self._not_our_limits else decision.maxconn
            now, then = self._writer.limits.get(name, baseline.maxconn), wanted or baseline.maxconn
            if now != then:
                why = decision.why if decision is not None else "it takes no requests"
                cause = decision.cause if decision is not None else None
                changes.append(self._writer.pending("maxconn", name, now, then, why, cause))
        self._not_our_limits &= {n for n, d in decisions.servers.items() if d.maxconn is not None}
        return changes

    def _put_back(self, snapshot: Snapshot, by: str, why: str) -> list[Change]:
        """Sets the baseline of every server that nobody else holds, at once.

        The stored one has done its work then, unless part of the balancer does not answer: that is still due.
        """
        weights, limits = away(snapshot, self._baselines or {})
        weights = {name: pair for name, pair in weights.items() if name not in self._yielded}
        limits = {name: pair for name, pair in limits.items() if name in self._writer.limits}
        changes = self._writer.put_back(weights, limits, by, why)
        self._positions |= {name: Position(after) for name, (_, after) in weights.items()}
        self._put_back_due = bool(snapshot.absent)
        if snapshot.absent:
            return changes
        self._yielded = frozenset()
        try:
            self._store.remove()
        except BaselineError as error:
            self._remarks.append(str(error))
        return changes

    # --- telling

    def _say(self) -> None:
        """Tells the nodes what to answer, where the balancer fetches its weights from them."""
        balancer = self._writer.balancer
        if self.acting:
            for server, percent in balancer.percents_for_nodes().items():
                self.outbox.append(
                    Weight(
                        v=VERSION,
                        node=self._node(server),
                        pool=self.pool.name,
                        time_unix_s=self._wall(),
                        percent=percent,
                        lease_s=self.settings.lease_s,
                    )
                )

    @property
    def _is_idle(self) -> bool:
        """True when nothing is decided: in a pause, and until what an earlier run left behind is put back."""
        return self.paused is not None or self._put_back_due

    def _hands_off(self) -> str:
        if self.paused is None:
            return f"mode is {self._by_hand.mode}"
        return f"paused by {self.paused.by}{f' ({self.paused.why})' if self.paused.why else ''}"

    def _tell(self, snapshot: Snapshot, changes: list[Change], decisions: Decisions) -> str:
        servers = {server.name: server for server in snapshot.servers}
        left_alone = {
            name: "it has no baseline weight" if server.available else server.status
            for name, server in servers.items()
            if name not in decisions.servers and name not in self._yielded and not server.backup and not self._is_idle
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
            self._rates.rps,
            {server.name: measured.get(self._node(server.name)) for server in snapshot.servers},
            self._rates.errors,
        )
