"""The table of a pool that `slackwater status`, the page and the API show.

Old data is never shown as current: a silent controller or node is `unknown`, with the time since its last message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from slackwater.journal.journal import Journal, Reading
from slackwater.messages import GOVERNOR, Change, DecisionCause, Knobs, Mode, Resource, ServerState, State, Verdict
from slackwater.renamed import old_field
from slackwater.views.percentile import pooled_ms

STALE_AFTER_S = 3.0
"""Cycles come every 0.2 s and are in the journal half a second later: after this long, something is dead."""
SERVING = ("UP", "no check")
"""How HAProxy's status begins for a server that takes requests; `no check` is one without health checks."""
KNOBS_FRESH_S = 20.0
"""A wsengine publishes its knobs every 5 s; one that is silent for longer may have put everything back."""
FORGET_AFTER_S = 60.0
"""A node that is no server of the balancer is listed while its last Sample is younger than this."""

NOTHING = "\N{EN DASH}"
"""Stands for a missing value."""
SYMBOLS: dict[State, str] = {"calm": "●", "interference": "▲", "overload": "■", "all_slow": "◆", "unknown": "?"}
"""Beside the word, never instead of it."""
WORDS: dict[State, str] = {
    "calm": "calm",
    "interference": "interference",
    "overload": "overload",
    "all_slow": "all slow",
    "unknown": "unknown",
}
_STATE_OF_CAUSE: dict[DecisionCause, State] = {
    "interference": "interference",
    "not_shown": "interference",
    "no_gain": "interference",
    "overload": "overload",
    "all_slow": "all_slow",
    "unknown": "unknown",
}
"""Causes of lbengine's decisions whose reason includes the Verdict's."""
_URGENCY: tuple[State, ...] = ("all_slow", "interference", "overload", "unknown")
_HEADLINES: tuple[tuple[State, str], ...] = (("interference", "beside a noisy neighbour"), ("overload", "overloaded"))


class Row(msgspec.Struct):
    """One server of a pool; unknown values are None."""

    node: str
    server: str
    """The balancer's name of it; empty for a node that is no server of this backend."""
    status: str
    """The balancer's word: UP, DOWN, MAINT, ..."""
    state: State
    since_unix_s: float | None
    weight: int | None
    baseline: int | None
    wanted: int | None
    """The weight that lbengine wants; differs from `weight` in observe mode."""
    rps: float | None
    share: float | None
    """Share of the pool's requests in the last second."""
    share_wanted: float | None
    """The share by the wanted weights; None where weights do not set it (least connections, hashes), or unknown."""
    rt_p95_ms: float | None
    rt_p99_ms: float | None
    cpu: float | None
    """Utilisation: 1.0 is full."""
    why: str
    resource: Resource | None = None
    """What a neighbour takes (`unclear` if that cannot be decided); only in `interference`."""
    retuned: list[str] = []
    """What the second stage has changed on the node: `php_fpm.max_children 4 → 16`."""
    turned: Annotated[list[str], old_field("retuned")] = []
    governed: list[str] = []
    """What the governor has changed on the node: `cpu.cores 4 → 2`."""

    def __post_init__(self) -> None:
        self.turned = self.retuned


class PoolView(msgspec.Struct, kw_only=True):
    """A pool, now; mode, law and balance are None when there never was a Cycle."""

    pool: str
    mode: Mode | None = None
    paused: bool = False
    law: str | None = None
    balance: str | None = None
    sentence: str
    """What the last cycle did."""
    age_s: float | None = None
    """Since the last Cycle; None: there was none."""
    stale: bool = True
    """True: the controller is silent, the rows show the last known values."""
    judged: bool = False
    """Whether there ever was a Verdict on any of its nodes."""
    state: State = "unknown"
    """The pool as one: the most urgent of its servers' states, `unknown` when stale."""
    headline: str
    rt_p95_ms: float | None = None
    """Over the requests of all servers; None when stale or without requests."""
    rt_p99_ms: float | None = None
    rows: list[Row] = []
    rescue_timeout_ms: int | None = None
    """A GET or HEAD that is not answered within this is sent to another server too; None: none is."""
    rescue_sent_twice: int | None = None
    """Requests so far, since lbengine began; None: none, or stale."""


def pool_view(journal: Journal, pool: str, now_unix_s: float, servers: Mapping[str, str] | None = None) -> PoolView:
    """The pool's table at `now_unix_s`; `servers` maps server names to node names where they differ (settings).

    Raises JournalError.
    """
    servers = servers or {}
    cycle = journal.latest_cycle(pool)
    verdicts = journal.latest_verdicts(pool)
    judged_unix_s = journal.received("verdict", pool)
    readings = journal.readings(pool)
    knobs = journal.latest_knobs(pool)
    age_s = None if cycle is None else max(0.0, now_unix_s - cycle.time_unix_s)
    stale = age_s is None or age_s > STALE_AFTER_S
    silence = "" if not stale else ("no cycle yet" if age_s is None else f"no data for {duration(age_s)}")
    by_weight = cycle is not None and cycle.weights_mean == "share"
    wanted = sum(server.wanted for server in cycle.servers if server.status.startswith(SERVING)) if cycle else 0

    served = sum(reading.rps or 0.0 for reading in readings.values())

    def measured(reading: Reading | None) -> float | None:
        """The share as the nodes measured it, where the balancer did not."""
        return reading.rps / served if reading is not None and reading.rps is not None and served > 0.0 else None

    def row(node: str, server: ServerState | None) -> Row:
        reading = readings.get(node)
        if reading is not None and now_unix_s - reading.received_unix_s > STALE_AFTER_S:
            reading = None
        verdict = verdicts.get(node)
        state, why = _judged(verdict, now_unix_s - judged_unix_s.get(node, 0.0), silence)
        latest, received_unix_s = knobs.get(node, (None, 0.0))
        held = latest if now_unix_s - received_unix_s < KNOBS_FRESH_S else None
        retuned, governed = _held(held, by_governor=False), _held(held, by_governor=True)
        reasons = _reasons(server, state, why, stale)
        for word, values in (("retuned", retuned), ("governed", governed)):
            if values:
                reasons = f"{reasons}{'; ' if reasons else ''}{word}: {', '.join(values)}"
        return Row(
            node=node,
            server=server.server if server else "",
            status=server.status if server else "",
            state=state,
            since_unix_s=verdict.since_unix_s if verdict is not None and state == verdict.state else None,
            weight=server.weight if server else None,
            baseline=server.baseline if server else None,
            wanted=server.wanted if server else None,
            rps=_first(reading.rps if reading else None, server.rps if server and not stale else None),
            share=None if stale else _first(server.share if server else None, measured(reading)),
            share_wanted=server.wanted / wanted if server and wanted and by_weight and not stale else None,
            rt_p95_ms=reading.rt_p95_ms if reading else None,
            rt_p99_ms=reading.rt_p99_ms if reading else None,
            cpu=reading.cpu if reading else None,
            why=reasons,
            retuned=retuned,
            governed=governed,
            resource=verdict.resource if verdict is not None and state == verdict.state else None,
        )

    known = {servers.get(server.server, server.server): server for server in (cycle.servers if cycle else [])}
    rows = [row(node, server) for node, server in known.items()]
    for node, reading in readings.items():
        if node not in known and now_unix_s - reading.received_unix_s < FORGET_AFTER_S:
            rows.append(row(node, None))
            if cycle is not None:
                rows[-1].why = "no server of the backend has this name (see `servers` in the pool's settings)"
    state, headline = _headline(rows, silence)
    fresh = [r for r in readings.values() if not stale and now_unix_s - r.received_unix_s <= STALE_AFTER_S]
    measured_now = [(r.rps or 0.0, r.rt_p50_ms, r.rt_p95_ms, r.rt_p99_ms) for r in fresh]
    return PoolView(
        pool=pool,
        mode=cycle.mode if cycle else None,
        paused=cycle.paused if cycle else False,
        law=cycle.law if cycle else None,
        balance=cycle.balance if cycle else None,
        sentence=cycle.sentence if cycle else f"{pool}: nothing recorded yet",
        age_s=age_s,
        stale=stale,
        judged=bool(verdicts),
        state=state,
        headline=headline,
        rt_p95_ms=pooled_ms(measured_now, 0.95),
        rt_p99_ms=pooled_ms(measured_now, 0.99),
        rows=rows,
        rescue_timeout_ms=cycle.rescue_timeout_ms if cycle and not stale else None,
        rescue_sent_twice=cycle.rescue_sent_twice if cycle and not stale else None,
    )


def no_view(pool: str, error: str) -> PoolView:
    """The view of a pool whose journal cannot be read."""
    return PoolView(pool=pool, sentence=error, headline="Nothing is known: the journal cannot be read")


def describe_change(change: Change) -> str:
    """What a Change did, in a few words: `weight of web1: 100 → 0`."""
    if change.what == "outcome":
        return f"outcome for {change.target}"  # `why` has it in words, with units
    if change.what == "mark_episode":
        return f"episode of {change.target} marked: {_value(change.after)}"
    if change.before is None and change.after is None:
        return change.what if change.target == change.pool else f"{change.what} {change.target}"
    return f"{change.what} of {change.target}: {_value(change.before)} → {_value(change.after)}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`: the two largest units."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def milliseconds(value: float | None) -> str:
    """`4.5 ms`, `62 ms`, `12.3 s`; a dash for None."""
    if value is None:
        return NOTHING
    if value >= 9995:
        return f"{value / 1000:.1f} s"
    return f"{value:.1f} ms" if value < 9.95 else f"{value:,.0f} ms"


def _held(knobs: Knobs | None, by_governor: bool) -> list[str]:
    """What the governor, or the second stage, has changed on a node, knob by knob."""
    orders = [knob for knob in knobs.knobs if knob.order] if knobs is not None else []
    held = [knob for knob in orders if (knob.by == GOVERNOR) == by_governor]
    return [f"{knob.name} {_value(knob.baseline)} → {_value(knob.value)}" for knob in held]


def _judged(verdict: Verdict | None, verdict_age_s: float, silence: str) -> tuple[State, str]:
    """The state that may be shown now, and why."""
    if verdict is None:
        return "unknown", silence or "no Verdict yet"
    path = "; ".join(verdict.path)
    if silence:
        return "unknown", f"{silence}; last known: {WORDS[verdict.state]}"
    if verdict_age_s > STALE_AFTER_S and verdict.state != "unknown":
        return "unknown", f"no Verdict for {duration(verdict_age_s)}; last known: {WORDS[verdict.state]}"
    return verdict.state, "" if verdict.state == "calm" else path


def _reasons(server: ServerState | None, state: State, why: str, stale: bool) -> str:
    """The engine's reason, unless it is old; the Verdict's path follows where the engine does not name the state."""
    parts: list[str] = []
    if server is not None and not stale:
        if not server.status.startswith(SERVING):
            parts.append(f"{server.status} in the balancer")
        rests = server.cause == "calm" and server.wanted == server.baseline
        if server.why and not (rests and state == "calm"):
            parts.append(server.why)
            if server.cause is not None and _STATE_OF_CAUSE.get(server.cause) == state:
                why = ""
    return "; ".join([*parts, why] if why else parts)


def _headline(rows: list[Row], silence: str) -> tuple[State, str]:
    """The pool in one line, and the most urgent state in it, which colours it."""
    if silence:
        return "unknown", f"The controller is silent: {silence}"
    named = {state: [row.node for row in rows if row.state == state] for state in SYMBOLS}
    parts = [
        f"{len(named[state])} of {len(rows)} servers {text}: {listed(named[state])}"
        for state, text in _HEADLINES
        if named[state]
    ]
    if named["all_slow"]:
        parts.insert(0, "Most servers are slow at once, so no neighbour is the cause")
    if named["unknown"]:
        parts.append(f"{len(named['unknown'])} of {len(rows)} servers unknown: {listed(named['unknown'])}")
    worst: State = next((state for state in _URGENCY if named[state]), "calm")
    calm = {0: "There are no servers", 1: "The only server is calm"}.get(len(rows), f"All {len(rows)} servers are calm")
    return worst, "; ".join(parts) or calm


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b, c, d and 2 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _value(value: int | float | str | None) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
