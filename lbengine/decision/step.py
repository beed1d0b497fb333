"""One turn of an engine, without I/O: from what is believed and what is seen to what is to be set.

The engine carries the actions out; simulations call `step` and take them as carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lbengine.baseline import diff_from_baseline
from lbengine.decision.decide import Decision, Decisions, decide
from lbengine.decision.position import Position
from lbengine.decision.reconcile import Findings, reconcile
from lbengine.decision.state import PoolState, PoolView
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import ChangeCause

What = Literal["weight", "maxconn"]


@dataclass(frozen=True)
class WantedValue:
    """One value of one server that is to be set, or in `observing` would be."""

    what: What
    server: str
    before: int
    after: int
    why: str
    cause: ChangeCause | None


@dataclass(frozen=True)
class Actions:
    """What a turn calls for, in this order."""

    findings: Findings
    restore_weights: Mapping[str, tuple[int, int]]
    """Put back at once: server -> (shown, baseline)."""
    restore_limits: Mapping[str, tuple[int, int]]
    is_restored: bool
    """When these are put back, nothing of ours is set any more, and the stored baseline has done its work."""
    decisions: Decisions
    wanted: list[WantedValue]
    otherwise: PoolState
    """The state if nothing of it can be carried out: a server stands where the balancer showed it."""


def step(state: PoolState, view: PoolView, pool: PoolSettings, settings: LbengineSettings) -> tuple[PoolState, Actions]:
    """The state when everything is carried out, and what that is. Not for the phase `standby`."""
    restarted = view.snapshot.restarted_since(state.last)
    lost = f"{pool.title} {'was reloaded or started anew' if restarted else 'was set back by the lbengine before'}"
    state, findings = reconcile(state, view, pool)
    otherwise = state
    restore: tuple[Mapping[str, tuple[int, int]], Mapping[str, tuple[int, int]]] = {}, {}
    is_restored = False
    if state.phase == "restoring":
        weights, limits = diff_from_baseline(view.snapshot, state.baselines or {})
        restore = (
            {name: pair for name, pair in weights.items() if name not in state.externally_controlled},
            {name: pair for name, pair in limits.items() if name in state.limits},
        )
        is_restored = not view.snapshot.not_reached(state.baselines or {})  # else it is still due
        state = replace(
            state,
            phase=view.then if is_restored else "restoring",
            positions={**state.positions, **{name: Position(after) for name, (_, after) in restore[0].items()}},
            limits={},
        )
    decisions, wanted = Decisions({}), []
    if state.phase in ("observing", "acting"):
        decisions = decide(state, replace(view, verdicts=findings.verdicts), pool, settings)
        shown = {name: position.weight for name, position in state.positions.items()}
        if state.phase == "acting":
            shown = {server.name: server.weight for server in view.snapshot.servers}
        wanted = _weights(decisions, shown, state.positions, lost) + _limits(state, decisions)
        if state.phase == "acting":
            otherwise = without(otherwise, wanted)
        state = _decided(state, decisions, wanted)
    return state, Actions(findings, *restore, is_restored, decisions, wanted, otherwise)


def without(state: PoolState, values: Collection[WantedValue]) -> PoolState:
    """The state when these values were not set."""
    positions, limits = dict(state.positions), dict(state.limits)
    for one in values:
        if one.what == "weight":
            positions[one.server] = Position(one.before)
        else:
            _set_limit(limits, one.server, one.before, state)
    return replace(state, positions=positions, limits=limits)


def _weights(
    decisions: Decisions, shown: Mapping[str, int], believed: Mapping[str, Position], lost: str
) -> list[WantedValue]:
    """`lost`: in words, why the balancer may show another weight than the one that it was given."""
    wanted = []
    for name, decision in decisions.servers.items():
        before, after = shown[name], decision.position.weight
        if before == after:
            continue
        why, cause = decision.why, decision.cause
        sent_again = before != believed[name].weight
        if sent_again:
            why = f"{lost} and shows {before}; {after} is sent again, as it is wanted: {why}"
        wanted.append(WantedValue("weight", name, before, after, why, "sent_again" if sent_again else cause))
    return wanted


def _limits(state: PoolState, decisions: Decisions) -> list[WantedValue]:
    """The `maxconn`s that should be others than they are."""
    wanted = []
    for name, baseline in (state.baselines or {}).items():
        decision = decisions.servers.get(name)
        if baseline.maxconn is None or (decision is not None and decision.cause == "waiting"):
            continue
        now = state.limits.get(name, baseline.maxconn)
        then = (None if name in state.externally_limited else _maxconn(decision)) or baseline.maxconn
        if now != then:
            why = decision.why if decision is not None else "it takes no requests"
            wanted.append(WantedValue("maxconn", name, now, then, why, None if decision is None else decision.cause))
    return wanted


def _maxconn(decision: Decision | None) -> int | None:
    return None if decision is None else decision.maxconn


def _decided(state: PoolState, decisions: Decisions, values: Collection[WantedValue]) -> PoolState:
    """With what was decided carried out."""
    limits = dict(state.limits)
    for one in values:
        if one.what == "maxconn":
            _set_limit(limits, one.server, one.after, state)
    still = {name for name in state.externally_limited if _maxconn(decisions.servers.get(name)) is not None}
    return replace(
        state,
        positions={**state.positions, **{name: decision.position for name, decision in decisions.servers.items()}},
        limits=limits,
        externally_limited=frozenset(still),
        calm=decisions.calm or state.calm,
        held=decisions.held,
    )


def _set_limit(limits: dict[str, int], server: str, maxconn: int, state: PoolState) -> None:
    """Only what is not the baseline is ours."""
    if maxconn == (state.baselines or {})[server].maxconn:
        limits.pop(server, None)
    else:
        limits[server] = maxconn
