"""Causes as sentences for people: the one place for these words. The numbers behind them are in each reason itself."""

from __future__ import annotations

from slackwater.core.messages import SLOW_CAUSES, Change, ChangeCause, Resource, ServerState, State
from slackwater.views.row import milliseconds

OWN_LIMIT = "it gets no more CPU than a limit of its own allows (a larger quota or machine would help)"
NEIGHBOUR: dict[Resource | None, str] = {
    None: "a noisy neighbour slows it",
    "unclear": "a noisy neighbour slows it",
    "cpu": "a noisy neighbour takes its CPU time",
    "cache": "a noisy neighbour takes its CPU cache",
    "memory bandwidth": "a noisy neighbour takes its memory bandwidth",
    "network": "a noisy neighbour takes its network",
    "disk": "a noisy neighbour takes its disk",
    "own limit": OWN_LIMIT,
}

FAILS = "its requests fail, and those of its peers do not"
NOT_VISIBLE = "it is slow, and the cause is not visible from the balancer"

DECISIONS: dict[ChangeCause | None, str] = {
    "calm": "it is calm again and gets its full weight",
    "overload": "it has more requests than it can serve and no neighbour is found, so its weight stays",
    "all_slow": "all servers are slow together, so its weight stays",
    "not_shown": "it was slow, but nothing shows that any more, so it has its full weight",
    "no_gain": "it is slow, but the others would not answer its requests sooner, so it keeps its full weight",
    "peer_fails": "it is slow, but a server that would get its requests fails, so it keeps its full weight",
    "tried": "it gets a few requests now and then, to see whether it is well again",
    "fast": "its few requests went well, so it gets its full weight on trial",
    "away": "it takes no requests now; it will begin with a few, as its caches may be cold",
    "warm_up": "it came up, and gets more requests as long as it answers them quickly",
    "panic": "all servers are slow together, so each has its full weight",
    "no_verdict": "nothing new is known of it, so it has its full weight",
    "waiting": "Slackwater has just started and knows nothing of it yet, so its weight stays",
    "bounded": "too many servers would have a low weight at once, so this one keeps a part of its own",
}
"""Why a server has its weight. Other causes are a person's or the second stage's, whose own words say it best."""
TRIED = "its trial with a few requests is over"
"""Why its weight falls again after a few requests."""


def of_state(state: State | ChangeCause | None, resource: Resource | None) -> str:
    """A state that is not calm in words; empty where its own reason says it best."""
    if state == "own_limit" or (state is not None and resource == "own limit"):
        return OWN_LIMIT
    if state == "interference":
        return NEIGHBOUR[resource]
    if state == "slow":
        return NOT_VISIBLE
    if state == "errors":
        return FAILS
    return {"overload": "it has more requests than it can serve", "all_slow": "all servers are slow together"}.get(
        state or "", ""
    )


def of_server(server: ServerState, state: State, resource: Resource | None, observes: bool) -> str:
    """Why a server has its weight, and what was done, in a sentence; empty where nothing is decided about it. `state`:
    the detector's; a person may have ended its episode."""
    if server.cause in SLOW_CAUSES and server.wanted < server.full_weight:
        weight = f"weight {server.wanted} instead of {server.full_weight}"
        return f"{of_state(server.cause, resource)}, so it {'would get' if observes else 'gets'} {weight}"
    if server.cause not in DECISIONS:
        return server.why
    if server.cause == "calm" and state in SLOW_CAUSES:
        return "it counts as calm and has its full weight"
    return DECISIONS[server.cause]


def of_change(change: Change) -> str:
    """Why it was made, in a sentence."""
    if change.cause == "tried" and change.lowers:
        return TRIED
    words = DECISIONS.get(change.cause)
    return change.why if words is None else words


def expected(change: Change) -> str:
    """What a lower weight was expected to do to users; empty if nothing was. Of a higher one more requests decide."""
    if change.what == "outcome" or not change.lowers or change.rt_p95_ms is None or change.rt_p95_predicted_ms is None:
        return ""
    predicted, now = milliseconds(change.rt_p95_predicted_ms), milliseconds(change.rt_p95_ms)
    return "" if predicted == now else f"expected p95 {predicted} instead of {now}"
