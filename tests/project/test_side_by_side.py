"""In a run of several processes the tests of one file, and all that use the machine, are in one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

TESTS = """\
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range(4))
{marks}
def test_it(n): Path(os.environ["TOLD"]).open("a").write(f"{kind} {{os.environ['PYTEST_XDIST_WORKER']}}\\n")
"""


def test_tests_that_belong_together_are_run_by_one_process(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = lab: the machine\n")
    (tmp_path / "conftest.py").write_text("from tests.support.side_by_side import register as pytest_configure\n")
    for n in range(6):
        machine = n % 2 == 0
        text = TESTS.format(marks="@pytest.mark.lab" if machine else "", kind="machine" if machine else f"file{n}")
        (tmp_path / f"test_{n}.py").write_text(text)
    record = tmp_path / "told"
    command = [sys.executable, "-m", "pytest", "--numprocesses=2", "--dist=loadgroup", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "TOLD": str(record)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    lines = record.read_text().splitlines()
    assert len(lines) == 24
    kinds = ("machine", "file1", "file3", "file5")
    by_kind = {kind: {line for line in lines if line.startswith(kind)} for kind in kinds}
    assert {kind: len(workers) for kind, workers in by_kind.items()} == dict.fromkeys(kinds, 1)
    assert len({line.split()[1] for line in lines}) == 2, "both processes had work"
