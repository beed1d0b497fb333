"""The page of one episode: response times before, during and after, what was done, and what static weights would have
given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress

import msgspec

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.journal.journal import Journal, NodeSeries, PoolSeries
from slackwater.core.journal.pool_totals import fitting_step_s
from slackwater.core.messages import Change
from slackwater.views import static_weights
from slackwater.views.change_lines import ChangeLine, change_lines
from slackwater.views.harm import ONSET_S
from slackwater.views.percentile import pooled_ms
from slackwater.views.pool import NOTHING, SYMBOLS, WORDS, duration, milliseconds
from slackwater.views.static_weights import NotEstimated
from slackwater.views.together import leading
from slackwater.views.why import Episode, Marked, episodes, with_changes
from slackwater.web.content.pool import MOST_DRAWN, episode_url, number, percent

AROUND_S = 60.0
"""The time shown before and after."""
LONGEST_S = 3600.0
"""The means of a longer episode are of its first hour."""
FINEST_S = 1.0
MOST_VALUES = 1_000_000
"""Of the series that its means are made of; in a large pool their steps are longer."""
SIGNALS = (
    ("rt_p95_ms", "p95 of its response time", milliseconds),
    ("rps", "requests per second", number),
    ("cpu", "CPU", percent),
    ("run_delay_per_cpu_s", "wait for a CPU, per second of CPU time", lambda value: _plain(value, " s")),
    ("steal", "CPU taken by the hypervisor (steal)", percent),
    ("pressure_cpu", "time in which a program waited for a CPU", percent),
    ("cpi", "cycles per instruction or memory access", lambda value: _plain(value, "")),
    ("errors_per_s", "errors per second", number),
)


class SignalRow(msgspec.Struct):
    """One signal of the node, with units, and its peers' median during the episode."""

    name: str
    before: str
    during: str
    after: str
    peers: str


class EpisodePage(msgspec.Struct):
    """The texts of an episode's page."""

    pool: str
    node: str
    state: str
    symbol: str
    word: str
    since_unix_s: float
    until_unix_s: float | None
    lasted: str
    lost: str
    path: list[str]
    signals: list[SignalRow]
    done: list[ChangeLine]
    users_before: str
    users_during: str
    users_static: str
    """The response time that static weights would have given."""
    static_ms: float | None
    """That time as a number."""
    static_is_measured: bool
    static_note: str
    """What it rests on, or why there is none."""
    plot_since_unix_s: float
    plot_until_unix_s: float
    step_s: float
    marked: Marked | None
    drawn: list[str]
    """Nodes in the plots; empty: all."""


class Listed(msgspec.Struct):
    """One line of the list of episodes."""

    pool: str
    node: str
    url: str
    symbol: str
    word: str
    since_unix_s: float
    lasted: str
    severity: str
    lost: str
    because: str
    marked: Marked | None


def listed(journal: Journal, pool: str, since_unix_s: float, now_unix_s: float, most: int = 200) -> list[Listed]:
    """A pool's episodes, the newest first."""
    return [
        Listed(
            pool=pool,
            node=episode.who,
            url=episode_url(episode),
            symbol=SYMBOLS[episode.state],
            word=WORDS[episode.state],
            since_unix_s=episode.since_unix_s,
            lasted=_lasted(episode, now_unix_s),
            severity=percent(episode.severity),
            lost=episode.lost,
            because=episode.path[0] if episode.path else "",
            marked=episode.marked,
        )
        for episode in reversed(episodes(journal, pool, since_unix_s)[-most:])
    ]


def find(journal: Journal, pool: PoolSettings, node: str, since_ms: int) -> Episode | None:
    """The episode of a node that began then, with its Changes; None if there was none."""
    for episode in episodes(journal, pool.name, since_ms / 1000.0 - 1.0, oldest=True):
        if episode.began(node, since_ms):
            return with_changes(journal, episode, pool.servers)
    return None


def page(
    journal: Journal, settings: ControllerSettings, pool: PoolSettings, episode: Episode, now: float
) -> EpisodePage:
    """The whole page."""
    until = now if episode.until_unix_s is None else episode.until_unix_s
    length = min(LONGEST_S, max(until - episode.since_unix_s, FINEST_S))
    old = now - episode.since_unix_s > settings.journal.keep_samples_h * 3600.0 - 2 * AROUND_S
    step_s = 60.0 if old else FINEST_S
    around = AROUND_S if step_s < AROUND_S else 5 * AROUND_S

    def history(since: float, seconds: float) -> PoolSeries:
        fits_s = max(step_s, fitting_step_s(journal, pool.name, seconds, MOST_VALUES))
        return journal.history(pool.name, since, fits_s, until_unix_s=min(now, since + seconds), servers=pool.servers)

    others = _others(journal, episode, around)
    calm = _without(history(episode.since_unix_s - around, around - ONSET_S), others)
    histories = calm, history(episode.since_unix_s, length)
    before, during = map(_means, histories)
    after = _means(_without(history(until, around), others)) if episode.until_unix_s is not None else {}
    static_ms, static_is_measured, note = _static(journal, pool, episode, *histories)
    drawn_s = until - episode.since_unix_s + 2 * around
    return EpisodePage(
        pool=pool.name,
        node=episode.node,
        state=episode.state,
        symbol=SYMBOLS[episode.state],
        word=WORDS[episode.state],
        since_unix_s=episode.since_unix_s,
        until_unix_s=episode.until_unix_s,
        lasted=_lasted(episode, now),
        lost=episode.lost,
        path=episode.path,
        signals=[_signal(episode.node, name, words, unit, before, during, after) for name, words, unit in SIGNALS],
        done=_done(episode.changes),
        users_before=milliseconds(_felt(before)),
        users_during=milliseconds(_felt(during)),
        users_static=milliseconds(static_ms),
        static_ms=static_ms,
        static_is_measured=static_is_measured,
        static_note=note,
        plot_since_unix_s=episode.since_unix_s - around,
        plot_until_unix_s=min(now, until + around),
        step_s=step_s if drawn_s / step_s <= 2000 else 3600.0 if drawn_s / 60.0 > 5000 else 60.0,
        marked=episode.marked,
        drawn=_drawn(episode, histories[1]),
    )


def _drawn(episode: Episode, during: PoolSeries) -> list[str]:
    """The nodes that are drawn: of many those of the episode, and then the first."""
    return list(dict.fromkeys([*episode.nodes, *during.nodes]))[:MOST_DRAWN] if len(during.nodes) > MOST_DRAWN else []


def _lasted(episode: Episode, now_unix_s: float) -> str:
    if episode.until_unix_s is None:
        return f"goes on, for {duration(max(0.0, now_unix_s - episode.since_unix_s))}"
    return duration(episode.until_unix_s - episode.since_unix_s)


def _others(journal: Journal, episode: Episode, around_s: float) -> list[tuple[float, float]]:
    """When other episodes of its pool went on near it: neither its before nor its after."""
    near = episodes(journal, episode.pool, episode.since_unix_s - around_s, oldest=True)
    return [
        (other.since_unix_s - ONSET_S, math.inf if other.until_unix_s is None else other.until_unix_s)
        for other in near
        if not other.began(episode.node, round(episode.since_unix_s * 1000))
    ]


def _without(history: PoolSeries, times: Sequence[tuple[float, float]]) -> PoolSeries:
    """The steps outside of these times; all where none is."""
    steps = [(begin, begin + history.step_s) for begin in history.time_unix_s]
    kept = [not any(since < end and begin < until for since, until in times) for begin, end in steps]
    if all(kept) or not any(kept):
        return history
    nodes = {
        node: NodeSeries(*(list(compress(values, kept)) for values in msgspec.structs.astuple(series)))
        for node, series in history.nodes.items()
    }
    return PoolSeries(history.step_s, list(compress(history.time_unix_s, kept)), nodes)


def _means(history: PoolSeries) -> dict[str, NodeSeries]:
    return {node: _mean(history, node) for node in history.nodes}


def _mean(history: PoolSeries, node: str) -> NodeSeries:
    """The node's means over the whole history, each as a list of one."""
    series = history.nodes[node]
    rates = series.rps
    means: dict[str, list[float | None]] = {}
    for name in NodeSeries.__struct_fields__:
        values: Sequence[float | None] = getattr(series, name)
        weights = [rate or 0.0 for rate in rates] if name.startswith("rt_") else [1.0] * len(values)
        known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
        total = math.fsum(weight for _, weight in known)
        means[name] = [math.fsum(value * weight for value, weight in known) / total if total else None]
    return NodeSeries(**means)


def _of(means: dict[str, NodeSeries], node: str, name: str) -> float | None:
    if node not in means:
        return None
    mean: float | None = getattr(means[node], name)[0]
    return mean


def _signal(
    node: str,
    name: str,
    words: str,
    unit: object,
    before: dict[str, NodeSeries],
    during: dict[str, NodeSeries],
    after: dict[str, NodeSeries],
) -> SignalRow:
    assert callable(unit)
    peers = sorted(value for other in during if other != node and (value := _of(during, other, name)) is not None)
    median = peers[(len(peers) - 1) // 2] if peers else None
    then, while_, since = (unit(_of(means, node, name)) for means in (before, during, after))
    return SignalRow(words, then, while_, since, unit(median))


def _felt(means: dict[str, NodeSeries]) -> float | None:
    """The p95 over all requests."""
    known = [
        (series.rps[0] or 0.0, series.rt_p50_ms[0], series.rt_p95_ms[0], series.rt_p99_ms[0])
        for series in means.values()
    ]
    return pooled_ms(known, 0.95)


def _static(
    journal: Journal, pool: PoolSettings, episode: Episode, before: PoolSeries, during: PoolSeries
) -> tuple[float | None, bool, str]:
    """What static weights would have given in ms, whether it was measured, and its ground or why there is none."""
    cycle = journal.latest_cycle(pool.name)
    servers = [] if cycle is None else cycle.servers or cycle.last_known
    shown = {pool.servers.get(server.server, server.server): server for server in servers}
    if cycle is None or not shown or (cycle.unseen and not shown.keys() >= during.nodes.keys()):
        return None, False, "no estimate: the baseline weights are not known"
    baselines = {node: float(server.full_weight) for node, server in shown.items() if not server.backup}
    if static_weights.stayed(during, baselines):
        return _felt(_means(during)), True, "All weights stayed at their baselines: this is what users felt."
    if cycle.weights_mean is None:
        return None, False, "no estimate: it is not known whether weights determine how requests are split"
    if cycle.weights_mean != "share":
        return None, False, f"no estimate: under `{cycle.balance}` weights do not determine how requests are split"
    if before.step_s > FINEST_S:
        return None, False, "no estimate: the Samples of its first moments are no longer kept"
    since = leading(episode.parts).since_unix_s
    try:
        estimate_ms, basis = static_weights.estimate(journal, pool, episode.node, since, baselines, before)
    except NotEstimated as reason:
        return None, False, f"no estimate: {reason}"
    return estimate_ms, False, basis


def _done(changes: Sequence[Change]) -> list[ChangeLine]:
    """What was done, the oldest first; an outcome is added to the Change that it belongs to."""
    outcomes = {change.follows: change.why for change in changes if change.what == "outcome" and change.follows}
    lines = change_lines(change for change in changes if change.what != "outcome")
    for line in lines:
        line.outcome = outcomes.get(line.id, "")
    return lines


def _plain(value: float | None, unit: str) -> str:
    return NOTHING if value is None else f"{value:.3g}{unit}"
