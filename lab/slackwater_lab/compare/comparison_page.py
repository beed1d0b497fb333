"""The page of a comparison, drawn from its data file alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_lab.cells import templates
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.compare import comparison, results
from slackwater_lab.compare.defaults import (
    DEFAULT_HAPROXY,
    DEFAULT_POLICIES,
    DEFAULT_ROUNDS,
    DEFAULT_SCENARIOS,
    usual_first,
)
from slackwater_lab.compare.measured import Measured, machine_of
from slackwater_lab.compare.overload import RULE
from slackwater_lab.experiment.drawn import named
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.run import BACK_WITHIN_S, CALM_S, SETTLE_S

TITLES: Mapping[HostKind, str] = {
    "cgroup": "With the balancer alone, and with monitors",
    "uml": "On virtual machines: with the balancer alone, and with monitors",
}
COLUMNS = (("mean_ms", ".1f"), ("p95_ms", ".1f"), ("p99_ms", ".1f"), ("answers_s", ".2f"))


def page(runs: Sequence[Measured], data: str, place: str, overloaded: Sequence[Measured] = ()) -> str:
    """The page in Markdown; `data` and `place` are the paths of the data file and of this page in its commands.

    `overloaded`: runs that do not count, since the machine did not carry them.
    """
    cells = results.cells(runs)
    machines = Counter(_machine(run) for run in runs)
    return (
        templates("slackwater_lab.compare")
        .get_template("comparison.md.jinja")
        .render(
            command=shlex.join(["slackwater", "lab", "compare", "--data", data, "--page", place, *_options(runs)]),
            title=TITLES[_hosts(runs)],
            runs=runs,
            rows=[_row(cell) for cell in cells],
            pairs=comparison.pairs(cells),
            goals=comparison.goals(cells),
            figures=comparison.FIGURES,
            scenarios={name: named(name) for name in dict.fromkeys(cell["scenario"] for cell in cells)},
            policies={name: POLICIES[name] for name in dict.fromkeys(cell["policy"] for cell in cells)},
            begun=sorted(run.begun[:10] for run in runs),
            took_min=round(sum(run.took_s for run in runs) / 60),
            machines=list(machines),
            commits=list(dict.fromkeys(run.commit or "not recorded" for run in runs)),
            decisions=list(dict.fromkeys(run.decision_commit or "not recorded" for run in runs)),
            rates=_rates(runs),
            rule=RULE,
            left_out=_left_out(overloaded),
            loads=[run.machine_load for run in runs if run.machine_load is not None],
            settle_s=SETTLE_S,
            calm_s=CALM_S,
            back_within_s=BACK_WITHIN_S,
        )
    )


def _options(runs: Sequence[Measured]) -> list[str]:
    """The command's options that are not the default."""
    options = [("--haproxy", runs[0].machine["haproxy_command"])] if runs else []
    options = [option for option in options if option[1] != DEFAULT_HAPROXY]
    if _hosts(runs) != "cgroup":
        options.append(("--hosts", _hosts(runs)))
    for name, usual, given in (
        ("--scenario", DEFAULT_SCENARIOS, [run.scenario for run in runs]),
        ("--policy", DEFAULT_POLICIES, [run.variant for run in runs]),
    ):
        names = usual_first(given, usual)
        options += [(name, value) for value in names] if set(names) - set(usual) else []
    rounds = max(Counter((run.scenario, run.variant) for run in runs).values(), default=DEFAULT_ROUNDS)
    options += [("--rounds", str(rounds))] if rounds != DEFAULT_ROUNDS else []
    return [word for option in options for word in option]


def _hosts(runs: Sequence[Measured]) -> HostKind:
    """The kind of the hosts, of which a data file has one."""
    return runs[0].hosts if runs else "cgroup"


def _row(cell: Mapping[str, Any]) -> list[str]:
    """One row of the first table."""
    answered = cell["answered"]
    times = [_number(cell[key], form) for key, form in COLUMNS]
    if 0 < answered < cell["rounds"]:
        times[-1] += f" ({answered} of {cell['rounds']})"
    wrong = str(cell["wrong_moves"])
    return [f"`{cell['scenario']}`", f"`{cell['policy']}`", str(cell["rounds"]), *times, _back(cell["back_s"]), wrong]


def _number(estimate: Mapping[str, Any] | None, form: str) -> str:
    return "-" if estimate is None else format(estimate["value"], form)


def _back(back: Mapping[str, Any] | None) -> str:
    """`2.5`; `2.5 (1 of 5 later than 8)`."""
    if back is None:
        return "-"
    middle = f"> {BACK_WITHIN_S:g}" if back["value"] is None else f"{back['value']:.1f}"
    later = f" ({back['not_back']} of {back['count']} later than {BACK_WITHIN_S:g})" if back["not_back"] else ""
    return middle + later * (back["value"] is not None)


def _rates(runs: Sequence[Measured]) -> str:
    low, high = (round(edge(run.rate_rps for run in runs)) for edge in (min, max)) if runs else (0, 0)
    return f"{low}" if low == high else f"{low} to {high}"


def _left_out(overloaded: Sequence[Measured]) -> list[str]:
    """How many runs of each scenario and policy do not count."""
    counts = Counter((run.scenario, run.variant) for run in overloaded)
    return [f"`{scenario}` under `{policy}` {count}" for (scenario, policy), count in counts.items()]


def _machine(run: Measured) -> str:
    facts = run.machine
    return (
        f"{machine_of(facts)}; HAProxy {facts['haproxy']}, Apache {facts['apache']}, PHP {facts['php']};"
        f" {facts['hosts']} hosts of {facts['quota_cores']:g} core ({facts['hypervisor']})"
    )
