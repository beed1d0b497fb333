"""A pool's view as the texts of the pages, for the templates and the script that keeps them live."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from slackwater.core.config import PoolSettings
from slackwater.core.messages import Change, State
from slackwater.views.change_lines import ChangeLine, change_lines
from slackwater.views.percentiles import WINDOW
from slackwater.views.pool import PoolStatus
from slackwater.views.row import CONDITIONS, NOTHING, SYMBOLS, WORDS, Row, duration, listed, milliseconds
from slackwater.views.week import WeekEpisode
from slackwater.views.why import Episode
from slackwater.web.content.looks import Look, badge, of_pool

FEW = 12
"""The overview shows all servers of a pool up to this number, beyond it only those that are not calm or reduced."""

MOST_DRAWN = 24
"""Most servers drawn on a pool's page; on the overview `FEW`. Those that are not calm come first."""


MOST_CARDS = 6
"""Most episodes of a pool with a card of their own; the page of episodes lists all."""

NOT_CHANGED = "nothing to measure: no weight was changed"


class ShownRow(msgspec.Struct):
    """The cells of one server."""

    node: str
    note: str
    """The balancer's name, if it differs."""
    state: Look
    symbol: str
    word: str
    since: str
    """How long it has been in its Verdict's state; empty where something else is shown."""
    since_unix_s: float | None
    condition: str
    sessions: str
    """Requests that the balancer has sent it and that are not answered; those that wait for it."""
    weight: str
    weight_share: float
    """Weight over baseline, 0 to 1, for the bar."""
    wanted: str
    share: str
    """Share of the requests: wanted and achieved."""
    rps: str
    errors: str
    """Requests per second that failed."""
    fails: bool
    """Well more than its peers."""
    p50: str
    p95: str
    p99: str
    has_cpu: bool
    """Its CPU is measured, which only a monitor does."""
    cpu: str
    cpu_share: float
    why: str
    """The reason in a sentence."""


class ShownPercentiles(msgspec.Struct):
    """The percentiles of one server's response times."""

    node: str
    requests: str
    p50: str
    p95: str
    p99: str
    p999: str
    absent: str


class ShownEpisode(msgspec.Struct):
    """One ongoing episode."""

    id: str
    node: str
    url: str
    state: State
    symbol: str
    word: str
    lasts: str
    since_unix_s: float
    because: str
    done: str
    """The measures taken, in a few words."""
    helped: str
    """The outcome."""
    seen_by: str
    """Who has acknowledged it."""


class ShownPool(msgspec.Struct):
    """One pool's part of the page."""

    pool: str
    state: Look
    symbol: str
    headline: str
    sentence: str
    stale: bool
    mode: str
    paused: bool
    law: str
    balancer: str
    """What it is called."""
    balance: str
    age: str
    p95: str
    p95_note: str
    """Against the target."""
    target_p95_ms: float
    """0: there is none."""
    p99: str
    p99_note: str
    hurt: bool
    """Whether a target of response time is missed."""
    total_rps: str
    total_errors: str
    failing: str
    """The servers that fail well more than their peers."""
    strip: str
    """Each server's symbol, in the order of the balancer."""
    calm_note: str
    """What the rows leave out."""
    drawn: list[str]
    """The nodes whose series are drawn, in the table's order; empty: all."""
    evenness: str
    """What the servers carry in calm, and which weights would fill them alike; empty: not known yet."""
    rows: list[ShownRow]
    percentiles: list[ShownPercentiles]
    """Of the servers with a row; empty where no server has any, as where all have monitors."""
    percentiles_over: str
    """The time that they are of; empty where there are none."""
    episodes: list[ShownEpisode]
    more_episodes: str
    """How many go on and have no card; empty if all have one."""
    changes: list[ChangeLine]


def show(
    view: PoolStatus,
    changes: Sequence[Change],
    now_unix_s: float,
    settings: PoolSettings | None = None,
    episodes: Sequence[Episode] = (),
    all_rows: bool = True,
) -> ShownPool:
    """The texts of a pool; `changes` newest first, `episodes` those that go on."""
    rps = [row.rps for row in view.rows if row.rps is not None]
    p95_target = settings.target_p95_ms if settings else 0.0
    p99_target = settings.target_p99_ms if settings else 0.0
    rows = view.rows
    if not all_rows and len(rows) > FEW:
        rows = [row for row in rows if row.exceptions or row.state != "calm"][:FEW]
    left_out = len(view.rows) - len(rows)
    look = of_pool(view)
    errors = [row.errors_per_s for row in view.rows if row.errors_per_s is not None]
    failing = [row.node for row in view.rows if row.peers_failed_share is not None]
    are_measured = any(row.percentiles is not None and row.percentiles.requests for row in view.rows)
    return ShownPool(
        pool=view.pool,
        state=look.look,
        symbol=look.symbol,
        headline=view.headline,
        sentence=_sentence(view),
        stale=view.stale,
        mode=view.mode or "",
        paused=view.paused,
        law=view.law or NOTHING,
        balancer=view.balancer[:1].upper() + view.balancer[1:],
        balance=view.balance or NOTHING,
        age=f"{duration(view.age_s)} ago" if view.age_s is not None else "never",
        p95=milliseconds(view.rt_p95_ms),
        target_p95_ms=p95_target,
        p95_note=_against(view.rt_p95_ms, p95_target),
        p99=milliseconds(view.rt_p99_ms),
        p99_note=_against(view.rt_p99_ms, p99_target),
        hurt=_beyond(view.rt_p95_ms, p95_target) or _beyond(view.rt_p99_ms, p99_target),
        total_rps=number(sum(rps) if rps else None),
        total_errors="0" if errors and not any(errors) else number(sum(errors) if errors else None),
        failing=f"failing: {listed(failing, 3)}" if failing else "",
        strip="".join(badge(row).symbol for row in view.rows) if not all_rows and len(view.rows) > FEW else "",
        calm_note=f"{left_out} of {len(view.rows)} servers are not listed here" if left_out else "",
        evenness=f"Unequal servers: {view.evenness}." if view.evenness else "",
        drawn=drawn(view, MOST_DRAWN if all_rows else FEW),
        rows=[_row(row, view, now_unix_s) for row in rows],
        percentiles=[_percentiles(row) for row in rows if row.percentiles is not None] if are_measured else [],
        percentiles_over=f"over the last {WINDOW}" if are_measured else "",
        episodes=[_episode(episode, view, changes, now_unix_s) for episode in episodes[:MOST_CARDS]],
        more_episodes=f"and {more} more" if (more := len(episodes[MOST_CARDS:])) else "",
        changes=change_lines(changes),
    )


def drawn(view: PoolStatus, most: int = MOST_DRAWN) -> list[str]:
    """The nodes that are drawn: none where all are, or of many those that are not calm and then the first."""
    if len(view.rows) <= most:
        return []
    urgent = [row.node for row in sorted(view.rows, key=lambda row: badge(row).look == "calm")][:most]
    return [row.node for row in view.rows if row.node in urgent]


def _row(row: Row, view: PoolStatus, now_unix_s: float) -> ShownRow:
    notes = [row.server] if row.server not in ("", row.node) else []
    look, symbol, word = badge(row)
    since = row.since_unix_s if look == row.state else None
    differs = view.mode == "observe" and not view.stale and row.wanted is not None and row.wanted != row.weight
    return ShownRow(
        node=row.node,
        note=" · ".join(notes),
        state=look,
        symbol=symbol,
        word=word,
        since="" if since is None else duration(max(0.0, now_unix_s - since)),
        since_unix_s=since,
        condition=NOTHING if row.condition is None else CONDITIONS[row.condition],
        sessions=NOTHING
        if row.in_flight is None
        else f"{row.in_flight}{f' + {row.queue} queued' if row.queue else ''}",
        weight=NOTHING if row.weight is None else f"{row.weight} / {row.baseline}",
        weight_share=0.0 if row.weight is None else share_of(row.weight, row.baseline),
        wanted=f"would be {row.wanted}" if differs else "",
        share=f"{percent(row.share_wanted)} / {percent(row.share)}" if row.share is not None else NOTHING,
        rps=number(row.rps),
        errors="0" if row.errors_per_s == 0.0 else number(row.errors_per_s),
        fails=row.peers_failed_share is not None,
        p50=milliseconds(row.rt_p50_ms),
        p95=milliseconds(row.rt_p95_ms),
        p99=milliseconds(row.rt_p99_ms),
        has_cpu=row.cpu is not None,
        cpu=percent(row.cpu),
        cpu_share=min(1.0, row.cpu or 0.0),
        why=row.summary,
    )


def _percentiles(row: Row) -> ShownPercentiles:
    assert row.percentiles is not None
    known = row.percentiles
    return ShownPercentiles(
        node=row.node,
        requests=f"{known.requests:,}",
        p50=milliseconds(known.p50_ms),
        p95=milliseconds(known.p95_ms),
        p99=milliseconds(known.p99_ms),
        p999=milliseconds(known.p999_ms),
        absent=known.absent,
    )


def _episode(episode: Episode, view: PoolStatus, changes: Sequence[Change], now_unix_s: float) -> ShownEpisode:
    row = next((row for row in view.rows if row.node == episode.node), None)
    names = {episode.node, row.server if row is not None else episode.node}
    since = [made for made in changes if made.target in names and made.time_unix_s >= episode.since_unix_s - 1.0]
    is_changed = _is_lowered(row) or any(made.what == "weight" and made.applied for made in since)
    unknown = "not known yet: it is measured 10 s after a change"
    outcome = next((made.why for made in since if made.what == "outcome"), unknown if is_changed else NOT_CHANGED)
    seen = next((made.by for made in since if made.what == "acknowledge"), "")
    done = "nothing was changed"
    if row is not None and row.weight is not None and row.full_weight is not None and not view.stale:
        if row.weight < row.full_weight:
            gets = f", it gets {percent(row.share)} of the requests" if row.share is not None else ""
            done = f"weight {row.full_weight} → {row.weight}{gets}"
        elif view.mode == "observe" and row.wanted is not None and row.wanted < row.full_weight:
            done = f"observe mode: the weight would be {row.wanted} instead of {row.weight}"
        elif view.paused:
            done = "nothing: the pool is paused"
    return ShownEpisode(
        id=f"{episode.node}@{episode.since_unix_s:.3f}",
        node=episode.who,
        url=episode_url(episode),
        state=episode.state,
        symbol=SYMBOLS[episode.state],
        word=WORDS[episode.state],
        lasts=duration(max(0.0, now_unix_s - episode.since_unix_s)),
        since_unix_s=episode.since_unix_s,
        because=episode.path[0] if episode.path else "",
        done=done,
        helped=outcome,
        seen_by=f"seen by {seen}" if seen else "",
    )


def _is_lowered(row: Row | None) -> bool:
    return row is not None and row.weight is not None and row.full_weight is not None and row.weight < row.full_weight


def episode_url(episode: Episode | WeekEpisode) -> str:
    """The page of an episode."""
    return episode_path(episode.pool, episode.node, episode.since_unix_s)


def episode_path(pool: str, node: str, since_unix_s: float) -> str:
    """The page of the episode of this node that began then; the path has milliseconds."""
    return f"/pools/{quote(pool)}/episodes/{quote(node)}/{round(since_unix_s * 1000)}"


def _sentence(view: PoolStatus) -> str:
    """The last cycle in a line; if there was none, the banner reports that."""
    if not view.stale:
        return view.sentence
    return "" if view.age_s is None else f"last cycle: {view.sentence}"


def _beyond(value: float | None, target: float) -> bool:
    return value is not None and 0.0 < target < value


def _against(value: float | None, target: float) -> str:
    if not target:
        return "no target"
    sign = "" if value is None else "✕ above " if value > target else "✓ "
    return f"{sign}target {milliseconds(target)}"


def share_of(weight: int | None, baseline: int | None) -> float:
    """Weight over baseline, 0 to 1; 1 where it is not known."""
    if weight is None or not baseline:
        return 1.0
    return min(1.0, weight / baseline)


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}%"


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
