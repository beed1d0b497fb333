"""Recordings of comparisons as runs would leave them, with known figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lab.compare import comparison as plan
from lab.compare.comparison import Comparison
from lab.experiment import recording
from lab.experiment.recording import Marks, Recorded, Run

LEVEL_MS = {"static": 60.0, "leastconn": 20.0, "slackwater": 10.0, "oracle": 9.0}
"""Response time of every request while the neighbour is loud."""

COST = {"monitor": {"count": 3.0, "core_share": 0.012, "rss_mib": 8.0}}
ON_S, OFF_S = 9.0, 24.0
SERVERS = ("host1", "host2", "host3")


def recorded(run: Run, answers_s: float | None = None, detected_s: float | None = None) -> Recorded:
    """100 requests a second for 30 s: 3 ms each, and the policy's level from 9 s to 24 s; one error in each phase.

    host1's weight falls `answers_s` after the onset, its first Verdict comes `detected_s` after it; None: neither."""
    due = np.arange(0.0, 30.0, 0.01)
    loud = (due >= ON_S) & (due < OFF_S)
    dice = np.random.default_rng(run.number)
    level = LEVEL_MS.get(run.policy, 30.0) * dice.uniform(0.98, 1.02)
    status = np.full(len(due), 200)
    status[[400, 1000, 2500]] = 503
    falls_s = np.inf if answers_s is None else ON_S + answers_s
    weights = [
        (at / 20, name, 30 if name == "host1" and falls_s <= at / 20 < OFF_S else 100, at)
        for at in range(600)
        for name in SERVERS
    ]
    verdicts: list[tuple[float, str, str]] | None = None
    facts: dict[str, Any] = {"rate_rps": 100.0, "cost": COST if run.policy == "slackwater" else {}}
    if detected_s is not None:
        verdicts = [
            (at / 5, name, "interference" if name == "host1" and ON_S + detected_s <= at / 5 < OFF_S else "calm")
            for at in range(150)
            for name in SERVERS
        ]
        neighbour = {"host": "host1", "kind": "llcprobe", "on_s": ON_S, "off_s": OFF_S}
        facts |= {"neighbours": [neighbour], "commit": "0123456789ab"}
    return Recorded(
        run=run,
        marks=Marks(3.0, ON_S, OFF_S, 30.0),
        lost=2,
        due_s=due,
        seconds=np.where(loud, level, 3.0) / 1e3,
        status=status,
        weights=weights,
        verdicts=verdicts,
        facts=facts,
    )


def comparison(
    folder: Path, runs: int | None = None, scenarios: tuple[str, ...] = ("one",), policies: tuple[str, ...] = ()
) -> Comparison:
    """A comparison of four policies, or of those named, in 5 rounds; only the first `runs` are there."""
    made = plan.planned(scenarios, policies or tuple(LEVEL_MS), rounds=5, seed=3)
    plan.save(folder, made)
    for run in made.runs[:runs]:
        answers_s = 0.5 if run.policy in ("slackwater", "oracle") else None
        recording.write(folder, recorded(run, answers_s, 0.4 if run.policy == "slackwater" else None))
    return made
