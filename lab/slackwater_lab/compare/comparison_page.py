"""The page of a comparison, drawn from its data file alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slackwater_lab.cells import templates
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.compare import comparison, drawn_in_lab, results
from slackwater_lab.compare.comparison import FIGURES, Cells, Ratio, head, is_oracle, is_ours
from slackwater_lab.compare.defaults import (
    DEFAULT_HAPROXY,
    DEFAULT_POLICIES,
    DEFAULT_ROUNDS,
    DEFAULT_SCENARIOS,
    usual_first,
)
from slackwater_lab.compare.measured import Measured, machine_of
from slackwater_lab.compare.overload import RULE
from slackwater_lab.experiment.drawn import named, seed_of
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.run import BACK_WITHIN_S, CALM_S, SETTLE_S

TITLES: Mapping[HostKind, str] = {
    "cgroup": "Slackwater beside today's load balancers",
    "uml": "Slackwater beside today's load balancers, on virtual machines",
}


def page(
    runs: Sequence[Measured],
    data: str,
    place: str,
    overloaded: Sequence[Measured] = (),
    others: Mapping[str, Sequence[Measured]] | None = None,
) -> str:
    """The page in Markdown; `data` and `place` are the paths of the data file and of this page in its commands.

    `overloaded`: runs that do not count, since the machine did not carry them. `others`: path of a further data file ->
    its runs, on other versions of HAProxy.
    """
    cells = results.cells(runs)
    others = others or {}
    drawn = bool(runs) and all(seed_of(run.scenario) is not None for run in runs)
    words = ["slackwater", "lab", "compare", "--data", data, "--page", place, *_options(runs)]
    return (
        templates("slackwater_lab.compare")
        .get_template("drawn.md.jinja" if drawn else "comparison.md.jinja")
        .render(
            command=shlex.join([*words, *(word for path in others for word in ("--also", path))]),
            title=TITLES[_hosts(runs)],
            runs=runs,
            has_oracle=any(map(is_oracle, comparison.policies(cells))),
            standings=comparison.standings(cells),
            heads=list(map(head, comparison.policies(cells))),
            head=head,
            levels={name: _levels(cells, figure) for figure, name in FIGURES.items()},
            to_peers=_to_peers(cells),
            to_own=_to_own(cells),
            moves=[_moves(cell) for cell in cells if is_ours(cell["policy"])],
            failures=_failures(runs),
            goals=comparison.goals(cells),
            figures=FIGURES,
            fewest=min((cell["rounds"] for cell in cells), default=0),
            scenarios={name: named(name) for name in comparison.scenarios(cells)},
            policies={name: POLICIES[name] for name in comparison.policies(cells)},
            others=[_other(path, measured) for path, measured in others.items()],
            drawn=drawn_in_lab.summary(runs, cells) if drawn else None,
            how=_how(runs, overloaded),
        )
    )


def _how(runs: Sequence[Measured], overloaded: Sequence[Measured]) -> dict[str, Any]:
    return {
        "begun": sorted(run.begun[:10] for run in runs),
        "took_min": round(sum(run.took_s for run in runs) / 60),
        "machines": list(Counter(_machine(run) for run in runs)),
        "commits": list(dict.fromkeys(run.commit or "not recorded" for run in runs)),
        "decisions": list(dict.fromkeys(run.decision_commit or "not recorded" for run in runs)),
        "rates": _rates(runs),
        "rule": RULE,
        "left_out": _left_out(overloaded),
        "loads": [run.machine_load for run in runs if run.machine_load is not None],
        "settle_s": SETTLE_S,
        "calm_s": CALM_S,
        "back_within_s": BACK_WITHIN_S,
    }


def _other(path: str, runs: Sequence[Measured]) -> dict[str, Any]:
    """A section of a further data file."""
    scenarios = usual_first((run.scenario for run in runs), DEFAULT_SCENARIOS)
    policies = usual_first((run.variant for run in runs), DEFAULT_POLICIES)
    runs = sorted(runs, key=lambda run: (scenarios.index(run.scenario), policies.index(run.variant)))
    cells = results.cells(runs)
    options = ["--data", path, *_options(runs)]
    return {
        "haproxy": ", ".join(dict.fromkeys(run.machine["haproxy"] for run in runs)) or "another version",
        "command": shlex.join(["slackwater", "lab", "compare", *options]),
        "rows": [_against_own(cells, cell) for cell in cells],
        "how": _how(runs, ()),
        "runs": len(runs),
    }


def _against_own(cells: Cells, cell: Mapping[str, Any]) -> list[str]:
    """A row: medians, and multiples of what the balancer's own algorithm has."""
    scenario, policy = cell["scenario"], cell["policy"]
    own = comparison.own(policy)
    ratios = [comparison.ratio(cells, scenario, policy, own, figure) for figure in FIGURES]
    levels = [_number(cell[figure], ".1f") for figure in FIGURES]
    return [f"`{scenario}`", head(policy), str(cell["rounds"]), *levels, *map(_multiple, ratios)]


def _options(runs: Sequence[Measured]) -> list[str]:
    """The command's options that are not the default."""
    options = [("--haproxy", runs[0].machine["haproxy_command"])] if runs else []
    options = [option for option in options if option[1] != DEFAULT_HAPROXY]
    if _hosts(runs) != "cgroup":
        options.append(("--hosts", _hosts(runs)))
    scenarios = dict.fromkeys(run.scenario for run in runs)
    seeds = {seed_of(name) for name in scenarios}
    seed = seeds.pop() if len(seeds) == 1 else None
    usual_rounds = DEFAULT_ROUNDS if seed is None else 1
    if seed is not None:
        options += [("--random", str(len(scenarios))), ("--seed", str(seed))]
    for name, usual, given in (
        ("--scenario", DEFAULT_SCENARIOS, scenarios if seed is None else ()),
        ("--policy", DEFAULT_POLICIES, [run.variant for run in runs]),
    ):
        names = usual_first(given, usual)
        options += [(name, value) for value in names] if set(names) and set(names) != set(usual) else []
    rounds = max(Counter((run.scenario, run.variant) for run in runs).values(), default=usual_rounds)
    options += [("--rounds", str(rounds))] if rounds != usual_rounds else []
    return [word for option in options for word in option]


def _hosts(runs: Sequence[Measured]) -> HostKind:
    """The kind of the hosts, of which a data file has one."""
    return runs[0].hosts if runs else "cgroup"


def _what(scenario: str) -> str:
    known = named(scenario)
    return f"`{scenario}`: {known.description}" if known is not None else f"`{scenario}`"


def _levels(cells: Cells, figure: str) -> list[list[str]]:
    """A row a scenario: medians of each policy; the fastest peer's is bold, ours is marked where it is surely faster or
    slower than that."""
    rows = []
    for scenario in comparison.scenarios(cells):
        own = {cell["policy"]: cell for cell in cells if cell["scenario"] == scenario}
        fastest = comparison.fastest_peer(cells, scenario, figure)
        row = [_what(scenario)]
        for policy in comparison.policies(cells):
            level = _number(own[policy][figure], ".1f") if policy in own else "-"
            pair = comparison.to_fastest_peer(cells, scenario, policy, figure) if is_ours(policy) else None
            row.append(f"**{level}**" if policy == fastest else level + _mark(pair))
        rows.append(row)
    return rows


def _mark(pair: Ratio | None) -> str:
    return "" if pair is None or pair.is_unsure else " ✓" if pair.is_faster else " ✗"


def _multiple(pair: Ratio | None) -> str:
    return "-" if pair is None else str(pair) + _mark(pair)


def _to_peers(cells: Cells) -> list[list[str]]:
    """Rows of scenario x policy of ours: multiples of the fastest peer's figures."""
    return _multiples(
        cells, lambda name, _policy, figure: comparison.fastest_peer(cells, name, figure), named_other=True
    )


def _to_own(cells: Cells) -> list[list[str]]:
    """The same of the algorithm that it is based on."""
    return _multiples(cells, lambda _name, policy, _figure: comparison.own(policy), named_other=False)


def _multiples(cells: Cells, other: Callable[[str, str, str], str | None], *, named_other: bool) -> list[list[str]]:
    """`other`: (scenario, policy, figure) -> policy of which a multiple is shown."""
    rows = []
    for scenario in comparison.scenarios(cells):
        for policy in filter(is_ours, comparison.policies(cells)):
            ratios = [
                comparison.ratio(cells, scenario, policy, other(scenario, policy, figure), figure) for figure in FIGURES
            ]
            words = [_multiple(pair) + (f", {head(pair.other)}" if named_other and pair else "") for pair in ratios]
            if any(ratios):
                rows.append([f"`{scenario}`", head(policy), *words])
    return rows


def _moves(cell: Mapping[str, Any]) -> list[str]:
    """How soon a policy moved in a scenario, and how often wrongly."""
    first = _number(cell["answers_s"], ".2f")
    if 0 < cell["answered"] < cell["rounds"]:
        first += f" ({cell['answered']} of {cell['rounds']})"
    return [f"`{cell['scenario']}`", head(cell["policy"]), first, _back(cell["back_s"]), str(cell["wrong_moves"])]


def _failures(runs: Sequence[Measured]) -> list[str]:
    """Where requests failed: share of all beside the neighbours."""
    shares = []
    for scenario, policy in dict.fromkeys((run.scenario, run.variant) for run in runs):
        own = [run.loud for run in runs if (run.scenario, run.variant) == (scenario, policy)]
        errors, requests = (sum(figures.get(key) or 0.0 for figures in own) for key in ("errors", "requests"))
        if errors and requests:
            shares.append(f"`{scenario}` under {head(policy)} {errors / requests:.2%}")
    return shares


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
