"""The detector's tools start, say what they do, and agree with the commands that they call."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from slackwater.detector.train.scores import ScoredNoise, Scores
from slackwater_lab.bench import recordings
from slackwater_lab.bench.detector import START_UNIX_S, EventLoad
from slackwater_lab.commands import record
from tests.support.paths import ROOT


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"slackwater_lab.bench.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_benchmark_judges_every_sample_and_says_on_what_machine(tmp_path: Path) -> None:
    out = tmp_path / "bench.md"
    options = "--nodes 60 --warm 5 --seconds 2 --rounds 1 --hour 2 --minutes 0.6"
    printed = run("detector", *options.split(), "--write", str(out))
    row = next(line for line in printed.splitlines() if line.startswith("| 60 | 1 |"))
    assert 500 <= int(row.split("|")[3]) <= 700
    medians = next(line for line in printed.splitlines() if line.startswith("| 60 | "))
    assert medians.endswith("| 1 of 1 |"), "one node of a hundred, at least one, has a neighbour, and is found"
    assert "Memory (MiB resident) of 2 nodes over 0.6 minutes' 360 Samples" in printed
    assert "after 0.6 min" in printed
    assert "Machine: " in printed
    assert "--nodes 60" in printed
    assert printed.strip() in out.read_text()


def test_the_benchmark_by_event_has_a_tenth_of_the_nodes_in_episodes_and_finds_them() -> None:
    load = EventLoad(nodes=120, calm_s=10.0)
    sent = list(itertools.takewhile(lambda item: item[0] < 40.0, load))
    times_s = [at_s for at_s, _ in sent]
    assert times_s == sorted(times_s)
    assert len(load.loud(35.0)) == 10, "5 of the 6 s of an episode, of 60"
    mine = [msgspec.json.decode(raw) for _, raw in sent if b'"node":"node80"' in raw]
    assert [sample["seq"] for sample in mine] == list(range(len(mine)))
    covered_s = [sample["period_s"] for sample in mine]
    assert {covered_s[0], min(covered_s), max(covered_s)} == {1.0, 0.05}, "seldom in calm, at once in an episode"
    assert sum(covered_s) == pytest.approx(mine[-1]["time_unix_s"] - START_UNIX_S + 1.0 - 80 / 120, abs=0.01)
    printed = run("detector", *["--by-event", "--nodes", "60", "--warm", "40", "--seconds", "2", "--rounds", "1"])
    row = next(line for line in printed.splitlines() if line.startswith("| 60 | "))
    assert row.endswith("| 5 of 5 |")


def test_the_plan_of_fresh_recordings_has_options_that_the_lab_knows_and_sets_that_differ() -> None:
    plan = recordings
    for scene in plan.SCENES:
        record.make_context("record", ["--out", "x.parquet", "--seconds", "200", *shlex.split(scene.options)])
    seeds = [scene.options.split("--seed ")[1].split()[0] for scene in plan.SCENES]
    assert len(set(seeds)) == len(seeds)
    train, fresh, guests = (
        " ".join(scene.options for scene in plan.SCENES if scene.name.startswith(name))
        for name in ("train/", "fresh/", "guests/")
    )
    assert "--app" not in train
    assert "--app dokuwiki" in fresh
    for kind in plan.OTHER_KINDS:
        assert f"--noise {kind}" in fresh
        assert f"--noise {kind}" not in train, "two kinds are only scored, never trained on"
    for virtual_machines in (train, guests):
        assert "--hosts uml" in virtual_machines
    assert "--hosts" not in fresh


def test_what_is_recorded_already_is_not_recorded_again(tmp_path: Path) -> None:
    plan = recordings
    assert len(list(plan.missing(tmp_path))) == len(plan.SCENES)
    first = tmp_path / f"{plan.SCENES[0].name}.parquet"
    first.parent.mkdir()
    first.touch()
    assert [scene for scene, _ in plan.missing(tmp_path)] == list(plan.SCENES[1:])
    printed = run("recordings", "--plan", "--out", str(tmp_path))
    assert printed.startswith(f"{len(plan.SCENES) - 1} recordings to make: about ")
    assert plan.SCENES[0].name not in printed


def test_each_set_has_hours_of_calm_and_the_whole_plan_takes_at_most_four() -> None:
    plan = recordings
    nodes, noisy_s, calm_s = 3, 200.0, 1800.0
    for name in ("train/", "fresh/", "guests/"):
        calm = [scene for scene in plan.SCENES if scene.name.startswith(name) and "--calm" in scene.options]
        assert nodes * sum(scene.seconds(noisy_s, calm_s) for scene in calm) >= 3600.0
    assert sum(scene.seconds(noisy_s, calm_s) + plan.OVERHEAD_S for scene in plan.SCENES) <= 4 * 3600


def test_the_page_shows_each_kind_and_each_disturbance_with_counts(tmp_path: Path) -> None:
    plan = recordings
    noises = [
        ScoredNoise("disk", 1.0, None, 2.0),
        ScoredNoise("disk", 1.0, 0.6, 2.0),
        ScoredNoise("cpu", 1.0, 0.4, 9.0),
    ]
    scores = Scores(noises=noises, calm_node_hours=1.0, false_episodes=1)
    scores.disturbed_node_s["reload"], scores.false_during["reload"] = 600.0, 1
    for name in plan.JUDGED:
        path = tmp_path / f"scores-{name}.json"
        path.write_text(json.dumps({**scores.as_dict(), "trained_on": ["cpu"]}))
    tail = {"paae": 0.2, "r2": 0.7, "rows": 30, "learning_curve": [[0.1, 0.5, 0.2], [1.0, 0.1, 0.9]]}
    for app in plan.APPS:
        (tmp_path / f"tail-{app}.json").write_text(json.dumps({"random forest": tail, "SVM": tail}))
    printed = plan.page(tmp_path)
    for line in (
        "| shipped | 3 | 1 | 0.5 | 0.59 | 1 | 1.00 | 114 |",
        "| disk | no | 2 | 2.0 | 2 | 1 | 0.6 | 0.6 |",
        "| cpu | yes | 1 | 9.0 | 1 | 1 | 0.4 | 0.4 |",
        "| reload | 600, 1 | 600, 1 |",
        "| nothing | 3000, 0 | 3000, 0 |",
        "| application, estimator | rows | PAAE | R2 | 10% | 100% |",
        "| dokuwiki, SVM | 30 | 0.20 | 0.70 | 0.50 | 0.10 |",
    ):
        assert line in printed
