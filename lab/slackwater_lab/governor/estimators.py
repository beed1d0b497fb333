"""The table `estimators`: how many configurations and how much of the data Heimdall's estimators need.

Source: Eggen and Eggen 2019, Figures 4.5 and 4.6 and section 4.2.2. A random forest learns from the first part of the
data of some configurations, drawn at random so that each number of cores is among them, and is tested on all data. The
reinforcement learner is measured while it learns from the same data, configuration after configuration: from a uniform
table, after one pass, and after several. That it is this data, and no run of one configuration, follows from the text:
violations count in its correctness, and are up to several hundred targets long, as only low configurations have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slackwater.detector.tail.data import Rows
from slackwater.detector.tail.estimator import paae, r2
from slackwater.detector.tail.regressors import Forest
from slackwater.detector.tail.table import TabularLearner
from slackwater.governor.types import Hardware
from slackwater_lab.governor.figures import Figure, one_by_one
from slackwater_lab.governor.heimdall import STEP_S, TARGET_MS, machine
from slackwater_lab.governor.heimdall_table import PROFILE_STEP_S, with_clocks
from slackwater_lab.governor.policies.heimdall_rl import LEAST_MS
from slackwater_lab.governor.profile import profile

COUNTS = (4, 12, 32, 51)
SHARES = (0.2, 0.4, 0.5, 1.0)
MANY_PASSES = 20
"""The thesis: 100, and hardly better than 1."""


def some(rows: Rows, count: int, share: float, random: np.random.Generator) -> Rows:
    """The first `share` of the rows of `count` configurations."""
    cores = rows.inputs[:, 1]
    all_numbers = np.unique(rows.configuration)
    chosen = {int(random.choice(np.unique(rows.configuration[cores == number]))) for number in np.unique(cores)}
    others = random.permutation([number for number in all_numbers if number not in chosen])
    chosen |= {int(number) for number in others[: max(0, count - len(chosen))]}
    kept = []
    for number in sorted(chosen):
        indices = np.flatnonzero(rows.configuration == number)
        kept.append(indices[: max(1, round(share * len(indices)))])
    return rows.only(np.concatenate(kept))


def online(processor: Hardware, rows: Rows, passes: int, seed: int) -> tuple[float, float]:
    """Correctness in % and PAAE of the seconds within the target, of a pass over the data after `passes` others. The
    state is the second before's (section 3.2.2). A second's estimate is the one that earns the reward: in 5% of the
    seconds at random (section 4.1.7)."""
    known = with_clocks(processor, rows)
    before = np.flatnonzero(np.diff(rows.configuration) == 0)
    states, measured_ms = known.inputs[before], known.p95_ms[before + 1]
    table = TabularLearner(LEAST_MS, TARGET_MS, seed)
    table.fit(known.only(np.array([known.inputs[:, 0].argmax()])))  # one second, so that it knows the highest load
    predicted: list[float] = []
    for number in range((passes + 1) * len(states)):
        index = number % len(states)
        following = states[index + 1] if index + 1 < len(states) else None
        estimate_ms = table.learn(states[index], float(measured_ms[index]), following)
        if number >= passes * len(states):
            predicted.append(estimate_ms)
    estimates = np.array(predicted)
    right = 100.0 * float(np.mean(table.buckets(estimates) == table.buckets(measured_ms)))
    kept = measured_ms < TARGET_MS
    return right, paae(estimates[kept], measured_ms[kept])


def compare(
    seeds: Sequence[int],
    curve: str,
    progress: Callable[[str], None] = lambda _: None,
    *,
    step_s: int = PROFILE_STEP_S,
) -> list[Figure]:
    """The table's figures; the power model plays no part in them. `step_s` is what the forests learn from."""
    processor = machine(curve)
    rows = profile(step_s)
    errors: dict[tuple[int, float], list[float]] = {}
    fits: dict[tuple[int, float], list[float]] = {}
    for count in COUNTS:
        for share in SHARES:
            for seed in one_by_one(seeds, f"estimators: {count} configurations, {share:.0%} of the data", progress):
                forest = Forest(seed)
                forest.fit(some(rows, count, share, np.random.default_rng([seed, count])))
                predicted = forest.predict_ms(rows.inputs)
                errors.setdefault((count, share), []).append(paae(predicted, rows.p95_ms))
                fits.setdefault((count, share), []).append(r2(predicted, rows.p95_ms))
    figures: list[Figure] = []
    for (count, share), values in errors.items():
        case = f"{count} configurations, {share:.0%} of the data"
        figures.append(Figure(case, "random forest", "PAAE", values, "about 1" if count == COUNTS[0] else ""))
        figures.append(Figure(case, "random forest", "R2", fits[count, share]))
    ratio = [a / b for a, b in zip(errors[12, 1.0], errors[51, 1.0], strict=True)]
    figures.append(Figure("12 over 51 configurations", "random forest", "PAAE ratio", ratio, "near 1", None, 1.3))
    more = [a / b for a, b in zip(errors[51, 0.4], errors[51, 1.0], strict=True)]
    figures.append(Figure("40% over all of the data", "random forest", "PAAE ratio", more, "near 1"))
    for passes, correct, error in ((0, 71.7, "0.09"), (1, 79.1, "0.06"), (MANY_PASSES, 80.2, "0.05")):
        case = f"after {passes} iterations"
        pairs = [
            online(processor, profile(STEP_S), passes, seed)
            for seed in one_by_one(seeds, f"estimators: reinforcement learning {case}", progress)
        ]
        figures += [
            Figure(
                case,
                "reinforcement learning",
                "correct %",
                [correct for correct, _ in pairs],
                f"{correct}",
                correct - 8.0,
                correct + 8.0,
            ),
            Figure(case, "reinforcement learning", "PAAE within target", [error for _, error in pairs], error),
        ]
    return figures
