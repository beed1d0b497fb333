"""A server without a monitor that comes back after a time without answers is not slow; one that stays slow is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import numpy as np
import pytest

from slackwater.core.config import DetectorSettings
from slackwater.detector.classify.tree import SHIPPED, load
from slackwater.detector.explain import RETURNED
from slackwater.detector.features.returns import LEAST_S, MOST_S, REST_S, START_S, Returns
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import read
from slackwater.detector.train.balancer import seen_from_balancer
from slackwater.detector.train.replay import play as replay
from tests.support.balancers_samples import play, seconds_until, states
from tests.support.judges import new_judge
from tests.support.paths import RECORDINGS
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import Cluster, Host

LOOK_S = 0.2


def restart(host: Host, away_s: float, queue_ms: float, drained_s: float) -> Callable[[float], None]:
    """Each look of a restart that begins now: no answers for `away_s`, then a queue that goes in `drained_s`."""
    begin_s: list[float] = []

    def each(now_s: float) -> None:
        begin_s.append(now_s)
        since_s = now_s - begin_s[0] - away_s
        host.rps = 0.0 if since_s < 0 else 83.0
        host.slow_database_ms = queue_ms * max(0.0, 1.0 - since_s / drained_s) if since_s >= 0 else 0.0

    return each


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("away_s", "drained_s"), [(0.2, 0.8), (1.0, 2.0), (3.0, 8.0)])
def test_a_restart_or_a_deploy_on_one_server_is_not_slow(seed: int, away_s: float, drained_s: float) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    begun = restart(cluster.hosts["host1"], away_s, 1000.0 * away_s, drained_s)
    verdicts = play(judge, cluster, away_s + 15.0, begun)
    assert set(states(verdicts)) == {"calm"}
    assert {verdict.node for verdict in verdicts if RETURNED in verdict.path} == {"host1"}


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("away_s", "every_s"), [(1.0, 1000.0), (0.4, 1.0)])
def test_a_server_that_is_slow_after_its_return_is_found_and_one_that_stands_still_again_and_again_too(
    seed: int, away_s: float, every_s: float
) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    begin_s, host = cluster.now_s, cluster.hosts["host1"]
    host.neighbour = 0.9

    def still(now_s: float) -> None:
        host.rps = 0.0 if (now_s - begin_s) % every_s < away_s else 83.0

    assert states(play(judge, cluster, 4.0 * away_s + LEAST_S + 3.0, still), "host1")["slow"] > 0


def test_a_server_in_an_episode_gets_no_time_to_return() -> None:
    """It was relieved, so it answered nothing. Its first answers are as slow as before, and do not end the episode."""
    judge, cluster = new_judge(), Cluster(seed=5)
    play(judge, cluster, 20.0)
    host = cluster.hosts["host1"]
    host.neighbour = 0.9
    seconds_until(judge, cluster, "host1", "slow")
    host.rps = 0.0
    play(judge, cluster, 5.0)
    host.rps = 83.0
    assert set(states(play(judge, cluster, 5.0), "host1")) == {"slow"}


@pytest.mark.parametrize("name", ["by-event/events-calm-disturbed", "dokuwiki-calm"])
def test_reloads_deploys_and_starts_in_recordings_of_the_lab_are_not_slow(name: str) -> None:
    recording = seen_from_balancer(read(RECORDINGS / f"{name}.parquet"))
    judge = Judge.of(recording.samples[0].pool, DetectorSettings(), load(SHIPPED))
    judge.explainer = None
    before: dict[str, str] = {}
    slow_during: Counter[str] = Counter()
    for verdict in replay(recording, judge):
        if verdict.state == "slow" and before.get(verdict.node) != "slow":
            labels = [label for label in recording.labels if label.node in (verdict.node, "*")]
            slow_during.update(
                label.kind for label in labels if label.start_unix_s <= verdict.time_unix_s < label.end_unix_s
            )
        before[verdict.node] = verdict.state
    assert {label.kind for label in recording.labels} >= {"deploy", "reload", "slow_database"}
    assert not set(slow_during) & {"deploy", "reload", "start", "slow_database"}


def returned(answers_per_look: list[float]) -> list[bool]:
    """Whether a server returns, look by look."""
    returns = Returns()
    returns.resize(1)
    slots, period_s, none = np.zeros(1, dtype=np.int64), np.array([LOOK_S]), np.zeros(1, dtype=bool)
    return [
        bool(returns.update(slots, np.array([count / LOOK_S]), period_s, none, none)[0]) for count in answers_per_look
    ]


@pytest.mark.parametrize(("away_s", "lasts_s"), [(0.2, LEAST_S), (2.0, 6.0), (600.0, MOST_S)])
def test_a_return_lasts_three_times_as_long_as_the_time_away_within_bounds(away_s: float, lasts_s: float) -> None:
    returns_by_look = returned([40.0] * 50 + [0.0] * round(away_s / LOOK_S) + [40.0] * 100)
    assert sum(returns_by_look) == pytest.approx(lasts_s / LOOK_S, abs=1)
    assert not any(returns_by_look[: 50 + round(away_s / LOOK_S)])


def test_a_server_with_few_requests_is_not_away_between_them() -> None:
    assert not any(returned([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0] * 50))
    assert not any(returned(([0.0] * 9 + [1.0]) * 50))


def test_the_next_return_comes_only_after_a_rest() -> None:
    returns_by_look = returned([40.0] * 50 + ([0.0] * 3 + [40.0] * 2) * 20)
    lasts, rests = round(LEAST_S / LOOK_S), round(REST_S / LOOK_S)
    first = returns_by_look.index(True)
    second = returns_by_look.index(True, first + lasts)
    assert first == 53
    assert rests <= second - first - lasts <= rests + 5  # it is away in 3 of 5 looks


def test_no_return_begins_in_an_episode_nor_soon_after_it() -> None:
    returns = Returns()
    returns.resize(1)
    slots, period_s, none = np.zeros(1, dtype=np.int64), np.array([LOOK_S]), np.zeros(1, dtype=bool)
    looks = [40.0] * 50 + ([0.0] * 3 + [40.0] * 2) * 20
    returns_by_look = []
    for number, count in enumerate(looks):
        returns_by_look.append(bool(returns.update(slots, np.array([count / LOOK_S]), period_s, none, none)[0]))
        if number < 100:
            returns.end(slots)
    assert 100 + round(REST_S / LOOK_S) - 1 <= returns_by_look.index(True) <= 100 + round(REST_S / LOOK_S) + 5


def monitored(answers_per_look: list[float], replaced_at: set[int], ends_at: Collection[int] = ()) -> list[bool]:
    """Whether a server with a monitor returns or may be starting, look by look. `replaced_at`: looks at which its web
    server's processes were replaced in the last second; `ends_at`: looks after which it is in an episode."""
    returns = Returns()
    returns.resize(1)
    slots, period_s, yes = np.zeros(1, dtype=np.int64), np.array([LOOK_S]), np.ones(1, dtype=bool)
    shown = []
    for number, count in enumerate(answers_per_look):
        replaced = np.array([bool(replaced_at & set(range(number - 4, number + 1)))])
        shown.append(bool(returns.update(slots, np.array([count / LOOK_S]), period_s, yes, replaced)[0]))
        if number in ends_at:
            returns.end(slots)
    return shown


@pytest.mark.parametrize(("replaced_at", "returns_at"), [(50, 53), (53, 53), (60, 60), (75, None), (None, None)])
def test_with_a_monitor_a_server_returns_only_where_its_processes_are_replaced(
    replaced_at: int | None, returns_at: int | None
) -> None:
    shown = monitored([40.0] * 50 + [0.0] * 3 + [40.0] * 60, set() if replaced_at is None else {replaced_at})
    assert shown[:53] == [False] * 50 + [True] * 3, "it may be starting"
    back = shown[53:]
    assert (53 + back.index(True) if any(back) else None) == returns_at
    assert sum(back) == (0 if returns_at is None else round(LEAST_S / LOOK_S))


def test_a_machine_that_answers_nothing_is_excused_for_a_start_and_no_longer() -> None:
    shown = monitored([40.0] * 50 + [0.0] * 200, set())
    assert sum(shown) == pytest.approx(START_S / LOOK_S, abs=1)
    assert all(shown[50 : 50 + sum(shown)])


def test_a_machine_that_stands_still_again_and_again_is_excused_once_however_its_processes_come_and_go() -> None:
    stalls = ([0.0] * 3 + [40.0] * 4) * 20
    for replaced_at in (set(), set(range(50, 50 + len(stalls), 5))):
        shown = monitored([40.0] * 50 + stalls, replaced_at)
        assert shown.index(True) == 50
        assert sum(shown[50:85]) <= 3 + round(LEAST_S / LOOK_S), "in seven seconds"


def test_in_an_episode_a_machine_neither_starts_nor_returns() -> None:
    looks = [40.0] * 50 + [0.0] * 10 + [40.0] * 30
    assert not any(monitored(looks, set(range(58, 90, 5)), ends_at=set(range(len(looks)))))


def test_a_deploy_to_small_virtual_machines_one_after_the_other_is_no_neighbour() -> None:
    recording = read(RECORDINGS / "guests-deploy.parquet")
    assert {label.kind for label in recording.labels} == {"deploy"}
    judge = Judge.of(recording.samples[0].pool, DetectorSettings(), load(SHIPPED))
    assert Counter(verdict.state for verdict in replay(recording, judge))["interference"] == 0
