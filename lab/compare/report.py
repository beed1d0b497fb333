"""The report: one static HTML page with its figures beside it, each with the command that made its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from detector.classify.tree import Model
from lab.compare import estimator_fit, figures, goals, grid, page, results, validation
from lab.compare.compare_commands import SHOWN, told
from lab.compare.parts import Parts
from lab.experiment.policies import POLICIES
from lab.experiment.recording import ExperimentError
from lab.experiment.scenarios import ELSEWHERE, SCENARIOS

PAGE = "index.html"
DATA = "report.json"
GROUPS = {
    "on roundrobin": ("static", "ice", "slackwater", "oracle"),
    "on leastconn": ("leastconn", "slackwater-lc", "oracle-lc"),
    "peers": ("agent-check", "outlier", "random2", "wsengine-only", "slackwater"),
}
CHANGES = (("second_means_median_ms", "means/s"), ("p50_ms", "p50"), ("p95_ms", "p95"), ("p99_ms", "p99"))
FRAMES = ("frames", "noisy_share", "late_share", "p50_ms", "p95_ms", "p99_ms")


@dataclass(frozen=True)
class Drawing:
    """Where the page's figures go, what stands on them, and the command that draws them."""

    out: Path
    command: str
    short: str
    """Empty for what is whole."""


def write(parts: Parts, out: Path, model: Model | None, say: Callable[[str], None]) -> dict[str, Any]:
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
            checked = validation.validate(there, model, say)
        except ExperimentError as error:
            say(f"not validated: {error}")
            checked["why"] = str(error)
        fit = estimator_fit.fit(there)
    gridded = grid.summary(parts.grid) if parts.grid else None
    lines = goals.of_comparison(summary) + goals.of_simulator(runs, checked["compared"])
    short = _short(parts, summary, gridded)
    found = {
        "command": parts.command(out),
        "complete": not short,
        "cut_short": short,
        "planned": [{"part": p.part, "done": p.done, "planned": p.planned, "unit": p.unit} for p in parts.planned],
        "goals": [
            {"what": g.what, "goal": g.goal, "found": g.found, "state": g.word, "oracle": g.oracle} for g in lines
        ],
        "validation": checked,
        "estimator": fit,
        "grid": gridded,
        "streaming": read_streaming(parts.streaming) if parts.streaming else None,
        "simulated": [{key: one.get(key) for key in ("command", "commit")} for one in simulated],
        "comparison": {key: value for key, value in (summary or {}).items() if key != "runs"},
    }
    (out / DATA).write_text(json.dumps(found, indent=1) + "\n")
    drawing = Drawing(out, parts.command(out), short)
    (out / PAGE).write_text(_page(drawing, where, summary, runs, found))
    return found


def _short(parts: Parts, summary: dict[str, Any] | None, gridded: dict[str, Any] | None) -> str:
    """What is missing, in words; empty when nothing is."""
    if parts.planned:
        lacks = [parts.cut_short] if parts.cut_short else []
        if not parts.simulated:
            lacks.append("CUT SHORT: nothing was simulated for this page")
        return "; ".join(lacks)
    lacks = [] if summary is None else [results.cut_short(summary)]
    if summary is None:
        lacks.append("NO COMPARISON: nothing was measured in the lab for this report")
    if gridded and (short := _grid_short(gridded)):
        lacks.append(f"{short} of the grid")
    return "; ".join(filter(None, lacks))


def _grid_short(found: dict[str, Any]) -> str:
    return "" if found["complete"] else f"CUT SHORT: {found['cells_done']} of {found['cells_planned']} cells"


def read_simulated(path: Path) -> dict[str, Any]:
    """What `slackwater lab simulate --json` wrote: `runs`, and the `command`, which earlier versions did not tell.

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


def _page(
    drawing: Drawing,
    where: dict[str, list[Path]],
    summary: dict[str, Any] | None,
    runs: Sequence[dict[str, Any]],
    found: dict[str, Any],
) -> str:
    body = ["<h1>Slackwater: evaluation</h1>"]
    if drawing.short:
        body.append(page.warning(drawing.short))
    body.append(f"<p>Written by <code>{escape(drawing.command)}</code></p>")
    rows = [(one["what"], one["goal"], one["found"], one["state"], one["oracle"]) for one in found["goals"]]
    body += ["<h2>Goals</h2>", page.table(("what", "goal", "found", "", "the oracle"), rows, drawing.command)]
    if found["planned"]:
        parts = [(p["part"], f"{p['done']} of {p['planned']} {p['unit']}") for p in found["planned"]]
        body.append(page.table(("part", "measured"), parts, drawing.command))
    if summary:
        body += _compared(drawing, where, summary)
    else:
        body += page.missing("In the lab", "no comparison was given")
    body += _streamed(found["streaming"])
    body += _gridded(drawing, found["grid"])
    body += _checked(drawing, found)
    body += _simulated(drawing, runs, [one["command"] for one in found["simulated"]])
    return page.document("Slackwater: evaluation", body)


def _compared(drawing: Drawing, where: dict[str, list[Path]], summary: dict[str, Any]) -> list[str]:
    command, out, short = drawing.command, drawing.out, drawing.short
    body = ["<h2>In the lab</h2>", f"<p>{escape(machine_in_words(summary))}</p>"]
    rows = [
        (
            part["folder"],
            f"{part['runs_done']} of {part['runs_planned']}",
            str(part["seed"]),
            ", ".join(f"{app} {rps:g}" for app, rps in part["capacity_rps"].items()),
            page.number(part["machine"].get("load_average_at_start"), "g"),
            ", ".join(part["commits"]),
        )
        for part in summary["parts"]
    ]
    heads = ("comparison", "runs", "seed", "capacity in calm, requests/s", "load average at the start", "commit")
    body.append(page.table(heads, rows, command))
    for scenario in dict.fromkeys(cell["scenario"] for cell in summary["cells"]):
        cells = [cell for cell in summary["cells"] if cell["scenario"] == scenario]
        rows = [
            (cell["policy"], str(cell["rounds"]), *(told(cell[key], form) for key, _, form in SHOWN)) for cell in cells
        ]
        body.append(f"<h3>{escape(scenario)}: {escape(SCENARIOS[scenario].what)}</h3>")
        body.append(page.table(("policy", "rounds", *(title for _, title, _ in SHOWN)), rows, command))
        body += _changes(cells, command)
        for title, policies in GROUPS.items():
            name = f"time-{scenario}-{title.replace(' ', '-')}.png"
            drawn = figures.over_time(where[scenario], scenario, policies, out / name, short)
            body += page.figure(drawn, f"Over time, {title}", command)
        everyone = [cell["policy"] for cell in cells]
        drawn = figures.improvement(summary, scenario, everyone, out / f"improvement-{scenario}.png", short)
        body += page.figure(drawn, "Improvement, with what the papers claim", command)
    drawn = figures.severity(summary, goals.OURS, out / "severity.png", short)
    body += page.figure(drawn, "Improvement by how much of its host the noisy server loses", command)
    body += page.figure(figures.answers(summary, out / "answers.png", short), "How soon the weights answer", command)
    body += _detected(drawing, summary)
    body += _cost(summary, command)
    named = [(name, policy.balance, policy.source) for name, policy in POLICIES.items()]
    body += ["<h3>Policies</h3>", page.table(("policy", "balance", "source"), named, "slackwater lab compare --list")]
    return body + [f"<p>Not run: {escape(name)}: {escape(why)}.</p>" for name, why in ELSEWHERE.items()]


def _changes(cells: Sequence[dict[str, Any]], command: str) -> list[str]:
    """Every policy against both of HAProxy's own, in pairs of the same round."""
    rows = []
    for cell in cells:
        for other in ("static", "leastconn"):
            change = cell["change"].get(other)
            if change is not None:
                rows.append((cell["policy"], other, *(goals.percent(change[key]) for key, _ in CHANGES)))
    return [page.table(("policy", "against", *(title for _, title in CHANGES)), rows, command)] if rows else []


def _detected(drawing: Drawing, summary: dict[str, Any]) -> list[str]:
    """From onset to the first Verdict, by scenario."""
    cells = [cell for cell in summary["cells"] if cell["detections"] is not None]
    if not cells:
        return page.missing("Detection", "these recordings hold no Verdicts")
    rows = [
        (
            cell["scenario"],
            cell["policy"],
            f"{cell['detections']['found']} of {cell['detections']['neighbours']}",
            *(page.number(cell["detections"][key], ".2f") for key in ("p50_s", "p95_s", "max_s")),
        )
        for cell in cells
    ]
    heads = ("scenario", "policy", "neighbours found", "p50 s", "p95 s", "slowest s")
    drawn = figures.detections(summary, drawing.out / "detections.png", drawing.short)
    return [
        "<h3>Detection</h3>",
        "<p>Seconds from a neighbour's onset to the first Verdict <code>interference</code> on its server.</p>",
        page.table(heads, rows, drawing.command),
        *page.figure(drawn, "How soon a neighbour is found", drawing.command),
    ]


def _cost(summary: dict[str, Any], command: str) -> list[str]:
    """What Slackwater itself used."""
    if not summary["cost"]:
        return page.missing("What it costs", "no policy of these runs has processes of its own")
    rows = [
        (
            row["policy"],
            row["part"],
            f"{row['runs']}",
            f"{row['count']:g}",
            f"{row['core_share']:.1%}",
            f"{row['rss_mib']:.0f}",
        )
        for row in summary["cost"]
    ]
    heads = ("policy", "part", "runs", "processes", "of a core, each", "memory MiB, each")
    return [
        "<h3>What it costs</h3>",
        "<p>CPU time and resident memory of its processes while the load ran, from /proc; medians over the runs. A"
        " monitor works in the guest, within its quota; all else beside the balancer.</p>",
        page.table(heads, rows, command),
    ]


def _streamed(found: dict[str, Any] | None) -> list[str]:
    title = "A streaming service behind LVS"
    if found is None:
        return page.missing(title, ELSEWHERE["streaming"])
    rows = [
        (
            name,
            f"{row['frames']:.0f}",
            f"{row['noisy_share']:.0%}",
            f"{row['late_share']:.0%}",
            *(page.number(row[key]) for key in ("p50_ms", "p95_ms", "p99_ms")),
        )
        for name, row in found["policies"].items()
    ]
    heads = ("weights", "frames", "of the stalling server", "late by a frame or more", "p50 ms", "p95 ms", "p99 ms")
    return [f"<h2>{title}</h2>", "<p>Frame delay.</p>", page.table(heads, rows, found["command"])]


def _gridded(drawing: Drawing, found: dict[str, Any] | None) -> list[str]:
    title = "MaxClients and pm.max_children"
    if found is None:
        return page.missing(title, "no grid was given (`slackwater lab grid`)")
    body = [f"<h2>{title}</h2>"]
    short = _grid_short(found)
    if short:
        body.append(page.warning(short))
    drawn = figures.workers_by_children(found, drawing.out / "grid.png", short)
    return body + page.figure(drawn, "Mean response time by cell", drawing.command)


def _checked(drawing: Drawing, found: dict[str, Any]) -> list[str]:
    title = "The simulator against the lab"
    if found["validation"]["compared"]:
        rows = [
            (
                one["comparison"],
                one["policy"],
                str(one["rounds"]),
                f"{one['lab_p95_ms']:.1f}",
                f"{one['simulated_p95_ms']:.1f}",
                f"{one['error']:+.0%}{' (fitted)' * one['fitted']}",
            )
            for one in found["validation"]["compared"]
        ]
        heads = ("comparison", "policy", "rounds in the lab", "lab p95 ms", "simulated p95 ms", "error")
        body = [f"<h2>{title}</h2>", "<p>Fitted under `static` weights; all others are predictions.</p>"]
        body.append(page.table(heads, rows, drawing.command))
    else:
        why = found["validation"].get("why", f"it takes runs of scenario {validation.SCENARIO} under `static`")
        body = page.missing(title, why)
    fit = found["estimator"]
    title = "The load estimator's law"
    if not fit:
        return body + page.missing(title, f"it takes two rounds with Samples of scenario {validation.SCENARIO}")
    laws = [(name, f"{fit[name]['r2']:.3f}", f"{fit[name]['mean_error']:.3f}") for name in ("linear", "quadratic")]
    body += [f"<h2>{title}</h2>", f"<p>On {fit['samples']} Samples that neither saw.</p>"]
    return [*body, page.table(("law", "R²", "mean absolute error of CPU"), laws, drawing.command)]


def _simulated(drawing: Drawing, runs: Sequence[dict[str, Any]], commands: Sequence[str]) -> list[str]:
    if not runs:
        return page.missing("Simulated", "nothing was given (`slackwater lab simulate --json FILE`)")
    made = (*commands, drawing.command)
    sized = [run for run in runs if run["setup"]["balancers"] == 1]
    body = ["<h2>Simulated</h2>"]
    if sized:
        usual = max({run["setup"]["servers"] for run in sized}, key=[run["setup"]["servers"] for run in sized].count)
        gains = [run for run in sized if run["setup"]["servers"] == usual]
        share = min({run["setup"]["noisy"] for run in sized}, key=lambda one: abs(one - 0.1))
        costs = [run for run in sized if run["setup"]["noisy"] == share]
        body += page.figure(figures.simulated_cost(costs, drawing.out / "cost.png"), "Cost of a decision", *made)
        body += page.figure(figures.simulated_gain(gains, drawing.out / "gain.png"), f"p99 of {usual} servers", *made)
    rows = [
        (
            run["model"],
            run["policy"],
            *(str(run["setup"][key]) for key in ("servers", "balancers", "noisy")),
            *(page.number(run["felt"][key]) for key in ("mean_ms", "p95_ms", "p99_ms")),
            page.number(run["turns_per_server_hour"]),
            *(page.number(run["cost_ms"][part]["p50"]) for part in ("detector", "lbengine", "model")),
            f"{run['pace']['late']} of {run['pace']['cycles']}" if run.get("pace") else "-",
        )
        for run in runs
    ]
    heads = (
        *("model", "policy", "servers", "balancers", "noisy", "mean ms", "p95 ms", "p99 ms"),
        *("turns per server and hour", "detector ms", "lbengine ms", "model ms", "late cycles after learning"),
    )
    return [*body, page.table(heads, rows, *made)]


def machine_in_words(summary: dict[str, Any]) -> str:
    """What it was measured on, in a sentence."""
    facts = summary["machine"]
    if not facts:
        return "The machine is not known."
    return (
        f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, HAProxy {facts['haproxy']}, Apache"
        f" {facts['apache']}, PHP {facts['php']}, {facts['hosts']} hosts of {facts['quota_cores']:g} core."
    )
