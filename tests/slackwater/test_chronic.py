"""Chronic machines: what each cost, where it pays to replace one, and what is next."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slackwater.controller.cli.replace_command import as_text
from slackwater.core.config import ConfigError, ReplaceSettings, parse
from slackwater.core.journal.pool_totals import SlowTime
from slackwater.core.messages import Change, ChangeCause, Cycle, ServerState, State
from slackwater.views.chronic import DAY_S, HOUR_S, Machine, rank
from slackwater.views.replacements import RETRY_S, attempts, plan, replaced

NOW = 20_000 * DAY_S
NODES = ("web1", "web2", "web3")
SETTINGS = ReplaceSettings(command="/usr/local/bin/replace")


def slow(
    node: str, days_ago: float, hours: float = 2.0, severity: float = 0.5, state: State = "interference"
) -> SlowTime:
    since = NOW - days_ago * DAY_S
    return SlowTime(node, state, since, since + hours * HOUR_S, severity, None)


def on_days(node: str, days: int, hours: float = 2.0, severity: float = 0.5) -> list[SlowTime]:
    return [slow(node, day + 0.5, hours, severity) for day in range(days)]


def ranked(
    spans: list[SlowTime], settings: ReplaceSettings = SETTINGS, nodes: tuple[str, ...] = NODES, **more: object
) -> list[Machine]:
    return rank(spans, nodes, settings, 7, NOW, pool="web", observed_s=7 * DAY_S, **more)  # type: ignore[arg-type]


def cycle(**weights: int) -> Cycle:
    servers = [ServerState(node, "up", weights.get(node, 100), 100, 100) for node in NODES]
    return Cycle(1, "web", NOW, "act", False, "roundrobin", "optimal", "", servers)


def change(
    cause: ChangeCause, at_s: float, node: str = "web1", follows: str = "", *, applied: bool = True, id_: str = "c0"
) -> Change:
    made = Change(1, id_, "web", NOW + at_s, "replace", node, None, "x", "w", "replace", applied)
    return msgspec.structs.replace(made, follows=follows, cause=cause)


def test_it_pays_where_a_machine_is_slow_on_many_days_and_loses_more_than_its_peers() -> None:
    (machine,) = ranked(on_days("web1", 4))
    assert (machine.days, machine.episodes, machine.advice) == (4, 4, "replace")
    assert machine.slow_min == pytest.approx(480.0)
    assert machine.lost_min == pytest.approx(240.0), "half of its capacity"
    assert machine.lost_share == pytest.approx(240.0 / (7 * 24 * 60))
    assert machine.peers_lost_share == 0.0
    assert machine.why.endswith("it lost 2.4% of its capacity, its peers 0.0%: replace this machine")


@pytest.mark.parametrize(
    ("spans", "advice"),
    [
        (on_days("web1", 2, hours=10.0), "too_few_days"),
        (on_days("web1", 7, hours=0.2), "too_little"),
        (on_days("web1", 7, hours=0.05, severity=1.0), "too_few_days"),
        ([span for node in NODES for span in on_days(node, 4)], "too_little"),
    ],
    ids=["one bad weekend", "often and short", "false alarms", "all alike: a new one would be no better"],
)
def test_it_does_not_pay(spans: list[SlowTime], advice: str) -> None:
    assert ranked(spans)[0].advice == advice


def test_the_costliest_is_first_and_a_machine_that_is_gone_is_left_out() -> None:
    spans = [*on_days("web2", 4), *on_days("web3", 4, severity=0.9), *on_days("gone", 7)]
    assert [machine.node for machine in ranked(spans)] == ["web3", "web2"]


def test_what_a_person_says_was_no_neighbour_does_not_count_nor_does_overload() -> None:
    spans = on_days("web1", 4)
    marked = {(span.node, round(span.since_unix_s * 1000)) for span in spans}
    assert ranked(spans, false_alarms=marked) == []
    assert ranked([slow("web1", day, state="overload") for day in range(1, 6)]) == []
    assert ranked([slow("web1", day, state="slow") for day in range(1, 6)])[0].advice == "replace"


def test_servers_without_a_monitor_can_be_left_out_by_name() -> None:
    without = ReplaceSettings(states=["interference"])
    assert ranked([slow("web1", day, state="slow") for day in range(1, 6)], without) == []


def test_a_machine_without_peers_is_not_advised_on() -> None:
    (machine,) = ranked(on_days("web1", 5), nodes=("web1",))
    assert (machine.advice, machine.peers_lost_share) == ("no_peers", None)


def test_a_machine_that_was_replaced_begins_anew() -> None:
    spans = on_days("web1", 6)
    since = NOW - 1.2 * DAY_S
    (machine,) = ranked(spans, replaced={"web1": since})
    assert (machine.days, machine.advice, machine.replaced_unix_s) == (1, "too_few_days", since)
    assert machine.lost_share == pytest.approx(HOUR_S / (1.2 * DAY_S)), "of the time since then"


def test_requests_are_told_where_they_are_known() -> None:
    (machine,) = ranked(on_days("web1", 4), slow_requests={"web1": 12_300.0})
    assert ", and 12,300 requests took long" in machine.why


def test_the_changes_tell_how_each_replacement_ended() -> None:
    made = [
        change("chronic", -300.0, id_="a"),
        change("replacing", -200.0, follows="a", id_="a1"),
        change("replaced", -100.0, follows="a", id_="a2"),
        change("chronic", -90.0, "web2", id_="b"),
        change("replace_given_up", -80.0, "web2", follows="b", id_="b1"),
        change("chronic", -70.0, "web3", applied=False, id_="c"),
    ]
    done, given_up, noted = attempts(made[::-1])
    assert (done.ended, done.ran_unix_s) == ("replaced", NOW - 200.0)
    assert (given_up.ended, given_up.ran_unix_s) == ("replace_given_up", None)
    assert (noted.ended, noted.applied) == (None, False)
    assert replaced(made) == {"web1": NOW - 100.0}
    back = change("same_machine", -50.0, follows="a", id_="a3")
    assert replaced([*made, back]) == {}, "the same machine came back"


def next_one(changes: list[Change], shown: Cycle | None = None, **settings: int) -> tuple[str, str | None]:
    planned = plan(
        "web",
        ranked(on_days("web1", 4)),
        changes,
        shown or cycle(),
        {},
        msgspec.structs.replace(SETTINGS, **settings),
        NOW,
    )
    return planned.node, planned.obstacle


def test_one_machine_a_day_unless_set_otherwise() -> None:
    ran = [
        change("chronic", -3000.0, "web3", id_="a"),
        change("replacing", -2000.0, "web3", follows="a", id_="a1"),
        change("replace_failed", -1000.0, "web3", follows="a", id_="a2"),
    ]
    assert next_one([]) == ("web1", None)
    assert next_one(ran) == ("web1", "most_per_day"), "one whose command failed counts too"
    assert next_one(ran, most_per_day=2) == ("web1", None)
    assert next_one([change("chronic", -3000.0, "web3", id_="a")]) == ("web1", "under_way")
    old = [msgspec.structs.replace(made, time_unix_s=made.time_unix_s - DAY_S) for made in ran]
    assert next_one(old) == ("web1", None)


def in_vain(at_s: float, number: int, node: str = "web1") -> list[Change]:
    began = change("chronic", at_s - 120.0, node, id_=f"v{number}")
    return [began, change("replace_given_up", at_s, node, follows=began.id, id_=f"v{number}e")]


def test_a_machine_that_was_drained_in_vain_waits_longer_each_time() -> None:
    assert next_one(in_vain(-RETRY_S + 1.0, 0)) == ("web1", "in_vain")
    assert next_one(in_vain(-RETRY_S, 0)) == ("web1", None)
    twice = in_vain(-RETRY_S, 0) + in_vain(-4 * RETRY_S, 1)
    assert next_one(twice) == ("web1", "in_vain")
    assert next_one(in_vain(-1.0, 0, "web3")) == ("web1", None), "another machine's drain"
    begun, at_s = 0, -DAY_S
    made: list[Change] = []
    while at_s < 0.0:
        shown = [msgspec.structs.replace(each, time_unix_s=each.time_unix_s - at_s) for each in made]
        if next_one(shown)[1] is None:
            begun += 1
            made += in_vain(at_s + 120.0, begun)
        at_s += 300.0
    assert begun == 7, "drains of a server that never gets empty, in a day"


def test_a_machine_that_cannot_be_emptied_does_not_keep_the_next_from_its_turn() -> None:
    machines = ranked([*on_days("web1", 4, 6.0), *on_days("web2", 4, 4.0)], nodes=(*NODES, "web4", "web5"))
    assert [machine.advice for machine in machines] == ["replace", "replace"]
    planned = plan("web", machines, in_vain(-10.0, 0), cycle(), {}, SETTINGS, NOW)
    assert (planned.node, planned.obstacle) == ("web2", None)


def test_nothing_is_taken_out_of_a_pool_that_is_not_whole() -> None:
    assert next_one([], cycle(web2=40)) == ("web1", "others")
    down = cycle()
    down.servers[0].condition = "down"
    assert next_one([], down) == ("web1", "not_up")
    paused = msgspec.structs.replace(cycle(), paused=True)
    assert next_one([], paused) == ("web1", "paused")
    away = msgspec.structs.replace(cycle(), outage="no_answer")
    assert next_one([], away) == ("web1", "balancer_away")
    half = msgspec.structs.replace(cycle(), unseen=1)
    assert next_one([], half) == ("web1", "balancer_away"), "the other HAProxy would go on sending it requests"
    evened = cycle(web2=80)
    evened.servers[1].calm_weight = 80
    assert next_one([], evened) == ("web1", None), "it has its full weight"


def test_the_dry_run_says_what_would_be_replaced_and_why() -> None:
    machines = ranked([*on_days("web1", 4), *on_days("web2", 1)])
    text = as_text(plan("web", machines, [], cycle(), {}, SETTINGS, NOW))
    assert text.splitlines()[0] == "pool web, the last 7 d, mode act"
    assert text.splitlines()[1].endswith("replace this machine")
    assert text.splitlines()[2].endswith("replacing it pays from 3 such days on")
    assert text.splitlines()[3] == "  next: web1; it is drained, and /usr/local/bin/replace is called"
    observes = msgspec.structs.replace(cycle(), mode="observe")
    assert "the pool only observes" in as_text(plan("web", machines, [], observes, {}, SETTINGS, NOW))
    off = plan("web", machines, [], cycle(), {}, ReplaceSettings(), NOW)
    assert "no `replace.command` is set" in as_text(off)
    assert "no machine was slow" in as_text(plan("web", [], [], cycle(), {}, SETTINGS, NOW))


def test_bad_settings_are_refused_in_words(tmp_path: Path) -> None:
    pool = '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n'
    text = f'state_dir = "{tmp_path}"\n[replace]\ndays = 2\nchronic_days = 3\n{pool}'
    with pytest.raises(ConfigError, match=r"`chronic_days`: expected at most `days`, 2, got 3"):
        parse(text, "test")


def test_a_limit_of_its_own_makes_no_machine_chronic() -> None:
    """A new machine of the same kind has it too."""
    assert ranked([span._replace(state="slow", resource="own limit") for span in on_days("web1", 4)]) == []
