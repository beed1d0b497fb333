"""What scenario `all-noisy` makes of what it measured: the ratio of a round, the median of all, and a line of words."""

from __future__ import annotations

import pytest

from slackwater_lab.experiment.measures import Figures
from slackwater_lab.stories.second_stage import PHASES, allowed, median_ratio, medians, ratio, sentence


def phases(*p95_ms: float | None) -> dict[str, Figures]:
    """Figures of calm, without and with the second stage, of which only p95 counts here."""
    rest = dict.fromkeys(Figures.__annotations__.keys() - {"p95_ms"})
    return {name: Figures(p95_ms=p95_ms, **rest) for name, p95_ms in zip(PHASES, p95_ms, strict=True)}  # type: ignore[typeddict-item]


def test_the_ratio_is_p95_with_the_second_stage_over_p95_without() -> None:
    assert ratio(phases(92.0, 200.0, 140.0)) == pytest.approx(0.7)
    assert ratio(phases(None, 100.0, 130.0)) == pytest.approx(1.3), "calm has no part in it"


@pytest.mark.parametrize(("without", "with_"), [(None, 140.0), (200.0, None), (0.0, 140.0), (None, None)])
def test_a_phase_that_answered_nothing_makes_no_ratio(without: float | None, with_: float | None) -> None:
    assert ratio(phases(92.0, without, with_)) is None


def test_the_table_shows_medians_of_the_rounds_and_the_sum_of_errors() -> None:
    rounds = [{"phases": phases(1.0, p95_ms, 2.0)} for p95_ms in (10.0, 30.0, 20.0)]
    rounds[0]["phases"]["without"]["errors"], rounds[1]["phases"]["without"]["errors"] = 1, 2
    assert medians(rounds)[1] == ["without", "-", "3", "-", "-", "-", "20.0", "-"]


def test_the_median_leaves_rounds_without_a_ratio_out() -> None:
    assert median_ratio([{"ratio": 0.9}, {"ratio": None}, {"ratio": 0.5}, {"ratio": 0.6}]) == 0.6
    assert median_ratio([{"ratio": 0.5}, {"ratio": 0.7}]) == pytest.approx(0.6)
    assert median_ratio([{"ratio": None}]) is None
    assert median_ratio([]) is None


def test_a_round_is_described_in_a_few_lines() -> None:
    result = {"phases": phases(92.04, 213.0, None), "values": {"host2": "8", "host1": "16"}, "failed": 3, "ratio": None}
    assert sentence(result | {"retuned_s": 11.6}) == (
        "p95 ms calm 92.0, without 213.0, with -; with/without -; failed 3; retuned within 12 s"
        "\n  host1: 16\n  host2: 8"
    )
    assert "with/without 0.66;" in sentence(result | {"retuned_s": 1.0, "ratio": 0.657})


def test_the_hosts_may_turn_the_knobs_that_were_asked_for_and_no_others() -> None:
    assert allowed(["php_fpm.max_children", "apache.keepalive_timeout"]) == {
        "php_fpm": {"max_children": "[1, 32]"},
        "apache": {"keepalive_timeout": "[1, 120]"},
    }
