"""What a comparison shows: its pairs of policies with their ratios, and sentences on what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_lab.cluster.peers import PEERS
from slackwater_lab.experiment.drawn import named
from slackwater_lab.experiment.policies import POLICIES

FIGURES = {"mean_ms": "mean", "p95_ms": "p95", "p99_ms": "p99"}
STOCK = {"leastconn": "leastconn", "random(2)": "random2", "bounded-random": "random2", "roundrobin": "static"}
"""Balance algorithm -> policy that is the balancer's own, without any program of ours."""
BLOCKS = 3
"""Fewer blocks have no interval, and decide nothing."""
SLOWER = 1.03
ONE_SLOW_P99 = 0.3
WITH_MONITORS = 1.15
FULL = ("all", "load-80")
"""Scenarios with little room, in which monitors cost most."""
FIRST_CHANGE_S = 0.5
Cells = Sequence[Mapping[str, Any]]
"""Scenario x policy, as `results.cells` makes them."""


@dataclass(frozen=True)
class Ratio:
    """A figure of one policy as a multiple of another's in the same blocks."""

    scenario: str
    figure: str
    blocks: int
    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """`0.62 [0.58, 0.66]`."""
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")

    @property
    def named(self) -> str:
        return f"`{self.scenario}` {self.figure} {self}"


@dataclass(frozen=True)
class Pair:
    """Two policies, and their ratios in each scenario that has both."""

    policy: str
    other: str
    ratios: Mapping[str, Mapping[str, Ratio]]
    """Scenario -> figure, such as `p99_ms` -> ratio."""

    @property
    def words(self) -> str:
        return f"`{self.policy}` against `{self.other}`"


@dataclass(frozen=True)
class Goal:
    """One line. `is_reached` is None where nothing can be said."""

    question: str
    measured: str
    is_reached: bool | None

    @property
    def word(self) -> str:
        return {True: "yes", False: "**no**", None: "not sure"}[self.is_reached]


def pairs(cells: Cells) -> list[Pair]:
    """The pairs that are of interest: each policy against the balancer's own algorithms, its own one first; Slackwater
    against other balancers and oracles too, and without monitors against with them."""
    present = dict.fromkeys(cell["policy"] for cell in cells)
    wanted: list[tuple[str, str]] = []
    for policy in present:
        own = STOCK.get(POLICIES[policy].balance)
        others = [own, "leastconn", "random2"]
        if policy.startswith("slackwater"):
            others += [name for name in present if name in PEERS or name.startswith("oracle")]
        if policy not in STOCK.values():
            wanted += [(policy, name) for name in dict.fromkeys(others) if name is not None and name in present]
        if (watched := _watched(policy)) is not None and watched in present:
            wanted.append((policy, watched))
    return [made for policy, other in wanted if (made := _pair(cells, policy, other)).ratios]


def _watched(policy: str) -> str | None:
    """The same policy with monitors; None for others."""
    return policy.replace("-lb", "") if "-lb-" in policy else None


def _pair(cells: Cells, policy: str, other: str) -> Pair:
    ratios = {}
    for cell in cells:
        against = cell["ratio"].get(other)
        if cell["policy"] == policy and against is not None and against["mean_ms"] is not None:
            scenario = cell["scenario"]
            ratios[scenario] = {
                key: Ratio(scenario, name, of["count"], of["value"], of["low"], of["high"])
                for key, name in FIGURES.items()
                if (of := against[key]) is not None
            }
    return Pair(policy, other, ratios)


def goals(cells: Cells) -> list[Goal]:
    """What is asked of the policies without monitors, each with what was measured."""
    lines = []
    for pair in pairs(cells):
        if _watched(pair.policy) is None or pair.other.startswith("oracle"):
            continue
        if pair.other == _watched(pair.policy):
            lines += _beside_monitors(pair)
        else:
            lines.append(_not_slower(f"{pair.words}: no figure is slower by 3%", _all(pair), SLOWER))
            if STOCK.get(POLICIES[pair.policy].balance) == pair.other:
                one_slow = [ratio for ratio in _all(pair, ("p99_ms",)) if len(_hosts(ratio.scenario)) == 1]
                lines.append(_at_most(f"{pair.words}, one of three slow: p99", ONE_SLOW_P99, one_slow))
    alone = [cell for cell in cells if _watched(cell["policy"]) is not None]
    lines += [goal for policy in dict.fromkeys(cell["policy"] for cell in alone) for goal in _moves(policy, alone)]
    return [line for line in lines if line.measured]


def _hosts(scenario: str) -> frozenset[int]:
    known = named(scenario)
    return known.hosts if known is not None else frozenset()


def _all(pair: Pair, figures: Iterable[str] = FIGURES) -> list[Ratio]:
    return [ratios[key] for ratios in pair.ratios.values() for key in figures if key in ratios]


def _beside_monitors(pair: Pair) -> list[Goal]:
    one_slow = [ratio for ratio in _all(pair) if ratio.scenario.startswith("one")]
    full = [ratio for ratio in _all(pair) if ratio.scenario in FULL]
    return [
        _at_most(f"{pair.words}, one of three slow:", WITH_MONITORS, one_slow),
        _at_most(f"{pair.words} in {' and '.join(f'`{name}`' for name in FULL)}", 1.0, full),
    ]


def _not_slower(question: str, ratios: Sequence[Ratio], limit: float) -> Goal:
    """Reached where the whole interval of each figure is at or below the limit."""
    sure = [ratio for ratio in ratios if ratio.high is not None and ratio.high <= limit]
    slower = [ratio for ratio in ratios if ratio.low is not None and ratio.low > limit]
    unsure = [ratio for ratio in ratios if ratio not in sure and ratio not in slower]
    parts = [f"sure in {len(sure)} of {len(ratios)} figures"] if ratios else []
    parts += [f"surely slower: {', '.join(ratio.named for ratio in slower)}"] if slower else []
    parts += [f"not sure: {_by_scenario(unsure)}"] if unsure else []
    return Goal(question, "; ".join(parts), False if slower else None if unsure else True)


def _by_scenario(ratios: Sequence[Ratio]) -> str:
    """The figures' names alone; their values are in the table of ratios."""
    figures: dict[str, list[str]] = {}
    for ratio in ratios:
        figures.setdefault(ratio.scenario, []).append(ratio.figure)
    return "; ".join(f"`{scenario}` {', '.join(names)}" for scenario, names in figures.items())


def _at_most(question: str, limit: float, ratios: Sequence[Ratio]) -> Goal:
    """Reached where each figure is at or below the limit; its interval need not be."""
    enough = all(ratio.blocks >= BLOCKS for ratio in ratios)
    reached = all(ratio.value <= limit for ratio in ratios) if enough else None
    return Goal(f"{question} at most {limit:g} times", ", ".join(ratio.named for ratio in ratios), reached)


def _moves(policy: str, cells: Cells) -> list[Goal]:
    """The times until the first lower weight, and the weights that fell without a neighbour."""
    own = [cell for cell in cells if cell["policy"] == policy]
    first = {cell["scenario"]: cell["answers_s"] for cell in own if cell["answers_s"] is not None}
    times = ", ".join(f"`{name}` {estimate['value']:.2f} s" for name, estimate in first.items())
    wrong = {cell["scenario"]: cell["wrong_moves"] for cell in own if cell["wrong_moves"]}
    runs = sum(cell["rounds"] for cell in own)
    where = ", ".join(f"`{name}` {count}" for name, count in wrong.items())
    return [
        Goal(
            f"`{policy}`: first lower weight within {FIRST_CHANGE_S:g} s (median)",
            times,
            all(estimate["value"] <= FIRST_CHANGE_S for estimate in first.values()),
        ),
        Goal(
            f"`{policy}`: no weight falls without a neighbour",
            f"{sum(wrong.values())} in {runs} runs" + (f": {where}" if where else ""),
            not wrong,
        ),
    ]
