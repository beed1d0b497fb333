"""The decision: which weight each server should have, from what the balancer shows and the detector reports. No I/O.

Five parts follow each other. The guard decides which servers may be reduced, the choice by how much, the position which
move is worth making now, the headroom how much the others cannot carry. The guard has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lbengine.balancer import Server
from lbengine.baseline import Baseline
from lbengine.decision import alike, guard, limits, position, queueing
from lbengine.decision.alike import Held
from lbengine.decision.calm import Calm
from lbengine.decision.choice import calm_capacity, choose, held_in_calm
from lbengine.decision.headroom import Headroom
from lbengine.decision.law_weights import Load, Want, capacities
from lbengine.decision.position import Position
from lbengine.decision.residual import OVER, STEPS
from lbengine.decision.state import PoolState, PoolView
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import DecisionCause, Verdict

WAITING = "waiting for its first Verdict"
UNTIL_CALM = "its weight stays until it is proven calm"
TRIED = "it is tried with requests, since nothing else shows whether the neighbour is still there"
WATCHED_RPS = 1.0
"""Where nothing else shows whether a neighbour is still there, this many requests a second do."""
WATCHED_SHARE = 0.1
"""The weight of a watched server is at most this share of its baseline."""


@dataclass(frozen=True)
class Decision:
    """A server's next position, and why: as a sentence, in short phrases (the most important first) and as a cause."""

    position: Position
    why: str
    short: tuple[str, ...]
    cause: DecisionCause
    maxconn: int | None = None
    """The most requests that the server should get at a time; None: its baseline."""


@dataclass(frozen=True)
class Decisions:
    """The decisions of one turn, by server."""

    servers: dict[str, Decision]
    panic: str = ""
    """Why no Verdict is believed, in words; empty where they are."""
    calm: Calm | None = None
    """The sums over the calm pool after this turn; None where it adds nothing."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """As `PoolState.held`, after this turn."""


def decide(state: PoolState, view: PoolView, pool: PoolSettings, settings: LbengineSettings) -> Decisions:
    """The next step for each server that may be moved: governed, able to take requests, and not controlled by others.

    Servers that are down, in maintenance, drained by an operator, backup or without a baseline are left out. The
    Verdicts of `view` must be by server, not by node.
    """
    return _Turn(state, view, pool, settings).decide()


@dataclass
class _Move:
    """The weight that one server should reach (`target`) and its next step, before the guard's last word."""

    target: int
    position: Position
    why: str
    short: tuple[str, ...]
    cause: DecisionCause
    maxconn: int | None = None


class _Turn:
    """One decision; its parts share the attributes."""

    def __init__(self, state: PoolState, view: PoolView, pool: PoolSettings, settings: LbengineSettings) -> None:
        servers = view.snapshot.servers
        self.held = alike.after(state.held, servers, view.verdicts, state.rates, state.calm)
        view = replace(view, verdicts=alike.weighed(view.verdicts, self.held))
        self.state, self.view, self.pool, self.settings = state, view, pool, settings
        self.baselines: Mapping[str, Baseline] = state.baselines or {}
        self.usable = [server for server in view.snapshot.servers if self._is_usable(server)]
        self.movable = {
            server.name: self.baselines[server.name].weight
            for server in self.usable
            if server.name not in state.externally_controlled
        }
        """Baseline weights of the servers that may be moved."""
        self.pins = {n: min(pin.weight, self.movable[n]) for n, pin in view.pins.items() if n in self.movable}

    def decide(self) -> Decisions:
        view, movable, pins = self.view, self.movable, self.pins
        self.admission = self._admit()
        reduce = (self.admission.reduce & movable.keys()) - pins.keys()
        requested = (view.drains.keys() & movable.keys()) - pins.keys()
        weights = {name: self.state.positions[name].weight for name in movable} | pins
        drained = {name for name, weight in weights.items() if guard.is_drained(weight, movable[name])}
        drains = guard.admit_drains(requested, len(self.usable), self.pool.max_mitigated, drained)
        loads = self._believed([self._load(server, server.name in reduce) for server in self.usable])
        headroom = Headroom(
            staying=[load for load in loads if load.server not in drains],
            leaving=[load for load in loads if load.server in drains],
            total_rps=self.state.rates.total_rps,
            u_threshold=self.pool.u_threshold,
            by_concurrency=view.snapshot.by_concurrency,
        )
        self.choice = choose(
            headroom.staying,
            headroom.rps,
            self.pool.law,
            self.pool.u_threshold,
            view.snapshot,
            max(guard.limit(len(self.usable), self.pool.max_mitigated) - len(drains), 0),
            self.state.calm.speed,
        )
        wanted = self.choice.wanted
        moves = {
            name: self._move(name, baseline, wanted.get(name), name in reduce)
            for name, baseline in movable.items()
            if name not in drains and name not in pins
        }
        weights = {server.name: server.weight for server in self.usable} | pins
        _make_room(moves, reduce, weights, headroom, view.now_s)
        weights |= {name: move.position.weight for name, move in moves.items()}
        for name, weight in headroom.keeps(weights, self.settings.min_change).items():
            weights[name] = weight
            moves[name] = self._drained(name, weight)
        for name, weight in pins.items():
            moves[name] = self._pinned(name, weight, weights, headroom)
        for name in requested - drains - reduce:
            moves[name].short, moves[name].cause = (f"not drained: {self._few[0]}", *self._few[1:]), "not_drained"
            moves[name].why = ", ".join(moves[name].short)
        self._bound(moves, reduce | drains)
        decisions = {}
        for name in movable:  # in their order
            move = moves[name]
            decisions[name] = Decision(move.position, move.why, move.short, move.cause, move.maxconn)
        return Decisions(decisions, self.admission.panic, self._calm(loads), self.held)

    def _calm(self, loads: list[Load]) -> Calm | None:
        """The sums over the calm pool, with this turn's look; None unless all servers are calm and counted."""
        rates = self.state.rates
        uncounted = any(server.uncounted for server in self.usable)
        if uncounted or not rates.looks or rates.rps is None or not rates.total_rps:
            return None
        predicted = held_in_calm(loads, rates.total_rps, self.view.snapshot.weights_mean)
        if predicted is None:
            return None
        held = sum(server.in_flight for server in self.usable)
        return self.state.calm.after(self.view.now_s, held, predicted, rates.total_rps)

    def _is_usable(self, server: Server) -> bool:
        """Whether it takes requests, or would with a weight above 0; a server that someone else holds at 0 does not."""
        if not server.available or server.backup:
            return False
        held_by_others = server.name in self.state.externally_controlled
        return server.weight > 0 if held_by_others else self.baselines[server.name].weight > 0

    def _admit(self) -> guard.Admission:
        verdicts = self.view.verdicts
        usable = {server.name for server in self.usable}
        return guard.admit(
            {name: verdict.state for name, verdict in verdicts.items() if name in usable - self.view.holds.keys()},
            {name for name, baseline in self.movable.items() if self.state.positions[name].weight < baseline},
            {name for name, verdict in verdicts.items() if not verdict.shown},
            (usable - self.movable.keys()) | self.pins.keys(),
            {name: failing.share for name, failing in self.state.rates.failing.items() if name in usable},
        )

    def _load(self, server: Server, reduce: bool) -> Load:
        """A server's load as the laws see it. A weight at which a person or another program holds it counts as its
        baseline; its capacity is scaled likewise."""
        name = server.name
        verdict, position = self.view.verdicts.get(name), self.state.positions[name]
        held_by_others = name in self.state.externally_controlled
        held = server.weight if held_by_others else self.pins.get(name)
        configured = self.baselines[name].weight
        part = held / configured if held is not None and configured > 0 else 1.0
        rps = None if self.state.rates.rps is None else self.state.rates.rps.get(name)
        served = None if self.state.rates.served is None else self.state.rates.served.get(name)
        load = Load(
            server=name,
            baseline=configured if held is None else held,
            reduce=reduce,
            rps=rps,
            served_rps=served or 0.0,
            drained=position.weight == 0,
            weight=server.weight if held_by_others else position.weight,
        )
        if verdict is None:
            return load
        return msgspec.structs.replace(
            load,
            slow=verdict.state in ("interference", "overload"),
            capacity_rps=None if verdict.capacity_rps is None else verdict.capacity_rps * part,
            capacity_stderr_rps=(verdict.capacity_stderr_rps or 0.0) * part,
            severity=verdict.severity,
            cpu_predicted=verdict.cpu_predicted,
            rps=rps if rps is not None else verdict.rps,
            cpu=verdict.cpu,
            probability=_probability(verdict),
        )

    def _believed(self, loads: list[Load]) -> list[Load]:
        """The loads, corrected by the balancer's own counts."""
        rates, known = self.state.rates, capacities(loads)
        if rates.rps is None or known is None:
            return loads
        per_weight, error = calm_capacity(loads, known)
        each_s = queueing.shortest_s({server.name: rates.held_by(server.name) for server in self.usable}, rates.rps)
        return [
            queueing.believed(
                load, rates.held_by(load.server), load.baseline * per_weight, error, each_s, self.state.calm.speed
            )
            for load in loads
        ]

    def _move(self, name: str, baseline: int, want: Want | None, reduce: bool) -> _Move:
        """Within an episode (`reduce`) a move towards the choice's weight, else back to the baseline at once."""
        view = self.view
        before, verdict = self.state.positions[name], view.verdicts.get(name)
        if reduce and verdict is not None:
            return self._capped(self._in_episode(name, baseline, want, verdict), name)
        if (hold := view.holds.get(name)) is not None:
            move = _Move(baseline, Position(baseline), str(hold), (str(hold),), "measured")
        elif verdict is None and self._is_waiting:
            return _Move(before.weight, Position(before.weight), WAITING, (WAITING,), "waiting")
        elif verdict is not None and verdict.state == "unknown" and before.moved_s is not None:
            after = position.tried(before, baseline, view.now_s, blind=True)
            move = _Move(
                baseline, after, f"unknown: {_first_reason(verdict)}", ("unknown", _first_reason(verdict)), "unknown"
            )
        else:
            cause, short = self._why_baseline(verdict)
            shown = short if cause != "panic" else ("panic",)
            # The episode goes on although nothing shows it now, so its trials are kept.
            after = position.moved(before, baseline, view.now_s) if cause == "not_shown" else Position(baseline)
            move = _Move(baseline, after, ", ".join(short), shown, cause)
        return self._capped(move, name)

    def _in_episode(self, name: str, baseline: int, want: Want | None, verdict: Verdict) -> _Move:
        now_s, before = self.view.now_s, self.state.positions[name]
        blind = verdict.calm_shows_within_s is None
        target, why = baseline, f"interference: but {self.choice.why_not}"
        short: tuple[str, ...] = ("interference", f"but {self.choice.why_not}")
        cause: DecisionCause = "no_gain"
        if want is not None:
            target, why = want.weight, f"interference: {_first_reason(verdict)}; {want.why}"
            short = "interference", f"at most {verdict.severity:.0%} of capacity lost", _first_reason(verdict)
        elif before.weight < baseline:
            why, short = f"interference: {_first_reason(verdict)}; {UNTIL_CALM}", ("interference", UNTIL_CALM)
        if target < baseline or before.weight < baseline:
            cause = "interference"
        # A server that looks calm for this long without proof is tried too: its proof would take longer than a trial.
        after = position.tried(before, baseline, now_s, blind=blind or not verdict.shown)
        if after.is_tried(now_s):
            after, cause = position.moved(after, baseline, now_s), "tried"
            why, short = f"interference: {TRIED}", ("interference", TRIED)
        else:
            if blind:
                after = position.watched(after, self._watched(baseline), now_s)
            after = position.settle(after, target, baseline, now_s, self.settings.min_change)
        return _Move(target, after, why, short, cause)

    def _watched(self, baseline: int) -> int:
        """The weight that brings a server `WATCHED_RPS`. Under least connections that is 1: with any weight below the
        others' it gets the requests that come while all others are busy."""
        total_rps = self.state.rates.total_rps
        if self.view.snapshot.by_concurrency or not total_rps:
            return 1
        most = math.floor(WATCHED_SHARE * baseline)
        others = sum(self.movable.values()) - baseline
        return min(math.ceil(others * WATCHED_RPS / max(total_rps - WATCHED_RPS, WATCHED_RPS)), most)

    @property
    def _is_waiting(self) -> bool:
        """True for the length of a lease after the start: a server without a Verdict stays where it is."""
        started_s = self.state.started_s
        return started_s is not None and self.view.now_s - started_s < self.settings.lease_s

    def _why_baseline(self, verdict: Verdict | None) -> tuple[DecisionCause, tuple[str, ...]]:
        """The cause, and the phrases of `Decision.short`."""
        lease_s = self.settings.lease_s
        if not self.view.verdicts:
            return "no_verdict", (f"no Verdicts for {lease_s:g} s: back to the baseline",)
        if self.admission.panic:
            return "panic", (f"{self.admission.panic}: baseline weights",)
        if verdict is None:
            return "no_verdict", (f"no fresh Verdict for {lease_s:g} s: it keeps its baseline weight",)
        if verdict.state == "calm":
            return "calm", ("calm",)
        if verdict.state == "interference" and self.admission.fails:
            return "peer_fails", ("interference", f"but {self.admission.fails}: no load is moved to it")
        if verdict.state == "interference" and not verdict.shown:
            return "not_shown", ("interference", f"but nothing shows it now: {_first_reason(verdict)}")
        return verdict.state, (f"{verdict.state}: {_first_reason(verdict)}",)

    def _capped(self, move: _Move, name: str) -> _Move:
        """The move, with the `maxconn` that was requested, if any."""
        baseline, now = self.baselines[name].maxconn, self.state.limits.get(name)
        if (cap := self.view.caps.get(name)) is not None and cap.maxconn is not None:
            move.maxconn = limits.capped(cap.maxconn, baseline)
            move.why = move.why if now == move.maxconn else f"{move.why}; {cap}"
            move.cause = "limited" if move.cause == "calm" else move.cause
        return move

    def _drained(self, name: str, weight: int) -> _Move:
        why = short = str(self.view.drains[name])
        if weight > 0:
            most = self.pool.u_threshold
            why = f"{short}; it keeps {weight}, which the others cannot carry below {most:.0%} of their capacity"
        return self._capped(_Move(weight, Position(weight), why, (short,), "drained"), name)

    def _pinned(self, name: str, weight: int, weights: Mapping[str, int], headroom: Headroom) -> _Move:
        """The move of a pinned server. A pin is kept even where the others get too full; its reason warns then."""
        pin = self.view.pins[name]
        why = f"pinned at {pin.weight} by {pin.by}"
        filled = headroom.filled(weights, without=self.view.pins)
        if weight < self.movable[name] and filled > headroom.u_threshold + OVER:
            why = f"{why}; warning: the others are predicted to be {filled:.0%} full, above {headroom.u_threshold:.0%}"
        return _Move(weight, Position(weight), why, (why,), "pinned")

    @property
    def _few(self) -> tuple[str, ...]:
        return (
            f"at most {self.pool.max_mitigated:.0%} of the pool may be drained at a time",
            "and never its last server",
        )

    def _bound(self, moves: dict[str, _Move], reduce: Collection[str]) -> None:
        """Changes the moves that the guard does not allow."""
        bounded = guard.bound(
            {name: move.position.weight for name, move in moves.items()},
            self.movable,
            reduce,
            self.pool.max_mitigated,
            {server.name: server.weight for server in self.usable if server.name not in self.movable},
            self.view.snapshot.most_weight,
            self.pins.keys(),
        )
        for name, weight in bounded.items():
            if weight != moves[name].position.weight:
                moves[name] = _Move(self.movable[name], Position(weight), ", ".join(self._few), self._few, "bounded")


def _make_room(
    moves: Mapping[str, _Move], slow: Collection[str], weights: Mapping[str, int], headroom: Headroom, now_s: float
) -> None:
    """Gives slow servers load back at once where the others would be too full: as much as those cannot carry, but never
    more than their target."""
    behind = [name for name in slow if name in moves and moves[name].position.weight < moves[name].target]
    if not behind:
        return
    now = {name: moves[name].position.weight for name in behind}

    def given(share: float) -> dict[str, int]:
        """Weights where each server gets this share of the way to its target."""
        return {name: weight + math.ceil(share * (moves[name].target - weight)) for name, weight in now.items()}

    others = {**weights, **{name: move.position.weight for name, move in moves.items()}}
    filled, most = headroom.filled(others), headroom.limit() - OVER
    if filled <= most + OVER:
        return
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if headroom.filled(others | given(middle)) <= most else (middle, high)
    for name, weight in given(high).items():
        move = moves[name]
        move.position = position.given_back(move.position, weight, now_s)
        move.why = f"{move.why}: given back at once, since the others would be {filled:.0%} full"
        move.short = "given back at once", f"the others would be {filled:.0%} full"


def _probability(verdict: Verdict) -> float:
    """Probability of a neighbour: the detector's, or where it gives none 1 or 0 by the state."""
    if verdict.probability is None:
        return float(verdict.state == "interference" and verdict.shown)
    return verdict.probability


def _first_reason(verdict: Verdict) -> str:
    return verdict.path[0] if verdict.path else "no reason given"
