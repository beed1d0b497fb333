"""A pool's view as the texts of the page. The page's script puts the same texts in, so that nothing is said twice."""

from __future__ import annotations

import msgspec

from slackwater.messages import Change, State
from slackwater.view import SERVING, SYMBOLS, WORDS, PoolView, Row, duration
from web.story import Told, tell

NOTHING = "\N{EN DASH}"


class ShownRow(msgspec.Struct):
    """The cells of one server."""

    node: str
    note: str
    """The balancer's name and word, where they say something."""
    state: State
    symbol: str
    word: str
    since: str
    since_unix_s: float | None
    weight: str
    weight_share: float
    """Weight over baseline, 0 to 1, for the bar."""
    wanted: str
    rps: str
    p95: str
    cpu: str
    cpu_share: float
    why: str


class ShownPool(msgspec.Struct):
    """One pool's part of the page."""

    pool: str
    state: State
    symbol: str
    headline: str
    sentence: str
    stale: bool
    alarm: str
    """The banner of a silent controller; empty while it is alive."""
    mode: str
    paused: bool
    law: str
    balance: str
    age: str
    total_rps: str
    slowest: str
    slowest_node: str
    moved: str
    moved_note: str
    rows: list[ShownRow]
    changes: list[Told]


def show(view: PoolView, changes: list[Change], now_unix_s: float) -> ShownPool:
    """The texts for a view and its pool's Changes (newest first) at this time."""
    rps = [row.rps for row in view.rows if row.rps is not None]
    slow = max(view.rows, key=lambda row: row.rt_p95_ms or -1.0, default=None)
    slowest_ms = slow.rt_p95_ms if slow is not None else None
    reduced = [row.node for row in view.rows if _share(row.weight, row.baseline) < 1.0]
    return ShownPool(
        pool=view.pool,
        state=view.state,
        symbol=SYMBOLS[view.state],
        headline=view.headline,
        sentence=_sentence(view),
        stale=view.stale,
        alarm=_alarm(view),
        mode=view.mode or "",
        paused=view.paused,
        law=view.law or "",
        balance=view.balance or "",
        age=f"{duration(view.age_s)} ago" if view.age_s is not None else "never",
        total_rps=_number(sum(rps) if rps else None),
        slowest=_ms(slowest_ms),
        slowest_node=slow.node if slow is not None and slowest_ms is not None else "",
        moved=NOTHING if view.stale else f"{len(reduced)} of {len(view.rows)}",
        moved_note="" if view.stale or not reduced else ", ".join(reduced[:3]) + ("…" if len(reduced) > 3 else ""),
        rows=[_row(row, view, now_unix_s) for row in view.rows],
        changes=tell(changes),
    )


def _row(row: Row, view: PoolView, now_unix_s: float) -> ShownRow:
    notes = [row.server] if row.server not in ("", row.node) else []
    notes += [row.status] if row.status not in ("", *SERVING) else []
    differs = view.mode == "observe" and not view.stale and row.wanted is not None and row.wanted != row.weight
    return ShownRow(
        node=row.node,
        note=" · ".join(notes),
        state=row.state,
        symbol=SYMBOLS[row.state],
        word=WORDS[row.state],
        since=duration(max(0.0, now_unix_s - row.since_unix_s)) if row.since_unix_s is not None else NOTHING,
        since_unix_s=row.since_unix_s,
        weight=NOTHING if row.weight is None else f"{row.weight} / {row.baseline}",
        weight_share=0.0 if row.weight is None else _share(row.weight, row.baseline),
        wanted=f"would be {row.wanted}" if differs else "",
        rps=_number(row.rps),
        p95=_ms(row.rt_p95_ms),
        cpu=NOTHING if row.cpu is None else f"{100 * row.cpu:.0f} %",
        cpu_share=min(1.0, row.cpu or 0.0),
        why=row.why,
    )


def _sentence(view: PoolView) -> str:
    """What the last cycle said; the banner has it where there was none."""
    if not view.stale:
        return view.sentence
    return "" if view.age_s is None else f"last said: {view.sentence}"


def _alarm(view: PoolView) -> str:
    if not view.stale:
        return ""
    if view.age_s is None:
        return view.sentence
    return (
        f"No data for {duration(view.age_s)}: the controller is silent. Weights are as they were last seen, states are "
        "unknown. Look at slackwater serve on the balancer's host; if it is gone, slackwater restore sets the baseline "
        "weights."
    )


def _share(weight: int | None, baseline: int | None) -> float:
    if weight is None or not baseline:
        return 1.0
    return min(1.0, weight / baseline)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= 9995:
        return f"{value / 1000:.1f} s"
    return f"{value:.1f} ms" if value < 9.95 else f"{value:,.0f} ms"
