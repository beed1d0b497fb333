"""The page of the detector's ablation, drawn from its data file alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from slackwater_lab.ablate.page import TEMPLATES, shown
from slackwater_lab.ablate.recordings import Judged, Row, rows
from slackwater_lab.cluster.terminal import shown as figure


def cells(row: Row) -> list[str]:
    """A row's figures as text."""
    return [
        f"{row.missed} of {row.felt}",
        figure(row.delay_median_s, "g"),
        figure(row.delay_p95_s, "g"),
        "-" if row.delay is None else shown(row.delay),
        str(row.again),
        str(row.false_episodes),
        figure(row.back_median_s, "g"),
        figure(row.brier, "g"),
        str(row.lines or "-"),
    ]


def page(judgements: Sequence[Judged], places: Sequence[str], data: str, place: str) -> str:
    """The page in Markdown; the paths are those in the command."""
    current = [judgement for judgement in judgements if judgement.code == judgements[-1].code] if judgements else []
    words = ["slackwater", "lab", "ablate-detector", *places, "--data", data, "--page", place]
    return TEMPLATES.get_template("ablation-detector.md.jinja").render(
        command=shlex.join(words),
        judgements=current,
        others=len(judgements) - len(current),
        recordings=sorted({judgement.recording for judgement in current}),
        commits=Counter(judgement.commit or "not recorded" for judgement in current),
        machines=Counter(judgement.machine for judgement in current),
        minutes=sum(judgement.cpu_s for judgement in current) / 60,
        rows=rows(judgements),
        cells=cells,
    )
