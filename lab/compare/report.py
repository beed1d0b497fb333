"""The report: one static HTML page with its figures beside it, each with the command that made its numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from detector.classify.tree import Model
from lab.compare import estimator_fit, figures, goals, grid, results, validation
from lab.compare.parts import Parts
from lab.compare.tables import SHOWN, with_interval
from lab.experiment.policies import POLICIES
from lab.experiment.recording import ExperimentError
from lab.experiment.scenarios import ELSEWHERE, SCENARIOS

PAGE = "index.html"
OURS = ("slackwater", "slackwater-lc")
DATA = "report.json"
GROUPS = {
    "on roundrobin": ("static", "ice", "slackwater", "oracle"),
    "on leastconn": ("leastconn", "slackwater-lc", "oracle-lc"),
    "peers": ("agent-check", "outlier", "random2", "wsengine-only", "slackwater"),
}
CHANGES = (("second_means_median_ms", "means/s"), ("p50_ms", "p50"), ("p95_ms", "p95"), ("p99_ms", "p99"))
FRAMES = ("frames", "noisy_share", "late_share", "p50_ms", "p95_ms", "p99_ms")


def write(parts: Parts, out: Path, model: Model, progress: Callable[[str], None]) -> dict[str, Any]:
    """Writes page, figures and `report.json` into a folder; gives the data. Raises ExperimentError, OSError."""
    folders = [folder.resolve() for folder in parts.comparisons]
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        raise ExperimentError(f"{twice[0]}: expected each comparison once")
    out.mkdir(parents=True, exist_ok=True)
    summaries = {folder: results.summary(folder) for folder in parts.comparisons}
    summary = results.together(list(summaries.values())) if summaries else None
    where: dict[str, list[Path]] = {}
    for folder, one in summaries.items():
        for scenario in dict.fromkeys(cell["scenario"] for cell in one["cells"]):
            where.setdefault(scenario, []).append(folder)
    simulated = [read_simulated(path) for path in parts.simulated]
    runs = [run for one in simulated for run in one["runs"]]
    checked: dict[str, Any] = {"compared": []}
    fit = None
    if there := where.get(validation.SCENARIO):
        try:
            checked = validation.validate(there, model, progress)
        except ExperimentError as error:
            progress(f"not validated: {error}")
            checked["why"] = str(error)
        fit = estimator_fit.fit(there)
    gridded = grid.summary(parts.grid) if parts.grid else None
    lines = goals.of_lab(summary["runs"] if summary else []) + goals.of_simulator(runs, checked["compared"])
    short = _short(summary, gridded)
    found = {
        "command": parts.command(out),
        "complete": not short,
        "cut_short": short,
        "goals": [{"what": g.what, "goal": g.goal, "found": g.found, "state": g.word} for g in lines],
        "validation": checked,
        "estimator": fit,
        "grid": gridded,
        "streaming": read_streaming(parts.streaming) if parts.streaming else None,
        "simulated": [{key: one.get(key) for key in ("command", "commit")} for one in simulated],
        "comparison": {key: value for key, value in (summary or {}).items() if key != "runs"},
    }
    (out / DATA).write_text(json.dumps(found, indent=1) + "\n")
    shown = {
        "found": found,
        "summary": summary,
        "runs": runs,
        "commands": [one["command"] for one in simulated],
        "drawn": draw(out, where, summary, runs, gridded, short),
        "policies": POLICIES,
        "scenarios": SCENARIOS,
        "elsewhere": ELSEWHERE,
        "columns": SHOWN,
        "changes": CHANGES,
        "calibrated_on": validation.SCENARIO,
    }
    (out / PAGE).write_text(TEMPLATES.get_template("report.html").render(shown))
    return found


def _short(summary: dict[str, Any] | None, gridded: dict[str, Any] | None) -> str:
    """What is missing, in words; empty when nothing is."""
    lacks = [] if summary is None else [results.cut_short(summary)]
    if summary is None:
        lacks.append("NO COMPARISON: nothing was measured in the lab for this report")
    if gridded and (short := _grid_short(gridded)):
        lacks.append(f"{short} of the grid")
    return "; ".join(filter(None, lacks))


def _grid_short(found: dict[str, Any]) -> str:
    return "" if found["complete"] else f"CUT SHORT: {found['cells_done']} of {found['cells_planned']} cells"


def read_simulated(path: Path) -> dict[str, Any]:
    """What `slackwater lab simulate --json` wrote: `runs`, and the `command`, which earlier versions did not write.

    Raises ExperimentError.
    """
    try:
        found = json.loads(path.read_text())
        runs = list(found["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{path}: expected what `slackwater lab simulate --json` writes: {error!r}") from None
    return {**found, "runs": runs, "command": found.get("command", f"(how {path} was made is not recorded)")}


def read_streaming(path: Path) -> dict[str, Any]:
    """What the streaming service's test wrote: `command`, and a row of frame delays for each of its `policies`.

    Raises ExperimentError.
    """
    try:
        found = json.loads(path.read_text())
        rows = {str(name): {key: float(row[key]) for key in FRAMES} for name, row in found["policies"].items()}
        return {"command": str(found["command"]), "policies": rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExperimentError(f"{path}: expected what the streaming service's test writes: {error!r}") from None


Drawn = dict[str, list[tuple[str, str]]]
"""Section, or scenario -> file and caption of each figure that was drawn for it."""


def draw(
    out: Path,
    where: Mapping[str, Sequence[Path]],
    summary: dict[str, Any] | None,
    runs: Sequence[dict[str, Any]],
    gridded: dict[str, Any] | None,
    short: str,
) -> Drawn:
    """Draws all figures into a folder; `short` stands on them when something is missing."""
    drawn: Drawn = defaultdict(list)

    def add(section: str, path: Path | None, caption: str) -> None:
        if path is not None:
            drawn[section].append((path.name, caption))

    for scenario in dict.fromkeys(cell["scenario"] for cell in summary["cells"]) if summary else ():
        for title, policies in GROUPS.items():
            place = out / f"time-{scenario}-{title.replace(' ', '-')}.png"
            add(scenario, figures.over_time(where[scenario], scenario, policies, place, short), f"Over time, {title}")
        everyone = [cell["policy"] for cell in summary["cells"] if cell["scenario"] == scenario] if summary else []
        path = figures.improvement(summary or {}, scenario, everyone, out / f"improvement-{scenario}.png", short)
        add(scenario, path, "Improvement, with what the papers claim")
    if summary:
        path = figures.severity(summary, OURS, out / "severity.png", short)
        add("severity", path, "Improvement by how much of its host the noisy server loses")
        add("answers", figures.answers(summary, out / "answers.png", short), "How soon the weights answer")
        if any(cell["detections"] for cell in summary["cells"]):
            path = figures.detections(summary, out / "detections.png", short)
            add("detection", path, "How soon a neighbour is found")
    if gridded:
        path = figures.workers_by_children(gridded, out / "grid.png", _grid_short(gridded))
        add("grid", path, "Mean response time by cell")
    sized = [run for run in runs if run["setup"]["balancers"] == 1]
    if sized:
        servers = [run["setup"]["servers"] for run in sized]
        usual = max(set(servers), key=servers.count)
        share = min({run["setup"]["noisy"] for run in sized}, key=lambda one: abs(one - 0.1))
        costs = [run for run in sized if run["setup"]["noisy"] == share]
        gains = [run for run in sized if run["setup"]["servers"] == usual]
        add("simulated", figures.simulated_cost(costs, out / "cost.png"), "Cost of a decision")
        add("simulated", figures.simulated_gain(gains, out / "gain.png"), f"p99 of {usual} servers")
    return drawn


def number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def machine_in_words(summary: dict[str, Any]) -> str:
    """What it was measured on, in a sentence."""
    facts = summary["machine"]
    if not facts:
        return "The machine is not known."
    # Comparisons of before virtual machines do not say what the hosts are.
    kind = f", {facts['hypervisor']}, slices of {1000 * facts['period_s']:g} ms" if "hypervisor" in facts else ""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, HAProxy {facts['haproxy']}, Apache"
        f" {facts['apache']}, PHP {facts['php']}, {facts['hosts']} hosts of {facts['quota_cores']:g} core{kind}."
    )


TEMPLATES = Environment(loader=PackageLoader("lab.compare"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
TEMPLATES.filters |= {
    "number": number,
    "estimate": with_interval,
    "percent": goals.percent,
    "machine": machine_in_words,
}
