"""What a comparison shows: each policy of Slackwater against other balancers and the oracle, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_lab.experiment.drawn import named
from slackwater_lab.experiment.policies import POLICIES

FIGURES = {"mean_ms": "mean", "p95_ms": "p95", "p99_ms": "p99"}
STOCK = {"leastconn": "leastconn", "random(2)": "random2", "bounded-random": "random2", "roundrobin": "static"}
"""Balance algorithm -> policy that is the balancer's own, without any program of ours."""
BY_OTHERS = {"nginx-least-time": "nginx's `least_time`", "traefik-least-time": "Traefik's `leasttime`"}
BLOCKS = 3
"""Fewer blocks have no interval, and decide nothing."""
SLOWER = 1.03
ONE_SLOW_P99 = 0.3
WITH_MONITORS = 1.15
TO_ORACLE = 1.1
FULL = ("all", "load-80")
"""Scenarios with little room, in which monitors cost most."""
FIRST_CHANGE_S = 0.5
LONGEST = 100
"""Characters of a list in a cell."""
Cells = Sequence[Mapping[str, Any]]
"""Scenario x policy, as `results.cells` makes them."""


@dataclass(frozen=True)
class Ratio:
    """A figure of one policy as a multiple of another's in the same blocks."""

    scenario: str
    other: str
    figure: str
    blocks: int
    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """`0.62 [0.58, 0.66]`."""
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")

    @property
    def is_faster(self) -> bool:
        """Surely: the whole interval is below 1."""
        return self.high is not None and self.high < 1.0

    @property
    def is_slower(self) -> bool:
        return self.low is not None and self.low > 1.0

    @property
    def is_unsure(self) -> bool:
        return not (self.is_faster or self.is_slower)


@dataclass(frozen=True)
class Goal:
    """One line. `is_reached` is None where nothing can be said."""

    question: str
    measured: str
    is_reached: bool | None

    @property
    def word(self) -> str:
        return {True: "yes", False: "**no**", None: "not sure"}[self.is_reached]


@dataclass(frozen=True)
class Standing:
    """A policy of Slackwater against the fastest peer of each scenario and figure."""

    policy: str
    ratios: Sequence[Ratio]

    @property
    def slower(self) -> str:
        """How many figures are surely slower, and which."""
        slower = [pair for pair in self.ratios if pair.is_slower]
        return f"{len(slower)}: {by_scenario(slower)}" if slower else "0"


def policies(cells: Cells) -> list[str]:
    return list(dict.fromkeys(cell["policy"] for cell in cells))


def scenarios(cells: Cells) -> list[str]:
    return list(dict.fromkeys(cell["scenario"] for cell in cells))


def is_ours(policy: str) -> bool:
    return policy.startswith("slackwater")


def is_oracle(policy: str) -> bool:
    return policy.startswith("oracle")


def is_peer(policy: str) -> bool:
    """Whether somebody could run it in place of Slackwater."""
    return not (is_ours(policy) or is_oracle(policy) or policy.startswith("observed"))


def fastest_peer(cells: Cells, scenario: str, figure: str) -> str | None:
    """The peer with the least median; None without any."""
    medians = {
        cell["policy"]: cell[figure]["value"]
        for cell in cells
        if cell["scenario"] == scenario and is_peer(cell["policy"]) and cell[figure] is not None
    }
    return min(medians, key=lambda policy: medians[policy], default=None)


def ratio(cells: Cells, scenario: str, policy: str, other: str | None, figure: str) -> Ratio | None:
    """None where no block has both."""
    for cell in cells:
        if (cell["scenario"], cell["policy"]) == (scenario, policy) and (
            of := cell["ratio"].get(other, {}).get(figure)
        ):
            return Ratio(scenario, str(other), FIGURES[figure], of["count"], of["value"], of["low"], of["high"])
    return None


def to_fastest_peer(cells: Cells, scenario: str, policy: str, figure: str) -> Ratio | None:
    return ratio(cells, scenario, policy, fastest_peer(cells, scenario, figure), figure)


def standings(cells: Cells) -> list[Standing]:
    made = []
    for policy in filter(is_ours, policies(cells)):
        pairs = [to_fastest_peer(cells, name, policy, figure) for name in scenarios(cells) for figure in FIGURES]
        if ratios := [pair for pair in pairs if pair is not None]:
            made.append(Standing(policy, ratios))
    return made


def own(policy: str) -> str | None:
    """The balance algorithm's own policy, which this one is based on."""
    return STOCK.get(POLICIES[policy].balance)


def head(policy: str) -> str:
    """A policy as the tables call it."""
    known = POLICIES[policy]
    if policy == own(policy):
        return f"`{known.balance}`"
    if policy in ("slackwater", "slackwater-lc", "slackwater-random"):
        return f"Slackwater with monitors, `{known.balance}`"
    if policy in ("slackwater-lb", "slackwater-lb-lc", "slackwater-lb-random"):
        return f"Slackwater alone, `{known.balance}`"
    if policy in ("oracle", "oracle-lc"):
        return f"oracle, `{known.balance}`"
    if policy.startswith("observed"):
        return f"monitors that only watch, `{known.balance}`"
    return BY_OTHERS.get(policy, f"`{policy}`")


def goals(cells: Cells) -> list[Goal]:
    """What is asked of Slackwater, each with what was measured."""
    lines = []
    for standing in standings(cells):
        policy, stock, name = standing.policy, own(standing.policy), head(standing.policy)
        against = _all(cells, policy, stock)
        if stock is not None and against:
            lines.append(_not_slower(f"{name}: no figure 3% slower than {head(stock)}'s", against))
        lines.append(_not_slower(f"{name}: no figure 3% slower than the fastest peer's", standing.ratios))
        one_slow = [pair for pair in against if pair.figure == "p99" and len(_hosts(pair.scenario)) == 1]
        lines.append(_at_most(f"{name}, one of three slow: p99 to its own balancer's", ONE_SLOW_P99, one_slow))
        for oracle in filter(is_oracle, policies(cells)):
            if POLICIES[oracle].balance == POLICIES[policy].balance:
                lines.append(_at_most(f"{name}: to the oracle", TO_ORACLE, _all(cells, policy, oracle)))
        if (watched := _watched(policy)) is not None:
            one = [pair for pair in _all(cells, policy, watched) if pair.scenario.startswith("one")]
            lines.append(_at_most(f"{name}, one of three slow: to that with monitors", WITH_MONITORS, one))
            full = [pair for pair in _all(cells, watched, policy) if pair.scenario in FULL]
            where = " and ".join(f"`{scenario}`" for scenario in FULL)
            lines.append(_at_most(f"{head(watched)}, in {where}: to that alone", 1.0, full))
        lines += _moves(policy, [cell for cell in cells if cell["policy"] == policy])
    return [line for line in lines if line.measured]


def _watched(policy: str) -> str | None:
    """The same policy with monitors; None for others."""
    return policy.replace("-lb", "") if "-lb-" in policy else None


def _hosts(scenario: str) -> frozenset[int]:
    known = named(scenario)
    return known.hosts if known is not None else frozenset()


def _all(cells: Cells, policy: str, other: str | None) -> list[Ratio]:
    pairs = [ratio(cells, name, policy, other, figure) for name in scenarios(cells) for figure in FIGURES]
    return [pair for pair in pairs if pair is not None]


def by_scenario(ratios: Iterable[Ratio]) -> str:
    """Names of scenarios and figures, as many as a cell holds."""
    figures: dict[str, list[str]] = {}
    for pair in ratios:
        figures.setdefault(pair.scenario, []).append(pair.figure)
    return _short([f"`{scenario}` {', '.join(names)}" for scenario, names in figures.items()])


def _short(parts: Sequence[str]) -> str:
    """`a; b; and 3 more`."""
    kept = list(parts)
    while len("; ".join(kept)) > LONGEST:
        kept.pop()
    more = len(parts) - len(kept)
    return "; ".join([*kept, *([f"and {more} more"] if more else [])])


def _not_slower(question: str, ratios: Sequence[Ratio]) -> Goal:
    """Reached where the whole interval of each figure is at or below the limit."""
    sure = [pair for pair in ratios if pair.high is not None and pair.high <= SLOWER]
    slower = [pair for pair in ratios if pair.low is not None and pair.low > SLOWER]
    reached = False if slower else None if len(sure) < len(ratios) else True
    words = f"sure in {len(sure)} of {len(ratios)}"
    return Goal(question, words + (f"; surely slower: {by_scenario(slower)}" if slower else ""), reached)


def _at_most(question: str, limit: float, ratios: Sequence[Ratio]) -> Goal:
    """Reached where each figure is at or below the limit; its interval need not be."""
    enough = all(pair.blocks >= BLOCKS for pair in ratios)
    above = [pair for pair in ratios if pair.value > limit]
    words = _span([pair.value for pair in ratios])
    if above:
        words += f"; above in {len(above)} of {len(ratios)}: {by_scenario(above)}"
    return Goal(f"{question} at most {limit:g} times", words, not above if enough else None)


def _span(values: Sequence[float]) -> str:
    """`0.17 to 0.87`; empty for none."""
    return " to ".join(dict.fromkeys(f"{edge(values):.2f}" for edge in (min, max))) if values else ""


def _moves(policy: str, cells: Cells) -> list[Goal]:
    """The times until the first lower weight, and the weights that fell without a neighbour."""
    times = [cell["answers_s"]["value"] for cell in cells if cell["answers_s"] is not None]
    wrong = {cell["scenario"]: cell["wrong_moves"] for cell in cells if cell["wrong_moves"]}
    later = sum(time_s > FIRST_CHANGE_S for time_s in times)
    where = f": {_short([f'`{name}` {count}' for name, count in wrong.items()])}" if wrong else ""
    runs = sum(cell["rounds"] for cell in cells)
    return [
        Goal(
            f"{head(policy)}: first lower weight within {FIRST_CHANGE_S:g} s (median)",
            f"{_span(times)} s" + (f"; later in {later} of {len(times)}" if later else "") if times else "",
            not later,
        ),
        Goal(
            f"{head(policy)}: no weight falls without a neighbour",
            f"{sum(wrong.values())} in {runs} runs{where}",
            not wrong,
        ),
    ]
