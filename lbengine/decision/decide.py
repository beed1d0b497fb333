"""The decision: which weight each server should have, from what the balancer shows and the detector says. No I/O.

Law, then ramp and rate limit, then guard: the law says where to, the ramp how fast, and the guard has the last word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from lbengine.balancer import Server, Snapshot
from lbengine.baseline import Baseline
from lbengine.decision import budget, guard, limits, plan, ramp
from lbengine.decision.headroom import Rest
from lbengine.decision.ramp import Position
from lbengine.decision.residual import OVER
from lbengine.overrides.temporary import Wish
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import DecisionCause, Verdict

HOLD = "waiting for its first Verdict"
FULL_SHARE = 0.7
"""A server on its way back that gets this much of an even share carries what there is to carry."""


@dataclass(frozen=True)
class Pin:
    """A weight that a person holds a server at."""

    weight: int
    by: str


@dataclass(frozen=True)
class View:
    """Everything that a decision depends on, of one moment."""

    snapshot: Snapshot
    baselines: Mapping[str, Baseline]
    positions: Mapping[str, Position]
    yielded: frozenset[str]
    """Servers whose weight someone else holds."""
    verdicts: Mapping[str, Verdict]
    """Fresh ones, by server."""
    waiting: bool
    """The lease since the start has not run out: a server without a Verdict stays where it is."""
    rates: Mapping[str, float] | None
    """Requests per second by server."""
    total_rps: float | None
    now_s: float
    limits: Mapping[str, int] = field(default_factory=dict)
    """The `maxconn`s that we have set."""
    drains: Mapping[str, Wish] = field(default_factory=dict)
    """Servers that should get no requests for a while. No verdict speaks there, so panic does not stand against it."""
    caps: Mapping[str, Wish] = field(default_factory=dict)
    """Servers that should get fewer at a time for a while."""
    holds: Mapping[str, Wish] = field(default_factory=dict)
    """Servers that keep their baseline weight for a while, whatever their Verdict: they are being measured."""
    pins: Mapping[str, Pin] = field(default_factory=dict)
    panicked_s: float | None = None
    """When no Verdict was believed last."""


@dataclass(frozen=True)
class Decision:
    """The position that a server should take, why, and the same in a few words, those that matter most first."""

    position: Position
    why: str
    short: tuple[str, ...]
    cause: DecisionCause
    maxconn: int | None = None
    """The limit of requests at a time that it should have; None: its baseline."""


@dataclass(frozen=True)
class Decisions:
    """Decisions by server; `panic` says why no verdict is believed, if so."""

    servers: dict[str, Decision]
    panic: str = ""


def decide(view: View, pool: PoolSettings, settings: LbengineSettings) -> Decisions:
    """The next step for each server that may be moved: governed, able to take requests, and not held by someone else.

    Servers that are down, in maintenance, drained by an operator, backup or without a baseline have none.
    """
    usable = [server for server in view.snapshot.servers if _usable(server, view)]
    movable = {server.name: view.baselines[server.name].weight for server in usable if server.name not in view.yielded}
    pins = {name: min(pin.weight, movable[name]) for name, pin in view.pins.items() if name in movable}
    admission = guard.admit(
        {n: (verdict.state, verdict.severity) for n, verdict in view.verdicts.items() if n not in view.holds},
        [server.name for server in usable],
        pool.max_mitigated,
        {name for name, baseline in movable.items() if view.positions[name].weight < baseline},
        {name for name, verdict in view.verdicts.items() if not verdict.shown},
        view.panicked_s is not None and view.now_s - view.panicked_s < guard.AFTER_PANIC_S,
    )
    reduce = (admission.reduce & movable.keys()) - pins.keys()
    asked = (view.drains.keys() & movable.keys()) - pins.keys()
    drains = guard.admit_drains(
        asked,
        len(usable),
        pool.max_mitigated,
        reduce | {name for name, weight in pins.items() if weight < movable[name]},
        {name for name in movable if view.positions[name].weight == 0},
    )
    loads = [_load(server, view, pins.get(server.name), server.name in reduce) for server in usable]
    rest = Rest(
        staying=[load for load in loads if load.server not in drains],
        leaving=[load for load in loads if load.server in drains],
        total_rps=view.total_rps,
        u_threshold=pool.u_threshold,
        by_concurrency=view.snapshot.by_concurrency,
    )
    wanted = plan.wants(rest.staying, rest.rps, pool.law, pool.u_threshold, view.snapshot)
    moves = {
        name: _move(name, baseline, wanted.get(name), view, settings, admission, len(usable))
        for name, baseline in movable.items()
        if name not in drains and name not in pins
    }
    weights = {server.name: server.weight for server in usable} | pins
    _make_room(moves, wanted.keys(), weights, rest, view.now_s)
    weights |= {name: move.position.weight for name, move in moves.items()}
    for name, weight in rest.keeps(weights, settings.min_change).items():
        weights[name] = weight
        moves[name] = _drained(name, weight, view, pool)
    for name, weight in pins.items():
        moves[name] = _pinned(name, weight, weights, movable, rest, view)
    bounded = guard.bound(
        {name: move.position.weight for name, move in moves.items()},
        movable,
        reduce | drains,
        pool.max_mitigated,
        {server.name: server.weight for server in usable if server.name not in movable},
        view.snapshot.most_weight,
        pins.keys(),
    )
    few = f"at most {pool.max_mitigated:.0%} of the pool may be reduced at a time", "and never its last server"
    decisions = {}
    for name, baseline in movable.items():
        move, before = moves[name], view.positions[name]
        if name in asked and name not in drains and name not in reduce:
            move.short, move.cause = (f"not drained: {few[0]}", *few[1:]), "not_drained"
            move.why = ", ".join(move.short)
        if bounded[name] != move.position.weight:
            move = _Move(baseline, Position(bounded[name]), ", ".join(few), few, "bounded")
        position = budget.noted(before, move.position, view.now_s, counts=name not in drains | pins.keys())
        decisions[name] = Decision(position, move.why, move.short, move.cause, move.most)
    return Decisions(decisions, admission.panic)


@dataclass
class _Move:
    """Where one server is to go, and its next step there, before the guard's last word."""

    target: int
    position: Position
    why: str
    short: tuple[str, ...]
    cause: DecisionCause
    most: int | None = None
    """The `maxconn` that it should have."""
    reason: str = ""
    """Why it should get there, without what holds it up."""


def _move(
    name: str,
    baseline: int,
    want: plan.Want | None,
    view: View,
    settings: LbengineSettings,
    admission: guard.Admission,
    count: int,
) -> _Move:
    """By the law, or back to the baseline."""
    before, verdict = view.positions[name], view.verdicts.get(name)
    short: tuple[str, ...]
    cause: DecisionCause = "interference"
    if want is not None and verdict is not None:
        target = want.weight
        why = f"interference: {_first(verdict)}; {want.why}"
        short = "interference", f"at most {verdict.severity:.0%} of capacity lost", _first(verdict)
    elif (hold := view.holds.get(name)) is not None:
        target, why, short, cause = baseline, hold.told, (hold.told,), "measured"
    elif verdict is None and view.waiting:
        return _Move(before.weight, Position(before.weight), HOLD, (HOLD,), "waiting")
    else:
        target = baseline
        cause, short = _why_baseline(name, verdict, view, settings, admission)
        why = ", ".join(short)
        if cause == "panic":
            short = ("panic",)
    if admission.shared:  # what was taken from the one that was judged first is given back at once
        return _capped(_Move(target, Position(baseline), why, short, cause), name, want, view)
    aim, start, reason = target, before, why
    if want is not None:
        aim, start = ramp.settle(before, target, baseline, view.now_s)
    most = settings.max_falls_per_min
    judged = verdict is not None and verdict.state != "unknown" and not admission.panic and name not in view.holds
    if aim > before.weight and judged and budget.is_spent(before, view.now_s, most):
        aim = before.weight
        why, short = f"{why}; held for now: {_often(most)}", (*short, "held")
    elif aim < before.weight and not budget.may_fall(before, view.now_s, most):
        aim = before.weight
        why, short = f"{why}; not lowered again for now: {_often(most)}", (*short, "not lowered again")
    carries = _carries(name, view, count)
    position = ramp.step(start, aim, baseline, view.now_s, settings.ramp_s, settings.min_change, carries=carries)
    if want is not None:
        position = ramp.moved(start, position, view.now_s)
    if position.climb_began_s is not None and position.weight > before.weight:
        why, short = f"{why}: on its way back to {target}", (*short, "on its way back")
    return _capped(_Move(target, position, why, short, cause, reason=reason), name, want, view)


def _often(most: int) -> str:
    return f"it has fallen {most} times within a minute"


def _capped(move: _Move, name: str, want: plan.Want | None, view: View) -> _Move:
    """With its `maxconn`: what the law wants, or less if that was asked for."""
    baseline, now = view.baselines[name].maxconn, view.limits.get(name)
    if want is not None and move.position.weight > 0:
        move.most = limits.limit(want.in_flight, baseline, now)
    if (cap := view.caps.get(name)) is not None and cap.maxconn is not None:
        move.most = limits.capped(cap.maxconn, move.most, baseline)
        move.why = move.why if now == move.most else f"{move.why}; {cap.told}"
        move.cause = "limited" if move.cause == "calm" else move.cause
    return move


def _make_room(
    moves: Mapping[str, _Move], wanted: Collection[str], weights: Mapping[str, int], rest: Rest, now_s: float
) -> None:
    """Where the others would be too full, load is given back at once: first to those that are well again, then to the
    slow ones, as much as the law says. No dwell, no ramp and no rate limit stand against it."""
    for group in ([name for name in moves if name not in wanted], list(wanted)):
        behind = [name for name in group if moves[name].position.weight < moves[name].target]
        if not behind:
            continue
        filled = rest.filled({**weights, **{name: move.position.weight for name, move in moves.items()}})
        if filled <= rest.limit():
            continue
        for name in behind:
            move = moves[name]
            move.position = ramp.moved(move.position, Position(move.target), now_s)
            move.why = f"{move.reason}: given back at once, since the others would be {filled:.0%} full"
            move.short = "given back at once", f"the others would be {filled:.0%} full"


def _drained(name: str, weight: int, view: View, pool: PoolSettings) -> _Move:
    told = view.drains[name].told
    why = told
    if weight > 0:
        why = f"{told}; it keeps {weight}, which the others cannot carry below {pool.u_threshold:.0%} of their capacity"
    return _capped(_Move(weight, Position(weight), why, (told,), "drained"), name, None, view)


def _pinned(
    name: str, weight: int, weights: Mapping[str, int], baselines: Mapping[str, int], rest: Rest, view: View
) -> _Move:
    """A person's pin wins over what the others can carry, but it is said."""
    why = f"pinned at {view.pins[name].weight} by {view.pins[name].by}"
    filled = rest.filled(weights, without=view.pins)
    if weight < baselines[name] and filled > rest.u_threshold + OVER:
        why = f"{why}; warning: the others are predicted to be {filled:.0%} full, above {rest.u_threshold:.0%}"
    return _Move(weight, Position(weight), why, (why,), "pinned")


def _usable(server: Server, view: View) -> bool:
    """It takes requests, or would if we gave it weight; one that someone else holds at 0 does not."""
    if not server.available or server.backup:
        return False
    return server.weight > 0 if server.name in view.yielded else view.baselines[server.name].weight > 0


def _carries(name: str, view: View, count: int) -> bool:
    """Under least connections an idle server gets its share at any weight above 0: then a ramp is only a delay."""
    if not view.snapshot.by_concurrency or view.rates is None:
        return False
    total = sum(view.rates.values())
    return total > 0.0 and view.rates.get(name, 0.0) >= FULL_SHARE * total / count


def _load(server: Server, view: View, pin: int | None, reduce: bool) -> plan.Load:
    """One that a person or someone else holds counts with the weight that it is held at, and with as much of its
    capacity."""
    verdict = view.verdicts.get(server.name)
    held = server.weight if server.name in view.yielded else pin
    full = view.baselines[server.name].weight
    part = held / full if held is not None and full > 0 else 1.0
    rps = None if view.rates is None else view.rates.get(server.name)
    load = plan.Load(
        server=server.name,
        baseline=full if held is None else held,
        reduce=reduce,
        rps=rps,
        drained=view.positions[server.name].weight == 0,
        weight=server.weight if server.name in view.yielded else view.positions[server.name].weight,
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
    )


def _why_baseline(
    name: str, verdict: Verdict | None, view: View, settings: LbengineSettings, admission: guard.Admission
) -> tuple[DecisionCause, tuple[str, ...]]:
    """The cause, and as in `Decision.short`."""
    if not view.verdicts:
        return "no_verdict", (f"no Verdicts for {settings.lease_s:g} s: back to the baseline",)
    if admission.panic:
        return "panic", (f"{admission.panic}: baseline weights",)
    if verdict is None:
        return "no_verdict", (f"no fresh Verdict for {settings.lease_s:g} s: it keeps its baseline weight",)
    if name in admission.held_back:
        return "enough_reduced", ("interference", "but enough of the pool is reduced already")
    if verdict.state == "calm":
        return "calm", ("calm",)
    if verdict.state == "interference" and not verdict.shown:
        return "not_shown", ("interference", f"but nothing shows it now: {_first(verdict)}")
    return verdict.state, (f"{verdict.state}: {_first(verdict)}",)


def _first(verdict: Verdict) -> str:
    return verdict.path[0] if verdict.path else "no reason given"
