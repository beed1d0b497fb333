"""What is decided about servers whose requests fail: none of their load is left to them, within the usual bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.decision.decide import Decision, Decisions
from slackwater.lbengine.decision.position import Position
from tests.support.pool_shown import POOL, decided, server, snapshot, verdict

NAMES = ("host0", "host1", "host2")
NOW_S = 100.0


def failing_pool(
    count: int,
    pool: HAProxyPool = POOL,
    total_rps: float = 180.0,
    shown: bool = True,
    others: Mapping[str, Any] | None = None,
) -> Decisions:
    """The decisions on three servers at their baselines, of which so many are in an episode of `errors`. `others`: what
    else is known of the others."""
    verdicts = {name: msgspec.structs.replace(verdict(name, "calm", 0.0, 300.0), **(others or {})) for name in NAMES}
    for name in NAMES[:count]:
        fails = verdict(name, "errors", 0.87, 300.0)
        path = ["87% of its last requests failed, and 0% of its peers'"]
        verdicts[name] = msgspec.structs.replace(
            fails, path=path, probability=0.98, calm_shows_within_s=None, shown=shown, failed_share=0.87
        )
    shown_now = snapshot([server(name, 100) for name in NAMES], "leastconn")
    positions = {name: Position(100) for name in NAMES}
    rates = dict.fromkeys(NAMES, total_rps / 3)
    return decided(shown_now, positions, verdicts, now_s=NOW_S, total_rps=total_rps, rates=rates, pool=pool)


def weights_in(decisions: Decisions) -> list[int]:
    return [decisions.servers[name].position.weight for name in NAMES]


def test_a_server_whose_requests_fail_gets_none_however_short_its_queue() -> None:
    decisions = failing_pool(1)
    assert weights_in(decisions) == [0, 100, 100]
    mine = decisions.servers["host0"]
    assert (mine.cause, mine.short[0]) == ("errors", "errors")
    assert mine.why == (
        "errors: 87% of its last requests failed, and 0% of its peers'; it gets a few requests now and then, to see"
        " whether it still fails"
    )


def test_failing_servers_are_bounded_by_the_guard_and_by_the_room_of_the_others() -> None:
    assert weights_in(failing_pool(2)) == [0, 10, 100], "half of three may be drained"
    assert weights_in(failing_pool(3)) != [0, 0, 0]
    full = failing_pool(1, total_rps=700.0)
    assert 0 < full.servers["host0"].position.weight < 100
    assert "its weight goes no lower" in full.servers["host0"].why


def test_a_failing_server_that_keeps_its_weight_for_want_of_room_is_not_called_tried() -> None:
    kept = tried(Position(100, moved_s=NOW_S, least=100), 1.0, 0.97)
    assert kept.position.weight == 100
    assert kept.why.endswith("its weight goes no lower, since the others had no room for its requests")


def test_a_cause_that_is_switched_off_is_shown_and_moves_nothing() -> None:
    decisions = failing_pool(1, msgspec.structs.replace(POOL, causes_off=["errors"]))
    assert weights_in(decisions) == [100, 100, 100]
    mine = decisions.servers["host0"]
    assert mine.cause == "errors"
    assert mine.why.endswith("its weight stays, as `causes_off` names this cause")


def test_a_failing_server_in_an_episode_that_only_waits_for_its_end_does_not_hold_others_back() -> None:
    decisions = failing_pool(1, shown=False)
    assert (decisions.servers["host0"].position.weight, decisions.servers["host0"].cause) == (100, "not_shown")


def test_a_failing_server_gets_nothing_though_another_fails_a_little_or_the_others_are_slow_alike() -> None:
    assert weights_in(failing_pool(1, others={"failed_share": 0.05, "peers_failed_share": 0.0})) == [0, 100, 100]
    slow = failing_pool(1, others={"state": "all_slow"})
    assert weights_in(slow) == [0, 100, 100]
    assert [slow.servers[name].cause for name in NAMES] == ["errors", "panic", "panic"]


def tried(
    position: Position, after_s: float, probability: float, rps: float = 0.0, failed_rps: float = 0.0
) -> Decision:
    """The decision on host0 in an episode of `errors`, whose peers are calm."""
    fails = msgspec.structs.replace(
        verdict("host0", "errors", 0.87, 300.0),
        probability=probability,
        shown=probability >= 0.5,
        calm_shows_within_s=None,
        rps=rps,
        failed_share=0.87,
        peers_failed_share=0.0,
        since_unix_s=NOW_S,
        time_unix_s=NOW_S + after_s,
    )
    positions = {"host0": position, "host1": Position(100), "host2": Position(100)}
    look = snapshot([server(name, positions[name].weight) for name in NAMES], "leastconn")
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES} | {"host0": fails}
    served = {"host0": rps}
    errors = {"host0": failed_rps}
    now_s = NOW_S + after_s
    decisions = decided(look, positions, verdicts, now_s=now_s, total_rps=180.0, served=served, errors=errors)
    return decisions.servers["host0"]


def test_a_trial_of_a_failing_server_ends_at_its_first_failures_and_not_by_how_fast_they_are() -> None:
    lowered = tried(Position(0, moved_s=NOW_S), 1.0, 0.97)
    after = tried(lowered.position, 3.1, 0.95)
    assert (after.position.weight, after.cause) == (10, "tried")
    assert after.why.endswith("it gets a few requests now and then, to see whether it still fails")
    over = tried(after.position, 3.3, 0.98, rps=10.0)
    assert over.position.weight == 0
    assert over.why.endswith("its few requests do not show that it is well")
    assert tried(after.position, 3.3, 0.95, rps=10.0).position.weight == 10, "it may still be what was known before"
    assert tried(after.position, 3.3, 0.95, rps=10.0, failed_rps=5.0).position.weight == 0
    well = tried(after.position, 3.9, 0.1, rps=10.0)
    assert (well.position.weight, well.cause) == (100, "fast")
    assert "its few requests were answered" in well.why
    assert tried(well.position, 4.5, 0.1, rps=10.0).position.weight == 100
    assert tried(well.position, 4.5, 0.98, rps=10.0).position.weight == 0, "some requests later they fail again"


def test_failures_of_a_client_that_is_bound_to_the_server_end_no_trial() -> None:
    lowered = tried(Position(0, moved_s=NOW_S), 1.0, 0.97, failed_rps=4.0)
    after = tried(lowered.position, 3.1, 0.95, failed_rps=4.0)
    assert (after.position.weight, after.cause) == (10, "tried")
    assert tried(after.position, 3.3, 0.95, rps=14.0, failed_rps=7.0).position.weight == 10
    assert tried(after.position, 3.9, 0.1, rps=14.0, failed_rps=5.0).position.weight == 100
    assert tried(after.position, 3.3, 0.95, rps=14.0, failed_rps=12.0).position.weight == 0, "its own requests fail too"
