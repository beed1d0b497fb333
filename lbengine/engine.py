"""The engine of one pool: read the balancer, decide, record, write, read back. One call of `cycle` is one turn.

Each turn starts from the weights that the balancer shows, so reloads and other people's changes are seen. The pure
function `slackwater.lbengine.decision.step.step` decides; the engine carries its actions out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.control import Request
from slackwater.core.machine import controller_id
from slackwater.core.messages import VERSION, Ask, Change, Cycle, ServerState, Verdict, Weight, shortened
from slackwater.lbengine import describe
from slackwater.lbengine.backends.table import balancer_of
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Snapshot
from slackwater.lbengine.baseline import Baseline, BaselineError, BaselineStore, to_store
from slackwater.lbengine.decision.evenness import CalmWeights
from slackwater.lbengine.decision.position import is_gone
from slackwater.lbengine.decision.state import Phase, PoolState, PoolView
from slackwater.lbengine.decision.step import Actions, step, without
from slackwater.lbengine.outcome.outcomes import ChangeOutcomes
from slackwater.lbengine.overrides.commands import OperatorCommands
from slackwater.lbengine.overrides.overrides import Pause
from slackwater.lbengine.verdicts import LatestVerdicts
from slackwater.lbengine.writer import BY, Recorder, Writer

SOMEONE_ELSE = "someone else"


class Engine:
    """Turns the Verdicts in `inbox` into weights of one pool. Not for several threads at once, except `inbox`.

    `now_s` in its methods is a monotonic clock; `wall` gives the times of records. Messages to publish gather in
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
        """Who drives the balancer instead of us, in words; empty where we do."""
        self.may_lower: Callable[[], bool] = lambda: True
        """Whether the balancer is surely ours at this moment. If not, weights may only be raised."""
        self.at_rest = False
        """True when the last turn left nothing to look after (`_is_at_rest`)."""
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
        """True in act mode: weights are set, unless the pool is paused or another lbengine drives it."""
        return self.commands.overrides.mode == "act"

    @property
    def paused(self) -> Pause | None:
        return self.commands.overrides.paused

    def node_of(self, server: str) -> str:
        """The name of the node that runs a server of the balancer."""
        return self.pool.servers.get(server, server)

    # --- phases

    def _wanted_phase(self) -> Phase:
        """The phase by the operators' commands and the configuration."""
        if self.paused is not None:
            return "paused"
        return "acting" if self.acting else "observing"

    def _enter_phase(self) -> None:
        """Enters the wanted phase, or first `restoring` where weights of ours may be left."""
        phase = self._wanted_phase()
        if phase != "acting" and self.store.path.exists():
            phase = "restoring"
        self._writer.acting = self.acting
        self.state = replace(self.state, phase=phase)

    def stand_by(self, who: str, forget: bool) -> None:
        """Enters the phase `standby`, since `who` drives the balancer. `forget`: our stored baseline is out of date."""
        self.standby = who
        if forget:
            self.store.forget()
        self.state = replace(self.state, phase="standby", limits={}, calm_weights=CalmWeights())

    def look_on(self) -> None:
        """Leaves `standby` although another lbengine drives the balancer: the pool is only observed, which needs no
        lease."""
        self.standby = ""
        self.state = replace(self.state, phase=self._wanted_phase())

    def take_over(
        self, baseline: Mapping[str, Baseline] | None, paused: Pause | None, now_s: float, after_another: bool
    ) -> Mapping[str, Baseline] | None:
        """Drives the balancer from now on, with the weights as they are.

        `baseline` and `paused`: left by the lbengine before, if any. `after_another`: that lbengine may still live, cut
        off, and restore weights; for a while weights that change are therefore set again, and not taken for somebody's
        wish. Returns the baseline that is stored now: our own, or where we have none the one that was left. Raises
        BaselineError, StateFileError: it drives nothing then, and the call can be repeated.
        """
        stored = self.store.load()
        self.commands.overrides.adopt_pause(paused)
        inherits = stored is None and baseline is not None
        if stored is None and baseline is not None:
            self.store.save(baseline)
            stored = dict(baseline)
        self.standby = ""
        if after_another or inherits:
            self.state = replace(
                self.state,
                baselines=stored,
                positions={},
                externally_controlled=frozenset(),
                calm_weights=CalmWeights(),
                adopt_limits=stored is not None,
            )
        if after_another:
            grace_until_s = now_s + self.settings.lease_s + self.settings.socket_timeout_s
            self.state = replace(self.state, started_s=now_s, grace_until_s=grace_until_s)
        self._enter_phase()
        return stored

    # --- the turn

    def cycle(self, now_s: float) -> str:
        """Takes one turn; returns a sentence that says what it did.

        Raises BalancerError when the balancer is away or refuses; the turn's Cycle says so too.
        """
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
        self._send_weights_to_nodes()
        observing = not self.acting
        positions = {} if observing else {name: position.weight for name, position in self.state.positions.items()}
        shown, verdicts = (view.snapshot, actions.decisions), actions.findings.verdicts
        sentence = describe.cycle(self.pool.name, self.state, *shown, changes, remarks, verdicts, observing=observing)
        servers = describe.servers(*shown, self.state, positions, verdicts)
        gone = {name for name, position in self.state.positions.items() if is_gone(position, now_s)}
        self.at_rest = _is_at_rest(view, [server for server in servers if server.server not in gone])
        self._last_known, self._outage_since_unix_s = servers, None
        cycle = self._cycle(view.snapshot, sentence)
        cycle.servers, cycle.evenness = servers, describe.evenness(self.state.calm_weights.advice)
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
            unseen=0 if snapshot is None else len(snapshot.absent) + len(snapshot.unreadable),
        )

    def _cycle_of_outage(self, error: BalancerError) -> Cycle:
        """The Cycle of a turn that failed. It tells readers that we run and that the balancer does not answer."""
        cycle = self._cycle(self.state.last, str(error))
        if self._outage_since_unix_s is None:
            self._outage_since_unix_s = cycle.time_unix_s
        cycle.outage = "no_answer" if isinstance(error, BalancerUnreachable) else "refused"
        cycle.outage_since_unix_s = self._outage_since_unix_s
        cycle.last_known = self._last_known
        return cycle

    def settle(self) -> None:
        """Forces the Changes of the last turn to the disk. Call it when they have been published."""
        self._writer.settle()

    def stop(self, now_s: float, why: str) -> str:
        """Puts the baseline weights back, if any weight may be changed; returns a sentence.

        Raises BalancerError when that is refused or a part of the balancer does not answer. The stored baseline stays
        then.
        """
        if self.state.phase == "standby" or not self.store.path.exists():
            return f"{self.pool.name}: nothing to put back"
        view, phase = replace(self._look(now_s), then="paused"), self.state.phase
        after, actions = step(replace(self.state, phase="restoring"), view, self.pool, self.settings)
        self.state = actions.otherwise
        changes = self._restore(actions, BY, why, [])
        self.state = replace(after, phase=phase)
        self._send_weights_to_nodes()
        if not actions.is_restored:
            raise BalancerUnreachable(view.snapshot.describe_not_reached(self.state.baselines or {}))
        back = ", ".join(f"{made.target} {made.before} -> {made.after}" for made in changes)
        return f"{self.pool.name}: {back or 'every server has its baseline weight'} ({why})"

    def _look(self, now_s: float) -> PoolView:
        """Reads all that this turn sees. Raises BalancerError."""
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
        """Carries the turn's actions out; returns the changes that were made, and remarks. Raises BalancerError."""
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
            why = self._of_someone_else(server, theirs)
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
        self.state = without(after, [value for value in actions.wanted if (value.what, value.server) not in done])
        remarks += self.commands.overrides.describe()
        remarks += self._outcomes.over_share(view.snapshot, after.baselines or {})
        return changes, remarks

    def _restore(self, actions: Actions, by: str, why: str, remarks: list[str]) -> list[Change]:
        """Puts baselines back, and removes the stored baseline if nothing of ours is left. Raises BalancerError."""
        changes = self._writer.put_back(actions.restore_weights, actions.restore_limits, by, why)
        if actions.is_restored:
            try:
                self.store.remove()
            except BaselineError as error:
                remarks.append(str(error))
        return changes

    def _send_weights_to_nodes(self) -> None:
        """Sends each node its weight, where the balancer fetches the weights from the nodes."""
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
        """Carries out an operator's command and takes a turn at once; returns a sentence that says what was done.

        When the balancer cannot be reached now, the weights are set as soon as it answers. Raises CommandError for a
        command that cannot be carried out, StateFileError where its effect cannot be kept.
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
        if self.acting and not was_acting:  # the positions of observe mode were never set
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
        """The servers without a configured weight and their baselines, in words; empty where there are none.

        One that is configured with weight 0 and has no other now is left alone, which is said elsewhere.
        """
        baselines = self.state.baselines or {}
        none = not any(baseline.configured for baseline in baselines.values())
        given = [f"{name} {b.weight}" for name, b in baselines.items() if not b.configured and (none or b.weight)]
        if not given:
            return ""
        why = f"{self.pool.title} has no configured weights, so those of now are the baselines"
        why = why if none else "configured with weight 0, and given another, which is the baseline now"
        return shortened(f"; {why}: {', '.join(given)}")

    def _of_someone_else(self, server: str, weight: int) -> str:
        """What becomes of a weight that someone else has set, in words."""
        baseline = (self.state.baselines or {})[server].weight
        if weight != baseline:
            return f"someone else set its weight; left alone until it is back at its baseline, {baseline}"
        if server in self.state.externally_controlled:
            return "someone else gave it its full weight back; left alone until nothing calls for less"
        return "someone else gave it this weight, which is its baseline now"

    def override_temporarily(self, question: Mapping[str, Any], now_s: float) -> str:
        """Sets a temporary override for the second stage; the next turns follow it. Raises ValueError."""
        last: Snapshot | None = self.state.last
        servers = [] if last is None else [server.name for server in last.servers]
        named = [server for server in servers if self.node_of(server) == question.get("node")]
        return f"{self.pool.name}: {self.commands.override_temporarily(question, named, now_s)}"


def _is_at_rest(view: PoolView, servers: Sequence[ServerState]) -> bool:
    """Whether every server has its full weight and is to keep it, and every node is calm and sees its own requests.

    A node that does not see them is known to the detector only by the balancer's figures in each Cycle, so Cycles must
    go on coming often.
    """
    overrides = (view.drains, view.caps, view.holds, view.pins)
    return (
        bool(view.verdicts)
        and not any(overrides)
        and all(server.weight == server.full_weight == server.wanted for server in servers)
        and all(verdict.state == "calm" and verdict.rps is not None for verdict in view.verdicts.values())
    )
