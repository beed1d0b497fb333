"""The page of a comparison: rows, ratios with their intervals, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slackwater_lab.compare import comparison, comparison_page, results
from slackwater_lab.compare.measured import Measured
from slackwater_lab.compare.overload import MOST_LATE_MS, MOST_WAIT_MS, RunLoad
from tests.support.comparison_files import FACTS, row, rows

LOUD = {
    "requests": 1000,
    **{"mean_ms": 1.0, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 5.0, "second_means_median_ms": 1.0},
    **{"errors_share": 0.0, "answers_s": 0.4, "detected_s": None, "back_s": 2.0, "not_back": 0.0, "wrong_moves": 0},
}


def goal(runs: Sequence[Measured], words: str) -> comparison.Goal:
    (line,) = [line for line in comparison.goals(results.cells(runs)) if words in line.question]
    return line


def test_a_row_has_the_medians_and_a_pair_has_the_ratio_of_its_blocks() -> None:
    runs = rows("one", {"leastconn": 2.0, "slackwater-lb-lc": 1.0, "slackwater-lc": 1.0})
    page = comparison_page.page(runs, "data", "page")
    assert "| `one` | `leastconn` | 5 | 12.7 | 31.7 | 63.4 | 0.40 | - | 0 |" in page
    line = next(
        line for line in page.splitlines() if line.startswith("| `slackwater-lb-lc` | `leastconn` | `one` | 5 |")
    )
    assert line.count("0.50 [0.49, 0.51]") == 3
    pairs = [(pair.policy, pair.other) for pair in comparison.pairs(results.cells(runs))]
    assert pairs == [
        *(("slackwater-lb-lc", "leastconn"), ("slackwater-lb-lc", "slackwater-lc")),
        ("slackwater-lc", "leastconn"),
    ]


def test_slackwater_is_shown_beside_other_balancers_and_asked_to_be_no_slower() -> None:
    runs = rows("one", {"leastconn": 2.0, "nginx-least-time": 0.8, "oracle-lc": 0.5, "slackwater-lb-lc": 1.0})
    made = [(pair.policy, pair.other) for pair in comparison.pairs(results.cells(runs))]
    assert made == [
        *(("nginx-least-time", "leastconn"), ("oracle-lc", "leastconn")),
        *(("slackwater-lb-lc", other) for other in ("leastconn", "nginx-least-time", "oracle-lc")),
    ]
    assert goal(runs, "`nginx-least-time`: no figure is slower").word == "**no**"
    assert not [line for line in comparison.goals(results.cells(runs)) if "oracle" in line.question]


def test_runs_of_different_blocks_are_no_pair() -> None:
    mine = [row("one", "slackwater-lb-lc", number, decision_commit="code2") for number in range(1, 6)]
    theirs = [row("one", "leastconn", number) for number in range(1, 6)]
    assert comparison.pairs(results.cells([*mine, *theirs])) == []


def test_a_ratio_is_within_its_interval_and_two_blocks_have_none() -> None:
    runs = rows("one", {"leastconn": 2.0, "slackwater-lb-lc": 1.0}, rounds=2)
    ((pair,), (words,)) = (made := comparison.pairs(results.cells(runs))), [str(made[0].ratios["one"]["p99_ms"])]
    assert words == "0.50"
    assert goal(runs, "no figure is slower").word == "not sure"
    assert pair.ratios["one"]["p99_ms"].blocks == 2


def test_faster_everywhere_is_a_yes_and_one_that_is_surely_slower_a_no() -> None:
    faster = rows("one", {"leastconn": 2.0, "slackwater-lb-lc": 1.0})
    assert goal(faster, "no figure is slower").word == "yes"
    slower = faster + rows("all", {"leastconn": 1.0, "slackwater-lb-lc": 1.2})
    line = goal(slower, "no figure is slower")
    assert line.word == "**no**"
    assert line.measured.startswith("sure in 3 of 6 figures; surely slower: `all` mean 1.20 [")


def test_an_interval_on_both_sides_of_the_limit_is_not_sure() -> None:
    runs = rows("all", {"leastconn": 1.0})
    runs += [row("all", "slackwater-lb-lc", number, 1.2 + 0.3 * (number % 2)) for number in range(1, 6)]
    line = goal(runs, "no figure is slower")
    assert line.word == "not sure"
    assert line.measured.endswith("not sure: `all` mean, p95, p99")


def test_the_p99_counts_where_one_of_three_is_slow() -> None:
    times = {"leastconn": 4.0, "slackwater-lb-lc": 1.0}
    runs = [run for name in ("one", "two", "load-80", "all") for run in rows(name, times)]
    line = goal(runs, "one of three slow: p99 at most 0.3 times")
    assert line.word == "yes"
    assert [part.split()[0] for part in line.measured.split("], ")] == ["`one`", "`load-80`"]


def test_beside_monitors_full_pools_are_asked_for_more_than_others() -> None:
    times = {"slackwater-lc": 1.0, "slackwater-lb-lc": 1.1}
    runs = [run for name in ("one", "all") for run in rows(name, times)]
    assert goal(runs, "`slackwater-lc`, one of three slow: at most 1.15 times").word == "yes"
    assert goal(runs, "`slackwater-lc` in `all` and `load-80` at most 1 times").word == "**no**"


@pytest.mark.parametrize(
    ("back", "shown"),
    [
        ([2.0, 3.0, 4.0], "3.0"),
        ([2.0, 3.0, None], "3.0 (1 of 3 later than 8)"),
        ([2.0, None, None], "> 8"),
    ],
)
def test_a_way_back_that_was_not_seen_to_its_end_counts_as_later(back: Sequence[float | None], shown: str) -> None:
    runs = [
        row("one", "slackwater-lb-lc", number, loud={**LOUD, "back_s": back_s, "not_back": float(back_s is None)})
        for number, back_s in enumerate(back, start=1)
    ]
    assert f"| 0.40 | {shown} | 0 |" in comparison_page.page(runs, "data", "page")


def test_wrong_moves_are_counted_over_all_blocks() -> None:
    runs = [
        row("one", "slackwater-lb-lc", number, loud={**LOUD, "wrong_moves": number, "answers_s": 0.9})
        for number in (0, 1, 2)
    ]
    assert goal(runs, "no weight falls").measured == "3 in 3 runs: `one` 3"
    assert goal(runs, "no weight falls").word == "**no**"
    assert goal(runs, "first lower weight").measured == "`one` 0.90 s"
    assert goal(runs, "first lower weight").word == "**no**"


def test_the_page_says_which_states_of_the_decision_code_were_mixed() -> None:
    runs = [row("all", "leastconn", 1), row("all", "leastconn", 2, decision_commit="code2")]
    page = comparison_page.page(runs, "data", "page")
    assert "was in 2 states, and the figures mix them:** code1, code2." in page


def test_the_page_has_the_command_that_measured_it() -> None:
    facts = {**FACTS, "haproxy_command": "haproxy-3.4"}
    page = comparison_page.page([row("one", "leastconn", 1, machine=facts)], "data", "page")
    assert "\nslackwater lab compare --data data --page page --haproxy haproxy-3.4 --rounds 1 --minutes 40\n" in page
    page = comparison_page.page([row(name, "random2", 1) for name in ("dokuwiki", "two", "one")], "data", "page")
    assert "--page page --scenario one --scenario two --scenario dokuwiki --rounds 1 --minutes 40\n" in page


def test_the_page_says_what_was_left_out_and_how_near_the_rest_came_to_the_limits() -> None:
    runs = [row("two", "leastconn", 1), row("two", "leastconn", 2, machine_load=RunLoad(0.62, 0.44, 1.26))]
    assert "Of 1 runs it was not recorded" in comparison_page.page(runs, "data", "page")
    overloaded = [row("two", "leastconn", 2, machine_load=RunLoad(0.99, 4.0, 1.0))] * 2
    page = comparison_page.page(runs[1:], "data", "page", overloaded)
    assert "**Left out**, as the machine did not carry them: `two` under `leastconn` 2." in page
    assert (
        "busy for at most 62%, a process waited at most 0.4 ms for one, and\nthe generator was at most 1.3 ms late"
        in page
    )


def test_a_run_above_a_limit_was_not_carried() -> None:
    assert RunLoad(1.0, MOST_WAIT_MS, MOST_LATE_MS).is_carried
    assert not RunLoad(0.5, MOST_WAIT_MS + 0.01, 0.0).is_carried
    assert not RunLoad(0.5, 0.0, MOST_LATE_MS + 0.01).is_carried


def test_nothing_measured_is_a_page_too() -> None:
    page = comparison_page.page([], "data", "page")
    assert "**Nothing is measured yet.**" in page
    assert "slackwater lab compare --data data --page page --minutes 40" in page
