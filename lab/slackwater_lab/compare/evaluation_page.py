"""The evaluation's page, drawn from its data file alone."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from slackwater_lab.cells import templates
from slackwater_lab.cluster.commit import DECISION_CODE
from slackwater_lab.compare import goals
from slackwater_lab.compare.evaluation import VARIANTS
from slackwater_lab.compare.measured import Measured, as_runs, machine_of
from slackwater_lab.experiment.scenarios import SCENARIOS

SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("mean_ms", "mean ms", "{:.1f}".format),
    ("p50_ms", "p50 ms", "{:.1f}".format),
    ("p95_ms", "p95 ms", "{:.1f}".format),
    ("p99_ms", "p99 ms", "{:.1f}".format),
    ("errors_share", "errors", "{:.2%}".format),
    ("answers_s", "first weight after s", "{:.2f}".format),
)
OUT = "evaluation-run"


def page(runs: Sequence[Measured], data: str, place: str) -> str:
    """The page in Markdown; `data` and `place` are the paths of the data file and of this page in the commands."""
    command = ["slackwater", "lab", "evaluate", "--out", OUT, "--data", data, "--page", place]
    return (
        templates("slackwater_lab.compare")
        .get_template("evaluation.md.jinja")
        .render(
            command=shlex.join(command),
            replay=shlex.join([*command[:3], *command[5:], "--replay"]),
            runs=runs,
            rounds=goals.ROUNDS,
            begun=sorted(run.begun[:10] for run in runs),
            machines=Counter(_machine(run) for run in runs),
            commits=Counter(run.commit or "not recorded" for run in runs),
            decisions=Counter(run.decision_commit or "not recorded" for run in runs),
            decision_code=DECISION_CODE,
            kinds=[_kind(hosts, [run for run in runs if run.hosts == hosts]) for hosts in _kinds(runs)],
            ours=goals.OURS,
            stock=goals.STOCK,
            figures=goals.MEASURES,
            titles=[title for _, title, _ in SHOWN],
        )
    )


def _kinds(runs: Sequence[Measured]) -> list[str]:
    """The goals are asked of cgroups, measured or not."""
    return list(dict.fromkeys(["cgroup", *(run.hosts for run in runs)]))


def _kind(hosts: str, measured: Sequence[Measured]) -> dict[str, Any]:
    """Goals and tables of one kind of hosts."""
    runs = as_runs(measured)
    names = [name for name in VARIANTS if any(run.scenario == name for run in measured)]
    return {
        "hosts": hosts,
        "goals": goals.of_lab(runs),
        "changes": [
            (name, [goals.against(runs, name, goals.OURS, (goals.STOCK,), key) for key in goals.MEASURES])
            for name in names
        ],
        "scenarios": [_scenario(name, [run for run in measured if run.scenario == name]) for name in names],
    }


def _scenario(name: str, runs: Sequence[Measured]) -> dict[str, Any]:
    """A table: a row for each variant that was measured."""
    rows = []
    for variant in VARIANTS[name]:
        if measured := [run for run in runs if run.variant == variant]:
            cells = [_median([run.loud[key] for run in measured], form) for key, _, form in SHOWN]
            rows.append((variant, measured[0].balance, len(measured), cells))
    return {
        "name": name,
        "description": SCENARIOS[name].description,
        "rows": rows,
        "machines": dict.fromkeys(machine_of(run.machine) for run in runs),
        "commits": dict.fromkeys(run.commit or "not recorded" for run in runs),
        "rates_rps": _median([run.rate_rps for run in runs], "{:.0f}".format),
    }


def _machine(run: Measured) -> str:
    facts = run.machine
    return (
        f"{machine_of(facts)}, HAProxy {facts['haproxy']}, Apache {facts['apache']}, PHP {facts['php']};"
        f" {facts['hosts']} hosts of {facts['quota_cores']:g} core, {facts['hypervisor']}"
    )


def _median(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    """`12.3 (10.1 to 14.9)`: median and range of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle, low, high = (form(value) for value in (statistics.median(known), min(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"
