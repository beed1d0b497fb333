"""The table `heimdall`: every policy on the thesis's machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from slackwater.detector.tail.data import Rows
from slackwater.detector.tail.regressors import Forest, Svm
from slackwater.detector.tail.table import TabularLearner
from slackwater.governor.policies.table import POLICIES, Conditions
from slackwater.governor.types import Hardware, Policy
from slackwater_lab.governor.figures import Figure, one_by_one
from slackwater_lab.governor.heimdall import MOST_RPS, STEP_S, TARGET_MS, PolicyTrace, bound_w, machine, run, trace
from slackwater_lab.governor.policies.heimdall import Heimdall
from slackwater_lab.governor.policies.heimdall_rl import LEAST_MS, HeimdallRl
from slackwater_lab.governor.policies.heracles import Heracles
from slackwater_lab.governor.policies.hipster import Hipster
from slackwater_lab.governor.profile import profile
from slackwater_lab.governor.queues import Floats

PROFILE_STEP_S = 20
"""The thesis holds each load step for 50 s; its own Figure 4.6 shows that 40% of the data are as good."""
SVM_EVERY = 5
"""The support vector machine learns from every fifth row: its fit takes the square of their number."""


@dataclass(frozen=True)
class Row:
    """A policy's row in Table 4.1: the paper's figures, and by how much they may differ."""

    make: Callable[[Hardware, int], Policy]
    guarantee: str = ""
    tardiness: str = ""
    saved: str = ""
    guarantee_allowed: tuple[float | None, float | None] = (None, None)
    tardiness_allowed: tuple[float | None, float | None] = (None, None)
    saved_allowed: tuple[float | None, float | None] = (None, None)
    learnt: bool = False
    """An iteration before the one that counts."""


def _forest(processor: Hardware, seed: int) -> Policy:
    forest = Forest(seed)
    forest.fit(profile(PROFILE_STEP_S))
    return Heimdall("heimdall-rf", processor, TARGET_MS, forest)


def _svm(processor: Hardware, seed: int) -> Policy:
    data = profile(PROFILE_STEP_S)
    svm = Svm(seed)
    svm.fit(data.only(np.arange(seed % SVM_EVERY, len(data.p95_ms), SVM_EVERY)))
    return Heimdall("heimdall-svm", processor, TARGET_MS, svm)


def _rl(processor: Hardware, seed: int) -> Policy:
    table = TabularLearner(LEAST_MS, TARGET_MS, seed)
    table.fit(with_clocks(processor, profile(PROFILE_STEP_S)))
    return HeimdallRl(processor, TARGET_MS, table)


def _of_the_table(name: str) -> Callable[[Hardware, int], Policy]:
    """Makes a policy of the governor's own table."""
    return lambda processor, seed: POLICIES[name](Conditions(processor, TARGET_MS, seed=seed))


def with_clocks(processor: Hardware, rows: Rows) -> Rows:
    """The same rows with the clock in MHz, which the reinforcement learner's states are made of."""
    changed = rows.inputs.copy()
    changed[:, 2] = np.array(processor.clocks_mhz)[changed[:, 2].astype(int)]
    return replace(rows, inputs=changed)


ROWS: dict[str, Row] = {
    "static": Row(_of_the_table("static"), "99.8", "1.1"),
    "linux ondemand": Row(_of_the_table("linux-ondemand"), "78.1", "1.2", "21.4", tardiness_allowed=(0.7, 1.7)),
    "linux schedutil": Row(_of_the_table("linux-schedutil")),
    "hipster energy": Row(
        lambda processor, seed: Hipster(processor, TARGET_MS, MOST_RPS, "energy", seed=seed), "87.8", "2.1", "20.6"
    ),
    "hipster energy, learnt": Row(
        lambda processor, seed: Hipster(processor, TARGET_MS, MOST_RPS, "energy", seed=seed),
        "87.8",
        "2.1",
        "20.6",
        learnt=True,
    ),
    "hipster ips": Row(
        lambda processor, seed: Hipster(processor, TARGET_MS, MOST_RPS, "ips", seed=seed), "84.0", "1.7", "22.1"
    ),
    "hipster ips, learnt": Row(
        lambda processor, seed: Hipster(processor, TARGET_MS, MOST_RPS, "ips", seed=seed),
        "84.0",
        "1.7",
        "22.1",
        learnt=True,
    ),
    "heracles": Row(
        lambda processor, _: Heracles(processor, TARGET_MS, MOST_RPS),
        "92.1",
        "3.0",
        "7.2",
        tardiness_allowed=(2.0, None),
    ),
    "heimdall-svm": Row(_svm, "89.9", "4.7", "7.1", tardiness_allowed=(2.0, None)),
    "heimdall-rf": Row(_forest, "97.7", "1.1", "22.3", (94.7, 100.0), (0.6, 1.6), (15.0, 30.0)),
    "heimdall-rl": Row(_rl),
    "pegasus": Row(_of_the_table("pegasus")),
    "parties": Row(_of_the_table("parties")),
    "slackwater": Row(_of_the_table("slackwater"), guarantee_allowed=(99.0, None)),
}
ORDER = ("heimdall-rf", "heracles", "heimdall-svm", "hipster energy", "hipster ips", "linux ondemand")
"""Policies by their guarantee in the thesis."""


def compare(
    seeds: Sequence[int],
    curve: str,
    progress: Callable[[str], None] = lambda _: None,
    *,
    step_s: int = STEP_S,
    rows: dict[str, Row] = ROWS,
) -> list[Figure]:
    """The table's figures."""
    processor = machine(curve)
    load = trace(step_s)
    least_w = bound_w(processor, load)
    runs = {
        name: [_one(row, processor, seed, load) for seed in one_by_one(seeds, f"heimdall: {name}", progress)]
        for name, row in rows.items()
    }
    static_w = [float(run.watts.mean()) for run in runs["static"]]
    figures = [Figure("alone", "bound", "energy saved %", [100.0 * (1.0 - least_w / watts) for watts in static_w])]
    for name, row in rows.items():
        saved = [100.0 * (1.0 - float(run.watts.mean()) / most) for run, most in zip(runs[name], static_w, strict=True)]
        share = [
            percent / (100.0 * (1.0 - least_w / most)) * 100.0 for percent, most in zip(saved, static_w, strict=True)
        ]
        figures += [
            Figure("alone", name, "guarantee %", _guarantees(runs[name]), row.guarantee, *row.guarantee_allowed),
            Figure(
                "alone", name, "tardiness", [run.tardiness for run in runs[name]], row.tardiness, *row.tardiness_allowed
            ),
            Figure("alone", name, "energy saved %", saved, row.saved, *row.saved_allowed),
            Figure("alone", name, "% of what the bound saves", share),
        ]
    placed = [name for name in ORDER if name in runs]
    for better, worse in pairwise(placed):
        ahead = [a - b for a, b in zip(_guarantees(runs[better]), _guarantees(runs[worse]), strict=True)]
        figures.append(Figure("order", better, f"guarantee above {worse}'s, points", ahead, "above 0", 0.0))
    if "heimdall-rf" in runs and "slackwater" in runs:
        pairs = list(zip(runs["slackwater"], runs["heimdall-rf"], strict=True))
        better_by = [ours.guarantee_percent - theirs.guarantee_percent for ours, theirs in pairs]
        less = [100.0 * (1.0 - float(ours.watts.mean() / theirs.watts.mean())) for ours, theirs in pairs]
        figures += [
            Figure("goal", "slackwater", "guarantee above heimdall-rf's, points", better_by, "", 0.0),
            Figure("goal", "slackwater", "energy below heimdall-rf's, %", less, "", 0.0),
        ]
    return figures


def _one(row: Row, processor: Hardware, seed: int, load: Floats) -> PolicyTrace:
    policy = row.make(processor, seed)
    if not row.learnt:
        return run(policy, processor, seed, load)
    two_passes = run(policy, processor, seed, np.concatenate([load, load]))
    return PolicyTrace(two_passes.p95_ms[len(load) :], two_passes.watts[len(load) :], two_passes.cpu_s)


def _guarantees(runs: Sequence[PolicyTrace]) -> list[float]:
    return [run.guarantee_percent for run in runs]
