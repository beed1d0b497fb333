"""What is kept of a turn: what a calm pool shows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slackwater.core.config import PoolSettings
from slackwater.core.messages import Verdict
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.decision import evenness
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.evenness import CalmWeights
from slackwater.lbengine.decision.loads import Load
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.verdicts import is_failing

UNLIKELY = 0.05
"""A server whose neighbour is less likely than this is calm without doubt."""


def calm(state: PoolState, view: PoolView, usable: Collection[Server], loads: Sequence[Load]) -> Calm | None:
    """The sums over the calm pool, with this turn's look; None unless all servers are calm and counted."""
    rates = state.rates
    if view.snapshot.counts == "connections" or any(server.uncounted for server in usable):
        return None
    if not rates.total_rps or not _all_calm(view, loads):
        return None
    held = sum(server.in_flight for server in usable)
    return state.calm.after(view.now_s, held, rates.total_rps)


def calm_weights(
    state: PoolState, view: PoolView, pool: PoolSettings, movable: Collection[str], loads: Sequence[Load]
) -> CalmWeights:
    """The weights in calm after this turn. Only a whole pool that nobody else changes is looked at."""
    before, baselines = state.calm_weights, {load.server: (state.baselines or {})[load.server].weight for load in loads}
    verdicts = {name: view.verdicts[name] for name in baselines if name in view.verdicts}
    even = evenness.pool_of(baselines, view.snapshot)
    overloaded = [name for name, verdict in verdicts.items() if verdict.state == "overload"]
    before = before.beside(view.now_s, overloaded, even)
    failing = [name for name, verdict in verdicts.items() if is_failing(verdict)]
    overrides = (view.drains, view.caps, view.holds, view.pins, failing)
    if any(overrides) or len(movable) < len(loads) or not _without_neighbours(verdicts, loads):
        return before
    measured = {name for name, verdict in verdicts.items() if verdict.source == "monitor"}
    after = before.after(view.now_s, loads, measured, even)
    return after.stepped(view.now_s, even, pool.balance_step_s) if pool.balance_capacity else after


def _all_calm(view: PoolView, loads: Sequence[Load]) -> bool:
    """Whether all servers are calm without doubt and have their full weights."""
    states = {view.verdicts[load.server].state if load.server in view.verdicts else None for load in loads}
    doubtful = any(load.warming or load.probability >= UNLIKELY or load.weight != load.baseline for load in loads)
    return states == {"calm"} and not doubtful


def _without_neighbours(verdicts: Mapping[str, Verdict], loads: Sequence[Load]) -> bool:
    """Whether all servers are calm without doubt, or filled by their own load, and have their full weights."""
    states = {load.server: verdicts[load.server].state if load.server in verdicts else None for load in loads}
    return all(
        load.weight == load.baseline
        and not load.warming
        and (states[load.server] == "overload" or (states[load.server] == "calm" and load.probability < UNLIKELY))
        for load in loads
    )
