"""The warm-up of a server that comes up: how much of its weight its own requests allow. Pure.

What it carries with cold caches is not known. So it gets a lower weight while it is away, or else it would have its
whole share before anybody sees it, and comes up with a few requests. By Little's law the requests that it holds say how
long they take. They are compared with those that it would hold if it were as fast as its peers, and with those that a
slow server would hold with its full weight: so many it must not hold with any weight.
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
SUREST = 1.2
"""Highest logarithm of the odds for and against: what was slow until now is fast some looks later."""
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
        warm_up = replace(warm_up, odds=_odds(state, server, warm_up.odds, full, peers))
        by_few = few(state, usable, movable, name)
        answered = served - warm_up.served
        requests = Requests(
            1.0 / (1.0 + math.exp(-warm_up.odds)),
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


def _odds(state: PoolState, server: Server, before: float, full: int, peers: Collection[str]) -> float:
    """The logarithm of the odds that the server is slow, after a look at the requests that it holds."""
    rates, wait_s = state.rates, expected_s(state, peers)
    rps = (rates.rps or {}).get(server.name, 0.0)
    if wait_s is None or rps <= 0.0 or rates.total_rps is None:
        return before
    whole = full + sum(state.positions[peer].weight for peer in state.positions if peer in peers)
    slow = MANY * wait_s * max(rps, rates.total_rps * full / max(whole, 1))
    fast = wait_s * rps
    odds = before + server.in_flight * math.log(slow / fast) - (slow - fast)
    return min(max(odds, -SUREST), SUREST)


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
