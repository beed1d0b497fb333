"""The simulator against the lab: calibrated on what a comparison shows in calm, compared with what it shows in noise.

Three numbers are fitted, all under static weights: what each response takes besides CPU, from the calm median; how much
the requests' costs differ, from the calm p95; and how many cores the neighbour gets, from the noisy p95. All other
policies are predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detector.tree import Model
from evaluation import recording
from evaluation.plan import CompareError, Run, load
from evaluation.results import phase
from evaluation.scenarios import SCENARIOS
from evaluation.sim.requests import simulate
from evaluation.sim.setup import Setup

SCENARIO = "one"
VARIATIONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared coefficients of variation that are tried."""
CORES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.3, 1.6, 2.0)
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
    "oracle-lc": ("oracle", "leastconn"),
}
"""Policy in the lab -> policy and balance in the simulator. The others have no model: agents, ejection, and web servers
that are retuned (of `ice` only the first stage is simulated)."""


def validate(
    folders: Sequence[Path], model: Model | None, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """`calibration` and, for each policy that is simulated and was measured, the lab's and the simulator's p95, the
    relative error, and of how many rounds the lab's is.

    The comparisons' rounds count together. Raises CompareError when they lack calm requests under `static`.
    """
    runs: list[tuple[Path, Run]] = []
    capacities: list[float] = []
    app = SCENARIOS[SCENARIO].app
    for folder in folders:
        made = load(folder)
        mine = [(folder, run) for run in made.runs if run.scenario == SCENARIO and recording.done(folder, run)]
        if mine and app in made.capacity_rps:
            runs += mine
            capacities.append(made.capacity_rps[app])
            pool = made
    calm = [_phase(folder, run, "calm") for folder, run in runs if run.policy == "static"]
    if not calm:
        told = ", ".join(map(str, folders))
        raise CompareError(f"{told}: expected runs of scenario `{SCENARIO}` under `static` to calibrate on")
    setup = Setup(
        servers=pool.hosts,
        capacity_rps=float(np.median(capacities)) / pool.hosts,
        load=SCENARIOS[SCENARIO].load,
        quota_cores=pool.quota_cores,
        noisy=0.0,
        episode_s=0.0,
        seconds=CALM_S,
    )
    p50, p95 = (float(np.median([one[key] for one in calm])) for key in ("p50_ms", "p95_ms"))
    setup = calibrate(setup, p50, p95)
    say(f"calibrated on calm: overhead {setup.overhead_ms:.2f} ms, cost's squared variation {setup.cost_cv2:g}")
    fitted = simulate(setup, "static", None).felt
    noisy = replace(setup, noisy=1.0 / pool.hosts, taken=1.0 - 1e-9, seconds=SCENARIOS[SCENARIO].seconds)
    loud = {
        name: [_phase(folder, run, "loud")["p95_ms"] for folder, run in runs if run.policy == name]
        for name in SIMULATED
        if any(run.policy == name for _, run in runs)
    }
    noisy = calibrate_noise(noisy, float(np.median(loud["static"])))
    say(f"calibrated on noise: the neighbour gets {noisy.neighbour_cores:g} cores")
    compared = []
    for name, measured in loud.items():
        policy, balance = SIMULATED[name]
        lab = float(np.median(measured))
        ours = p95_ms(replace(noisy, balance=balance), policy, model)
        one = {"policy": name, "rounds": len(measured), "lab_p95_ms": lab, "simulated_p95_ms": ours}
        compared.append(one | {"error": ours / lab - 1.0, "fitted": name == "static"})
        say(f"{name}: p95 {lab:.1f} ms in the lab, {ours:.1f} ms simulated ({ours / lab - 1.0:+.0%})")
    calibration = {
        "overhead_ms": setup.overhead_ms,
        "cost_cv2": setup.cost_cv2,
        "neighbour_cores": noisy.neighbour_cores,
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


def calibrate_noise(setup: Setup, p95_lab_ms: float) -> Setup:
    """The setup, with the cores for the neighbour whose p95 under static weights is nearest (as a ratio)."""
    found = [replace(setup, neighbour_cores=cores) for cores in CORES]
    return min(found, key=lambda one: abs(math.log(p95_ms(one, "static", None) / p95_lab_ms)))


def p95_ms(setup: Setup, policy: str, model: Model | None) -> float:
    """The median over `SEEDS`."""
    found = [simulate(replace(setup, seed=seed), policy, model).felt["p95_ms"] for seed in SEEDS]
    return float(np.median([one for one in found if one is not None]))


def _phase(folder: Path, run: Run, name: str) -> dict[str, Any]:
    recorded = recording.read(folder, run)
    marks = recorded.marks
    ends = (marks.calm_s, marks.on_s) if name == "calm" else (marks.on_s, marks.off_s)
    return phase(recorded, *ends)
