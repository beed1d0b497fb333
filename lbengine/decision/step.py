"""One turn of an engine, without I/O: from the pool's state and a view of it to the values to set.

The engine carries the actions out. Simulations call `step` and take them as carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import ChangeCause
from slackwater.lbengine.baseline import diff_from_baseline
from slackwater.lbengine.decision.decide import Decision, Decisions, decide
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.reconcile import Findings, reconcile
from slackwater.lbengine.decision.state import PoolState, PoolView

What = Literal["weight", "maxconn"]


@dataclass(frozen=True)
class WantedValue:
    """A weight or `maxconn` of one server that is to be set, or in `observing` would be."""

    what: What
    server: str
    before: int
    after: int
    why: str
    cause: ChangeCause | None


@dataclass(frozen=True)
class Actions:
    """What the engine has to do in a turn, in this order."""

    findings: Findings
    restore_weights: Mapping[str, tuple[int, int]]
    """Put back at once: server -> (shown, baseline)."""
    restore_limits: Mapping[str, tuple[int, int]]
    is_restored: bool
    """Once these are put back, nothing of ours is set any more, and the stored baseline can be removed."""
    decisions: Decisions
    wanted: list[WantedValue]
    otherwise: PoolState
    """The state if none of the actions can be carried out: servers keep the weights that the balancer showed."""


def step(state: PoolState, view: PoolView, pool: PoolSettings, settings: LbengineSettings) -> tuple[PoolState, Actions]:
    """The actions of a turn, and the state once they are carried out. Not for the phase `standby`."""
    restarted = view.snapshot.restarted_since(state.last)
    lost = f"{pool.title} {'was reloaded or restarted' if restarted else 'was set back by the previous lbengine'}"
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
        is_restored = not view.snapshot.not_reached(state.baselines or {})  # else restoring is still due
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
    """The state where these values were not set."""
    positions, limits = dict(state.positions), dict(state.limits)
    for value in values:
        if value.what == "weight":
            positions[value.server] = Position(value.before, warm_up=positions[value.server].warm_up)
        else:
            _set_limit(limits, value.server, value.before, state)
    return replace(state, positions=positions, limits=limits)


def _weights(
    decisions: Decisions, shown: Mapping[str, int], believed: Mapping[str, Position], lost: str
) -> list[WantedValue]:
    """The weights to set. `lost`: in words, why the balancer may show another weight than the one that it was given."""
    wanted = []
    for name, decision in decisions.servers.items():
        before, after = shown[name], decision.position.weight
        if before == after:
            continue
        why, cause = decision.why, decision.cause
        sent_again = before != believed[name].weight
        if sent_again:
            why = f"{lost} and shows {before}; {after} is set again: {why}"
        wanted.append(WantedValue("weight", name, before, after, why, "sent_again" if sent_again else cause))
    return wanted


def _limits(state: PoolState, decisions: Decisions) -> list[WantedValue]:
    """The `maxconn`s to set."""
    wanted = []
    for name, baseline in (state.baselines or {}).items():
        decision = decisions.servers.get(name)
        if baseline.maxconn is None or (decision is not None and decision.cause == "waiting"):
            continue
        set_now = state.limits.get(name, baseline.maxconn)
        wanted_now = (None if name in state.externally_limited else _maxconn(decision)) or baseline.maxconn
        if set_now != wanted_now:
            why = decision.why if decision is not None else "it takes no requests"
            wanted.append(
                WantedValue("maxconn", name, set_now, wanted_now, why, None if decision is None else decision.cause)
            )
    return wanted


def _maxconn(decision: Decision | None) -> int | None:
    return None if decision is None else decision.maxconn


def _decided(state: PoolState, decisions: Decisions, values: Collection[WantedValue]) -> PoolState:
    """The state once the decisions are carried out."""
    limits = dict(state.limits)
    for value in values:
        if value.what == "maxconn":
            _set_limit(limits, value.server, value.after, state)
    positions = {name: decision.position for name, decision in decisions.servers.items()}
    still = {name for name in state.externally_limited if _maxconn(decisions.servers.get(name)) is not None}
    return replace(
        state,
        positions={**state.positions, **decisions.away, **positions},
        limits=limits,
        externally_limited=frozenset(still),
        calm=decisions.calm or state.calm,
        held=decisions.held,
        failing=decisions.failing,
        calm_weights=decisions.calm_weights or state.calm_weights,
    )


def _set_limit(limits: dict[str, int], server: str, maxconn: int, state: PoolState) -> None:
    """Keeps the limit as ours; a limit that is the baseline is nobody's, and goes."""
    if maxconn == (state.baselines or {})[server].maxconn:
        limits.pop(server, None)
    else:
        limits[server] = maxconn
