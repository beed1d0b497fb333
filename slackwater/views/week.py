"""What Slackwater would have done in a time: episodes, the harm in them, what people say they were, and what acting
would change. For the page, the API and `slackwater week`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import msgspec

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.journal.journal import Journal
from slackwater.core.journal.pool_totals import Begin, begins, observed_s, slow_times
from slackwater.core.messages import Change, ChangeCause, Cycle, EpisodeMark, Mode, Resource, State
from slackwater.views.change_lines import with_trials_as_one
from slackwater.views.chronic import Machine, rank
from slackwater.views.evenness import evenness
from slackwater.views.harm import Harm, Measure, Run, end_of, finest_steps, harm, measure, off_by, runs, until_of
from slackwater.views.replacements import HEARD_S, replaced
from slackwater.views.together import leading, together
from slackwater.views.why import AFTER_S, BEFORE_S, Episode, Marked, episodes, mark_key, marks, note_unseen

DAYS = (1, 7, 30, 90)
"""Numbers of days that are offered."""
DAY_S, HOUR_S = 86400.0, 3600.0
WEEK_DAYS = 7
MOST_EPISODES = 100
"""This many of a pool's episodes, the newest, are measured and listed."""
MOST_CHANGES = 20_000
NOT_DECIDED: frozenset[ChangeCause | None] = frozenset(
    ("not_set", "put_back", "sent_again", "capacity", "away", "warm_up")
)
"""Causes of weight changes that no decision about a slow server made."""
FALSE: frozenset[EpisodeMark] = frozenset(("deploy", "backup", "false_alarm"))
"""Marks of episodes in which no neighbour was at work."""
OUTCOMES_S = 90 * DAY_S


class WeekEpisode(msgspec.Struct):
    """One episode, and what was or would have been done about it."""

    pool: str
    node: str
    """The node; the first of several."""
    state: State
    resource: Resource | None
    since_unix_s: float
    until_unix_s: float | None
    severity: float
    because: str
    done: list[str]
    """Changes of its server's weight: `weight of web1: 100 → 0`."""
    applied: bool
    """False: they would have been made."""
    rt_p95_ms: float | None
    """The pool's p95 when the first weight was decided."""
    rt_p95_predicted_ms: float | None
    """What it was predicted to become."""
    harm: Harm
    marked: Marked | None
    unseen_since_unix_s: float | None = None
    """Nobody has judged its node since then, so that its end is not known; None: it is."""
    who: str = ""
    """The node, or all servers that were slow at once, in words."""


class Totals(msgspec.Struct, kw_only=True):
    """The sums of a pool, or of all; times of several pools are added up."""

    episodes: int = 0
    interference: int = 0
    """Episodes beside a neighbour: about others nothing is done."""
    not_visible: int = 0
    """Episodes of servers without a monitor that were slow by themselves: the cause is not visible from the balancer.
    """
    slow_s: float = 0.0
    slow_requests: float = 0.0
    slow_unknown: int = 0
    """Episodes of which `slow_s` is not known."""
    avoided_s: float = 0.0
    least_avoided_s: float | None = None
    most_avoided_s: float | None = None
    avoided_unknown: int = 0
    marks: dict[EpisodeMark, int] = {}
    unmarked: int = 0
    false_alarms: int = 0
    false_alarms_per_week: float | None = None
    """None: less than a week was seen."""


class Acting(msgspec.Struct, kw_only=True):
    """What acting would have changed, by the weights that were recorded in observe mode."""

    weight_changes: int
    """Weight changes that would have been made."""
    made: int
    """Weight changes that were made."""
    servers: int
    lowered: list[str]
    """Servers whose weight would have been lowered."""
    most_at_once: int
    lowest_weight: int | None
    lowest_baseline: int | None
    """The baseline of the same server."""
    smallest_share: float | None
    """Smallest share of the requests by weight; None: no weight would have been lowered, or weights do not set shares.
    """
    balance: str
    max_mitigated: float


class PoolWeek(msgspec.Struct, kw_only=True):
    """One pool's part of a Week."""

    pool: str
    mode: Mode | None
    paused: bool
    observed_s: float
    """Seconds of the hours with Samples."""
    target_p95_ms: float
    evenness: str
    """What the servers carry in calm now, and which weights would fill them alike; empty: not known yet."""
    predictions_off_by: float | None
    """Nine of ten outcomes were within this factor of their predictions; None: too few are known."""
    totals: Totals
    acting: Acting | None
    """None: there was no cycle yet."""
    episodes: list[WeekEpisode]
    """The newest first."""
    not_listed: int
    """Number of older episodes, which are counted only."""
    machines: list[Machine] = []
    """Those that lost capacity by themselves, the costliest first, and whether to replace them."""


class Week(msgspec.Struct, kw_only=True):
    """What would have been done, pool by pool."""

    days: int
    since_unix_s: float
    until_unix_s: float
    totals: Totals
    pools: list[PoolWeek]


def week(
    journal: Journal,
    settings: ControllerSettings,
    pools: Sequence[PoolSettings],
    days: int,
    now_unix_s: float,
    measured_by: Measure = measure,
) -> Week:
    """The last `days` until now; `measured_by` may be a `Remembered` of this journal. Raises JournalError."""
    pool_weeks = [_of_pool(journal, settings, pool, days, now_unix_s, measured_by) for pool in pools]
    return Week(
        days=days,
        since_unix_s=now_unix_s - days * DAY_S,
        until_unix_s=now_unix_s,
        totals=_sum([week_of_pool.totals for week_of_pool in pool_weeks]),
        pools=pool_weeks,
    )


def _of_pool(
    journal: Journal,
    settings: ControllerSettings,
    pool: PoolSettings,
    days: int,
    now_unix_s: float,
    measured_by: Measure,
) -> PoolWeek:
    since = now_unix_s - days * DAY_S
    cycle = journal.latest_cycle(pool.name)
    every = together(begins(journal, pool.name, since))
    newest = every[-MOST_EPISODES:]
    listed = episodes(journal, pool.name, newest[0][0].since_unix_s)[-MOST_EPISODES:] if newest else []
    note_unseen(journal, pool.name, listed, now_unix_s)
    begin = min([since, *(episode.since_unix_s - BEFORE_S for episode in listed)])
    changes = journal.changes(pool.name, MOST_CHANGES, begin, what="weight", without=NOT_DECIDED)[::-1]
    decided = [made for made in changes if made.by == "lbengine"]
    off = off_by(journal.changes(pool.name, MOST_CHANGES, now_unix_s - OUTCOMES_S, what="outcome"))
    keep_samples_s = settings.journal.keep_samples_h * HOUR_S
    totals = _count(every, marks(journal, pool.name, every[0][0].since_unix_s) if every else {})
    servers = len(journal.received("sample", pool.name))
    shown: list[WeekEpisode] = []
    listed_runs = runs(listed, now_unix_s)
    for run, finest_s in zip(listed_runs, finest_steps(listed_runs, servers, now_unix_s, keep_samples_s), strict=True):
        until = until_of(run, now_unix_s)
        of_run = [made for made in decided if run[0].since_unix_s - BEFORE_S <= made.time_unix_s <= until + AFTER_S]
        works = cycle is None or cycle.weights_mean != "none"
        measured = measured_by(journal, Run(pool, run, of_run, finest_s, works), now_unix_s)
        whole = harm(measured, None, now_unix_s, off)
        totals.slow_s += whole.slow_s or 0.0
        totals.slow_requests += whole.slow_requests or 0.0
        totals.slow_unknown += len(run) if whole.slow_s is None else 0
        totals.avoided_s += whole.avoided_s or 0.0
        totals.avoided_unknown += len(run) if whole.avoided_s is None else 0
        if off is not None and whole.avoided_s is not None:
            totals.least_avoided_s = (totals.least_avoided_s or 0.0) + (whole.least_avoided_s or 0.0)
            totals.most_avoided_s = (totals.most_avoided_s or 0.0) + (whole.most_avoided_s or 0.0)
        for episode in run:
            about = _about(episode, run, of_run, pool, now_unix_s)
            shown.append(_episode(episode, about, harm(measured, episode, now_unix_s, off)))
    observed = observed_s(journal, pool.name, since, now_unix_s)
    if observed >= WEEK_DAYS * DAY_S - HOUR_S:
        totals.false_alarms_per_week = totals.false_alarms * WEEK_DAYS * DAY_S / observed
    return PoolWeek(
        pool=pool.name,
        mode=cycle.mode if cycle else None,
        paused=cycle.paused if cycle else False,
        observed_s=observed,
        target_p95_ms=pool.target_p95_ms,
        evenness=evenness(cycle),
        predictions_off_by=off,
        totals=totals,
        acting=None if cycle is None else _acting(journal, pool, cycle, decided, since),
        episodes=shown[::-1],
        not_listed=max(len(every) - len(listed), 0),
        machines=machines(journal, settings, pool.name, days, now_unix_s, observed, shown),
    )


def machines(
    journal: Journal,
    settings: ControllerSettings,
    pool: str,
    days: int,
    now_unix_s: float,
    observed: float | None = None,
    shown: Iterable[WeekEpisode] = (),
) -> list[Machine]:
    """The machines that lost capacity by themselves. `observed`: seconds; None: they are read. `shown`: the episodes
    whose harm was measured. Raises JournalError."""
    since = now_unix_s - days * DAY_S
    slow_requests: dict[str, float] = {}
    for episode in shown:
        counts = episode.state in settings.replace.states and episode.resource != "own limit"
        if counts and episode.harm.slow_requests is not None:
            slow_requests[episode.node] = slow_requests.get(episode.node, 0.0) + episode.harm.slow_requests
    heard = journal.received("sample", pool)
    return rank(
        slow_times(journal, pool, since),
        {node for node, last_unix_s in heard.items() if now_unix_s - last_unix_s < HEARD_S},
        settings.replace,
        days,
        now_unix_s,
        pool=pool,
        observed_s=observed_s(journal, pool, since, now_unix_s) if observed is None else observed,
        false_alarms={key for key, marked in marks(journal, pool, since).items() if marked.mark in FALSE},
        replaced=replaced(journal.changes(pool, MOST_CHANGES, since, what="replace")),
        slow_requests=slow_requests,
    )


def _count(every: Sequence[Sequence[Begin]], marked: Mapping[tuple[str, int], Marked]) -> Totals:
    words = []
    for group in every if marked else []:
        marks = [marked[key] for begin in group if (key := mark_key(begin.node, begin.since_unix_s)) in marked]
        words += [max(marks, key=lambda mark: mark.time_unix_s).mark] if marks else []
    return Totals(
        episodes=len(every),
        interference=sum(leading(group).state == "interference" for group in every),
        not_visible=sum((first := leading(group)).state == "slow" and first.resource != "own limit" for group in every),
        marks={mark: words.count(mark) for mark in get_args(EpisodeMark)},
        unmarked=len(every) - len(words),
        false_alarms=sum(mark in FALSE for mark in words),
    )


def _sum(parts: Sequence[Totals]) -> Totals:
    """The sum of the parts. What is not known of one part is not known of the sum."""
    whole = Totals(marks={mark: sum(part.marks[mark] for part in parts) for mark in get_args(EpisodeMark)})
    for name in Totals.__struct_fields__:
        if name != "marks":
            values = [getattr(part, name) for part in parts]
            setattr(whole, name, None if None in values else sum(values))
    return whole


def _about(
    episode: Episode, run: Sequence[Episode], changes: Iterable[Change], pool: PoolSettings, now_unix_s: float
) -> list[Change]:
    """The changes of the episode's server, until its next one begins."""
    nodes = set(episode.nodes)
    later = [
        other.since_unix_s for other in run if nodes & set(other.nodes) and other.since_unix_s > episode.since_unix_s
    ]
    until = min([end_of(episode, now_unix_s) + AFTER_S, *(since - BEFORE_S for since in later)])
    return [
        made
        for made in changes
        if pool.servers.get(made.target, made.target) in nodes
        and episode.since_unix_s - BEFORE_S <= made.time_unix_s < until
    ]


def _episode(episode: Episode, about: Sequence[Change], felt: Harm) -> WeekEpisode:
    first = next((made for made in about if made.rt_p95_predicted_ms is not None), None)
    return WeekEpisode(
        pool=episode.pool,
        node=episode.node,
        state=episode.state,
        resource=episode.resource,
        since_unix_s=episode.since_unix_s,
        until_unix_s=episode.until_unix_s,
        severity=episode.severity,
        because=episode.path[0] if episode.path else "",
        done=[what for _, what in with_trials_as_one(about)],
        applied=any(made.applied for made in about),
        rt_p95_ms=first.rt_p95_ms if first else None,
        rt_p95_predicted_ms=first.rt_p95_predicted_ms if first else None,
        harm=felt,
        marked=episode.marked,
        unseen_since_unix_s=episode.unseen_since_unix_s,
        who=episode.who,
    )


def _acting(
    journal: Journal, pool: PoolSettings, cycle: Cycle, decided: Sequence[Change], since_unix_s: float
) -> Acting:
    """Plays the recorded changes over the baselines. A change of mode, and a pause, begin again at the baselines."""
    baselines = {server.server: server.baseline for server in cycle.servers or cycle.last_known}
    weights = dict(baselines)
    commands = [
        made for what in ("mode", "pause") for made in journal.changes(pool.name, what=what, since_unix_s=since_unix_s)
    ]
    lowered: dict[str, int] = {}
    changed, made_changes, most, smallest = 0, 0, 0, math.inf
    for made in sorted([*decided, *commands], key=lambda made: made.time_unix_s):
        if made.what != "weight":
            weights = dict(baselines)
        elif made.time_unix_s >= since_unix_s and made.target in baselines and isinstance(made.after, int):
            made_changes += made.applied
            if made.applied:
                continue
            changed += 1
            weights[made.target] = made.after
            below = {name for name, weight in weights.items() if weight < baselines[name]}
            most = max(most, len(below))
            if made.target in below:
                lowered[made.target] = min(made.after, lowered.get(made.target, made.after))
                smallest = min(smallest, made.after / (sum(weights.values()) or math.inf))
    lowest = min(lowered, key=lambda name: lowered[name] / baselines[name], default=None)
    return Acting(
        weight_changes=changed,
        made=made_changes,
        servers=len(baselines),
        lowered=sorted(lowered),
        most_at_once=most,
        lowest_weight=None if lowest is None else lowered[lowest],
        lowest_baseline=None if lowest is None else baselines[lowest],
        smallest_share=smallest if lowered and cycle.weights_mean == "share" else None,
        balance=cycle.balance,
        max_mitigated=pool.max_mitigated,
    )
