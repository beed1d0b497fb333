"""What would have been done in a week: harm, what recorded predictions say of it, marks, and what acting changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slackwater.controller.cli import week_text
from slackwater.core.config import ControllerSettings, parse
from slackwater.core.journal import pool_totals
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import (
    Change,
    Cpu,
    Cycle,
    EpisodeMark,
    Message,
    Sample,
    ServerState,
    State,
    Traffic,
    Verdict,
)
from slackwater.core.messages.causes import ChangeCause, WeightsMean
from slackwater.views import harm
from slackwater.views.harm import LEAST_OUTCOMES, MINUTE_S, MOST_SERVER_S, finest_steps, off_by, runs
from slackwater.views.week import MOST_EPISODES, Week, week
from slackwater.views.why import episodes

T0 = 1_795_000_000.0
CALM_MS, SLOW_MS = 4.0, 60.0
"""p95 of a calm server, and beside a neighbour."""
CALM_LIMIT_MS = 2 * CALM_MS


def settings(folder: Path, target_p95_ms: float = 0.0) -> ControllerSettings:
    return parse(
        f'state_dir = "{folder}"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n'
        f'target_p95_ms = {target_p95_ms}\n[pool.servers]\ns1 = "web1"\n',
        "test",
    )


def samples(node: str, begin_s: float, end_s: float, p95_ms: float, rps: float = 100.0) -> Iterator[Message]:
    """One a second; half of the requests take less than a quarter of the p95."""
    for k in range(round(begin_s), round(end_s)):
        traffic = Traffic(rps=rps, rt_p50_ms=p95_ms / 4, rt_p95_ms=p95_ms, rt_p99_ms=1.5 * p95_ms)
        yield Sample(1, node, "web", T0 + k + 0.5, "boot", k + 1000, 1.0, cpu=Cpu("cgroup", 0.4), traffic=traffic)


def episode_verdicts(begin_s: float, end_s: float, node: str = "web1", state: State = "interference") -> list[Message]:
    return [
        Verdict(1, node, "web", T0 + end_s - 1, state, T0 + begin_s, 0.8, ["run delay 14x"], "m"),
        Verdict(1, node, "web", T0 + end_s, "calm", T0 + end_s, 0.0, [], "m"),
    ]


def weight(
    at_s: float, before: int, after: int, predicted_ms: float | None = None, server: str = "s1", applied: bool = False
) -> Change:
    """A change as lbengine records it in observe mode."""
    made = Change(1, f"{server}{at_s}", "web", T0 + at_s, "weight", server, before, after, "w", "lbengine", applied)
    return msgspec.structs.replace(made, rt_p95_ms=SLOW_MS, rt_p95_predicted_ms=predicted_ms)


def cycle(mean: WeightsMean = "share", names: tuple[str, ...] = ("s1", "web2", "web3")) -> Cycle:
    servers = [ServerState(name, "up", 100, 100, 100) for name in names]
    return Cycle(1, "web", T0, "observe", False, "roundrobin", "optimal", "s", servers, mean)


def slow_neighbour(begin_s: float = -200.0, end_s: float = -170.0) -> list[Message]:
    """web1 is slow beside a neighbour from `begin_s` to `end_s`; the others are calm."""
    return [
        *samples("web1", begin_s - 70, begin_s, CALM_MS),
        *samples("web1", begin_s, end_s, SLOW_MS),
        *(sample for node in ("web2", "web3") for sample in samples(node, begin_s - 70, end_s, CALM_MS)),
        *episode_verdicts(begin_s, end_s),
    ]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(journal_path(tmp_path), clock=lambda: T0) as opened:
        opened.record(cycle())
        yield opened


def seen(journal: Journal, days: int = 7, target_p95_ms: float = 0.0, now_s: float = 0.0) -> Week:
    parsed = settings(journal.path.parent, target_p95_ms)
    return week(journal, parsed, parsed.pool, days, T0 + now_s)


def test_a_run_that_is_over_is_measured_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []

    def counted(*where: Any) -> Any:
        read.append(where[2])
        return pool_totals.requests(*where)

    monkeypatch.setattr(harm, "requests", counted)
    parsed, remembered = settings(journal.path.parent, 0.0), harm.Remembered()

    def at_time(now_s: float) -> Week:
        return week(journal, parsed, parsed.pool, 7, T0 + now_s, remembered)

    journal.record(*slow_neighbour(), weight(-198, 100, 0, predicted_ms=5.0), weight(-170, 0, 100, predicted_ms=5.0))
    assert at_time(-100) == week(journal, parsed, parsed.pool, 7, T0 - 100), "a Sample may still come: read each time"
    fresh = week(journal, parsed, parsed.pool, 7, T0 + 60)
    read.clear()
    assert at_time(60) == fresh
    assert len(read) == 2, "the calm before, and the run"
    assert at_time(60) == fresh
    assert len(read) == 2
    journal.record(weight(-180, 0, 50, predicted_ms=9.0))
    assert at_time(60) == week(journal, parsed, parsed.pool, 7, T0 + 60), "another change is another run"


def test_harm_is_the_time_above_the_limit_and_only_what_a_recorded_prediction_says_is_avoided(
    journal: Journal,
) -> None:
    journal.record(*slow_neighbour(), weight(-198, 100, 0, predicted_ms=5.0), weight(-170, 0, 100, predicted_ms=5.0))
    (pool,) = seen(journal).pools
    (episode,) = pool.episodes
    assert episode.harm.limit_ms == pytest.approx(CALM_LIMIT_MS, rel=1e-3)
    assert episode.harm.slow_s == pytest.approx(30.0)
    assert episode.harm.avoided_s == pytest.approx(28.0), "not the two seconds before the first decision"
    assert (episode.rt_p95_ms, episode.rt_p95_predicted_ms) == (SLOW_MS, 5.0)
    assert (episode.done, episode.applied) == (["weight of s1: 100 → 0", "weight of s1: 0 → 100"], False)
    assert episode.harm.slow_requests is not None
    assert 30 * 50 < episode.harm.slow_requests < 30 * 105, (
        "most of the slow server's 100 a second, and few of the others'"
    )
    assert (pool.totals.slow_s, pool.totals.avoided_s) == (episode.harm.slow_s, episode.harm.avoided_s)


def test_a_prediction_above_the_limit_avoids_nothing(journal: Journal) -> None:
    journal.record(*slow_neighbour(), weight(-200, 100, 50, predicted_ms=CALM_LIMIT_MS + 1))
    assert seen(journal).totals.avoided_s == 0.0
    journal.record(weight(-185, 50, 0, predicted_ms=CALM_LIMIT_MS - 1))
    assert seen(journal).totals.avoided_s == pytest.approx(15.0), "from the second decision on"


def test_the_pools_target_is_the_limit_where_there_is_one(journal: Journal) -> None:
    journal.record(*slow_neighbour(), weight(-200, 100, 0, predicted_ms=5.0))
    (episode,) = seen(journal, target_p95_ms=SLOW_MS + 1).pools[0].episodes
    assert (episode.harm.limit_ms, episode.harm.slow_s) == (SLOW_MS + 1, 0.0)


@pytest.mark.parametrize(
    ("change", "mean", "why"),
    [
        (weight(-199, 100, 0), "share", "no_prediction"),
        (weight(-199, 100, 0, predicted_ms=5.0, applied=True), "share", "acted"),
        (weight(-199, 100, 0, predicted_ms=5.0), "none", "weights_set_nothing"),
    ],
)
def test_what_was_not_recorded_is_not_known(journal: Journal, change: Change, mean: WeightsMean, why: str) -> None:
    journal.record(*slow_neighbour(), change, cycle(mean))
    report = seen(journal)
    (episode,) = report.pools[0].episodes
    assert (episode.harm.avoided_s, episode.harm.avoided_unknown) == (None, why)
    assert episode.harm.slow_s == pytest.approx(30.0)
    assert (report.totals.avoided_s, report.totals.avoided_unknown) == (0.0, 1)


def test_where_nothing_was_decided_nothing_would_have_been_avoided(journal: Journal) -> None:
    journal.record(*slow_neighbour())
    (episode,) = seen(journal).pools[0].episodes
    assert (episode.harm.avoided_s, episode.harm.avoided_unknown, episode.done) == (0.0, "", [])


def test_without_response_times_the_harm_is_not_known(journal: Journal) -> None:
    journal.record(*episode_verdicts(-200, -170), weight(-199, 100, 0, predicted_ms=5.0))
    (episode,) = seen(journal).pools[0].episodes
    assert (episode.harm.slow_s, episode.harm.slow_unknown) == (None, "no_calm")
    (episode,) = seen(journal, target_p95_ms=20.0).pools[0].episodes
    assert (episode.harm.slow_s, episode.harm.slow_unknown, episode.harm.avoided_unknown) == (
        None,
        "no_samples",
        "no_samples",
    )
    assert seen(journal).totals.slow_unknown == 1


def test_time_in_two_episodes_at_once_counts_once(journal: Journal) -> None:
    journal.record(*slow_neighbour(), *episode_verdicts(-190, -180, "web2"), weight(-200, 100, 0, predicted_ms=5.0))
    report = seen(journal)
    assert [episode.harm.slow_s for episode in report.pools[0].episodes] == pytest.approx([10.0, 30.0])
    assert report.totals.slow_s == pytest.approx(30.0)
    assert report.totals.avoided_s == pytest.approx(30.0)


def test_the_decision_of_one_episode_says_nothing_of_the_next(journal: Journal) -> None:
    journal.record(*slow_neighbour(), weight(-200, 100, 0, predicted_ms=5.0))
    journal.record(*samples("web1", -160, -140, SLOW_MS), *episode_verdicts(-160, -140))
    newer, older = seen(journal).pools[0].episodes
    assert (newer.harm.slow_s, newer.harm.avoided_s) == pytest.approx((20.0, 0.0))
    assert older.harm.avoided_s == pytest.approx(30.0)


def outcomes(factors: list[float]) -> list[Change]:
    made = Change(1, "", "web", T0 - 5000, "outcome", "s1", 60.0, 8.0, "w", "lbengine", True, rt_p95_predicted_ms=10.0)
    return [msgspec.structs.replace(made, id=f"o{k}", rt_p95_ms=10.0 * by) for k, by in enumerate(factors)]


def test_the_range_comes_from_outcomes_and_there_is_none_without(journal: Journal) -> None:
    journal.record(*slow_neighbour(), weight(-200, 100, 50, predicted_ms=6.0), weight(-185, 50, 0, predicted_ms=3.0))
    totals = seen(journal).totals
    assert (totals.least_avoided_s, totals.most_avoided_s) == (None, None)
    assert off_by(outcomes([1.0] * (LEAST_OUTCOMES - 1))) is None
    journal.record(*outcomes([1.0, 0.5, 2.0, 2.0, 2.0]))
    (pool,) = seen(journal).pools
    assert pool.predictions_off_by == pytest.approx(2.0)
    with_range = pool.totals
    assert (with_range.least_avoided_s, with_range.avoided_s, with_range.most_avoided_s) == pytest.approx(
        (15.0, 30.0, 30.0)
    )


def test_acting_is_played_from_the_recorded_weights(journal: Journal) -> None:
    journal.record(
        weight(-300, 100, 20),
        weight(-290, 100, 50, server="web2"),
        weight(-280, 20, 100),
        weight(-270, 50, 100, server="web2"),
        weight(-260, 100, 90, server="web3", applied=True),
        msgspec.structs.replace(weight(-250, 100, 0), cause="not_set"),
        msgspec.structs.replace(weight(-240, 100, 0), by="someone else"),
    )
    acting = seen(journal).pools[0].acting
    assert acting is not None
    assert (acting.weight_changes, acting.made) == (4, 1)
    assert (acting.lowered, acting.most_at_once, acting.servers) == (["s1", "web2"], 2, 3)
    assert (acting.lowest_weight, acting.lowest_baseline) == (20, 100)
    assert acting.smallest_share == pytest.approx(20 / 220)


def test_a_server_that_flaps_fills_no_week(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.views.week.MOST_CHANGES", 5)
    journal.record(weight(-300, 100, 20), weight(-280, 20, 100))
    causes: tuple[ChangeCause, ...] = ("away", "warm_up")
    journal.record(*(msgspec.structs.replace(weight(-200 + n, 100, 11), cause=causes[n % 2]) for n in range(20)))
    acting = seen(journal).pools[0].acting
    assert acting is not None
    assert acting.weight_changes == 2


def test_a_change_of_mode_begins_at_the_baselines_and_no_share_where_weights_set_none(journal: Journal) -> None:
    mode = Change(1, "m", "web", T0 - 295, "mode", "web", "observe", "act", "", "anna", True)
    journal.record(weight(-300, 100, 20), mode, weight(-290, 100, 50, server="web2"), cycle("concurrency"))
    acting = seen(journal).pools[0].acting
    assert acting is not None
    assert (acting.most_at_once, acting.smallest_share) == (1, None)


def mark(at_s: float, begin_s: float, word: EpisodeMark, node: str = "web1", note: str = "") -> Change:
    made = Change(1, f"k{at_s}", "web", T0 + at_s, "mark_episode", node, None, word, note, "anna", True)
    return msgspec.structs.replace(made, since_unix_s=T0 + begin_s)


def test_marks_are_counted_the_last_word_holds_and_a_week_is_needed_for_a_rate(journal: Journal) -> None:
    for begin_s in (-900, -600, -300):
        journal.record(*episode_verdicts(begin_s, begin_s + 10))
    journal.record(mark(-90, -900, "neighbour"), mark(-80, -900, "deploy", note="14"), mark(-70, -600, "neighbour"))
    journal.record(mark(-60, -599, "backup"), mark(-50, -300, "other", node="web2"))
    report = seen(journal)
    newest, middle, oldest = report.pools[0].episodes
    assert newest.marked is None
    assert middle.marked is not None
    assert oldest.marked is not None
    assert (oldest.marked.mark, oldest.marked.note, oldest.marked.by) == ("deploy", "14", "anna")
    assert (report.totals.marks["deploy"], report.totals.marks["neighbour"], report.totals.marks["backup"]) == (1, 1, 0)
    assert (report.totals.false_alarms, report.totals.unmarked) == (1, 1)
    assert report.totals.false_alarms_per_week is None


def test_hours_with_samples_are_counted_and_give_a_rate(journal: Journal) -> None:
    hours = [(3600, 1, int(T0 // 3600 - k) * 3600, 9, 100) for k in range(24 * 7)]

    def roll(database: object) -> None:
        assert hasattr(database, "executemany")
        database.executemany("INSERT INTO rolled (step_s, node_id, time_unix_s, n, cpu) VALUES (?,?,?,?,?)", hours)

    journal.record(*episode_verdicts(-900, -890), mark(-90, -900, "deploy"))
    journal.keeping(roll, "written")
    (pool,) = seen(journal, days=30).pools
    assert pool.observed_s == 24 * 7 * 3600
    assert pool.totals.false_alarms_per_week == pytest.approx(1.0)


def test_more_episodes_than_are_listed_are_counted(journal: Journal) -> None:
    for k in range(MOST_EPISODES + 3):
        journal.record(*episode_verdicts(-10.0 * k - 20, -10.0 * k - 15))
    (pool,) = seen(journal).pools
    assert (len(pool.episodes), pool.not_listed, pool.totals.episodes) == (MOST_EPISODES, 3, MOST_EPISODES + 3)
    assert pool.episodes[0].since_unix_s == T0 - 20, "the newest stay"


def test_an_old_episode_is_measured_from_minutes(journal: Journal) -> None:
    journal.record(*episode_verdicts(-100_000, -99_940))
    begin = int((T0 - 100_000) // 60) * 60

    def roll(database: object) -> None:
        assert hasattr(database, "executemany")
        rows = [
            (60, 1, begin + 60 * k, 60, 1_000_000, *(round(10_000 * part * p95) for part in (0.25, 1.0, 1.5)))
            for k, p95 in enumerate([*[CALM_MS] * 5, *[SLOW_MS] * 2], start=-5)
        ]
        database.executemany(
            "INSERT INTO rolled (step_s, node_id, time_unix_s, n, rps, rt_p50_ms, rt_p95_ms, rt_p99_ms)"
            " VALUES (?,?,?,?,?,?,?,?)",
            rows,
        )

    journal.keeping(roll, "written")
    (episode,) = seen(journal).pools[0].episodes
    assert episode.harm.slow_s == pytest.approx(60.0), "no more than the episode, whatever the minutes are"


def test_of_a_large_pool_only_the_newest_episodes_are_read_in_seconds(journal: Journal) -> None:
    for begin_s in (-3000, -2000, -1000):
        journal.record(*episode_verdicts(begin_s, begin_s + 100))
    all_runs = runs(episodes(journal, "web", T0 - 4000), T0)
    assert len(all_runs) == 3
    each_s, day_s = 150.0, 86400.0
    assert finest_steps(all_runs, 3, T0, day_s) == [1.0] * 3
    assert finest_steps(all_runs, int(MOST_SERVER_S / each_s / 2), T0, day_s) == [MINUTE_S, 1.0, 1.0]
    assert finest_steps(all_runs, int(MOST_SERVER_S), T0, day_s) == [MINUTE_S] * 3
    assert finest_steps(all_runs, 3, T0, 2500.0) == [MINUTE_S, 1.0, 1.0], "Samples of the first are not kept any more"


def printed(journal: Journal, capsys: pytest.CaptureFixture[str]) -> str:
    week_text.show(seen(journal))
    return " ".join(capsys.readouterr().out.split())


def test_in_act_the_text_says_what_was_done_and_no_range_of_what_is_not_known(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    acting = msgspec.structs.replace(cycle(), mode="act")
    done = weight(-199, 100, 0, predicted_ms=5.0, applied=True)
    journal.record(*slow_neighbour(), done, acting, *outcomes([1.0, 0.5, 2.0, 2.0, 2.0]))
    text = printed(journal, capsys)
    assert "not known, 0.0 s to 0.0 s" not in text
    assert "had it acted" not in text
    assert "would: " not in text
    assert "weight changes that were made: 1" in text
    assert "what acting avoided is not measured" in text


def test_in_observe_each_line_is_what_would_have_been(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.record(*slow_neighbour(), weight(-198, 100, 0, predicted_ms=5.0))
    text = printed(journal, capsys)
    assert "avoided, had it acted (predicted): 28 s" in text
    assert "would: weight of s1: 100 → 0" in text


def test_machines_are_ranked_by_what_they_cost(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.record(*slow_neighbour())
    now = [sample for node in ("web1", "web2", "web3") for sample in samples(node, -2, 0, CALM_MS)]
    journal.record(*now)
    for begin_s in range(-4 * 86400, 0, 86400):
        journal.record(*episode_verdicts(begin_s, begin_s + 9000))
    report = seen(journal)
    (machine,) = report.pools[0].machines
    assert (machine.node, machine.days, machine.advice) == ("web1", 4, "replace")
    assert machine.slow_requests is not None
    assert machine.slow_requests > 30 * 50
    week_text.show(report)
    assert "machine web1: slow by itself for 10 h in 7 d, on 4 of them for 5 min or more" in capsys.readouterr().out
    journal.record(*(mark(-day, -day * 86400, "deploy") for day in range(1, 5)))
    assert seen(journal).pools[0].machines[0].advice == "too_few_days", "what people say counts"


def test_an_own_limit_is_no_cause_that_is_not_visible_and_costs_no_machine(journal: Journal) -> None:
    limit = {"state": "slow", "resource": "own limit", "own_limit_cores": 0.4}
    for message in slow_neighbour():
        is_slow = isinstance(message, Verdict) and message.state == "interference"
        journal.record(msgspec.structs.replace(message, **limit) if is_slow else message)
    (pool,) = seen(journal).pools
    assert (pool.totals.episodes, pool.totals.not_visible, pool.totals.interference) == (1, 0, 0)
    assert pool.machines == []


def test_a_saw_is_counted_and_listed_as_one_episode(journal: Journal) -> None:
    for begin_s in (-200.0, -197.0, -194.0, -190.0):
        journal.record(*episode_verdicts(begin_s, begin_s + 2.0))
    (pool,) = seen(journal).pools
    assert (pool.totals.episodes, pool.totals.interference, len(pool.episodes), pool.not_listed) == (1, 1, 1, 0)
    assert (pool.episodes[0].since_unix_s, pool.episodes[0].until_unix_s) == (T0 - 200.0, T0 - 188.0)


def test_a_week_without_an_episode_and_a_machine_that_was_slow_for_seconds_are_said_in_words(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no episode: no server was slow or failed by itself" in printed(journal, capsys)
    journal.record(*slow_neighbour(), weight(-198, 100, 0, predicted_ms=5.0))
    journal.record(*[sample for node in ("web1", "web2", "web3") for sample in samples(node, -2, 0, CALM_MS)])
    text = printed(journal, capsys)
    assert "acting would have made 1 weight change on 1 of 3 servers" in text
    assert " s in 7 d, on 0 of them for 5 min or more; it lost" in text
    assert "replacing it pays from 3 such days on" in text
