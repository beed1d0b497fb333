"""What is decided about a server with a limit of its own: it gets what it can carry, within the usual bounds."""

from __future__ import annotations

import msgspec

from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.decision.decide import Decisions
from slackwater.lbengine.decision.position import Position
from tests.support.pool_shown import POOL, decided, server, snapshot, verdict

NAMES = ("host0", "host1", "host2")
PATH = ["it gets 0.16 CPUs and no more while work waits, whoever else is there: a limit of its own"]


def limited_pool(
    count: int, pool: HAProxyPool = POOL, state: str = "slow", rps: float = 240.0, total_rps: float = 450.0
) -> Decisions:
    """The decisions on three servers of 600 requests/s at their baselines, of which so many have a limit."""
    verdicts = {name: verdict(name, "calm", 0.0, 600.0) for name in NAMES}
    for name in NAMES[:count]:
        verdicts[name] = msgspec.structs.replace(
            verdict(name, state, 0.6, rps),  # type: ignore[arg-type]
            path=PATH,
            resource="own limit",
            own_limit_cores=0.16,
            probability=0.98,
            capacity_stderr_rps=0.1 * rps,
        )
    shown_now = snapshot([server(name, 100) for name in NAMES], "roundrobin")
    positions = {name: Position(100) for name in NAMES}
    rates = dict.fromkeys(NAMES, total_rps / 3)
    return decided(shown_now, positions, verdicts, now_s=100.0, total_rps=total_rps, rates=rates, pool=pool)


def weights_in(decisions: Decisions) -> list[int]:
    return [decisions.servers[name].position.weight for name in NAMES]


def test_a_limited_server_gets_what_it_can_carry() -> None:
    decisions = limited_pool(1, total_rps=900.0)
    assert 0 < weights_in(decisions)[0] < 60
    assert weights_in(decisions)[1:] == [100, 100]
    mine = decisions.servers["host0"]
    assert mine.cause == "own_limit"
    assert mine.why.startswith(f"slow: {PATH[0]}")


def test_a_limit_is_switched_off_by_name_and_other_slow_servers_are_not() -> None:
    pool = msgspec.structs.replace(POOL, causes_off=["own_limit"])
    decisions = limited_pool(1, pool)
    assert weights_in(decisions) == [100, 100, 100]
    mine = decisions.servers["host0"]
    assert (mine.cause, mine.why) == (
        "own_limit",
        f"slow: {PATH[0]}; its weight stays, as `causes_off` names this cause",
    )
    assert weights_in(limited_pool(1, msgspec.structs.replace(POOL, causes_off=["errors"])))[0] < 60


def test_limits_of_all_servers_and_overload_move_nothing() -> None:
    assert weights_in(limited_pool(3, state="overload")) == [100, 100, 100]
    assert weights_in(limited_pool(3, state="all_slow")) == [100, 100, 100]
    assert limited_pool(1, state="overload").servers["host0"].cause == "overload"


def test_servers_that_lie_about_a_limit_are_bounded_by_the_guard() -> None:
    """A node that tells of a limit that it does not have gains only that it is relieved, as by any lie."""
    assert weights_in(limited_pool(2, rps=1.0)).count(0) <= 1
    assert any(weights_in(limited_pool(3, rps=1.0)))
