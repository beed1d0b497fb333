"""What static weights would have given: from the first moments of an episode, while they were still in force."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cpu, Cycle, Message, Sample, ServerState, Traffic, Verdict
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.views.percentile import pooled_ms
from slackwater.views.static_weights import NotEstimated, estimate_ms, first_change
from slackwater.views.why import Episode, episodes
from slackwater.web.content.episodes import EpisodePage, page
from tests.support.web_settings import settings_in

T0 = 1_795_000_000.0
"""The Sample that decided the episode of web1."""
PERIOD_S = 0.2
Times = tuple[float | None, float | None, float | None]
"""p50, p95 and p99 in ms."""
CALM = (2.0, 5.0, 9.0)
SLOW = (30.0, 60.0, 90.0)
DRAINED = (1.0, 2.0, 3.0)
NONE = (None, None, None)


def samples(
    node: str, begin: float, end: float, rps: float, times: Times, period_s: float = PERIOD_S
) -> Iterator[Sample]:
    """Every period in [begin, end), in seconds from `T0`."""
    for number in range(round((end - begin) / period_s)):
        unix_s = T0 + begin + number * period_s
        p50, p95, p99 = times
        traffic = Traffic(rps=rps, rt_p50_ms=p50, rt_p95_ms=p95, rt_p99_ms=p99)
        yield Sample(1, node, "web", unix_s, "boot", number, period_s, cpu=Cpu("cgroup", 0.5), traffic=traffic)


def cycle(at_s: float, weight: int, balance: str = "roundrobin", other: int = 100) -> Cycle:
    servers = [ServerState("web1", "up", weight, 100, weight), ServerState("web2", "up", other, 100, other)]
    return Cycle(1, "web", T0 + at_s, "act", False, balance, "optimal", "", servers, weights_mean(balance))


def verdicts(ended: float = 10.0) -> Iterator[Verdict]:
    """The severity says that web1 lost far more than it could spare."""
    yield Verdict(1, "web1", "web", T0 - 20.0, "calm", T0 - 20.0, 0.0, [], "m")
    yield Verdict(1, "web1", "web", T0 + 0.1, "interference", T0, 0.95, ["run delay"], "m")
    yield Verdict(1, "web1", "web", T0 + ended, "calm", T0 + ended, 0.0, [], "m")


def an_episode(rps: float = 80.0, lowered: float | None = 0.02, balance: str = "roundrobin") -> list[Message]:
    """web1 turns slow 0.4 s before it is judged so; then it gets hardly any requests, and answers those quickly."""
    drained = 10.0 if lowered is None else 0.2
    messages: list[Message] = [*verdicts()]
    messages += samples("web1", -20.0, -0.2, rps, CALM)
    messages += samples("web1", -0.2, drained, rps, SLOW)
    messages += samples("web1", drained, 10.0, 1.0, DRAINED)
    messages += samples("web2", -20.0, 10.0, rps, CALM)
    messages += [cycle(at_s, 100, balance) for at_s in (-19.0, -10.0, -0.5)]
    messages += [cycle(lowered, 0, balance)] if lowered is not None else []
    messages += [cycle(at_s, 100 if lowered is None else 0, balance) for at_s in (5.0, 9.9)]
    return messages


def shown(tmp_path: Path, messages: list[Message], now: float = 30.0) -> EpisodePage:
    settings = settings_in(tmp_path)
    with Journal.open(journal_path(tmp_path), clock=lambda: T0 + now) as journal:
        journal.record(*messages)
        story: Episode = episodes(journal, "web", 0.0)[0]
        return page(journal, settings, settings.pool[0], story, T0 + now)


def test_the_first_moments_are_what_static_weights_give_whatever_the_severity_says(tmp_path: Path) -> None:
    episode = shown(tmp_path, an_episode())
    half = pooled_ms([(1.0, *SLOW), (1.0, *CALM)], 0.95)
    assert episode.static_ms == pytest.approx(half, rel=0.05)
    assert re.search("3[23] requests", episode.static_note)


def test_a_sample_counts_for_the_time_that_it_covers_and_none_before_it_turned_slow(tmp_path: Path) -> None:
    """The monitor sends shorter Samples when something looks slow."""
    messages = [m for m in an_episode(rps=100.0) if not isinstance(m, Sample) or m.node != "web1"]
    messages += samples("web1", -20.0, -0.2, 100.0, CALM)
    messages += samples("web1", -0.35, 0.1, 100.0, SLOW, period_s=0.05)
    messages += samples("web1", 0.2, 10.0, 0.0, DRAINED)
    episode = shown(tmp_path, messages)
    both = pooled_ms([(1.0, *SLOW), (1.0, *CALM)], 0.95)
    assert episode.static_ms == pytest.approx(both, rel=0.05)
    assert re.search("4[567] requests", episode.static_note)


def test_servers_count_by_their_baselines_and_not_by_their_requests() -> None:
    seen = {"web1": [(10.0, *SLOW)], "web2": [(90.0, *CALM)]}
    assert estimate_ms(seen, {"web1": 50.0, "web2": 50.0}, 0.95) == pooled_ms([(1.0, *SLOW), (1.0, *CALM)], 0.95)
    assert estimate_ms(seen, {"web1": 0.0, "web2": 100.0}, 0.95) == pooled_ms([(1.0, *CALM)], 0.95)
    with pytest.raises(NotEstimated, match="web2"):
        estimate_ms({"web1": [(10.0, *SLOW)]}, {"web1": 50.0, "web2": 50.0}, 0.95)


def test_weights_that_were_never_lowered_need_no_estimate(tmp_path: Path) -> None:
    episode = shown(tmp_path, an_episode(lowered=None, balance="leastconn"))
    assert episode.users_static == episode.users_during
    assert episode.static_is_measured


def test_under_least_connections_there_is_none(tmp_path: Path) -> None:
    episode = shown(tmp_path, an_episode(balance="leastconn"))
    assert episode.static_ms is None
    assert "under `leastconn` weights do not determine how requests are split" in episode.static_note


def test_a_handful_of_requests_is_no_estimate(tmp_path: Path) -> None:
    episode = shown(tmp_path, an_episode(rps=5.0))
    assert episode.static_ms is None
    assert "only 2 requests" in episode.static_note


def test_weights_that_were_lowered_before_give_no_estimate(tmp_path: Path) -> None:
    already = cycle(-0.45, 100, other=40)
    episode = shown(
        tmp_path, [message for message in an_episode() if not isinstance(message, Cycle)] + [already, cycle(0.02, 0)]
    )
    assert episode.static_ms is None
    assert "not all weights were at their baselines" in episode.static_note


def test_a_server_that_falls_behind_gives_no_estimate(tmp_path: Path) -> None:
    messages: list[Message] = [
        message for message in an_episode() if not isinstance(message, Sample) or message.node == "web2"
    ]
    messages += samples("web1", -20.0, -0.2, 300.0, CALM)
    messages += samples("web1", -0.2, 0.2, 90.0, SLOW)
    episode = shown(tmp_path, messages)
    assert episode.static_ms is None
    assert "answered only 30% of its requests" in episode.static_note


def without_samples(messages: list[Message], node: str) -> list[Message]:
    return [message for message in messages if not isinstance(message, Sample) or message.node != node]


def test_a_server_that_answers_now_and_then_gives_no_estimate(tmp_path: Path) -> None:
    """It answers in two of six Samples before a weight is changed."""
    messages = without_samples(an_episode(lowered=1.0), "web1")
    messages += samples("web1", -20.0, -0.2, 80.0, CALM)
    for number, times in enumerate((SLOW, NONE, NONE, NONE, NONE, SLOW)):
        begin = -0.2 + number * PERIOD_S
        messages += samples("web1", begin, begin + PERIOD_S, 80.0 if times is SLOW else 0.0, times)
    episode = shown(tmp_path, messages)
    assert episode.static_ms is None
    assert "answered only 33% of its requests" in episode.static_note


def test_one_slow_sample_among_many_does_not_stand_for_all(tmp_path: Path) -> None:
    messages = without_samples(an_episode(lowered=8.0), "web1")
    messages += samples("web1", -20.0, -0.2, 80.0, CALM)
    messages += samples("web1", -0.2, 7.0, 80.0, SLOW)
    messages += samples("web1", 7.0, 7.2, 80.0, (3000.0, 3000.0, 3000.0))
    messages += samples("web1", 7.2, 8.0, 80.0, SLOW)
    assert shown(tmp_path, messages).static_ms == pytest.approx(pooled_ms([(1.0, *SLOW), (1.0, *CALM)], 0.95), rel=0.1)


def test_a_server_that_is_as_quick_as_usual_gives_no_estimate(tmp_path: Path) -> None:
    messages = without_samples(an_episode(), "web1")
    episode = shown(tmp_path, [*messages, *samples("web1", -20.0, 10.0, 80.0, CALM)])
    assert episode.static_ms is None
    assert "its response times were not above the usual ones" in episode.static_note


def test_two_servers_that_are_slow_at_once_give_no_estimate(tmp_path: Path) -> None:
    also = [
        Verdict(1, "web2", "web", T0 - 20.0, "calm", T0 - 20.0, 0.0, [], "m"),
        Verdict(1, "web2", "web", T0 + 0.3, "interference", T0 + 0.2, 0.95, ["run delay"], "m"),
        Verdict(1, "web2", "web", T0 + 10.0, "calm", T0 + 10.0, 0.0, [], "m"),
    ]
    episode = shown(tmp_path, [*an_episode(), *also])
    assert episode.static_ms is None
    assert "web2 had an episode at about the same time" in episode.static_note


def test_an_outage_of_the_balancer_does_not_make_an_estimate_a_measurement(tmp_path: Path) -> None:
    """The newest Cycle has no servers."""
    known = cycle(0.0, 0).servers
    outage = msgspec.structs.replace(cycle(12.0, 0), servers=[], outage="no_answer", last_known=known)
    episode = shown(tmp_path / "outage", [*an_episode(), outage])
    assert not episode.static_is_measured
    assert episode.static_ms == shown(tmp_path / "none", an_episode()).static_ms
    episode = shown(tmp_path / "nothing", [*an_episode(), msgspec.structs.replace(outage, last_known=[])])
    assert episode.static_note == "no estimate: the baseline weights are not known"
    half_seen = msgspec.structs.replace(cycle(12.0, 100), servers=known[:1], unseen=1)
    episode = shown(tmp_path / "half", [*an_episode(), half_seen])
    assert episode.static_note == "no estimate: the baseline weights are not known"
    one_of_two_haproxies = msgspec.structs.replace(cycle(12.0, 100), servers=known, unseen=1)
    episode = shown(tmp_path / "all seen", [*an_episode(), one_of_two_haproxies])
    assert episode.static_ms == shown(tmp_path / "none", an_episode()).static_ms


def test_a_backup_server_and_one_that_answers_nothing_have_no_share(tmp_path: Path) -> None:
    more = [ServerState("web3", "up", 100, 100, 100, backup=True), ServerState("web4", "down", 100, 100, 100)]
    messages: list[Message] = [
        msgspec.structs.replace(message, servers=[*message.servers, *more]) if isinstance(message, Cycle) else message
        for message in an_episode()
    ]
    messages += samples("web4", -20.0, 10.0, 0.0, NONE)
    assert shown(tmp_path / "more", messages).static_ms == shown(tmp_path / "two", an_episode()).static_ms


def test_an_episode_that_began_as_something_else_counts_from_where_its_neighbour_did(tmp_path: Path) -> None:
    before = Verdict(1, "web1", "web", T0 - 6.0, "overload", T0 - 6.0, 0.2, ["cpu"], "m")
    messages = sorted([*an_episode(), before], key=lambda message: message.time_unix_s)
    episode = shown(tmp_path / "more", messages)
    assert episode.since_unix_s == T0 - 6.0
    assert episode.static_ms == pytest.approx(pooled_ms([(1.0, *SLOW), (1.0, *CALM)], 0.95), rel=0.05)


def test_a_server_that_answered_next_to_nothing_before_gives_no_estimate(tmp_path: Path) -> None:
    messages = without_samples(an_episode(), "web1")
    messages += samples("web1", -20.0, -10.0, 0.0, NONE)
    messages += samples("web1", -10.0, -9.8, 5e-324, CALM)
    messages += samples("web1", -9.8, -0.2, 0.0, NONE)
    messages += samples("web1", -0.2, 10.0, 80.0, SLOW)
    episode = shown(tmp_path, messages)
    assert episode.static_note == "no estimate: this server answered no requests before it began"


def test_response_times_that_hardly_differ_break_nothing(tmp_path: Path) -> None:
    messages = without_samples(an_episode(), "web1")
    messages += samples("web1", -20.0, -0.2, 80.0, (1.5, 1.5, 1.5))
    messages += samples("web1", -0.2, 10.0, 80.0, (math.nextafter(1.5, 2.0),) * 3)
    assert shown(tmp_path, messages).static_note


def test_a_server_without_response_times_is_named(tmp_path: Path) -> None:
    episode = shown(tmp_path, without_samples(an_episode(), "web2"))
    assert episode.static_note == "no estimate: the response times of web2 before it began are not known"


def test_the_only_server_is_estimated_from_its_own_times(tmp_path: Path) -> None:
    messages: list[Message] = []
    for message in without_samples(an_episode(), "web2"):
        alone = isinstance(message, Cycle) and msgspec.structs.replace(message, servers=message.servers[:1])
        messages.append(alone or message)
    episode = shown(tmp_path, messages)
    assert episode.static_ms == pytest.approx(SLOW[1], rel=0.05)
    assert "other servers" not in episode.static_note


def test_samples_that_are_no_longer_kept_give_no_estimate(tmp_path: Path) -> None:
    episode = shown(tmp_path, an_episode(), now=48 * 3600.0)
    assert episode.static_ms is None
    assert "no longer kept" in episode.static_note


def test_the_first_difference_from_a_baseline_is_found(tmp_path: Path) -> None:
    with Journal.open(journal_path(tmp_path), clock=lambda: T0 + 30.0) as journal:
        journal.record(*an_episode(lowered=3.0))
        history = journal.history("web", T0, 1.0, until_unix_s=T0 + 10.0)
    assert first_change(history, {"web1": 100.0, "web2": 100.0}) == T0 + 3.0
    assert first_change(history, {"web2": 100.0}) is None
