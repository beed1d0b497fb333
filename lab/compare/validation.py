"""The simulator against the lab: calibrated on what a comparison shows under static weights, compared with what it
shows under the other policies, which are predictions.

Known, not fitted: hosts, quotas, the machine's cores, rate and evenness of the load, the CPU time that a request took
beside the neighbour, the neighbour's share of the host, what Slackwater itself took of the cores, and how often the
kernel takes a core away. Fitted on
calm: what a response takes besides CPU, from the median, and how much the requests' costs differ, from p95. Fitted on
noise, on quantiles of all responses: how many of those who come to a processor that the neighbour has wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detector.classify.tree import Model
from lab.compare.comparison import Comparison, load
from lab.experiment import recording
from lab.experiment.recording import ExperimentError, Recorded
from lab.experiment.scenarios import SCENARIOS
from lab.sim.requests import Simulation, simulate
from lab.sim.setup import LAWS, WARM_UP_S, Setup

SCENARIO = "one"
VARIATIONS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Squared coefficients of variation that are tried."""
BEHIND = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
TICK_MS = 4.0
"""The kernel looks at each tick whether who has a core has had its slice, which is shorter (CONFIG_HZ=250, here as in
Debian's kernels)."""
FITTED_AT = (25, 50, 60, 65, 70, 80, 90, 95)
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


def validate(folders: Sequence[Path], model: Model, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """`calibrations` and `compared`: for each comparison, and each policy that is simulated and was measured in it,
    the lab's and the simulator's p95, the relative error, and of how many rounds the lab's is.

    Each comparison has its own load, and is calibrated by itself. Raises ExperimentError when none has runs under
    `static`.
    """
    calibrations, compared = [], []
    for folder in folders:
        made = load(folder)
        runs = [run for run in made.runs if run.scenario == SCENARIO and recording.done(folder, run)]
        by_policy = {name: [recording.read(folder, run) for run in runs if run.policy == name] for name in SIMULATED}
        if by_policy["static"] and SCENARIOS[SCENARIO].app in made.capacity_rps:
            setup, calibration = _calibrated(made, by_policy["static"], progress)
            calibrations.append({"comparison": folder.name} | calibration)
            for name, measured in by_policy.items():
                if measured:
                    compared.append({"comparison": folder.name} | _predicted(setup, name, measured, model, progress))
    if not calibrations:
        names = ", ".join(map(str, folders))
        raise ExperimentError(f"{names}: expected runs of scenario `{SCENARIO}` under `static` to calibrate on")
    return {"calibrations": calibrations, "compared": compared}


def _calibrated(
    made: Comparison, still: Sequence[Recorded], progress: Callable[[str], None]
) -> tuple[Setup, dict[str, Any]]:
    """The setup that is nearest to these runs under static weights, and what was found."""

    def typical(name: str, percentile: float) -> float:
        return float(np.median([times_at(one, name, percentile) for one in still]))

    rate_rps = float(np.median([one.facts["rate_rps"] for one in still]))
    capacity_rps = made.quota_cores / float(np.median([cpu_s(one) for one in still]))
    setup = Setup(
        servers=made.hosts,
        capacity_rps=capacity_rps,
        load=rate_rps / (made.hosts * capacity_rps),
        quota_cores=made.quota_cores,
        machine_cores=int(made.machine.get("cores", 0)),
        slice_ms=TICK_MS,
        arrivals_cv2=float(np.median([evenness(one) for one in still])),
        noisy=0.0,
        episode_s=0.0,
        seconds=CALM_S,
        warm_up_s=SHORT_WARM_UP_S,
    )
    p50, p95 = typical("calm", 50), typical("calm", 95)
    setup = calibrate(setup, p50, p95)
    fitted = simulate(setup, "static", None).felt
    wanted = [typical("loud", at) for at in FITTED_AT]
    (neighbour,) = SCENARIOS[SCENARIO].neighbours
    noisy = replace(
        setup,
        noisy=1.0 / made.hosts,
        noisy_servers=(neighbour.host,),
        taken=neighbour.thought_lost,
        seconds=SCENARIOS[SCENARIO].seconds,
    )
    noisy, found = calibrate_noise(noisy, wanted)
    progress(
        f"calibrated on calm: {noisy.overhead_ms:.2f} ms besides CPU, cost's squared variation {noisy.cost_cv2:g}; on"
        f" noise: {noisy.behind_share:.0%} of who comes to a processor that the neighbour has wait"
    )
    by_percentile = zip(FITTED_AT, wanted, found, strict=True)
    return noisy, {
        "rate_rps": rate_rps,
        "load": setup.load,
        "arrivals_cv2": setup.arrivals_cv2,
        "overhead_ms": setup.overhead_ms,
        "cost_cv2": setup.cost_cv2,
        "behind_share": noisy.behind_share,
        "calm_p50_ms": {"lab": p50, "simulated": fitted["p50_ms"]},
        "calm_p95_ms": {"lab": p95, "simulated": fitted["p95_ms"]},
        "loud_ms": {f"p{at}": {"lab": theirs, "simulated": ours} for at, theirs, ours in by_percentile},
    }


def _predicted(
    setup: Setup, name: str, measured: Sequence[Recorded], model: Model, progress: Callable[[str], None]
) -> dict[str, Any]:
    policy, balance = SIMULATED[name]
    lab = float(np.median([times_at(one, "loud", 95) for one in measured]))
    own = float(np.median([own_cores(one) for one in measured]))
    busy = own / setup.machine_cores if setup.machine_cores else 0.0
    ours = p95_ms(replace(setup, balance=balance, busy_share=busy), policy, model)
    error = ours / lab - 1.0
    progress(f"{name}: p95 {lab:.1f} ms in the lab, {ours:.1f} ms simulated ({error:+.0%})")
    return {
        "policy": name,
        "own_cores": own,
        "rounds": len(measured),
        "lab_p95_ms": lab,
        "simulated_p95_ms": ours,
        "error": error,
        "fitted": name == "static",
    }


def cpu_s(recorded: Recorded) -> float:
    """CPU seconds that the web servers spent on each request while the neighbour was loud."""
    used = recorded.facts["cpu"].values()
    return float(sum(one["vm_s"] / one["loud_s"] for one in used) / recorded.facts["rate_rps"])


def own_cores(recorded: Recorded) -> float:
    """Cores that Slackwater's own processes took during a run; 0 where none ran."""
    return float(sum(one["count"] * one["core_share"] for one in recorded.facts.get("cost", {}).values()))


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


def calibrate_noise(setup: Setup, wanted_ms: Sequence[float]) -> tuple[Setup, list[float]]:
    """The setup whose response times beside the neighbour, at `FITTED_AT`, are nearest these as ratios; and they."""
    tried = [replace(setup, behind_share=share) for share in BEHIND]
    found = [(one, percentiles_ms(one)) for one in tried]
    return min(found, key=lambda pair: sum(math.log(a / b) ** 2 for a, b in zip(pair[1], wanted_ms, strict=True)))


def percentiles_ms(setup: Setup) -> list[float]:
    """Of the responses under static weights, at `FITTED_AT`."""
    run = Simulation(setup, "static", None)
    run.run()
    _, took_s, _ = run.answered()
    return [1e3 * one for one in np.percentile(took_s, FITTED_AT).tolist()]


def p95_ms(setup: Setup, policy: str, model: Model) -> float:
    """The median over `SEEDS`."""
    if policy in LAWS:
        setup = replace(setup, warm_up_s=WARM_UP_S)
    found = [simulate(replace(setup, seed=seed), policy, model).felt["p95_ms"] for seed in SEEDS]
    return float(np.median([one for one in found if one is not None]))
