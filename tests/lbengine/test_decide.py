"""The weight comes back at once on proof, requests show what nothing else does, and no load is moved to who fails."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from slackwater.core.messages import SLOW_ALONE, State, Verdict
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.decide import TRIED_AFTER_S, Decision
from slackwater.lbengine.decision.position import COST_SHARE, Position, Stage, Trial
from slackwater.lbengine.decision.trials import FEW_LEAST_S, FEW_MOST_S
from slackwater.lbengine.overrides.overrides import Pin
from tests.support.pool_shown import decided, server, snapshot, verdict

NAMES = ("host0", "host1", "host2")
NOW_S = 100.0


def verdict_of(state: State, *, blind: bool) -> Verdict:
    alone = state in SLOW_ALONE
    own = verdict("host0", state, 0.8 * alone, 60.0 if alone else 300.0)
    return msgspec.structs.replace(own, calm_shows_within_s=None if blind else 2.0)


def turn(
    position: Position,
    state: State = "interference",
    *,
    balance: str = "leastconn",
    blind: bool = False,
    now_s: float = NOW_S,
    failing: dict[str, float] | None = None,
    total_rps: float = 180.0,
    shown: bool = True,
    probability: float | None = None,
    rps: float | None = None,
    answers: bool = True,
) -> Decision:
    """The decision on host0, whose peers are calm."""
    positions = {name: Position(100) for name in NAMES} | {"host0": position}
    mine = msgspec.structs.replace(
        verdict_of(state, blind=blind),
        shown=shown,
        probability=probability,
        rps=rps,
        time_unix_s=now_s,
        since_unix_s=NOW_S,
    )
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES} | {"host0": mine}
    look = snapshot([server(name, positions[name].weight) for name in NAMES], balance)
    served = {"host0": 0.5 * position.weight if answers else 0.0}
    decisions = decided(look, positions, verdicts, now_s=now_s, total_rps=total_rps, served=served, failing=failing)
    return decisions.servers["host0"]


def test_who_is_proven_calm_has_its_baseline_weight_at_once_and_nothing_is_left_of_the_episode() -> None:
    after = turn(Position(0, moved_s=NOW_S - 0.2, blind_s=90.0, trial=Trial("over", 80.0, 0, 0.9)), "calm")
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
        chance = (0.99 if position.weight else 0.95) if is_slow else probability
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
    assert {(weight, cause) for _, weight, cause in moves} == {(10, "tried"), (0, "tried")}
    begins_s = [at_s for at_s, weight, _ in moves if weight == 10]
    apart_s = [after - before for before, after in itertools.pairwise(begins_s)]
    assert TRIED_AFTER_S["slow"] <= apart_s[0] <= 2.0
    assert apart_s[0] < apart_s[-1] <= 4.0


def test_the_longer_an_episode_lasts_the_fewer_trials_it_brings() -> None:
    begins_s = [at_s for at_s, weight, _ in without_monitor(300.0, slow_until_s=300.0) if weight == 10]
    first, last = (sum(low <= at_s < low + 60.0 for at_s in begins_s) for low in (0.0, 240.0))
    assert last < first / 3


def test_a_slow_server_without_a_monitor_that_has_requests_is_not_tried() -> None:
    """As in mode observe, where its weight is low only as far as we are concerned."""
    position = Position(0, moved_s=NOW_S)
    for number in range(300):
        after = turn(position, "slow", rps=60.0, probability=0.95, now_s=NOW_S + number / 5.0)
        position = after.position
        assert (position.weight, after.cause) == (0, "slow")


def test_fewer_requests_in_the_pool_make_a_trial_longer_whose_requests_leave_a_doubt() -> None:
    lengths_s = []
    for total_rps in (400.0, 220.0, 20.0):
        moves = without_monitor(8.0, slow_until_s=0.0, total_rps=total_rps, probability=0.5)
        (begin_s, *_), (end_s, *_) = moves[:2]
        lengths_s.append(end_s - begin_s)
    assert lengths_s == sorted(lengths_s)
    assert FEW_LEAST_S <= lengths_s[0] < lengths_s[-1] <= FEW_MOST_S + 0.2


@pytest.mark.parametrize("slow_s", [1.0, 4.0, 11.0, 20.0, 33.0])
def test_a_server_without_a_monitor_is_back_soon_after_its_requests_are_fast(slow_s: float) -> None:
    moves = without_monitor(120.0, slow_until_s=slow_s)
    back_s, weight, cause = moves[-1]
    assert (weight, cause) == (100, "fast")
    assert slow_s <= back_s <= slow_s + 5.0


def test_few_requests_that_leave_a_doubt_do_not_bring_it_back() -> None:
    moves = without_monitor(8.0, slow_until_s=0.0, probability=0.4)
    assert {weight for _, weight, _ in moves} == {0, 10}


def in_trial(stage: Stage, weight: int, probability: float, least: int = 0) -> Position:
    return Position(weight, moved_s=NOW_S - 1.0, trial=Trial(stage, NOW_S - 1.0, 0, probability), least=least)


@pytest.mark.parametrize("state", sorted(SLOW_ALONE))
def test_a_server_that_the_few_requests_called_fast_is_lowered_when_more_are_slow(state: State) -> None:
    position = in_trial("all", 100, 0.1)
    for probability in (0.0, 0.5, 0.7):
        assert turn(position, state, probability=probability).position.weight == 100, "more requests have to decide"
    after = turn(position, state, probability=0.95)
    assert (after.position.weight, after.position.is_tried, after.cause) == (0, False, state)


def test_what_the_others_have_no_room_for_stays_after_a_trial() -> None:
    assert turn(in_trial("few", 10, 0.9, least=7), "slow", probability=0.95).position.weight == 7


def test_a_server_that_kept_a_part_is_tried_with_twice_of_it() -> None:
    """Its present requests are no trial: it may be fast with them beside its neighbour."""
    position = Position(20, moved_s=NOW_S - 9.0, blind_s=NOW_S - TRIED_AFTER_S["slow"])
    after = turn(position, "slow", probability=0.0, shown=False, rps=10.0)
    assert (after.position.weight, after.cause) == (40, "tried")


@pytest.mark.parametrize("back_s", [3.6, 4.4, 12.0, 30.0])
def test_a_monitor_that_comes_back_after_trials_with_few_requests_finds_its_server_lowered_and_keeps_it(
    back_s: float,
) -> None:
    position = Position(0, moved_s=NOW_S)
    for number in range(round((back_s + 60.0) * 5.0)):
        at_s = number / 5.0
        state: State = "slow" if at_s < back_s else "interference"
        position = turn(position, state, now_s=NOW_S + at_s, probability=0.95).position
        assert position.weight <= 50
    assert position.weight <= 50


@pytest.mark.parametrize("total_rps", [0.0, 0.5, 1.0, 2.0, 2.1, 5.0])
def test_in_a_pool_with_few_requests_a_trial_has_all_that_the_server_can_get(total_rps: float) -> None:
    moves = without_monitor(8.0, slow_until_s=8.0, total_rps=total_rps)
    assert {weight for _, weight, _ in moves} == {0, 100}


@pytest.mark.parametrize(
    ("state", "rps", "answers"),
    [("slow", 0.0, False), ("interference", 0.0, False), ("interference", None, False), ("interference", 0.0, True)],
)
def test_a_server_of_which_no_answer_was_judged_is_not_called_fast(
    state: State, rps: float | None, answers: bool
) -> None:
    """Its probability has fallen with time alone: nothing was answered, or its monitor sees no requests (its capture is
    on another interface)."""
    position, tried = Position(0, moved_s=NOW_S), 0
    for number in range(300):
        before, now_s = position.weight, NOW_S + number / 5.0
        position = turn(position, state, now_s=now_s, shown=False, probability=0.01, rps=rps, answers=answers).position
        tried += position.weight > before
        assert position.weight <= 50
    assert tried > 2


def test_a_server_that_fails_at_once_is_not_called_fast() -> None:
    """That it fails is known some requests later than that it is fast."""
    position, with_requests_s = Position(0, moved_s=NOW_S), 0.0
    for number in range(100):
        with_requests_s += 0.2 * (position.weight > 0)
        failing = {"host0": 1.0} if with_requests_s > 0.3 else None
        now_s = NOW_S + number / 5.0
        position = turn(position, "slow", now_s=now_s, shown=False, probability=0.01, failing=failing).position
        assert position.weight <= 50


def test_a_server_whose_view_is_lost_again_and_again_while_it_awaits_its_trial_stays_lowered() -> None:
    position, tried = Position(0, moved_s=NOW_S), 0
    for number in range(500):
        state: State = "unknown" if number % 50 >= 40 else "slow"
        before, now_s = position.weight, NOW_S + number / 5.0
        position = turn(position, state, now_s=now_s, probability=0.95).position
        tried += position.weight > before
        assert position.weight <= 50
    assert tried > 2


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
    assert positions["host0"].trial is not None
    assert most <= 6 / 16, "twice of what it kept"


def test_where_the_baseline_is_1_a_trial_lasts_until_its_requests_have_come() -> None:
    baselines = {name: Baseline(1, 1) for name in NAMES}
    positions = {name: Position(1) for name in NAMES}
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES}
    verdicts["host0"] = msgspec.structs.replace(verdict("host0", "slow", 0.8, None), probability=0.95)
    weights = []
    for number in range(300):
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


def test_where_nothing_would_show_calm_a_server_with_a_monitor_is_tried_and_not_left_with_its_load() -> None:
    position, causes, weights = Position(100), [], []
    for number in range(300):
        after = turn(position, blind=position.weight < 100, now_s=NOW_S + number / 5.0)
        if position.weight != after.position.weight:
            weights.append(after.position.weight)
            causes.append(after.cause)
        position = after.position
    assert weights[:5] == [0, 10, 0, 40, 0]
    assert set(weights) == {0, 10, 40, 50}
    assert causes[:4] == ["interference", "tried", "tried", "tried"]


def test_a_trial_whose_requests_prove_calm_ends_the_episode() -> None:
    position = in_trial("all", 100, 0.1)
    assert turn(position, probability=0.2).position.weight == 100
    assert turn(position, "calm").position == Position(100)


def test_no_load_is_moved_to_a_server_that_fails() -> None:
    fails = {"host2": 0.5}
    for position in (Position(100), Position(0, moved_s=NOW_S - 10.0)):
        after = turn(position, failing=fails)
        assert (after.position.weight, after.cause) == (100, "peer_fails")
        assert after.why == "interference, but host2 fails 50% of its requests, so no load is moved to it"
    assert turn(Position(100), failing={"host0": 0.5}).position.weight == 0, "away from who fails itself"
    assert turn(Position(0), "calm", failing=fails).cause == "calm"


@pytest.mark.parametrize("held", ["pinned", "someone else's", "only waits for its end"])
def test_no_load_is_moved_to_a_slow_server_that_fails_and_keeps_its_weight(held: str) -> None:
    positions = {name: Position(100) for name in NAMES}
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES}
    verdicts |= {name: verdict(name, "interference", 0.8, 60.0) for name in ("host0", "host2")}
    if held == "only waits for its end":
        verdicts["host2"] = msgspec.structs.replace(verdicts["host2"], shown=False)
    decisions = decided(
        snapshot([server(name, 100) for name in NAMES], "leastconn"),
        positions,
        verdicts,
        now_s=NOW_S,
        total_rps=180.0,
        failing={"host2": 0.5},
        externally_controlled=["host2"] if held == "someone else's" else [],
        pins={"host2": Pin(100, "ann")} if held == "pinned" else {},
    )
    assert (decisions.servers["host0"].position.weight, decisions.servers["host0"].cause) == (100, "peer_fails")


def test_what_looks_calm_for_long_and_is_not_proven_is_tried() -> None:
    """Its sign has power, but so little that a trial is quicker. Its requests still say that it is fast."""
    positions = {name: Position(100) for name in NAMES} | {"host0": Position(0, moved_s=NOW_S)}
    waits = msgspec.structs.replace(verdict_of("interference", blind=False), shown=False, probability=0.1)
    verdicts = {name: verdict(name, "calm", 0.0, 300.0) for name in NAMES} | {"host0": waits}
    for number in range(round((TRIED_AFTER_S["interference"] + FEW_MOST_S) * 5.0) + 1):
        shown = snapshot([server(name, positions[name].weight) for name in NAMES], "leastconn")
        after = decided(
            shown,
            positions,
            verdicts,
            now_s=NOW_S + number / 5.0,
            total_rps=180.0,
            served={"host0": 0.5 * positions["host0"].weight},
        ).servers["host0"]
        positions["host0"] = after.position
        if after.position.weight == 100:
            break
    assert (after.position.weight, after.cause) == (100, "fast")


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
        decisions = decided(shown, positions, verdicts, now_s=NOW_S + number / 5.0, total_rps=60.0)
        positions = {name: decision.position for name, decision in decisions.servers.items()}
        tried |= {name for name, decision in decisions.servers.items() if decision.cause == "tried"}
    assert tried == {"host0", "host1"}


def test_a_neighbour_that_shows_only_at_the_baseline_weight_brings_few_falls() -> None:
    """It looks calm until it has its baseline weight, and is shown again by the first requests."""
    position, weights, quiet_s = Position(100), [100], 0.0
    for number in range(600):
        quiet_s = 0.0 if position.weight == 100 else quiet_s + 0.2
        shown = quiet_s == 0.0
        after = turn(position, shown=shown, probability=0.95 if shown else 0.05, now_s=NOW_S + number / 5.0)
        position = after.position
        weights.append(position.weight)
    falls = sum(before == 100 > after for before, after in itertools.pairwise(weights))
    assert falls >= 2
    share = sum(weight / (weight + 200) for weight in weights) / len(weights)
    assert share <= 1.3 * COST_SHARE, weights


def test_a_trial_goes_on_while_nothing_shows_its_episode() -> None:
    quiet = turn(in_trial("all", 100, 0.1), shown=False, probability=0.1).position
    assert (quiet.weight, quiet.is_tried) == (100, True)
    assert turn(quiet, now_s=NOW_S + 1.0, probability=0.6).cause == "fast"


def test_where_the_others_are_just_too_full_a_slow_server_gets_no_more_than_they_cannot_carry() -> None:
    """Of 560 requests/s the others can carry 540 at 90%. It keeps that weight to the end of the episode."""
    after = turn(Position(0, moved_s=NOW_S - 1.0), balance="roundrobin", total_rps=560.0)
    assert 0 < after.position.weight < 50
    assert after.position.least == after.position.weight
    assert after.short[:2] == ("interference", "its weight goes no lower")


def test_a_peak_gives_back_no_more_than_the_others_cannot_carry() -> None:
    """The others can carry 540 requests/s at 90%."""
    before = Position(0, moved_s=NOW_S - 1.0)
    weights = [turn(before, balance="leastconn", total_rps=rps).position.weight for rps in (520.0, 560.0, 600.0)]
    assert weights[0] < weights[1] <= weights[2]
    assert weights[0] == 0
