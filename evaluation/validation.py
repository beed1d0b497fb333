"""The simulator against the lab: calibrated on what a comparison shows under static weights, compared with what it shows
under the other policies, which are predictions.

Known, not fitted: hosts, quotas, the machine's cores, capacity, load, and how even the generator's beat is (recorded).
Fitted on calm: what a response takes besides CPU, or which share of its CPU time comes after it, from the median; how
much the requests' costs differ, from p95. Fitted on noise, on quantiles of all responses: how many cores the neighbour
runs on while there is quota, and how much it slows everything beside it down.
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
from evaluation.recording import Recorded
from evaluation.scenarios import SCENARIOS
from evaluation.sim.requests import Simulation, simulate
from evaluation.sim.server import HOST_CORES
from evaluation.sim.setup import LAWS, WARM_UP_S, Setup

SCENARIO = "one"
VARIATIONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared coefficients of variation that are tried."""
CORES = (0.5, 0.7, 1.0, 1.4, 2.0)
CROWDING = (0.0, 0.2, 0.4, 0.7, 1.0, 1.5)
FITTED_AT = (25, 50, 75, 90, 95)
"""Percentiles of the responses beside the neighbour that are fitted, under static weights."""
CALM_S = 20.0
SHORT_WARM_UP_S = 3.0
"""Where nothing has to be learnt first."""
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
    still = [recording.read(folder, run) for folder, run in runs if run.policy == "static"]
    if not still:
        told = ", ".join(map(str, folders))
        raise CompareError(f"{told}: expected runs of scenario `{SCENARIO}` under `static` to calibrate on")
    setup = Setup(
        servers=pool.hosts,
        capacity_rps=float(np.median(capacities)) / pool.hosts,
        load=SCENARIOS[SCENARIO].load,
        quota_cores=pool.quota_cores,
        machine_cores=float(pool.machine.get("cores") or HOST_CORES),
        arrivals_cv2=float(np.median([evenness(one) for one in still])),
        noisy=0.0,
        episode_s=0.0,
        seconds=CALM_S,
        warm_up_s=SHORT_WARM_UP_S,
    )
    p50, p95 = (float(np.median([times_at(one, "calm", at) for one in still])) for at in (50, 95))
    setup = calibrate(setup, p50, p95)
    say(
        f"calibrated on calm: {setup.overhead_ms:.2f} ms besides CPU, {setup.after_share:.0%} of the CPU time after the"
        f" answer, cost's squared variation {setup.cost_cv2:g}"
    )
    fitted = simulate(setup, "static", None).felt
    noisy = replace(setup, noisy=1.0 / pool.hosts, taken=1.0 - 1e-9, seconds=SCENARIOS[SCENARIO].seconds)
    wanted = [float(np.median([times_at(one, "loud", at) for one in still])) for at in FITTED_AT]
    noisy, found = calibrate_noise(noisy, wanted)
    say(f"calibrated on noise: a neighbour of {noisy.neighbour_cores:g} cores, crowding {noisy.crowding:g}")
    compared = []
    for name, (policy, balance) in SIMULATED.items():
        measured = [times_at(recording.read(folder, run), "loud", 95) for folder, run in runs if run.policy == name]
        if not measured:
            continue
        lab = float(np.median(measured))
        ours = p95_ms(replace(noisy, balance=balance), policy, model)
        one = {"policy": name, "rounds": len(measured), "lab_p95_ms": lab, "simulated_p95_ms": ours}
        compared.append(one | {"error": ours / lab - 1.0, "fitted": name == "static"})
        say(f"{name}: p95 {lab:.1f} ms in the lab, {ours:.1f} ms simulated ({ours / lab - 1.0:+.0%})")
    calibration = {
        "arrivals_cv2": setup.arrivals_cv2,
        "overhead_ms": setup.overhead_ms,
        "after_share": setup.after_share,
        "cost_cv2": setup.cost_cv2,
        "neighbour_cores": noisy.neighbour_cores,
        "crowding": noisy.crowding,
        "calm_p50_ms": {"lab": p50, "simulated": fitted["p50_ms"]},
        "calm_p95_ms": {"lab": p95, "simulated": fitted["p95_ms"]},
        "loud_ms": {
            f"p{at}": {"lab": theirs, "simulated": ours}
            for at, theirs, ours in zip(FITTED_AT, wanted, found, strict=True)
        },
    }
    return {"calibration": calibration, "compared": compared}


def evenness(recorded: Recorded) -> float:
    """Squared coefficient of variation of the times between requests in calm: 0 for an even beat, 1 at random."""
    marks = recorded.marks
    due = np.sort(recorded.due_s[(recorded.due_s >= marks.calm_s) & (recorded.due_s < marks.on_s)])
    gaps = np.diff(due)
    return float(gaps.var() / gaps.mean() ** 2)


def times_at(recorded: Recorded, name: str, percentile: float) -> float:
    """This percentile in ms of the responses without an error in calm, or beside the neighbour (`loud`)."""
    marks = recorded.marks
    begin_s, end_s = (marks.calm_s, marks.on_s) if name == "calm" else (marks.on_s, marks.off_s)
    chosen = (recorded.due_s >= begin_s) & (recorded.due_s < end_s) & (recorded.status < 400)
    return float(1e3 * np.percentile(recorded.seconds[chosen], percentile))


def calibrate(setup: Setup, p50_ms: float, p95_ms: float) -> Setup:
    """The setup whose calm p50 is this one, and whose calm p95 is nearest.

    Where the median is above that of the CPU time, the rest is overhead; where it is below, it is answered so much
    before its CPU time is over.
    """
    best: tuple[float, Setup] | None = None
    for cv2 in VARIATIONS:
        one = replace(setup, cost_cv2=cv2, overhead_ms=0.0, after_share=0.0)
        felt = simulate(one, "static", None).felt
        assert felt["p50_ms"] is not None
        if felt["p50_ms"] > p50_ms:
            one = replace(one, after_share=1.0 - p50_ms / felt["p50_ms"])
            felt = simulate(one, "static", None).felt
        assert felt["p50_ms"] is not None
        assert felt["p95_ms"] is not None
        one = replace(one, overhead_ms=max(0.0, p50_ms - felt["p50_ms"]))
        off = abs(felt["p95_ms"] + one.overhead_ms - p95_ms)
        if best is None or off < best[0]:
            best = off, one
    assert best is not None
    return best[1]


def calibrate_noise(setup: Setup, wanted_ms: Sequence[float]) -> tuple[Setup, list[float]]:
    """The setup whose response times beside the neighbour, at `FITTED_AT`, are nearest these as ratios; and they."""
    tried = [
        replace(setup, neighbour_cores=cores, crowding=crowding) for cores in CORES for crowding in CROWDING
    ]
    found = [(one, percentiles_ms(one)) for one in tried]
    return min(found, key=lambda pair: sum(math.log(a / b) ** 2 for a, b in zip(pair[1], wanted_ms, strict=True)))


def percentiles_ms(setup: Setup) -> list[float]:
    """Of the responses under static weights, at `FITTED_AT`."""
    run = Simulation(setup, "static", None)
    run.run()
    _, took_s, _ = run.answered()
    return [1e3 * one for one in np.percentile(took_s, FITTED_AT).tolist()]


def p95_ms(setup: Setup, policy: str, model: Model | None) -> float:
    """The median over `SEEDS`."""
    if policy in LAWS:
        setup = replace(setup, warm_up_s=WARM_UP_S)
    found = [simulate(replace(setup, seed=seed), policy, model).felt["p95_ms"] for seed in SEEDS]
    return float(np.median([one for one in found if one is not None]))
