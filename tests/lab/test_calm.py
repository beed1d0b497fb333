"""Calm on many hosts: the plan of a minute, what counts, going on after a stop, the page, and a real fleet."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from slackwater.core.messages import VERSION, State, Verdict
from slackwater_lab.calm import data, page, summary
from slackwater_lab.calm.count import Change, States, Tally
from slackwater_lab.calm.data import NOTHING, Began, Minute
from slackwater_lab.calm.machine_load import (
    MOST_BUSY,
    MOST_LATE_S,
    MOST_WAIT_MS,
    SliceLoad,
)
from slackwater_lab.calm.plan import MINUTE_S, CalmPlan
from slackwater_lab.cells import append
from slackwater_lab.cluster.hosts import hosts
from slackwater_lab.cluster.machine_load import parse_schedstat, parse_stat
from slackwater_lab.cluster.traces import traces
from slackwater_lab.cluster.webserver import apache_conf
from slackwater_lab.commands import lab
from slackwater_lab.disturb.timetable import DISTURBANCES, OF_ONE_NODE
from slackwater_lab.disturb.turn import touched
from slackwater_lab.experiment.recording import ExperimentError
from tests.support.real_lab import needs_lab, run_lab

FLEET = hosts(20, pools=2)
PLAN = CalmPlan(7, DISTURBANCES)
CARRIED, OVERLOADED = SliceLoad(0.5, 0.3), SliceLoad(0.95, 0.3)
HOUR_S = 3600.0
FACTS = {
    **{"cpu": "Test CPU", "cores": 2, "last_level_cache_mib": 32.0, "kernel": "6.1", "haproxy": "2.6", "apache": "2.4"},
    **{"php": "8.2", "hosts": 20, "quota_cores": 0.1, "period_s": 0.05, "hypervisor": "none", "php_children": 2},
}


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_hosts_are_in_pools_of_nearly_the_same_size() -> None:
    assert Counter(host.pool for host in hosts(7, pools=3)) == {"web1": 3, "web2": 2, "web3": 2}
    assert {host.pool for host in hosts(3)} == {"web"}


@pytest.mark.parametrize("seed", range(10))
def test_an_hour_has_each_kind_as_often_as_asked_for(seed: int) -> None:
    plan = CalmPlan(seed, DISTURBANCES, per_hour=6)
    counts = Counter(disturbance.kind for minute in range(60) for disturbance in plan.disturbances(minute, FLEET))
    assert counts == dict.fromkeys(DISTURBANCES, 6)


def test_a_minute_is_the_same_whatever_was_measured_before_it() -> None:
    assert PLAN.disturbances(17, FLEET) == CalmPlan(7, DISTURBANCES).disturbances(17, FLEET)
    assert PLAN.levels(17, "web1", FLEET) == CalmPlan(7, DISTURBANCES).levels(17, "web1", FLEET)
    other = CalmPlan(8, DISTURBANCES)
    assert [PLAN.disturbances(minute, FLEET) for minute in range(9)] != [
        other.disturbances(minute, FLEET) for minute in range(9)
    ]
    assert PLAN.levels(17, "web1", FLEET) != PLAN.levels(17, "web2", FLEET)


@pytest.mark.parametrize("seed", range(10))
def test_disturbances_never_overlap_and_end_within_their_minute(seed: int) -> None:
    end_s = -MINUTE_S
    for minute in range(60):
        for disturbance in CalmPlan(seed, DISTURBANCES).disturbances(minute, FLEET):
            assert end_s + 3.0 < minute * MINUTE_S + disturbance.begin_s
            assert disturbance.end_s + 3.0 < MINUTE_S
            end_s = minute * MINUTE_S + disturbance.end_s


def test_a_flash_crowd_comes_to_its_pool_alone() -> None:
    minutes = range(60)
    for minute in minutes:
        crowds = [disturbance for disturbance in PLAN.disturbances(minute, FLEET) if disturbance.kind == "flash_crowd"]
        for pool in ("web1", "web2"):
            levels = PLAN.levels(minute, pool, FLEET)
            assert sum(level.seconds for level in levels) == pytest.approx(MINUTE_S)
            mine = [crowd for crowd in crowds if crowd.host is not None and FLEET[crowd.host].pool == pool]
            assert [level.share for level in levels if level.share >= 0.8] == [crowd.size for crowd in mine]
    assert any(
        disturbance.kind == "flash_crowd" for minute in minutes for disturbance in PLAN.disturbances(minute, FLEET)
    )


def test_what_is_of_a_pool_touches_all_of_it_and_no_other() -> None:
    for disturbance in (disturbance for minute in range(20) for disturbance in PLAN.disturbances(minute, FLEET)):
        assert disturbance.host is not None
        host = FLEET[disturbance.host]
        pool = {other.name for other in FLEET if other.pool == host.pool}
        assert set(touched(disturbance, FLEET)) == ({host.name} if disturbance.kind in OF_ONE_NODE else pool)


@pytest.mark.parametrize("per_hour", [7, 24, 0])
def test_more_disturbances_than_an_hour_has_places_for_are_refused(per_hour: int) -> None:
    with pytest.raises(ExperimentError, match=rf"{per_hour} disturbances an hour .* expected one of 1, 2, 3, 4, 5, 6"):
        CalmPlan(1, DISTURBANCES, per_hour)


def test_a_small_apache_has_the_same_module_and_fewer_threads() -> None:
    small, usual = (apache_conf(FLEET[0], Path("/www"), "nobody", "nogroup", mpm) for mpm in ("event-small", "event"))
    for text in (small, usual):
        assert text.count("mpm_event_module") == 1
        assert text.count("MaxRequestWorkers") == 1
    assert "MaxRequestWorkers 32\n" in small


# -- what counts ------------------------------------------------------------------------------------------------------


def verdict(node: str, state: State) -> Verdict:
    return Verdict(VERSION, node, "web1", 1.0, state, 1.0, 0.5, ["run delay 9x"], "a model")


def test_a_state_begins_when_a_node_changes_into_it() -> None:
    states = States()
    for at_s, state in enumerate(("calm", "interference", "interference", "calm", "unknown", "interference")):
        states.hear(float(at_s), verdict("n1", state))  # type: ignore[arg-type]
    assert [change.mono_s for change in states.changes] == [1.0, 5.0]


def test_a_node_whose_first_verdict_is_an_episode_began_it_before() -> None:
    states = States()
    states.hear(0.0, verdict("n1", "interference"))
    assert states.changes == []


def test_a_node_is_judged_while_its_verdict_is_fresh_and_says_something() -> None:
    states = States()
    states.hear(0.0, verdict("n1", "calm"))
    states.hear(0.0, verdict("n2", "unknown"))
    assert states.judged(1.0) == {"n1"}
    assert states.judged(10.0) == set()


def a_tally(*loads: SliceLoad) -> Tally:
    """Slices of 10 s, in each of which two nodes are judged and one is not; n2 is disturbed."""
    tally = Tally()
    for place, load in enumerate(loads):
        for _ in range(10):
            tally.look(1.0, ["n1", "n2", "n3"], {"n1", "n2"}, {"n2": "deploy"})
        tally.end_slice(place * 10.0, place * 10.0 + 10.0, load)
    return tally


def test_an_overloaded_slice_and_the_one_after_it_do_not_count() -> None:
    tally = a_tally(CARRIED, OVERLOADED, CARRIED, CARRIED)
    assert [part.counts for part in tally.slices] == [True, False, False, True]
    assert tally.node_s() == {"deploy": 20.0, NOTHING: 20.0}
    assert (tally.overloaded_node_s(), tally.unjudged_node_s) == (40.0, 40.0)
    states = tally.began(
        [Change(at_s, verdict("n1", "interference")) for at_s in (5.0, 25.0, 99.0)],
        0.0,
        lambda *_: "x",
        States().was_slow,
    )
    assert [(state.after_s, state.counts, state.beside) for state in states] == [(5.0, True, "x"), (25.0, False, "x")]


def test_an_overload_at_the_end_of_a_minute_reaches_into_the_next() -> None:
    after = a_tally(OVERLOADED).next_minute()
    after.end_slice(0.0, 10.0, CARRIED)
    after.end_slice(10.0, 20.0, CARRIED)
    assert [part.counts for part in after.slices] == [False, True]


def test_waiting_for_a_processor_is_overload_too() -> None:
    assert SliceLoad(MOST_BUSY, MOST_WAIT_MS).carried
    assert not SliceLoad(MOST_BUSY, MOST_WAIT_MS + 0.01).carried
    assert not SliceLoad(MOST_BUSY + 0.01, 0.0).carried
    assert not SliceLoad(0.0, 0.0, MOST_LATE_S + 0.01).carried


def test_what_the_hypervisor_took_is_busy() -> None:
    assert parse_stat("cpu  10 1 5 100 20 2 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n") == (25, 1, 145)
    assert parse_schedstat("5000 123 7\n") == (123, 7)


# -- adding up --------------------------------------------------------------------------------------------------------


def a_minute(number: int, *began: Began, **changed: Any) -> Minute:
    """A minute in which as many nodes as it takes were judged for an hour."""
    whole: dict[str, Any] = {
        **{"begun": "2026-11-24T12:00:00Z", "machine": FACTS, "commit": "abc", "decision_commit": "code1"},
        **{
            "minute": number,
            "seed": 7,
            "kinds": list(DISTURBANCES),
            "per_hour": 12,
            "hosts": 20,
            "pools": 2,
            "load": 0.4,
        },
        **{"quota_cores": 0.1, "period_s": 0.05, "app": "events", "balance": "roundrobin", "capacity_rps": 500.0},
        **{"requests": 1000, "errors": 1, "disturbances": {"deploy": 1}, "overloaded_node_s": 36.0},
        **{"node_s": {"deploy": 0.25 * HOUR_S, NOTHING: 0.75 * HOUR_S}, "unjudged_node_s": 3.6},
        **{"busy_shares": [0.5], "waits_ms": [0.25], "began": list(began)},
    }
    return Minute(**whole | changed)


def an_episode(beside: str = NOTHING, state: str = "interference", counts: bool = True) -> Began:
    return Began(
        node="host3", state=state, after_s=3.25, beside=beside, counts=counts, severity=0.3, why=["a | b", "evidence 9"]
    )


def test_rates_are_of_node_time_that_counts_with_and_without_disturbances() -> None:
    began = [an_episode(), an_episode("deploy"), an_episode(counts=False), an_episode("deploy", "all_slow")]
    minutes = [a_minute(number, *(began if number == 0 else [])) for number in range(96)]
    rates = {rate["beside"]: rate for rate in summary.rates(minutes)}
    assert {beside: (rate["node_days"], rate["episodes"]) for beside, rate in rates.items()} == {
        "all": (4.0, 2),
        "nothing was done": (3.0, 1),
        "beside a disturbance": (1.0, 1),
        "deploy": (1.0, 1),
    }
    assert rates["all"]["per_node_day"] == 0.5
    assert rates["deploy"]["times"] == 96
    low, high = rates["all"]["interval"] or [0.0, 0.0]
    assert low < 0.5 < 1.0 < high
    assert summary.shared(minutes)["all_slow"] == {"deploy": 1}
    assert summary.summary(minutes)["episodes_while_overloaded"] == 1


@pytest.mark.parametrize(
    ("hours", "episodes", "word"), [(96, 0, "yes"), (96, 1, "not shown"), (96, 20, "no"), (48, 0, "not shown")]
)
def test_the_goal_needs_the_whole_interval_and_enough_time(hours: int, episodes: int, word: str) -> None:
    minutes = [a_minute(number, *([an_episode()] if number < episodes else [])) for number in range(hours)]
    assert summary.reached(summary.rates(minutes)[0]) == word


def test_the_same_command_goes_on_and_another_state_of_the_code_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "calm.jsonl"
    for number in (0, 1, 3):
        append(file, a_minute(number))
    append(file, a_minute(0, decision_commit="code2"))
    with file.open("ab") as cut:
        cut.write(b'{"v":1,"begun')
    minutes = data.read(file)
    assert data.left(minutes, a_minute(9).series, 5) == [2, 4]
    assert data.left(minutes, a_minute(9, decision_commit="code2").series, 2) == [1]
    assert data.left(minutes, a_minute(9, seed=8).series, 2) == [0, 1]
    assert data.left(minutes, a_minute(9, view="balancer").series, 2) == [0, 1]
    assert data.left(minutes, a_minute(9).series, 2) == []
    assert [minute.decision_commit for minute in summary.of_one_state(minutes)] == ["code2"]


def test_a_minute_has_all_fields_of_its_measurement() -> None:
    minute = a_minute(0)
    assert a_minute(0, **data.described(minute.series)) == minute


def test_a_line_that_is_no_minute_is_named(tmp_path: Path) -> None:
    file = tmp_path / "calm.jsonl"
    append(file, msgspec.structs.replace(a_minute(0), v=9))
    with pytest.raises(ExperimentError, match=r"calm\.jsonl, line 1: format 9; this program reads format 1"):
        data.read(file)
    file.write_text("{}\n")
    with pytest.raises(ExperimentError, match=r"calm\.jsonl, line 1: not a minute of calm"):
        data.read(file)


def test_a_server_that_was_slow_to_its_users_is_no_false_episode_where_no_neighbour_is_claimed() -> None:
    states = States()
    for number in range(500):
        for node, rt_ms in (("n1", 20.0 if number >= 400 else 5.0), ("n2", 5.0)):
            state: State = "slow" if number >= 405 and node == "n1" else "calm"
            states.hear(number / 5, msgspec.structs.replace(verdict(node, state), rt_p95_ms=rt_ms))
    (change,) = states.changes
    assert states.was_slow(change)
    tally = a_tally(*[CARRIED] * 9)
    (began,) = tally.began(states.changes, 0.0, lambda *_: "own_backup", states.was_slow)
    assert began.was_slow
    chance = msgspec.structs.replace(began, was_slow=False)
    minute = a_minute(0, began, chance, view="balancer")
    assert summary.episodes([minute]) == [chance]
    assert summary.slow_by_itself([minute]) == {"own_backup": 1}
    text = page.page([minute], "calm.jsonl", "calm.md")
    assert "--view balancer" in text
    assert "own_backup 1" in text
    assert "no monitor" in text


# -- the page and the command -----------------------------------------------------------------------------------------


def test_the_page_has_rates_episodes_and_what_does_not_count() -> None:
    began = [an_episode("deploy"), an_episode(counts=False)]
    minutes = [a_minute(0, *began), a_minute(1), a_minute(2, decision_commit="code0")]
    text = page.page([minutes[2], *minutes[:2]], "calm.jsonl", "calm.md")
    assert "| all | 2 | 0.083 | 1 | 12.0 | 0.3 to 66.86 |" in text
    assert "| deploy | 2 | 0.021 | 1 |" in text
    assert "| the machine was overloaded, so it does not count | 0.001 | 1 |" in text
    assert "| 2026-11-24T12:00:00Z | host3 | 3.25 | deploy | 0.3 | a / b |" in text
    assert "The data file has 1 minutes of other states of it" in text
    assert (
        "slackwater lab calm --hosts 20 --pools 2 --quota 0.1 --period-ms 50 --load 0.4 --seed 7 --disturbance all"
        " --per-hour 12" in text
    )
    assert "**not shown**" in text


def test_a_page_without_data_says_how_to_measure() -> None:
    text = page.page([], "calm.jsonl", "calm.md")
    assert "**Nothing is measured yet.**" in text
    assert "None" not in text


def test_replay_writes_the_page_again_without_a_lab(tmp_path: Path) -> None:
    file, place = tmp_path / "calm.jsonl", tmp_path / "calm.md"
    append(file, a_minute(0, an_episode()))
    words = ["calm", "--data", str(file), "--page", str(place), "--replay", "--json", "-"]
    done = CliRunner().invoke(lab, words)
    assert done.exit_code == 1, "there was an episode"
    assert json.loads(done.stdout)["rates"][0]["episodes"] == 1
    assert place.read_text() == page.page(data.read(file), str(file), str(place))


def test_a_page_needs_a_data_file() -> None:
    done = CliRunner().invoke(lab, ["calm", "--page", "calm.md"])
    assert done.exit_code == 2
    assert "--data is missing" in done.output


@pytest.mark.lab
@pytest.mark.slow
@needs_lab
@pytest.mark.timeout(600)
def test_a_real_fleet_is_measured_for_a_minute_and_is_gone_afterwards(tmp_path: Path) -> None:
    if left_behind := traces():
        pytest.skip(f"a lab is up or was left behind: {left_behind}")
    file, place = tmp_path / "calm.jsonl", tmp_path / "calm.md"
    words = ["calm", "--hosts", "4", "--pools", "2", "--minutes", "1", "--data", str(file), "--page", str(place)]
    words += ["--disturbance", "start", "--disturbance", "own_backup", "--per-hour", "60"]
    done = run_lab(*words, timeout_s=500.0)
    assert done.returncode in (0, 1), done.stderr
    (minute,) = data.read(file)
    assert minute.disturbances == {"start": 1, "own_backup": 1}
    node_s = sum(minute.node_s.values()) + minute.overloaded_node_s
    assert 0 < node_s <= 4 * MINUTE_S
    assert node_s + minute.unjudged_node_s == pytest.approx(4 * MINUTE_S)
    assert minute.requests > 0
    assert traces() == []
    again = run_lab(*words)
    assert len(data.read(file)) == 1, "it is measured"
    assert again.returncode == done.returncode
