"""A cycle in words: the sentence in the log and on the page, and the state of each server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slackwater.core.messages import Change, Evenness, ServerState, Verdict
from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.decision.decide import Decisions
from slackwater.lbengine.decision.evenness import Advice
from slackwater.lbengine.decision.state import PoolState
from slackwater.lbengine.verdicts import is_failing

HELD = "someone else set its weight, so it is left alone"
"""Why a server has its weight."""
MOST_PARTS = 30
"""Most parts of a sentence: nobody reads more."""


def cycle(
    pool: str,
    state: PoolState,
    snapshot: Snapshot,
    decisions: Decisions,
    changes: Sequence[Change],
    remarks: Sequence[str],
    verdicts: Mapping[str, Verdict],
    *,
    observing: bool,
) -> str:
    """The sentence, as `web: host1 100 -> 0 (interference, 82% of capacity lost, ...); 2 others unchanged`.

    `remarks` stand in front. `verdicts`: by server.
    """
    baselines = {name: baseline.weight for name, baseline in (state.baselines or {}).items()}
    servers = {server.name: server for server in snapshot.servers}
    left_alone = {
        name: "it has no baseline weight" if server.available else server.condition
        for name, server in servers.items()
        if state.phase in ("observing", "acting")
        and name not in decisions.servers
        and name not in state.externally_controlled
        and not server.backup
        and server.placeholder != "no_address"
    }
    parts = list(remarks)
    parts += [f"{name} fails far more than the others" for name, verdict in verdicts.items() if is_failing(verdict)]
    if decisions.panic:
        parts.append(f"{decisions.panic}: all have their baseline weights")
    moved = set()
    for change in changes:
        moved.add(change.target)
        if change.what == "maxconn":
            parts.append(
                f"{'would set ' if observing else ''}{change.target} maxconn {change.before} -> {change.after}"
            )
            continue
        decision = decisions.servers.get(change.target)
        short = ", ".join(decision.short) if decision is not None else change.why
        would = "would set " if observing else ""
        parts.append(f"{would}{change.target} {change.before} -> {change.after} ({short})")
    for name, decision in decisions.servers.items():
        weight = decision.position.weight
        if name not in moved and weight < baselines[name]:
            moved.add(name)
            if observing:
                where = f"would be at {weight} of {baselines[name]}, and is at {servers[name].weight}"
            else:
                where = f"stays at {weight} of {baselines[name]}"
            parts.append(f"{name} {where} ({decision.short[0]})")
    for name in sorted(state.externally_controlled):
        if name not in moved:
            moved.add(name)
            held = f"{name} is held at {servers[name].weight} by someone else"
            parts.append(f"{held}, its baseline is {baselines[name]}")
    for name, reason in left_alone.items():
        if name not in moved:
            moved.add(name)
            parts.append(f"{name} is left alone ({reason})")
    if (hidden := len(parts) - MOST_PARTS) > 0:
        parts[MOST_PARTS:] = [f"and {hidden} more of these"]
    rest = sum(name not in moved for name in decisions.servers)
    if rest:
        parts.append(
            f"{rest} {'others ' if moved else ''}unchanged" if rest > 1 else f"1 {'other ' if moved else ''}unchanged"
        )
    return f"{pool}{' (observe)' if observing else ''}: {'; '.join(parts) or 'no servers'}"


def servers(
    snapshot: Snapshot,
    decisions: Decisions,
    state: PoolState,
    weights: Mapping[str, int],
    verdicts: Mapping[str, Verdict],
) -> list[ServerState]:
    """The pool's servers after a cycle.

    `weights`: the weights that the cycle has set; other servers have that of `snapshot`. `verdicts`: by server; their
    response times, measured by the nodes, are preferred to the balancer's.
    """
    rates, baselines = state.rates, state.baselines or {}
    advice = state.calm_weights.advice or Advice("not_known")
    total_rps = sum(rates.rps.values()) if rates.rps else 0.0
    states = []
    for server in snapshot.servers:
        if server.placeholder == "no_address":
            continue
        decision = decisions.servers.get(server.name)
        weight = weights.get(server.name, server.weight)
        rps = None if rates.rps is None else rates.rps.get(server.name)
        verdict = verdicts.get(server.name)
        measured = None if verdict is None else verdict.rt_mean_ms
        states.append(
            ServerState(
                server=server.name,
                condition=server.condition,
                weight=weight,
                baseline=baselines[server.name].weight,
                wanted=weight if decision is None else decision.position.weight,
                rps=rps,
                in_flight=None if server.uncounted else server.in_flight,
                rt_mean_ms=server.rt_mean_ms if measured is None else measured,
                share=rps / total_rps if rps is not None and total_rps > 0 else None,
                why=HELD * (server.name in state.externally_controlled) if decision is None else decision.why,
                cause=None if decision is None else decision.cause,
                queue=server.queued if snapshot.counts == "requests" and not server.uncounted else None,
                queue_mean_ms=server.queue_mean_ms,
                balancer_rt_mean_ms=server.rt_mean_ms,
                errors_per_s=None if rates.errors is None else rates.errors.get(server.name),
                failed_share=None if verdict is None else verdict.failed_share,
                peers_failed_share=None if verdict is None else verdict.peers_failed_share,
                maxconn=server.maxconn,
                calm_weight=state.calm_weights.lowered.get(server.name),
                carries=advice.carries.get(server.name),
                advised=advice.weights.get(server.name),
                backup=server.backup,
            )
        )
    return states


def evenness(advice: Advice | None) -> Evenness | None:
    """How evenly the calm servers are filled, for the Cycle."""
    if advice is None or advice.outcome == "not_known":
        return None if advice is None else Evenness(advice.outcome)
    return Evenness(advice.outcome, advice.mean, advice.fullest, advice.evened, advice.saved)
