"""A neighbour of a virtual machine is found with the shipped model, whose tree knows the lab's hosts alone."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from slackwater.core.messages import Verdict
from slackwater.detector.classify.tree import SHIPPED, Model, load
from slackwater.detector.judge import Judge
from tests.support.seeds import seeds
from tests.support.synthetic_guest import APACHE_PHP_FPM, LOUD, PERIOD_S, QUICK_PAGES, Guests, Shape, Steal

CALM_TICKS, NOISY_TICKS = 600, 100
WITHIN_S: dict[Steal, float] = {"reported": 1.5, "hidden": 2.0}


@cache
def shipped() -> Model:
    return load(SHIPPED)


def verdicts(judge: Judge, guests: Guests, ticks: int) -> list[Verdict]:
    return [verdict for now_s, samples in guests.ticks(ticks) for verdict in judge.tick(now_s, samples)]


@pytest.mark.parametrize("steal", list(WITHIN_S))
@pytest.mark.parametrize("shape", [QUICK_PAGES, APACHE_PHP_FPM], ids=["quick-pages", "apache-php-fpm"])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_neighbour_of_a_guest_is_found_and_nothing_elsewhere(seed: int, shape: Shape, steal: Steal) -> None:
    judge = Judge("web", stale_after_s=3.0, calm_dwell_s=2.0, model=shipped())
    guests = Guests(shape, steal, seed)
    assert {verdict.state for verdict in verdicts(judge, guests, CALM_TICKS)} == {"calm"}
    guests.noisy = True
    judged = verdicts(judge, guests, NOISY_TICKS)
    beside = [verdict for verdict in judged if verdict.node == LOUD]
    assert {verdict.state for verdict in judged if verdict.node != LOUD} == {"calm"}
    first = next(number for number, verdict in enumerate(beside) if verdict.state == "interference")
    assert (first + 1) * PERIOD_S <= WITHIN_S[steal], "the first Verdict, from the neighbour's first Sample on"
    assert Counter(verdict.state for verdict in beside)["interference"] >= NOISY_TICKS - first - 1
    began = beside[first].path
    assert not any(line.startswith("run delay") and "(>= " in line for line in began[:1])
    assert any("response time" in line or "steal" in line or "CPU time per request" in line for line in began)
    guests.noisy = False
    after = [verdict for verdict in verdicts(judge, guests, 50) if verdict.node == LOUD]
    assert after[-1].state == "calm", "10 s after its end"
