"""The decision: which weight each server should have, from what the balancer shows and the detector says. No I/O.

Law, then ramp, then guard: the law says where to, the ramp how fast, and the guard has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbengine import guard, limits, plan, ramp
from lbengine.algorithms import effect
from lbengine.baseline import Baseline
from lbengine.haproxy import Server, Snapshot
from lbengine.ramp import Position
from lbengine.wishes import Wish
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import State, Verdict

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


@dataclass(frozen=True)
class Decision:
    """The position that a server should take, why, and the same in a few words."""

    position: Position
    why: str
    short: str
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
    reduced = {name for name, baseline in movable.items() if view.positions[name].weight < baseline}
    states: dict[str, tuple[State, float]] = {
        name: (verdict.state, verdict.severity) for name, verdict in view.verdicts.items() if name not in view.holds
    }
    admission = guard.admit(states, [server.name for server in usable], pool.max_mitigated, reduced)
    reduce = admission.reduce & movable.keys()
    loads = [_load(server, view, server.name in reduce) for server in usable]
    wanted = plan.wants(loads, view.total_rps, pool.law, pool.u_threshold, view.snapshot.balance)
    decisions = {}
    for name, baseline in movable.items():
        verdict = view.verdicts.get(name)
        if name in wanted and verdict is not None:
            target = wanted[name].weight
            why = f"interference: {_first(verdict)}; {wanted[name].why}"
            short = f"interference, {verdict.severity:.0%} of capacity lost, {_first(verdict)}"
        elif (hold := view.holds.get(name)) is not None:
            target, why, short = baseline, hold.told, hold.told
        elif verdict is None and view.waiting:
            decisions[name] = Decision(Position(view.positions[name].weight), HOLD, HOLD)
            continue
        else:
            target = baseline
            why = short = _why_baseline(name, verdict, view, settings, admission)
            if admission.panic and view.verdicts:
                short = "panic"
        before = view.positions[name]
        if name in wanted:
            target, before = ramp.settle(before, target, baseline, view.now_s)
        if admission.shared:
            position = Position(baseline)  # what was taken from the one that was judged first is given back at once
        else:
            position = ramp.step(
                before,
                target,
                baseline,
                view.now_s,
                settings.ramp_s,
                settings.min_change,
                carries=_carries(name, view, len(usable)),
            )
        if name in wanted:
            position = ramp.moved(before, position, view.now_s)
        if position.climb_began_s is not None and position.weight > view.positions[name].weight:
            why, short = f"{why}: on its way back to {target}", f"{short}, on its way back"
        most = None
        if name in wanted and position.weight > 0:
            most = limits.limit(wanted[name].in_flight, view.baselines[name].maxconn, view.limits.get(name))
        if (drain := view.drains.get(name)) is not None:
            position, why, short = Position(0), drain.told, drain.told
        if (cap := view.caps.get(name)) is not None and cap.maxconn is not None:
            most = limits.capped(cap.maxconn, most, view.baselines[name].maxconn)
            why = why if view.limits.get(name) == most else f"{why}; {cap.told}"
        decisions[name] = Decision(position, why, short, most)
    for name, pin in view.pins.items():
        if name in decisions:
            why = f"pinned at {pin.weight} by {pin.by}"
            decisions[name] = Decision(Position(min(pin.weight, movable[name])), why, why)
    held = {server.name: server.weight for server in usable if server.name not in movable}
    bounded = guard.bound(
        {name: decision.position.weight for name, decision in decisions.items()},
        movable,
        reduce | (view.drains.keys() & movable.keys()) | view.pins.keys(),
        pool.max_mitigated,
        held,
        view.snapshot.most_weight,
    )
    for name, weight in bounded.items():
        if weight != decisions[name].position.weight:
            why = f"at most {pool.max_mitigated:.0%} of the pool may be reduced at a time, and never its last server"
            decisions[name] = Decision(Position(weight), why, why)
    return Decisions(decisions, admission.panic)


def _usable(server: Server, view: View) -> bool:
    """It takes requests, or would if we gave it weight; one that someone else holds at 0 does not."""
    if not server.available or server.backup:
        return False
    return server.weight > 0 if server.name in view.yielded else view.baselines[server.name].weight > 0


def _carries(name: str, view: View, count: int) -> bool:
    """Under least connections an idle server gets its share at any weight above 0: then a ramp is only a delay."""
    if effect(view.snapshot.balance) != "concurrency" or view.rates is None:
        return False
    total = sum(view.rates.values())
    return total > 0.0 and view.rates.get(name, 0.0) >= FULL_SHARE * total / count


def _load(server: Server, view: View, reduce: bool) -> plan.Load:
    verdict = view.verdicts.get(server.name)
    baseline = server.weight if server.name in view.yielded else view.baselines[server.name].weight
    rps = None if view.rates is None else view.rates.get(server.name)
    drained = view.positions[server.name].weight == 0
    if verdict is None:
        return plan.Load(server=server.name, baseline=baseline, reduce=reduce, rps=rps, drained=drained)
    return plan.Load(
        server=server.name,
        baseline=baseline,
        reduce=reduce,
        slow=verdict.state in ("interference", "overload"),
        capacity_rps=verdict.capacity_rps,
        capacity_stderr_rps=verdict.capacity_stderr_rps or 0.0,
        severity=verdict.severity,
        cpu_predicted=verdict.cpu_predicted,
        rps=rps if rps is not None else verdict.rps,
        drained=drained,
    )


def _why_baseline(
    name: str, verdict: Verdict | None, view: View, settings: LbengineSettings, admission: guard.Admission
) -> str:
    if not view.verdicts:
        return f"no Verdicts for {settings.lease_s:g} s: back to the baseline"
    if admission.panic:
        return f"{admission.panic}: baseline weights"
    if verdict is None:
        return f"no fresh Verdict for {settings.lease_s:g} s: it keeps its baseline weight"
    if name in admission.held_back:
        return "interference, but enough of the pool is reduced already"
    if verdict.state == "calm":
        return "calm"
    return f"{verdict.state}: {_first(verdict)}"


def _first(verdict: Verdict) -> str:
    return verdict.path[0] if verdict.path else "no reason given"
