"""The whole evaluation in pieces: its order, its length, going on, and a page of what there is."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from comparison_files import LEVEL_MS, recorded

from evaluation import compare, goals, grid, plan, recording, whole
from evaluation.policies import POLICIES
from evaluation.scenarios import SCENARIOS
from lab.commands import lab


def test_every_scenario_and_policy_is_in_it_each_scenario_once_and_it_fits_a_night() -> None:
    scenarios = list(itertools.chain(*(part.scenarios for part in whole.PARTS.values())))
    assert sorted(scenarios) == sorted(SCENARIOS)
    assert set(itertools.chain(*(part.policies for part in whole.PARTS.values()))) == set(POLICIES)
    assert sum(whole.minutes().values()) < 150.0
    first = next(iter(whole.PARTS.values()))
    assert first.rounds >= goals.ROUNDS, "what decides the goals comes first"
    assert {"static", "leastconn", "oracle", *goals.OURS} <= set(first.policies)


def test_a_piece_ends_in_time_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(folder: Path, made: plan.Plan, _say: Any, until_mono_s: float) -> None:
        ran.append(folder.name)
        for one in made.runs if until_mono_s == float("inf") else made.runs[:4]:
            recording.write(folder, recorded(one))

    def measure_grid(folder: Path, asked: grid.Question, _say: Any, _until: float) -> None:
        ran.append(folder.name)
        told = {"requests": 9, "errors": 0} | dict.fromkeys(("rps", "mean_ms", "p50_ms", "p95_ms", "p99_ms"), 1.0)
        rows = [
            dict(zip(("round", "workers", "children"), cell, strict=True)) | {"phase": phase} | told
            for cell in asked.cells()
            for phase in grid.PHASES
        ]
        grid._write(folder, rows)

    small = {
        "first": whole.Part(("one",), tuple(LEVEL_MS), 2),
        "second": whole.Part(("two",), ("static", "slackwater"), 1),
    }
    monkeypatch.setattr(whole, "PARTS", small)
    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr(grid, "run", measure_grid)
    assert whole.measured(tmp_path) == []
    assert not whole.run(tmp_path, lambda _: None, 0.0)
    assert ran == [], "no time, no run"
    assert not whole.run(tmp_path, lambda _: None, 1e12)
    assert ran == ["first"]
    assert whole.measured(tmp_path) == [tmp_path / "first"]
    assert whole.run(tmp_path, lambda _: None)
    assert ran == ["first", "first", "second", "grid"]
    assert whole.measured(tmp_path) == [tmp_path / "first", tmp_path / "second"]


def test_the_plan_is_told_without_a_lab(tmp_path: Path) -> None:
    said = CliRunner().invoke(lab, ["evaluate", "--out", str(tmp_path / "x"), "--plan"], catch_exceptions=False).output
    assert said.splitlines()[0].startswith("goals: ")
    assert "together about 2." in said
    assert not (tmp_path / "x").exists()
