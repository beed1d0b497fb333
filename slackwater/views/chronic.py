"""Chronic machines: what each server's machine cost in the last days, and whether it pays to replace it. Pure.

It pays where a machine was slow by itself on many days, and lost more of its capacity than its peers did: a new one is
expected to be like the median of those.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from slackwater.core.config import ReplaceSettings
from slackwater.core.journal.pool_totals import SlowTime
from slackwater.views.row import duration
from slackwater.views.together import together

DAY_S, HOUR_S, MINUTE_S = 86400.0, 3600.0, 60.0
LEAST_DAY_S = 300.0
"""A day counts if a machine was slow for this long in it: a false alarm is over after seconds."""
Advice = Literal["replace", "too_few_days", "too_little", "no_peers"]
"""replace: it pays. too_few_days: it was slow on fewer than `replace.chronic_days`. too_little: it lost less than
`replace.least_lost_share` more than its peers. no_peers: there is nothing to compare it with."""


ADVICE: dict[Advice, str] = {
    "replace": "replace this machine",
    "too_few_days": "not chronic: it was slow on too few days",
    "too_little": "it lost too little, beside its peers, to be worth it",
    "no_peers": "there is no other machine to compare it with",
}
MOST_MACHINES = 10
"""This many of a pool's are listed."""


class Machine(msgspec.Struct, kw_only=True):
    """What one server's machine cost, and the advice about it."""

    pool: str
    node: str
    episodes: int
    """In which it was slow by itself; those that people marked as no neighbour are left out."""
    days: int
    """Days (UTC) on which it was slow for five minutes or more."""
    slow_min: float
    """Minutes in these episodes."""
    lost_min: float
    """Minutes of its whole calm capacity that it lost: each episode counts its length times its highest severity."""
    lost_share: float
    """The same as a share of the time in which the pool was observed, an hour at least."""
    peers_lost_share: float | None
    """Median of the other machines' shares; None: there are no others."""
    slow_requests: float | None
    """Requests of the pool that took too long in its episodes; None: not known."""
    replaced_unix_s: float | None
    """When it was last replaced: what was before does not count. None: not in this time."""
    advice: Advice
    why: str
    """`advice` in words, with the numbers."""


def rank(
    slow: Iterable[SlowTime],
    nodes: Collection[str],
    settings: ReplaceSettings,
    days: int,
    now_unix_s: float,
    *,
    pool: str,
    observed_s: float,
    false_alarms: Collection[tuple[str, int]] = (),
    replaced: Mapping[str, float] = {},
    slow_requests: Mapping[str, float] = {},
) -> list[Machine]:
    """The machines that lost anything in these days, the costliest first.

    `nodes`: those there are now. `observed_s`: how long the pool was observed in these
    days. `false_alarms`: node and begin (Unix milliseconds) of episodes that people marked so. `replaced`: node -> when
    that was.
    """
    since = now_unix_s - days * DAY_S
    counted: dict[str, list[SlowTime]] = {node: [] for node in nodes}
    for span in slow:
        begin = max(since, replaced.get(span.node, since))
        is_false = (span.node, round(span.since_unix_s * 1000)) in false_alarms
        is_limit = span.resource == "own limit"  # a new machine of the same kind has it too
        counts = span.state in settings.states and not is_limit and not is_false
        if span.node in counted and counts and span.until_unix_s > begin:
            counted[span.node].append(span._replace(since_unix_s=max(span.since_unix_s, begin)))
    shares = {
        node: min(_lost_s(spans) / max(min(observed_s, now_unix_s - replaced.get(node, since)), HOUR_S), 1.0)
        for node, spans in counted.items()
    }
    machines = [
        _machine(pool, node, spans, shares, settings, days, replaced.get(node), slow_requests.get(node))
        for node, spans in counted.items()
        if spans
    ]
    return sorted(machines, key=lambda machine: (-machine.lost_share, machine.node))


def _lost_s(spans: Iterable[SlowTime]) -> float:
    return sum((span.until_unix_s - span.since_unix_s) * span.severity for span in spans)


def _bad_days(spans: Iterable[SlowTime]) -> int:
    by_day: dict[int, float] = {}
    for span in spans:
        begin = span.since_unix_s
        while begin < span.until_unix_s:
            day = int(begin // DAY_S)
            end = min(span.until_unix_s, (day + 1) * DAY_S)
            by_day[day] = by_day.get(day, 0.0) + end - begin
            begin = end
    return sum(seconds >= LEAST_DAY_S for seconds in by_day.values())


def _machine(
    pool: str,
    node: str,
    spans: Sequence[SlowTime],
    shares: Mapping[str, float],
    settings: ReplaceSettings,
    days: int,
    replaced_unix_s: float | None,
    slow_requests: float | None,
) -> Machine:
    others = [share for other, share in shares.items() if other != node]
    peers = statistics.median(others) if others else None
    machine = Machine(
        pool=pool,
        node=node,
        episodes=len(together(spans)),
        days=_bad_days(spans),
        slow_min=sum(span.until_unix_s - span.since_unix_s for span in spans) / MINUTE_S,
        lost_min=_lost_s(spans) / MINUTE_S,
        lost_share=shares[node],
        peers_lost_share=peers,
        slow_requests=slow_requests,
        replaced_unix_s=replaced_unix_s,
        advice="replace",
        why="",
    )
    if peers is None:
        machine.advice = "no_peers"
    elif machine.days < settings.chronic_days:
        machine.advice = "too_few_days"
    elif machine.lost_share - peers < settings.least_lost_share:
        machine.advice = "too_little"
    machine.why = _why(machine, settings, days)
    return machine


def _why(machine: Machine, settings: ReplaceSettings, days: int) -> str:
    requests = "" if machine.slow_requests is None else f", and {machine.slow_requests:,.0f} requests took long"
    cost = (
        f"slow by itself for {duration(machine.slow_min * MINUTE_S)} in {days} d, on {machine.days} of them for"
        f" {duration(LEAST_DAY_S)} or more; it lost {machine.lost_share:.1%} of its capacity"
    )
    if machine.advice == "no_peers":
        return f"{cost}{requests}; there is no other machine to compare it with"
    peers = f"{cost}, its peers {machine.peers_lost_share or 0.0:.1%}{requests}"
    if machine.advice == "too_few_days":
        return f"{peers}; replacing it pays from {settings.chronic_days} such days on"
    if machine.advice == "too_little":
        points = 100 * settings.least_lost_share
        return f"{peers}; replacing it pays if it lost {points:.1f} percentage points more than its peers"
    return f"{peers}: replace this machine"
