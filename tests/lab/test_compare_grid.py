"""The grid of MaxClients and pm.max_children: its order, its file, going on, its figure; and the real thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lab.commands import lab
from lab.compare import grid, report
from lab.experiment.recording import ExperimentError
from tests.support.real_lab import needs_lab, run_lab


def row(cell: tuple[int, int, int], phase: str, mean_ms: float | None) -> dict[str, Any]:
    times = dict.fromkeys(("mean_ms", "p50_ms", "p95_ms", "p99_ms"), mean_ms)
    place = dict(zip(("round", "workers", "children"), cell, strict=True))
    return place | {"phase": phase, "requests": 100, "errors": 0, "rps": 50.0} | times


def measured(folder: Path, cells: int | None = None) -> grid.Question:
    """In calm the fewest children are the fastest, beside a neighbour the most."""
    asked = grid.begin(folder, grid.question(2, 1, (8, 16), (2, 4), "llcprobe"))
    found = []
    for cell in asked.cells()[:cells]:
        number, workers, children = cell
        found.append(row(cell, "calm", 10.0 * children + workers + number))
        found.append(row(cell, "noisy", 400.0 / children + workers + number))
    grid._write(folder, found)
    return asked


def test_every_cell_comes_once_a_round_in_an_order_that_the_seed_decides() -> None:
    asked = grid.question(3, 1, (16, 8), (2, 4, 2), "llcprobe")
    assert (asked.workers, asked.children) == ([8, 16], [2, 4])
    cells = asked.cells()
    assert len(set(cells)) == len(cells) == 12
    assert cells == asked.cells()
    assert len({tuple(cell[1:] for cell in cells if cell[0] == number) for number in (1, 2, 3)}) > 1


@pytest.mark.parametrize(
    ("workers", "children", "match"),
    [((), (2,), "of 1 or more, got"), ((8,), (0,), "of 1 or more"), ((100,), (2,), "100 workers: expected")],
)
def test_values_that_cannot_be_had_are_refused(workers: tuple[int, ...], children: tuple[int, ...], match: str) -> None:
    with pytest.raises(ExperimentError, match=match):
        grid.question(1, 1, workers, children, "llcprobe")


def test_medians_over_rounds_and_the_best_cell_of_each_phase(tmp_path: Path) -> None:
    measured(tmp_path)
    found = grid.summary(tmp_path)
    assert found["complete"]
    assert found["best"] == {"calm": {"workers": 8, "children": 2}, "noisy": {"workers": 8, "children": 4}}
    calm = {(c["workers"], c["children"]): c["mean_ms"] for c in found["cells"] if c["phase"] == "calm"}
    assert calm[8, 2] == pytest.approx(29.5), "between 29 and 30"


def test_a_cell_that_fails_requests_is_not_the_best_however_quick(tmp_path: Path) -> None:
    asked = measured(tmp_path)
    found = grid.rows(tmp_path)
    for one in found:
        if (one["workers"], one["children"], one["phase"]) == (8, 4, "noisy"):
            one["errors"] = 2
    grid._write(tmp_path, found)
    assert not grid.left(tmp_path, asked)
    assert grid.summary(tmp_path)["best"]["noisy"] == {"workers": 16, "children": 4}


def test_an_interrupted_grid_is_marked_so_and_knows_what_is_left(tmp_path: Path) -> None:
    asked = measured(tmp_path, cells=3)
    assert grid.left(tmp_path, asked) == asked.cells()[3:]
    shown = CliRunner().invoke(lab, ["grid", "--out", str(tmp_path), "--replay"], catch_exceptions=False)
    assert shown.output.startswith("CUT SHORT: 3 of 8 cells")
    with pytest.raises(ExperimentError, match="it holds another grid"):
        grid.begin(tmp_path, grid.question(1, 1, (8, 16), (2, 4), "llcprobe"))
    progress: list[str] = []
    grid._write(tmp_path, [row(cell, phase, 1.0) for cell in asked.cells() for phase in grid.PHASES])
    grid.run(tmp_path, asked, progress.append)
    assert progress == [], "nothing is left: no lab is started"


def test_a_damaged_grid_is_named(tmp_path: Path) -> None:
    measured(tmp_path)
    pq.write_table(pa.table({"round": [1]}), tmp_path / grid.CELLS)
    with pytest.raises(ExperimentError, match=r"cells\.parquet: not the cells of a grid: it has round"):
        grid.rows(tmp_path)
    (tmp_path / grid.QUESTION).write_text("{}")
    with pytest.raises(ExperimentError, match=r"grid\.json: not the plan of a grid"):
        grid.load(tmp_path)


def test_the_page_has_the_figure_its_command_and_whether_it_is_whole(tmp_path: Path) -> None:
    measured(tmp_path / "grid", cells=5)
    out = tmp_path / "page"
    CliRunner().invoke(lab, ["report", "--grid", str(tmp_path / "grid"), "--out", str(out)], catch_exceptions=False)
    page = (out / report.PAGE).read_text()
    assert f"slackwater lab report --grid {tmp_path / 'grid'} --out {out}" in page
    assert "CUT SHORT: 5 of 8 cells" in page
    pixels = matplotlib.image.imread(out / "grid.png")
    assert pixels.std() > 0.01
    assert np.ptp(pixels[..., :3], axis=2).max() < 0.01, "it says nothing by colour"


@pytest.mark.lab
@needs_lab
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nothing_before_and_after")
def test_a_small_grid_on_real_servers(tmp_path: Path) -> None:
    asked = ("grid", "--out", str(tmp_path), "--workers", "64", "--children", "1", "--children", "8", "--json", "-")
    done = run_lab(*asked, timeout_s=500.0)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["complete"]
    assert {(cell["workers"], cell["children"], cell["phase"]) for cell in found["cells"]} == {
        (64, children, phase) for children in (1, 8) for phase in ("calm", "noisy")
    }
    assert all(cell["requests"] > 100 and cell["errors"] == 0 for cell in found["cells"])
    assert json.loads(run_lab(*asked).stdout) == found, "whole: nothing is measured again"
