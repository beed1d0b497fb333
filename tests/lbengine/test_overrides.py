"""What an operator may ask of an engine, against a real HAProxy. Time is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slackwater.core.control import Request
from slackwater.core.messages import Ask, Change, Cycle
from slackwater.lbengine.overrides.overrides import CommandError
from tests.support.engine_site import HOSTS, DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

pytestmark = needs_haproxy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DrivenHAProxy]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        running = DrivenHAProxy(balancer, ports, tmp_path)
        running.cycle()
        yield running
        running.journal.close()


class Wall:
    """The wall clock, which only the test moves."""

    def __init__(self) -> None:
        self.now_unix_s = 1e9

    def __call__(self) -> float:
        return self.now_unix_s


def weights(site: DrivenHAProxy) -> list[int]:
    return [site.balancer.weight(host) for host in HOSTS]


def changes_of(site: DrivenHAProxy, what: str) -> list[Change]:
    return [change for change in site.journal.changes("web") if change.what == what]


def test_a_pin_holds_for_its_time_and_is_a_change_with_a_name(site: DrivenHAProxy) -> None:
    assert "host1 is pinned at 20 by anna for 60 s" in site.engine.command(
        Request(action="pin", target="host1", weight=20, for_s=60.0, by="anna", why="slow disk"), site.now_s
    )
    site.cycle()
    assert weights(site) == [20, 100, 100]
    (pin,) = changes_of(site, "pin")
    assert (pin.target, pin.after, pin.by, pin.why) == ("host1", 20, "anna", "slow disk: for 60 s")
    site.cycle(30.0)
    assert weights(site) == [20, 100, 100]
    site.cycle(31.0)
    for _ in range(40):
        site.cycle()
    assert weights(site) == [100, 100, 100]


def test_a_pin_outlives_a_restart_and_ends_at_its_time(site: DrivenHAProxy) -> None:
    site.engine.command(Request(action="pin", target="host1", weight=0, for_s=60.0, by="anna"), site.now_s)
    site.start()
    site.cycle()
    site.cycle()
    assert weights(site) == [0, 100, 100]
    site.engine.command(Request(action="unpin", target="host1", by="bert", why="done"), site.now_s)
    for _ in range(40):
        site.cycle()
    assert weights(site) == [100, 100, 100]
    assert changes_of(site, "unpin")[0].by == "bert"


@pytest.mark.parametrize("step_s", [86_400.0, -86_400.0])
def test_a_step_of_the_wall_clock_neither_ends_a_pin_nor_makes_it_longer(site: DrivenHAProxy, step_s: float) -> None:
    wall = Wall()
    site.start()
    site.engine._wall = wall
    site.cycle()
    site.engine.command(Request(action="pin", target="host1", weight=20, for_s=60.0, by="anna"), site.now_s)
    wall.now_unix_s += step_s
    site.cycle(30.0)
    site.cycle(29.0)
    assert weights(site) == [20, 100, 100]
    site.cycle(2.0)
    for _ in range(40):
        site.cycle()
    assert weights(site) == [100, 100, 100]


def test_a_pin_over_a_restart_and_a_wall_clock_that_went_back_lasts_no_longer_than_asked(site: DrivenHAProxy) -> None:
    wall = Wall()
    site.engine._wall = wall
    site.engine.command(Request(action="pin", target="host1", weight=20, for_s=60.0, by="anna"), site.now_s)
    wall.now_unix_s -= 86_400.0
    site.start()
    site.engine._wall = wall
    site.cycle()
    site.cycle(59.0)
    assert weights(site) == [20, 100, 100]
    site.cycle(2.0)
    for _ in range(40):
        site.cycle()
    assert weights(site) == [100, 100, 100]


def test_the_guard_bounds_pins_too(site: DrivenHAProxy) -> None:
    for host in HOSTS:
        site.engine.command(Request(action="pin", target=host, weight=0, for_s=60.0, by="anna"), site.now_s)
    site.cycle()
    assert sorted(weights(site)) == [0, 100, 100], "at most half of three"


@pytest.mark.parametrize(("server", "weight", "says"), [("host9", 1, "no server `host9`"), ("host1", 101, "above it")])
def test_a_pin_that_cannot_be_is_refused_and_changes_nothing(
    site: DrivenHAProxy, server: str, weight: int, says: str
) -> None:
    with pytest.raises(CommandError, match=says):
        site.engine.command(Request(action="pin", target=server, weight=weight, for_s=60.0, by="anna"), site.now_s)
    site.cycle()
    assert weights(site) == [100, 100, 100]
    assert changes_of(site, "pin") == []


def test_an_episode_that_an_operator_ended_stays_ended_and_the_next_one_counts(site: DrivenHAProxy) -> None:
    site.cycle(host1="interference")
    assert weights(site)[0] < 100
    answer = site.engine.command(
        Request(action="end_episode", target="host1", by="anna", why="our own backup"), site.now_s
    )
    assert "host1's episode was ended by anna" in answer
    for _ in range(40):
        site.cycle(host1="interference")
    assert weights(site) == [100, 100, 100]
    assert changes_of(site, "end_episode")[0].by == "anna"
    site.cycle()
    site.cycle(host1="interference")
    assert weights(site)[0] < 100, "another episode"


def test_a_calm_node_has_no_episode_to_end(site: DrivenHAProxy) -> None:
    with pytest.raises(CommandError, match="host1 is in no episode"):
        site.engine.command(Request(action="end_episode", target="host1", by="anna"), site.now_s)


def test_observe_puts_the_baseline_back_and_act_takes_it_up_again(site: DrivenHAProxy) -> None:
    site.cycle(host1="interference")
    assert weights(site)[0] < 100
    site.publish(host1="interference")
    assert "mode is observe by anna" in site.engine.command(
        Request(action="mode", mode="observe", by="anna", why="first look"), site.now_s
    )
    assert weights(site) == [100, 100, 100]
    site.cycle(host1="interference")
    assert weights(site) == [100, 100, 100]
    cycle = [message for message in site.engine.outbox if isinstance(message, Cycle)][-1]
    assert cycle.mode == "observe"
    assert cycle.servers[0].wanted < 100
    site.start()
    assert not site.engine.acting, "it outlives a restart"
    site.publish(host1="interference")
    site.engine.command(Request(action="mode", mode="act", by="bert"), site.now_s)
    site.cycle(host1="interference")
    assert weights(site)[0] < 100
    assert [(change.before, change.after, change.by) for change in changes_of(site, "mode")] == [
        ("observe", "act", "bert"),
        ("act", "observe", "anna"),
    ]


def test_a_pool_that_the_configuration_observes_can_be_had_to_act(site: DrivenHAProxy) -> None:
    site.start(mode="observe")
    site.cycle(host1="interference")
    assert weights(site) == [100, 100, 100]
    site.publish(host1="interference")
    site.engine.command(Request(action="mode", mode="act", by="anna"), site.now_s)
    site.cycle(host1="interference")
    assert weights(site)[0] < 100
    site.start(mode="act")
    assert site.engine.acting
    site.engine.stop(site.now_s, "the end")
    assert weights(site) == [100, 100, 100]


def test_a_new_mode_in_the_configuration_counts_over_what_was_asked_for(site: DrivenHAProxy) -> None:
    site.engine.command(Request(action="mode", mode="observe", by="anna"), site.now_s)
    site.start(mode="observe")
    site.start(mode="act")
    assert not site.engine.acting, "the same configuration as when it was asked for"
    site.engine.command(Request(action="mode", mode="act", by="anna"), site.now_s)
    assert not (site.folder / "by-hand-web.json").exists()


def test_overrides_that_cannot_be_read_mean_observe_and_that_is_said(
    site: DrivenHAProxy, caplog: pytest.LogCaptureFixture
) -> None:
    file = site.folder / "by-hand-web.json"
    file.write_text("{")
    site.start()
    assert not site.engine.acting
    (said,) = site.engine.commands.overrides.describe()
    assert said.startswith(f"{file} is there but cannot be read")
    assert said.endswith("the pool only observes until `slackwater mode act`")
    assert said in caplog.text
    site.cycle()
    site.engine.command(Request(action="pin", target="host1", weight=50, for_s=60.0, by="anna"), site.now_s)
    assert site.engine.commands.overrides.describe() == [said], "it is told until somebody sets the mode"
    site.engine.command(Request(action="unpin", target="host1", by="anna"), site.now_s)
    site.engine.command(Request(action="mode", mode="act", by="anna"), site.now_s)
    assert site.engine.commands.overrides.describe() == []
    assert not file.exists()


def test_an_acknowledgement_changes_nothing_but_the_log(site: DrivenHAProxy) -> None:
    site.engine.command(Request(action="acknowledge", target="host1", by="anna", why="looking"), site.now_s)
    (seen,) = changes_of(site, "acknowledge")
    assert (seen.target, seen.by, seen.why) == ("host1", "anna", "looking")
    assert weights(site) == [100, 100, 100]


def test_a_mark_says_which_episode_and_changes_nothing_but_the_log(site: DrivenHAProxy) -> None:
    marked = Request(action="mark_episode", target="host1", mark="deploy", since_unix_s=5.25, by="anna", why="14")
    assert "host1's episode is marked `deploy` by anna" in site.engine.command(marked, site.now_s)
    (made,) = changes_of(site, "mark_episode")
    assert (made.target, made.after, made.since_unix_s, made.by, made.why) == ("host1", "deploy", 5.25, "anna", "14")
    assert weights(site) == [100, 100, 100]


def test_a_monitor_is_asked_for_samples_and_no_weight_changes(site: DrivenHAProxy) -> None:
    site.publish(host1="calm")
    wanted = Request(action="ask_samples", target="host1", for_s=30.0, by="anna")
    assert "host1's monitor is asked for Samples" in site.engine.command(wanted, site.now_s)
    (asked,) = [message for message in site.engine.outbox if isinstance(message, Ask)]
    assert (asked.node, asked.pool, asked.lease_s) == ("host1", "web", 30.0)
    (made,) = changes_of(site, "ask_samples")
    assert (made.target, made.after, made.by) == ("host1", "30 s", "anna")
    assert weights(site) == [100, 100, 100]


def test_a_node_that_is_not_heard_of_is_not_asked(site: DrivenHAProxy) -> None:
    site.publish(host1="calm")
    with pytest.raises(CommandError, match="no node `host9` is heard of; there are: host1"):
        site.engine.command(Request(action="ask_samples", target="host9", for_s=30.0, by="anna"), site.now_s)
    seen = site.engine.inbox.fresh(site.now_s, 60.0)["host1"]
    site.engine.inbox.put(
        msgspec.structs.replace(seen, source="balancer", time_unix_s=seen.time_unix_s + 1.0), site.now_s
    )
    with pytest.raises(CommandError, match="host1 has no monitor that is heard of, so none"):
        site.engine.command(Request(action="ask_samples", target="host1", for_s=30.0, by="anna"), site.now_s)
    assert not [message for message in site.engine.outbox if isinstance(message, Ask)]
