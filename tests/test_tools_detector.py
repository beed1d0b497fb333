"""The detector's tools start, say what they do, and agree with the commands that they call."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from lab.commands import record

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TOOLS / f"{name}.py"), *arguments],
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
    said = run("bench_detector", *options.split(), "--write", str(out))
    row = next(line for line in said.splitlines() if line.startswith("| ") and "Samples" not in line)
    number, samples, *_, loud = [cell.strip() for cell in row.strip("|").split("|")]
    assert number == "1"
    assert 500 <= int(samples) <= 700
    assert loud == "1", "one node of a hundred, at least one, has a neighbour, and is found"
    assert "Memory (MiB resident) of 2 nodes over 0.6 minutes' 360 Samples" in said
    assert "after 0.6 min" in said
    assert "Machine: " in said
    assert "--nodes 60" in said
    assert said.strip() in out.read_text()


def test_the_plan_of_fresh_recordings_has_options_that_the_lab_knows_and_two_sets_that_differ() -> None:
    plan = tool("lab_recordings")
    for scene in plan.SCENES:
        record.make_context("record", ["--out", "x.parquet", "--seconds", "200", *shlex.split(scene.options)])
    seeds = [scene.options.split("--seed ")[1].split()[0] for scene in plan.SCENES]
    assert len(set(seeds)) == len(seeds)
    train, fresh = (
        " ".join(scene.options for scene in plan.SCENES if scene.name.startswith(name)) for name in ("train/", "fresh/")
    )
    assert "--app" not in train
    assert "--app dokuwiki" in fresh
    for kind in plan.OTHER_KINDS:
        assert f"--noise {kind}" in fresh
        assert f"--noise {kind}" not in train, "two kinds are only scored, never trained on"


def test_what_is_recorded_already_is_not_recorded_again(tmp_path: Path) -> None:
    plan = tool("lab_recordings")
    assert len(list(plan.missing(tmp_path))) == len(plan.SCENES)
    first = tmp_path / f"{plan.SCENES[0].name}.parquet"
    first.parent.mkdir()
    first.touch()
    assert [scene for scene, _ in plan.missing(tmp_path)] == list(plan.SCENES[1:])
    said = run("lab_recordings", "--plan", "--out", str(tmp_path))
    assert said.startswith(f"{len(plan.SCENES) - 1} recordings of 200 s to make: about ")
    assert plan.SCENES[0].name not in said


def test_the_whole_plan_takes_at_most_forty_minutes_and_each_part_less_than_five() -> None:
    plan = tool("lab_recordings")
    part_s = 200 + plan.OVERHEAD_S
    assert part_s < 300
    assert len(plan.SCENES) * part_s <= 40 * 60
