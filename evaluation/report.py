"""The report: one static HTML page with its figures beside it, each with the command that made its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from detector.tree import Model
from evaluation import estimator_fit, figures, goals, grid, results, validation
from evaluation.compare_commands import SHOWN, told
from evaluation.plan import CompareError
from evaluation.policies import POLICIES
from evaluation.scenarios import ELSEWHERE, SCENARIOS

PAGE = "index.html"
DATA = "report.json"
GROUPS = {
    "on roundrobin": ("static", "ice", "slackwater", "oracle"),
    "on leastconn": ("leastconn", "slackwater-lc"),
    "peers": ("agent-check", "outlier", "random2", "slackwater"),
}
STYLE = """body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;
margin:1em 0}td,th{border:1px solid #888;padding:.2em .6em;text-align:left}figure{margin:2em 0}img{max-width:100%}
code{background:#eee}.short{border:3px solid #000;padding:1em;font-weight:bold}"""


@dataclass(frozen=True)
class Parts:
    """What the report is made of; each may be missing, and is then said to be."""

    comparisons: Sequence[Path] = ()
    simulated: Sequence[Path] = ()
    grid: Path | None = None


def write(parts: Parts, out: Path, model: Model | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Writes page, figures and `report.json` into a folder; gives what is in the last. Raises CompareError, OSError."""
    out.mkdir(parents=True, exist_ok=True)
    summaries = {folder: results.summary(folder) for folder in parts.comparisons}
    summary = results.together(list(summaries.values())) if summaries else None
    folders = {cell["scenario"]: folder for folder, one in summaries.items() for cell in one["cells"]}
    runs = [run for path in parts.simulated for run in read_simulated(path)]
    checked: dict[str, Any] = {"compared": []}
    fit = None
    if folder := folders.get(validation.SCENARIO):
        try:
            checked = validation.validate(folder, model, say)
        except CompareError as error:
            say(f"not validated: {error}")
        fit = estimator_fit.fit(folder)
    lines = goals.of_comparison(summary) + goals.of_simulator(runs, checked["compared"])
    found = {
        "complete": summary is not None and summary["complete"],
        "goals": [{"what": g.what, "goal": g.goal, "found": g.found, "state": g.word} for g in lines],
        "validation": checked,
        "estimator": fit,
        "grid": grid.summary(parts.grid) if parts.grid else None,
        "comparison": {key: value for key, value in (summary or {}).items() if key != "runs"},
    }
    (out / DATA).write_text(json.dumps(found, indent=1) + "\n")
    (out / PAGE).write_text(_page(parts, out, folders, summary, runs, lines, found))
    return found


def read_simulated(path: Path) -> list[dict[str, Any]]:
    """The runs that `slackwater lab simulate --json` wrote. Raises CompareError."""
    try:
        runs = json.loads(path.read_text())["runs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompareError(f"{path}: expected what `slackwater lab simulate --json` writes: {error!r}") from None
    return list(runs)


def _page(
    parts: Parts,
    out: Path,
    folders: dict[str, Path],
    summary: dict[str, Any] | None,
    runs: Sequence[dict[str, Any]],
    lines: Sequence[goals.Goal],
    found: dict[str, Any],
) -> str:
    body = ["<h1>Slackwater: evaluation</h1>"]
    if summary is None:
        body.append('<p class="short">NO COMPARISON: nothing was measured in the lab for this report</p>')
    elif short := results.cut_short(summary):
        body.append(f'<p class="short">{escape(short)}</p>')
    body += [
        "<h2>Goals</h2>",
        _table(("what", "goal", "found", ""), [(g.what, g.goal, g.found, g.word) for g in lines]),
    ]
    if summary:
        body += _compared(folders, out, summary)
    body += _gridded(parts, out, found["grid"])
    body += _checked(found)
    body += _simulated(parts, out, runs)
    style = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return (
        f"<!doctype html><html lang=en><title>Slackwater: evaluation</title>{style}\n" + "\n".join(body) + "\n</html>\n"
    )


def _compared(folders: dict[str, Path], out: Path, summary: dict[str, Any]) -> list[str]:
    body = ["<h2>In the lab</h2>", f"<p>{escape(machine_in_words(summary))}</p>"]
    for scenario in dict.fromkeys(cell["scenario"] for cell in summary["cells"]):
        folder = folders[scenario]
        command = f"slackwater lab compare --out {folder} --replay"
        rows = [
            (cell["policy"], str(cell["rounds"]), *(told(cell[key], form) for key, _, form in SHOWN))
            for cell in summary["cells"]
            if cell["scenario"] == scenario
        ]
        body.append(f"<h3>{escape(scenario)}: {escape(SCENARIOS[scenario].what)}</h3>")
        body.append(_table(("policy", "rounds", *(title for _, title, _ in SHOWN)), rows))
        for title, policies in GROUPS.items():
            name = f"time-{scenario}-{title.replace(' ', '-')}.png"
            body += _figure(figures.over_time(folder, scenario, policies, out / name), f"Over time, {title}", command)
        ours = [name for name in ("ice", *goals.OURS) if any(cell["policy"] == name for cell in summary["cells"])]
        drawn = figures.improvement(summary, scenario, ours, out / f"improvement-{scenario}.png")
        body += _figure(drawn, "Improvement, with what the papers claim", command)
    commands = "; ".join(
        f"slackwater lab compare --out {folder} --replay" for folder in dict.fromkeys(folders.values())
    )
    drawn = figures.severity(summary, goals.OURS, out / "severity.png")
    body += _figure(drawn, "Improvement by how much of its host the noisy server loses", commands)
    body += _figure(figures.answers(summary, out / "answers.png"), "How soon the weights answer", commands)
    body += _cost(summary)
    rows = [(name, policy.balance, policy.source) for name, policy in POLICIES.items()]
    body += ["<h3>Policies</h3>", _table(("policy", "balance", "source"), rows)]
    return body + [f"<p>Not run: {escape(name)}: {escape(why)}.</p>" for name, why in ELSEWHERE.items()]


def _cost(summary: dict[str, Any]) -> list[str]:
    """What Slackwater itself used."""
    if not summary["cost"]:
        return []
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
        _table(heads, rows),
    ]


def _gridded(parts: Parts, out: Path, found: dict[str, Any] | None) -> list[str]:
    if parts.grid is None or found is None:
        return []
    body = ["<h2>MaxClients and pm.max_children</h2>"]
    if not found["complete"]:
        body.append(f'<p class="short">CUT SHORT: {found["cells_done"]} of {found["cells_planned"]} cells</p>')
    asked = found["question"]
    body.append(
        f"<p>One host, closed loop of {asked['clients']} clients, noise {escape(asked['noise'])},"
        f" {asked['rounds']} rounds. The fastest cell is framed.</p>"
    )
    drawn = figures.workers_by_children(found, out / "grid.png")
    return body + _figure(drawn, "Mean response time by cell", f"slackwater lab grid --out {parts.grid} --replay")


def _checked(found: dict[str, Any]) -> list[str]:
    body = []
    if found["validation"]["compared"]:
        rows = [
            (one["policy"], f"{one['lab_p95_ms']:.1f}", f"{one['simulated_p95_ms']:.1f}", f"{one['error']:+.0%}")
            for one in found["validation"]["compared"]
        ]
        body += [
            "<h2>The simulator against the lab</h2>",
            "<p>Fitted under `static` weights; all others are predictions.</p>",
        ]
        body.append(_table(("policy", "lab p95 ms", "simulated p95 ms", "error"), rows))
    if fit := found["estimator"]:
        laws = [(name, f"{fit[name]['r2']:.3f}", f"{fit[name]['mean_error']:.3f}") for name in ("linear", "quadratic")]
        body += ["<h2>The load estimator's law</h2>", f"<p>On {fit['samples']} Samples that neither saw.</p>"]
        body.append(_table(("law", "R²", "mean absolute error of CPU"), laws))
    return body


def _simulated(parts: Parts, out: Path, runs: Sequence[dict[str, Any]]) -> list[str]:
    if not runs:
        return []
    command = f"slackwater lab simulate ... --json {', '.join(map(str, parts.simulated))}"
    sized = [run for run in runs if run["setup"]["balancers"] == 1]
    usual = max({run["setup"]["servers"] for run in sized}, key=[run["setup"]["servers"] for run in sized].count)
    gains = [run for run in sized if run["setup"]["servers"] == usual]
    share = min({run["setup"]["noisy"] for run in sized}, key=lambda one: abs(one - 0.1))
    costs = [run for run in sized if run["setup"]["noisy"] == share]
    rows = [
        (
            run["model"],
            run["policy"],
            *(str(run["setup"][key]) for key in ("servers", "balancers", "noisy")),
            *(_number(run["felt"][key]) for key in ("mean_ms", "p95_ms", "p99_ms")),
            _number(run["turns_per_server_hour"]),
            *(_number(run["cost_ms"][part]["p50"]) for part in ("detector", "lbengine", "model")),
        )
        for run in runs
    ]
    heads = (
        "model",
        "policy",
        "servers",
        "balancers",
        "noisy",
        "mean ms",
        "p95 ms",
        "p99 ms",
        "turns per server and hour",
    )
    return [
        "<h2>Simulated</h2>",
        *_figure(figures.simulated_cost(costs, out / "cost.png"), "Cost of a decision", command),
        *_figure(figures.simulated_gain(gains, out / "gain.png"), f"p99 of {usual} servers", command),
        _table((*heads, "detector ms", "lbengine ms", "model ms"), rows),
    ]


def machine_in_words(summary: dict[str, Any]) -> str:
    """What it was measured on, in a sentence."""
    facts = summary["machine"]
    if not facts:
        return "The machine is not known."
    return (
        f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, HAProxy {facts['haproxy']}, Apache"
        f" {facts['apache']}, PHP {facts['php']}, {facts['hosts']} hosts of {facts['quota_cores']:g} core; load average"
        f" at the start {facts['load_average_at_start']:g}. Seed {summary['seed']}."
    )


def _figure(drawn: Path | None, caption: str, command: str) -> list[str]:
    if drawn is None:
        return []
    image = f'<img src="{escape(drawn.name)}" alt="{escape(caption)}">'
    return [f"<figure>{image}<figcaption>{escape(caption)}: <code>{escape(command)}</code></figcaption></figure>"]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
