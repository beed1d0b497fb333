"""Comparisons in blocks: what is left, what a stop leaves behind, going on, and the page."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from slackwater_lab.compare import blocks, measured
from slackwater_lab.compare.blocks import Blocks, Question
from slackwater_lab.compare.defaults import DEFAULT_POLICIES, DEFAULT_ROUNDS, DEFAULT_SCENARIOS
from slackwater_lab.compare.overload import MOST_WAIT_MS
from slackwater_lab.experiment.recording import ExperimentError, Run
from tests.support.comparison_files import CARRIED, FACTS, HERE, recorded, row

POLICIES = ("leastconn", "random2", "slackwater-lb-lc")


def places(pieces: Sequence[blocks.Piece]) -> list[tuple[str, int]]:
    return [(piece.block.scenario, piece.block.round) for piece in pieces]


def test_each_policy_has_its_turn_in_a_round_in_an_order_that_the_seed_decides() -> None:
    def orders(seed: int) -> list[list[str]]:
        pieces = blocks.left([], Question(("one", "two"), POLICIES, 4, seed), HERE)
        assert places(pieces) == [(name, number) for number in range(1, 5) for name in ("one", "two")]
        assert all([run.number for run in piece.left] == [1, 2, 3] for piece in pieces)
        rounds = [blocks.turns_of(round_) for round_ in blocks.rounds_of(pieces)]
        for turns in rounds:
            assert all(sorted(run.scenario for _, run in turn.runs) == ["one", "two"] for turn in turns)
        scenarios = {tuple(run.scenario for _, run in turn.runs) for turns in rounds for turn in turns}
        assert len(scenarios) == 2, "no scenario always comes first"
        return [[turn.policy for turn in turns] for turns in rounds]

    assert all(sorted(order) == sorted(POLICIES) for order in orders(5))
    assert orders(5) == orders(5) != orders(6)
    assert len({tuple(order) for order in orders(5)}) > 1, "no policy always comes first"


def test_a_turn_is_on_hosts_of_the_same_quotas() -> None:
    (pieces,) = blocks.rounds_of(blocks.left([], Question(("one", "uneven-hosts", "two"), ("leastconn",), 1), HERE))
    turns = [[run.scenario for _, run in turn.runs] for turn in blocks.turns_of(pieces)]
    assert sorted(map(sorted, turns)) == [["one", "two"], ["uneven-hosts"]]


def test_the_last_round_has_as_many_whole_blocks_as_there_is_time_for() -> None:
    (pieces,) = blocks.rounds_of(blocks.left([], Question(("one", "two"), POLICIES, 1), HERE))
    one_s = blocks.left_s([], pieces[:1])
    for left_s, whole in ((2.0 * one_s, 2), (1.9 * one_s, 1), (one_s, 1), (0.9 * one_s, 0)):
        assert places(blocks.fitting([], pieces, left_s)) == places(pieces[:whole])


@pytest.mark.parametrize(
    ("scenarios", "policies", "says"),
    [
        (("nowhere",), POLICIES, "no scenario `nowhere`; there are: one, "),
        (("one",), ("magic",), "no policy `magic`; there are: static, "),
        (("one",), ("static", "static"), "expected each policy once"),
        (("one", "one"), POLICIES, "expected each scenario once"),
        (("one",), (), "expected one policy at least, got none"),
        ((), POLICIES, "expected one scenario at least, got none"),
    ],
)
def test_names_that_are_not_in_the_tables_are_refused(
    scenarios: Sequence[str], policies: Sequence[str], says: str
) -> None:
    with pytest.raises(ExperimentError, match=says):
        Question(scenarios, policies, rounds=1)


def test_the_lab_is_built_anew_only_between_two_applications() -> None:
    question = Question(("one", "dokuwiki", "two", "two-dokuwiki"), POLICIES, 2)
    assert places(blocks.left([], question, HERE)) == [
        *(("one", 1), ("two", 1), ("dokuwiki", 1), ("two-dokuwiki", 1)),
        *(("dokuwiki", 2), ("two-dokuwiki", 2), ("one", 2), ("two", 2)),
    ]


def test_what_is_measured_is_not_left() -> None:
    question = Question(("two",), POLICIES, 5)
    runs = [row("two", variant, number) for number in (1, 2) for variant in POLICIES]
    runs.append(row("two", "leastconn", 3, capacity_rps=800.0))
    pieces = blocks.left(runs, question, HERE)
    assert places(pieces) == [("two", 3), ("two", 4), ("two", 5)]
    assert {run.policy for run in pieces[0].left} == set(POLICIES) - {"leastconn"}
    assert pieces[0].capacity_rps == 800.0, "one load for the whole block"
    assert pieces[1].capacity_rps is None
    assert len(blocks.left(runs, question, HERE._replace(hosts="uml"))) == 5


@pytest.mark.parametrize("changed", [{"machine": "another machine"}, {"decision_commit": "code2"}])
def test_a_block_that_was_begun_elsewhere_does_not_go_on_here(changed: Mapping[str, Any]) -> None:
    """Its runs would not be compared with one another; what it has still counts."""
    runs = [row("two", variant, 1) for variant in POLICIES] + [row("two", "leastconn", 2)]
    pieces = blocks.left(runs, Question(("two",), POLICIES, 5), HERE._replace(**changed))
    assert places(pieces) == [("two", number) for number in (3, 4, 5, 6)]
    assert all(len(piece.left) == len(POLICIES) for piece in pieces)


def test_a_run_takes_as_long_as_the_same_runs_did() -> None:
    fresh = blocks.about_s([], "one", "leastconn")
    assert 15.0 < fresh < 30.0
    runs = [row("one", "leastconn", number, took_s=seconds) for number, seconds in enumerate((40.0, 15.0, 16.0), 1)]
    assert blocks.about_s(runs, "one", "leastconn") == pytest.approx(71.0 / 3)
    assert blocks.about_s(runs, "one", "random2") == pytest.approx(71.0 / 3), "another policy, for want of its own runs"
    assert blocks.about_s(runs, "two", "leastconn") == fresh


def test_three_blocks_of_eight_scenarios_with_eight_policies_take_little_more_than_an_hour() -> None:
    pieces = blocks.left([], Question(DEFAULT_SCENARIOS, DEFAULT_POLICIES, DEFAULT_ROUNDS), HERE)
    assert sum(len(piece.left) for piece in pieces) == 8 * 8 * 3
    assert blocks.left_s([], pieces) <= 65 * 60.0


class Stopped(Exception):
    """The process that measured was killed."""


@dataclass
class Bench:
    """A lab that measures at once. `ran` has (scenario, policy, requests/s); the runs in `fails` have errors; `labs`
    are the settings of each lab that was started."""

    ran: list[tuple[str, str, float]]
    fails: dict[int, Exception]
    folders: list[Path]
    labs: list[LabSettings]
    capacities: Iterator[float]
    turns: list[str] = field(default_factory=list)
    ended: int = 0
    loads: dict[int, dict[str, float]] = field(default_factory=dict)
    """Run -> load of the machine in it, where it is another one."""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench([], {}, [], [], itertools.count(1000.0, 100.0))

    class Pretended:
        def __init__(self, _lab: Any, policy: str, _scenario: Any) -> None:
            self.policy = policy
            made.turns.append(policy)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            made.ended += 1

        def play(self, run: Run, _scenario: Any, demand: Any, _capacity: float) -> Any:
            assert run.policy == self.policy
            made.ran.append((run.scenario, run.policy, demand.rate_rps))
            if error := made.fails.pop(len(made.ran), None):
                raise error
            outcome = recorded(run)
            outcome.facts["machine_load"] = made.loads.get(len(made.ran), CARRIED)
            return SimpleNamespace(recorded=outcome, save=made.folders.append)

    def start(settings: LabSettings, _progress: Any) -> Any:
        made.labs.append(settings)
        return contextlib.nullcontext(settings)

    monkeypatch.setattr(blocks, "Lab", start)
    monkeypatch.setattr(blocks, "Session", Pretended)
    monkeypatch.setattr(blocks, "aims_of", lambda _lab, _scenario: {})
    monkeypatch.setattr(blocks, "capacity_rps", lambda _lab: next(made.capacities))
    monkeypatch.setattr(machine, "describe", lambda _lab: FACTS)
    monkeypatch.setattr(machine, "version_of", lambda *_: FACTS["haproxy"])
    monkeypatch.setattr(blocks, "here", lambda hosts: HERE._replace(hosts=hosts))
    return made


def command(folder: Path, *more: str) -> list[str]:
    chosen = [part for name in POLICIES for part in ("--policy", name)]
    files = ["--data", str(folder / "data.jsonl"), "--page", str(folder / "page.md")]
    return ["compare", *files, "--scenario", "all", "--rounds", "2", *chosen, *more]


def measure(folder: Path, *more: str) -> str:
    return CliRunner().invoke(lab, command(folder, *more), catch_exceptions=False).output


def test_a_stop_in_the_middle_loses_nothing(tmp_path: Path, bench: Bench) -> None:
    out = ("--out", str(tmp_path / "out"))
    bench.fails[3] = Stopped()
    with pytest.raises(Stopped):
        measure(tmp_path, *out)
    data = tmp_path / "data.jsonl"
    assert [run.variant for run in measured.read(data)] == [policy for _, policy, _ in bench.ran[:2]]
    assert (tmp_path / "page.md").read_text().count("\n| `all` |") == 3, "two policies, and the scenario"
    with data.open("a") as file:  # the machine stopped while it wrote a line
        file.write('{"v":1,"begun":"20')
    bench.capacities = itertools.repeat(500.0)
    assert "everything is measured" in measure(tmp_path, *out)
    runs = measured.read(data)
    assert {(run.round, run.variant) for run in runs} == set(itertools.product((1, 2), POLICIES))
    assert len(runs) == 6
    rates = [{run.rate_rps for run in runs if run.round == number} for number in (1, 2)]
    assert rates == [{550.0}, {250.0}], "a block that goes on keeps its load, the next one has today's"
    assert set(bench.folders) == {tmp_path / "out" / f"cgroup-all-{number}" for number in (1, 2)}
    ran = len(bench.ran)
    measure(tmp_path, *out)
    assert len(bench.ran) == ran, "what is measured is not measured again"


def test_a_run_that_fails_is_left_and_the_others_go_on_in_a_lab_of_their_own(tmp_path: Path, bench: Bench) -> None:
    bench.fails[2] = LabError("the neighbour took too little")
    assert "1 runs are left; the same command goes on" in measure(tmp_path)
    assert len(bench.labs) == 2
    assert len(measured.read(tmp_path / "data.jsonl")) == 5
    assert bench.ended == len(bench.turns), "also the one that failed"
    bench.fails |= {number: LabError("always") for number in range(7, 20)}
    with pytest.raises(LabError):
        measure(tmp_path, "--rounds", "9")


def test_no_run_is_begun_that_would_not_fit(tmp_path: Path, bench: Bench) -> None:
    measure(tmp_path, "--minutes", "0.5")
    assert bench.ran == []
    comparison = Blocks(None, tmp_path / "data.jsonl", LabSettings(), lambda _: None)
    assert comparison.run(blocks.left([], Question(("all",), POLICIES, 2), HERE), [], 0.0) == 6


def test_a_run_that_the_machine_did_not_carry_is_repeated_once_and_counted_apart(tmp_path: Path, bench: Bench) -> None:
    bench.loads |= {number: CARRIED | {"wait_ms": MOST_WAIT_MS + 0.1} for number in (2, 5, 6)}
    printed = measure(tmp_path)
    assert printed.count("so this run does not count: processors 60% busy, a wait of 1.1 ms for one") == 3
    assert "1 runs are left; the same command goes on" in printed
    carried, overloaded = measured.parted(measured.read(tmp_path / "data.jsonl"))
    assert (len(carried), len(overloaded), len(bench.ran)) == (5, 3, 8)
    assert (
        f"**Left out**, as the machine did not carry them: `all` under `{overloaded[0].variant}`"
        in (tmp_path / "page.md").read_text()
    )
    assert "everything is measured" in measure(tmp_path)
    assert len(bench.ran) == 9, "what does not count is measured by the same command"


@pytest.mark.usefixtures("bench")
def test_progress_says_what_is_left_and_for_how_long(tmp_path: Path) -> None:
    lines = [line for line in measure(tmp_path).splitlines() if line.startswith("all, round")]
    assert len(lines) == 6
    assert lines[0].endswith("; then 5 runs are left, about 2 min")
    assert lines[-1].endswith("; then 0 runs are left, about 0 min")


@pytest.mark.usefixtures("bench")
def test_the_plan_lacks_what_was_measured(tmp_path: Path) -> None:
    assert "together 6 runs, about 2 min; 0 runs are measured" in measure(tmp_path, "--plan")
    measure(tmp_path)
    assert "together 0 runs, about 0 min; 6 runs are measured" in measure(tmp_path, "--plan")


@pytest.mark.usefixtures("bench")
def test_replay_makes_the_same_page_and_the_same_figures_from_the_data_alone(tmp_path: Path) -> None:
    result = json.loads(CliRunner().invoke(lab, command(tmp_path, "--json", "-")).stdout)
    assert (result["complete"], result["runs"], result["machine"]) == (True, 6, FACTS)
    page = (tmp_path / "page.md").read_text()
    (tmp_path / "page.md").unlink()
    replayed = ["compare", "--data", str(tmp_path / "data.jsonl"), "--page", str(tmp_path / "page.md"), "--replay"]
    again = json.loads(CliRunner().invoke(lab, [*replayed, "--rounds", "2", "--json", "-"]).stdout)
    assert again["capacity_rps"] == result["capacity_rps"] == [1100.0]
    measure(tmp_path, "--replay")
    assert (tmp_path / "page.md").read_text() == page


def test_a_comparison_cut_short_is_marked_so_everywhere(tmp_path: Path) -> None:
    for run in [row("all", policy, number) for number in (1, 2) for policy in POLICIES][:5]:
        cells.append(tmp_path / "data.jsonl", run)
    assert "CUT SHORT: 5 of 6 runs; what follows is of these only" in measure(tmp_path, "--replay")
    as_json = CliRunner().invoke(lab, command(tmp_path, "--replay", "--json", "-"))
    assert '"complete": false' in as_json.stdout


def test_another_lab_is_another_comparison(tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(tmp_path)
    ran = len(bench.ran)
    for other in (["--hosts", "4"], ["--period-ms", "5"], ["--hosts", "uml"]):
        with pytest.raises(ExperimentError, match="the data file has runs on another lab"):
            measure(tmp_path, *other)
    monkeypatch.setattr(machine, "version_of", lambda *_: "3.4.7")
    with pytest.raises(ExperimentError, match=r"the data file has runs on another lab .*3\.4\.7"):
        measure(tmp_path, "--haproxy", "haproxy-3.4")
    assert len(bench.ran) == ran


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    cells.append(data, row("all", "leastconn", 1))
    cells.append(data, msgspec.structs.replace(row("all", "leastconn", 2), v=9))
    with pytest.raises(ExperimentError, match=r"data\.jsonl, line 2: format 9; this program reads format 2"):
        measured.read(data)
    data.write_text("{}\n")
    with pytest.raises(ExperimentError, match=r"data\.jsonl, line 1: not a run of a comparison"):
        measured.read(data)
