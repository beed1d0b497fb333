"""What the page of all results says of the shipped model is what the model itself says, and what the page of the calm
fleet says."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.support.paths import ROOT


def test_the_results_have_both_counts_of_false_episodes_as_their_sources_have_them() -> None:
    results = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| false episodes a node-day(.*)$", results)
    explain = [sys.executable, "-m", "slackwater.controller.cli.main", "detector", "explain", "--json"]
    done = subprocess.run(explain, cwd=ROOT, capture_output=True, text=True, check=True)
    scores = json.loads(done.stdout)["scores"]["tree"]
    low, high = scores["false_episodes_per_node_day_interval"]
    (goal,) = re.findall(r"(?m)^\| `slackwater detector explain` \|(.*)$", results)
    assert f"{scores['false_episodes']} in {scores['calm_node_hours']:.2g} node-hours" in goal
    assert f"{scores['false_during']['nothing']} of them while nothing was done" in goal
    calm = (ROOT / "docs/results/calm.md").read_text(encoding="utf-8")
    ((times, days, episodes, interval),) = re.findall(
        r"(?m)^\| all \| (\d+) \| ([\d.]+) \| (\d+) \| [\d.]+ \| (.*?) \|$", calm
    )
    assert f"{episodes} in {float(days):.3g} node-days ({24 * float(days):.1f} node-hours)" in goal
    assert f"with {times} deploys" in goal
    assert f"{interval}; {low:.1f} to {high:.1f} (95%)" in row


EVALUATION, *_ = (ROOT / "docs/results/evaluation.md").read_text(encoding="utf-8").split("\n## On HAProxy ")
"""Without the section of an older HAProxy."""
COLUMNS = {"`leastconn`": 1, "`random(2)`": 2, "nginx's `least_time`": 3, "alone": 4, "with monitors": 5}
"""Who has which column of the evaluation's tables."""


def one_of_three(figure: str) -> dict[str, str]:
    """The figures of scenario `one` in ms: who -> figure."""
    table = EVALUATION.partition(f"## {figure}, ms")[2]
    (row,) = re.findall(r"(?m)^(\| `one`: .*)$", table.partition("\n## ")[0])
    return {who: re.sub(r"[^\d.]", "", row.split(" | ")[column]) for who, column in COLUMNS.items()}


def test_the_results_begin_with_the_evaluations_figures() -> None:
    results = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    mean, p99 = one_of_three("Mean"), one_of_three("p99")
    (felt,) = re.findall(r"(?m)^\| \[one of three noisy\](.*)$", results)
    assert f"{mean['alone']} and {p99['alone']} ms without monitors, {mean['with monitors']} and" in felt
    assert f"and {p99['with monitors']} ms with; alone:" in felt
    for peer in ("`random(2)`", "`leastconn`", "nginx's `least_time`"):
        assert f"{peer} {mean[peer]} and {p99[peer]} ms" in felt
    (times,) = re.findall(r"(?m)^\| the same: \[first lower weight(.*)$", results)
    for who, words in (("alone", "without monitors"), ("with monitors", "with")):
        ((first, back),) = re.findall(
            rf"(?m)^\| `one` \| Slackwater {who}, `leastconn` \| ([\d.]+) \| ([\d.]+) \|", EVALUATION
        )
        assert f"{float(first):.2f} and {float(back):.1f} s {words}" in times


def test_the_readme_has_the_evaluations_and_the_guests_figures() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    p99 = {who: round(float(ms)) for who, ms in one_of_three("p99").items()}
    assert (
        f"at most {p99['alone']} ms with Slackwater on the balancer's host alone, and {p99['`leastconn`']} ms" in readme
    )
    guests = (ROOT / "docs/results/guests.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| `one`: (.*)$", guests.partition("## p99, ms")[2].partition("\n## ")[0])
    stock, monitors, alone = (round(float(re.sub(r"[^\d.]", "", cell))) for cell in row.split(" | ")[1:4])
    assert f"{alone} ms and {stock}, and {monitors} ms with a small program" in readme
    (row,) = re.findall(r"(?m)^\| `all`: (.*)$", guests.partition("## Mean, ms")[2].partition("\n## ")[0])
    stock_ms, monitors_ms, alone_ms = (re.sub(r"[^\d.]", "", cell) for cell in row.split(" | ")[1:4])
    assert f"machines took {alone_ms} ms on average instead of {stock_ms}, with monitors {monitors_ms}" in readme
    (lab, lab_runs), (of_guests, guests_runs) = wrong_moves(EVALUATION, "alone"), wrong_moves(guests, "alone")
    wrongly = f"{lab} times in {lab_runs} runs, and {of_guests} times in {guests_runs} in virtual machines"
    assert f"wrongly lowered a weight {wrongly}; with monitors never, and once" in readme
    assert (wrong_moves(EVALUATION, "with monitors")[0], wrong_moves(guests, "with monitors")[0]) == ("0", "1")


def wrong_moves(page: str, who: str) -> tuple[str, str]:
    """How often a weight fell without a neighbour under `leastconn`, and in how many runs."""
    goal = rf"(?m)^\| Slackwater {who}, `leastconn`: no weight falls without a neighbour \|.*\| (\d+) in (\d+) runs"
    ((moves, runs),) = re.findall(goal, page)
    return moves, runs
