"""The first half of a turn: the pool's state is brought up to date with the balancer.

A difference between the two is a reload, somebody else's change, or our own value that was not confirmed yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from slackwater.core.config import PoolSettings
from slackwater.core.messages import SLOW_ALONE, Verdict
from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.baseline import Baseline, diff_from_baseline, merge, set_by_someone
from slackwater.lbengine.decision import limits
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.state import PoolState, PoolView


@dataclass(frozen=True)
class Findings:
    """The result of a look at the balancer."""

    verdicts: Mapping[str, Verdict]
    """By server, not by node."""
    external: Mapping[str, tuple[int, int]]
    """Weights that someone else has set: server -> (ours, theirs)."""
    remarks: tuple[str, ...]


def reconcile(state: PoolState, view: PoolView, pool: PoolSettings) -> tuple[PoolState, Findings]:
    """The state after a look at the balancer, in any phase but `standby`."""
    snapshot, now_s = view.snapshot, view.now_s
    restarted = snapshot.restarted_since(state.last)
    remarks = _remarks(state, snapshot, restarted, pool)
    nodes = {server.name: pool.servers.get(server.name, server.name) for server in snapshot.servers}
    verdicts = {name: view.verdicts[node] for name, node in nodes.items() if node in view.verdicts}
    reported = {name: verdict.rps for name, verdict in verdicts.items() if verdict.rps is not None}
    state = replace(
        state,
        last=snapshot,
        slow_starts=state.slow_starts | {server.name for server in snapshot.servers if server.slow_start},
        started_s=now_s if state.started_s is None else state.started_s,
        rates=state.rates.after(now_s, snapshot, reported, restarted),
    )
    external: dict[str, tuple[int, int]] = {}
    if state.phase in ("observing", "paused"):
        baselines, news = merge(state.baselines, snapshot, {}, follow=True)
        held_by_others = {
            server.name for server in snapshot.servers if server.weight != baselines[server.name].weight > 0
        }
        positions = _followed(state, snapshot, baselines, held_by_others)
        state = replace(state, positions=positions, externally_controlled=frozenset(held_by_others))
    else:
        state, changed = _reconcile_limits(state, view, restarted)
        remarks += [f"{name}'s maxconn is {limit} by someone else" for name, limit in changed.items()]
        baselines, news = merge(state.baselines, snapshot, state.limits)
        slow = {name for name, verdict in verdicts.items() if verdict.state in SLOW_ALONE}
        forgiving = restarted or now_s < state.grace_until_s
        state, external = _reconcile_weights(state, view, baselines, slow, forgiving)
    known = state.baselines or {}
    calm_weights = state.calm_weights.in_phase(state.phase)
    if external or any(name in known and known[name].weight != new.weight for name, new in baselines.items()):
        calm_weights = calm_weights.undone(now_s)
    state = replace(state, baselines=baselines, calm_weights=calm_weights)
    remarks += [f"baseline: {text}" for text in news]
    remarks += [
        f"{name} {ours} -> {held_by_others} by someone else" for name, (ours, held_by_others) in external.items()
    ]
    return state, Findings(verdicts, external, tuple(remarks))


def _remarks(state: PoolState, snapshot: Snapshot, restarted: bool, pool: PoolSettings) -> list[str]:
    remarks, last = [], state.last
    if snapshot.returned:
        remarks.append("a part of the balancer that did not answer is back")
    elif restarted and last is not None and len(snapshot.absent) <= len(last.absent):
        pids = f" (pid {last.pid} -> {snapshot.pid})" if snapshot.pid != last.pid else ""
        remarks.append(f"{pool.title} was reloaded or started anew{pids}")
    remarks += [f"left out: {why}" for why in (*snapshot.absent, *snapshot.unreadable.values())]
    remarks += [server.uncounted for server in snapshot.servers if server.uncounted]
    remarks += snapshot.trouble
    return remarks + [
        f"{server.name} is in the balancer's slow start" for server in snapshot.servers if server.slow_start
    ]


def _followed(
    state: PoolState, snapshot: Snapshot, baselines: Mapping[str, Baseline], held_by_others: Collection[str]
) -> dict[str, Position]:
    """The positions while nothing is set: the servers' weights.

    In `observing` a position is the weight that we would have set, until the server's baseline changes or another
    program sets its weight (`held_by_others`).
    """
    known = state.baselines or {}
    return {
        server.name: state.positions[server.name]
        if state.phase == "observing"
        and server.name in state.positions
        and server.name not in held_by_others
        and known.get(server.name) == baselines[server.name]
        else Position(server.weight)
        for server in snapshot.servers
    }


def _reconcile_limits(state: PoolState, view: PoolView, restarted: bool) -> tuple[PoolState, dict[str, int]]:
    """The state with the limits that are still ours, and the limits that someone else has changed."""
    ours = {**state.limits, **view.unconfirmed_limits}
    if state.adopt_limits or view.snapshot.returned:
        _, lowered = diff_from_baseline(view.snapshot, state.baselines or {})
        ours = {name: shown for name, (shown, _) in lowered.items()}
    kept, changed = limits.still_ours(ours, view.snapshot.servers, view.unconfirmed_limits, restarted)
    state = replace(state, limits=kept, adopt_limits=False, externally_limited=state.externally_limited | set(changed))
    return state, changed


def _reconcile_weights(
    state: PoolState, view: PoolView, baselines: Mapping[str, Baseline], slow: Collection[str], forgiving: bool
) -> tuple[PoolState, dict[str, tuple[int, int]]]:
    """The state while we act, and the weights that someone else has set: server -> (ours, theirs).

    `baselines`: after this look; `slow`: servers with a Verdict of interference. After a restart (`forgiving`) our
    positions are kept, adapted to a new baseline, and sent again; a server that takes no requests keeps the weight that
    it shows. Otherwise a weight that we did not set belongs to someone else, until it is at the baseline again and
    nothing calls for less. So does the weight of a server that we see for the first time, unless its baseline is on
    disk: then an earlier lbengine may have set it.
    """
    known = state.baselines or {}
    held = set_by_someone(known, view.snapshot)
    positions: dict[str, Position] = {}
    held_by_others = set(state.externally_controlled & {server.name for server in view.snapshot.servers})
    external: dict[str, tuple[int, int]] = {}
    for server in view.snapshot.servers:
        name, baseline = server.name, baselines[server.name].weight
        position = state.positions.get(name)
        if position is None or name in held_by_others:
            never_ours = name not in known or held.get(name) == server.weight
            # A server that is lowered at our start was lowered by the lbengine before, in an episode that goes on.
            lowered = position is None and not never_ours and server.weight < baseline
            positions[name] = Position(server.weight, moved_s=view.now_s if lowered else None)
            if name not in held_by_others and never_ours and server.weight != baseline > 0:
                held_by_others.add(name)
                external[name] = (baseline, server.weight)
        elif server.weight == position.weight:
            positions[name] = position
        elif forgiving and server.available:
            untouched = name not in known or position.weight == known[name].weight
            positions[name] = Position(baseline) if untouched or position.weight > baseline else position
        else:
            positions[name] = Position(server.weight)
            if not forgiving and view.unconfirmed.get(name) != server.weight:
                held_by_others.add(name)
                external[name] = (position.weight, server.weight)
        # Of a server that takes no requests the full weight is a person's word too: it comes back with that.
        if name in held_by_others and server.weight == baseline and name not in slow and server.available:
            held_by_others.discard(name)
    return replace(state, positions=positions, externally_controlled=frozenset(held_by_others)), external
