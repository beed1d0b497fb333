"""The decision: which weight each server should have, from what the balancer shows and the detector reports. Pure.

Its steps follow each other. The guard says which servers may be reduced, the split by how much, the position which move
is worth making now, the room how much the others cannot carry. The guard has the last word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import SLOW_ALONE, DecisionCause, Verdict
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision import alike, belief, explain, failing, guard, kept, limits, position, warm_up
from slackwater.lbengine.decision.alike import HeldRequests
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.evenness import CalmWeights
from slackwater.lbengine.decision.explain import Reason
from slackwater.lbengine.decision.loads import Load
from slackwater.lbengine.decision.position import Position, Requests
from slackwater.lbengine.decision.room import OVER, Room
from slackwater.lbengine.decision.split import Share, split, step_of
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.trials import fail_more, few
from slackwater.lbengine.verdicts import age_s, cause_of, is_failing

TRIED_AFTER_S = {"slow": 1.0, "errors": 2.0, "interference": 3.0}
"""A server is tried no sooner after nothing would show calm. An error is worse than a slow answer. A quiet monitor
speaks once a second, and needs two such Samples until its random moments show the neighbour."""
AGE_SHARE = 0.04
"""Nor is it tried sooner than after this share of the episode's age: what lasted long will last long."""


@dataclass(frozen=True)
class Decision:
    """A server's next position, and why: as a cause, as a sentence, and in short phrases (the most important first)."""

    position: Position
    cause: DecisionCause
    why: str
    short: tuple[str, ...]
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
    held: Mapping[str, HeldRequests] = field(default_factory=dict)
    """As `PoolState.held`, after this turn."""
    calm_weights: CalmWeights | None = None
    """As `PoolState.calm_weights`, after this turn; None where nothing is decided."""
    away: Mapping[str, Position] = field(default_factory=dict)
    """Positions of servers that take no requests now."""
    failing: Mapping[str, failing.FailingServer] = field(default_factory=dict)
    """As `PoolState.failing`, after this turn."""


@dataclass(frozen=True)
class _Move:
    """A server's next position, and why, before the guard's last word."""

    position: Position
    reason: Reason


@dataclass(frozen=True)
class _Servers:
    """The servers of a pool that take requests, or would with a weight above 0."""

    usable: list[Server]
    movable: dict[str, int]
    """Full weights of those that may be moved: in what follows a server's baseline is its full weight."""
    pins: dict[str, int]
    """Weights at which operators pinned some of these."""


def decide(state: PoolState, view: PoolView, pool: PoolSettings, settings: LbengineSettings) -> Decisions:
    """The next step for each server that may be moved: governed, able to take requests, and not controlled by others.

    Servers that are down, in maintenance, drained by an operator, backup or without a baseline are left out. The
    Verdicts of `view` must be by server, not by node.
    """
    held = alike.after(state.held, view.snapshot.servers, view.verdicts, state.rates, state.calm)
    state = replace(state, failing=failing.after(state.failing, view.verdicts, view.now_s))
    view = replace(view, verdicts=alike.weighed(view.verdicts, held))
    servers = _servers(state, view)
    admission = _admit(state, view, servers, pool)
    reduce = (admission.reduce & servers.movable.keys()) - servers.pins.keys()
    requested = (view.drains.keys() & servers.movable.keys()) - servers.pins.keys()
    drains = _drains(state, servers, requested, pool)
    lost = {name for name in reduce - drains if view.verdicts[name].state == "errors"}
    alone = reduce - _with_queues_elsewhere(state, servers, reduce - lost)
    loads = [_load(state, view, servers, server, server.name in alone) for server in servers.usable]
    loads = belief.weighed(loads, state.rates, state.calm)
    staying = [load for load in loads if load.server not in drains | lost]
    total_rps, snapshot = state.rates.total_rps, view.snapshot
    most_drained = max(guard.limit(len(servers.usable), pool.max_mitigated) - len(drains | lost), 0)
    shares = split(staying, total_rps, pool.law, pool.u_threshold, snapshot, most_drained)
    moves = {name: _drained(state, view, pool, name) for name in drains}
    undrained = {name: share.undrained for name, share in shares.items() if share.undrained}
    step = step_of([load.baseline for load in loads], snapshot)
    room = Room(loads, total_rps, pool.u_threshold, snapshot.by_concurrency, step, undrained)
    warming = warm_up.positions(state, view, pool, servers.usable, servers.movable, reduce, room.is_known)
    for name, baseline in servers.movable.items():
        if name in drains or name in servers.pins:
            continue
        verdict = view.verdicts.get(name)
        if name in reduce and verdict is not None:
            moves[name] = _in_episode(state, view, settings, servers, name, shares.get(name), verdict)
        elif name in warming and name not in view.holds:
            moves[name] = _Move(warming[name], Reason("warm_up", is_coarse=warm_up.is_coarse(baseline)))
        else:
            moves[name] = _back(state, view, settings, pool, admission, name, baseline)
    weights = {server.name: server.weight for server in servers.usable} | servers.pins
    weights |= {name: move.position.weight for name, move in moves.items()}
    firm = {name for name in drains if view.drains[name].is_firm}
    lowered = (reduce | drains | warming.keys()) - firm
    low = {name for name in lowered & moves.keys() if weights[name] < servers.movable[name]}
    filled, given_back = room.give_back(weights, low)
    for load in loads:
        if (weight := given_back.get(load.server)) is not None:
            moves[load.server] = _given_back(moves[load.server], load, weight, filled, settings, view.now_s)
            weights[load.server] = moves[load.server].position.weight
    for name, weight in servers.pins.items():
        moves[name] = _Move(Position(weight), _pinned(view, servers, name, weight, weights, room))
    for name in requested - drains - reduce:
        moves[name] = replace(moves[name], reason=replace(moves[name].reason, cause="not_drained"))
    moves |= _bounded(moves, reduce | drains, servers, view, pool)
    away = warm_up.away(state, view, pool, room.is_known)
    moves |= {name: _Move(away[name], Reason("away")) for name in away if away[name].weight < state.full_weight(name)}
    names = [name for name in (*servers.movable, *away) if name in moves]
    decisions = {name: _decision(state, view, name, moves[name], pool, settings) for name in names}
    calm = kept.calm(state, view, servers.usable, loads)
    calm_weights = kept.calm_weights(state, view, pool, servers.movable, loads)
    return Decisions(decisions, admission.panic, calm, held, calm_weights, away, state.failing)


# -- who takes part ---------------------------------------------------------------------------------------------------


def _servers(state: PoolState, view: PoolView) -> _Servers:
    baselines, others = state.baselines or {}, state.externally_controlled
    usable = [server for server in view.snapshot.servers if _is_usable(server, baselines, others)]
    movable = {
        server.name: baselines[server.name].weight if server.name in view.pins else state.full_weight(server.name)
        for server in usable
        if server.name not in others
    }
    pins = {name: min(pin.weight, movable[name]) for name, pin in view.pins.items() if name in movable}
    return _Servers(usable, movable, pins)


def _is_usable(server: Server, baselines: Mapping[str, Baseline], others: Collection[str]) -> bool:
    """Whether it takes requests, or would with a weight above 0; a server that someone else holds at 0 does not."""
    if not server.available or server.backup:
        return False
    return server.weight > 0 if server.name in others else baselines[server.name].weight > 0


def _admit(state: PoolState, view: PoolView, servers: _Servers, pool: PoolSettings) -> guard.Admission:
    usable = {server.name for server in servers.usable}
    judged = {name: verdict for name, verdict in view.verdicts.items() if name in usable}
    acted_on = {
        name for name, verdict in judged.items() if cause_of(verdict) not in pool.causes_off
    } - view.holds.keys()
    return guard.admit(
        {name: judged[name].state for name in acted_on},
        {name for name, baseline in servers.movable.items() if state.positions[name].weight < baseline},
        {name for name, verdict in view.verdicts.items() if not verdict.shown},
        (usable - servers.movable.keys()) | servers.pins.keys(),
        {
            name: verdict.failed_share or 0.0
            for name, verdict in judged.items()
            if failing.keeps_load(verdict, state.failing.get(name))
        },
    )


def _with_queues_elsewhere(state: PoolState, servers: _Servers, reduce: Collection[str]) -> set[str]:
    """The servers to reduce that have their full weights, while each other server has a queue as they have."""
    queues = {
        server.name: state.rates.queue_at(server.name, state.calm.wait_s).mean
        for server in servers.usable
        if server.weight > 0
    }
    whole = {name for name in reduce if state.positions[name].weight >= servers.movable[name]}
    return {name for name in whole if alike.have_queues(name, queues)}


def _drains(state: PoolState, servers: _Servers, requested: Collection[str], pool: PoolSettings) -> frozenset[str]:
    """The requested drains that the guard allows."""
    weights = {name: state.positions[name].weight for name in servers.movable} | servers.pins
    drained = {name for name, weight in weights.items() if guard.is_drained(weight, servers.movable[name])}
    return guard.admit_drains(requested, len(servers.usable), pool.max_mitigated, drained)


def _load(state: PoolState, view: PoolView, servers: _Servers, server: Server, reduce: bool) -> Load:
    """A server's load. A weight at which a person or another program holds it counts as its baseline; its capacity is
    scaled likewise."""
    name = server.name
    verdict, rates = view.verdicts.get(name), state.rates
    held_by_others = name in state.externally_controlled
    weight = server.weight if held_by_others else state.positions[name].weight
    configured = servers.movable.get(name, (state.baselines or {})[name].weight)
    baseline = server.weight if held_by_others else servers.pins.get(name, configured)
    part = baseline / configured if configured > 0 else 1.0
    rps = None if rates.rps is None else rates.rps.get(name)
    served_rps = (rates.served or {}).get(name) or 0.0
    warming = name in state.positions and state.positions[name].warm_up is not None
    queue = rates.queue_at(name, state.calm.wait_s)
    load = Load(name, baseline, weight, reduce=reduce, warming=warming, rps=rps, served_rps=served_rps, queue=queue)
    if verdict is None:
        return load
    return msgspec.structs.replace(
        load,
        slow=verdict.state in SLOW_ALONE or verdict.state == "overload",
        capacity_rps=None if verdict.capacity_rps is None else verdict.capacity_rps * part,
        capacity_stderr_rps=(verdict.capacity_stderr_rps or 0.0) * part,
        severity=verdict.severity,
        cpu_predicted=verdict.cpu_predicted,
        rps=rps if rps is not None else verdict.rps,
        cpu=verdict.cpu,
        probability=_probability(verdict),
    )


def _probability(verdict: Verdict) -> float:
    """Probability of a neighbour: the detector's, or where it gives none 1 or 0 by the state."""
    if verdict.probability is None:
        return float(verdict.state in SLOW_ALONE and verdict.shown)
    return verdict.probability


def _drained(state: PoolState, view: PoolView, pool: PoolSettings, name: str) -> _Move:
    cold = warm_up.while_drained(state, view, pool, name)
    return _Move(Position(0, warm_up=cold), Reason("drained", request=str(view.drains[name])))


# -- which move -------------------------------------------------------------------------------------------------------


def _in_episode(
    state: PoolState,
    view: PoolView,
    settings: LbengineSettings,
    servers: _Servers,
    name: str,
    share: Share | None,
    verdict: Verdict,
) -> _Move:
    """A move towards the weight of the split."""
    now_s, before, baseline = view.now_s, replace(state.positions[name], silent_s=None), servers.movable[name]
    target = baseline if share is None else share.weight
    if verdict.state == "errors":  # what it answers at once is no answer, so no part of its capacity is left
        target = 0
    blind = verdict.calm_shows_within_s is None or not verdict.shown
    blind = blind or (verdict.state == "slow" and not verdict.rps)
    requests = _requests(state, servers, name, verdict)
    after_s = max(TRIED_AFTER_S[verdict.state], AGE_SHARE * age_s(verdict))
    after = position.tried(before, baseline, requests, now_s, blind=blind, after_s=after_s)
    if after.trial is not None and (after.is_tried or before.has_few):
        cause: DecisionCause = "fast" if after.trial.stage == "all" else "tried"
        return _Move(after, Reason(cause, verdict, stage=after.trial.stage))
    after = position.settle(after, target, baseline, now_s, settings.min_change)
    if target >= baseline and before.weight >= baseline:
        return _Move(after, Reason("no_gain", verdict, share))
    follows = share is not None and share.weight == after.weight < baseline
    keeps = after.least if after.weight == after.least > target else 0
    return _Move(after, Reason(cause_of(verdict), verdict, share if follows else None, keeps=keeps))


def _requests(state: PoolState, servers: _Servers, name: str, verdict: Verdict) -> Requests:
    """What a lowered server's requests show, and the weight and the time that bring it a few."""
    before = state.positions[name]
    kept = before.trial.before if before.trial is not None and before.is_tried else before.weight
    by_few = few(state, servers.usable, servers.movable, name, kept)
    # Answers that the detector does not see change no probability, though the balancer may have counted them.
    answered = bool((state.rates.served or {}).get(name) if verdict.rps is None else verdict.rps)
    failed_rps = (state.rates.errors or {}).get(name, 0.0)
    usual_rps = before.trial.failed_rps if before.trial is not None and before.is_tried else failed_rps
    fails = fail_more(failed_rps, usual_rps) if verdict.state == "errors" else is_failing(verdict)
    probability = _probability(verdict)
    return Requests(probability, answered, by_few.weight, by_few.seconds, by_few.others, fails, failed_rps)


def _back(
    state: PoolState,
    view: PoolView,
    settings: LbengineSettings,
    pool: PoolSettings,
    admission: guard.Admission,
    name: str,
    baseline: int,
) -> _Move:
    """The move of a server that may not be reduced: back to its baseline at once, with the reason."""
    before, verdict = state.positions[name], view.verdicts.get(name)
    there = Position(baseline)
    if (hold := view.holds.get(name)) is not None:
        return _Move(there, Reason("measured", request=str(hold)))
    if verdict is None:
        # For the length of a lease after the start a server without a Verdict stays where it is.
        if state.started_s is not None and view.now_s - state.started_s < settings.lease_s:
            return _Move(Position(before.weight), Reason("waiting"))
        if admission.panic:
            return _Move(there, Reason("panic", panic=admission.panic))
        return _Move(there, Reason("no_verdict"))
    if verdict.state == "unknown" and before.moved_s is not None:
        return _Move(position.silent(before, baseline, view.now_s), Reason("unknown", verdict))
    if admission.panic:
        # What the others have no room for they have none for when the panic is over.
        return _Move(Position(baseline, least=before.least), Reason("panic", verdict, panic=admission.panic))
    configured, is_step = (state.baselines or {})[name].weight, before.moved_s is None and before.weight > baseline
    if baseline < configured and (verdict.state == "calm" or (verdict.state == "overload" and is_step)):
        return _Move(there, Reason("capacity", full=state.calm_weights.full(name, configured)))
    if verdict.state not in SLOW_ALONE or cause_of(verdict) in pool.causes_off:
        return _Move(there, Reason(cause_of(verdict), verdict))
    if admission.fails:
        return _Move(there, Reason("peer_fails", verdict, fails=admission.fails))
    # The episode goes on although nothing shows it now, so its trials are kept.
    return _Move(position.moved(before, baseline, view.now_s), Reason("not_shown", verdict))


# -- what the others can carry ----------------------------------------------------------------------------------------


def _given_back(
    move: _Move, load: Load, weight: int, filled: float | None, settings: LbengineSettings, now_s: float
) -> _Move:
    """The move to a weight that the others have no room for. `filled`: how full the fullest of them would be;
    None: they would not be too full, but requests wait at them.

    For a drain no change below `min_change`, as a share of the baseline, is made.
    """
    if move.reason.cause == "drained":
        if load.weight < load.baseline and abs(weight - load.weight) < settings.min_change * load.baseline:
            weight = load.weight
        return _Move(replace(move.position, weight=weight), replace(move.reason, keeps=weight))
    there = position.given_back(move.position, weight, now_s)
    return _Move(there, replace(move.reason, others_filled=filled, others_wait=filled is None))


def _pinned(
    view: PoolView, servers: _Servers, name: str, weight: int, weights: Mapping[str, int], room: Room
) -> Reason:
    """The reason of a pinned server. A pin is kept even where the others get too full; its reason warns then."""
    judged = {load.server for load in room.loads if not load.reduce and load.server not in view.pins}
    filled = room.filled(weights, judged)
    too_full = weight < servers.movable[name] and filled > room.u_threshold + OVER
    request = f"pinned at {view.pins[name].weight} by {view.pins[name].by}"
    return Reason("pinned", request=request, others_filled=filled if too_full else None)


def _bounded(
    moves: Mapping[str, _Move], reduce: Collection[str], servers: _Servers, view: PoolView, pool: PoolSettings
) -> dict[str, _Move]:
    """The moves that the guard changes."""
    bounded = guard.bound(
        {name: move.position.weight for name, move in moves.items()},
        servers.movable,
        reduce,
        pool.max_mitigated,
        {server.name: server.weight for server in servers.usable if server.name not in servers.movable},
        view.snapshot.most_weight,
        servers.pins.keys(),
    )
    return {
        name: _Move(Position(weight), Reason("bounded"))
        for name, weight in bounded.items()
        if weight != moves[name].position.weight
    }


# -- what is kept of the turn -----------------------------------------------------------------------------------------


def _decision(
    state: PoolState, view: PoolView, name: str, move: _Move, pool: PoolSettings, settings: LbengineSettings
) -> Decision:
    """The decision, with the `maxconn` that the second stage asks for, if any."""
    reason, maxconn = move.reason, None
    cap = view.caps.get(name)
    if cap is not None and cap.maxconn is not None and reason.cause not in ("pinned", "bounded", "waiting"):
        maxconn = limits.capped(cap.maxconn, (state.baselines or {})[name].maxconn)
        reason = replace(
            reason,
            cause="limited" if reason.cause == "calm" else reason.cause,
            limit="" if state.limits.get(name) == maxconn else str(cap),
        )
    why, short = explain.words(reason, pool, settings)
    return Decision(move.position, reason.cause, why, short, maxconn)
