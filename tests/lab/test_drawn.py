"""Scenarios that are drawn from a seed, in the simulator and in the lab."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slackwater_lab.commands import lab
from slackwater_lab.compare import drawn, simulate_commands
from slackwater_lab.compare.blocks import Question
from slackwater_lab.compare.tables import worst
from slackwater_lab.experiment import drawn as in_lab
from slackwater_lab.experiment.recording import ExperimentError
from slackwater_lab.sim import drawn as simulated
from slackwater_lab.sim.setup import Setup
from tests.support.judges import shipped

PLAYERS = ("leastconn", "static", "peak-ewma")


@given(seed=st.integers(0, 10**6), number=st.integers(0, 10**4))
def test_a_drawn_scenario_is_the_same_for_the_same_seed_and_can_be_run(seed: int, number: int) -> None:
    setup = simulated.scenario(seed, number)
    assert setup == simulated.scenario(seed, number)
    assert setup != simulated.scenario(seed + 1, number)
    assert setup.episodes() or setup.episode_s > 0.0
    scenario = in_lab.drawn(seed, number)
    assert scenario == in_lab.named(f"random-{seed}-{number}")
    assert scenario.neighbours
    for neighbour in scenario.neighbours:
        assert 0.0 <= neighbour.begin_s < neighbour.end_s <= scenario.seconds
        assert neighbour.lost in in_lab.TAKEN[neighbour.kind]
    for host in scenario.hosts:
        mine = [neighbour for neighbour in scenario.neighbours if neighbour.host == host]
        assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(mine)), "one at a time beside a host"


def test_names_that_are_not_drawn_are_of_the_table() -> None:
    assert in_lab.named("one") is not None
    assert in_lab.named("random-1") is None
    with pytest.raises(ExperimentError, match="no scenario `random-x-1`"):
        Question(("random-x-1",), ("leastconn",), 1)
    assert in_lab.names(7, 3) == ["random-7-0", "random-7-1", "random-7-2"]
    Question(in_lab.names(7, 3), ("leastconn",), 1)


def test_a_scenario_of_the_table_is_had_at_another_load_too() -> None:
    usual, other = in_lab.named("two"), in_lab.named("two@30")
    assert usual is not None
    assert other is not None
    assert (usual.load, other.load, other.neighbours) == (0.5, 0.3, usual.neighbours)
    assert other.description == f"{usual.description}, at 30% load"
    flooded = in_lab.named("two+flood@30")
    assert flooded is not None
    assert flooded.load == 0.3
    assert {(neighbour.kind, neighbour.lost) for neighbour in flooded.neighbours} == {("flood", None)}
    assert flooded.hosts == usual.hosts
    for unknown in ("two@", "two@0", "two@100", "nothing@30", "two+nothing", "nothing+cpu"):
        assert in_lab.named(unknown) is None


def test_what_was_played_is_kept_and_the_rest_is_played_later(tmp_path: Path) -> None:
    first = drawn.run(tmp_path, 3, 2, PLAYERS, shipped(), print)
    assert [scenario.number for scenario in first] == [0, 1]
    with (tmp_path / drawn.DATA).open("a") as file:
        file.write('{"number": 2, "cut')
    again = drawn.run(tmp_path, 3, 3, PLAYERS, shipped(), print)
    assert [scenario.number for scenario in again] == [0, 1, 2]
    assert again[:2] == first
    assert drawn.read(tmp_path, 4, 3, PLAYERS) == [], "of another seed"
    assert drawn.read(tmp_path, 3, 3, (*PLAYERS, "knapsack")) == [], "by others"
    assert drawn.read(tmp_path, 3, 3, PLAYERS[:2]) == again
    with pytest.raises(ExperimentError, match="expected leastconn among them"):
        drawn.run(tmp_path, 3, 1, ("static",), shipped(), print)

    summary = drawn.summary(again, 5, PLAYERS)
    assert (summary["asked"], summary["played"], summary["seed"]) == (5, 3, 3)
    assert summary["players"]["leastconn"]["p95_ms"]["median"] == 1.0
    assert summary["players"]["leastconn"]["p95_ms"]["worse"] == 0
    ratios = [row["ratio"]["second_means_median_ms"] for row in summary["worst"]["static"]]
    assert ratios == sorted(ratios, reverse=True)
    assert len(drawn.tables(summary, ("static",))) == 2


def test_requests_without_an_answer_count_as_long_as_they_waited() -> None:
    setup = Setup(servers=2, load=0.9, noisy=0.5, taken=0.9, episode_s=0.0, seconds=10.0, warm_up_s=2.0)
    felt = simulated.play(setup, ("static",), shipped())["players"]["static"]
    assert felt["unanswered_share"] > 0.1
    assert felt["p99_ms"] > 5000.0


def test_those_that_are_asked_for_play_beside_leastconn(tmp_path: Path) -> None:
    assert set(simulate_commands.PLAYERS) == simulated.PLAYERS.keys()
    asked = ["simulate", "--random", "1", "--player", "static", "--out", str(tmp_path), "--json", "-"]
    done = CliRunner().invoke(lab, asked)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["players"].keys() == {"leastconn", "static"}


def test_the_page_has_the_players_their_worst_and_the_command(tmp_path: Path) -> None:
    page, names = tmp_path / "page.md", ("slackwater-lb-lc", "slackwater-lb-random", "random2")
    players = [word for name in names for word in ("--player", name)]
    asked = ["simulate", "--random", "1", *players, "--out", str(tmp_path), "--page", str(page)]
    done = CliRunner().invoke(lab, asked)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "\n| `random2` | " in text
    assert text.count("\n| **`slackwater-lb-lc`** | ") == 2, "against its balance alone, and against leastconn"
    for ours, alone in (("lc", "leastconn"), ("random", "random2")):
        assert f"\n| **`slackwater-lb-{ours}`** | `{alone}` | " in text
    assert "\n| `leastconn` |" not in text
    assert text.count("\n| 0 | ") == 2, "the worst of Slackwater's players alone"
    assert "\nslackwater lab simulate --random 1 " in text
    assert "--out FOLDER" in text
    summary = drawn.summary(drawn.read(tmp_path, 1, 1, ("leastconn", "random2")), 2, ("leastconn", "random2"))
    assert "**CUT SHORT**: 1 of 2 scenarios." in drawn.page(summary, (), "command")


def test_the_command_refuses_what_is_drawn_and_what_is_missing(tmp_path: Path) -> None:
    for arguments, wrong in (
        (["--random", "2"], "--out is missing"),
        (["--random", "2", "--out", str(tmp_path), "--load", "0.5"], "loads is drawn with --random"),
        (["--random", "2", "--player", "nobody"], "'nobody' is not one of 'static'"),
        (["--out", str(tmp_path)], "expected --random with them"),
        (["--player", "static"], "expected --random with them"),
        (["--page", str(tmp_path / "page")], "expected --random with them"),
    ):
        done = CliRunner().invoke(lab, ["simulate", *arguments])
        assert done.exit_code == 2
        assert wrong in done.output
    both = CliRunner().invoke(lab, ["compare", "--random", "2", "--scenario", "one", "--data", str(tmp_path / "data")])
    assert both.exit_code == 2
    assert "expected no --scenario with it" in both.output


def test_the_worst_of_a_comparison_are_shown_first() -> None:
    def cell(scenario: str, ratio: float) -> dict[str, object]:
        ratios = {"leastconn": {"second_means_median_ms": {"value": ratio}}}
        return {"scenario": scenario, "policy": "slackwater", "ratio": ratios}

    table = worst([cell("a", 0.9), cell("b", 1.4), {**cell("c", 9.0), "policy": "other"}], "slackwater")
    assert list(table.columns[0].cells) == ["b", "a"]
    assert list(table.columns[1].cells) == ["+40%", "-10%"]
    assert table.title == "slackwater, 2 scenarios: 1 worse and 0 better by more than 10%"
