"""The page of the detector's ablation, drawn from its data file alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from slackwater_lab.ablate.page import TEMPLATES, shown
from slackwater_lab.ablate.recordings import Judged, Row, rows


def cells(row: Row) -> list[str]:
    """A row's figures, as they are printed."""
    return [
        f"{row.missed} of {row.felt}",
        _text(row.delay_median_s),
        _text(row.delay_p95_s),
        "-" if row.delay is None else shown(row.delay),
        str(row.again),
        str(row.false_episodes),
        _text(row.back_median_s),
        _text(row.brier),
        str(row.lines or "-"),
    ]


def page(found: Sequence[Judged], places: Sequence[str], data: str, place: str) -> str:
    """The page in Markdown; the paths are those in the command."""
    mine = [one for one in found if one.code == found[-1].code] if found else []
    words = ["slackwater", "lab", "ablate-detector", *places, "--data", data, "--page", place]
    return TEMPLATES.get_template("ablation-detector.md.jinja").render(
        command=shlex.join(words),
        found=mine,
        others=len(found) - len(mine),
        recordings=sorted({one.recording for one in mine}),
        commits=Counter(one.commit or "not recorded" for one in mine),
        machines=Counter(one.machine for one in mine),
        minutes=sum(one.cpu_s for one in mine) / 60,
        rows=rows(found),
        cells=cells,
    )


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
