"""What a report is made of, what of it is missing, and the command that makes it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Progress:
    """How much of a part of the evaluation is measured."""

    part: str
    done: int
    planned: int
    unit: str
    """`runs` or `cells`."""

    @property
    def left(self) -> int:
        return self.planned - self.done


@dataclass(frozen=True)
class Parts:
    """Each may be missing, and the report then names it as missing."""

    comparisons: Sequence[Path] = ()
    simulated: Sequence[Path] = ()
    grid: Path | None = None
    streaming: Path | None = None
    evaluation: Path | None = None
    """The folder of `slackwater lab evaluate` that the comparisons, the grid and the streaming service are of."""
    planned: Sequence[Progress] = ()
    """Of the whole evaluation, where this is a report on one."""

    def command(self, out: Path) -> str:
        """What writes this report into a folder."""
        words: list[str] = []
        if self.evaluation is not None:
            words += ["--evaluation", str(self.evaluation)]
        else:
            words += [word for folder in self.comparisons for word in ("--compare", str(folder))]
            words += ["--grid", str(self.grid)] if self.grid is not None else []
            words += ["--streaming", str(self.streaming)] if self.streaming is not None else []
        words += [word for path in self.simulated for word in ("--simulated", str(path))]
        return shlex.join(["slackwater", "lab", "report", *words, "--out", str(out)])

    @property
    def cut_short(self) -> str:
        """What must stand above everything that comes of an evaluation that is not whole; empty when it is."""
        if not any(one.left for one in self.planned):
            return ""
        units = {unit: [one for one in self.planned if one.unit == unit] for unit in ("runs", "cells")}
        counts = [
            f"{sum(one.done for one in mine)} of {sum(one.planned for one in mine)} {unit}"
            for unit, mine in units.items()
            if mine
        ]
        left = [f"{one.part} {one.done} of {one.planned}" for one in self.planned if one.left]
        return f"CUT SHORT: {', '.join(counts)}; not whole: {', '.join(left)}; what follows is of what there is only"
