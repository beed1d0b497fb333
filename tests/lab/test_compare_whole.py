"""The whole evaluation in pieces: its order, its length, going on, and a page that says what of it is missing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from lab.commands import lab
from lab.compare import compare, goals, grid, report, validation, whole
from lab.compare import comparison as plan
from lab.compare.parts import Parts, Progress
from lab.experiment import recording
from lab.experiment.policies import POLICIES
from lab.experiment.recording import ExperimentError
from lab.experiment.scenarios import SCENARIOS
from tests.support.comparison_files import LEVEL_MS, recorded

HOURS = 5.0
"""What the documents say of a quiet machine."""

RESCUES = {"slackwater-rescue", "slackwater-rescue-lc"}
"""`lab/bench/rescue.py` measures them, on a newer HAProxy."""


def test_every_scenario_and_policy_is_in_it_and_what_decides_the_goals_comes_first() -> None:
    parts = list(whole.PARTS.values())
    assert set(itertools.chain(*(part.scenarios for part in parts))) == set(SCENARIOS)
    assert set(itertools.chain(*(part.policies for part in parts))) == POLICIES.keys() - {"tail", "equalise", *RESCUES}
    assert sum(whole.minutes().values()) < 60 * HOURS
    assert parts[0].rounds >= goals.ROUNDS
    assert {"static", "leastconn", "oracle", *goals.OURS} <= set(parts[0].policies)


def test_run_often_enough_it_decides_whether_ours_is_ever_worse_than_leastconn() -> None:
    for name, policy in itertools.product(SCENARIOS, goals.OURS):
        rounds = sum(
            part.rounds
            for part in whole.PARTS.values()
            if name in part.scenarios and {policy, "leastconn"} <= set(part.policies)
        )
        assert rounds >= goals.ROUNDS_EACH, f"{name}, {policy}"


def test_what_is_simulated_and_the_peers_have_five_rounds_beside_static_and_leastconn() -> None:
    parts = [part for part in whole.PARTS.values() if "one" in part.scenarios]
    for policy in {*validation.SIMULATED, "outlier", "agent-check"} - {"static"}:
        rounds = sum(part.rounds for part in parts if {policy, "static", "leastconn"} <= set(part.policies))
        assert rounds >= goals.ROUNDS, policy
    assert any({"oracle-lc", "slackwater-lc"} <= set(part.policies) for part in parts)


def test_the_first_part_is_the_one_that_has_been_measured_since_the_first_version() -> None:
    """Its folder on disk goes on only if it asks the same."""
    assert whole.PARTS["goals"] == whole.Part(
        ("one", "one-closed"), ("static", "leastconn", "slackwater", "slackwater-lc", "oracle"), 5
    )
    runs = whole.PARTS["goals"].plan().runs
    first = [(run.scenario, run.policy) for run in runs[:7]]
    assert first == [
        ("one-closed", "leastconn"),
        ("one-closed", "slackwater-lc"),
        ("one-closed", "oracle"),
        ("one-closed", "slackwater"),
        ("one-closed", "static"),
        ("one", "slackwater-lc"),
        ("one", "static"),
    ]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two small parts and a grid of two cells, each run at once; gives what was measured."""
    ran: list[str] = []

    def run(folder: Path, made: plan.Comparison, _say: Any, until_mono_s: float) -> None:
        ran.append(folder.name)
        for one in made.runs if until_mono_s == float("inf") else made.runs[:4]:
            recording.write(folder, recorded(one))

    def measure_grid(folder: Path, asked: grid.Question, _say: Any, _until: float) -> None:
        ran.append(folder.name)
        latencies = {"requests": 9, "errors": 0} | dict.fromkeys(("rps", "mean_ms", "p50_ms", "p95_ms", "p99_ms"), 1.0)
        rows = [
            dict(zip(("round", "workers", "children"), cell, strict=True)) | {"phase": phase} | latencies
            for cell in asked.cells()
            for phase in grid.PHASES
        ]
        grid._write(folder, rows)

    parts = {
        "first": whole.Part(("one",), tuple(LEVEL_MS), 2),
        "second": whole.Part(("two",), ("static", "slackwater"), 1),
    }
    monkeypatch.setattr(whole, "PARTS", parts)
    monkeypatch.setattr(grid, "WORKERS", (8, 64))
    monkeypatch.setattr(grid, "CHILDREN", (4,))
    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr(grid, "run", measure_grid)
    monkeypatch.setattr(validation, "validate", lambda *_: {"compared": []})
    return ran


def test_a_piece_ends_in_time_and_the_next_goes_on(tmp_path: Path, small: list[str]) -> None:
    assert not whole.run(tmp_path, lambda _: None, 0.0)
    assert small == [], "no time, no run"
    assert not whole.run(tmp_path, lambda _: None, 1e12)
    assert small == ["first"]
    assert whole.progress(tmp_path) == [
        Progress("first", 4, 8, "runs"), Progress("grid", 0, 2, "cells"), Progress("second", 0, 2, "runs")
    ]  # fmt: skip
    assert whole.run(tmp_path, lambda _: None)
    assert small == ["first", "first", "grid", "second"]
    assert whole.parts(tmp_path).cut_short == ""
    assert whole.parts(tmp_path).comparisons == [tmp_path / "first", tmp_path / "second"]


def test_one_finished_part_of_two_is_cut_short_everywhere(tmp_path: Path, small: list[str]) -> None:
    """On the page, in its data, above the terminal's table, on the pictures."""
    made = compare.begin(tmp_path / "first", whole.PARTS["first"].plan())
    compare.run(tmp_path / "first", made, lambda _: None, float("inf"))
    assert small == ["first"]
    out = tmp_path / "page"
    shown = (
        CliRunner()
        .invoke(lab, ["report", "--evaluation", str(tmp_path), "--out", str(out)], catch_exceptions=False)
        .output
    )
    printed = "CUT SHORT: 8 of 10 runs, 0 of 2 cells; not whole: grid 0 of 2, second 0 of 2"
    assert shown.index(printed) < shown.index("not decided")
    page = (out / report.PAGE).read_text()
    assert page.index(printed) < page.index("<table>")
    assert f"<code>slackwater lab report --evaluation {tmp_path} --out {out}</code>" in page
    for title in ("MaxClients and pm.max_children", "Simulated", "The simulator against the lab", "The load estimator"):
        assert "Not measured" in page[page.index(f"<h2>{title}") :][:200], title
    assert "A streaming service behind LVS</h2>\n<p><b>Not measured" in page
    data = json.loads((out / report.DATA).read_text())
    assert data["complete"] is False
    assert data["cut_short"].startswith(printed)
    assert {one["part"]: (one["done"], one["planned"]) for one in data["planned"]}["second"] == (0, 2)
    with Image.open(out / "improvement-one.png") as picture:
        assert picture.text["Description"].startswith(printed)  # type: ignore[attr-defined]


def test_a_whole_evaluation_is_complete_and_its_pictures_say_nothing(tmp_path: Path, small: list[str]) -> None:
    assert whole.run(tmp_path, lambda _: None)
    assert small == ["first", "grid", "second"]
    simulated = tmp_path / "sim.json"
    simulated.write_text('{"runs": []}')
    found = report.write(whole.parts(tmp_path, (simulated,)), tmp_path / "page", None, lambda _: None)
    assert found["complete"]
    assert "CUT SHORT" not in (tmp_path / "page" / report.PAGE).read_text()
    with Image.open(tmp_path / "page/improvement-one.png") as picture:
        assert "Description" not in picture.text  # type: ignore[attr-defined]
    found = report.write(whole.parts(tmp_path), tmp_path / "page", None, lambda _: None)
    assert not found["complete"], "without the simulator it is not"


def test_a_picture_of_what_is_cut_short_shows_it(tmp_path: Path) -> None:
    from lab.compare import figures

    summary = {"runs": [{"policy": "ice", "loud": {"answers_s": at, "detections_s": None}} for at in (0.4, 0.5, 0.9)]}
    whole_one = figures.answers(summary, tmp_path / "whole.png")
    marked = figures.answers(summary, tmp_path / "marked.png", "CUT SHORT: 3 of 9 runs; and more")
    assert whole_one is not None
    assert marked is not None
    with Image.open(whole_one) as one, Image.open(marked) as other:
        assert other.height > one.height, "a line above the picture"


def test_the_command_of_a_report_names_all_that_it_was_made_of() -> None:
    parts = Parts([Path("a b"), Path("c")], [Path("s.json")], Path("g"), Path("f.json"))
    assert parts.command(Path("out")) == (
        "slackwater lab report --compare 'a b' --compare c --grid g --streaming f.json --simulated s.json --out out"
    )


def test_the_same_comparison_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="expected each comparison once"):
        report.write(Parts([tmp_path, tmp_path / "x/.."]), tmp_path / "page", None, lambda _: None)


def test_the_plan_is_reported_without_a_lab(tmp_path: Path) -> None:
    plan = CliRunner().invoke(lab, ["evaluate", "--out", str(tmp_path / "x"), "--plan"], catch_exceptions=False).output
    assert plan.splitlines()[0].startswith("goals: ")
    assert f"together about {sum(whole.minutes().values()) / 60:.1f} hours" in plan
    assert not (tmp_path / "x").exists()
