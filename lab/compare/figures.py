"""The figures of the report as PNG; readable without colour: lines have markers and dashes, bars have hatches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lab.compare.comparison import load
from lab.compare.grid import FAILED
from lab.compare.results import per_second
from lab.experiment import recording
from lab.experiment.scenarios import SEVERITY

LINES = (
    ("o", "-"),
    ("s", "--"),
    ("^", ":"),
    ("D", "-."),
    ("v", (0, (5, 1))),
    ("x", (0, (1, 1))),
    ("P", (0, (3, 1, 1, 1))),
)
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "+++", "---", "|||", "**", "OO")
GREYS = ("0.0", "0.35", "0.55", "0.2", "0.45", "0.65", "0.1")
WORST = 150.0
"""Percent."""
ICE_DETECTION_S = 3.0
IC2_DETECTION_S = (15.0, 20.0)
REFERENCES = {
    ("static", "second_means_median_ms"): (-94.0, "ICE -94%"),
    ("leastconn", "second_means_median_ms"): (-39.0, "ICE -39%"),
    ("leastconn", "p99_ms"): (-70.0, "DIAL -70%"),
    ("leastconn", "p95_ms"): (-48.0, "DIAL -48%"),
}
"""What the papers claim, by the policy that they compare with and our nearest measure."""


def _lines(axes: Axes, number: int, x: Any, y: Any, label: str) -> None:
    marker, dashes = LINES[number % len(LINES)]
    every = max(1, len(x) // 12)
    axes.plot(x, y, marker=marker, linestyle=dashes, color=GREYS[number % len(GREYS)], label=label, markevery=every)


def _save(figure: Any, path: Path, short: str) -> Path:
    """Writes it; of what is not whole it says so, on the picture and in its text."""
    figure.tight_layout()
    if short:
        figure.text(0.5, 1.0, short.split(";")[0], ha="center", va="bottom", fontweight="bold", fontsize=9)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Description": short} if short else None)
    plt.close(figure)
    return path


def over_time(
    folders: Sequence[Path], scenario: str, policies: Sequence[str], path: Path, short: str = ""
) -> Path | None:
    """Mean response time of each second from the onset on, the median over rounds; log scale. None without runs."""
    figure, axes = plt.subplots(figsize=(8, 4))
    drawn = 0
    for policy in policies:
        found: dict[float, list[float]] = {}
        for folder in folders:
            for run in load(folder).runs:
                if (run.scenario, run.policy) == (scenario, policy) and recording.done(folder, run):
                    for second, mean_ms in zip(*per_second(recording.read(folder, run)), strict=True):
                        found.setdefault(second, []).append(mean_ms)
        if found:
            seconds = sorted(found)
            _lines(axes, drawn, seconds, [float(np.median(found[one])) for one in seconds], policy)
            drawn += 1
    if not drawn:
        plt.close(figure)
        return None
    axes.axvline(0.0, color="0.5", linewidth=1)
    axes.set(xlabel="seconds from the onset of the noise", ylabel="mean response time, ms", yscale="log")
    axes.legend()
    return _save(figure, path, short)


def improvement(
    summary: dict[str, Any], scenario: str, policies: Sequence[str], path: Path, short: str = ""
) -> Path | None:
    """Change of our measures against `static` and `leastconn`, with intervals, and what the papers claim. What is worse
    by more than `WORST` is cut off there."""
    cells = {cell["policy"]: cell for cell in summary["cells"] if cell["scenario"] == scenario}
    ours = [name for name in policies if name in cells]
    measures = (("second_means_median_ms", "median of\nmeans per s"), ("p95_ms", "p95"), ("p99_ms", "p99"))
    figure, both = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
    drawn = False
    for axes, other in zip(both, ("static", "leastconn"), strict=True):
        for number, name in enumerate(ours):
            for place, (measure, _) in enumerate(measures):
                estimate = cells[name]["change"].get(other, {}).get(measure)
                if estimate is None:
                    continue
                drawn = True
                at = place + (number - (len(ours) - 1) / 2) * 0.8 / len(ours)
                value = 100 * estimate["value"]
                ends = None
                if estimate["low"] is not None:
                    ends = [[value - 100 * estimate["low"]], [100 * estimate["high"] - value]]
                axes.bar(
                    at,
                    value,
                    0.8 / len(ours),
                    yerr=ends,
                    capsize=3,
                    hatch=HATCHES[number % len(HATCHES)],
                    facecolor="0.9",
                    edgecolor="0",
                    label=name if place == 0 else None,
                )
        for place, (measure, _) in enumerate(measures):
            if claim := REFERENCES.get((other, measure)):
                axes.plot([place - 0.45, place + 0.45], [claim[0]] * 2, color="0", linewidth=2)
                axes.annotate(
                    claim[1],
                    (place, claim[0]),
                    (0, -3),
                    textcoords="offset points",
                    ha="center",
                    va="top",
                    fontsize=8,
                    bbox={"facecolor": "1", "edgecolor": "none", "pad": 1},
                )
        axes.axhline(0.0, color="0", linewidth=0.8)
        axes.set_xticks(range(len(measures)), [title for _, title in measures])
        axes.set_title(f"against {other}")
    if not drawn:
        plt.close(figure)
        return None
    both[0].set_ylabel("change, %")
    both[0].set_ylim(-105.0, min(both[0].get_ylim()[1], WORST))
    legend = {label: bar for axes in both for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(legend.values()), list(legend), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=6, fontsize=8
    )
    return _save(figure, path, short)


def answers(summary: dict[str, Any], path: Path, short: str = "") -> Path | None:
    """Seconds from onset to the first weight, all runs, as a distribution; with ICE's and IC²'s detection latency."""
    by_policy: dict[str, list[float]] = {}
    for run in summary["runs"]:
        if run["loud"]["answers_s"] is not None:
            by_policy.setdefault(run["policy"], []).append(run["loud"]["answers_s"])
    return _spread(by_policy, "seconds from onset to the first weight", "share of the runs", path, short)


def detections(summary: dict[str, Any], path: Path, short: str = "") -> Path | None:
    """Seconds from a neighbour's onset to the first Verdict, all neighbours that were found, where Verdicts are
    recorded; with ICE's and IC²'s detection latency."""
    by_policy: dict[str, list[float]] = {}
    for run in summary["runs"]:
        seen = [one for one in run["loud"]["detections_s"] or () if one is not None]
        if seen:
            by_policy.setdefault(run["policy"], []).extend(seen)
    return _spread(by_policy, "seconds from onset to the first Verdict", "share of those found", path, short)


def _spread(by_policy: dict[str, list[float]], what: str, share: str, path: Path, short: str) -> Path | None:
    figure, axes = plt.subplots(figsize=(8, 3.5))
    times_by_policy = [(policy, sorted(times)) for policy, times in by_policy.items() if "oracle" not in policy]
    for number, (policy, found) in enumerate(times_by_policy):
        label = f"{policy} ({len(found)})"
        _lines(axes, number, found, [(n + 1) / len(found) for n in range(len(found))], label)
    if not axes.lines:
        plt.close(figure)
        return None
    axes.axvline(ICE_DETECTION_S, color="0", linestyle="--")
    axes.annotate("ICE 3 s", (ICE_DETECTION_S, 0.02), rotation=90, fontsize=8)
    axes.axvspan(*IC2_DETECTION_S, facecolor="0.92", hatch="//", edgecolor="0.7")
    axes.annotate("IC² 15 to 20 s", (IC2_DETECTION_S[0], 0.02), fontsize=8)
    axes.set(xlabel=what, ylabel=share, xscale="log", ylim=(0, 1.05))
    axes.legend()
    return _save(figure, path, short)


def severity(summary: dict[str, Any], policies: Sequence[str], path: Path, short: str = "") -> Path | None:
    """Change of the median of means per second and of p99 against `static` and `leastconn`, by how much of its host the
    noisy server loses. None with less than two severities."""
    found = sorted((lost, scenario) for scenario, lost in SEVERITY.items())
    figure, both = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
    drawn, number = set(), 0
    for axes, other in zip(both, ("static", "leastconn"), strict=True):
        number = 0
        for policy in policies:
            for measure, title in (("second_means_median_ms", "median of means per s"), ("p99_ms", "p99")):
                points = [
                    (100 * lost, 100 * estimate["value"])
                    for lost, scenario in found
                    for cell in summary["cells"]
                    if (cell["scenario"], cell["policy"]) == (scenario, policy)
                    and (estimate := cell["change"].get(other, {}).get(measure)) is not None
                ]
                drawn |= {x for x, _ in points}
                _lines(axes, number, [x for x, _ in points], [y for _, y in points], f"{policy}, {title}")
                number += 1
        axes.axhline(0.0, color="0", linewidth=0.8)
        axes.set(title=f"against {other}", xlabel="share of the host that is lost, %")
    if len(drawn) < 2:
        plt.close(figure)
        return None
    both[0].set_ylabel("change, %")
    both[1].legend(fontsize=8)
    return _save(figure, path, short)


def workers_by_children(found: dict[str, Any], path: Path, short: str = "") -> Path | None:
    """MaxClients x pm.max_children: mean response time in each cell, calm and noisy; the best is framed.

    Cells that fail requests show the share.
    """
    phases = [phase for phase in ("calm", "noisy") if phase in found["best"]]
    if not phases:
        return None
    rows, columns = found["question"]["workers"], found["question"]["children"]
    figure, all_axes = plt.subplots(1, len(phases), figsize=(4.8 * len(phases), 4.2), squeeze=False)
    for axes, phase in zip(all_axes[0], phases, strict=True):
        means_ms = np.full((len(rows), len(columns)), np.nan)
        failed = np.zeros_like(means_ms)
        for cell in found["cells"]:
            if cell["phase"] == phase and cell["mean_ms"] is not None:
                place = rows.index(cell["workers"]), columns.index(cell["children"])
                means_ms[place], failed[place] = cell["mean_ms"], cell["errors"] / max(1.0, cell["requests"])
        shades = np.log(means_ms)
        low, high = float(np.nanmin(shades)), float(np.nanmax(shades))
        axes.imshow(
            shades, cmap="Greys", vmin=low, vmax=high + 0.6 * (high - low) + 1e-9, origin="lower", aspect="auto"
        )
        for (row, column), value in np.ndenumerate(means_ms):
            if np.isfinite(value):
                dark = np.log(value) > low + 0.9 * (high - low)
                words = f"{value:.3g}" + (f"\n{failed[row, column]:.0%} fail" if failed[row, column] > FAILED else "")
                axes.text(column, row, words, ha="center", va="center", color="1" if dark else "0")
        best = found["best"][phase]
        at = columns.index(best["children"]) - 0.5, rows.index(best["workers"]) - 0.5
        axes.add_patch(Rectangle(at, 1, 1, fill=False, linewidth=3))
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(title=f"{phase}: mean response time, ms", xlabel="pm.max_children", ylabel="MaxClients")
    return _save(figure, path, short)


def simulated_cost(runs: Sequence[dict[str, Any]], path: Path, short: str = "") -> Path | None:
    """CPU time of a decision cycle against the number of servers, by part."""
    ours = sorted((run for run in runs if run["policy"] == "slackwater"), key=lambda run: run["setup"]["servers"])
    if len({run["setup"]["servers"] for run in ours}) < 2:
        return None
    figure, axes = plt.subplots(figsize=(8, 4))
    for number, part in enumerate(("detector", "lbengine", "model")):
        _lines(axes, number, [r["setup"]["servers"] for r in ours], [r["cost_ms"][part]["p50"] for r in ours], part)
    axes.set(xlabel="servers", ylabel="CPU ms for a cycle (median)", xscale="log", yscale="log")
    axes.legend()
    return _save(figure, path, short)


def simulated_gain(runs: Sequence[dict[str, Any]], path: Path, short: str = "") -> Path | None:
    """p99 against the share of servers that are noisy, by policy."""
    shares = sorted({run["setup"]["noisy"] for run in runs})
    if len(shares) < 2:
        return None
    figure, axes = plt.subplots(figsize=(8, 4))
    for number, policy in enumerate(dict.fromkeys(run["policy"] for run in runs)):
        mine = sorted((run for run in runs if run["policy"] == policy), key=lambda run: run["setup"]["noisy"])
        points = [(100 * run["setup"]["noisy"], run["felt"]["p99_ms"]) for run in mine if run["felt"]["p99_ms"]]
        _lines(axes, number, [x for x, _ in points], [y for _, y in points], policy)
    axes.set(xlabel="share of servers noisy at a time, %", ylabel="p99, ms", yscale="log")
    axes.legend()
    return _save(figure, path, short)
