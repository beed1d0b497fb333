"""What a report is made of, and the command that makes it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Parts:
    """Each may be missing, and the report then names it as missing."""

    comparisons: Sequence[Path] = ()
    simulated: Sequence[Path] = ()
    grid: Path | None = None
    streaming: Path | None = None

    def command(self, out: Path) -> str:
        """What writes this report into a folder."""
        words = [word for folder in self.comparisons for word in ("--compare", str(folder))]
        words += ["--grid", str(self.grid)] if self.grid is not None else []
        words += ["--streaming", str(self.streaming)] if self.streaming is not None else []
        words += [word for path in self.simulated for word in ("--simulated", str(path))]
        return shlex.join(["slackwater", "lab", "report", *words, "--out", str(out)])
