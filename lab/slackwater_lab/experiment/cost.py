"""What Slackwater itself costs: CPU time and memory of its processes during a run, from /proc."""

from __future__ import annotations

from collections.abc import Mapping

from slackwater.core.state_dir import read_serve
from slackwater_lab.cluster.bus import STATE_DIR
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.process_use import ProcessUse, process_use

PROGRAMS = {
    "slackwater-monitor of ": "monitor",
    "slackwater-wsengine of ": "wsengine",
    "slackwater serve": "serve",
    "nats-server": "bus",
}
"""The lab's name of a program -> part of Slackwater. The parts of `serve` are its children, by their own names."""

MEASURES = ("count", "core_share", "rss_mib")


def look(lab: Lab) -> dict[str, dict[str, ProcessUse]]:
    """Part of Slackwater -> process -> use so far."""
    usage: dict[str, dict[str, ProcessUse | None]] = {}
    for program in lab.programs:
        for prefix, part in PROGRAMS.items():
            if program.name.startswith(prefix) and program.running:
                usage.setdefault(part, {})[program.name] = program.use()
    if "serve" in usage:
        for name, pid in (read_serve(STATE_DIR) or {}).get("children", {}).items():
            if isinstance(pid, int):
                usage.setdefault("bus" if name == "nats-server" else name, {})[str(pid)] = process_use(pid)
    return {part: {key: use for key, use in uses.items() if use is not None} for part, uses in usage.items()}


def between(
    before: Mapping[str, Mapping[str, ProcessUse]], after: Mapping[str, Mapping[str, ProcessUse]], seconds: float
) -> dict[str, dict[str, float]]:
    """For each part that lived all the time: number of processes, and of each of them the mean share of a core and the
    memory at the end."""
    costs = {}
    for part, ends in after.items():
        pairs = [(before.get(part, {})[key], end) for key, end in ends.items() if key in before.get(part, {})]
        if pairs and seconds > 0:
            costs[part] = {
                "count": float(len(pairs)),
                "core_share": sum(end.cpu_s - begin.cpu_s for begin, end in pairs) / len(pairs) / seconds,
                "rss_mib": sum(end.rss_mib for _, end in pairs) / len(pairs),
            }
    return costs
