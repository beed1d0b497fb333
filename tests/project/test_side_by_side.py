"""In a run of several processes the tests of one file, of one group, and all that use the machine, are in one of them,
and tests that must be alone are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.real_cgroup import lacks
from tools.run_tests import DISTRIBUTION

TESTS = """\
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range(4))
{marks}
def test_it(n): Path(os.environ["TOLD"]).open("a").write(f"{kind} {{os.environ['PYTEST_XDIST_WORKER']}}\\n")
"""


ALONE = """\
import os, time
from pathlib import Path
import pytest

RUNNING = Path(os.environ["TOLD"])

@pytest.mark.parametrize("n", range(10))
{marks}
def test_it(n):
    mine = RUNNING / f"{kind}.{{os.environ['PYTEST_XDIST_WORKER']}}"
    mine.touch()
    try:
        for _ in range(20):
            others = {{file.name for file in RUNNING.iterdir()}} - {{mine.name}}
            assert not any("{kind}" == "alone" or name.startswith("alone") for name in others), others
            if others:
                (RUNNING.parent / "together").touch()
            time.sleep(0.001)
    finally:
        mine.unlink()
"""


def run(folder: Path, tests: list[str], told: Path) -> None:
    """These files of tests, by two processes. Raises CalledProcessError when one fails."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  lab: the machine\n  alone: no other\n  slow: minutes\n")
    (folder / "conftest.py").write_text("from tests.support.side_by_side import register as pytest_configure\n")
    for n, text in enumerate(tests):
        (folder / f"test_{n}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "--numprocesses=2", *DISTRIBUTION, "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'lab'}", "TOLD": str(told)}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def test_tests_that_belong_together_are_run_by_one_process(tmp_path: Path) -> None:
    machine = TESTS.format(marks="@pytest.mark.lab", kind="machine")
    rollouts = TESTS.format(marks='@pytest.mark.lab\n@pytest.mark.xdist_group("rollouts")', kind="rollouts")
    tests = [machine, TESTS.format(marks="", kind="file1"), rollouts, machine, TESTS.format(marks="", kind="file4")]
    record = tmp_path / "told"
    run(tmp_path, [*tests, rollouts], record)
    lines = record.read_text().splitlines()
    assert len(lines) == 24
    kinds = ("machine", "rollouts", "file1", "file4")
    by_kind = {kind: {line for line in lines if line.startswith(kind)} for kind in kinds}
    assert {kind: len(workers) for kind, workers in by_kind.items()} == dict.fromkeys(kinds, 1)
    assert len({line.split()[1] for line in lines}) == 2, "both processes had work"


def test_while_one_that_must_be_alone_runs_no_other_does(tmp_path: Path) -> None:
    alone = ALONE.format(marks="@pytest.mark.alone", kind="alone")
    running = tmp_path / "running"
    running.mkdir()
    run(tmp_path, [alone if n == 2 else ALONE.format(marks="", kind="other") for n in range(6)], running)
    assert (tmp_path / "together").exists(), "the others run side by side"


CGROUP = """\
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range(2))
{marks}
def test_it(n):
    cgroups = Path("/proc/self/cgroup").read_text().split()
    Path(os.environ["TOLD"]).open("a").write(" ".join(["{kind}", *cgroups]) + "\\n")
"""


@pytest.mark.skipif(bool(lacks()), reason=lacks())
def test_a_slow_test_beside_the_machine_s_has_a_low_weight_and_the_next_one_has_not(tmp_path: Path) -> None:
    marks = {"slow": "@pytest.mark.slow", "machine": "@pytest.mark.slow\n@pytest.mark.lab", "other": ""}
    record = tmp_path / "told"
    kinds = ("other", "slow", "machine", "other")
    run(tmp_path, [CGROUP.format(marks=marks[kind], kind=kind) for kind in kinds], record)
    lines = record.read_text().splitlines()
    low = {(line.split()[0], "/slow-tests-" in line) for line in lines}
    assert low == {("slow", True), ("machine", False), ("other", False)}


def test_what_takes_longest_begins_first(tmp_path: Path) -> None:
    files = [TESTS.format(marks="", kind=f"file{n}") for n in range(3)]
    rollouts = TESTS.format(marks='@pytest.mark.xdist_group("rollouts")', kind="rollouts")
    record = tmp_path / "told"
    run(tmp_path, [*files, rollouts, TESTS.format(marks="@pytest.mark.lab", kind="machine")], record)
    first = {line.split()[1]: line.split()[0] for line in reversed(record.read_text().splitlines())}
    assert set(first.values()) == {"machine", "rollouts"}, "of each process"
