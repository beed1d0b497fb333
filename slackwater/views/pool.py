"""The table of a pool that `slackwater status`, the page and the API show.

Old data is never shown as current: a silent controller or node is `unknown`, with the time since its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from slackwater.core.config import ShownServer
from slackwater.core.journal.journal import Journal, Reading
from slackwater.core.messages import (
    GOVERNOR,
    TAKES_REQUESTS,
    Change,
    Cycle,
    CycleOutage,
    DecisionCause,
    Knobs,
    Mode,
    ServerState,
    State,
    Verdict,
)
from slackwater.views.evenness import max_over_mean, servers_saved, uneven_advice
from slackwater.views.headline import beside_the_verdict, exceptions, headline
from slackwater.views.percentile import pooled_ms
from slackwater.views.percentiles import PoolPercentiles
from slackwater.views.reasons import of_server, of_state
from slackwater.views.row import CONDITIONS, NOTHING, SYMBOLS, WORDS, Row, clock, duration, listed, milliseconds
from slackwater.views.usual import Medians, Slow, slow, usual

__all__ = ["NOTHING", "SYMBOLS", "WORDS", "Row", "duration", "listed", "milliseconds"]
"""Names from other modules that are imported from here."""

STALE_AFTER_S = 3.0
"""Cycles come every 0.2 s and are in the journal half a second later: after this long, something is dead."""
KNOBS_FRESH_S = 20.0
"""A wsengine publishes its knobs every 5 s; one that is silent for longer may have put everything back."""
FORGET_AFTER_S = 60.0
"""A node that is no server of the balancer is listed while its last Sample is younger than this."""

OUTAGES: dict[CycleOutage, str] = {"no_answer": "has not answered", "refused": "has refused commands"}
_STATE_OF_CAUSE: dict[DecisionCause, State] = {
    "interference": "interference",
    "slow": "slow",
    "errors": "errors",
    "not_shown": "interference",
    "no_gain": "interference",
    "peer_fails": "interference",
    "tried": "interference",
    "fast": "interference",
    "overload": "overload",
    "all_slow": "all_slow",
    "unknown": "unknown",
}
"""Causes of lbengine's decisions whose reason includes the Verdict's."""


class PoolStatus(msgspec.Struct, kw_only=True):
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
    """Whether there ever was a Verdict on any of its nodes; False while a controller that has just started waits for
    the first."""
    state: State = "unknown"
    """The pool as one: the most urgent of its servers' states, `unknown` when stale."""
    headline: str
    balancer: str = "the balancer"
    """What it is called: HAProxy, IPVS, keepalived."""
    outage: CycleOutage | None = None
    """The balancer does not answer, or refuses; `sentence` has the reason."""
    outage_since_unix_s: float | None = None
    running: bool | None = None
    """False: the controller does not run; None: it is not known whether it does."""
    weights_unix_s: float | None = None
    """When the rows' weights were read, where that is long ago; None: just now."""
    rt_p95_ms: float | None = None
    """Over the requests of all servers; None when stale or without requests."""
    rt_p99_ms: float | None = None
    evenness: str = ""
    """What the servers carry in calm, and which weights would fill them alike; empty: not known yet, or stale."""
    max_over_mean: float | None = None
    """Utilisation in calm of the fullest server over the mean; None: not known."""
    servers_saved: float | None = None
    """Servers of mean size that other weights could save; None: not known."""
    rows: list[Row] = []


def pool_status(
    journal: Journal,
    pool: str,
    now_unix_s: float,
    servers: Mapping[str, str] | None = None,
    title: str = "the balancer",
    mostly: Callable[[Journal, str, float], Mapping[str, Medians]] = usual,
) -> PoolStatus:
    """The pool's table at `now_unix_s`; `servers` maps server names to node names where they differ (settings).

    `title` is what the balancer is called, `mostly` may be a `Usual` of this journal. Raises JournalError.
    """
    servers = servers or {}
    cycle = journal.latest_cycle(pool)
    verdicts = journal.latest_verdicts(pool)
    judged_unix_s = journal.received("verdict", pool)
    readings = journal.readings(pool)
    knobs = journal.latest_knobs(pool)
    percentiles = PoolPercentiles(journal, pool)
    age_s = None if cycle is None else max(0.0, now_unix_s - cycle.time_unix_s)
    stale = age_s is None or age_s > STALE_AFTER_S
    silence = "" if not stale else ("nothing recorded yet" if age_s is None else f"no data for {duration(age_s)}")
    by_weight = cycle is not None and cycle.weights_mean == "share"
    shown = [] if cycle is None else cycle.servers or cycle.last_known
    outage = cycle.outage if cycle is not None and not stale else None
    seen = not stale and outage is None
    sharing = {
        server.server: server.wanted
        for server in shown
        if by_weight and seen and server.condition in TAKES_REQUESTS and not server.backup
    }
    wanted = sum(sharing.values())
    p95_ms = {
        node: reading.rt_p95_ms
        for node, reading in readings.items()
        if now_unix_s - reading.received_unix_s <= STALE_AFTER_S
    }
    slow_now = slow(journal, pool, p95_ms, mostly(journal, pool, now_unix_s)) if seen else {}

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
        resource = verdict.resource if verdict is not None and state == verdict.state else None
        settings = [
            f"the {who} has set {', '.join(values)}"
            for who, values in (("second stage", retuned), ("governor", governed))
            if values
        ]
        observes = cycle is not None and cycle.mode == "observe"
        decided = "" if server is None else of_server(server, state, resource, observes)
        summary = _reasons(server, decided, state, of_state(state, resource) or why, seen, title)
        row = Row(
            node=node,
            server=server.server if server else "",
            condition=server.condition if server and not outage else None,
            state=state,
            since_unix_s=verdict.since_unix_s if verdict is not None and state == verdict.state else None,
            weight=server.weight if server and not outage else None,
            baseline=server.baseline if server else None,
            full_weight=server.full_weight if server else None,
            wanted=server.wanted if server and not outage else None,
            rps=_first(reading.rps if reading else None, server.rps if server and seen else None),
            share=_first(server.share if server else None, measured(reading)) if seen else None,
            share_wanted=sharing[server.server] / wanted if server and server.server in sharing and wanted else None,
            rt_p50_ms=reading.rt_p50_ms if reading else None,
            rt_p95_ms=reading.rt_p95_ms if reading else None,
            rt_p99_ms=reading.rt_p99_ms if reading else None,
            cpu=reading.cpu if reading else None,
            why="; ".join([*_reasons(server, server.why if server else "", state, why, seen, title), *settings]),
            retuned=retuned,
            governed=governed,
            resource=resource,
            own_limit_cores=verdict.own_limit_cores if verdict is not None and resource is not None else None,
            percentiles=percentiles.of(node, server.server) if server else None,
        )
        if server is not None and seen:
            _add_balancer(row, server)
        _add_slow(row, slow_now.get(node))
        row.exceptions = exceptions(row, title)
        beside = beside_the_verdict(row)
        row.why = "; ".join([*beside, *([row.why] if row.why else [])])
        row.summary = "; ".join([*beside, *summary, *settings])
        return row

    known = {servers.get(server.server, server.server): server for server in shown}
    rows = [row(node, server) for node, server in known.items()]
    for node, reading in readings.items():
        if node not in known and now_unix_s - reading.received_unix_s < FORGET_AFTER_S:
            rows.append(row(node, None))
            if shown:
                rows[-1].summary = rows[-1].why = (
                    "no server of the backend has this name, or not any more (see `servers` in the pool's settings)"
                )
                rows[-1].exceptions = [f"is no server of {title}"]
    state, text = _headline(rows, cycle, title, silence, now_unix_s)
    fresh = [r for r in readings.values() if not stale and now_unix_s - r.received_unix_s <= STALE_AFTER_S]
    measured_now = [(r.rps or 0.0, r.rt_p50_ms, r.rt_p95_ms, r.rt_p99_ms) for r in fresh]
    return PoolStatus(
        pool=pool,
        mode=cycle.mode if cycle else None,
        paused=cycle.paused if cycle else False,
        law=cycle.law if cycle else None,
        balance=cycle.balance if cycle else None,
        sentence=cycle.sentence if cycle else f"{pool}: nothing recorded yet",
        age_s=age_s,
        stale=stale,
        judged=bool(verdicts) and not any(server.cause == "waiting" for server in shown),
        state=state,
        headline=text,
        balancer=title,
        outage=outage,
        outage_since_unix_s=cycle.outage_since_unix_s if cycle and outage else None,
        weights_unix_s=cycle.time_unix_s if cycle and stale else None,
        rt_p95_ms=pooled_ms(measured_now, 0.95),
        rt_p99_ms=pooled_ms(measured_now, 0.99),
        evenness=uneven_advice(cycle) if seen else "",
        max_over_mean=max_over_mean(cycle) if seen else None,
        servers_saved=servers_saved(cycle) if seen else None,
        rows=rows,
    )


def no_view(pool: str, error: str) -> PoolStatus:
    """The view of a pool whose journal cannot be read."""
    return PoolStatus(pool=pool, sentence=error, headline="Nothing is known: the journal cannot be read")


def describe_change(change: Change) -> str:
    """What a Change did, in a few words: `weight of web1: 100 → 0`."""
    if change.what == "outcome":
        return f"outcome for {change.target}"  # `why` has it in words, with units
    if change.what == "mark_episode":
        return f"episode of {change.target} marked: {_value(change.after)}"
    if change.what == "replace":
        return f"replacement of {change.target}: {_value(change.after)}"
    if change.before is None and change.after is None:
        return change.what if change.target == change.pool else f"{change.what} {change.target}"
    return f"{change.what} of {change.target}: {_value(change.before)} → {_value(change.after)}"


def _held(knobs: Knobs | None, by_governor: bool) -> list[str]:
    """What the governor, or the second stage, has changed on a node, knob by knob."""
    orders = [knob for knob in knobs.knobs if knob.order] if knobs is not None else []
    held = [knob for knob in orders if (knob.by == GOVERNOR) == by_governor]
    return [f"{knob.name} {_value(knob.baseline)} → {_value(knob.value)}" for knob in held]


def _judged(verdict: Verdict | None, verdict_age_s: float, silence: str) -> tuple[State, str]:
    """The state that may be shown now, and why."""
    if verdict is None:
        return "unknown", silence or "not judged yet"
    path = "; ".join(verdict.path)
    if silence:
        return "unknown", f"{silence}; last known: {WORDS[verdict.state]}"
    if verdict_age_s > STALE_AFTER_S and verdict.state != "unknown":
        return "unknown", f"not judged for {duration(verdict_age_s)}; last known: {WORDS[verdict.state]}"
    return verdict.state, "" if verdict.state == "calm" else path


def _add_balancer(row: Row, server: ServerState) -> None:
    """What the balancer counts."""
    row.in_flight, row.queue, row.errors_per_s = server.in_flight, server.queue, server.errors_per_s
    row.failed_share, row.peers_failed_share = server.failed_share, server.peers_failed_share
    row.decided, row.pinned = server.cause is not None, server.cause == "pinned"


def _add_slow(row: Row, slow: Slow | None) -> None:
    if slow is not None:
        row.rt_p95_now_ms, row.rt_p95_usual_ms = slow.rt_p95_now_ms, slow.rt_p95_usual_ms
        row.as_in_calm = slow.as_in_calm


def _reasons(server: ServerState | None, decided: str, state: State, why: str, seen: bool, title: str) -> list[str]:
    """Why lbengine `decided` so, unless that is old; the Verdict's `why` follows where lbengine does not name the
    state."""
    parts: list[str] = []
    if server is not None and seen:
        if server.condition not in TAKES_REQUESTS:
            parts.append(f"{CONDITIONS[server.condition]} in {title}")
        rests = server.cause == "calm" and server.wanted == server.baseline
        if decided and not (rests and state == "calm"):
            parts.append(decided)
            if server.cause is not None and _STATE_OF_CAUSE.get(server.cause) == state:
                why = ""
    return [*parts, why] if why else parts


def _headline(rows: list[Row], cycle: Cycle | None, title: str, silence: str, now_unix_s: float) -> tuple[State, str]:
    """The pool in one line, and the most urgent state in it, which colours it."""
    if silence:
        known_weights = "" if cycle is None else f"; the weights are those of {clock(cycle.time_unix_s)}"
        return "unknown", f"The controller is silent: {silence}{known_weights}"
    if cycle is not None and cycle.outage is not None:
        since = cycle.time_unix_s if cycle.outage_since_unix_s is None else cycle.outage_since_unix_s
        age = duration(max(0.0, now_unix_s - since))
        return "unknown", f"{title} {OUTAGES[cycle.outage]} since {clock(since)} ({age}): {cycle.sentence}"
    return headline(rows)


def without_controller(view: PoolStatus, shown: Mapping[str, ShownServer] | str, left: bool) -> PoolStatus:
    """The view when the controller does not run, with what the balancer shows now, or in words why it shows nothing.

    `left`: weights of Slackwater's may still be set; else those that differ from the baseline are someone else's.
    """
    since = "" if view.weights_unix_s is None else f" (last sign of it: {clock(view.weights_unix_s)})"
    view.running, view.state = False, "unknown"
    for row in view.rows:
        row.decided = left
    if isinstance(shown, str):
        view.headline = f"The controller does not run{since}, and {view.balancer} does not answer: {shown}"
        return view
    for row in view.rows:
        now = shown.get(row.server)
        row.weight, row.wanted = (None, None) if now is None else (now.weight, None)
        row.condition, row.in_flight = (None, None) if now is None else (now.condition, now.in_flight)
    weights = [f"{name} {server.weight}" for name, server in shown.items()]
    view.weights_unix_s = None
    view.headline = f"The controller does not run{since}; {view.balancer} shows the weights {listed(weights, 6)}"
    return view


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _value(value: int | float | str | None) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
