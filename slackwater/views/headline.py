"""The pool in one line, from all that is known of it: the one place for these words. Pure.

A server counts as calm when nothing speaks against it: the balancer sends it requests, it answers them as well and as
quickly as it mostly does, it is judged and found calm, and it has its whole weight. Every other one is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.core.messages import State
from slackwater.views.row import Row, listed, milliseconds

URGENCY: tuple[State, ...] = ("all_slow", "errors", "interference", "slow", "overload", "unknown")
STATES: dict[State, str] = {
    "interference": "is beside a noisy neighbour",
    "slow": "is slow, and the cause is not visible from the balancer",
    "errors": "fails, and its peers do not",
    "overload": "is overloaded",
    "all_slow": "is slow together with the others, so no neighbour is the cause",
    "unknown": "is unknown",
}
PLURALS = {"is": "are", "has": "have", "fails": "fail", "gets": "get"}
MOST = 6
"""Sentences in a headline."""
ALIKE = 0.05
"""From this share of failed requests on a headline speaks of them, also where no server is found to fail more than the
others."""


def exceptions(row: Row, title: str) -> list[str]:
    """Why a server does not count as calm, each beginning with a verb; `title`: the balancer's name."""
    if row.out:
        return [f"is {row.out} in {title}"]
    sentences = beside_the_verdict(row)
    if row.resource == "own limit" and row.state != "calm":
        sentences.append(of_limit(row.own_limit_cores))
    elif row.state == "interference" and row.own_limit_cores is not None:
        sentences.append(f"is beside a steady neighbour, or has a limit of its own, of {row.own_limit_cores:.2g} CPUs")
    elif row.state == "slow" and row.rt_p95_now_ms is not None and row.rt_p95_usual_ms is not None:
        sentences.append(f"{_slow(row.rt_p95_now_ms, row.rt_p95_usual_ms)} the cause is not visible from the balancer")
    elif row.state != "calm" and not (row.state == "errors" and row.peers_failed_share is not None):
        sentences.append(STATES[row.state])
    is_persons = row.pinned or not row.decided
    is_lowered = row.weight is not None and row.baseline and row.weight != row.full_weight
    if is_lowered and (is_persons or row.state in ("calm", "unknown")):  # else it is what is done about the state
        by = ", pinned" if row.pinned else "" if row.decided else ", set by someone else"
        sentences.append(f"has weight {row.weight} of {row.baseline}{by}")
    return sentences


def beside_the_verdict(row: Row) -> list[str]:
    """What else is wrong with a server, whatever its Verdict says: it fails, or it is slow without a neighbour."""
    sentences = []
    if row.peers_failed_share is not None and row.failed_share is not None:
        sentences.append(fails(row.failed_share, row.peers_failed_share))
    if row.state == "calm" and row.rt_p95_now_ms is not None and row.rt_p95_usual_ms is not None:
        sentences.append(f"{_slow(row.rt_p95_now_ms, row.rt_p95_usual_ms)} {_no_neighbour(row.as_in_calm)}")
    return sentences


def of_limit(cores: float | None) -> str:
    """`gets 0.4 CPUs and no more, by a limit of its own: a larger quota or machine would help`."""
    level = "as much CPU" if cores is None else f"{cores:.2g} CPUs"
    return f"gets {level} and no more, by a limit of its own: a larger quota or machine would help"


def fails(share: float, peers: float) -> str:
    """`fails 37 of 100 requests, its peers 0`."""
    return f"fails {_of_100(share)} of 100 requests, its peers {_of_100(peers)}"


def headline(rows: Sequence[Row]) -> tuple[State, str]:
    """The pool in one line, and the most urgent of its servers' states. `Row.exceptions` is filled in."""
    worst: State = next((state for state in URGENCY if any(row.state == state for row in rows)), "calm")
    parts = _named(rows)
    if not any(row.peers_failed_share is not None for row in rows) and (text := _failing_in_words(rows)):
        parts.append(text)
    if not parts:
        return worst, {0: "There are no servers", 1: "The only server is calm"}.get(
            len(rows), f"All {len(rows)} servers are calm"
        )
    calm = sum(not row.exceptions for row in rows)
    left_out = [f"and {len(parts) - MOST} more"] if len(parts) > MOST else []
    return worst, "; ".join([f"{calm} of {len(rows)} calm", *parts[:MOST], *left_out])


def _named(rows: Sequence[Row]) -> list[str]:
    """Each exception with the servers that it is about, the most urgent first."""
    order = [STATES[state] for state in URGENCY]
    names: dict[str, list[str]] = {}
    for row in rows:
        for text in row.exceptions:
            names.setdefault(text, []).append(row.node)
    texts = sorted(names, key=lambda text: order.index(text) if text in order else -1)
    return [f"{listed(names[text])} {_plural(text) if len(names[text]) > 1 else text}" for text in texts]


def _plural(text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{PLURALS[verb]} {rest}"


def failing(rows: Sequence[Row]) -> tuple[float, list[Row]]:
    """The share of all requests that fail, and the servers that fail most, the worst first: none where too few fail to
    be worth a word."""
    known = [(row.rps, row.failed_share, row) for row in rows if row.rps and row.failed_share is not None]
    share = sum(rps * failed for rps, failed, _ in known) / sum(rps for rps, *_ in known) if known else 0.0
    if share < ALIKE:
        return share, []
    most = [(failed, row) for _, failed, row in known if failed >= share / 2.0]
    return share, [row for _, row in sorted(most, key=lambda server: -server[0])]


def to_look_at(rows: Sequence[Row]) -> list[Row]:
    """The servers whose error log is worth a look: those that fail well above their peers, or else those that fail
    most."""
    return [row for row in rows if row.peers_failed_share is not None] or failing(rows)[1]


def _failing_in_words(rows: Sequence[Row]) -> str:
    """`12 of 100 requests fail, on all servers alike`, or on which ones; empty where too few fail."""
    share, worst = failing(rows)
    if not worst:
        return ""
    alike = len(worst) == len(rows) and (worst[0].failed_share or 0.0) <= 2.0 * share
    where = "on all servers alike" if alike else f"most of them at {listed([row.node for row in worst])}"
    return f"{_of_100(share)} of 100 requests fail" + (f", {where}" if len(rows) > 1 else "")


def _slow(now_ms: float, usual_ms: float) -> str:
    """`is slow (48 ms, usually 9), and`."""
    now, usual = milliseconds(now_ms), milliseconds(usual_ms)
    if now.endswith(" ms") and usual.endswith(" ms"):
        usual = f"{usual_ms:.0f}" if usual_ms >= 1.0 else f"{usual_ms:.1f}"
    return f"is slow ({now}, usually {usual}), and"


def _no_neighbour(as_in_calm: Sequence[str]) -> str:
    if not as_in_calm:
        return "no neighbour is found"
    *most, last = as_in_calm
    resources, verb = (f"{', '.join(most)} and {last}", "are") if most else (last, "is")
    return f"no neighbour is the cause: its {resources} {verb} as in calm"


def _of_100(share: float) -> str:
    percent = 100.0 * share
    return f"{percent:.0f}" if percent >= 1.0 or percent == 0.0 else f"{percent:.1f}"
