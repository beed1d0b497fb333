"""The evaluation in pieces: what is left, what a stop leaves behind, the page, and the goals."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from slackwater_lab import cells
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.lab import LabSettings
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.commands import lab
from slackwater_lab.compare import blocks, evaluation_page, goals, measured
from slackwater_lab.compare.blocks import Blocks, Piece
from slackwater_lab.compare.evaluation import VARIANTS, question
from slackwater_lab.compare.measured import Block, Measured
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.recording import ExperimentError, Run
from slackwater_lab.experiment.scenarios import SCENARIOS
from tests.support.comparison_files import FACTS, HERE, recorded, row, rows


def left(
    measured: Sequence[Measured], scenarios: Sequence[str], here: Block, variants: Sequence[str] = ()
) -> list[Piece]:
    """What is left of the evaluation."""
    return blocks.left(measured, question(), here, question().only(scenarios, variants))


def test_every_scenario_and_policy_is_in_it() -> None:
    assert set(VARIANTS) == set(SCENARIOS)
    on_a_page_of_their_own = {name for name in POLICIES if name.startswith("slackwater-lb-")}
    assert set(itertools.chain(*VARIANTS.values())) == POLICIES.keys() - on_a_page_of_their_own
    for name, variants in VARIANTS.items():
        assert {goals.OURS, goals.STOCK} <= set(variants), name
        assert len(set(variants)) == len(variants), name
    for ours, oracles in goals.ORACLES.items():
        assert {ours, *oracles} <= set(VARIANTS["one"])
        assert {ours, oracles[0]} <= set(VARIANTS["two"]) & set(VARIANTS["two-dokuwiki"])


def test_a_block_has_all_variants_in_an_order_that_only_its_round_decides() -> None:
    pieces = left([], ("two",), HERE)
    assert [piece.block.round for piece in pieces] == [1, 2, 3, 4, 5]
    orders = [[run.policy for run in piece.left] for piece in pieces]
    assert all(sorted(order) == sorted(VARIANTS["two"]) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    elsewhere = left([], ("two",), HERE._replace(machine="another", decision_commit="code2"))
    assert [[run.policy for run in piece.left] for piece in elsewhere] == orders


def test_what_is_measured_is_not_left() -> None:
    runs = [row("two", variant, number) for number in (1, 2) for variant in VARIANTS["two"]]
    runs.append(row("two", "leastconn", 3, capacity_rps=800.0))
    pieces = left(runs, ("two",), HERE)
    assert [piece.block.round for piece in pieces] == [3, 4, 5]
    assert {run.policy for run in pieces[0].left} == set(VARIANTS["two"]) - {"leastconn"}
    assert pieces[0].capacity_rps == 800.0, "one load for the whole block"
    assert pieces[1].capacity_rps is None
    vm = left(runs, ("two",), HERE._replace(hosts="vm"))
    assert len(vm) == 5
    with pytest.raises(ExperimentError, match="no scenario `three`; there are: two, "):
        left([], ("three",), HERE)


def test_some_variants_are_measured_first_and_the_others_go_on_in_their_blocks() -> None:
    some = ("leastconn", "slackwater-lc")
    runs = [row("two", variant, 1) for variant in VARIANTS["two"]] + [row("two", "leastconn", 2, capacity_rps=800.0)]
    pieces = left(runs, ("two",), HERE, some)
    assert [piece.block.round for piece in pieces] == [2, 3, 4, 5]
    assert [{run.policy for run in piece.left} for piece in pieces] == [{"slackwater-lc"}, *[set(some)] * 3]
    runs += [row("two", run.policy, piece.block.round, seed=piece.seed) for piece in pieces for run in piece.left]
    assert left(runs, ("two",), HERE, some) == []
    rest = left(runs, ("two",), HERE)
    assert [piece.block.round for piece in rest] == [2, 3, 4, 5]
    assert all({run.policy for run in piece.left} == set(VARIANTS["two"]) - set(some) for piece in rest)
    assert [piece.seed for piece in rest[1:]] == [piece.seed for piece in pieces[1:]], "the order of the block is kept"


def test_a_scenario_without_the_variants_has_nothing_left() -> None:
    assert {piece.block.scenario for piece in left([], (), HERE, ("observed-lc",))} == {"load-80"}
    with pytest.raises(ExperimentError, match="no variant `best`; there are: leastconn, "):
        left([], (), HERE, ("best",))


def test_each_scenario_has_a_round_before_any_has_its_next() -> None:
    runs = [row("all", variant, 1) for variant in VARIANTS["all"]]
    pieces = left(runs, ("all", "two", "bursts"), HERE)
    assert [(piece.block.scenario, piece.block.round) for piece in pieces][:5] == [
        *(("two", 1), ("bursts", 1)),
        *(("all", 2), ("two", 2), ("bursts", 2)),
    ]


@pytest.mark.parametrize("changed", [{"machine": "another machine"}, {"decision_commit": "code2"}])
def test_a_block_that_was_begun_elsewhere_does_not_go_on_here(changed: dict[str, Any]) -> None:
    """Its runs would not be compared with one another; what it has still counts."""
    runs = [row("two", variant, 1) for variant in VARIANTS["two"]] + [row("two", "leastconn", 2)]
    pieces = left(runs, ("two",), HERE._replace(**changed))
    assert [piece.block.round for piece in pieces] == [3, 4, 5, 6]
    assert all(len(piece.left) == len(VARIANTS["two"]) for piece in pieces)


class Stopped(Exception):
    """Whoever measured was killed."""


@dataclass
class Bench:
    """A lab that measures at once: `ran` has (scenario, variant, requests/s); the runs in `fails` have errors.

    `folders` are those of the recordings."""

    ran: list[tuple[str, str, float]]
    fails: dict[int, Exception]
    folders: list[Path]
    capacities: Iterator[float]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench([], {}, [], itertools.count(1000.0, 100.0))

    def one_run(_lab: Any, run: Run, _scenario: Any, demand: Any, _capacity: float) -> Any:
        made.ran.append((run.scenario, run.policy, demand.rate_rps))
        if error := made.fails.pop(len(made.ran), None):
            raise error
        return SimpleNamespace(recorded=recorded(run), save=made.folders.append)

    monkeypatch.setattr(blocks, "Lab", lambda settings, _say: contextlib.nullcontext(settings))
    monkeypatch.setattr(blocks, "one_run", one_run)
    monkeypatch.setattr(blocks, "capacity_rps", lambda _lab: next(made.capacities))
    monkeypatch.setattr(machine, "describe", lambda _lab: FACTS)
    monkeypatch.setattr(blocks, "here", lambda hosts: HERE._replace(hosts=hosts))
    monkeypatch.setattr(goals, "ROUNDS", 2)
    return made


def measure(folder: Path, *more: str) -> str:
    arguments = ["evaluate", "--data", str(folder / "data.jsonl"), "--page", str(folder / "page.md"), *more]
    return CliRunner().invoke(lab, arguments, catch_exceptions=False).output


def test_a_stop_in_the_middle_loses_nothing(tmp_path: Path, bench: Bench) -> None:
    run = ("--out", str(tmp_path / "out"), "--scenario", "all")
    bench.fails[3] = Stopped()
    with pytest.raises(Stopped):
        measure(tmp_path, *run)
    data = tmp_path / "data.jsonl"
    assert [run.variant for run in measured.read(data)] == [variant for _, variant, _ in bench.ran[:2]]
    assert "2 of 5 rounds" not in (tmp_path / "page.md").read_text()
    with data.open("a") as file:  # the machine stopped while it wrote a line
        file.write('{"v":1,"begun":"20')
    bench.capacities = itertools.repeat(500.0)
    assert "everything is measured" in measure(tmp_path, *run)
    runs = measured.read(data)
    assert len(runs) == 8
    assert {(run.round, run.variant) for run in runs} == set(itertools.product((1, 2), VARIANTS["all"]))
    rates = [{run.rate_rps for run in runs if run.round == number} for number in (1, 2)]
    assert rates == [{550.0}, {250.0}], "a block that goes on keeps its load, the next one has today's"
    assert set(bench.folders) == {tmp_path / "out" / f"cgroup-all-{number}" for number in (1, 2)}
    ran = len(bench.ran)
    measure(tmp_path, *run)
    assert len(bench.ran) == ran, "what is measured is not measured again"


def test_a_run_that_fails_is_left_and_the_others_go_on(tmp_path: Path, bench: Bench) -> None:
    bench.fails[2] = LabError("the neighbour took too little")
    assert "1 runs are left; the same command goes on" in measure(
        tmp_path, "--out", str(tmp_path / "out"), "--scenario", "all"
    )
    assert len(measured.read(tmp_path / "data.jsonl")) == 7
    bench.fails |= {number: LabError("always") for number in range(9, 20)}
    with pytest.raises(LabError):
        measure(tmp_path, "--out", str(tmp_path / "out"), "--scenario", "two")


def test_no_run_is_begun_that_would_not_fit(tmp_path: Path, bench: Bench) -> None:
    measure(tmp_path, "--out", str(tmp_path / "out"), "--minutes", "0.5")
    assert bench.ran == []
    evaluate = Blocks(tmp_path / "out", tmp_path / "data.jsonl", LabSettings(), lambda _: None)
    assert evaluate.run(left([], ("all",), HERE), [], 0.0) == 8


@pytest.mark.usefixtures("bench")
def test_the_plan_lacks_what_was_measured(tmp_path: Path) -> None:
    def plan() -> list[list[str]]:
        return [line.split() for line in measure(tmp_path, "--plan").splitlines()]

    runs = 2 * sum(map(len, VARIANTS.values()))
    assert ["all", "2", "8"] in [words[:3] for words in plan()]
    assert plan()[-1][:3] == ["together", str(runs), "runs,"]
    measure(tmp_path, "--out", str(tmp_path / "out"), "--scenario", "all")
    assert "all" not in [words[0] for words in plan() if words]
    assert plan()[-1][:3] == ["together", str(runs - 8), "runs,"]
    assert plan()[-1][-4:] == ["8", "runs", "are", "measured"]


@pytest.mark.usefixtures("bench")
def test_replay_makes_the_same_page_from_the_data_alone(tmp_path: Path) -> None:
    measure(tmp_path, "--out", str(tmp_path / "out"), "--scenario", "all")
    page = (tmp_path / "page.md").read_text()
    (tmp_path / "page.md").unlink()
    measure(tmp_path, "--replay")
    assert (tmp_path / "page.md").read_text() == page
    command = f"slackwater lab evaluate --out evaluation-run --data {tmp_path}/data.jsonl --page {tmp_path}/page.md"
    assert f"`{command} --scenario all`; Test CPU, 2 cores, 32 MiB last-level cache, Linux 6.1; commit " in page
    assert "| `outlier` | roundrobin | 2 of 2 | " in page
    assert "| `all` | 2 of 2 | 1." in page
    assert "its last commit is code1." in page
    assert "mix them" not in page


def test_the_page_says_which_states_of_the_decision_code_were_mixed() -> None:
    runs = [row("all", "leastconn", 1), row("all", "leastconn", 2, decision_commit="code2")]
    page = evaluation_page.page(runs, "data", "page")
    assert "was in 2 states, and the figures mix them:** its last commits were code1 (1 runs), code2 (1 runs)." in page


def test_nothing_measured_is_a_page_too() -> None:
    page = evaluation_page.page([], "data", "page")
    assert "**Nothing is measured yet.**" in page
    assert "slackwater lab evaluate --out evaluation-run --data data --page page --minutes 50" in page
    assert all(goal.word == "not measured yet" for goal in goals.of_lab([]))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    cells.append(data, row("all", "leastconn", 1))
    cells.append(data, msgspec.structs.replace(row("all", "leastconn", 2), v=9))
    with pytest.raises(ExperimentError, match=r"data\.jsonl, line 2: format 9; this program reads format 1"):
        measured.read(data)
    data.write_text("{}\n")
    with pytest.raises(ExperimentError, match=r"data\.jsonl, line 1: not a run of the evaluation"):
        measured.read(data)


def states(runs: list[Measured]) -> dict[str, str]:
    return {goal.question: goal.word for goal in goals.of_lab(measured.as_runs(runs))}


STOCK = "each scenario against stock `leastconn`: mean, p95, p99"
BETTER = "`two`, `all`, `load-80`, `bursts`, `stress`, `mixed`, `devices` against stock `leastconn`: mean, p95, p99"
BEST = "each scenario against its best peer: mean, p95, p99"


def everything(ours: float) -> list[Measured]:
    times = {"leastconn": 2.0, "slackwater-lc": ours, "outlier": 1.5}
    return [run for name in SCENARIOS for run in rows(name, times)]


def test_a_clear_win_is_reached() -> None:
    """Rounds differ by half; variants of a round do not."""
    words = states(everything(1.0))
    assert (words[STOCK], words[BETTER], words[BEST]) == ("reached",) * 3


def test_as_good_as_stock_is_no_better_and_worse_than_the_best_peer() -> None:
    words = states(everything(2.0))
    assert (words[STOCK], words[BETTER], words[BEST]) == ("reached", "NOT reached", "NOT reached")
    line = next(goal for goal in goals.of_lab(measured.as_runs(everything(2.0))) if goal.question == BEST)
    assert "surely not: `one` mean 1.3" in line.measured
    assert "`outlier`'s" in line.measured


def test_one_clear_loss_is_enough() -> None:
    runs = [run for run in everything(1.0) if run.scenario != "long"]
    runs += rows("long", {"leastconn": 1.0, "slackwater-lc": 1.5})
    assert states(runs)[STOCK] == "NOT reached"
    assert states(runs)[BETTER] == "reached", "it is none of those"


def test_too_little_data_decides_nothing_and_a_wide_interval_is_not_sure() -> None:
    runs = [run for run in everything(1.0) if (run.scenario, run.round) != ("two", 5)]
    assert (states(runs)[STOCK], states(runs)[BETTER]) == ("not measured yet",) * 2
    line = next(goal for goal in goals.of_lab(measured.as_runs(runs)) if goal.question == STOCK)
    assert line.measured == "sure: 54 of 54 figures; of 5 rounds: `two` 4"
    wide = rows("all", {"leastconn": 1.0})
    wide += [row("all", "slackwater-lc", number, times) for number, times in enumerate((1, 1, 1, 1, 3), start=1)]
    runs = [run for run in everything(1.0) if run.scenario != "all"] + wide
    line = next(goal for goal in goals.of_lab(measured.as_runs(runs)) if goal.question == STOCK)
    assert line.word == "NOT reached"
    assert line.measured.startswith("not sure: `all` mean ")


def test_runs_of_different_blocks_are_not_compared() -> None:
    mine = [row("one", "slackwater-lc", number, decision_commit="code2") for number in range(1, 6)]
    theirs = [row("one", "leastconn", number) for number in range(1, 6)]
    assert goals.against(measured.as_runs(mine + theirs), "one", goals.OURS, (goals.STOCK,), "p99_ms").rounds == 0


def test_near_the_oracle_counts_the_better_one_by_balance() -> None:
    times = {"slackwater": 1.2, "slackwater-lc": 1.08, "oracle-split": 1.0, "oracle-split-lc": 1.0}
    runs = [run for name in ("one", "two", "two-dokuwiki") for run in rows(name, times | {"oracle-lc": 0.9})]
    words = states(runs)
    assert words["`two`, roundrobin, against the oracle: mean, p95"] == "NOT reached"
    assert words["`two`, leastconn, against the oracle: mean, p95"] == "NOT reached", "1.2 times the one that drains"
    assert words["`one`, roundrobin, against the oracle: p99"] == "reached"
    runs = [run for run in runs if run.variant != "oracle-lc"]
    words = states(runs)
    assert words["`two-dokuwiki`, leastconn, against the oracle: mean, p95"] == "reached"
    assert words["`one`, leastconn, against the oracle: p99"] == "reached"
    assert words["`one`, leastconn, against calm: p99"] == "NOT reached", "each round is slower than the one before"
    assert states(rows("one", {"slackwater-lc": 0.6}))["`one`, leastconn, against calm: p99"] == "reached"


def test_what_the_oracle_reaches_against_calm_stands_beside_ours_and_decides_nothing() -> None:
    runs = rows("one", {"slackwater-lc": 0.6, "oracle-lc": 2.0})
    line = next(goal for goal in goals.of_lab(measured.as_runs(runs)) if "against calm" in goal.question)
    assert line.word == "reached"
    assert "; `oracle-lc`: p99 " in line.measured
