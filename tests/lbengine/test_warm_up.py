"""A server that comes up gets its share as its own requests allow, in a pool that is played turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import ServerCondition, Verdict
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.state import Phase, PoolState, PoolView
from slackwater.lbengine.decision.step import Actions, step
from slackwater.lbengine.decision.warm_up import LONGEST_S, _not_typed, is_coarse
from slackwater.lbengine.overrides.temporary import TemporaryOverride
from tests.support.pool_shown import POOL, snapshot, verdict

TURN_S = 0.2
WAIT_S = 0.01


@dataclass
class Played:
    """A server: how it answers, and what was counted."""

    name: str
    condition: ServerCondition = "up"
    weight: int = 100
    cold_requests: float = 0.0
    """So many requests are slow, until its caches are warm."""
    cold_s: float = 0.5
    requests: float = 0.0
    held: float = 0.0
    errors: float = 0.0
    fails: bool = False
    long: int = 0
    """Requests of clients that never end, such as streams of events."""
    slow_start: bool = False
    more: dict[str, bool] = field(default_factory=dict)

    def shown(self) -> Server:
        return Server(
            name=self.name,
            weight=self.weight,
            configured=100,
            condition=self.condition,
            requests=int(self.requests) + self.long,
            in_flight=int(self.held) + self.long,
            errors=int(self.errors),
            slow_start=self.slow_start,
            **self.more,  # type: ignore[arg-type]
        )


class Site:
    """A pool under a steady load, with an engine's turns 0.2 s apart."""

    def __init__(
        self,
        rps: float = 60.0,
        count: int = 3,
        phase: Phase = "acting",
        pool: PoolSettings = POOL,
        weighs_away: bool = True,
        verdicts_come: bool = True,
    ) -> None:
        self.rps, self.pool, self.now_s, self.weighs_away = rps, pool, 100.0, weighs_away
        self.servers = [Played(f"web{number}") for number in range(count)]
        calm = Calm(held=60.0 * rps * WAIT_S, requests=60.0 * rps, seconds=60.0)
        self.state = PoolState(phase, calm=calm)
        self.slow: set[str] = set()
        self.verdicts_come, self.sets = verdicts_come, True
        self.drains: dict[str, TemporaryOverride] = {}
        self.turns(5)

    def verdicts(self) -> dict[str, Verdict]:
        return {
            played.name: replace_state(verdict(played.name, "calm", 0.0, 100.0), played.name in self.slow)
            for played in self.servers
            if self.verdicts_come
        }

    def turns(self, count: int = 1) -> Actions:
        for _ in range(count):
            actions = self._turn()
        return actions

    def _turn(self) -> Actions:
        self.now_s += TURN_S
        able = [played for played in self.servers if played.condition == "up"]
        whole = sum(played.weight for played in able)
        for played in self.servers:
            share = played.weight / whole if played in able and whole else 0.0
            asked = share * self.rps * TURN_S
            cold = played.cold_requests > 0
            wait_s = played.cold_s if cold else WAIT_S
            played.cold_requests = max(played.cold_requests - asked, 0.0)
            played.requests += asked
            played.errors += asked if played.fails else 0.0
            held = asked / TURN_S * wait_s
            played.held = held + played.held % 1.0 if held > 0.0 else 0.0  # what is rounded off comes later
        shown = replace(
            snapshot([played.shown() for played in self.servers], "roundrobin"), weighs_away=self.weighs_away
        )
        view = PoolView(now_s=self.now_s, snapshot=shown, verdicts=self.verdicts(), drains=self.drains)
        self.state, actions = step(self.state, view, self.pool, LbengineSettings())
        if self.state.phase == "acting" and self.sets:
            for wanted in actions.wanted:
                played = next(played for played in self.servers if played.name == wanted.server)
                played.weight = wanted.after
        return actions

    def weights(self) -> list[int]:
        return [played.weight for played in self.servers]

    def until_full(self, most_s: float = 2.0 * LONGEST_S) -> float:
        """Seconds until all servers have their full weights."""
        begin_s = self.now_s
        while self.weights() != [100] * len(self.servers) and self.now_s < begin_s + most_s:
            self.turns()
        return self.now_s - begin_s


def replace_state(calm: Verdict, slow: bool) -> Verdict:
    if slow:
        calm.state, calm.severity, calm.probability = "slow", 0.9, 0.95
    return calm


def down(site: Site, *numbers: int, turns: int = 5, condition: ServerCondition = "down") -> None:
    for number in numbers:
        site.servers[number].condition = condition
    site.turns(turns)


def up(site: Site, *numbers: int, cold_requests: float = 0.0) -> None:
    for number in numbers:
        site.servers[number].condition, site.servers[number].cold_requests = "up", cold_requests


@pytest.mark.parametrize("condition", ["down", "maintenance"])
def test_a_server_that_is_away_comes_back_with_a_few_requests(condition: ServerCondition) -> None:
    site = Site()
    down(site, 0, condition=condition)
    assert 0 < site.weights()[0] <= 12
    assert site.weights()[1:] == [100, 100]


def test_a_restart_that_costs_nothing_is_over_within_some_two_seconds() -> None:
    for rps in (30.0, 60.0, 600.0):
        site = Site(rps)
        down(site, 0)
        up(site, 0)
        assert site.until_full() <= 2.1, rps


def test_a_cold_server_gets_its_weight_when_its_requests_are_as_fast_as_those_of_its_peers() -> None:
    site = Site(120.0)
    down(site, 0)
    up(site, 0, cold_requests=30.0)
    lowest, slow = site.weights()[0], 0.0
    while site.servers[0].cold_requests > 0.0:
        before = site.servers[0].requests
        site.turns()
        slow += site.servers[0].requests - before
        assert site.weights()[0] == lowest, "it is slow"
    assert slow <= 32.0
    assert site.until_full() <= 3.0


@pytest.mark.parametrize("rps", [6.0, 30.0, 120.0])
@pytest.mark.parametrize("long", [1, 2])
def test_a_request_that_is_long_by_itself_is_one_however_many_looks_see_it(rps: float, long: int) -> None:
    site = Site(rps)
    down(site, 0)
    up(site, 0)
    site.turns()
    site.servers[0].long = long
    assert site.until_full() <= 8.0


def test_a_server_that_stays_slow_gets_its_weight_at_last() -> None:
    site = Site()
    down(site, 0)
    up(site, 0, cold_requests=1e9)
    assert LONGEST_S - 1.0 <= site.until_full() <= LONGEST_S + 1.0


def test_a_server_that_answers_with_errors_at_once_is_not_warm() -> None:
    site = Site(120.0)
    down(site, 0)
    up(site, 0)
    site.servers[0].fails = True
    site.turns(20)
    assert site.weights()[0] <= 12
    site.servers[0].fails = False
    assert site.until_full() <= 4.0


def test_where_all_fail_alike_a_server_gets_its_weight() -> None:
    site = Site(120.0)
    for played in site.servers:
        played.fails = True
    down(site, 0)
    up(site, 0)
    assert site.until_full() <= 4.0


def test_the_others_are_never_too_full_for_a_warm_up() -> None:
    site = Site(160.0)  # of 300 that three can answer, surely
    down(site, 0)
    up(site, 0, cold_requests=1e9)
    site.turns(5)
    first, *others = site.weights()
    assert 160.0 * others[0] / (first + sum(others)) <= 0.83 * 100.0


def test_a_server_without_a_warm_peer_gets_its_full_weight_at_once() -> None:
    for count in (1, 2, 3):
        site = Site(count=count)
        down(site, *range(count))
        for number in range(count):
            up(site, number, cold_requests=20.0)
            site.turns()
            assert site.weights()[0] == 100, (count, number)
        assert site.until_full() <= 5.0


def test_two_of_three_that_restart_together_warm_up_together() -> None:
    site = Site()
    down(site, 0, 1)
    up(site, 0, 1, cold_requests=20.0)
    site.turns()
    assert site.weights()[0] < 30
    assert site.until_full() <= 10.0
    pair = Site(60.0, count=2)
    down(pair, 1)
    up(pair, 1)
    assert pair.until_full() <= 2.1


def test_a_pool_with_few_requests_has_no_warm_up_in_which_nothing_could_show() -> None:
    site = Site(5.0)
    down(site, 2)
    up(site, 2)
    assert site.until_full() <= 5.0
    idle = Site(0.0)
    down(idle, 2)
    up(idle, 2)
    assert idle.until_full() <= 1.0


def test_a_flapping_server_changes_nothing_for_the_others() -> None:
    site = Site()
    moves = 0
    for _ in range(20):
        down(site, 0, turns=3)
        up(site, 0)
        for _ in range(4):
            moves += len(site.turns().wanted)
        assert site.weights()[1:] == [100, 100]
    assert moves <= 40
    assert site.until_full() <= 2.1


def test_it_is_left_to_the_balancer_where_that_has_a_slow_start() -> None:
    site = Site()
    down(site, 0)
    up(site, 0)
    site.servers[0].slow_start = True
    site.turns()
    assert site.weights() == [100, 100, 100]
    site.servers[0].slow_start = False
    down(site, 0)
    assert site.weights() == [100, 100, 100], "it is remembered"


def test_servers_that_are_not_ours_to_weigh_keep_their_weight() -> None:
    for field_name in ("agent_check", "srv_record", "backup"):
        site = Site()
        site.servers[0].more = {field_name: True}
        down(site, 0)
        assert site.weights()[0] == 100, field_name
    held = Site()
    held.servers[0].weight = 55
    held.turns(2)
    down(held, 0)
    assert held.weights()[0] == 55, "somebody else set it"
    drained = Site()
    down(drained, 0, condition="draining")
    assert drained.weights()[0] == 100, "it has not ended"


def test_a_server_whose_weight_cannot_be_set_while_it_is_away_gets_less_when_it_is_seen() -> None:
    site = Site(120.0, weighs_away=False)
    down(site, 0)
    assert site.weights()[0] == 100
    up(site, 0, cold_requests=30.0)
    site.turns(2)
    assert site.weights()[0] < 30
    assert site.until_full() <= 8.0


def test_it_can_be_switched_off_by_name_and_observe_mode_sets_nothing() -> None:
    off = Site(pool=type(POOL)(name="web", backend="web", socket="/none", mode="act", causes_off=["warm_up"]))
    down(off, 0)
    up(off, 0)
    off.turns(3)
    assert off.weights() == [100, 100, 100]
    observed = Site(phase="observing")
    observed.servers[0].condition = "down"
    wanted = observed.turns().wanted
    assert [(value.server, value.cause) for value in wanted] == [("web0", "away")]
    up(observed, 0)
    observed.turns(10)
    assert observed.state.positions["web0"].weight == 100
    assert observed.weights() == [100, 100, 100]


def test_a_server_in_an_episode_keeps_its_episode_when_it_restarts() -> None:
    site = Site()
    site.slow = {"web0"}
    site.turns(3)
    lowest = site.weights()[0]
    assert lowest < 100
    down(site, 0)
    assert site.weights()[0] <= lowest
    up(site, 0)
    site.turns()
    assert site.weights()[0] < 100
    site.slow = set()
    assert site.until_full() <= 3.0


def test_a_new_engine_goes_on_with_a_server_that_is_away() -> None:
    site = Site()
    down(site, 0)
    low = site.weights()[0]
    site.state = PoolState("acting", baselines=site.state.baselines, calm=site.state.calm)
    site.turns(3)
    assert site.weights()[0] == low
    up(site, 0)
    assert site.until_full() <= 2.5


def test_a_new_engine_gives_a_server_in_its_warm_up_its_weight_when_it_is_judged() -> None:
    site = Site()
    down(site, 0)
    up(site, 0)
    site.turns()
    site.state = PoolState("acting", baselines=site.state.baselines, calm=site.state.calm)
    assert site.until_full() <= 1.0


def test_a_server_that_was_dead_from_the_start_is_left_as_it_is_until_it_comes() -> None:
    site = Site(120.0)
    site.state = PoolState("acting", calm=site.state.calm)
    down(site, 0)
    assert site.weights()[0] == 100
    up(site, 0, cold_requests=30.0)
    site.turns(2)
    assert site.weights()[0] < 30
    down(site, 0)
    assert site.weights()[0] < 30


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("percent", [5, 10, 20, 50])
def test_a_weight_that_a_person_sets_in_maintenance_for_a_first_trial_is_kept(count: int, percent: int) -> None:
    site = Site(count=count, rps=120.0 * count)
    down(site, 0, condition="maintenance")
    assert site.weights()[0] < 100
    site.servers[0].weight = percent
    site.turns(2)
    up(site, 0)
    site.turns(30)
    assert site.weights()[0] == percent


def test_the_full_weight_that_a_person_sets_in_maintenance_is_kept() -> None:
    site = Site()
    down(site, 0, condition="maintenance")
    assert site.weights()[0] < 100
    site.servers[0].weight = 100
    site.turns(5)
    assert site.weights()[0] == 100, "it is not lowered again"
    up(site, 0, cold_requests=20.0)
    site.turns(10)
    assert site.weights()[0] == 100
    down(site, 0)
    assert site.weights()[0] < 100, "the next time is another one"


@pytest.mark.parametrize("seen_away", [True, False])
def test_a_machine_that_was_replaced_warms_up_when_its_drain_is_over(seen_away: bool) -> None:
    site = Site(120.0)
    drain = TemporaryOverride("drain", 1e9, "replace", "chronic")
    site.drains = {"web0": drain}
    site.turns(5)
    site.drains = {"web0": replace(drain, is_firm=True)}
    site.turns(5)
    if seen_away:
        down(site, 0)
        up(site, 0)
    site.servers[0].cold_requests = 20.0
    site.turns(int(2.0 * LONGEST_S / TURN_S))
    assert site.weights()[0] == 0, "the command still runs"
    site.drains = {}
    site.turns()
    assert 0 < site.weights()[0] < 30
    assert site.until_full() <= 8.0


def test_a_drain_without_a_restart_is_followed_by_no_warm_up() -> None:
    site = Site(120.0)
    site.drains = {"web0": TemporaryOverride("drain", 1e9, "second stage", "measured")}
    site.turns(5)
    site.drains = {}
    site.turns()
    assert site.weights() == [100, 100, 100]


def test_weights_of_which_each_is_a_tenth_are_left_alone() -> None:
    assert [_not_typed(weight, 100) for weight in (9, 10, 11, 20)] == [9, 11, 11, 21]
    assert _not_typed(1, 10) == 10
    assert _not_typed(1, 1) == 1
    assert [weight for weight in range(1, 257) if is_coarse(weight)] == [1, 2, 5, 10]


def test_without_verdicts_it_is_not_known_what_the_others_carry_so_a_server_gets_its_full_weight() -> None:
    site = Site(verdicts_come=False)
    down(site, 0)
    assert site.weights()[0] == 100
    site = Site()
    down(site, 0)
    assert site.weights()[0] < 100
    site.verdicts_come = False
    up(site, 0, cold_requests=1e9)
    site.turns(2)
    assert site.weights()[0] == 100


def test_a_weight_that_could_not_be_set_leaves_the_server_in_its_warm_up() -> None:
    site = Site(rps=120.0)
    down(site, 0)
    up(site, 0)
    before, site.sets = site.weights()[0], False
    while not (actions := site.turns()).wanted:
        assert site.weights()[0] == before
    site.state, site.sets = actions.otherwise, True
    site.servers[0].cold_requests = 1e9
    site.turns()
    assert site.weights()[0] < 50
