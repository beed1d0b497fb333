"""The detector's tools start, say what they do, and agree with the commands that they call."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    for scene in (*plan.TRAINED, *plan.FRESH):
        record.make_context("record", ["--out", "x.parquet", "--seconds", "300", *shlex.split(scene.options)])
    trained, fresh = ([scene.options for scene in scenes] for scenes in (plan.TRAINED, plan.FRESH))
    assert not set(trained) & set(fresh)
    seeds = [option.split("--seed ")[1] for option in (*trained, *fresh)]
    assert len(set(seeds)) == len(seeds)
    assert "recordings to train on" in run("lab_recordings", "--plan")


@pytest.mark.parametrize("name", ["bench_detector", "lab_recordings"])
def test_the_tools_help(name: str) -> None:
    assert "usage:" in run(name, "--help")
