"""The simulator held against recordings that the simulator itself made: there the right answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lab.compare import comparison as plan
from lab.compare import goals, validation
from lab.experiment import recording
from lab.experiment.recording import ExperimentError, Marks, Recorded
from lab.sim.requests import Simulation
from lab.sim.setup import Setup
from tests.support.comparison_files import comparison
from tests.support.judges import shipped

TRUTH = Setup(
    servers=3,
    capacity_rps=200.0,
    load=0.35,
    quota_cores=0.4,
    machine_cores=2,
    arrivals_cv2=0.1,
    cost_cv2=0.5,
    overhead_ms=0.7,
    taken=0.5,
    noisy_servers=(0,),
    slice_ms=validation.TICK_MS,
    behind_share=0.5,
    episode_s=0.0,
    warm_up_s=5.0,
)
CALM_S, LOUD_S = 6.0, 20.0


def simulated_run(run: recording.Run) -> Recorded:
    """What a lab would record whose servers are the model's: calm, and then a neighbour beside one server."""
    policy, balance = validation.SIMULATED[run.policy]
    due: list[float] = []
    seconds: list[float] = []
    for begin_s, noisy, lasts_s in ((0.0, 0.0, CALM_S), (CALM_S, 1.0 / 3.0, LOUD_S)):
        setup = replace(TRUTH, balance=balance, noisy=noisy, seconds=lasts_s, seed=100 + run.number)
        made = Simulation(setup, policy, None)
        made.run()
        ended_s, took_s, _ = made.answered()
        due += (begin_s + ended_s - took_s - TRUTH.warm_up_s).tolist()
        seconds += took_s.tolist()
    marks = Marks(0.0, CALM_S, CALM_S + LOUD_S, CALM_S + LOUD_S)
    rate_rps = TRUTH.load * TRUTH.servers * TRUTH.capacity_rps
    used_s = TRUTH.load * TRUTH.quota_cores * LOUD_S
    cpu = {f"host{n}": {"vm_s": used_s, "neighbour_s": 0.0, "loud_s": LOUD_S} for n in range(TRUTH.servers)}
    facts = {"rate_rps": rate_rps, "cpu": cpu}
    return Recorded(run, marks, 0, np.array(due), np.array(seconds), np.full(len(due), 200), facts=facts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of two policies."""
    folder = tmp_path_factory.mktemp("simulated")
    made = plan.planned(("one",), ("static", "leastconn"), rounds=2, seed=1)
    measured = {"capacity_rps": {"events": 3 * TRUTH.capacity_rps}, "machine": {"cores": TRUTH.machine_cores}}
    plan.save(folder, msgspec.structs.replace(made, **measured))
    for run in made.runs:
        recording.write(folder, simulated_run(run))
    return folder


def test_a_recording_made_by_the_model_is_found_to_be_near_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "SEEDS", (1, 2))
    monkeypatch.setattr(validation, "BEHIND", (0.2, 0.5, 1.0))
    monkeypatch.setattr(validation, "VARIATIONS", (0.0, 0.5, 4.0))
    found = validation.validate([folder], shipped())
    (calibration,) = found["calibrations"]
    assert calibration["comparison"] == folder.name
    assert calibration["cost_cv2"] == 0.5
    assert calibration["behind_share"] == 0.5
    assert calibration["load"] == pytest.approx(TRUTH.load, rel=0.1)
    assert calibration["arrivals_cv2"] == pytest.approx(TRUTH.arrivals_cv2, abs=0.05)
    assert calibration["overhead_ms"] == pytest.approx(TRUTH.overhead_ms, abs=0.3)
    by_policy = {one["policy"]: one for one in found["compared"]}
    assert by_policy.keys() == {"static", "leastconn"}
    assert {one["rounds"] for one in found["compared"]} == {2}
    assert by_policy["static"]["fitted"]
    assert not by_policy["leastconn"]["fitted"]
    assert abs(by_policy["leastconn"]["error"]) < 0.25, "a prediction: nothing was fitted under leastconn"
    assert by_policy["leastconn"]["lab_p95_ms"] < 0.9 * by_policy["static"]["lab_p95_ms"], "the two differ"
    decided = goals.of_simulator([], found["compared"])[1]
    assert decided.word == "not measured yet", "two rounds, and most policies are missing"


def test_without_calm_under_static_weights_there_is_nothing_to_fit_on(tmp_path: Path) -> None:
    comparison(tmp_path, policies=("slackwater", "oracle"))
    with pytest.raises(ExperimentError, match="expected runs of scenario `one` under `static`"):
        validation.validate([tmp_path], shipped())


def near(policy: str, error: float = 0.05, rounds: int = 5) -> dict[str, object]:
    return {"comparison": "goals", "policy": policy, "error": error, "rounds": rounds, "fitted": policy == "static"}


def test_only_all_policies_in_enough_rounds_validate_the_simulator() -> None:
    def word(*compared: dict[str, object]) -> str:
        return goals.of_simulator([], compared)[1].word

    whole = [near(name) for name in validation.SIMULATED]
    assert word(*whole) == "reached"
    assert word(*whole[:-1]) == "not measured yet", "a policy that is simulated was not measured"
    assert word(*whole[:-1], near("oracle-lc", rounds=4)) == "not measured yet"
    assert word(*whole[:-1], near("oracle-lc", error=-0.2)) == "NOT reached"
    assert word(near("static"), near("leastconn", error=0.2)) == "NOT reached", "one that is off is enough"
    assert word(near("static"), near("leastconn", error=0.2, rounds=1)) == "not measured yet"
    assert word() == "not measured yet"
    text = goals.of_simulator([], [near("static"), near("ice", rounds=1)])[1].found
    assert text.startswith("goals: static +5% of 5 (fitted); goals: ice +5% of 1; in fewer than 5 rounds: leastconn, ")
