"""How a server and a pool look on the pages: as their state, or as what is wrong beside it. Nothing looks calm where
the headline names it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from slackwater.views.pool import PoolStatus
from slackwater.views.row import SYMBOLS, WORDS, Row

Look = Literal[
    "failing", "down", "interference", "overload", "all_slow", "slow", "unknown", "aside", "attention", "calm"
]
URGENCY: tuple[Look, ...] = (
    *("failing", "down", "interference", "overload", "all_slow", "slow", "unknown", "aside", "attention", "calm"),
)
"""The most urgent first. `slow`: without a neighbour; `aside`: taken out by somebody; `attention`: anything else."""

NAMES: dict[str, str] = {**{look: look for look in URGENCY}, **{str(state): word for state, word in WORDS.items()}}
NAMES["aside"] = "taken out"
"""Names of states in counts of servers."""


class Badge(NamedTuple):
    """A symbol and a word stand beside the colour, never the colour alone."""

    look: Look
    symbol: str
    word: str


def badge(row: Row) -> Badge:
    """A server's badge: the most urgent of what is known of it."""
    if row.out:
        down = row.condition == "down"
        return Badge("down" if down else "aside", "✕" if down else "○", row.out)
    if row.peers_failed_share is not None or row.state == "errors":
        return Badge("failing", "✕", "failing")
    if row.state != "calm":
        taken = f": {row.resource}" if row.resource not in (None, "unclear") else ""
        return Badge(row.state, SYMBOLS[row.state], f"{WORDS[row.state]}{taken}")
    if row.rt_p95_now_ms is not None:
        return Badge("slow", "!", "slow")
    return Badge("calm", SYMBOLS["calm"], WORDS["calm"])


def of_pool(view: PoolStatus) -> Badge:
    """The pool's badge: the most urgent of its servers' badges, and never calm while a server is not."""
    whole = Badge("failing" if view.state == "errors" else view.state, SYMBOLS[view.state], WORDS[view.state])
    if view.stale or view.outage is not None:
        return whole
    worst = min([whole, *map(badge, view.rows)], key=lambda shown: URGENCY.index(shown.look))
    if worst.look == "calm" and any(row.exceptions for row in view.rows):
        return Badge("attention", "!", "attention")
    return worst
