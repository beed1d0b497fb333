"""A limit of a server's own is named where the kernel's facts prove it, elsewhere a steady level: on played servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pytest

from slackwater.core.messages import Frequency, Sample, Verdict
from slackwater.detector.judge import Judge
from tests.support.judges import new_judge
from tests.support.limited_server import MHZ, POOL, STEP_S, Kind, Server, Slowed, pool, samples
from tests.support.seeds import seeds

CALM_S = 20.0
FULL = 1.3
"""The load at the ceiling, over what it allows."""


class Played:
    """A pool that is judged; the first of its servers is slowed down."""

    def __init__(self, kind: Kind, seed: int, **settings: float) -> None:
        self.judge: Judge = new_judge(POOL)
        self.servers = pool(kind, seed, **settings)
        self.number = 0
        self.run(CALM_S)

    @property
    def first(self) -> Server:
        return self.servers[0]

    def slow(self, slowed: Slowed, share: float, load: float) -> None:
        self.first.slowed, self.first.share, self.first.load = slowed, share, load
        if slowed == "credits":
            self.first.left_s = self.first.bucket_s

    def run(self, seconds: float) -> list[Verdict]:
        """The Verdicts of the first server."""
        verdicts: list[Verdict] = []
        for together in samples(self.servers, seconds, self.number):
            self.number += 1
            verdicts += self._judged(together)
        return verdicts

    def _judged(self, together: Sequence[Sample]) -> Iterable[Verdict]:
        return [verdict for verdict in self.judge.tick(self.first.at_s, together) if verdict.node == "s0"]


def words(verdicts: Sequence[Verdict]) -> Counter[tuple[str, str | None]]:
    return Counter((verdict.state, verdict.resource) for verdict in verdicts)


def said(verdicts: Sequence[Verdict]) -> float:
    """The share of the Verdicts that have a level."""
    return sum(verdict.own_limit_cores is not None for verdict in verdicts) / len(verdicts)


def named(verdicts: Sequence[Verdict]) -> float:
    """The share of the Verdicts that name a limit."""
    return sum(verdict.resource == "own limit" for verdict in verdicts) / len(verdicts)


class Clocked(Played):
    """A pool whose first server's clock is `mhz` by itself, whatever slows it down."""

    mhz = MHZ

    def _judged(self, together: Sequence[Sample]) -> Iterable[Verdict]:
        told = [
            msgspec.structs.replace(sample, frequency=Frequency(mean_mhz=self.mhz if sample.node == "s0" else MHZ))
            for sample in together
        ]
        return super()._judged(told)


LIMITS: list[tuple[Kind, Slowed, float]] = [
    *[("cgroup", "quota", share) for share in (0.2, 0.4, 0.6, 0.8)],
    *[("steal", "quota", share) for share in (0.2, 0.4, 0.6)],
    *[("hidden", "quota", share) for share in (0.2, 0.4)],
    *[(kind, "credits", 0.4) for kind in ("steal", "hidden")],
    *[(kind, "clock", 0.6) for kind in ("steal", "hidden")],
]


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("kind", "slowed", "share"), LIMITS)
def test_a_level_is_told_and_named_a_limit_where_facts_prove_it(
    kind: Kind, slowed: Slowed, share: float, seed: int
) -> None:
    played = Played(kind, seed, usual_quota=1.0)
    played.slow(slowed, share, max(FULL * share, 0.7))
    verdicts = played.run(15.0)[-15:]
    assert said(verdicts) >= 0.8, words(verdicts)
    level = verdicts[-1].own_limit_cores
    assert level == pytest.approx(share, rel=0.15)
    if kind == "cgroup" or slowed == "clock":
        assert words(verdicts).most_common(1)[0][0] == ("slow", "own limit")
        assert verdicts[-1].path[0].endswith("whoever else is there: a limit of its own")
    else:
        assert named(verdicts) == 0.0
        assert words(verdicts).most_common(1)[0][0][0] == "interference"
        assert verdicts[-1].path[0].endswith("or a steady neighbour")
    if slowed != "clock":
        rps = share / (played.first.cost_s + STEP_S / 2.0)  # each request ends with a step
        assert verdicts[-1].capacity_rps == pytest.approx(rps, rel=0.15)


NEIGHBOURS: list[tuple[Kind, float]] = [
    *[("cgroup", share) for share in (0.2, 0.3, 0.4)],
    *[("steal", share) for share in (0.2, 0.4, 0.6)],
    *[("hidden", share) for share in (0.2, 0.4, 0.6)],
]


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("kind", "share"), NEIGHBOURS)
def test_a_neighbour_that_leaves_as_much_is_no_limit(kind: Kind, share: float, seed: int) -> None:
    played = Played(kind, seed)
    played.slow("neighbour", share, FULL * share)
    verdicts = played.run(15.0)
    for load in (0.4 * share, FULL * share):
        played.first.load = load
        verdicts += played.run(4.0)
    assert said(verdicts) <= 0.05, words(verdicts)
    assert any(verdict.state == "interference" for verdict in verdicts)


@pytest.mark.parametrize("load", [0.55, 0.7, 0.9])
@pytest.mark.parametrize("kind", ["cgroup", "steal", "hidden"])
def test_a_neighbour_that_is_as_steady_as_a_limit_is_not_called_one(kind: Kind, load: float) -> None:
    """A hog under a fair scheduler. Nothing but facts of the kernel tells it from a limit."""
    played = Played(kind, 1)
    played.slow("fair neighbour", 0.5, load)
    verdicts = played.run(30.0)
    assert named(verdicts) == 0.0, words(verdicts)
    assert any(verdict.state == "interference" for verdict in verdicts)
    if kind != "cgroup" and load > 0.55:
        assert said(verdicts[-100:]) > 0.5, "else this neighbour is none that is steady"


@pytest.mark.parametrize(("slowed", "share"), [("neighbour", 0.4), ("fair neighbour", 0.5), ("cache", 0.5)])
@pytest.mark.parametrize("kind", ["cgroup", "steal", "hidden"])
def test_a_lower_clock_that_does_not_explain_the_loss_is_not_the_cause(
    kind: Kind, slowed: Slowed, share: float
) -> None:
    played = Clocked(kind, 2)
    played.mhz = 0.8 * MHZ
    played.slow(slowed, share, 0.6)
    verdicts = played.run(10.0)
    assert named(verdicts) == 0.0, words(verdicts)
    if (kind, slowed) != ("cgroup", "cache"):  # that fills its quota
        assert any(verdict.state == "interference" for verdict in verdicts)


@pytest.mark.parametrize("kind", ["steal", "hidden"])
def test_a_usual_clock_ends_what_a_lower_one_proved(kind: Kind) -> None:
    played = Played(kind, 2)
    played.slow("clock", 0.6, 0.7)
    assert named(played.run(8.0)[-10:]) > 0.8
    played.slow("no", 1.0, 0.35)
    played.run(30.0)
    played.slow("cache", 0.5, 0.6)
    verdicts = played.run(8.0)
    assert named(verdicts) == 0.0, words(verdicts)


def test_a_single_sample_makes_no_usual_clock() -> None:
    judge, servers = new_judge(POOL), pool("steal", 1)
    verdicts: list[Verdict] = []
    for number, together in enumerate(samples(servers, 20.0)):
        mhz = 2.0 * MHZ if number == 0 else MHZ
        told = [msgspec.structs.replace(sample, frequency=Frequency(mean_mhz=mhz)) for sample in together]
        verdicts += judge.tick(servers[0].at_s, told)
    assert said(verdicts) == 0.0


def test_a_usual_quota_that_is_full_is_overload() -> None:
    played = Played("cgroup", 1)
    played.slow("own load", 1.0, 1.5)
    assert {verdict.state for verdict in played.run(8.0)[-20:]} <= {"overload", "all_slow"}


def test_a_quota_that_was_once_full_is_not_named_for_a_later_neighbour() -> None:
    played = Played("cgroup", 1)
    played.slow("quota", 0.72, 0.9)
    assert named(played.run(8.0)[-10:]) > 0.8
    played.slow("no", 1.0, 0.3)
    played.run(60.0)
    played.slow("cache", 0.5, 0.3)
    assert named(played.run(10.0)[-30:]) == 0.0


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("load", [0.01, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("kind", ["cgroup", "steal", "hidden"])
def test_no_limit_is_named_where_there_is_none(kind: Kind, load: float, seed: int) -> None:
    """Of a machine that its own load fills no lower ceiling is seen; a cgroup that fills its quota says so."""
    played = Played(kind, seed, usual_quota=1.0)
    for server in played.servers:
        server.load = load
    verdicts = played.run(12.0)
    if kind == "cgroup" and load > 1.0:
        assert {verdict.state for verdict in verdicts if verdict.own_limit_cores} <= {"overload", "all_slow"}
    else:
        assert said(verdicts) == 0.0, words(verdicts)
    assert not any(verdict.state in ("slow", "interference") for verdict in verdicts)


def test_a_full_quota_is_named_beside_overload_and_moves_nothing_where_all_are_full() -> None:
    played = Played("cgroup", 1)
    for server in played.servers:
        server.slowed, server.share, server.load = "quota", 0.4, 0.6
    verdicts = played.run(8.0)[-10:]
    assert {(verdict.state, verdict.resource, verdict.own_limit_cores) for verdict in verdicts} <= {
        ("overload", "own limit", 0.4),
        ("all_slow", "own limit", 0.4),
    }


def test_a_relieved_server_stays_in_its_episode_until_the_limit_is_gone_or_long_not_met() -> None:
    played = Played("cgroup", 1)
    played.slow("quota", 0.3, 0.5)
    assert played.run(6.0)[-1].resource == "own limit"
    played.first.load = 0.2
    held = played.run(4.0)
    assert {(verdict.state, verdict.shown, verdict.calm_shows_within_s is not None) for verdict in held} == {
        ("slow", True, True)
    }
    played.first.slowed = "no"
    assert played.run(4.0)[-1].state == "calm", "the quota is the usual one again"


def test_the_time_doubles_for_which_calm_looks_prove_nothing() -> None:
    played = Played("cgroup", 1)
    held_s = []
    for _ in range(3):
        played.slow("quota", 0.3, 0.5)
        assert played.run(5.0)[-1].resource == "own limit"
        played.first.load = 0.1
        held = [verdict.shown for verdict in played.run(50.0)]
        held_s.append(held.index(False) * 0.2)
    assert held_s[0] < 12.0
    assert held_s[0] + 3.0 < held_s[1], "then lbengine tries it"
    assert held_s[1] + 5.0 < held_s[2]


def test_requests_that_cost_more_are_no_limit() -> None:
    for kind in ("steal", "hidden"):
        played = Played(kind, 2)
        played.slow("cache", 0.5, 0.6)
        assert said(played.run(10.0)) == 0.0


def test_five_requests_a_second_and_bursts_name_no_limit() -> None:
    for kind in ("steal", "hidden"):
        played = Played(kind, 3, cost_s=0.02, load=0.1)
        verdicts = []
        for _ in range(6):
            played.first.load = 1.5
            verdicts += played.run(1.0)
            played.first.load = 0.1
            verdicts += played.run(2.0)
        assert said(verdicts) == 0.0


def test_several_processors_have_one_limit() -> None:
    played = Played("steal", 1, processors=2)
    played.slow("quota", 0.8, 0.6)
    verdicts = played.run(12.0)[-15:]
    assert said(verdicts) >= 0.8, words(verdicts)
    assert verdicts[-1].own_limit_cores == pytest.approx(0.8, rel=0.15)


def test_a_node_that_tells_no_levels_has_no_limit() -> None:
    """What a node tells decides about itself alone: absent figures say nothing."""
    played = Played("hidden", 1)
    played.slow("quota", 0.4, 0.5)
    judge, verdicts = played.judge, []
    for together in samples(played.servers, 8.0, played.number):
        blank = [without_levels(sample) for sample in together]
        verdicts += [verdict for verdict in judge.tick(played.first.at_s, blank) if verdict.node == "s0"]
    assert said(verdicts) == 0.0
    assert np.isfinite([verdict.severity for verdict in verdicts]).all()


def without_levels(sample: Sample) -> Sample:
    return msgspec.structs.replace(sample, gaps=None, frequency=None, cpu=None)
