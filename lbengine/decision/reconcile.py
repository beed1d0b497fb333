"""The first half of a turn: what is believed is brought up to date with what the balancer shows.

A difference is a reload, somebody else's change, or our own value that was not confirmed yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lbengine.balancer import Snapshot
from lbengine.baseline import Baseline, diff_from_baseline, merge, set_by_someone
from lbengine.decision import limits
from lbengine.decision.position import Position
from lbengine.decision.state import PoolState, PoolView
from slackwater.config import PoolSettings
from slackwater.messages import Verdict


@dataclass(frozen=True)
class Findings:
    """What is worth recording about a look at the balancer."""

    verdicts: Mapping[str, Verdict]
    """By server."""
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
        started_s=now_s if state.started_s is None else state.started_s,
        rates=state.rates.after(now_s, snapshot, reported, restarted),
    )
    external: dict[str, tuple[int, int]] = {}
    if state.phase in ("observing", "paused"):
        baselines, news = merge(state.baselines, snapshot, {}, follow=True)
        theirs = {one.name for one in snapshot.servers if one.weight != baselines[one.name].weight > 0}
        positions = _followed(state, snapshot, baselines, theirs)
        state = replace(state, positions=positions, externally_controlled=frozenset(theirs))
    else:
        state, changed = _reconcile_limits(state, view, restarted)
        remarks += [f"{name}'s maxconn is {most} by someone else" for name, most in changed.items()]
        baselines, news = merge(state.baselines, snapshot, state.limits)
        slow = {name for name, verdict in verdicts.items() if verdict.state == "interference"}
        forgiving = restarted or now_s < state.grace_until_s
        state, external = _reconcile_weights(state, view, baselines, slow, forgiving)
    state = replace(state, baselines=baselines)
    remarks += [f"baseline: {text}" for text in news]
    remarks += [f"{name} {ours} -> {theirs} by someone else" for name, (ours, theirs) in external.items()]
    return state, Findings(verdicts, external, tuple(remarks))


def _remarks(state: PoolState, snapshot: Snapshot, restarted: bool, pool: PoolSettings) -> list[str]:
    remarks, last = [], state.last
    if snapshot.returned:
        remarks.append("one that was left out answers again")
    elif restarted and last is not None and len(snapshot.absent) <= len(last.absent):
        pids = f" (pid {last.pid} -> {snapshot.pid})" if snapshot.pid != last.pid else ""
        remarks.append(f"{pool.title} was reloaded or started anew{pids}")
    remarks += [f"left out: {why}" for why in (*snapshot.absent, *snapshot.unreadable.values())]
    remarks += [server.uncounted for server in snapshot.servers if server.uncounted]
    remarks += snapshot.trouble
    return remarks + [f"{s.name} is in the balancer's slow start" for s in snapshot.servers if s.slow_start]


def _followed(
    state: PoolState, snapshot: Snapshot, baselines: Mapping[str, Baseline], theirs: Collection[str]
) -> dict[str, Position]:
    """While nothing is set the weights are what they are. In `observing` a position is where we would have gone, until
    the server's baseline changes or somebody else sets its weight (`theirs`)."""
    known = state.baselines or {}
    return {
        server.name: state.positions[server.name]
        if state.phase == "observing"
        and server.name in state.positions
        and server.name not in theirs
        and known.get(server.name) == baselines[server.name]
        else Position(server.weight)
        for server in snapshot.servers
    }


def _reconcile_limits(state: PoolState, view: PoolView, restarted: bool) -> tuple[PoolState, dict[str, int]]:
    """The limits that are ours, and those that someone else has changed."""
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
    """While we act. `baselines` are those after this look, `slow` the servers with a Verdict of interference.

    After a restart (`forgiving`) our positions stand: they are sent again, adapted to a new baseline; servers that take
    no requests are taken as they are. Otherwise a weight that we did not set is someone else's: theirs until it is at
    the baseline again and nothing calls for less. So is that of a server which we see for the first time, and never
    drove: a weight that an lbengine before us set has its baseline on disk.
    """
    known = state.baselines or {}
    held = set_by_someone(known, view.snapshot)
    positions: dict[str, Position] = {}
    theirs = set(state.externally_controlled & {server.name for server in view.snapshot.servers})
    external: dict[str, tuple[int, int]] = {}
    for server in view.snapshot.servers:
        name, baseline = server.name, baselines[server.name].weight
        position = state.positions.get(name)
        if position is None or name in theirs:
            never_ours = name not in known or held.get(name) == server.weight
            # One that is lowered at our start was by the lbengine before, in an episode that goes on.
            lowered = position is None and not never_ours and server.weight < baseline
            positions[name] = Position(server.weight, moved_s=view.now_s if lowered else None)
            if name not in theirs and never_ours and server.weight != baseline > 0:
                theirs.add(name)
                external[name] = (baseline, server.weight)
        elif server.weight == position.weight:
            positions[name] = position
        elif forgiving and server.available:
            untouched = name not in known or position.weight == known[name].weight
            positions[name] = Position(baseline) if untouched or position.weight > baseline else position
        else:
            positions[name] = Position(server.weight)
            if not forgiving and view.unconfirmed.get(name) != server.weight:
                theirs.add(name)
                external[name] = (position.weight, server.weight)
        if name in theirs and server.weight == baseline and name not in slow:
            theirs.discard(name)
    return replace(state, positions=positions, externally_controlled=frozenset(theirs)), external
