"""Recordings of comparisons as runs would leave them, with known figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evaluation import plan, recording
from evaluation.plan import Plan, Run
from evaluation.recording import Marks, Recorded

LEVEL_MS = {"static": 60.0, "leastconn": 20.0, "slackwater": 10.0, "oracle": 9.0}
"""Response time of every request while the neighbour is loud."""

COST = {"monitor": {"count": 3.0, "core_share": 0.012, "rss_mib": 8.0}}


def recorded(run: Run, answers_s: float | None = None) -> Recorded:
    """100 requests a second for 30 s: 3 ms each, and the policy's level from 9 s to 24 s; one error in each phase."""
    due = np.arange(0.0, 30.0, 0.01)
    loud = (due >= 9.0) & (due < 24.0)
    dice = np.random.default_rng(run.number)
    level = LEVEL_MS[run.policy] * dice.uniform(0.98, 1.02)
    status = np.full(len(due), 200)
    status[[400, 1000, 2500]] = 503
    weights = [(at / 20, name, 100, at) for at in range(600) for name in ("host1", "host2", "host3")]
    return Recorded(
        run=run,
        marks=Marks(3.0, 9.0, 24.0, 30.0, answers_s),
        lost=2,
        due_s=due,
        seconds=np.where(loud, level, 3.0) / 1e3,
        status=status,
        weights=weights,
        facts={"rate_rps": 100.0, "cost": COST if run.policy == "slackwater" else {}},
    )


def comparison(folder: Path, runs: int | None = None, scenarios: tuple[str, ...] = ("one",)) -> Plan:
    """A comparison of four policies in 5 rounds; only the first `runs` are there."""
    made = plan.plan(scenarios, tuple(LEVEL_MS), rounds=5, seed=3)
    plan.save(folder, made)
    for run in made.runs[:runs]:
        recording.write(folder, recorded(run, 0.5 if run.policy in ("slackwater", "oracle") else None))
    return made
