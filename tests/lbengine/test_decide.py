"""The weight comes back at once on proof, requests show what nothing else does, and no load is moved to who fails."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from slackwater.core.messages import SLOW_ALONE, State, Verdict
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.decide import FEW_LEAST_S, FEW_MOST_S, WATCHED_RPS, WATCHED_SHARE, Decision
from slackwater.lbengine.decision.position import (
    FEW_AFTER_S,
    FEW_GROW,
    MOST_TRIALS,
    TRIAL_AFTER_S,
    TRIAL_S,
    Position,
)
from slackwater.lbengine.errors import Failing
from slackwater.lbengine.overrides.overrides import Pin
from tests.support.pool_shown import decided, server, snapshot, verdict

NAMES = ("host0", "host1", "host2")
NOW_S = 100.0


def said(state: State, *, blind: bool) -> Verdict:
    alone = state in SLOW_ALONE
    found = verdict("host0", state, 0.8 * alone, 60.0 if alone else 300.0)
    return msgspec.structs.replace(found, calm_shows_within_s=None if blind else 2.0)


def turn(
    position: Position,
    state: State = "interference",
    *,
    balance: str = "leastconn",
    blind: bool = False,
    now_s: float = NOW_S,
    failing: dict[str, Failing] | None = None,
    total_rps: float = 180.0,
    shown: bool = True,
    probability: float | None = None,
    rps: float | None = None,
) -> Decision:
    """The decision on host0, whose peers are calm."""
    positions = {name: Position(100) for name in NAMES} | {"host0": position}
    mine = msgspec.structs.replace(said(state, blind=blind), shown=shown, probability=probability, rps=rps)
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES} | {"host0": mine}
    look = snapshot([server(name, positions[name].weight) for name in NAMES], balance)
    found = decided(look, positions, verdicts, now_s=now_s, total_rps=total_rps, failing=failing)
    return found.servers["host0"]


def test_who_is_proven_calm_has_its_baseline_weight_at_once_and_nothing_is_left_of_the_episode() -> None:
    after = turn(Position(0, moved_s=NOW_S - 0.2, blind_s=90.0, trial_s=80.0, trials=2), "calm")
    assert (after.position, after.cause, after.why) == (Position(100), "calm", "calm")


def test_however_often_it_has_fallen_calm_gives_the_weight_back_and_the_next_episode_takes_it() -> None:
    position = Position(100)
    for number in range(40):
        now_s = NOW_S + number
        position = turn(position, "calm" if number % 2 else "interference", now_s=now_s).position
        assert position.weight == (100 if number % 2 else 0)


@pytest.mark.parametrize("balance", ["leastconn", "roundrobin"])
def test_a_server_without_a_monitor_that_is_slow_falls_as_one_beside_a_neighbour_does(balance: str) -> None:
    for before in (Position(100), Position(60, moved_s=NOW_S - 1.0)):
        beside, slow = turn(before, balance=balance), turn(before, "slow", balance=balance, rps=60.0)
        assert slow.position == beside.position
        assert (beside.cause, slow.cause) == ("interference", "slow")
        assert "interference" not in slow.why
        assert "neighbour" not in slow.why


def without_monitor(
    seconds: float, slow_until_s: float, *, total_rps: float = 180.0, probability: float = 0.01
) -> Sequence[tuple[float, int, str]]:
    """(time, weight, cause) of each move of a drained server that shows nothing without requests. Its requests are
    slow until then, and after it as likely as `probability`; calm is proven by a second at the baseline weight."""
    position, moves, whole_s = Position(0, moved_s=NOW_S), [], 0.0
    for number in range(round(seconds * 5.0)):
        at_s = number / 5.0
        is_slow = at_s < slow_until_s or position.weight == 0
        whole_s = whole_s + 0.2 if position.weight == 100 and not is_slow else 0.0
        state: State = "calm" if whole_s > 1.0 else "slow"
        chance = 0.95 if is_slow else probability
        after = turn(position, state, now_s=NOW_S + at_s, total_rps=total_rps, probability=chance)
        if after.position.weight != position.weight:
            moves.append((at_s, after.position.weight, after.cause))
        position = after.position
        if state == "calm":
            break
    return moves


def test_a_drained_server_without_a_monitor_is_tried_with_few_requests_as_long_as_they_are_slow() -> None:
    moves = without_monitor(60.0, slow_until_s=60.0)
    assert {weight for _, weight, _ in moves} == {0, 10}
    assert {(weight, cause) for _, weight, cause in moves} == {(10, "tried"), (0, "slow")}
    begins_s = [at_s for at_s, weight, _ in moves if weight == 10]
    ends_s = [at_s for at_s, weight, _ in moves if weight == 0]
    apart_s = [after - before for before, after in itertools.pairwise(begins_s)]
    assert FEW_AFTER_S <= apart_s[0] <= FEW_AFTER_S * 1.5
    assert apart_s == sorted(apart_s), "each waits longer than the one before"
    assert all(FEW_LEAST_S <= end - begin <= FEW_MOST_S for begin, end in zip(begins_s, ends_s, strict=True))


def test_a_slow_server_without_a_monitor_that_has_requests_is_not_tried() -> None:
    """As in mode observe, where its weight is low only as far as we are concerned."""
    position = Position(0, moved_s=NOW_S)
    for number in range(300):
        after = turn(position, "slow", rps=60.0, probability=0.95, now_s=NOW_S + number / 5.0)
        position = after.position
        assert (position.weight, after.cause) == (0, "slow")


def test_fewer_requests_in_the_pool_make_a_trial_longer() -> None:
    lengths_s = []
    for total_rps in (300.0, 100.0, 2.0):
        (begin_s, *_), (end_s, *_) = without_monitor(8.0, slow_until_s=8.0, total_rps=total_rps)[:2]
        lengths_s.append(end_s - begin_s)
    assert lengths_s == sorted(lengths_s)
    assert lengths_s[0] < lengths_s[-1] <= FEW_MOST_S + 0.2


@pytest.mark.parametrize("slow_s", [1.0, 4.0, 11.0, 20.0, 33.0])
def test_a_server_without_a_monitor_is_back_soon_after_its_requests_are_fast(slow_s: float) -> None:
    moves = without_monitor(120.0, slow_until_s=slow_s)
    back_s, weight, cause = moves[-1]
    assert (weight, cause) == (100, "tried")
    assert slow_s <= back_s <= slow_s + 0.5 + FEW_AFTER_S * FEW_GROW ** len(moves)


def test_few_requests_that_leave_a_doubt_do_not_bring_it_back() -> None:
    moves = without_monitor(8.0, slow_until_s=0.0, probability=0.4)
    assert {weight for _, weight, _ in moves} == {0, 10}


def test_a_server_that_the_few_requests_called_fast_is_lowered_when_more_are_slow() -> None:
    position = Position(100, moved_s=NOW_S - 0.2, few_trial_s=NOW_S - 0.6, few_trials=1, untried=0)
    for probability in (0.0, 0.5, 0.7):
        assert turn(position, "slow", probability=probability).position == position, "more requests have to decide"
    after = turn(position, "slow", probability=0.95)
    assert (after.position.weight, after.position.untried, after.cause) == (0, None, "slow")


def test_what_the_others_have_no_room_for_stays_after_a_trial() -> None:
    position = Position(10, moved_s=NOW_S - 1.0, few_trial_s=NOW_S - 1.5, few_trials=1, untried=0, least=7)
    assert turn(position, "slow", probability=0.95).position.weight == 7


@pytest.mark.parametrize("back_s", [3.6, 4.4, 12.0, 30.0])
def test_a_monitor_that_comes_back_after_trials_with_few_requests_finds_its_server_lowered_and_keeps_it(
    back_s: float,
) -> None:
    """Such trials are no trials of a server with a monitor, which is left with its load after two."""
    position = Position(0, moved_s=NOW_S)
    for number in range(round((back_s + 60.0) * 5.0)):
        at_s = number / 5.0
        state: State = "slow" if at_s < back_s else "interference"
        position = turn(position, state, now_s=NOW_S + at_s, probability=0.95).position
        assert position.weight <= 10
    assert position.weight <= 10
    assert position.trials == 0


def test_a_server_that_answers_none_of_its_requests_is_not_called_fast() -> None:
    """Its probability has fallen with time alone, since nothing was answered."""
    position = Position(0, moved_s=NOW_S)
    for number in range(300):
        position = turn(position, "slow", now_s=NOW_S + number / 5.0, shown=False, probability=0.01, rps=0.0).position
        assert position.weight <= 10
    assert position.few_trials > 2


def test_few_requests_are_few_also_where_the_other_server_is_lowered_too() -> None:
    names = ("host0", "host1")
    positions = {"host0": Position(3, moved_s=NOW_S), "host1": Position(10, moved_s=NOW_S)}
    verdicts = {
        name: msgspec.structs.replace(verdict(name, "slow", severity, None), probability=0.95)
        for name, severity in (("host0", 0.97), ("host1", 0.95))
    }
    most = 0.0
    for number in range(60):
        shown = snapshot([server(name, positions[name].weight) for name in names], "roundrobin")
        made = decided(shown, positions, verdicts, now_s=NOW_S + number / 5.0, total_rps=60.0).servers
        positions = {name: decision.position for name, decision in made.items()}
        most = max(most, positions["host0"].weight / sum(position.weight for position in positions.values()))
    assert positions["host0"].few_trials > 0
    assert most <= 3 / 13


def test_where_the_baseline_is_1_a_trial_lasts_until_its_requests_have_come() -> None:
    baselines = {name: Baseline(1, 1) for name in NAMES}
    positions = {name: Position(1) for name in NAMES}
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES}
    verdicts["host0"] = msgspec.structs.replace(verdict("host0", "slow", 0.8, None), probability=0.95)
    weights = []
    for number in range(60):
        shown = snapshot([server(name, positions[name].weight) for name in NAMES], "roundrobin")
        made = decided(
            shown, positions, verdicts, now_s=NOW_S + number / 5.0, total_rps=60.0, baselines=baselines
        ).servers
        positions = {name: decision.position for name, decision in made.items()}
        weights.append(positions["host0"].weight)
    whole = [len(list(group)) / 5.0 for weight, group in itertools.groupby(weights) if weight == 1]
    assert len(whole) > 1
    assert all(FEW_LEAST_S <= lasted_s <= FEW_MOST_S for lasted_s in whole)


def test_while_something_would_show_calm_a_drained_server_stays_drained() -> None:
    position = Position(100)
    for number in range(600):
        after = turn(position, now_s=NOW_S + number / 5.0)
        position = after.position
        assert (position.weight, after.cause) == (0, "interference")


def test_where_nothing_would_show_calm_a_server_is_tried_lowered_once_more_and_then_left_with_its_load() -> None:
    position, causes, weights = Position(100), [], []
    for number in range(300):
        after = turn(position, blind=position.weight < 100, now_s=NOW_S + number / 5.0)
        if position.weight != after.position.weight:
            weights.append((number / 5.0, after.position.weight))
            causes.append(after.cause)
        position = after.position
    assert [weight for _, weight in weights] == [0, 1, 100, 1, 100]
    at_s = [at_s for at_s, _ in weights]
    assert at_s[2] == pytest.approx(0.2 + TRIAL_AFTER_S)
    assert at_s[3] == pytest.approx(at_s[2] + TRIAL_S)
    assert causes == ["interference", "interference", "tried", "interference", "tried"]
    assert (after.cause, after.short[0]) == ("tried", "interference")


def test_a_trial_whose_requests_prove_calm_ends_the_episode() -> None:
    position = Position(100, trial_s=NOW_S - 1.0, trials=1)
    assert turn(position).position.weight == 100
    assert turn(position, "calm").position == Position(100)


@pytest.mark.parametrize(
    ("balance", "total_rps", "least"), [("roundrobin", 180.0, 2), ("roundrobin", 6.0, 10), ("leastconn", 180.0, 1)]
)
def test_a_server_that_shows_nothing_else_gets_a_few_requests_and_keeps_them(
    balance: str, total_rps: float, least: int
) -> None:
    """So many that one comes each second where weights say how many, but no more than a tenth of its baseline."""
    assert least == WATCHED_SHARE * 100 or total_rps * least / (200 + least) >= WATCHED_RPS or balance == "leastconn"
    position = turn(Position(100), balance=balance, blind=True, total_rps=total_rps).position
    assert position.weight == 0, "at once"
    for number in range(20):
        now_s = NOW_S + number / 5.0
        after = turn(position, balance=balance, blind=number < 18, total_rps=total_rps, now_s=now_s)
        position = after.position
    assert position.weight == least
    assert after.cause == "interference"


def test_no_load_is_moved_to_a_server_that_fails() -> None:
    fails = {"host2": Failing(0.5, 0.0)}
    for position in (Position(100), Position(0, moved_s=NOW_S - 10.0)):
        after = turn(position, failing=fails)
        assert (after.position.weight, after.cause) == (100, "peer_fails")
        assert after.why == "interference, but host2 fails 50% of its requests: no load is moved to it"
    assert turn(Position(100), failing={"host0": Failing(0.5, 0.0)}).position.weight == 0, "away from who fails itself"
    assert turn(Position(0), "calm", failing=fails).cause == "calm"


@pytest.mark.parametrize("held", ["pinned", "someone else's", "only waits for its end"])
def test_no_load_is_moved_to_a_slow_server_that_fails_and_keeps_its_weight(held: str) -> None:
    positions = {name: Position(100) for name in NAMES}
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES}
    verdicts |= {name: verdict(name, "interference", 0.8, 60.0) for name in ("host0", "host2")}
    if held == "only waits for its end":
        verdicts["host2"] = msgspec.structs.replace(verdicts["host2"], shown=False)
    found = decided(
        snapshot([server(name, 100) for name in NAMES], "leastconn"),
        positions,
        verdicts,
        now_s=NOW_S,
        total_rps=180.0,
        failing={"host2": Failing(0.5, 0.0)},
        externally_controlled=["host2"] if held == "someone else's" else [],
        pins={"host2": Pin(100, "ann")} if held == "pinned" else {},
    )
    assert (found.servers["host0"].position.weight, found.servers["host0"].cause) == (100, "peer_fails")


def test_what_looks_calm_for_long_and_is_not_proven_is_tried() -> None:
    """Its sign has power, but so little that a trial is quicker."""
    positions = {name: Position(100) for name in NAMES} | {"host0": Position(0, moved_s=NOW_S)}
    waits = msgspec.structs.replace(said("interference", blind=False), shown=False)
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES} | {"host0": waits}
    for number in range(round(TRIAL_AFTER_S * 5.0) + 1):
        shown = snapshot([server(name, positions[name].weight) for name in NAMES], "leastconn")
        after = decided(shown, positions, verdicts, now_s=NOW_S + number / 5.0, total_rps=180.0).servers["host0"]
        positions["host0"] = after.position
    assert (after.position.weight, after.cause) == (100, "tried")


def test_a_server_that_keeps_a_part_for_the_blast_radius_is_tried_too() -> None:
    """Two of three have a neighbour, and one at most may be drained."""
    positions = {name: Position(100) for name in NAMES}
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES}
    verdicts |= {
        name: msgspec.structs.replace(verdict(name, "interference", 0.95, 15.0), calm_shows_within_s=None)
        for name in ("host0", "host1")
    }
    tried = set()
    for number in range(60):
        shown = snapshot([server(name, positions[name].weight) for name in NAMES], "leastconn")
        found = decided(shown, positions, verdicts, now_s=NOW_S + number / 5.0, total_rps=60.0)
        positions = {name: one.position for name, one in found.servers.items()}
        tried |= {name for name, one in found.servers.items() if one.cause == "tried"}
    assert tried == {"host0", "host1"}


def test_trials_are_counted_also_while_nothing_shows_the_episode() -> None:
    """A neighbour that shows now and then: quiet until it is tried, and shown again by the first requests."""
    position, weights, quiet_s = Position(100), [100], 0.0
    for number in range(600):
        quiet_s = 0.0 if position.weight == 100 else quiet_s + 0.2
        after = turn(position, shown=quiet_s == 0.0, now_s=NOW_S + number / 5.0)
        position = after.position
        weights.append(position.weight)
    falls = sum(after < before for before, after in itertools.pairwise(weights))
    assert falls <= MOST_TRIALS + 1, weights
    quiet = turn(Position(100, trial_s=NOW_S - 1.0, trials=1), shown=False).position
    assert (quiet.weight, quiet.trials) == (100, 1), "a trial goes on while nothing shows its episode"
    assert turn(quiet, now_s=NOW_S + 1.0).cause == "tried"


def test_where_the_others_are_just_too_full_a_slow_server_gets_no_more_than_they_cannot_carry() -> None:
    """Of 500 requests/s the others can carry 480 at 80%. It keeps that weight to the end of the episode."""
    after = turn(Position(0, moved_s=NOW_S - 1.0), balance="roundrobin", total_rps=500.0)
    assert 0 < after.position.weight < 50
    assert after.position.least == after.position.weight
    assert after.short[:2] == ("interference", "it gets no less")


def test_a_peak_gives_back_no_more_than_the_others_cannot_carry() -> None:
    """Of 490 requests/s the others can carry 480; at the law's own split the slow server would get more."""
    before = Position(0, moved_s=NOW_S - 1.0)
    weights = [turn(before, balance="leastconn", total_rps=rps).position.weight for rps in (460.0, 500.0, 540.0)]
    assert weights[0] < weights[1] <= weights[2]
    assert weights[0] == 0
