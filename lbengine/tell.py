"""What a cycle did, in one sentence: the line in the log, on the page and in the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbengine.balancer import Snapshot
from lbengine.decision.decide import Decisions
from slackwater.messages import Change, ServerState


def sentence(
    pool: str,
    observing: bool,
    changes: Sequence[Change],
    decisions: Decisions,
    baselines: Mapping[str, int],
    yielded: Mapping[str, int],
    left_alone: Mapping[str, str],
    remarks: Sequence[str],
) -> str:
    """`web: host1 100 -> 0 (interference, 82% of capacity lost, ...); 2 others unchanged`.

    `yielded`: weight of each server that someone else holds; `left_alone`: status of each that takes no requests;
    `remarks`: what else is worth telling, in front.
    """
    parts = list(remarks)
    if decisions.panic:
        parts.append(f"panic: {decisions.panic}, baseline weights")
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
            parts.append(f"{name} stays at {weight} of {baselines[name]} ({decision.short[0]})")
    for name, weight in yielded.items():
        if name not in moved:
            moved.add(name)
            parts.append(f"{name} is held at {weight} by someone else")
    for name, status in left_alone.items():
        if name not in moved:
            moved.add(name)
            parts.append(f"{name} is left alone ({status})")
    rest = sum(name not in moved for name in decisions.servers)
    if rest:
        parts.append(
            f"{rest} {'others ' if moved else ''}unchanged" if rest > 1 else f"1 {'other ' if moved else ''}unchanged"
        )
    return f"{pool}{' (observe)' if observing else ''}: {'; '.join(parts) or 'no servers'}"


def servers(
    snapshot: Snapshot,
    decisions: Decisions,
    baselines: Mapping[str, int],
    weights: Mapping[str, int],
    rates: Mapping[str, float] | None,
    rt_mean_ms: Mapping[str, float | None],
    errors: Mapping[str, float] | None = None,
) -> list[ServerState]:
    """The pool's servers after a cycle. `weights` are those set in it, where they are not the ones in `snapshot`;
    `rates` in requests and `errors` in failures per second; `rt_mean_ms` as the nodes measured it, else the
    balancer's is shown."""
    total_rps = sum(rates.values()) if rates else 0.0
    states = []
    for server in snapshot.servers:
        decision = decisions.servers.get(server.name)
        weight = weights.get(server.name, server.weight)
        rps = None if rates is None else rates.get(server.name)
        measured = rt_mean_ms.get(server.name)
        states.append(
            ServerState(
                server=server.name,
                status=server.status,
                weight=weight,
                baseline=baselines[server.name],
                wanted=weight if decision is None else decision.position.weight,
                rps=rps,
                in_flight=server.in_flight,
                rt_mean_ms=server.rt_mean_ms if measured is None else measured,
                share=rps / total_rps if rps is not None and total_rps > 0 else None,
                why="" if decision is None else decision.why,
                cause=None if decision is None else decision.cause,
                queue=server.queued if snapshot.counts == "requests" else None,
                queue_mean_ms=server.queue_mean_ms,
                balancer_rt_mean_ms=server.rt_mean_ms,
                errors_per_s=None if errors is None else errors.get(server.name),
                maxconn=server.maxconn,
            )
        )
    return states
