"""The simulator against the lab: calibrated on what a comparison shows in calm, compared with what it shows in noise.

Only two numbers are fitted, both on calm requests under static weights: what each response takes besides CPU, from the
median, and how much the requests' costs differ, from p95. Nothing of the noisy phase goes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detector.tree import Model
from evaluation import recording
from evaluation.plan import CompareError, load
from evaluation.policies import POLICIES
from evaluation.results import phase
from evaluation.scenarios import SCENARIOS
from evaluation.sim.requests import simulate
from evaluation.sim.setup import Setup

SCENARIO = "one"
VARIATIONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared coefficients of variation that are tried."""
CALM_S = 40.0
SEEDS = (1, 2, 3, 4, 5)
SIMULATED: dict[str, tuple[str, str]] = {
    "static": ("static", "roundrobin"),
    "leastconn": ("static", "leastconn"),
    "random2": ("static", "random2"),
    "slackwater": ("slackwater", "roundrobin"),
    "slackwater-lc": ("slackwater", "leastconn"),
    "ice": ("ice", "roundrobin"),
    "oracle": ("oracle", "roundrobin"),
}
"""Policy in the lab -> policy and balance in the simulator."""


def validate(folder: Path, model: Model | None, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """`calibration` and, for each policy, lab's and simulator's p95 and the relative error.

    Raises CompareError when the comparison lacks calm requests under `static`.
    """
    made = load(folder)
    app = SCENARIOS[SCENARIO].app
    runs = [run for run in made.runs if run.scenario == SCENARIO and recording.done(folder, run)]
    calm = [_phase(folder, run, "calm") for run in runs if run.policy == "static"]
    if not calm or app not in made.capacity_rps:
        raise CompareError(f"{folder}: expected runs of scenario `{SCENARIO}` under `static` to calibrate on")
    setup = Setup(
        servers=made.hosts,
        capacity_rps=made.capacity_rps[app] / made.hosts,
        load=SCENARIOS[SCENARIO].load,
        quota_cores=made.quota_cores,
        noisy=0.0,
        episode_s=0.0,
        seconds=CALM_S,
    )
    p50, p95 = (float(np.median([one[key] for one in calm])) for key in ("p50_ms", "p95_ms"))
    setup = calibrate(setup, p50, p95)
    say(f"calibrated on calm: overhead {setup.overhead_ms:.2f} ms, cost's squared variation {setup.cost_cv2:g}")
    fitted = simulate(setup, "static", None).felt
    noisy = replace(setup, noisy=1.0 / made.hosts, taken=1.0 - 1e-9, seconds=SCENARIOS[SCENARIO].seconds)
    compared = []
    for name in [name for name in SIMULATED if name in POLICIES and any(run.policy == name for run in runs)]:
        policy, balance = SIMULATED[name]
        lab = float(np.median([_phase(folder, run, "loud")["p95_ms"] for run in runs if run.policy == name]))
        found = [simulate(replace(noisy, balance=balance, seed=seed), policy, model).felt["p95_ms"] for seed in SEEDS]
        ours = float(np.median([one for one in found if one is not None]))
        compared.append({"policy": name, "lab_p95_ms": lab, "simulated_p95_ms": ours, "error": ours / lab - 1.0})
        say(f"{name}: p95 {lab:.1f} ms in the lab, {ours:.1f} ms simulated ({ours / lab - 1.0:+.0%})")
    calibration = {
        "overhead_ms": setup.overhead_ms,
        "cost_cv2": setup.cost_cv2,
        "calm_p50_ms": {"lab": p50, "simulated": fitted["p50_ms"]},
        "calm_p95_ms": {"lab": p95, "simulated": fitted["p95_ms"]},
    }
    return {"calibration": calibration, "compared": compared}


def calibrate(setup: Setup, p50_ms: float, p95_ms: float) -> Setup:
    """The setup whose calm p50 is this one, and whose calm p95 is nearest."""
    best: tuple[float, Setup] | None = None
    for cv2 in VARIATIONS:
        felt = simulate(replace(setup, cost_cv2=cv2, overhead_ms=0.0), "static", None).felt
        assert felt["p50_ms"] is not None
        assert felt["p95_ms"] is not None
        overhead_ms = max(0.0, p50_ms - felt["p50_ms"])
        off = abs(felt["p95_ms"] + overhead_ms - p95_ms)
        if best is None or off < best[0]:
            best = off, replace(setup, cost_cv2=cv2, overhead_ms=overhead_ms)
    assert best is not None
    return best[1]


def _phase(folder: Path, run: Any, name: str) -> dict[str, Any]:
    recorded = recording.read(folder, run)
    marks = recorded.marks
    ends = (marks.calm_s, marks.on_s) if name == "calm" else (marks.on_s, marks.off_s)
    return phase(recorded, *ends)
