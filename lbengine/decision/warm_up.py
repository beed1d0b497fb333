"""The warm-up of a server that comes up: how much of its weight its own requests allow. Pure.

What it carries with cold caches is not known. So it gets a lower weight while it is away, or else it would have its
whole share before anybody sees it, and comes up with a few requests. By Little's law the requests that it holds say how
long they take. They are compared with those that it would hold if it were as fast as its peers, and with those that a
slow server would hold with its full weight: so many it must not hold with any weight. A request that is held at each
look may be one that is long by itself, as on a fast server too. It is one, however many looks see it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from slackwater.core.config import PoolSettings
from slackwater.core.messages import WARM_UP
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.decision.alike import MANY
from slackwater.lbengine.decision.position import Position, Requests, WarmUp, warmed
from slackwater.lbengine.decision.rates import Rates
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.trials import FEW_LEAST_S, few

ENOUGH = 4
"""Answers that tell of a weight before a second is over."""
LONG = 0.05
"""Probability of each request that is held at every look and is long by itself, as the stream of a client."""
MOST_ODDS = 100.0
"""Range of the logarithm of the odds."""
LONGEST_S = 60.0
"""A warm-up is over after this time, whatever is shown."""
FAILS = 0.5
"""A server fails while at least this share of its requests does, and less than half as many of its peers'."""


def away(state: PoolState, view: PoolView, pool: PoolSettings, knows_room: bool) -> dict[str, Position]:
    """The positions of servers that the balancer takes for down, or that are in maintenance: they will be cold.

    `knows_room`: whether it is known what the others carry; else none gets a lower weight.
    """
    if not _applies(view, pool):
        return {}
    positions, usable = {}, [server for server in view.snapshot.servers if server.available and not server.backup]
    for server in view.snapshot.servers:
        name = server.name
        if not _is_away(state, view, server):
            continue
        before, full = state.positions[name], state.full_weight(name)
        # One that we never saw take requests is left as it is until it does.
        warm_up = before.warm_up or WarmUp(view.now_s, view.now_s, view.now_s, state.started_s != view.now_s)
        weight = before.weight
        if knows_room and warm_up.lowers and usable and _is_lowered_away(state, view, server):
            movable = {other.name: state.full_weight(other.name) for other in usable if other.name in state.positions}
            weight = min(weight, _not_typed(few(state, usable, {**movable, name: full}, name).weight, full))
        after = WarmUp(warm_up.away_s, view.now_s, view.now_s, warm_up.lowers)
        positions[name] = replace(before, weight=weight, warm_up=after)
    return positions


def while_drained(state: PoolState, view: PoolView, pool: PoolSettings, name: str) -> WarmUp | None:
    """The warm-up that a drained server has before it: it was away meanwhile, or its machine is replaced by another,
    which is cold also where the balancer did not see that."""
    before = _warm_up(state, name)
    if not _applies(view, pool) or (before is None and not view.drains[name].is_firm):
        return None
    return WarmUp(view.now_s if before is None else before.away_s, view.now_s, view.now_s)


def is_coarse(full: int) -> bool:
    """Whether each lower weight is a tenth of this one (of 1, 2, 5 and 10), so that there is no warm-up."""
    return _not_typed(1, full) == full


def _not_typed(weight: int, full: int) -> int:
    """The weight, or the next higher that is no tenth of the full one: a person who sets `10%` for a first trial of a
    release must be seen to have set it. Where each weight is a tenth, the full weight."""
    return next((value for value in range(weight, full) if 10 * value % full), full)


def _applies(view: PoolView, pool: PoolSettings) -> bool:
    return WARM_UP not in pool.causes_off and view.snapshot.counts == "requests"


def _is_away(state: PoolState, view: PoolView, server: Server) -> bool:
    """Whether it takes no requests, and we give it its weight when it does."""
    baseline = (state.baselines or {}).get(server.name)
    return (
        server.condition in ("down", "maintenance")
        and not server.backup
        and baseline is not None
        and baseline.weight > 0
        and server.name in state.positions
        and server.name not in state.externally_controlled
        and server.name not in view.pins
    )


def _is_lowered_away(state: PoolState, view: PoolView, server: Server) -> bool:
    """Whether it gets its lower weight while it is away. A slot without a machine does not, nor one whose weight is
    asked of its machine, nor one that the balancer itself warms up."""
    asked = server.agent_check or server.srv_record
    return (
        view.snapshot.weighs_away
        and not asked
        and not server.placeholder
        and not server.slow_start
        and server.name not in state.slow_starts
    )


def positions(
    state: PoolState,
    view: PoolView,
    pool: PoolSettings,
    usable: Sequence[Server],
    movable: Mapping[str, int],
    reduce: Collection[str],
    knows_room: bool,
) -> dict[str, Position]:
    """The positions of the servers that came up and are not warm yet, by name. `reduce`: servers in an episode.

    A server that has no warm peer gets its full weight at once: nobody else could answer its requests sooner. So does
    each where it is not known what the others carry (`knows_room`), as while the detector is silent.
    """
    after = {}
    warming = {server.name for server in usable if _warm_up(state, server.name) is not None}
    peers = [server.name for server in usable if server.name not in warming and server.name not in reduce]
    for server in usable:
        name, warm_up = server.name, _warm_up(state, server.name)
        if warm_up is None or name not in movable or name in reduce:
            continue
        full = movable[name]
        is_over = view.now_s - warm_up.up_s > LONGEST_S or server.uncounted or name in state.slow_starts
        if is_over or not knows_room or not _applies(view, pool):
            after[name] = Position(full)
            continue
        served = max(server.requests - server.in_flight - server.unanswered, 0)
        if not 0 <= warm_up.served <= served:
            warm_up = replace(warm_up, served=served)
        held = _held(state, name, warm_up.stage_s)
        warm_up = replace(warm_up, held=min(held, default=0))
        odds = _odds(state, name, [count - min(warm_up.long, warm_up.held) for count in held], full, peers)
        by_few = few(state, usable, movable, name)
        answered = served - warm_up.served
        requests = Requests(
            1.0 / (1.0 + math.exp(-odds)),
            answered >= (ENOUGH if view.now_s - warm_up.stage_s < FEW_LEAST_S else 1),
            _not_typed(by_few.weight, full) if peers else full,
            FEW_LEAST_S,
            by_few.others,
            _fails(state.rates, name, peers),
        )
        after[name] = warmed(replace(state.positions[name], warm_up=warm_up), full, requests, view.now_s)
    return after


def _warm_up(state: PoolState, name: str) -> WarmUp | None:
    position = state.positions.get(name)
    return None if position is None else position.warm_up


def _held(state: PoolState, name: str, since_s: float) -> list[int]:
    """The requests that a server held at the looks of the last second, as far as these are later than `since_s`."""
    return [looked[name] for look_s, looked in state.rates.looks if look_s > since_s and name in looked]


def _odds(state: PoolState, name: str, held: Sequence[int], full: int, peers: Collection[str]) -> float:
    """The logarithm of the odds that the server is slow, by the requests held at some looks: a ratio of likelihoods."""
    rates, wait_s = state.rates, expected_s(state, peers)
    rps = (rates.rps or {}).get(name, 0.0)
    if wait_s is None or rps <= 0.0 or rates.total_rps is None or not held:
        return 0.0
    whole = full + sum(state.positions[peer].weight for peer in state.positions if peer in peers)
    slow = MANY * wait_s * max(rps, rates.total_rps * full / max(whole, 1))
    fast = wait_s * rps
    return min(max(_likelihood(held, slow, math.inf) - _likelihood(held, fast, fast), -MOST_ODDS), MOST_ODDS)


def _likelihood(held: Sequence[int], least: float, most: float) -> float:
    """The logarithm of the likelihood of the requests held at some looks, for the likeliest mean of at least `least`
    and at most `most`, up to terms that all means share. What is held at every look may be long by itself."""

    def of(rest: Sequence[int]) -> float:
        mean = min(max(math.fsum(rest) / len(rest), least), most)
        return math.fsum(count * math.log(mean) - mean - math.lgamma(count + 1) for count in rest)

    always = min(held)
    return max(of(held), always * math.log(LONG) + of([count - always for count in held]))


def expected_s(state: PoolState, peers: Collection[str]) -> float | None:
    """The time that a request takes at a warm server: in calm, or if longer at the `peers` now; None: not known."""
    rates = state.rates
    held = math.fsum(math.fsum(looks) / len(looks) for peer in peers if (looks := rates.held_by(peer)))
    rps = math.fsum((rates.rps or {}).get(peer, 0.0) for peer in peers)
    now_s = held / rps if rps > 0.0 else None
    return max((wait_s for wait_s in (state.calm.wait_s, now_s) if wait_s), default=None)


def _fails(rates: Rates, name: str, peers: Collection[str]) -> bool:
    """Whether the server fails now, and its peers do not as much. A Verdict's share is that of half a minute, in which
    connections were refused before it was found down."""

    def share(servers: Collection[str]) -> float:
        asked = math.fsum((rates.rps or {}).get(server, 0.0) for server in servers)
        return math.fsum((rates.errors or {}).get(server, 0.0) for server in servers) / asked if asked > 0.0 else 0.0

    return share([name]) >= FAILS > 2.0 * share(peers)
