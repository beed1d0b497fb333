"""The command `slackwater lab ablate-detector`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from slackwater_lab.cells import Pieces, side_by_side
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import jobs_option, json_option, pieces_options, progress, write_json

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
@click.option(
    "--off", "names", multiple=True, metavar="MECHANISM", help="Mechanism to switch off; repeatable.  [default: each]"
)
@jobs_option
@pieces_options("recordings that are judged")
@json_option
def ablate_detector(
    places: tuple[Path, ...],
    names: tuple[str, ...],
    jobs: int | None,
    pieces: Pieces,
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
    from slackwater_lab.ablate.seams import refuse_unknown
    from slackwater_lab.cluster import machine
    from slackwater_lab.cluster.commit import commit
    from slackwater_lab.compare.measured import machine_of

    refuse_unknown(names, DETECTOR)
    asked = [file for place in places for file in (sorted(place.rglob("*.parquet")) if place.is_dir() else [place])]
    judgements = recordings.read(pieces.data) if pieces.data else []
    code = recordings.code_digest()
    left = [] if pieces.replay else recordings.left(judgements, code, asked, names)
    total = len(recordings.left((), code, asked, names))
    model = choose_model(DetectorSettings(model=""))
    work = partial(_judge, model, code, commit(), machine_of(machine.bare()))
    try:
        for line in side_by_side(work, left, total, "judged recordings", progress, pieces.until_mono_s, jobs):
            judgements.append(line)
            pieces.keep(line)
    finally:
        pieces.write_page(partial(page.page, judgements, list(map(str, places))))
    rows = recordings.rows(judgements)
    if write_json({"code": code, "commit": commit(), "rows": [asdict(row) for row in rows]}, json_file):
        _show(rows)


def _show(rows: Sequence[Row]) -> None:
    from slackwater_lab.ablate.detector_page import cells

    columns = ("off", "missed", "delay s", "p95", "to everything", "began again", "false", "back s", "Brier", "lines")
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(row.name, *cells(row))
    console().print(table)
