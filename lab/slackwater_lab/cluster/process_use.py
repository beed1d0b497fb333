"""What a process has used: CPU time and memory, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessUse:
    """CPU seconds since the process began, and memory that it holds alone or shares (resident set)."""

    cpu_s: float
    rss_mib: float


def parse(stat: str, statm: str) -> ProcessUse | None:
    """Reads the text of both files (proc(5): stat, fields 14 and 15; statm, field 2). None for other text."""
    try:
        fields = stat.rsplit(")", 1)[1].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(statm.split()[1])
    except (IndexError, ValueError):
        return None
    return ProcessUse(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def process_use(pid: int, proc: Path = Path("/proc")) -> ProcessUse | None:
    """The use of a process of this machine; None when it is gone."""
    try:
        return parse((proc / str(pid) / "stat").read_text(), (proc / str(pid) / "statm").read_text())
    except OSError:
        return None
