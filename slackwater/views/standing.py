"""Where a site stands, in one sentence, and what to do next: the one place for these words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from slackwater.views.headline import to_look_at
from slackwater.views.pool import PoolStatus
from slackwater.views.row import clock, listed

StandingState = Literal["empty", "observing", "acting", "paused", "broken"]
Kind = Literal[
    "unreadable",
    "no_journal",
    "not_running",
    "no_answer",
    "refused",
    "silent",
    "no_verdicts",
    "no_cycle",
    "no_samples",
    "paused",
    "act",
    "observe",
]


class _Words(NamedTuple):
    state: StandingState
    sentence: str
    todo: str


_WORDS: dict[Kind, _Words] = {
    "unreadable": _Words(
        "broken",
        "Nothing can be shown: {error}.",
        "`slackwater check` on the balancer's host, which says why.",
    ),
    "no_journal": _Words(
        "empty",
        "Nothing was ever recorded: {error}",
        "start it on the balancer's host: `systemctl start slackwater-controller`.",
    ),
    "not_running": _Words(
        "broken",
        "The controller does not run: nothing is watched or changed in {pools}.",
        "`systemctl start slackwater-controller`.",
    ),
    "no_answer": _Words(
        "broken",
        "{balancer} has not answered since {since}, so the weights of {pools} can be neither read nor set.",
        "look at {balancer} on its host; all else follows by itself when it answers.",
    ),
    "refused": _Words(
        "broken",
        "{balancer} has refused commands since {since}, so the weights of {pools} cannot be set.",
        "`slackwater check`, which says what it lacks; weights are tried again by themselves.",
    ),
    "silent": _Words(
        "broken",
        "The controller is silent about {pools}: weights are the last known ones, states are unknown.",
        "`systemctl restart slackwater-controller` on the balancer's host.",
    ),
    "no_verdicts": _Words(
        "broken",
        "No server of {pools} is judged any more, so none gets less weight.",
        "`slackwater check`, which names what is missing.",
    ),
    "no_cycle": _Words(
        "empty",
        "Nothing is recorded of {pools} yet.",
        "wait some seconds; then `slackwater check`, which names what is missing.",
    ),
    "no_samples": _Words(
        "empty",
        "The balancer shows the servers of {pools}, but none of them is measured yet.",
        "wait some seconds; then `slackwater check`, which names what is missing.",
    ),
    "paused": _Words(
        "paused",
        "{Pools} {have} the baseline weights, and nothing is changed until somebody resumes.",
        "`slackwater resume {options}` when the reason for the pause is over.",
    ),
    "act": _Words(
        "acting",
        "In {pools} a server that is slow gets less weight until it is well again.",
        "nothing.",
    ),
    "observe": _Words(
        "observing",
        "In {pools} no weight is changed: decisions are only recorded.",
        "nothing; after a week `slackwater week` says what acting would have changed.",
    ),
}
"""The most urgent first."""
_URGENCY = list(_WORDS)
SYMBOLS: dict[StandingState, str] = {"empty": "○", "observing": "◎", "acting": "▶", "paused": "❚❚", "broken": "✕"}


class Standing(msgspec.Struct):
    """Where pools stand, by the most urgent one."""

    state: StandingState
    symbol: str
    sentence: str
    """What it means."""
    todo: str
    """The next step."""


def standing(pools: Sequence[PoolStatus], error: str = "", has_journal: bool = True) -> Standing:
    """Where these pools stand. `error`: why the journal cannot be read; then nothing is known of them."""
    if error:
        return _said("unreadable" if has_journal else "no_journal", [], error)
    kinds = [_kind(view) for view in pools]
    worst = min(kinds, key=_URGENCY.index)
    result = _said(worst, [view for view, kind in zip(pools, kinds, strict=True) if kind == worst])
    if worst == "not_running" and any(
        row.decided and row.weight != row.baseline for view in pools for row in view.rows
    ):
        result.todo = "`slackwater restore --all`, as weights are still lowered; then " + result.todo
    servers = [row.server for view in pools for row in to_look_at(view.rows) if row.server]
    if servers and result.state in ("acting", "observing"):
        result.todo = f"look at the error log of {listed(servers)}: no neighbour is the cause."
    others = [_WORDS[kind].state for kind in kinds if kind != worst]
    if others:
        counts = ", ".join(f"{others.count(state)} {state}" for state in SYMBOLS if state in others)
        result.sentence += f" Other pools: {counts}."
    return result


def _kind(view: PoolStatus) -> Kind:
    if view.running is False:
        return "not_running"
    if view.outage is not None:
        return view.outage
    if view.stale:
        return "no_cycle" if view.age_s is None else "silent"
    if view.rows and all(row.state == "unknown" for row in view.rows):
        return "no_verdicts" if view.judged else "no_samples"
    return "paused" if view.paused else view.mode or "observe"


def _said(kind: Kind, views: Sequence[PoolStatus], error: str = "") -> Standing:
    words, names = _WORDS[kind], [view.pool for view in views]
    balancer = listed(list(dict.fromkeys(view.balancer for view in views)))
    since = clock(min((view.outage_since_unix_s or 0.0 for view in views), default=0.0))
    pools = f"pool{'s' if len(names) != 1 else ''} {listed(names)}"
    have = "has" if len(names) == 1 else "have"
    known = {"pools": pools, "Pools": f"P{pools[1:]}", "have": have, "error": error}
    known["options"] = f"--pool {names[0]}" if len(names) == 1 else "--all"
    known |= {"balancer": f"{balancer[:1].upper()}{balancer[1:]}", "since": since}
    return Standing(words.state, SYMBOLS[words.state], words.sentence.format(**known), words.todo.format(**known))
