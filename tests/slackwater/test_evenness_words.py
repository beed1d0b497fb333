"""How even a pool's servers are, in words and figures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slackwater.core.messages import Cycle, Evenness, EvennessOutcome, ServerState
from slackwater.views.evenness import evenness, max_over_mean, servers_saved, uneven_advice


def cycle(
    outcome: EvennessOutcome,
    *,
    carries: Sequence[float | None] = (1.0, 0.8, 0.6),
    advised: Sequence[int | None] = (100, 80, 60),
    baselines: Sequence[int] = (100, 100, 100),
    saved: float = 0.65,
) -> Cycle:
    servers = [
        ServerState(f"web{n}", "up", baseline, baseline, baseline, carries=part, advised=weight)
        for n, (part, weight, baseline) in enumerate(zip(carries, advised, baselines, strict=True), start=1)
    ]
    known = (0.61, 0.78, 0.61, saved) if outcome != "not_known" else ()
    return Cycle(
        1,
        "web",
        1.0,
        "act",
        False,
        "roundrobin",
        "optimal",
        "web: unchanged",
        servers,
        evenness=Evenness(outcome, *known),
    )


def test_an_uneven_pool_is_told_what_other_weights_would_gain() -> None:
    assert evenness(cycle("uneven")) == (
        "web3 carries 0.60 of what web1 carries; with weights 100, 80, 60 the fullest would be at 61% instead of 78%"
    )


def test_weights_that_differ_are_named() -> None:
    assert "web1 carries per unit of weight; " in evenness(cycle("uneven", baselines=(100, 50, 100)))


def test_weights_that_are_too_small_are_said_to_be() -> None:
    said = evenness(cycle("coarse", baselines=(1, 1, 1)))
    assert "the configured weights are too small to say so; with weights 100, 80, 60" in said


@pytest.mark.parametrize(
    ("saved", "ends"), [(0.99, "instead of 78%"), (1.2, "and 2 of the 3 servers could carry the same load")]
)
def test_whole_servers_that_could_be_saved_are_named(saved: float, ends: str) -> None:
    assert evenness(cycle("uneven", saved=saved)).endswith(ends)


def test_what_is_not_known_is_said() -> None:
    all_unknown = cycle("not_known", carries=(None, None, None), advised=(None, None, None))
    assert evenness(all_unknown) == "what each server can carry in calm is not known well enough to compare the servers"
    assert evenness(cycle("not_known", carries=(1.0, None, 0.9))).startswith("what web2 can carry in calm is not known")
    assert (max_over_mean(all_unknown), servers_saved(all_unknown)) == (None, None)
    assert evenness(None) == ""


def test_even_servers_and_least_connections_need_no_weights() -> None:
    assert evenness(cycle("even")).endswith("the mean is 61%; other weights would gain nothing")
    assert "no other weights are advised" in evenness(cycle("by_itself"))


def test_page_status_and_check_have_it_where_other_weights_would_help() -> None:
    assert uneven_advice(cycle("uneven")) == evenness(cycle("uneven"))
    assert uneven_advice(cycle("coarse")) == evenness(cycle("coarse"))
    assert [uneven_advice(cycle(outcome)) for outcome in ("even", "by_itself", "not_known")] == ["", "", ""]
    assert uneven_advice(None) == ""


def test_of_many_servers_the_weak_ones_are_named() -> None:
    many = cycle("uneven", carries=[1.0] * 8 + [0.5], advised=[100] * 8 + [50], baselines=[100] * 9)
    assert "with weights 50 for web9, and 100 for the others" in evenness(many)


def test_the_figures_are_those_of_the_metrics() -> None:
    assert max_over_mean(cycle("uneven")) == pytest.approx(0.78 / 0.61)
    assert servers_saved(cycle("uneven")) == 0.65
