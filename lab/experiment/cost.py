"""What Slackwater itself costs: CPU time and memory of its processes during a run, from /proc."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.cluster.bus import STATE_DIR
from lab.cluster.lab import Lab
from lab.cluster.machine import ProcessUse, process_use
from slackwater.supervise.state_dir import read_serve

PROGRAMS = {
    "slackwater-monitor of ": "monitor",
    "slackwater-wsengine of ": "wsengine",
    "slackwater serve": "serve",
    "nats-server": "bus",
}
"""The lab's name of a program -> part of Slackwater. The parts of `serve` are its children, by their own names."""

MEASURES = ("count", "core_share", "rss_mib")


def parts(lab: Lab) -> dict[str, list[int]]:
    """Processes of Slackwater by part; monitors and wsengines are several."""
    found: dict[str, list[int]] = {}
    for one in lab.programs:
        for prefix, part in PROGRAMS.items():
            if one.name.startswith(prefix) and one.running:
                found.setdefault(part, []).append(one.process.pid)
    if "serve" in found:
        for name, pid in (read_serve(STATE_DIR) or {}).get("children", {}).items():
            if isinstance(pid, int):
                found.setdefault("bus" if name == "nats-server" else name, []).append(pid)
    return found


def look(lab: Lab) -> dict[str, dict[int, ProcessUse]]:
    """All parts, now."""
    return {
        part: {pid: found for pid in pids if (found := process_use(pid)) is not None}
        for part, pids in parts(lab).items()
    }


def between(
    before: Mapping[str, Mapping[int, ProcessUse]], after: Mapping[str, Mapping[int, ProcessUse]], seconds: float
) -> dict[str, dict[str, float]]:
    """For each part that lived all the time: number of processes, and of each of them the mean share of a core and the
    memory at the end."""
    found = {}
    for part, ends in after.items():
        both = [(before.get(part, {})[pid], end) for pid, end in ends.items() if pid in before.get(part, {})]
        if both and seconds > 0:
            found[part] = {
                "count": float(len(both)),
                "core_share": sum(end.cpu_s - begin.cpu_s for begin, end in both) / len(both) / seconds,
                "rss_mib": sum(end.rss_mib for _, end in both) / len(both),
            }
    return found


def table(costs: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Medians over runs, a row for each part."""
    rows = []
    for part in dict.fromkeys(part for cost in costs for part in cost):
        mine = [cost[part] for cost in costs if part in cost]
        row: dict[str, Any] = {"part": part, "runs": len(mine)}
        rows.append(
            row | {key: statistics.median(one[key] for one in mine) for key in ("count", "core_share", "rss_mib")}
        )
    return rows
