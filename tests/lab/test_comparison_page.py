"""The page of a comparison: rows, ratios with their intervals, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slackwater_lab.compare import comparison, comparison_page, results
from slackwater_lab.compare.defaults import DEFAULT_POLICIES, DEFAULT_SCENARIOS
from slackwater_lab.compare.measured import Measured
from slackwater_lab.compare.overload import MOST_LATE_MS, MOST_WAIT_MS, RunLoad
from slackwater_lab.compare.tables import WORST
from tests.support.comparison_files import FACTS, row, rows

LOUD = {
    "requests": 1000,
    **{"mean_ms": 1.0, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 5.0, "second_means_median_ms": 1.0},
    **{"errors_share": 0.0, "answers_s": 0.4, "detected_s": None, "back_s": 2.0, "not_back": 0.0, "wrong_moves": 0},
    "errors": 0,
}


USUAL = "\nslackwater lab compare --data data --page page"
ALONE, WATCHED = "Slackwater alone, `leastconn`", "Slackwater with monitors, `leastconn`"


def goal(runs: Sequence[Measured], words: str) -> comparison.Goal:
    (line,) = [line for line in comparison.goals(results.cells(runs)) if words in line.question]
    return line


def lines(runs: Sequence[Measured], begin: str) -> list[list[str]]:
    """The cells of the page's table rows that begin so."""
    page = comparison_page.page(runs, "data", "page")
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(begin)]


def test_the_fastest_peer_is_bold_and_ours_is_marked_where_it_is_surely_faster_or_slower() -> None:
    times = {"leastconn": 2.0, "nginx-least-time": 3.0, "oracle-lc": 0.5, "slackwater-lb-lc": 1.0, "slackwater-lc": 2.5}
    assert lines(rows("one", times), "| scenario | `leastconn`")[0][1:] == [
        *("`leastconn`", "nginx's `least_time`", "oracle, `leastconn`", ALONE, WATCHED),
    ]
    mean, p95, p99 = lines(rows("one", times), "| `one`: one of three noisy |")
    assert mean[1:] == ["**12.7**", "19.2", "3.2", "6.3 ✓", "16.0 ✗"]
    assert p99[1] == "**63.4**"
    assert p95[-1] == "40.0 ✗"


def test_what_is_not_sure_has_no_mark() -> None:
    runs = rows("all", {"leastconn": 1.0})
    runs += [row("all", "slackwater-lb-lc", number, 1.2 + 0.3 * (number % 2)) for number in range(1, 6)]
    assert not any("✓" in cell or "✗" in cell for cells in lines(runs, "| `all`: all noisy |") for cell in cells)
    assert lines(runs, f"| {ALONE} |")[0] == [ALONE, "0 of 3", "0", "3"]


def test_the_page_begins_with_how_often_a_peer_wins() -> None:
    runs = rows("one", {"leastconn": 2.0, "nginx-least-time": 1.5, "slackwater-lb-lc": 1.0})
    runs += rows("all", {"leastconn": 1.5, "nginx-least-time": 1.0, "slackwater-lb-lc": 1.2})
    assert lines(runs, f"| {ALONE} |")[0] == [ALONE, "3 of 6", "3: `all` mean, p95, p99", "0"]
    assert lines(runs, f"| `one` | {ALONE} | 0.67")[0][2] == "0.67 [0.65, 0.68] ✓, nginx's `least_time`"
    assert lines(runs, f"| `one` | {ALONE} | 0.50 [")[0][2] == "0.50 [0.49, 0.51] ✓", "of its own balancer"
    assert goal(runs, "than `leastconn`'s").word == "yes"
    assert goal(runs, "than the fastest peer's").word == "**no**"
    assert goal(runs, "than the fastest peer's").measured == "sure in 3 of 6; surely slower: `all` mean, p95, p99"


def test_what_only_watches_and_what_knows_are_no_peers() -> None:
    runs = rows("one", {"leastconn": 2.0, "observed-lc": 1.5, "oracle-lc": 1.0, "slackwater-lb-lc": 1.05})
    assert comparison.fastest_peer(results.cells(runs), "one", "mean_ms") == "leastconn"
    assert goal(runs, "to the oracle at most 1.1 times").word == "yes"
    slower = rows("one", {"leastconn": 2.0, "oracle-lc": 1.0, "slackwater-lb-lc": 1.3})
    assert goal(slower, "to the oracle").measured == "1.30; above in 3 of 3: `one` mean, p95, p99"


def test_runs_of_different_blocks_are_no_pair() -> None:
    mine = [row("one", "slackwater-lb-lc", number, decision_commit="code2") for number in range(1, 6)]
    theirs = [row("one", "leastconn", number) for number in range(1, 6)]
    assert comparison.standings(results.cells([*mine, *theirs])) == []


def test_two_blocks_have_no_interval_and_the_page_says_so() -> None:
    runs = rows("one", {"leastconn": 2.0, "slackwater-lb-lc": 1.0}, rounds=2)
    (standing,) = comparison.standings(results.cells(runs))
    assert [str(pair) for pair in standing.ratios] == ["0.50"] * 3
    assert {pair.blocks for pair in standing.ratios} == {2}
    assert goal(runs, "than the fastest peer's").word == "not sure"
    assert "**Too few blocks (2) for an interval**" in comparison_page.page(runs, "data", "page")


def test_an_interval_on_both_sides_of_the_limit_is_not_sure() -> None:
    runs = rows("all", {"leastconn": 1.0})
    runs += [row("all", "slackwater-lb-lc", number, 1.2 + 0.3 * (number % 2)) for number in range(1, 6)]
    assert goal(runs, "than `leastconn`'s").word == "not sure"


def test_the_p99_counts_where_one_of_three_is_slow() -> None:
    times = {"leastconn": 4.0, "slackwater-lb-lc": 1.0}
    runs = [run for name in ("one", "two", "load-80", "all") for run in rows(name, times)]
    line = goal(runs, "one of three slow: p99 to its own balancer's at most 0.3 times")
    assert (line.word, line.measured) == ("yes", "0.25")
    slower = runs + rows("bursts", {"leastconn": 2.0, "slackwater-lb-lc": 1.0})
    line = goal(slower, "one of three slow: p99")
    assert (line.word, line.measured) == ("**no**", "0.25 to 0.50; above in 1 of 3: `bursts` p99")


def test_beside_monitors_full_pools_are_asked_for_more_than_others() -> None:
    times = {"leastconn": 2.0, "slackwater-lc": 1.0, "slackwater-lb-lc": 0.9}
    runs = [run for name in ("one", "all") for run in rows(name, times)]
    assert goal(runs, "one of three slow: to that with monitors at most 1.15 times").word == "yes"
    assert goal(runs, f"{WATCHED}, in `all` and `load-80`: to that alone at most 1 times").word == "**no**"


def test_no_cell_is_longer_than_a_person_reads() -> None:
    """Where all figures of all scenarios are slower, some are named and the others counted."""
    times = {"leastconn": 1.0, "oracle-lc": 0.9, "slackwater-lb-lc": 2.0, "slackwater-lc": 1.5}
    runs = [run for name in DEFAULT_SCENARIOS for run in rows(name, times)]
    cells = [cell for line in lines(runs, "|") for cell in line]
    assert max(map(len, cells)) <= 150
    assert lines(runs, f"| {ALONE} |")[0][2].startswith("24: `one` mean, p95, p99; ")
    assert lines(runs, f"| {ALONE} |")[0][2].endswith("; and 4 more")


def test_requests_that_failed_are_named() -> None:
    runs = rows("one", {"leastconn": 2.0, "slackwater-lb-lc": 1.0})
    assert "\nNo request failed.\n" in comparison_page.page(runs, "data", "page")
    failed = [*runs, row("one", "random2", 1, loud={**LOUD, "errors": 5})]
    page = comparison_page.page(failed, "data", "page")
    assert "\nRequests that failed beside the neighbours: `one` under `random(2)` 0.50%. No others did.\n" in page


def test_runs_on_another_haproxy_have_a_section_and_are_in_no_other_figure() -> None:
    runs = rows("one", {"leastconn": 2.0, "slackwater-lc": 1.0})
    older = rows("two", {"slackwater-lc": 1.0}) + rows("one", {"leastconn": 4.0, "slackwater-lc": 1.0})
    page = comparison_page.page(runs, "data", "page", others={"older.jsonl": older})
    before, after = page.split("\n## On HAProxy 2.6\n")
    assert "0.25 [" not in before
    assert f"| `one` | {WATCHED} | 5 | 6.4 | 16.0 | 32.0 | 0.25 [" in after
    assert after.index("| `one` | ") < after.index("| `two` | "), "in the usual order"
    assert "\nslackwater lab compare --data older.jsonl --scenario one " in after
    assert " --also older.jsonl --minutes 40\n" in after


def test_drawn_scenarios_have_a_page_of_their_own() -> None:
    names = [f"random-7-{number}" for number in range(12)]
    times = {"leastconn": 2.0, "slackwater-lc": 1.0}
    runs = [run for name in names[:11] for run in rows(name, times, rounds=1)]
    runs += rows(names[11], {"leastconn": 1.0, "slackwater-lc": 1.5}, rounds=1)
    page = comparison_page.page(runs, "data", "page")
    assert page.startswith("# Drawn scenarios in the lab\n")
    assert f"| {WATCHED} | mean | 12 | 11 | 1 | 0.55 [0.45, 0.68] |" in page
    (worst, *others) = [line for line in page.splitlines() if " → " in line and line.startswith("| ")]
    assert worst.startswith("| 11 | ")
    assert len(others) == WORST - 1
    assert "--data data --page page --random 12 --seed 7 --policy leastconn --policy slackwater-lc --minutes" in page


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
    assert f" | 0.40 | {shown} | 0 |" in comparison_page.page(runs, "data", "page")


def test_wrong_moves_are_counted_over_all_blocks() -> None:
    runs = [
        row("one", "slackwater-lb-lc", number, loud={**LOUD, "wrong_moves": number, "answers_s": 0.9})
        for number in (0, 1, 2)
    ] + [row("one", "leastconn", number) for number in (0, 1, 2)]
    assert goal(runs, "no weight falls").measured == "3 in 3 runs: `one` 3"
    assert goal(runs, "no weight falls").word == "**no**"
    assert goal(runs, "first lower weight").measured == "0.90 s; later in 1 of 1"
    assert goal(runs, "first lower weight").word == "**no**"


def test_the_page_says_which_states_of_the_decision_code_were_mixed() -> None:
    runs = [row("all", "leastconn", 1), row("all", "leastconn", 2, decision_commit="code2")]
    page = comparison_page.page(runs, "data", "page")
    assert "was in 2 states, and the figures mix them:** code1, code2." in page


def test_the_page_has_the_command_that_measured_it() -> None:
    facts = {**FACTS, "haproxy_command": "haproxy-3.4"}
    page = comparison_page.page([row("one", "leastconn", 1, machine=facts)], "data", "page")
    assert f"{USUAL} --haproxy haproxy-3.4 --scenario one --policy leastconn --rounds 1 --minutes 40\n" in page
    page = comparison_page.page([row(name, "random2", 1) for name in ("dokuwiki", "two", "one")], "data", "page")
    assert "--scenario one --scenario two --scenario dokuwiki --policy random2 --rounds 1 --minutes 40\n" in page
    whole = [row(name, policy, 1) for name in DEFAULT_SCENARIOS for policy in DEFAULT_POLICIES]
    page = comparison_page.page(whole, "data", "page")
    assert f"{USUAL} --rounds 1 --minutes 40\n" in page


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
