"""The engine of one pool: read the balancer, decide, record, write, read back. One call of `cycle` is one turn.

It never fires and forgets: each turn starts from what the balancer shows, so reloads and other people's changes are
seen. What a turn comes to is decided by the pure `lbengine.decision.step`; here it is carried out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbengine import describe
from lbengine.backends.table import balancer_of
from lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Snapshot
from lbengine.baseline import Baseline, BaselineError, BaselineStore, to_store
from lbengine.decision.state import Phase, PoolState, PoolView
from lbengine.decision.step import Actions, step, without
from lbengine.outcome.outcomes import ChangeOutcomes
from lbengine.overrides.commands import OperatorCommands
from lbengine.overrides.overrides import Pause
from lbengine.verdicts import LatestVerdicts
from lbengine.writer import BY, Recorder, Writer
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.control import Request
from slackwater.machine import controller_id
from slackwater.messages import VERSION, Ask, Change, Cycle, ServerState, Verdict, Weight, shortened

SOMEONE_ELSE = "someone else"


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
        self.pool, self.settings, self.state_dir = pool, settings, state_dir
        self._controller = controller_id(state_dir)
        self.inbox = LatestVerdicts(self._controller)
        self.standby = ""
        """Who drives the balancer, when that is not us."""
        self.may_lower: Callable[[], bool] = lambda: True
        """Whether the balancer is surely ours at this moment; if not, weights may only be raised."""
        self.at_rest = False
        """After the last turn there was nothing to look after: see `_is_at_rest`."""
        self._wall = wall
        self.store = BaselineStore(state_dir, pool)
        self._writer = Writer(
            pool.name,
            balancer or balancer_of(pool, settings.socket_timeout_s),
            self.store,
            journal,
            wall,
            lambda: self.may_lower(),
        )
        self.outbox = self._writer.outbox
        self.commands = OperatorCommands(pool, state_dir, self._writer.note, wall)
        self._outcomes = ChangeOutcomes(self._writer)
        stored = self.store.load()
        self.state = PoolState("paused", baselines=stored, adopt_limits=stored is not None)
        self._last_known: list[ServerState] = []
        self._outage_since_unix_s: float | None = None
        self._enter_phase()

    @property
    def acting(self) -> bool:
        """Weights are set, unless the pool is paused or somebody else's."""
        return self.commands.overrides.mode == "act"

    @property
    def paused(self) -> Pause | None:
        return self.commands.overrides.paused

    def node_of(self, server: str) -> str:
        """The node that the balancer's server is."""
        return self.pool.servers.get(server, server)

    # --- phases

    def _wanted_phase(self) -> Phase:
        """The phase that operators and configuration call for."""
        if self.paused is not None:
            return "paused"
        return "acting" if self.acting else "observing"

    def _enter_phase(self) -> None:
        """Goes where operators and configuration call for, after what may be left of ours is put back."""
        phase = self._wanted_phase()
        if phase != "acting" and self.store.path.exists():
            phase = "restoring"
        self._writer.acting = self.acting
        self.state = replace(self.state, phase=phase)

    def stand_by(self, who: str, forget: bool) -> None:
        """Somebody else drives the balancer: look only. `forget`: what we stored is of the past."""
        self.standby = who
        if forget:
            self.store.forget()
        self.state = replace(self.state, phase="standby", limits={})

    def look_on(self) -> None:
        """Somebody else drives the balancer, and this pool is only observed, which needs no lease."""
        self.standby = ""
        self.state = replace(self.state, phase=self._wanted_phase())

    def take_over(
        self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, now_s: float, after_another: bool
    ) -> Mapping[str, Baseline] | None:
        """The balancer is ours from now on. `baseline` and `paused` are what the one before left, if it did. Returns
        the baseline that is stored now: our own, or where we have none that of the one before.

        Weights stay as they are. For a while `after_another` that may have been cut off, weights that move are being
        restored by that one: they are set again rather than left to it. Raises BaselineError, StateFileError.
        """
        self.standby = ""
        stored = self.store.load()
        inherits = stored is None and baseline is not None
        if stored is None and baseline is not None:
            self.store.save(baseline)
            stored = dict(baseline)
        self.commands.overrides.adopt_pause(paused)
        if after_another or inherits:
            self.state = replace(
                self.state,
                baselines=stored,
                positions={},
                externally_controlled=frozenset(),
                adopt_limits=stored is not None,
            )
        if after_another:
            grace_until_s = now_s + self.settings.lease_s + self.settings.socket_timeout_s
            self.state = replace(self.state, started_s=now_s, grace_until_s=grace_until_s)
        self._enter_phase()
        return stored

    # --- the turn

    def cycle(self, now_s: float) -> str:
        """One turn; returns what it did in a sentence. Raises BalancerError when the balancer is away or refuses, which
        its Cycle says too."""
        try:
            return self._turn(now_s)
        except BalancerError as error:
            self.outbox.append(self._cycle_of_outage(error))
            raise

    def _turn(self, now_s: float) -> str:
        self.at_rest = False
        if self.state.phase == "standby":
            return f"{self.pool.name}: standing by, {self.standby}"
        view = self._look(now_s)
        after, actions = step(self.state, view, self.pool, self.settings)
        changes, remarks = self._carry_out(view, after, actions)
        self._outcomes.follow_up(changes)
        self._message_nodes()
        baselines = {name: baseline.weight for name, baseline in (self.state.baselines or {}).items()}
        observing = not self.acting
        positions = {} if observing else {name: one.weight for name, one in self.state.positions.items()}
        sentence = describe.cycle(
            self.pool.name, self.state, view.snapshot, actions.decisions, changes, remarks, observing=observing
        )
        servers = describe.servers(
            view.snapshot, actions.decisions, baselines, positions, self.state.rates, actions.findings.verdicts
        )
        self.at_rest = _is_at_rest(view, servers)
        self._last_known, self._outage_since_unix_s = servers, None
        cycle = self._cycle(view.snapshot, sentence)
        cycle.servers = servers
        self.outbox.append(cycle)
        return sentence

    def _cycle(self, snapshot: Snapshot | None, sentence: str) -> Cycle:
        return Cycle(
            v=VERSION,
            pool=self.pool.name,
            time_unix_s=self._wall(),
            mode=self.commands.overrides.mode,
            paused=self.paused is not None,
            balance="" if snapshot is None else snapshot.balance,
            law=self.pool.law,
            sentence=shortened(sentence),
            servers=[],
            weights_mean=None if snapshot is None else snapshot.weights_mean,
            controller=self._controller,
        )

    def _cycle_of_outage(self, error: BalancerError) -> Cycle:
        """So that readers know that we are there, and that the balancer is not."""
        cycle = self._cycle(self.state.last, str(error))
        if self._outage_since_unix_s is None:
            self._outage_since_unix_s = cycle.time_unix_s
        cycle.outage = "no_answer" if isinstance(error, BalancerUnreachable) else "refused"
        cycle.outage_since_unix_s = self._outage_since_unix_s
        cycle.last_known = self._last_known
        return cycle

    def settle(self) -> None:
        """Has the Changes of the last turn on the disk; call it when they have been published."""
        self._writer.settle()

    def stop(self, now_s: float, why: str) -> str:
        """Puts the baseline weights back, if any may be changed.

        Raises BalancerError when that is refused or part of the balancer does not answer: the file stays then.
        """
        if self.state.phase == "standby" or not self.store.path.exists():
            return f"{self.pool.name}: nothing to put back"
        view, phase = replace(self._look(now_s), then="paused"), self.state.phase
        after, actions = step(replace(self.state, phase="restoring"), view, self.pool, self.settings)
        self.state = actions.otherwise
        changes = self._restore(actions, BY, why, [])
        self.state = replace(after, phase=phase)
        self._message_nodes()
        if not actions.is_restored:
            raise BalancerUnreachable(view.snapshot.describe_not_reached(self.state.baselines or {}))
        back = ", ".join(f"{made.target} {made.before} -> {made.after}" for made in changes)
        return f"{self.pool.name}: {back or 'every server has its baseline weight'} ({why})"

    def _look(self, now_s: float) -> PoolView:
        """What this turn sees. Raises BalancerError."""
        if self.state.started_s is None:
            self.state = replace(self.state, started_s=now_s)
        overrides, temporary = self.commands.overrides, self.commands.temporary
        verdicts = self._verdicts(now_s)
        return PoolView(
            now_s=now_s,
            snapshot=self._writer.balancer.read(),
            verdicts=verdicts,
            unconfirmed=self._writer.unconfirmed,
            unconfirmed_limits=self._writer.unconfirmed_limits,
            then=self._wanted_phase(),
            drains=temporary.in_force("drain", now_s),
            caps=temporary.in_force("limit", now_s),
            holds=temporary.in_force("hold", now_s),
            pins=overrides.pins(now_s, self._wall()),
        )

    def _verdicts(self, now_s: float) -> dict[str, Verdict]:
        """Fresh Verdicts by node."""
        return self.commands.overrides.apply(self.inbox.fresh(now_s, self.settings.lease_s))

    def _carry_out(self, view: PoolView, after: PoolState, actions: Actions) -> tuple[list[Change], list[str]]:
        """Does what the turn calls for: the changes that were made, and remarks. Raises BalancerError."""
        remarks = list(actions.findings.remarks)
        self.state = actions.otherwise
        self._writer.forget_unconfirmed()
        stored = to_store(self.state.baselines or {}, view.snapshot, self.state.externally_controlled)
        if stored != self.store.saved and self.store.path.exists():
            try:
                self.store.save(stored)
            except BaselineError as error:
                remarks.append(str(error))
        for server, (ours, theirs) in actions.findings.external.items():
            baseline = (self.state.baselines or {})[server].weight
            why = f"someone else set its weight; left alone until it is back at its baseline, {baseline}"
            self._writer.try_record(
                self._writer.change("weight", server, ours, theirs, why, SOMEONE_ELSE, "someone_else")
            )
        self._outcomes.see(view.now_s, actions.findings.verdicts, self.state.rates.rps)
        if self.state.phase == "restoring":
            by = BY if self.paused is None else self.paused.by
            back = self._restore(actions, by, self.commands.describe(), remarks)
            remarks += [f"{made.target} {made.before} -> {made.after} put back" for made in back]
        if after.phase not in ("observing", "acting"):
            self.state = after
            return [], [*remarks, self.commands.describe()]
        positions = {name: decision.position for name, decision in actions.decisions.servers.items()}
        changes = [self._writer.pending(value) for value in actions.wanted]
        changes = self._outcomes.forecast(changes, view.snapshot, positions)
        changes = self._writer.make(changes, stored, remarks)
        done = {(made.what, made.target) for made in changes}
        self.state = without(after, [one for one in actions.wanted if (one.what, one.server) not in done])
        remarks += self.commands.overrides.describe()
        remarks += self._outcomes.over_share(view.snapshot, after.baselines or {})
        return changes, remarks

    def _restore(self, actions: Actions, by: str, why: str, remarks: list[str]) -> list[Change]:
        """Puts baselines back, and removes the stored one if nothing of ours is left. Raises BalancerError."""
        changes = self._writer.put_back(actions.restore_weights, actions.restore_limits, by, why)
        if actions.is_restored:
            try:
                self.store.remove()
            except BaselineError as error:
                remarks.append(str(error))
        return changes

    def _message_nodes(self) -> None:
        """Sends the nodes what to answer, where the balancer fetches its weights from them."""
        if not self.acting:
            return
        for server, percent in self._writer.balancer.percents_for_nodes().items():
            self.outbox.append(
                Weight(
                    v=VERSION,
                    node=self.node_of(server),
                    pool=self.pool.name,
                    time_unix_s=self._wall(),
                    percent=percent,
                    lease_s=self.settings.lease_s,
                )
            )

    # --- commands

    def command(self, request: Request, now_s: float) -> str:
        """Carries out an operator's command and takes a turn at once; returns what was done in a sentence.

        Raises CommandError for what cannot be done, StateFileError for what cannot be kept. When the balancer cannot be
        reached now, what is due is set as soon as it can.
        """
        baselines = {name: baseline.weight for name, baseline in (self.state.baselines or {}).items()}
        was_acting = self.acting
        done, takes_effect = self.commands.carry_out(
            request, baselines, self.inbox.fresh(now_s, self.settings.lease_s), now_s
        )
        if request.action == "ask_samples" and request.target and request.for_s:
            asked = Ask(VERSION, request.target, self.pool.name, time_unix_s=self._wall(), lease_s=request.for_s)
            self.outbox.append(asked)
        if not takes_effect:
            return f"{self.pool.name}: {done}"
        if self.acting and not was_acting:  # what was imagined in observe mode was never set
            self.state = replace(self.state, positions={}, limits={})
        self._enter_phase()
        try:
            turn = self.cycle(now_s).removeprefix(f"{self.pool.name}: ")
            turn += self._unconfigured() if request.action in ("resume", "mode") and self.acting else ""
            return f"{self.pool.name}: {turn if done in turn else f'{done}; {turn}'}"
        except BalancerError as error:
            who = self.pool.title
            return f"{self.pool.name}: {done}; {who} does not answer yet, its weights are set when it does ({error})"

    def _unconfigured(self) -> str:
        """Whose value is the baseline of servers that have no configured weight, in words."""
        found = [f"{name} {one.weight}" for name, one in (self.state.baselines or {}).items() if not one.configured]
        if not found:
            return ""
        baselines = ", ".join(found)
        why = f"; {self.pool.title} has no configured weight of these, so that of now is their baseline: {baselines}"
        return shortened(why)

    def override_temporarily(self, question: Mapping[str, Any], now_s: float) -> str:
        """Sets a temporary override for the second stage; its effect is seen in the cycles. Raises ValueError."""
        shown: Snapshot | None = self.state.last
        servers = [] if shown is None else [server.name for server in shown.servers]
        named = [server for server in servers if self.node_of(server) == question.get("node")]
        return f"{self.pool.name}: {self.commands.override_temporarily(question, named, now_s)}"


def _is_at_rest(view: PoolView, servers: Sequence[ServerState]) -> bool:
    """Every server has its baseline weight and is to keep it, and every node is calm and sees its own requests (of one
    that does not, the detector knows only what the balancer's figures in each Cycle show)."""
    overrides = (view.drains, view.caps, view.holds, view.pins)
    return (
        bool(view.verdicts)
        and not any(overrides)
        and all(server.weight == server.baseline == server.wanted for server in servers)
        and all(verdict.state == "calm" and verdict.rps is not None for verdict in view.verdicts.values())
    )
