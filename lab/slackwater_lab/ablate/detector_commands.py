"""The command `slackwater lab ablate-detector`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from slackwater_lab.ablate.options import FILE, check
from slackwater_lab.cells import append, side_by_side, until
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import json_option, progress, write_json

if TYPE_CHECKING:
    from slackwater.detector.classify.tree import Model
    from slackwater_lab.ablate.recordings import Judged, Row


def _judge(model: Model, code: str, commit: str | None, machine: str, left: tuple[Path, str]) -> Judged:
    from slackwater_lab.ablate.recordings import judge

    path, name = left
    return judge(path, name, model, code, commit, machine)


@click.command(
    "ablate-detector",
    epilog="Example: slackwater lab ablate-detector tests/recordings --off routes --off proof-weakest"
    " --data detector.jsonl --page detector.md",
)
@click.argument("places", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PLACE...")
@click.option("--off", "names", multiple=True, metavar="MECHANISM", help="Only these; again for more.  [default: all]")
@click.option("--minutes", type=click.FloatRange(0.1), help="End after so long; go on another time.")
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time.  [default: all processors]")
@click.option("--data", type=FILE, help="Each judged recording is a line here; what it has is not judged again.")
@click.option("--page", "place", type=FILE, help="The page to write.")
@click.option("--replay", is_flag=True, help="Only write the page again, from the data file alone.")
@json_option
def ablate_detector(
    places: tuple[Path, ...],
    names: tuple[str, ...],
    minutes: float | None,
    jobs: int | None,
    data: Path | None,
    place: Path | None,
    replay: bool,
    json_file: str | None,
) -> None:
    """Judge recordings with each mechanism of the detector off, and show what each brings.

    PLACE is a recording or a folder of them. The tree is the shipped one: it was trained with everything. With --data
    it can be stopped at any time, and the same command goes on.
    """
    from slackwater.core.config import DetectorSettings
    from slackwater.detector.service import choose_model
    from slackwater_lab.ablate import detector_page as page
    from slackwater_lab.ablate import recordings
    from slackwater_lab.ablate.detector_mechanisms import DETECTOR
    from slackwater_lab.cluster import machine
    from slackwater_lab.cluster.commit import commit
    from slackwater_lab.compare.measured import machine_of

    check(names, DETECTOR, data, needs_data=replay or place is not None, lines="recordings that are judged")
    files = [file for one in places for file in (sorted(one.rglob("*.parquet")) if one.is_dir() else [one])]
    found = recordings.read(data) if data else []
    code = recordings.code_digest()
    left = [] if replay else recordings.left(found, code, files, names)
    total = len(recordings.left((), code, files, names))
    model = choose_model(DetectorSettings(model=""))
    work = partial(_judge, model, code, commit(), machine_of(machine.bare()))
    try:
        for line in side_by_side(work, left, total, "judged recordings", progress, until(minutes), jobs):
            found.append(line)
            if data is not None:
                append(data, line)
    finally:
        if data is not None and place is not None:
            page.write(found, places, data, place)
    rows = recordings.rows(found)
    if json_file:
        write_json({"code": code, "commit": commit(), "rows": [asdict(row) for row in rows]}, json_file)
    if json_file != "-":
        _show(rows)


def _show(rows: Sequence[Row]) -> None:
    from slackwater_lab.ablate.detector_page import cells

    columns = ("off", "missed", "delay s", "p95", "to everything", "began again", "false", "back s", "Brier", "lines")
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(row.name, *cells(row))
    console().print(table)
